//! The ledger's contract: what a request asks of it, what it answers, what is settled afterwards.

use std::sync::Arc;
use std::time::Duration;

use super::rules::Limit;

/// What one request asks for, over all of its limits at once: granted whole or refused whole.
#[derive(Debug, Clone)]
pub struct ReserveRequest {
    /// Unique for this request.
    pub id: ReservationId,
    /// One entry a limit.
    pub holds: Vec<Hold>,
}

/// A reservation's identity: 128 random bits, in hex.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReservationId(pub Arc<str>);

/// What a request wants to hold of one limit.
#[derive(Debug, Clone)]
pub struct Hold {
    /// The limit.
    pub limit: Arc<Limit>,
    /// Which of the limit's counters.
    pub counter: CounterKey,
    /// The estimate, in the limit's unit.
    pub estimate: u64,
}

/// Which counter of a limit a request falls on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CounterKey(pub Arc<str>);

/// The ledger's answer. The states are in the order of the holds and were read before this request's own hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Every limit admits the request; the holds are written.
    Granted {
        /// One entry a hold.
        states: Vec<CounterState>,
    },
    /// At least one limit refuses; nothing was written.
    Refused {
        /// The first hold that does.
        by: usize,
        /// One entry a hold.
        states: Vec<CounterState>,
    },
}

/// A counter as it stood before this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterState {
    /// Settled use in the current window.
    pub settled: u64,
    /// What live reservations hold.
    pub held: u64,
    /// Until the window ends: more than zero, at most the window.
    pub reset: Duration,
}

/// What was really used, in the order of the reservation's holds.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The reservation it ends. Settling it again changes nothing.
    pub id: ReservationId,
    /// One entry a hold.
    pub charges: Vec<Charge>,
}

/// The end of one hold.
#[derive(Debug, Clone)]
pub struct Charge {
    /// What was held.
    pub hold: Hold,
    /// What was used, in the limit's unit.
    pub actual: u64,
}

/// Where counters live. Both operations are atomic over all of their limits.
pub trait Store: Send + Sync + 'static {
    /// Admits or refuses.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not answer in time or not sensibly: the request's fate is then unknown to the
    /// caller, and a hold that was written all the same ends with its lease.
    fn reserve(&self, request: &ReserveRequest) -> impl Future<Output = Result<Admission, StoreError>> + Send;

    /// Ends a reservation and charges what was used.
    ///
    /// # Errors
    /// [`StoreError`] as for [`Store::reserve`]; it is safe to try again.
    fn settle(&self, settlement: &Settlement) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Extends the reservation's lease, while its answer streams.
    ///
    /// # Errors
    /// [`StoreError`] as for [`Store::reserve`]; the next renewal comes before the lease ends.
    fn renew(&self, request: &ReserveRequest) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Why a store gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline.
    #[error("the store did not answer within {0:?}")]
    Timeout(Duration),
    /// The store could not be reached, or answered with an error.
    #[error("the store failed: {0}")]
    Failed(String),
}
