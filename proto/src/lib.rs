//! The languages Attaché speaks, without I/O: what is in a request body, where to splice it, what a stream says of its
//! usage, which headers are ours, and how an error reads in the caller's dialect.
//!
//! Everything here is a pure function or a small state machine over bytes; it compiles to wasm32, never panics on what came
//! over a wire, and bounds its own memory.

#[cfg(feature = "encoding")]
pub mod encoding;
pub mod error;
pub mod fields;
pub mod headers;
pub mod json;
pub mod multipart;
pub mod objection;
pub mod operation;
pub mod pass_through;
pub mod request;
pub mod response;
pub mod splice;
pub mod sse;
pub mod usage;

pub use error::{ApiError, ErrorKind};
pub use operation::{Dialect, Operation, TokenUse};
pub use usage::Usage;
