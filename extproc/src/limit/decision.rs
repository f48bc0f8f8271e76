//! What became of a request's reservation: it is held, or refused. What clients are told of it is in `headers` and `refusal`.

use std::sync::Arc;

use attache_proto::Usage;

use super::{Admission, CounterState, Growth, Hold, ReserveRequest, Settlement, StoreError};

/// The ledger's answer to a request.
#[derive(Debug)]
pub enum Decision {
    /// It may go on.
    Granted(Reservation),
    /// It may not.
    Refused(Refused),
}

impl Decision {
    /// What `keeper` answered to `request`.
    pub fn new(request: Arc<ReserveRequest>, admission: Admission, keeper: Keeper) -> Self {
        let known = |states: Vec<CounterState>| states.into_iter().map(Some).collect();
        match admission {
            Admission::Granted { states } => Self::Granted(Reservation::new(request, known(states), keeper)),
            Admission::Refused { by, states } => Self::Refused(Refused { request, by, states: known(states) }),
        }
    }

    /// The rate-limit headers of the answer or of the refusal, in lower case.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Granted(reservation) => reservation.headers(),
            Self::Refused(refused) => refused.headers(),
        }
    }
}

/// A reservation that is held: to be renewed while the answer streams, and settled at its end.
#[derive(Debug, Clone)]
pub struct Reservation {
    request: Arc<ReserveRequest>,
    states: Vec<Option<CounterState>>,
    keeper: Keeper,
    doubt: Option<Arc<ReserveRequest>>,
}

/// Who keeps a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// The store.
    Store,
    /// This sidecar alone, while the store does not answer. What it costs is charged in the store later.
    Sidecar,
}

/// A reservation that was refused.
#[derive(Debug, Clone)]
pub struct Refused {
    /// What was asked for.
    pub request: Arc<ReserveRequest>,
    /// The first hold that was refused.
    pub by: usize,
    /// The counters as they stood, in the order of the holds, as far as they are known.
    pub states: Vec<Option<CounterState>>,
}

/// What became of a growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grown {
    /// The reservation holds what it asked for.
    Granted,
    /// It holds what it held before: a capped limit has no more room.
    Refused,
    /// Nobody knows.
    Unknown,
}

impl Reservation {
    /// What `keeper` holds for `request`, and how its counters stood before.
    pub(super) fn new(request: Arc<ReserveRequest>, states: Vec<Option<CounterState>>, keeper: Keeper) -> Self {
        Self { request, states, keeper, doubt: None }
    }

    /// What is held, as far as is known.
    pub fn request(&self) -> &Arc<ReserveRequest> {
        &self.request
    }

    /// Who keeps it.
    pub fn keeper(&self) -> Keeper {
        self.keeper
    }

    /// Its limits, and how their counters stood before it, as far as that is known.
    pub fn standings(&self) -> impl Iterator<Item = (&Hold, &CounterState)> {
        known(&self.request.holds, &self.states)
    }

    /// The counters as they stood before it, in the order of its holds, as far as they are known.
    pub fn states(&self) -> &[Option<CounterState>] {
        &self.states
    }

    /// A growth to so many more tokens of output; to none, it only begins the lease anew.
    ///
    /// While it is in doubt what is held, that is asked for again, however much is wanted: the store gives back what it is told
    /// may be held, so there must never be more than two such things.
    pub fn growth(&self, output_tokens: u64) -> Growth {
        let to = match &self.doubt {
            _ if output_tokens == 0 => Arc::clone(&self.request),
            Some(doubt) => Arc::clone(doubt),
            None => Arc::new(self.request.grown(output_tokens)),
        };
        Growth { from: Arc::clone(&self.request), doubt: self.doubt.clone(), to, keeper: self.keeper }
    }

    /// Takes note of what became of a growth.
    pub fn note(&mut self, growth: &Growth, answer: &Result<Admission, StoreError>) -> Grown {
        match answer {
            Ok(Admission::Granted { .. }) => {
                self.request = Arc::clone(&growth.to);
                self.doubt = None;
                Grown::Granted
            }
            Ok(Admission::Refused { .. }) => {
                self.doubt = None;
                Grown::Refused
            }
            Err(StoreError::Unreachable(_) | StoreError::NoRoom(_)) => Grown::Unknown,
            Err(StoreError::Timeout(_) | StoreError::Failed(_)) => {
                if !Arc::ptr_eq(&growth.to, &self.request) {
                    self.doubt = Some(Arc::clone(&growth.to));
                }
                Grown::Unknown
            }
        }
    }

    /// How it ends when the model used `usage`.
    pub fn settlement(&self, usage: &Usage) -> Settlement {
        Settlement { keeper: self.keeper, doubt: self.doubt.clone(), ..self.request.settlement(usage) }
    }
}

impl Refused {
    /// The limits, and how their counters stood, as far as that is known.
    pub fn standings(&self) -> impl Iterator<Item = (&Hold, &CounterState)> {
        known(&self.request.holds, &self.states)
    }
}

fn known<'a>(
    holds: &'a [Hold],
    states: &'a [Option<CounterState>],
) -> impl Iterator<Item = (&'a Hold, &'a CounterState)> {
    holds.iter().zip(states).filter_map(|(hold, state)| Some((hold, state.as_ref()?)))
}
