//! The store that the operator chose, what stands in for it, and settling off the request path.
//!
//! `shared` puts a Redis and everything around it together: `denials` refuses without asking, `breaker` and `circuit` leave
//! a Redis alone that does not answer, `degraded` decides meanwhile by `shares` of what is `known`, `settling` tells Redis
//! what its `backlog` holds, and `replicas` counts those who share it.

mod backlog;
mod breaker;
mod circuit;
mod degraded;
mod denials;
mod known;
mod name;
mod recent;
mod replicas;
mod settling;
mod shared;
mod shares;

pub use degraded::DegradedDecisions;
pub use shared::{SharedLedger, SharedOptions};

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    Admission, CounterState, Decision, Growth, Hold, Keeper, Limit, LimitFigure, LimitFigures, MemoryStore, RedisStore,
    ReserveRequest, Settlement, Store, StoreError, StoreMemory,
};

/// Where this sidecar keeps its counters.
#[derive(Debug)]
pub struct Ledger {
    counters: Counters,
    figures: Arc<LimitFigures>,
}

#[derive(Debug)]
enum Counters {
    /// In this process.
    Memory(MemoryStore),
    /// In a Redis that several sidecars share.
    Redis(Box<SharedLedger>),
}

impl Ledger {
    /// A ledger in this process.
    pub fn memory() -> Self {
        Self { counters: Counters::Memory(MemoryStore::new()), figures: Arc::default() }
    }

    /// A ledger in Redis; to be called within a Tokio runtime, as it starts the tasks that settle, probe and count sidecars.
    pub fn redis(store: RedisStore, options: SharedOptions) -> Self {
        let figures = Arc::<LimitFigures>::default();
        let ledger = SharedLedger::start(store, options, Arc::clone(&figures));
        Self { counters: Counters::Redis(Box::new(ledger)), figures }
    }

    /// Settles without making anybody wait. In memory it has happened when this returns; in Redis it will soon, or is counted
    /// as lost.
    pub fn settle_detached(&self, settlement: Settlement) {
        match &self.counters {
            Counters::Memory(store) => {
                let states = store.settle_now(&settlement);
                self.figures.settled(&settlement, &states, Instant::now());
            }
            Counters::Redis(ledger) => ledger.settle_detached(settlement),
        }
    }

    /// What is used of each limit, as far as this sidecar has seen.
    pub fn figures(&self) -> Vec<LimitFigure> {
        self.figures.at(Instant::now())
    }

