//! The gate: every check that needs only a request's headers. The Wasm filter runs it inside Envoy, to refuse in
//! microseconds; the sidecar runs it again on what reaches it, and trusts nothing that the filter wrote.
//!
//! Pure logic, no I/O. It assumes nothing about the bytes it is given and does not panic on any of them. Whatever is
//! not understood is refused: the gate fails closed.

mod body_wait;
mod config;
mod config_digest;
mod digest;
mod door;
mod exhausted;
mod first_look;
mod head;
mod verdict;
mod wait;

use std::collections::HashMap;
use std::time::Duration;

use attache_proto::operation::PathError;
use attache_proto::pass_through::{PathMatch, PathPattern, PatternError};
use attache_proto::{ApiError, Dialect, ErrorKind, Operation};

pub use body_wait::BodyWait;
pub use config::{
    Access, AnswerTime, CONFIG_VERSION, ConfigError, GateConfig, KeyEntry, KeyPriority, UnattachedStatus, UnknownKeys,
};
pub use config_digest::{ConfigDigest, InvalidConfigDigest};
pub use digest::{InvalidDigest, KeyDigest};
pub use exhausted::{Exhausted, ExhaustedKeys, LONGEST_REFUSAL, LimitRefusal, Wanting, with_wait};
pub use first_look::{Doubt, FirstLook, Learned, LearnedVerdicts, VERDICT_HOLDS};
pub use head::{CREDENTIAL_HEADERS, RequestHead};
pub use verdict::{Caller, Passed, Reason, Refusal, Verdict};
pub use wait::{
    DO_NOT_RETRY, HeaderValue, LONGEST_RETRY_WAIT, is_worth_retrying, spoken, whole_milliseconds, whole_seconds,
};

use door::Door;
use head::ContentLength;

/// The checks, ready to run. Made once from a [`GateConfig`], then shared.
#[derive(Debug)]
pub struct Gate {
    path_prefix: String,
    max_header_bytes: u64,
    max_body_bytes: u64,
    answers: AnswerTime,
    door: Door,
    routes_by_model: HashMap<String, Vec<String>>,
    passages: Vec<Passage>,
    unattached: ErrorKind,
    unknown_keys: UnknownKeys,
}

/// A path that passes through.
#[derive(Debug)]
struct Passage {
    pattern: PathPattern,
    /// The routes that name it.
    routes: Vec<String>,
}

/// What a request calls, and for what passes through, the paths that it is one of.
struct Called<'g> {
    operation: Operation,
    passages: Vec<&'g Passage>,
}

/// Envoy takes 100 headers and answers a bare 500 when there are more after the sidecar has added its own, a dozen at most.
const MAX_HEADERS: usize = 80;

impl Gate {
    /// A gate that runs the checks of `config`.
    ///
    /// # Errors
    /// [`ConfigError`] names the field that is wrong and its value.
    pub fn new(config: GateConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let door = Door::new(config.access)?;
        let passage = |(pattern, routes): (String, _)| Ok(Passage { pattern: pattern.parse()?, routes });
        let passages: Result<_, PatternError> = config.pass_through.into_iter().map(passage).collect();
        Ok(Self {
            passages: passages?,
            unattached: match config.unattached_status {
                UnattachedStatus::Unauthorized => ErrorKind::KeyNotAttached,
                UnattachedStatus::Forbidden => ErrorKind::KeyForbidden,
            },
            path_prefix: config.path_prefix,
            max_header_bytes: config.max_header_bytes,
            max_body_bytes: config.max_body_bytes,
            answers: config.answers,
            unknown_keys: config.unknown_keys,
            door,
            routes_by_model: config.models.into_iter().collect(),
        })
    }

    /// Decides on a request by its headers alone, at `now`: the time since 1970, by which keys end.
    ///
    /// A pass means only that nothing in the headers speaks against the request: whether the caller may call the model
    /// in the body is [`Gate::may_call`]'s to say, once the route is known.
    pub fn check(&self, head: &RequestHead<'_>, now: Duration) -> Verdict {
        match self.judge(head, now) {
            Ok(passed) => Verdict::Pass(passed),
            Err((reason, error)) => Verdict::Refuse(Refusal { error, dialect: self.dialect(head), reason }),
        }
    }

    /// Whether `caller`, as [`Gate::check`] found it, may call `route`. Where no keys are demanded, everybody may call
    /// everything; where they are, nobody may call anything without one.
    pub fn may_call(&self, caller: Option<&Caller>, route: &str) -> bool {
        match (&self.door, caller) {
            (Door::Open, _) => true,
            (Door::Keys(_), Some(caller)) => caller.may_call(route),
            (Door::Keys(_), None) => false,
        }
    }

    /// What a caller is told whose key is not attached to the endpoint of `model`: the sidecar finds that out from the body,
    /// and says it in the gate's words.
    pub fn key_not_attached(&self, model: &str, dialect: Dialect) -> Refusal {
        Refusal { error: self.unattached_to_model(model), dialect, reason: Reason::KeyNotAttached }
    }

    /// Whether callers must show an API key.
    pub fn demands_keys(&self) -> bool {
        matches!(self.door, Door::Keys(_))
    }

    /// The dialect in which this request's errors are worded.
    pub fn dialect(&self, head: &RequestHead<'_>) -> Dialect {
        Dialect::of_path(head.path(), &self.path_prefix)
    }

    fn judge(&self, head: &RequestHead<'_>, now: Duration) -> Result<Passed, (Reason, ApiError)> {
        self.judge_size(head)?;
        let Called { operation, passages } = self.judge_path(head)?;
        self.judge_content_length(head)?;
        let caller = self.door.judge(head, now)?;
        match operation {
            // The list of models is about no model; a client that sends its hint with everything may still ask for it.
            Operation::Models | Operation::Model => {}
            Operation::PassThrough => self.judge_passages(&passages, caller.as_ref())?,
            _ => self.judge_hint(head, caller.as_ref())?,
        }
        Ok(Passed { operation, caller })
    }

