//! Chats, completions, responses and messages.

use std::sync::Arc;

use futures_util::StreamExt as _;
use serde_json::json;

use super::{
    ANSWER_TOKENS_HEADER, Answer, COMPLETION_TOKENS_ONLY_HEADER, EVENT_TOKENS_HEADER, Exchange,
    REASONING_TOKENS_HEADER, TOOLS_HEADER, UNBOUNDED_HEADER, number,
};
use crate::{
    dialect::{ApiError, Call, ChatWriter, Delivery, Form, MessageWriter, ResponseWriter},
    engine::Plan,
    generation::{Generation, Writer},
    script::Script,
};

pub(super) async fn answer(exchange: &Exchange<'_>, form: Form) -> Result<Answer, ApiError> {
    let call = Call::parse(exchange.body)?;
    exchange.serves(&call.model)?;
    if exchange.head.headers.contains_key(COMPLETION_TOKENS_ONLY_HEADER) && call.has_max_tokens() {
        return Err(ApiError::unsupported_max_tokens());
    }
    let prompts = call.prompts(form)?;
    let length = Length::of(exchange, &call, form)?;
    let generation = Generation {
        engine: Arc::clone(&exchange.server.engine),
        entry: Arc::clone(exchange.entry),
        writer: writer(exchange, &call, form, length),
        prompts,
        cache_salt: call.cache_salt().to_owned(),
        plan: Plan { choices: choices(&call, form)?, answer_tokens: length.tokens },
        script: script(exchange, &call, form, length)?,
        event_tokens: number(&exchange.head.headers, EVENT_TOKENS_HEADER)?.unwrap_or(1).max(1),
    };
    Ok(match call.delivery() {
        Delivery::Whole => Answer::Json(generation.whole().await),
        Delivery::Stream(_) => Answer::Stream(generation.events().boxed()),
    })
}

/// `/v1/messages/count_tokens`: what the prompt of a message would count, without anything computed.
pub(super) fn count(exchange: &Exchange<'_>) -> Result<Answer, ApiError> {
    let call = Call::parse(exchange.body)?;
    exchange.serves(&call.model)?;
    let tokens: u64 = call.prompts(Form::Message)?.iter().map(|prompt| prompt.tokens()).sum();
    Ok(Answer::Json(json!({"input_tokens": tokens})))
}

fn writer(exchange: &Exchange<'_>, call: &Call, form: Form, length: Length) -> Box<dyn Writer> {
    let envelope = exchange.envelope(&call.model);
    let is_cut = length.is_cut;
    match form {
        Form::Chat | Form::Completion => Box::new(ChatWriter { form, envelope, delivery: call.delivery(), is_cut }),
        Form::Response => Box::new(ResponseWriter::new(envelope, exchange.body, is_cut)),
        Form::Message => Box::new(MessageWriter {
            envelope,
            is_cut,
            marks_cache: call.marks_cache(),
            block_tokens: exchange.server.config.block_tokens.get() as u64,
        }),
    }
}

/// Only chats and completions know `n`.
fn choices(call: &Call, form: Form) -> Result<u64, ApiError> {
    match form {
        Form::Chat | Form::Completion => call.choices(),
        Form::Response | Form::Message => Ok(1),
    }
}

fn script(exchange: &Exchange<'_>, call: &Call, form: Form, length: Length) -> Result<Script, ApiError> {
    let headers = &exchange.head.headers;
    if form == Form::Completion {
        return Ok(Script::new(length.tokens, 0, Vec::new()));
    }
    let reasoning = match number(headers, REASONING_TOKENS_HEADER)? {
        Some(tokens) => tokens,
        None if form == Form::Message && call.thinks() => length.tokens / 2,
        None => 0,
    };
    let tools = number(headers, TOOLS_HEADER)?.map(|tools| usize::try_from(tools).unwrap_or(usize::MAX).min(128));
    Ok(Script::new(length.tokens, reasoning, call.tool_calls(tools)))
}

/// The length of an answer.
#[derive(Clone, Copy, Debug)]
struct Length {
    tokens: u64,
    /// Whether the request's limit ends it.
    is_cut: bool,
}

impl Length {
    /// The header's length, cut by the body's. Else, for a chat or a completion, exactly the body's, as of a model that never stops by itself; for the
    /// others, whose clients set a limit as a rule, the usual length cut by it.
    fn of(exchange: &Exchange<'_>, call: &Call, form: Form) -> Result<Self, ApiError> {
        let natural = number(&exchange.head.headers, ANSWER_TOKENS_HEADER)?;
        let usual = exchange.server.config.answer_tokens;
        let bound = call.max_tokens(form)?.filter(|_| !exchange.head.headers.contains_key(UNBOUNDED_HEADER));
        Ok(match (natural, bound) {
            (None, Some(max)) if matches!(form, Form::Chat | Form::Completion) => Self { tokens: max, is_cut: true },
            (natural, Some(max)) if natural.unwrap_or(usual) > max => Self { tokens: max, is_cut: true },
            (natural, _) => Self { tokens: natural.unwrap_or(usual), is_cut: false },
        })
    }
}
