//! The paths of models, and what answers on each.

mod audio;
mod generate;
mod images;
mod tokens;
mod vectors;

use std::sync::Arc;

use axum::http::{HeaderMap, Method, request::Parts};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde_json::{Value, json};

use crate::{
    dialect::{ApiError, Form},
    engine::Plan,
    envelope::Envelope,
    fields::Fields,
    journal::Entry,
    prompt::Prompt,
    server::Server,
    sse::Event,
    usage::Usage,
};

/// The header that sets how long an answer is, in tokens; `max_tokens` may cut it.
pub const ANSWER_TOKENS_HEADER: &str = "x-sim-answer-tokens";

/// The header that sets how many tokens an event of a stream has, as of a server that guesses ahead.
pub const EVENT_TOKENS_HEADER: &str = "x-sim-event-tokens";

/// The header that lets an answer be as long as it gets, whatever the body says.
pub const UNBOUNDED_HEADER: &str = "x-sim-unbounded";

/// The header that has `max_tokens` refused, as OpenAI's reasoning models do.
pub const COMPLETION_TOKENS_ONLY_HEADER: &str = "x-sim-completion-tokens-only";

/// The header that sets how many of the answer's tokens are reasoning.
pub const REASONING_TOKENS_HEADER: &str = "x-sim-reasoning-tokens";

/// The header that sets how many of the request's tools the answer calls.
pub const TOOLS_HEADER: &str = "x-sim-tools";

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Models,
    Generate(Form),
    CountTokens,
    Embeddings,
    Rerank(RerankForm),
    Score,
    /// Pictures made, changed or varied.
    Images,
    /// `/v1/audio/transcriptions` and `/translations`.
    Transcription,
    Speech,
    Tokenize,
    Detokenize,
}

/// Whose form the answer to a rerank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RerankForm {
    /// Jina's, as vLLM gives it.
    Jina,
    /// Cohere's second version.
    Cohere,
}

/// What there is to say, before faults break it.
pub(crate) enum Answer {
    Json(Value),
    /// A body of another type.
    Bytes {
        content_type: &'static str,
        bytes: Bytes,
    },
    Stream(BoxStream<'static, Event>),
}

/// An exchange that is to be answered.
pub(crate) struct Exchange<'a> {
    pub(crate) server: &'a Arc<Server>,
    pub(crate) head: &'a Parts,
    pub(crate) body: &'a Bytes,
    pub(crate) entry: &'a Arc<Entry>,
}

impl Endpoint {
    /// What the path is for; `None` if it is for nothing. Where `/v1` is usual but not everybody's, both are there.
    pub(crate) fn of(method: &Method, path: &str) -> Option<Self> {
        if method == Method::GET {
            return (path == "/v1/models").then_some(Self::Models);
        }
        if method != Method::POST {
            return None;
        }
        Some(match path {
            "/v1/chat/completions" => Self::Generate(Form::Chat),
            "/v1/completions" => Self::Generate(Form::Completion),
            "/v1/responses" => Self::Generate(Form::Response),
            "/v1/messages" | "/anthropic/v1/messages" => Self::Generate(Form::Message),
            "/v1/messages/count_tokens" | "/anthropic/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/embeddings" => Self::Embeddings,
            "/rerank" | "/v1/rerank" => Self::Rerank(RerankForm::Jina),
            "/v2/rerank" => Self::Rerank(RerankForm::Cohere),
            "/score" | "/v1/score" => Self::Score,
            "/v1/images/generations" | "/v1/images/edits" | "/v1/images/variations" => Self::Images,
            "/v1/audio/transcriptions" | "/v1/audio/translations" => Self::Transcription,
            "/v1/audio/speech" => Self::Speech,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            _ => return None,
        })
    }

    pub(crate) async fn answer(self, exchange: &Exchange<'_>) -> Result<Answer, ApiError> {
        match self {
            Self::Models => Ok(Answer::Json(models(exchange.server))),
            Self::Generate(form) => generate::answer(exchange, form).await,
            Self::CountTokens => generate::count(exchange),
            Self::Embeddings => vectors::embed(exchange).await,
            Self::Rerank(form) => vectors::rerank(exchange, form).await,
            Self::Score => vectors::score(exchange).await,
            Self::Images => images::answer(exchange).await,
            Self::Transcription => audio::transcribe(exchange).await,
            Self::Speech => audio::speak(exchange).await,
            Self::Tokenize => tokens::tokenize(exchange).await,
            Self::Detokenize => tokens::detokenize(exchange).await,
        }
    }
}

impl Exchange<'_> {
    /// The fields of a body in JSON or of a form, with a `model` that is served.
    async fn fields(&self) -> Result<Fields, ApiError> {
        let fields = Fields::read(&self.head.headers, self.body).await?;
        self.serves(fields.text("model")?)?;
        Ok(fields)
    }

    fn serves(&self, model: &str) -> Result<(), ApiError> {
        self.entry.asked_for(model);
        if self.server.config.serves(model) { Ok(()) } else { Err(ApiError::unknown_model(model)) }
    }

    fn envelope(&self, model: &str) -> Envelope {
        Envelope::new(self.entry.number(), model.to_owned())
    }

    /// Computes prompts that nothing is generated from.
    async fn compute(&self, prompts: &[Prompt]) -> Usage {
        let mut usage = Usage::default();
        for prompt in prompts {
            let sequence = self.server.engine.prefill(prompt, "", Plan { choices: 0, answer_tokens: 0 }).await;
            self.entry.prefilled(sequence.prompt_tokens, sequence.cached_tokens);
            usage.prompt_tokens += sequence.prompt_tokens;
            usage.cached_tokens += sequence.cached_tokens;
        }
        usage
    }

    /// How long an answer is by the header, or else as usual.
    fn answer_tokens(&self) -> Result<u64, ApiError> {
        Ok(number(&self.head.headers, ANSWER_TOKENS_HEADER)?.unwrap_or(self.server.config.answer_tokens))
    }
}

/// The number in a header of ours.
fn number(headers: &HeaderMap, name: &str) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let number = value.to_str().ok().and_then(|value| value.parse().ok());
    number.map(Some).ok_or_else(|| ApiError::malformed(format!("the header `{name}` is no number")))
}

fn models(server: &Server) -> Value {
    let served = if server.config.models.is_empty() {
        vec![server.config.primary_model()]
    } else {
        server.config.models.iter().map(String::as_str).collect()
    };
    let data: Vec<Value> = served
        .into_iter()
        .map(|model| json!({"id": model, "object": "model", "created": 0, "owned_by": "vllm", "root": model, "parent": null}))
        .collect();
    json!({"object": "list", "data": data})
}