    fn judge_size(&self, head: &RequestHead<'_>) -> Result<(), (Reason, ApiError)> {
        let (bytes, count) = (head.size_bytes(), head.count());
        let message = if bytes > self.max_header_bytes {
            format!("the request headers have {bytes} bytes; at most {} are accepted", self.max_header_bytes)
        } else if count > MAX_HEADERS {
            format!("the request has {count} headers; at most {MAX_HEADERS} are accepted")
        } else {
            return Ok(());
        };
        Err((Reason::HeadersTooLarge, ApiError::new(ErrorKind::HeadersTooLarge, message)))
    }

    fn judge_path(&self, head: &RequestHead<'_>) -> Result<Called<'_>, (Reason, ApiError)> {
        // Operations come first. No pattern can hide one: it would be none.
        let resolved = Operation::resolve(head.method(), head.path(), &self.path_prefix);
        let error = match resolved {
            Ok(operation) => return Ok(Called { operation, passages: Vec::new() }),
            Err(PathError::NotFound) => match self.passages(head) {
                Ok(passages) => return Ok(Called { operation: Operation::PassThrough, passages }),
                Err(error) => error,
            },
            Err(error) => error,
        };
        Err(match error {
            PathError::NotFound => (
                Reason::PathNotFound,
                ApiError::new(
                    ErrorKind::PathNotFound,
                    format!("no operation is served at this path; check the URL. Served are: {}", self.served()),
                ),
            ),
            // Codex asks for a WebSocket first, and takes 426 alone for the word that it has to do without.
            PathError::MethodNotAllowed { allow } if head.wants_web_socket() => {
                let message = format!("WebSockets are not served here; send the request by {allow}");
                (Reason::MethodNotAllowed { allow }, ApiError::new(ErrorKind::WebSocketNotServed, message))
            }
            PathError::MethodNotAllowed { allow } => {
                (Reason::MethodNotAllowed { allow }, ApiError::new(ErrorKind::MethodNotAllowed, error.to_string()))
            }
        })
    }

    /// The paths that pass through and that this request is one of; at least one.
    fn passages(&self, head: &RequestHead<'_>) -> Result<Vec<&Passage>, PathError> {
        let mut passages = Vec::new();
        let mut error = PathError::NotFound;
        for passage in &self.passages {
            match passage.pattern.matches(head.method(), head.path(), &self.path_prefix) {
                PathMatch::Full => passages.push(passage),
                PathMatch::OtherMethod { allow } => error = PathError::MethodNotAllowed { allow },
                PathMatch::None => {}
            }
        }
        if passages.is_empty() { Err(error) } else { Ok(passages) }
    }

    fn judge_content_length(&self, head: &RequestHead<'_>) -> Result<(), (Reason, ApiError)> {
        let invalid =
            |message: &str| Err((Reason::InvalidContentLength, ApiError::new(ErrorKind::InvalidRequest, message)));
        match head.content_length() {
            // Whoever reads the body counts it.
            ContentLength::Absent => Ok(()),
            ContentLength::Bytes(bytes) if bytes <= self.max_body_bytes => Ok(()),
            ContentLength::Bytes(_) => Err((
                Reason::BodyTooLarge,
                ApiError::new(
                    ErrorKind::RequestTooLarge,
                    format!("the request body is too large; at most {} bytes are accepted", self.max_body_bytes),
                ),
            )),
            ContentLength::Invalid => invalid("the content-length must be one decimal number"),
            ContentLength::Repeated => invalid("the request has more than one content-length; send one"),
        }
    }

    /// The hint comes from the client, so it may only ever refuse: a request whose body says otherwise than its hint
    /// gains nothing, and one without a hint, or with one that no route knows, is decided by its body.
    fn judge_hint(&self, head: &RequestHead<'_>, caller: Option<&Caller>) -> Result<(), (Reason, ApiError)> {
        let Some(caller) = caller else { return Ok(()) };
        let Some(model) = head.model_hint() else { return Ok(()) };
        let Some(routes) = self.routes_by_model.get(model) else { return Ok(()) };
        if routes.iter().any(|route| caller.may_call(route)) {
            return Ok(());
        }
        Err((Reason::KeyNotAttached, self.unattached_to_model(model)))
    }

    /// A path is its route's, so who may call none of the routes that name it may not call it.
    fn judge_passages(&self, passages: &[&Passage], caller: Option<&Caller>) -> Result<(), (Reason, ApiError)> {
        let Some(caller) = caller else { return Ok(()) };
        let mut routes = passages.iter().flat_map(|passage| &passage.routes);
        if routes.any(|route| caller.may_call(route)) {
            return Ok(());
        }
        let message =
            "Incorrect API key provided: it is not attached to a route that serves this path; ask for another key";
        Err((Reason::KeyNotAttached, ApiError::new(self.unattached, message)))
    }

    fn unattached_to_model(&self, model: &str) -> ApiError {
        let message = format!(
            "Incorrect API key provided: it is not attached to the endpoint `{model}`; ask for another model or another key"
        );
        ApiError::new(self.unattached, message).with_param("model")
    }

    fn served(&self) -> String {
        let served: Vec<_> = Operation::ALL
            .into_iter()
            .filter_map(|operation| Some((operation.method(), operation.paths().first()?)))
            .map(|(method, path)| format!("{method} {}{path}", self.path_prefix))
            .collect();
        served.join(", ")
    }
}

#[cfg(test)]
mod tests;
