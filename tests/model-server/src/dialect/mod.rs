//! Bodies that generate, as vLLM and the vendors give them: requests, answers, events, errors.

mod call;
mod chat;
mod error;
mod messages;
mod responses;

pub(crate) use call::{Call, Delivery, Form, StreamUsage, VectorFormat};
pub(crate) use chat::{ChatWriter, usage_json};
pub(crate) use error::{ApiError, Dialect};
pub(crate) use messages::MessageWriter;
pub(crate) use responses::ResponseWriter;
