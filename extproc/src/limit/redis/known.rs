//! What a sidecar knows of its Redis without asking: the use that it saw, and what time it is there.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::floors::{Floor, FloorKey, Floors};
use super::presence::StoreMemory;
use crate::limit::clock::{Clock, SystemClock};

/// What a new counter takes of Redis: measured, 255 bytes with its key, and for ten seconds some 200 for the tombstone of the request
/// that made it.
const COUNTER_BYTES: u64 = 512;

/// How many counters there is room for in a Redis that does not say what it may use.
const ROOM_UNTOLD: u64 = 1 << 20;

/// Learnt from every answer.
#[derive(Debug)]
pub(super) struct Known {
    floors: Floors,
    /// How far Redis's clock is ahead of ours.
    ahead_ms: AtomicI64,
    /// For how many further counters there is room.
    room: AtomicU64,
}

impl Default for Known {
    fn default() -> Self {
        Self { floors: Floors::default(), ahead_ms: AtomicI64::new(0), room: AtomicU64::new(ROOM_UNTOLD) }
    }
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

    /// How many counters one key may have made: half as many as there is room for, so that it takes no more than half of that before
    /// it is known how much is left.
    pub(super) fn share_of_room(&self) -> u64 {
        self.room.load(Ordering::Relaxed) / 2
    }

    /// Takes note of how full it is.
    pub(super) fn hear(&self, StoreMemory { used_bytes, limit_bytes }: StoreMemory) {
        let room = match limit_bytes {
            0 => ROOM_UNTOLD,
            limit_bytes => limit_bytes.saturating_sub(used_bytes) / COUNTER_BYTES,
        };
        self.room.store(room, Ordering::Relaxed);
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
