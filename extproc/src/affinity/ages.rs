//! What an endpoint's cache still holds, told by age: an engine that is full gives up what was used longest ago.
//!
//! A histogram of an endpoint's bytes by when they were last used. Whatever lies beyond its capacity, counted from the newest,
//! counts as gone. The bound on buckets makes old times coarse, never wrong by more than a bucket.

/// Buckets: 4 KiB of memory for each endpoint. Beyond, neighbours are merged, the oldest first.
const MOST_BUCKETS: usize = 256;

/// The bytes of one endpoint by age.
#[derive(Debug, Clone, Default)]
pub(super) struct Ages {
    /// From old to new: since when, in seconds since the pool's start, and how many bytes were last used then or later, but
    /// before the next bucket.
    buckets: Vec<Bucket>,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    since: u32,
    bytes: u64,
}

impl Ages {
    /// Bytes of a block that the endpoint did not have are used at `now`.
    pub(super) fn add(&mut self, bytes: u64, now: u32) {
        self.bytes = self.bytes.saturating_add(bytes);
        let at = self.buckets.partition_point(|bucket| bucket.since <= now);
        match at.checked_sub(1).and_then(|at| self.buckets.get_mut(at)) {
            Some(bucket) if bucket.since == now => bucket.bytes = bucket.bytes.saturating_add(bytes),
            _ => {
                self.buckets.insert(at, Bucket { since: now, bytes });
                if self.buckets.len() > MOST_BUCKETS {
                    self.merge();
                }
            }
        }
    }

    /// Bytes that were last used at `last_used` are no longer there.
    pub(super) fn remove(&mut self, bytes: u64, last_used: u32) {
        let at = self.buckets.partition_point(|bucket| bucket.since <= last_used);
        // What is older than every bucket was forgotten.
        if let Some(bucket) = at.checked_sub(1).and_then(|at| self.buckets.get_mut(at)) {
            let removed = bucket.bytes.min(bytes);
            bucket.bytes -= removed;
            self.bytes = self.bytes.saturating_sub(removed);
        }
    }

    /// Since when something must have been used to be still there, where there is room for `capacity` bytes.
    pub(super) fn horizon(&self, capacity: u64) -> u32 {
        let mut newer = 0_u64;
        let mut until = None;
        for bucket in self.buckets.iter().rev() {
            newer = newer.saturating_add(bucket.bytes);
            if newer > capacity {
                return until.unwrap_or(bucket.since.saturating_add(1));
            }
            until = Some(bucket.since);
        }
        0
    }

    /// Before when the oldest `bytes` were last used, to a bucket: how young it is what has to go for as many others.
    pub(super) fn end_of_oldest(&self, bytes: u64) -> u32 {
        let mut older = 0_u64;
        let mut buckets = self.buckets.iter();
        for bucket in buckets.by_ref() {
            older = older.saturating_add(bucket.bytes);
            if older >= bytes {
                break;
            }
        }
        match (buckets.next(), self.buckets.last()) {
            (Some(younger), _) => younger.since,
            (None, Some(youngest)) => youngest.since.saturating_add(1),
            (None, None) => 0,
        }
    }

    /// Forgets whatever was last used before `horizon`: it does not count any more, and need not be removed.
    pub(super) fn forget_before(&mut self, horizon: u32) {
        let gone = self.buckets.partition_point(|bucket| bucket.since < horizon);
        let bytes: u64 = self.buckets.drain(..gone).map(|bucket| bucket.bytes).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// All bytes that count.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Two neighbours become one: of the older half those two that are closest together.
    fn merge(&mut self) {
        let older_half = self.buckets.len() / 2;
        let pairs = self.buckets.windows(2).take(older_half).enumerate();
        let closest = pairs.min_by_key(|(_, pair)| match pair {
            [first, second] => second.since - first.since,
            _ => u32::MAX,
        });
        let Some((first, _)) = closest else { return };
        let younger = self.buckets.remove(first + 1);
        if let Some(older) = self.buckets.get_mut(first) {
            older.bytes = older.bytes.saturating_add(younger.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn beyond_the_capacity_the_oldest_are_gone() {
        let mut ages = Ages::default();
        (0..10).for_each(|second| ages.add(100, second));
        assert_eq!(ages.horizon(1_000), 0);
        assert_eq!(ages.horizon(999), 1);
        assert_eq!(ages.horizon(250), 8);
        assert_eq!(ages.horizon(0), 10);
        ages.forget_before(8);
        assert_eq!(ages.bytes(), 200);
        // What was forgotten is not removed once more.
        ages.remove(100, 3);
        assert_eq!(ages.bytes(), 200);
    }

    #[test]
    fn the_oldest_go_for_others() {
        let mut ages = Ages::default();
        (0..10).for_each(|second| ages.add(100, second));
        assert_eq!([1, 100, 101, 950, 5_000].map(|bytes| ages.end_of_oldest(bytes)), [1, 1, 2, 10, 10]);
        assert_eq!(Ages::default().end_of_oldest(1), 0);
    }

    #[test]
    fn what_is_used_again_is_young() {
        let mut ages = Ages::default();
        (0..10).for_each(|second| ages.add(100, second));
        ages.remove(100, 0);
        ages.add(100, 20);
        assert_eq!((ages.bytes(), ages.horizon(250)), (1_000, 9));
    }

    proptest! {
        #[test]
        fn bytes_are_kept_account_of_however_many_seconds_there_were(steps in prop::collection::vec((0_u32..3, 1_u64..50), 1..2_000)) {
            let mut ages = Ages::default();
            let mut uses = Vec::new();
            let mut now = 0;
            for (passed, bytes) in steps {
                now += passed;
                ages.add(bytes, now);
                uses.push((now, bytes));
            }
            prop_assert!(ages.buckets.len() <= MOST_BUCKETS);
            let all: u64 = uses.iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(ages.bytes(), all);
            // What the horizon leaves fits, and but for one bucket nothing more would.
            let capacity = all / 2;
            let horizon = ages.horizon(capacity);
            let left: u64 = uses.iter().filter(|(used, _)| *used >= horizon).map(|(_, bytes)| bytes).sum();
            let coarsest = ages.buckets.iter().map(|bucket| bucket.bytes).max().unwrap_or(0);
            prop_assert!(left <= capacity && left + coarsest > capacity, "{left} of {capacity}");
            for (used, bytes) in uses {
                ages.remove(bytes, used);
            }
            prop_assert_eq!(ages.bytes(), 0);
        }
    }
}
