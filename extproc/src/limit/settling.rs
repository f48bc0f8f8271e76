//! A bounded queue of settlements and the one task that carries them to Redis: many at a time, again when it fails.
//!
//! Settling is idempotent, so trying again is safe as long as Redis remembers the first time: all attempts at one settlement
//! end well within the life of a tombstone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, watch};

use super::{RedisStore, Settlement, Store};

/// About half a kilobyte each: some seconds of settlements at full load.
const CAPACITY: usize = 16 * 1024;

/// Sent together; the connection writes them in one go.
const BATCH: usize = 128;

/// The pauses before the second and later attempts: five seconds in all, which a restart of Redis fits into.
const PAUSES_MS: [u64; 7] = [50, 100, 200, 400, 800, 1_600, 2_000];

#[derive(Debug)]
pub(super) struct SettleQueue {
    sender: mpsc::Sender<Settlement>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Settlements that are neither done nor given up.
    waiting: watch::Sender<usize>,
    lost: AtomicU64,
}

impl SettleQueue {
    pub(super) fn start(store: RedisStore) -> Self {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let shared = Arc::new(Shared { waiting: watch::Sender::new(0), lost: AtomicU64::new(0) });
        tokio::spawn(carry(receiver, store, Arc::clone(&shared)));
        Self { sender, shared }
    }

    pub(super) fn push(&self, settlement: Settlement) {
        self.shared.waiting.send_modify(|waiting| *waiting += 1);
        if self.sender.try_send(settlement).is_err() {
            self.shared.finish(1, 1);
        }
    }

    pub(super) async fn drain(&self, deadline: Duration) -> usize {
        let mut waiting = self.shared.waiting.subscribe();
        // Neither a timeout nor a closed channel changes the answer: what still waits.
        let _ = tokio::time::timeout(deadline, waiting.wait_for(|waiting| *waiting == 0)).await;
        self.len()
    }

    pub(super) fn len(&self) -> usize {
        *self.shared.waiting.borrow()
    }

    pub(super) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Takes settlements off the count of those that wait, some of them as lost.
    fn finish(&self, settlements: usize, lost: usize) {
        self.lost.fetch_add(lost as u64, Ordering::Relaxed);
        self.waiting.send_modify(|waiting| *waiting = waiting.saturating_sub(settlements));
    }
}

/// Ends when the queue is dropped and empty.
async fn carry(mut receiver: mpsc::Receiver<Settlement>, store: RedisStore, shared: Arc<Shared>) {
    let mut batch = Vec::with_capacity(BATCH);
    while receiver.recv_many(&mut batch, BATCH).await > 0 {
        let mut pauses = PAUSES_MS.iter();
        loop {
            let taken = batch.len();
            batch = settle(&store, batch).await;
            shared.finish(taken - batch.len(), 0);
            if batch.is_empty() {
                break;
            }
            let Some(pause) = pauses.next() else {
                tracing::warn!(settlements = batch.len(), "usage was not charged: Redis did not take it");
                shared.finish(batch.len(), batch.len());
                batch.clear();
                break;
            };
            tokio::time::sleep(Duration::from_millis(*pause)).await;
        }
    }
}

/// Settles all of them at once and returns those that failed.
async fn settle(store: &RedisStore, batch: Vec<Settlement>) -> Vec<Settlement> {
    let settled = join_all(batch.iter().map(|settlement| store.settle(settlement))).await;
    batch.into_iter().zip(settled).filter_map(|(settlement, settled)| settled.is_err().then_some(settlement)).collect()
}
