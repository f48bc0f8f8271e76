//! How many sidecars share the store: as many as the operator says, or as many as say so themselves if that is more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::limit::{RedisStore, ReservationId};

const BEAT: Duration = Duration::from_secs(10);
/// After a beat that failed.
const BEAT_AGAIN: Duration = Duration::from_secs(1);
/// Two beats may fail before a sidecar counts as gone.
const LIFETIME: Duration = Duration::from_secs(30);
/// For saying farewell, which nobody waits for longer.
const FAREWELL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Replicas {
    expected: usize,
    alive: Arc<AtomicUsize>,
    id: ReservationId,
    store: RedisStore,
    beating: AbortHandle,
}

impl Replicas {
    pub(super) fn start(store: RedisStore, expected: usize) -> Self {
        let (alive, id) = (Arc::new(AtomicUsize::new(1)), ReservationId::random());
        let beating = tokio::spawn(beat(store.clone(), id.clone(), Arc::clone(&alive))).abort_handle();
        Self { expected, alive, id, store, beating }
    }

    /// At least one. While the store does not answer, as many as there were.
    pub(super) fn count(&self) -> usize {
        self.expected.max(self.alive.load(Ordering::Relaxed)).max(1)
    }

    /// This sidecar does not count any more.
    pub(super) async fn leave(&self) {
        self.beating.abort();
        // In vain, it is forgotten when its lifetime ends.
        let _ = tokio::time::timeout(FAREWELL, self.store.sidecars(&self.id.0, Duration::ZERO)).await;
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

async fn beat(store: RedisStore, id: ReservationId, alive: Arc<AtomicUsize>) {
    loop {
        let pause = match store.sidecars(&id.0, LIFETIME).await {
            Ok(count) => {
                alive.store(count, Ordering::Relaxed);
                BEAT
            }
            Err(_) => BEAT_AGAIN,
        };
        tokio::time::sleep(pause).await;
    }
}
