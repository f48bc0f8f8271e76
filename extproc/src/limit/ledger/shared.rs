//! A ledger in a Redis that several sidecars share, and what stands in for it.
//!
//! A reservation is refused without asking where that is certain (`denials`); it is one round trip otherwise; and where Redis
//! does not answer, each limit says what becomes of it (`degraded`). Redis is not asked at all while the `circuit` is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::circuit::Circuit;
use super::degraded::Degraded;
use super::denials::Denials;
use super::known::KnownUse;
use super::name::CounterName;
use super::replicas::Replicas;
use super::settling::SettleQueue;
use super::shares::Shares;
use super::{LedgerStats, StoreState, Unanswered};
use crate::limit::{
    Admission, CounterState, Decision, Growth, Hold, Judge, Keeper, LimitFigures, RedisStore, ReserveRequest,
    Settlement, Store, StoreError,
};

/// How a sidecar goes on when its Redis does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedOptions {
    /// How many sidecars share the Redis at least. Those that say so themselves count too, if they are more.
    pub replicas: usize,
    /// For a probe: that of a reservation.
    pub probe_deadline: Duration,
}

impl Default for SharedOptions {
    fn default() -> Self {
        Self { replicas: 1, probe_deadline: Duration::from_millis(25) }
    }
}

/// A Redis store and everything around it.
#[derive(Debug)]
pub struct SharedLedger {
    store: RedisStore,
    circuit: Circuit,
    denials: Denials,
    known: KnownUse,
    degraded: Arc<Degraded>,
    queue: SettleQueue,
    replicas: Replicas,
    figures: Arc<LimitFigures>,
    cached_refusals: AtomicU64,
}

impl SharedLedger {
    /// To be called within a Tokio runtime.
    pub(super) fn start(store: RedisStore, options: SharedOptions, figures: Arc<LimitFigures>) -> Self {
        let circuit = Circuit::start(store.clone(), options.probe_deadline);
        let degraded = Arc::new(Degraded::new());
        Self {
            queue: SettleQueue::start(store.clone(), circuit.watch(), Arc::clone(&degraded), Arc::clone(&figures)),
            replicas: Replicas::start(store.clone(), options.replicas),
            store,
            circuit,
            denials: Denials::new(),
            known: KnownUse::new(),
            degraded,
            figures,
            cached_refusals: AtomicU64::new(0),
        }
    }

    pub(super) async fn reserve(&self, request: &Arc<ReserveRequest>) -> Result<Decision, StoreError> {
        let asked = Instant::now();
        let names: Vec<_> = request.holds.iter().map(CounterName::of).collect();
        if request.judge == Judge::Anyone
            && let Some(refused) = self.denials.refusal(request, &names, asked)
        {
            self.cached_refusals.fetch_add(1, Ordering::Relaxed);
            return Ok(Decision::Refused(refused));
        }
        let epoch = self.denials.epoch();
        match self.ask(request).await {
            Ok(admission) => {
                self.known.learn(request, &names, &admission, asked);
                self.figures.stood(&request.holds, admission.states(), asked);
                if let Admission::Refused { states, .. } = &admission {
                    self.denials.learn(&request.holds, &names, states, asked, epoch);
                }
                Ok(Decision::new(Arc::clone(request), admission, Keeper::Store))
            }
            // To decide here would be the way around it.
            Err(error @ StoreError::NoRoom(_)) => Err(error),
            Err(error) => self.degraded.reserve(request, self.shares(), error),
        }
    }

    async fn ask(&self, request: &ReserveRequest) -> Result<Admission, StoreError> {
        if self.circuit.is_open() {
            return Err(left_alone());
        }
        let answer = self.store.reserve(request).await;
        match &answer {
            Ok(_) | Err(StoreError::NoRoom(_)) => {
                self.circuit.answered();
                self.degraded.answered();
            }
            Err(error) => {
                self.circuit.failed();
                // It may yet be written, when nobody waits for it any more. Until its lease ended, it would refuse callers
                // that are under their limits.
                if !matches!(error, StoreError::Unreachable(_)) {
                    self.queue.push(request.release());
                }
            }
        }
        answer
    }

    pub(super) async fn grow(&self, growth: &Growth) -> Result<Admission, StoreError> {
        match growth.keeper {
            Keeper::Sidecar => Ok(self.degraded.grow(growth, self.shares())),
            Keeper::Store if self.circuit.is_open() => Err(left_alone()),
            Keeper::Store => {
                let answer = self.store.grow(growth).await;
                if let Ok(Admission::Granted { .. }) = answer {
                    self.known.grow(growth);
                }
                answer
            }
        }
    }

    pub(super) fn settle_detached(&self, settlement: Settlement) {
        match settlement.keeper {
            Keeper::Store => {
                self.known.settle(&settlement, Instant::now());
                self.queue.push(settlement);
            }
            Keeper::Sidecar => {
                // In this order: what is counted here must not be dropped before it waits to be told.
                self.queue.push(settlement.clone());
                self.degraded.settle(&settlement);
            }
        }
    }

    pub(super) async fn peek(&self, holds: &[Hold]) -> Result<Vec<CounterState>, StoreError> {
        self.store.peek(holds).await
    }

    pub(super) fn unanswered(&self, holds: &[Hold]) -> Unanswered {
        let now = Instant::now();
        let since = self.circuit.open_since().map(|since| now.saturating_duration_since(since));
        Unanswered { lasting: since, known: self.known.states(holds, now) }
    }

    pub(super) async fn reset(&self, holds: &[Hold]) -> Result<(), StoreError> {
        let answer = self.store.reset(holds).await;
        // Even if it failed: it may have happened.
        self.known.forget(holds);
        self.denials.forget();
        answer
    }

    pub(super) fn forget_denials(&self) {
        self.denials.forget();
    }

    pub(super) async fn drain(&self, deadline: Duration) -> usize {
        let left = self.queue.drain(deadline).await;
        self.replicas.leave().await;
        left
    }

    pub(super) fn stats(&self) -> LedgerStats {
        let losses = self.queue.losses();
        LedgerStats {
            state: if self.circuit.is_open() { StoreState::Degraded } else { StoreState::Up },
            round_trips: self.store.round_trips(),
            errors: self.store.errors(),
            cached_refusals: self.cached_refusals.load(Ordering::Relaxed),
            degraded: self.degraded.decisions(),
            replicas: self.replicas.count(),
            queue_length: self.queue.len(),
            lost_settlements: losses.lost,
            expired_settlements: losses.expired,
            memory: self.replicas.memory(),
            reservations: None,
        }
    }

    fn shares(&self) -> Shares<'_> {
        Shares { known: &self.known, sidecars: self.replicas.count(), now: Instant::now() }
    }
}

fn left_alone() -> StoreError {
    StoreError::Unreachable("it did not answer lately and is not asked until it does".to_owned())
}
