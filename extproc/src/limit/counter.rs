//! One counter of one limit, without I/O: which window it is in, what is settled and what is held.
//!
//! A hold belongs to no window: it counts in whichever is current. The Redis store's scripts do the same to a packed string.

use std::time::Duration;

use super::CounterState;
use super::rules::MAX_COUNT;

/// A counter's bucket may be ahead of the clock by this much, when the clock was set back; further ahead, it was the clock
/// that ran wild, and what was counted then is dropped.
const BUCKETS_AHEAD: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counter {
    bucket: u64,
    settled: u64,
    held: u64,
}

impl Counter {
    /// Nothing settled, nothing held, in the window that is current at `now_ms`.
    pub(super) fn new(window_ms: u64, now_ms: u64) -> Self {
        let mut counter = Self::default();
        counter.roll(window_ms, now_ms);
        counter
    }

    /// Enters the window that is current at `now_ms`. It never goes back to one that has ended.
    pub(super) fn roll(&mut self, window_ms: u64, now_ms: u64) {
        let current = now_ms / window_ms;
        if self.bucket < current || self.bucket > current + BUCKETS_AHEAD {
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

    /// What a caller sees of it; it must have been rolled to `now_ms`.
    pub(super) fn state(&self, window_ms: u64, now_ms: u64) -> CounterState {
        let end_ms = (self.bucket + 1).saturating_mul(window_ms);
        let reset_ms = end_ms.saturating_sub(now_ms).clamp(1, window_ms);
        CounterState { settled: self.settled, held: self.held, reset: Duration::from_millis(reset_ms) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn charged(now_ms: u64) -> Counter {
        let mut counter = Counter::new(MINUTE, now_ms);
        counter.charge(100);
        counter.hold(20);
        counter
    }

    fn seen(counter: &mut Counter, now_ms: u64) -> (u64, u64, u64) {
        counter.roll(MINUTE, now_ms);
        let state = counter.state(MINUTE, now_ms);
        (state.settled, state.held, state.reset.as_millis() as u64)
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
    fn counts_stop_at_what_every_store_counts_exactly() {
        let mut counter = Counter::new(MINUTE, 0);
        counter.charge(u64::MAX);
        counter.charge(u64::MAX);
        counter.hold(u64::MAX);
        assert_eq!(seen(&mut counter, 0), (MAX_COUNT, MAX_COUNT, MINUTE));
        counter.release(u64::MAX);
        assert_eq!(seen(&mut counter, 0), (MAX_COUNT, 0, MINUTE));
    }
}
