//! One exchange with a model, from its headers to its response.

use std::sync::Arc;

use axum::{
    body::to_bytes,
    extract::Request,
    http::{HeaderMap, header::AUTHORIZATION, request::Parts},
    response::Response,
};
use bytes::Bytes;

use crate::{
    answer::{Reset, Writing},
    coding::{self, Coding},
    dialect::{ApiError, Dialect},
    endpoint::{Answer, Endpoint, Exchange},
    faults::{BreakOff, Fault},
    journal::Entry,
    pause::pause,
    server::Server,
};

/// The header that carries a fault's text.
pub const FAULT_HEADER: &str = "x-sim-fault";

/// The header that sets the answer's content coding: `gzip`, `br`, `zstd`, `deflate` (`raw-deflate` without zlib's format), `auto` for the best that
/// `accept-encoding` allows, or one that lies: `lie` says gzip and sends the answer plain, `hidden-gzip` the other way round; `gzip-members` has many
/// members, `gzip-trailing` has something behind it, `gzip-short` lacks its last bytes.
pub const ENCODE_HEADER: &str = "x-sim-encode";

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
    let dialect = Dialect::of(head.uri.path());
    let fault = fault.map_err(|wrong| ApiError::malformed(wrong.to_string()));
    let (fault, error) = match fault.and_then(|fault| with_coding(fault, &head.headers)) {
        Ok(fault) => (fault, None),
        Err(error) => (Fault::default(), Some(error)),
    };
    let writing = Writing { fault, dialect, entry };
    if let Some(error) = error {
        return writing.error(&error);
    }
    pause(writing.fault.hang).await;
    if writing.fault.break_off == Some(BreakOff::ResetBeforeHeaders) {
        return Err(Reset);
    }
    if let Some(refused) = writing.fault.refusal.as_ref().map(ApiError::refused) {
        return writing.error(&refused);
    }
    match answer_to(server, &head, body, &writing.entry).await {
        Ok(Answer::Json(body)) => writing.json(body),
        Ok(Answer::Bytes { content_type, bytes }) => writing.whole(content_type, bytes),
        Ok(Answer::Stream(events)) => Ok(writing.streamed(events)),
        Err(error) => writing.error(&error),
    }
}

/// The fault, with the coding that the request's header asks for.
fn with_coding(fault: Fault, headers: &HeaderMap) -> Result<Fault, ApiError> {
    let Some(value) = headers.get(ENCODE_HEADER) else {
        return Ok(fault);
    };
    let coding = value.to_str().ok().and_then(|text| Coding::asked_for(text, headers));
    let coding = coding.ok_or_else(|| ApiError::malformed(format!("the header `{ENCODE_HEADER}` names no coding")))?;
    Ok(Fault { coding, ..fault })
}

async fn answer_to(server: &Arc<Server>, head: &Parts, body: Bytes, entry: &Arc<Entry>) -> Result<Answer, ApiError> {
    check_key(server, &head.headers)?;
    let body = coding::decoded(body, &head.headers, MAX_BODY_BYTES).map_err(|error| ApiError::undecodable(&error))?;
    let path = head.uri.path();
    let endpoint = Endpoint::of(&head.method, path).ok_or_else(|| ApiError::unknown_path(path))?;
    endpoint.answer(&Exchange { server, head, body: &body, entry }).await
}

/// OpenAI's clients send a key as a bearer token, Anthropic's as `x-api-key`.
fn check_key(server: &Server, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = &server.config.api_key else {
        return Ok(());
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
    if bearer == Some(key) || text("x-api-key") == Some(key) { Ok(()) } else { Err(ApiError::unknown_key()) }
}
