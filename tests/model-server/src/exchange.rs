//! One exchange with a model, from its headers to its response.

use std::{pin::Pin, sync::Arc};

use axum::{
    body::to_bytes,
    extract::Request,
    http::{HeaderMap, Method, header::AUTHORIZATION, request::Parts},
    response::Response,
};
use futures_util::Stream;
use serde_json::{Value, json};

use crate::{
    answer::{self, Reset},
    content::embedding,
    engine::Plan,
    faults::{BreakOff, Fault, UsageReport},
    generation::Generation,
    journal::Entry,
    openai::{ApiError, Call, Delivery, Envelope, FinishReason, Form, Operation, Reply, Usage},
    pause::pause,
    prompt::Prompt,
    server::Server,
    sse::Event,
};

/// The header that carries a fault's text.
pub const FAULT_HEADER: &str = "x-sim-fault";

/// The header that sets how long an answer is, in tokens; `max_tokens` may cut it.
pub const ANSWER_TOKENS_HEADER: &str = "x-sim-answer-tokens";

/// The largest body that is read; the connection of a larger one is reset.
const MAX_BODY_BYTES: usize = 256 * 1024 * 1024;

/// Serves one exchange and records it.
pub(crate) async fn serve(server: &Arc<Server>, request: Request) -> Result<Response, Reset> {
    let (head, body) = request.into_parts();
    let entry = Arc::new(server.journal.open(&head.method, &head.uri, &head.headers));
    let fault = match head.headers.get(FAULT_HEADER) {
        Some(text) => String::from_utf8_lossy(text.as_bytes()).parse::<Fault>(),
        None => Ok(server.armed_fault.take()),
    };
    let body = to_bytes(body, MAX_BODY_BYTES).await.map_err(|_| Reset)?;
    entry.received(&body);
    let fault = match fault {
        Ok(fault) => fault,
        Err(wrong) => {
            return answer::error(&ApiError::malformed(wrong.to_string()), &Fault::default(), &entry);
        }
    };
    pause(fault.hang).await;
    if fault.break_off == Some(BreakOff::ResetBeforeHeaders) {
        return Err(Reset);
    }
    if let Some(refusal) = &fault.refusal {
        return answer::error(&ApiError::refused(refusal), &fault, &entry);
    }
    match answer_to(server, &head, &body, fault.usage, &entry).await {
        Ok(Answer::Whole(body)) => answer::whole(body, &fault, &entry),
        Ok(Answer::Stream(events)) => Ok(answer::streamed(events, fault, entry)),
        Err(error) => answer::error(&error, &fault, &entry),
    }
}

/// What there is to say, before faults break it.
enum Answer {
    Whole(Value),
    Stream(Pin<Box<dyn Stream<Item = Event> + Send>>),
}

async fn answer_to(
    server: &Arc<Server>,
    head: &Parts,
    body: &[u8],
    usage: UsageReport,
    entry: &Arc<Entry>,
) -> Result<Answer, ApiError> {
    check_key(server, &head.headers)?;
    let operation = match (&head.method, head.uri.path()) {
        (&Method::GET, "/v1/models") => return Ok(Answer::Whole(models(server))),
        (&Method::POST, "/v1/chat/completions") => Operation::Generate(Form::Chat),
        (&Method::POST, "/v1/completions") => Operation::Generate(Form::Completion),
        (&Method::POST, "/v1/embeddings") => Operation::Embed,
        (_, path) => return Err(ApiError::unknown_path(path)),
    };
    let call = Call::parse(body)?;
    entry.asked_for(&call.model);
    if !server.config.serves(&call.model) {
        return Err(ApiError::unknown_model(&call.model));
    }
    let prompts = call.prompts(operation)?;
    let envelope = Envelope::new(entry.number(), call.model.clone(), usage);
    let form = match operation {
        Operation::Generate(form) => form,
        Operation::Embed => {
            return Ok(Answer::Whole(embed(server, &prompts, &envelope, entry).await));
        }
    };
    let (answer_tokens, finish_reason) = answer_length(server, &head.headers, &call)?;
    let generation = Generation {
        engine: Arc::clone(&server.engine),
        entry: Arc::clone(entry),
        reply: Reply { form, envelope },
        prompts,
        cache_salt: call.cache_salt().to_owned(),
        plan: Plan { choices: call.choices()?, answer_tokens },
        finish_reason,
    };
    Ok(match call.delivery() {
        Delivery::Whole => Answer::Whole(generation.whole().await),
        Delivery::Stream(reported) => Answer::Stream(Box::pin(generation.events(reported))),
    })
}

fn check_key(server: &Server, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = &server.config.api_key else {
        return Ok(());
    };
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if given == Some(key) { Ok(()) } else { Err(ApiError::unknown_key()) }
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

async fn embed(server: &Arc<Server>, prompts: &[Prompt], envelope: &Envelope, entry: &Entry) -> Value {
    let mut usage = Usage::default();
    for prompt in prompts {
        let sequence = server.engine.prefill(prompt, "", Plan { choices: 0, answer_tokens: 0 }).await;
        entry.prefilled(sequence.prompt_tokens, sequence.cached_tokens);
        usage.prompt_tokens += sequence.prompt_tokens;
        usage.cached_tokens += sequence.cached_tokens;
    }
    let vectors: Vec<Vec<f32>> = prompts.iter().map(embedding).collect();
    envelope.embeddings(&vectors, usage)
}

/// The header's length, cut by the body's; else exactly the body's, as a model that never stops by itself; else the usual one.
fn answer_length(server: &Server, headers: &HeaderMap, call: &Call) -> Result<(u64, FinishReason), ApiError> {
    let natural = match headers.get(ANSWER_TOKENS_HEADER) {
        Some(value) => {
            let tokens = value.to_str().ok().and_then(|value| value.parse().ok());
            Some(
                tokens
                    .ok_or_else(|| ApiError::malformed(format!("the header `{ANSWER_TOKENS_HEADER}` is no number")))?,
            )
        }
        None => None,
    };
    Ok(match (natural, call.max_tokens()) {
        (Some(natural), Some(max)) if natural > max => (max, FinishReason::Length),
        (Some(natural), _) => (natural, FinishReason::Stop),
        (None, Some(max)) => (max, FinishReason::Length),
        (None, None) => (server.config.answer_tokens, FinishReason::Stop),
    })
}
