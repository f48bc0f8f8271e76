//! What tests of several rooms share.

pub(crate) mod log;
pub(crate) mod redis_server;
