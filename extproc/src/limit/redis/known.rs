//! What a sidecar knows of its Redis without asking: the use that it saw, and what time it is there.

use std::sync::atomic::{AtomicI64, Ordering};

use super::floors::{Floor, FloorKey, Floors};
use crate::limit::clock::{Clock, SystemClock};

/// Learnt from every answer.
#[derive(Debug, Default)]
pub(super) struct Known {
    floors: Floors,
    /// How far Redis's clock is ahead of ours.
    ahead_ms: AtomicI64,
}

impl Known {
    /// What time it is for Redis, in milliseconds since the epoch: only calendars are computed from it, for scripts have none.
    pub(super) fn now_ms(&self) -> u64 {
        our_now_ms().saturating_add_signed(self.ahead_ms.load(Ordering::Relaxed))
    }

    /// What was seen of these counters.
    pub(super) fn floors(&self, counters: &[FloorKey]) -> Vec<Floor> {
        self.floors.of(counters)
    }

    /// Takes note of an answer: what time it was there, and how counters stood.
    pub(super) fn learn(&self, now_ms: u64, seen: impl Iterator<Item = (FloorKey, Floor)>) {
        let ahead = i128::from(now_ms) - i128::from(our_now_ms());
        self.ahead_ms.store(i64::try_from(ahead).unwrap_or(0), Ordering::Relaxed);
        self.floors.see(seen);
    }

    #[cfg(test)]
    pub(super) fn forget(&self) {
        self.floors.forget();
    }

    #[cfg(test)]
    pub(super) fn believe_it_is_later_by(&self, ms: i64) {
        self.ahead_ms.store(ms, Ordering::Relaxed);
    }
}

fn our_now_ms() -> u64 {
    u64::try_from(SystemClock.now().as_millis()).unwrap_or(u64::MAX)
}
