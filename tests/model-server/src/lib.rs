//! A simulated model server: it stands in for vLLM where there are no GPUs, in tests, benches and the demo.
//!
//! It answers on OpenAI's paths, takes the time that a prefix cache and a GPU would take, reports vLLM's metrics, remembers what it was asked, and
//! breaks what it is asked to break. Texts, tokens and hits are functions of the requests alone, so a client can predict them.
//!
//! | path | |
//! |---|---|
//! | `POST /v1/chat/completions`, `/v1/completions`, `/v1/embeddings` | answers, whole or streamed |
//! | `GET /v1/models` | the models served |
//! | `GET /health`, `/metrics` | as vLLM |
//! | `GET`, `DELETE /sim/requests` | the last exchanges, see [`Record`]; forget them |
//! | `PUT /sim/fault` | `{"fault": "status=503", "requests": 2}`: the [`Fault`] of the next two exchanges; without `requests`, until cleared |
//! | `DELETE /sim/fault` | clears it |
//!
//! A request's headers [`FAULT_HEADER`] and [`ANSWER_TOKENS_HEADER`] set its own fault and the length of its answer.

mod answer;
mod cache;
mod config;
mod content;
mod control;
mod engine;
mod exchange;
mod faults;
mod generation;
mod journal;
mod metrics;
mod openai;
mod pause;
mod prompt;
mod server;
mod sse;

pub use config::Config;
pub use exchange::{ANSWER_TOKENS_HEADER, FAULT_HEADER};
pub use faults::{
    BreakOff, DoneMark, Encoding, Fault, FaultError, FaultSpan, Framing, Gap, Interlude, Layout, LineEnd, Refusal,
    UsageReport,
};
pub use journal::{BODY_BYTES, Finished, RECORDS, Record};
pub use server::{Load, ModelServer};
