//! A simulated model server: it stands in for vLLM, and for the vendors' own APIs, where there are no GPUs: in tests, benches and the demo.
//!
//! It answers in OpenAI's, Anthropic's and Cohere's forms, takes the time that a prefix cache and a GPU would take, reports vLLM's metrics, remembers
//! what it was asked, and breaks what it is asked to break. Texts, tokens and hits are functions of the requests alone, so a client can predict them.
//!
//! | path | |
//! |---|---|
//! | `POST /v1/chat/completions`, `/v1/completions` | answers, whole or streamed; with tools, images, reasoning, `n` |
//! | `POST /v1/responses` | the same, with the whole sequence of events |
//! | `POST /v1/messages`, `/v1/messages/count_tokens` | the same in Anthropic's form; under `/anthropic` as well |
//! | `POST /v1/embeddings` | as numbers or in base64 |
//! | `POST /rerank`, `/v1/rerank`; `/v2/rerank` | Jina's form, as vLLM gives it; Cohere's, with `meta.billed_units` and `meta.tokens` |
//! | `POST /score`, `/v1/score`, `/tokenize`, `/detokenize` | as vLLM |
//! | `POST /v1/images/generations`, `/edits`, `/variations` | JSON or a form; `stream` with partial images |
//! | `POST /v1/audio/transcriptions`, `/translations` | a form; JSON, text, or a stream |
//! | `POST /v1/audio/speech` | bytes, or with `stream_format: sse` a stream |
//! | `GET /v1/models` | the models served |
//! | `GET /health`, `/metrics` | as vLLM |
//! | `GET`, `DELETE /sim/requests` | the last exchanges, see [`Record`]; forget them |
//! | `PUT /sim/fault` | `{"fault": "status=503", "requests": 2}`: the [`Fault`] of the next two exchanges; without `requests`, until cleared |
//! | `DELETE /sim/fault` | clears it |
//!
//! A request's headers set how it is answered:
//!
//! | header | |
//! |---|---|
//! | [`x-sim-answer-tokens: N`](ANSWER_TOKENS_HEADER) | the answer's length; `max_tokens` may cut it |
//! | [`x-sim-reasoning-tokens: N`](REASONING_TOKENS_HEADER) | so many of them are reasoning; with Anthropic's `thinking` half of them without it |
//! | [`x-sim-event-tokens: N`](EVENT_TOKENS_HEADER) | so many tokens come in an event of a stream |
//! | [`x-sim-unbounded: 1`](UNBOUNDED_HEADER) | `max_tokens` does not cut it |
//! | [`x-sim-completion-tokens-only: 1`](COMPLETION_TOKENS_ONLY_HEADER) | `max_tokens` is refused, as by OpenAI's reasoning models |
//! | [`x-sim-tools: N`](TOOLS_HEADER) | the answer calls so many of the request's tools, unless `tool_choice` or `parallel_tool_calls` forbids it |
//! | [`x-sim-encode: CODING`](ENCODE_HEADER) | the answer's content coding: `gzip`, `br`, `zstd`, `deflate`, `raw-deflate`; `auto` for the best that `accept-encoding` allows; `lie` says gzip and is plain |
//! | [`x-sim-fault: EFFECTS`](FAULT_HEADER) | what goes wrong, see [`Fault`] |
//!
//! The rules of counting: a token is four bytes of text, and one word of an answer; a chat's prompt is its messages in a template, with tools first
//! and a part that is no text as its JSON; an uploaded file counts its bytes; a picture or a speech costs as many tokens as an answer is long.

mod answer;
mod cache;
mod coding;
mod config;
mod content;
mod control;
mod dialect;
mod endpoint;
mod engine;
mod envelope;
mod exchange;
mod faults;
mod fields;
mod framing;
mod generation;
mod journal;
mod metrics;
mod pause;
mod prompt;
mod script;
mod server;
mod sse;
mod usage;

pub use coding::Coding;
pub use config::Config;
pub use endpoint::{
    ANSWER_TOKENS_HEADER, COMPLETION_TOKENS_ONLY_HEADER, EVENT_TOKENS_HEADER, REASONING_TOKENS_HEADER, TOOLS_HEADER,
    UNBOUNDED_HEADER,
};
pub use exchange::{ENCODE_HEADER, FAULT_HEADER};
pub use faults::{BreakOff, DoneMark, Fault, FaultError, FaultSpan, LengthClaim, Refusal, UsageReport};
pub use framing::{Beginning, Framing, Gap, Interlude, Layout, LineEnd};
pub use journal::{BODY_BYTES, Finished, RECORDS, Record};
pub use server::{Load, ModelServer};
