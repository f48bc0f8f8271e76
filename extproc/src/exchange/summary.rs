//! What there is to say of an exchange when it is over: the only thing telemetry sees of it.

use std::sync::Arc;
use std::time::Duration;

use attache_proto::{Operation, Usage};

use crate::affinity::Reason;
use crate::limit::{CounterState, Enforcement, Hold, Refused};

/// One exchange, looked back upon. Every text in it but the request's id comes from the configuration or from a fixed list, so all of it
/// may become a label.
#[derive(Debug, Clone)]
pub struct Summary {
    /// What the request is called in everybody's logs. Never a label.
    pub request_id: Option<Arc<str>>,
    /// What was called, if that was found out.
    pub operation: Option<Operation>,
    /// The model asked for, if a route knows it.
    pub model: Option<Arc<str>>,
    /// The model name that was sent on.
    pub served_model: Option<Arc<str>>,
    /// The route taken.
    pub route: Option<Arc<str>>,
    /// The Envoy cluster chosen.
    pub cluster: Option<Arc<str>>,
    /// Why that endpoint.
    pub placement: Option<Reason>,
    /// How it ended.
    pub outcome: Outcome,
    /// Tokens charged; `None` where nothing was served, or nothing that is counted in tokens.
    pub usage: Option<Counted>,
    /// What the ledger said.
    pub admission: Option<AdmissionOutcome>,
    /// What there is to say of single limits.
    pub limits: Vec<LimitEvent>,
    /// From the request's headers to its release, the time the ledger took included.
    pub held: Option<Duration>,
    /// From the release to the first byte of the answer's body.
    pub time_to_first_token: Option<Duration>,
    /// From the request's headers to the end.
    pub duration: Duration,
    /// Whether the answer was a stream of events, and how many had content.
    pub content_events: Option<u64>,
}

impl Summary {
    /// Of an exchange that has just begun.
    pub(super) fn new() -> Self {
        Self {
            request_id: None,
            operation: None,
            model: None,
            served_model: None,
            route: None,
            cluster: None,
            placement: None,
            outcome: Outcome::Cancelled,
            usage: None,
            admission: None,
            limits: Vec::new(),
            held: None,
            time_to_first_token: None,
            duration: Duration::ZERO,
            content_events: None,
        }
    }
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The answer went through to its end, whatever its status.
    Answered(u16),
    /// We answered ourselves, for this reason.
    Local {
        /// The status.
        status: u16,
        /// The reason, from a fixed list.
        reason: &'static str,
    },
    /// It was ended in the middle of its answer: a limit that must not be overdrawn had no more.
    Cut,
    /// Its body was not what its `content-encoding` says, or expanded without measure. It went through if it did not have to be
    /// changed, or was read as it is; else it was ended with an error.
    Miscoded,
    /// Client, upstream or proxy went away.
    Cancelled,
}

/// What one limit did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitEvent {
    /// It refused the request.
    Refused(Arc<str>),
    /// It would have, but is in shadow.
    WouldRefuse(Arc<str>),
}

impl LimitEvent {
    /// The limits in shadow that would have refused.
    pub(super) fn shadows<'a>(
        standings: impl Iterator<Item = (&'a Hold, &'a CounterState)>,
    ) -> impl Iterator<Item = Self> {
        standings
            .filter(|(hold, state)| hold.limit.enforcement == Enforcement::Shadow && !hold.fits(state))
            .map(|(hold, _)| Self::WouldRefuse(Arc::clone(&hold.limit.id)))
    }

    /// The limits that refused.
    pub(super) fn refusals(refused: &Refused) -> impl Iterator<Item = Self> {
        refused
            .standings()
            .filter(|(hold, state)| hold.is_refused(state))
            .map(|(hold, _)| Self::Refused(Arc::clone(&hold.limit.id)))
    }
}

/// Tokens, and where the figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The upstream said so.
    Reported(Usage),
    /// The upstream did not; this is our estimate.
    Estimated(Usage),
}

impl Counted {
    /// The tokens.
    pub fn usage(&self) -> &Usage {
        match self {
            Self::Reported(usage) | Self::Estimated(usage) => usage,
        }
    }
}

/// What the ledger said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionOutcome {
    /// Admitted.
    Granted,
    /// Refused: over a limit.
    Refused,
    /// No answer.
    Unavailable,
}
