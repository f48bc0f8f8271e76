//! OpenAI's bodies as vLLM gives them: requests, answers, chunks, errors.

mod call;
mod error;
mod reply;

pub(crate) use call::{Call, Delivery, Form, Operation, StreamUsage};
pub(crate) use error::ApiError;
pub(crate) use reply::{Chunk, Envelope, FinishReason, Reply, Usage};