    /// These limits are in force from now on. Every refusal comes from the store again: what counts, or how, may have changed.
    pub fn adopt<'l>(&self, limits: impl Iterator<Item = &'l Arc<Limit>>) {
        self.figures.adopt(limits);
        self.forget_denials();
    }

    /// Has every refusal come from the store again.
    pub fn forget_denials(&self) {
        match &self.counters {
            Counters::Memory(_) => {}
            Counters::Redis(ledger) => ledger.forget_denials(),
        }
    }

    /// Waits until everything is settled, at most until the deadline. Says how many settlements are left. To be called at the
    /// end: this sidecar does not count as one that shares the store any more.
    pub async fn drain(&self, deadline: Duration) -> usize {
        match &self.counters {
            Counters::Memory(_) => 0,
            Counters::Redis(ledger) => ledger.drain(deadline).await,
        }
    }

    /// What the ledger has done so far.
    pub fn stats(&self) -> LedgerStats {
        match &self.counters {
            Counters::Memory(store) => {
                LedgerStats { reservations: Some(store.reservations()), ..LedgerStats::default() }
            }
            Counters::Redis(ledger) => ledger.stats(),
        }
    }

    /// Admits or refuses. While the store does not answer, as the request's limits say.
    ///
    /// # Errors
    /// [`StoreError`] when the store gave no answer and the request has a limit that refuses then.
    pub async fn reserve(&self, request: &Arc<ReserveRequest>) -> Result<Decision, StoreError> {
        match &self.counters {
            Counters::Memory(store) => {
                let admission = store.reserve(request).await?;
                self.figures.stood(&request.holds, admission.states(), Instant::now());
                Ok(Decision::new(Arc::clone(request), admission, Keeper::Store))
            }
            Counters::Redis(ledger) => ledger.reserve(request).await,
        }
    }

    /// Renews a reservation, or lets it grow, with whoever keeps it: [`Store::grow`].
    ///
    /// # Errors
    /// [`StoreError`] when the store keeps it and gave no answer.
    pub async fn grow(&self, growth: &Growth) -> Result<Admission, StoreError> {
        match &self.counters {
            Counters::Memory(store) => store.grow(growth).await,
            Counters::Redis(ledger) => ledger.grow(growth).await,
        }
    }

    /// How counters stand: [`Store::peek`].
    ///
    /// # Errors
    /// [`StoreError`] when the store gave no answer.
    pub async fn peek(&self, holds: &[Hold]) -> Result<Vec<CounterState>, StoreError> {
        match &self.counters {
            Counters::Memory(store) => store.peek(holds).await,
            Counters::Redis(ledger) => ledger.peek(holds).await,
        }
    }

    /// What is known of counters that the store did not tell.
    pub fn unanswered(&self, holds: &[Hold]) -> Unanswered {
        match &self.counters {
            Counters::Memory(_) => Unanswered { lasting: None, known: vec![None; holds.len()] },
            Counters::Redis(ledger) => ledger.unanswered(holds),
        }
    }

    /// Forgets what was settled: [`Store::reset`].
    ///
    /// # Errors
    /// [`StoreError`] when the store gave no answer.
    pub async fn reset(&self, holds: &[Hold]) -> Result<(), StoreError> {
        match &self.counters {
            Counters::Memory(store) => store.reset(holds).await,
            Counters::Redis(ledger) => ledger.reset(holds).await,
        }
    }
}

/// What a sidecar knows of counters while the store does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// For how long the store has been left alone; `None` while it is still asked.
    pub lasting: Option<Duration>,
    /// How the counters stood when the store last told this sidecar, and what it has itself settled in the store's
    /// reservations since; `None` where it knows nothing.
    pub known: Vec<Option<CounterState>>,
}

/// Figures for metrics; those of Redis are 0 for a ledger in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerStats {
    /// Whether the store is asked.
    pub state: StoreState,
    /// Commands sent to Redis.
    pub round_trips: u64,
    /// Operations that got no answer, or an error for one.
    pub errors: u64,
    /// Requests that were refused without asking Redis.
    pub cached_refusals: u64,
    /// Requests that were decided without Redis, because it did not answer.
    pub degraded: DegradedDecisions,
    /// Sidecars that share the store, as far as is known; at least 1.
    pub replicas: usize,
    /// Settlements that wait.
    pub queue_length: usize,
    /// Settlements that were given up: their use is not charged, or nobody knows.
    pub lost_settlements: u64,
    /// Settlements that were of no use any more when Redis was back: their windows had ended.
    pub expired_settlements: u64,
    /// What Redis has of memory, as it said last.
    pub memory: StoreMemory,
    /// Reservations that are held, where the ledger is in memory. In Redis they are everybody's, and not counted.
    pub reservations: Option<usize>,
}

impl Default for LedgerStats {
    fn default() -> Self {
        Self {
            state: StoreState::Up,
            round_trips: 0,
            errors: 0,
            cached_refusals: 0,
            degraded: DegradedDecisions::default(),
            replicas: 1,
            queue_length: 0,
            lost_settlements: 0,
            expired_settlements: 0,
            memory: StoreMemory::default(),
            reservations: None,
        }
    }
}

/// Whether the store is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreState {
    /// It is.
    Up,
    /// It did not answer lately, and this sidecar goes on alone.
    Degraded,
}
