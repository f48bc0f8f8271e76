//! How many sidecars share the store: as many as the operator says, or as many as say so themselves if that is more. What the store has
//! of memory is heard with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::limit::redis::Presence;
use crate::limit::{RedisStore, ReservationId, StoreMemory};

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
    heard: Arc<Heard>,
    id: ReservationId,
    store: RedisStore,
    beating: AbortHandle,
}

/// What was heard last.
#[derive(Debug)]
struct Heard(Mutex<Presence>);

impl Heard {
    fn last(&self) -> MutexGuard<'_, Presence> {
        // It is replaced whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Replicas {
    pub(super) fn start(store: RedisStore, expected: usize) -> Self {
        let alone = Presence { sidecars: 1, memory: StoreMemory::default() };
        let (heard, id) = (Arc::new(Heard(Mutex::new(alone))), ReservationId::random());
        let beating = tokio::spawn(beat(store.clone(), id.clone(), Arc::clone(&heard))).abort_handle();
        Self { expected, heard, id, store, beating }
    }

    /// At least one. While the store does not answer, as many as there were.
    pub(super) fn count(&self) -> usize {
        self.expected.max(self.heard.last().sidecars).max(1)
    }

    /// What the store has of memory, as it said last.
    pub(super) fn memory(&self) -> StoreMemory {
        self.heard.last().memory
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

async fn beat(store: RedisStore, id: ReservationId, heard: Arc<Heard>) {
    loop {
        let pause = match store.sidecars(&id.0, LIFETIME).await {
            Ok(presence) => {
                *heard.last() = presence;
                BEAT
            }
            Err(_) => BEAT_AGAIN,
        };
        tokio::time::sleep(pause).await;
    }
}
