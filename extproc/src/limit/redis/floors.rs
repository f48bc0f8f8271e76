//! The use that this sidecar last saw of each counter. It is sent along with every call, and Redis never falls below it: after a
//! restart with nothing in memory, a failover to a replica that lags, or an eviction, use comes back with the first request.
//!
//! Bounded: two generations, the old one forgotten when the young one is full, so what was seen lately stays. One lock, held for
//! a few map operations and never across an await.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::xxh3_128;

use crate::limit::counter::BUCKETS_AHEAD;

/// Of each generation: both together take about 6 MB.
const CAPACITY: usize = 32 * 1024;

/// A counter's key, by its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FloorKey(u128);

impl FloorKey {
    pub(super) fn of(key: &str) -> Self {
        Self(xxh3_128(key.as_bytes()))
    }
}

/// A counter's use as it was seen: at least so much is true unless it was reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Floor {
    pub(super) bucket: u64,
    pub(super) epoch: u32,
    pub(super) settled: u64,
    pub(super) previous: u64,
    /// In which of the counter's lives: the time when it began, in microseconds modulo 2^32. Redis tells by it whether what was
    /// seen is in what it has.
    pub(super) life: u32,
}

impl Floor {
    /// What is known after `seen` was seen as well. Answers come in any order.
    fn and(self, seen: Self) -> Self {
        if seen.epoch != self.epoch {
            return if seen.epoch > self.epoch { seen } else { self };
        }
        if seen.life != self.life {
            // The earlier life's connections ended with it, and what was sent along from it is in this answer.
            return seen;
        }
        if seen.bucket == self.bucket {
            let (settled, previous) = (seen.settled.max(self.settled), seen.previous.max(self.previous));
            return Self { settled, previous, ..self };
        }
        // A bucket goes back only where the clock had run wild.
        if seen.bucket > self.bucket || seen.bucket + BUCKETS_AHEAD < self.bucket { seen } else { self }
    }

    fn says_nothing(self) -> bool {
        self.epoch == 0 && self.settled == 0 && self.previous == 0
    }
}

/// The floors of many counters.
#[derive(Debug)]
pub(super) struct Floors {
    capacity: usize,
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<FloorKey, Floor>,
    old: HashMap<FloorKey, Floor>,
}

impl Default for Floors {
    fn default() -> Self {
        Self { capacity: CAPACITY, generations: Mutex::default() }
    }
}

impl Floors {
    /// The floors of some counters, in their order; all zero where nothing was seen.
    pub(super) fn of(&self, keys: &[FloorKey]) -> Vec<Floor> {
        let generations = self.generations();
        keys.iter().map(|key| generations.of(key).unwrap_or_default()).collect()
    }

    /// Takes note of what was seen of some counters.
    pub(super) fn see(&self, seen: impl Iterator<Item = (FloorKey, Floor)>) {
        let mut generations = self.generations();
        for (key, seen) in seen {
            let known = generations.of(&key);
            let floor = known.map_or(seen, |known| known.and(seen));
            if floor.says_nothing() {
                continue;
            }
            generations.young.insert(key, floor);
            if generations.young.len() >= self.capacity {
                let Generations { young, old } = &mut *generations;
                mem::swap(young, old);
                young.clear();
            }
        }
    }

    #[cfg(test)]
    pub(super) fn forget(&self) {
        *self.generations() = Generations::default();
    }

    fn generations(&self) -> MutexGuard<'_, Generations> {
        // A map is whole between its operations, whoever panicked.
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn of(&self, key: &FloorKey) -> Option<Floor> {
        self.young.get(key).or_else(|| self.old.get(key)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor(bucket: u64, epoch: u32, settled: u64) -> Floor {
        Floor { bucket, epoch, settled, previous: 0, life: 1 }
    }

    #[test]
    fn the_later_reset_the_later_bucket_and_the_larger_use_count() {
        for (known, seen, expected) in [
            (floor(9, 1, 50), floor(9, 1, 40), floor(9, 1, 50)),
            (floor(9, 1, 50), floor(9, 1, 60), floor(9, 1, 60)),
            (floor(9, 1, 50), floor(10, 1, 1), floor(10, 1, 1)),
            (floor(9, 1, 50), floor(8, 1, 90), floor(9, 1, 50)),
            (floor(9, 1, 50), floor(9, 2, 0), floor(9, 2, 0)),
            (floor(9, 2, 0), floor(9, 1, 50), floor(9, 2, 0)),
        ] {
            assert_eq!(known.and(seen), expected);
        }
    }

    #[test]
    fn what_was_seen_in_another_life_counts_also_where_it_is_less() {
        let other = Floor { life: 2, ..floor(9, 1, 40) };
        assert_eq!(floor(9, 1, 50).and(other), other);
    }

    #[test]
    fn a_bucket_far_ahead_was_seen_under_a_clock_that_ran_wild() {
        assert_eq!(floor(12, 0, 50).and(floor(10, 0, 1)), floor(12, 0, 50));
        assert_eq!(floor(13, 0, 50).and(floor(10, 0, 1)), floor(10, 0, 1));
    }

    #[test]
    fn what_was_seen_lately_is_kept_and_the_rest_is_forgotten() {
        let floors = Floors { capacity: 10, ..Floors::default() };
        let key = |index: u64| FloorKey::of(&index.to_string());
        for index in 0..1_000 {
            floors.see([(key(index), floor(1, 0, index)), (key(0), floor(1, 0, 7))].into_iter());
        }
        let generations = floors.generations();
        assert!(generations.young.len() < 10 && generations.old.len() <= 10);
        drop(generations);
        assert_eq!(floors.of(&[key(0), key(999), key(500)]), [floor(1, 0, 7), floor(1, 0, 999), Floor::default()]);
    }

    #[test]
    fn a_counter_that_nobody_used_takes_no_room() {
        let floors = Floors::default();
        floors.see([(FloorKey::of("a"), floor(1, 0, 0))].into_iter());
        assert_eq!(floors.generations().young.len(), 0);
    }
}
