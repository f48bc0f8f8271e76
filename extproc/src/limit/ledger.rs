//! The store that the operator chose, and settling off the request path.

use std::sync::Arc;
use std::time::Duration;

use super::settling::SettleQueue;
use super::{
    Admission, CounterState, Decision, Growth, Hold, Keeper, MemoryStore, RedisStore, ReserveRequest, Settlement,
    Store, StoreError,
};

/// Where this sidecar keeps its counters.
#[derive(Debug)]
pub enum Ledger {
    /// In this process.
    Memory(MemoryStore),
    /// In a Redis that several sidecars share.
    Redis(RedisLedger),
}

/// A Redis store and what waits to be settled in it.
#[derive(Debug)]
pub struct RedisLedger {
    store: RedisStore,
    queue: SettleQueue,
}

impl Ledger {
    /// A ledger in this process.
    pub fn memory() -> Self {
        Self::Memory(MemoryStore::new())
    }

    /// A ledger in Redis; to be called within a Tokio runtime, as it starts the task that settles.
    pub fn redis(store: RedisStore) -> Self {
        Self::Redis(RedisLedger { queue: SettleQueue::start(store.clone()), store })
    }

    /// Settles without making anybody wait. In memory it has happened when this returns; in Redis it will soon, or is counted
    /// as lost.
    pub fn settle_detached(&self, settlement: Settlement) {
        match self {
            Self::Memory(store) => store.settle_now(&settlement),
            Self::Redis(ledger) => ledger.queue.push(settlement),
        }
    }

    /// Waits until everything is settled, at most until the deadline. Says how many settlements are left.
    pub async fn drain(&self, deadline: Duration) -> usize {
        match self {
            Self::Memory(_) => 0,
            Self::Redis(ledger) => ledger.queue.drain(deadline).await,
        }
    }

    /// What the ledger has done so far.
    pub fn stats(&self) -> LedgerStats {
        match self {
            Self::Memory(store) => LedgerStats { reservations: Some(store.reservations()), ..LedgerStats::default() },
            Self::Redis(ledger) => LedgerStats {
                round_trips: ledger.store.round_trips(),
                errors: ledger.store.errors(),
                lost_settlements: ledger.queue.lost(),
                queue_length: ledger.queue.len(),
                reservations: None,
            },
        }
    }
}

impl Ledger {
    /// Admits or refuses.
    ///
    /// # Errors
    /// [`StoreError`] when the store gave no answer and the request has a limit that refuses then.
    pub async fn reserve(&self, request: &Arc<ReserveRequest>) -> Result<Decision, StoreError> {
        let admission = match self {
            Self::Memory(store) => store.reserve(request).await,
            Self::Redis(ledger) => {
                let admission = ledger.store.reserve(request).await;
                if let Err(StoreError::Timeout(_)) = admission {
                    // It may yet be written, when nobody waits for it any more. Until its lease ended, it would refuse
                    // callers that are under their limits.
                    ledger.queue.push(request.release());
                }
                admission
            }
        };
        Ok(Decision::new(Arc::clone(request), admission?, Keeper::Store))
    }

    /// Renews a reservation, or lets it grow: [`Store::grow`].
    ///
    /// # Errors
    /// [`StoreError`] when the store gave no answer.
    pub async fn grow(&self, growth: &Growth) -> Result<Admission, StoreError> {
        match self {
            Self::Memory(store) => store.grow(growth).await,
            Self::Redis(ledger) => ledger.store.grow(growth).await,
        }
    }

    /// How counters stand: [`Store::peek`].
    ///
    /// # Errors
    /// [`StoreError`] when the store gave no answer.
    pub async fn peek(&self, holds: &[Hold]) -> Result<Vec<CounterState>, StoreError> {
        match self {
            Self::Memory(store) => store.peek(holds).await,
            Self::Redis(ledger) => ledger.store.peek(holds).await,
        }
    }

    /// Forgets what was settled: [`Store::reset`].
    ///
    /// # Errors
    /// [`StoreError`] when the store gave no answer.
    pub async fn reset(&self, holds: &[Hold]) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.reset(holds).await,
            Self::Redis(ledger) => ledger.store.reset(holds).await,
        }
    }
}

/// Figures for metrics; those of Redis are 0 for a ledger in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerStats {
    /// Commands sent to Redis.
    pub round_trips: u64,
    /// Operations that got no answer, or an error for one.
    pub errors: u64,
    /// Settlements that were given up: their use is not charged.
    pub lost_settlements: u64,
    /// Settlements that wait.
    pub queue_length: usize,
    /// Reservations that are held, where the ledger is in memory. In Redis they are everybody's, and not counted.
    pub reservations: Option<usize>,
}
