//! How a counter stood at one moment, and what follows from that.

use std::time::Duration;

/// A counter as it stood before a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterState {
    /// The bucket that was current.
    pub bucket: u64,
    /// Rises with every reset of the counter: what was seen of it in a lower one says nothing.
    pub epoch: u32,
    /// Settled use in the current bucket.
    pub settled: u64,
    /// Settled use in the bucket before, where the window slides; else 0.
    pub previous: u64,
    /// What live reservations hold.
    pub held: u64,
    /// Until the bucket ends: more than zero, at most its length.
    pub left: Duration,
    /// The bucket's length.
    pub length: Duration,
}

impl CounterState {
    /// Settled use: in a sliding window, with the share of the last bucket that lies within one length from now, rounded up.
    ///
    /// In doubles and in this order, as the Redis store's script computes it.
    pub fn used(&self) -> u64 {
        let share = self.previous as f64 * self.left.as_millis() as f64 / self.length.as_millis() as f64;
        self.settled.saturating_add(share.ceil() as u64)
    }

    /// How it will stand after `elapsed` if nothing happens to it; `None` once a window that does not slide has ended.
    pub fn after(&self, elapsed: Duration, slides: bool) -> Option<Self> {
        if let Some(left) = self.left.checked_sub(elapsed).filter(|left| !left.is_zero()) {
            return Some(Self { left, ..*self });
        }
        let next = Self {
            bucket: self.bucket + 1,
            settled: 0,
            previous: self.settled,
            left: (self.left + self.length).checked_sub(elapsed)?,
            ..*self
        };
        (slides && !next.left.is_zero()).then_some(next)
    }

    /// Until settled use has fallen to `target` with nothing else happening: at most one length, as nothing here promises
    /// more. Zero if it stands there already.
    pub fn until_used(&self, target: u64, slides: bool) -> Duration {
        if self.used() <= target {
            return Duration::ZERO;
        }
        if !slides {
            return self.left;
        }
        let reaches = |use_of_bucket: u64, other: u64, length: Duration| {
            let room = target.checked_sub(other)? as f64;
            (use_of_bucket > 0).then(|| length.mul_f64((room / use_of_bucket as f64).min(1.0)))
        };
        let within =
            reaches(self.previous, self.settled, self.length).map(|left_then| self.left.saturating_sub(left_then));
        let wait = within.unwrap_or_else(|| {
            let left_then = reaches(self.settled, 0, self.length).unwrap_or(self.length);
            self.left.saturating_add(self.length.saturating_sub(left_then))
        });
        wait.clamp(Duration::from_millis(1), self.length)
    }

    /// Nothing settled, nothing held, a minute to go.
    #[cfg(test)]
    pub(super) fn empty() -> Self {
        let minute = Duration::from_secs(60);
        Self { bucket: 0, epoch: 0, settled: 0, previous: 0, held: 0, left: minute, length: minute }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state(settled: u64, previous: u64, left_s: u64) -> CounterState {
        CounterState { settled, previous, left: Duration::from_secs(left_s), ..CounterState::empty() }
    }

    #[test]
    fn the_bucket_before_counts_with_the_share_that_is_within_one_length() {
        assert_eq!(state(10, 100, 60).used(), 110);
        assert_eq!(state(10, 100, 15).used(), 35);
        assert_eq!(state(10, 1, 1).used(), 11);
    }

    #[test]
    fn there_is_no_jump_where_a_sliding_bucket_ends() {
        let before = state(100, 40, 1);
        let after = before.after(Duration::from_secs(1), true).unwrap();
        assert_eq!((before.used(), after.used()), (101, 100));
        assert_eq!((after.bucket, after.left), (1, Duration::from_secs(60)));
        assert_eq!(before.after(Duration::from_secs(1), false), None);
        assert_eq!(before.after(Duration::from_secs(61), true), None);
    }

    #[test]
    fn use_falls_to_a_target_in_this_bucket_in_the_next_or_not_at_all() {
        let wait = |state: CounterState, target| state.until_used(target, true);
        assert_eq!(wait(state(10, 100, 60), 60), Duration::from_secs(30));
        assert_eq!(wait(state(100, 0, 15), 50), Duration::from_secs(45));
        assert_eq!(wait(state(100, 0, 60), 0), Duration::from_secs(60));
        assert_eq!(wait(state(10, 0, 60), 10), Duration::ZERO);
        assert_eq!(state(100, 0, 15).until_used(50, false), Duration::from_secs(15));
    }

    proptest! {
        #[test]
        fn waiting_is_never_longer_than_the_window_and_helps_as_far_as_that_goes(
            settled in 0u64..10_000, previous in 0u64..10_000, left_ms in 1u64..=60_000, target in 0u64..10_000,
        ) {
            let state = CounterState { settled, previous, left: Duration::from_millis(left_ms), ..CounterState::empty() };
            let wait = state.until_used(target, true);
            prop_assert!(wait <= state.length);
            if wait < state.length {
                let then = state.after(wait + Duration::from_millis(1), true).map_or(0, |state| state.used());
                prop_assert!(then <= target + 1, "{then}");
            }
        }
    }
}
