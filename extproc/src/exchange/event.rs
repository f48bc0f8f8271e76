//! What comes into an exchange and what goes out of it. No protobuf here: a driver translates.

use std::sync::Arc;

use attache_gate::Refusal;
use attache_proto::headers::{RATE_LIMITS, REQUEST_ID, UPSTREAM_REQUEST_ID};
use attache_proto::{ApiError, Dialect};
use bytes::Bytes;

use super::replies::Replies;
use super::upstream::UpstreamHeaders;
use crate::limit::ReserveRequest;

/// Headers as the proxy hands them over: lower-case names, pseudo-headers first, values of any bytes.
#[derive(Debug, Default, Clone)]
pub struct Headers(pub Vec<(String, Bytes)>);

impl Headers {
    /// The first value of a header.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.iter().find_map(|(key, value)| (key == name).then_some(value))
    }

    /// The first value of a header, if it is text.
    pub fn get(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.bytes(name)?).ok()
    }

    /// The value of a header that is there once. Which of several values counts is for every hop to guess, so none does.
    pub fn only(&self, name: &str) -> Option<&str> {
        let mut values = self.iter().filter(|(key, _)| *key == name);
        let value = values.next().map(|(_, value)| value)?;
        if values.next().is_some() { None } else { std::str::from_utf8(value).ok() }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_str(), &**value))
    }
}

/// Whether more of a message follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// More follows.
    More,
    /// This was the last of it.
    Last,
}

/// How the proxy hands over request bodies, and so when it wants its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// STREAMED, not waiting for the answer to the headers: all answers are held back until the body is complete.
    Streamed,
    /// BUFFERED: the headers are answered at once with nothing, the whole body comes as one message.
    Buffered,
}

/// Whether the proxy shows the bodies of answers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// Chunk by chunk.
    #[default]
    Shown,
    /// Not at all: nothing can be counted, and nothing kept within what is held.
    Hidden,
}

/// What the driver does next.
#[derive(Debug)]
pub enum Action {
    /// Nothing to say yet. Where a chunk of the response's body gets this for an answer, it waits for a growth: hand over that
    /// one's outcome before the next message.
    Wait,
    /// Answer one message.
    Answer(Reply),
    /// Answer all messages that are still unanswered, in order.
    Release(Replies),
    /// The same for messages of the response: few.
    AnswerAll(Vec<Reply>),
    /// Ask the ledger, and hand its answer to [`super::Exchange::admitted`].
    Reserve(Arc<ReserveRequest>),
    /// Answer the client without an upstream; the exchange is over.
    Respond(LocalResponse),
}

impl Action {
    /// The reply, where it is one.
    pub(super) fn into_reply(self) -> Option<Reply> {
        match self {
            Self::Answer(reply) => Some(reply),
            _ => None,
        }
    }
}

/// The answer to one message of the proxy.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// To the request's headers.
    RequestHeaders(Mutations),
    /// To a chunk of the request's body.
    RequestBody(Mutations, Body),
    /// To the response's headers.
    ResponseHeaders(Mutations),
    /// To a chunk of the response's body.
    ResponseBody(Body, Costs),
    /// To the trailers of the request, from which what is ours is taken.
    RequestTrailers,
    /// To the trailers of the response.
    ResponseTrailers(Costs),
}

/// Changes to headers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Mutations {
    /// Headers to overwrite or add.
    pub set: Vec<(&'static str, String)>,
    /// Headers to remove.
    pub remove: Vec<&'static str>,
    /// What the operator wants changed for the upstream, its key included.
    pub upstream: UpstreamHeaders,
    /// Whether the proxy must look for a route again.
    pub routing: Routing,
}

impl Mutations {
    /// Puts `ours` in the place of all rate-limit headers of `response`: where a limit of our own speaks, an upstream's words would
    /// contradict it.
    pub(super) fn replace_rate_limits(&mut self, ours: Vec<(&'static str, String)>, response: &Headers) {
        if ours.is_empty() {
            return;
        }
        let kept = |name: &str| ours.iter().any(|(own, _)| *own == name);
        self.remove.extend(RATE_LIMITS.into_iter().filter(|name| !kept(name) && response.bytes(name).is_some()));
        self.set.extend(ours);
    }

    /// Gives the response the id of its request; the upstream's own goes on beside it.
    pub(super) fn tell_request_id(&mut self, id: &str, response: &Headers) {
        if let Some(theirs) = response.get(REQUEST_ID).filter(|theirs| *theirs != id) {
            self.set.push((UPSTREAM_REQUEST_ID, theirs.to_owned()));
        }
        self.set.push((REQUEST_ID, id.to_owned()));
    }

    /// Adds nothing for which there is no room: Envoy takes no more headers than that, and would answer with a bare 500 for one
    /// too many. What takes the place of a header stays.
    pub(super) fn keep_within_bounds_of(&mut self, response: &Headers) {
        let is_new = |name: &str| response.bytes(name).is_none();
        let added = self.set.iter().filter(|(name, _)| is_new(name)).count();
        if response.iter().count() + added > MOST_RESPONSE_HEADERS {
            self.set.retain(|(name, _)| !is_new(name));
        }
    }
}

/// Envoy's bound of a response's headers, its own and those with a colon included (`max_response_headers_count`).
const MOST_RESPONSE_HEADERS: usize = 100;

/// Whether header changes concern the route.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// The route stays.
    #[default]
    Keep,
    /// The route is to be looked up again.
    Again,
}

/// What becomes of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    /// It passes as it came.
    Unchanged,
    /// These bytes take its place.
    Replaced(Bytes),
}

/// Costs to publish as dynamic metadata: key and amount. Empty but for the last chunk.
pub type Costs = Vec<(Arc<str>, u64)>;

/// An answer of our own.
#[derive(Debug, PartialEq, Eq)]
pub struct LocalResponse {
    /// HTTP status.
    pub status: u16,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
    /// A JSON body.
    pub body: String,
    /// Short and from a fixed list: the reason for logs and metrics.
    pub reason: &'static str,
}

impl LocalResponse {
    /// A refusal by the gate.
    pub fn refusal(refusal: &Refusal) -> Self {
        let headers = refusal
            .headers()
            .filter(|(name, _)| *name != "content-type")
            .map(|(name, value)| (name, value.to_owned()))
            .collect();
        Self { status: refusal.status(), headers, body: refusal.body(), reason: refusal.reason.name() }
    }

    /// An error in the caller's dialect.
    pub fn error(error: &ApiError, dialect: Dialect, reason: &'static str) -> Self {
        Self { status: error.status(), headers: Vec::new(), body: error.body(dialect), reason }
    }
}
