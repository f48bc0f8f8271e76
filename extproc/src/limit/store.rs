//! What a store must do: grant or refuse a request's reservation, extend it and let it grow while the answer streams, end it with
//! what was used. The memory store and the Redis store pass the same tests.

use std::time::Duration;

use super::{CounterState, Growth, Hold, Limit, ReserveRequest, Settlement};

/// A reservation that nobody renews for this long is given back: its sidecar is gone.
pub const LEASE: Duration = Duration::from_secs(30);
pub(super) const LEASE_MS: u64 = LEASE.as_millis() as u64;

/// How often the exchange's driver renews while an answer streams: two renewals may fail before the lease ends.
pub const RENEW_EVERY: Duration = Duration::from_secs(10);

/// How long a settled reservation is remembered, so that settling it again changes nothing. Longer than a settlement is
/// retried.
pub(super) const TOMBSTONE_MS: u64 = 10_000;

/// Leases that are looked through for what they hold of a counter that is not there, as it was evicted or is new: of three
/// limits each, 256 of them took Redis 170 us.
pub(super) const RECOUNT_AT_MOST: usize = 256;

/// Expired leases that one reservation gives back at most, so that no request pays for a fleet that died.
pub(super) const SWEEP_AT_MOST: usize = 8;

/// Expired leases that it gives back beyond those before it is refused: nobody is refused for what a dead sidecar holds, unless
/// that sidecar had still more streams of one tenant.
pub(super) const SWEEP_BEFORE_REFUSAL: usize = 256;

impl Limit {
    /// How long a counter that nobody uses is kept: two windows, as a sliding window looks back one, and longer than any
    /// lease that holds of it.
    pub(super) fn time_to_live_ms(&self) -> u64 {
        2 * u64::try_from(self.window.longest().as_millis()).unwrap_or(u64::MAX / 4) + LEASE_MS
    }
}

/// A store's answer. The states are in the order of the holds and were read before anything was held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Every limit that refuses admits the request; the holds are written.
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

impl Admission {
    /// The counters as they stood before, in the order of the holds.
    pub fn states(&self) -> &[CounterState] {
        match self {
            Self::Granted { states } | Self::Refused { states, .. } => states,
        }
    }
}

/// Where counters live. All operations are atomic over all of their limits.
pub trait Store: Send + Sync + 'static {
    /// Admits or refuses. Limits in shadow are held and do not refuse.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not answer in time or not sensibly: the request's fate is then unknown to the
    /// caller, and a hold that was written all the same ends with its lease, unless it is released before.
    fn reserve(&self, request: &ReserveRequest) -> impl Future<Output = Result<Admission, StoreError>> + Send;

    /// Extends the reservation's lease, and holds more where the growth asks for more. A lease that ended in the meantime is
    /// taken again; a reservation that was settled stays settled, and is granted.
    ///
    /// Only a limit with a cap refuses, when what is asked for beyond what is held does not fit; then nothing grows, and the
    /// lease is extended all the same.
    ///
    /// # Errors
    /// [`StoreError`] as for [`Store::reserve`]; what is held is then in doubt, and the next growth or settlement says so.
    fn grow(&self, growth: &Growth) -> impl Future<Output = Result<Admission, StoreError>> + Send;

    /// Ends a reservation and charges what was used, in the window that is current now. Answers how the counters stand after it,
    /// in the order of the charges.
    ///
    /// # Errors
    /// [`StoreError`] as for [`Store::reserve`]; it is safe to try again.
    fn settle(&self, settlement: &Settlement) -> impl Future<Output = Result<Vec<CounterState>, StoreError>> + Send;

    /// How the counters of these holds stand; changes nothing.
    ///
    /// # Errors
    /// [`StoreError`] as for [`Store::reserve`].
    fn peek(&self, holds: &[Hold]) -> impl Future<Output = Result<Vec<CounterState>, StoreError>> + Send;

    /// Forgets what was settled in the counters of these holds, whatever other sidecars remember of it. What is held stays.
    ///
    /// # Errors
    /// [`StoreError`] as for [`Store::reserve`].
    fn reset(&self, holds: &[Hold]) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Why a store gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline: what was asked for may yet happen.
    #[error("the store did not answer within {0:?}")]
    Timeout(Duration),
    /// The store answered with an error, or what was sent may have got lost: what was asked for may have happened.
    #[error("the store failed: {0}")]
    Failed(String),
    /// The store could not be reached: nothing happened.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The store is well, and takes no further counters of whoever asks: nothing happened.
    #[error("there is no room for more counters: {0}")]
    NoRoom(String),
}
