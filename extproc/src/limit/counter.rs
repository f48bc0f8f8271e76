//! One counter of one limit, without I/O: which window it is in, what is settled and what is held.
//!
//! A hold belongs to no window: it counts in whichever is current. The Redis store's scripts do the same to a packed string.

use std::time::Duration;

use super::rules::MAX_COUNT;
use super::{CounterState, Window};

/// A counter's bucket may be ahead of the clock by this much, when the clock was set back; further ahead, it was the clock
/// that ran wild, and what was counted then is dropped.
pub(super) const BUCKETS_AHEAD: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counter {
    bucket: u64,
    epoch: u32,
    settled: u64,
    previous: u64,
    held: u64,
}

impl Counter {
    /// As a store has kept it.
    pub(super) fn kept(bucket: u64, epoch: u32, settled: u64, previous: u64, held: u64) -> Self {
        Self { bucket, epoch, settled, previous, held }
    }

    /// Nothing settled, nothing held, in the bucket that is current at `now_ms`.
    pub(super) fn new(window: &Window, now_ms: u64) -> Self {
        let mut counter = Self::default();
        counter.roll(window, now_ms);
        counter
    }

    /// Enters the bucket that is current at `now_ms`. It never goes back to one that has ended.
    pub(super) fn roll(&mut self, window: &Window, now_ms: u64) {
        let current = window.bucket(now_ms).index;
        if self.bucket < current || self.bucket > current + BUCKETS_AHEAD {
            self.previous = if window.slides() && self.bucket + 1 == current { self.settled } else { 0 };
            self.bucket = current;
            self.settled = 0;
        }
    }

    pub(super) fn hold(&mut self, amount: u64) {
        self.held = self.held.saturating_add(amount).min(MAX_COUNT);
    }

    pub(super) fn release(&mut self, amount: u64) {
        self.held = self.held.saturating_sub(amount);
    }

    pub(super) fn charge(&mut self, actual: u64) {
        self.settled = self.settled.saturating_add(actual).min(MAX_COUNT);
    }

    /// Forgets what was settled, and says so to whoever remembers it.
    pub(super) fn reset(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.settled = 0;
        self.previous = 0;
    }

    /// What a caller sees of it; it must have been rolled to `now_ms`.
    pub(super) fn state(&self, window: &Window, now_ms: u64) -> CounterState {
        let bucket = window.bucket(now_ms);
        let length_ms = bucket.end_ms - bucket.start_ms;
        // Ahead of the clock, it is as if its bucket had just begun.
        let left_ms = if self.bucket > bucket.index { length_ms } else { bucket.end_ms.saturating_sub(now_ms) };
        CounterState {
            bucket: self.bucket,
            epoch: self.epoch,
            settled: self.settled,
            previous: self.previous,
            held: self.held,
            left: Duration::from_millis(left_ms.clamp(1, length_ms)),
            length: Duration::from_millis(length_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;
    const FIXED: Window = Window::Fixed(Duration::from_secs(60));
    const SLIDING: Window = Window::Sliding(Duration::from_secs(60));

    fn charged(now_ms: u64) -> Counter {
        let mut counter = Counter::new(&FIXED, now_ms);
        counter.charge(100);
        counter.hold(20);
        counter
    }

    fn seen(counter: &mut Counter, now_ms: u64) -> (u64, u64, u64) {
        counter.roll(&FIXED, now_ms);
        let state = counter.state(&FIXED, now_ms);
        (state.settled, state.held, state.left.as_millis() as u64)
    }

    #[test]
    fn a_new_window_forgets_what_was_settled_and_keeps_what_is_held() {
        let mut counter = charged(10 * MINUTE);
        assert_eq!(seen(&mut counter, 11 * MINUTE - 1), (100, 20, 1));
        assert_eq!(seen(&mut counter, 11 * MINUTE), (0, 20, MINUTE));
    }

    #[test]
    fn a_clock_set_back_neither_refills_nor_waits_longer_than_a_window() {
        let mut counter = charged(10 * MINUTE);
        assert_eq!(seen(&mut counter, 8 * MINUTE), (100, 20, MINUTE));
    }

    #[test]
    fn a_counter_far_ahead_of_the_clock_is_dropped_but_for_its_holds() {
        let mut counter = charged(10 * MINUTE);
        assert_eq!(seen(&mut counter, 8 * MINUTE - 1), (0, 20, 1));
    }

    #[test]
    fn a_sliding_window_remembers_the_bucket_before_and_no_earlier_one() {
        let used = |now_ms| {
            let mut counter = charged(10 * MINUTE);
            counter.roll(&SLIDING, now_ms);
            counter.state(&SLIDING, now_ms).used()
        };
        assert_eq!(used(11 * MINUTE - 1), 100);
        assert_eq!(used(11 * MINUTE), 100);
        assert_eq!(used(11 * MINUTE + MINUTE / 4), 75);
        assert_eq!(used(12 * MINUTE - 1), 1);
        assert_eq!(used(12 * MINUTE), 0);
    }

    #[test]
    fn a_reset_forgets_what_was_settled_and_keeps_what_is_held() {
        let mut counter = charged(10 * MINUTE);
        counter.reset();
        let state = counter.state(&FIXED, 10 * MINUTE);
        assert_eq!((state.settled, state.held, state.epoch), (0, 20, 1));
    }

    #[test]
    fn counts_stop_at_what_every_store_counts_exactly() {
        let mut counter = Counter::new(&FIXED, 0);
        counter.charge(u64::MAX);
        counter.charge(u64::MAX);
        counter.hold(u64::MAX);
        assert_eq!(seen(&mut counter, 0), (MAX_COUNT, MAX_COUNT, MINUTE));
        counter.release(u64::MAX);
        assert_eq!(seen(&mut counter, 0), (MAX_COUNT, 0, MINUTE));
    }
}
