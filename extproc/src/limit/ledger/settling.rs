//! Settling off the request path: a bounded backlog, and the one task that carries it to Redis, many at a time.
//!
//! While the breaker is open nothing is tried, so nothing comes into doubt. What surely did not reach Redis waits until it is
//! back; what may have reached it is tried again for as long as Redis would remember it. Settling is idempotent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::backlog::{Backlog, Losses, Moment, Waiting};
use super::breaker::Breaker;
use super::degraded::Degraded;
use crate::limit::{Clock, Keeper, LimitFigures, RedisStore, Settlement, Store, StoreError, SystemClock};

/// Sent together; the connection writes them in one go.
const BATCH: usize = 128;

/// After a batch of which some failed; doubled after each of which all did.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub(super) struct SettleQueue {
    shared: Arc<Shared>,
    degraded: Arc<Degraded>,
    carrying: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    backlog: Mutex<Backlog>,
    /// How much of it is neither done nor given up.
    left: watch::Sender<usize>,
}

impl SettleQueue {
    /// What was charged is told to `figures`.
    pub(super) fn start(
        store: RedisStore,
        breaker: watch::Receiver<Breaker>,
        degraded: Arc<Degraded>,
        figures: Arc<LimitFigures>,
    ) -> Self {
        let shared = Arc::new(Shared { backlog: Mutex::new(Backlog::new()), left: watch::Sender::new(0) });
        let carrying = tokio::spawn(carry(Arc::clone(&shared), store, breaker, figures)).abort_handle();
        Self { shared, degraded, carrying }
    }

    pub(super) fn push(&self, settlement: Settlement) {
        self.shared.change(|backlog| match settlement.keeper {
            Keeper::Store => backlog.push(settlement, now()),
            Keeper::Sidecar => backlog.add(&settlement, now(), || self.degraded.untold()),
        });
    }

    pub(super) async fn drain(&self, deadline: Duration) -> usize {
        let mut left = self.shared.left.subscribe();
        // Neither a timeout nor a closed channel changes the answer: what is still left.
        let _ = tokio::time::timeout(deadline, left.wait_for(|left| *left == 0)).await;
        self.len()
    }

    pub(super) fn len(&self) -> usize {
        *self.shared.left.borrow()
    }

    pub(super) fn losses(&self) -> Losses {
        self.shared.backlog().losses()
    }
}

impl Drop for SettleQueue {
    fn drop(&mut self) {
        self.carrying.abort();
    }
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut Backlog) -> T) -> T {
        let mut backlog = self.backlog();
        let answer = change(&mut backlog);
        // Under the lock, so that the last to change it is the last to say so.
        self.left.send_replace(backlog.len());
        answer
    }

    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        // Charges are worth more than the certainty that none of them was half-way in when something panicked.
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now() -> Moment {
    Moment { instant: Instant::now(), ms: u64::try_from(SystemClock.now().as_millis()).unwrap_or(u64::MAX) }
}

async fn carry(
    shared: Arc<Shared>,
    store: RedisStore,
    mut breaker: watch::Receiver<Breaker>,
    figures: Arc<LimitFigures>,
) {
    let mut left = shared.left.subscribe();
    let (mut pause, mut lost) = (PAUSE, 0);
    // Either channel closes when the ledger is dropped.
    while left.wait_for(|left| *left > 0).await.is_ok() && breaker.wait_for(|breaker| !breaker.is_open()).await.is_ok()
    {
        let batch = shared.change(|backlog| backlog.take(BATCH, now()));
        let outcomes = settle(&store, &figures, &batch).await;
        let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        let all_failed = failed > 0 && failed == batch.len();
        let losses = shared.change(|backlog| {
            for (waiting, outcome) in batch.into_iter().zip(&outcomes) {
                backlog.done(waiting, outcome, now());
            }
            backlog.losses()
        });
        if losses.lost > lost {
            tracing::warn!(settlements = losses.lost - lost, "usage was not charged: Redis did not take it in time");
            lost = losses.lost;
        }
        if failed > 0 {
            tokio::time::sleep(pause).await;
        }
        pause = if all_failed { (2 * pause).min(LONGEST_PAUSE) } else { PAUSE };
    }
}

/// Settles all of them at once.
async fn settle(store: &RedisStore, figures: &LimitFigures, batch: &[Waiting]) -> Vec<Result<(), StoreError>> {
    let settled = batch.iter().map(|waiting| async move {
        let states = store.settle(&waiting.settlement).await?;
        figures.settled(&waiting.settlement, &states, Instant::now());
        Ok(())
    });
    join_all(settled).await
}
