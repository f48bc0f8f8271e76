//! When the store is left alone, and when it is tried again. No I/O: time and outcomes come in.
//!
//! While it is open no request asks the store, so a store that hangs costs its deadline to a few requests and not to all. While
//! it is closed and nobody asks, probes do, so that an outage is seen, and told to whoever watches, before the first request.

use std::time::{Duration, Instant};

/// Failures in a row that open it: on a quick deadline one or two may be late when a store is busy.
const FAILURES: u32 = 5;

/// From one probe to the next while the store answers and nobody else asks it.
const IDLE_PROBE_EVERY: Duration = Duration::from_secs(1);

/// From one probe to the next while it is open, and after a failure: a store that is back is used again within a second, and one that is gone is
/// asked four times a second by each sidecar.
const PROBE_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Breaker {
    /// The store is asked.
    Closed { failures: u32 },
    /// It is not, but for a probe.
    Open { since: Instant, probe_at: Instant },
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self::Closed { failures: 0 }
    }

    /// A request, or a probe while it is closed, got no answer.
    pub(super) fn failed(&mut self, now: Instant) {
        if let Self::Closed { failures } = self {
            *failures += 1;
            if *failures >= FAILURES {
                *self = Self::Open { since: now, probe_at: now + PROBE_EVERY };
            }
        }
    }

    /// A probe got no answer.
    pub(super) fn probe_failed(&mut self, now: Instant) {
        match self {
            Self::Closed { .. } => self.failed(now),
            Self::Open { probe_at, .. } => *probe_at = now + PROBE_EVERY,
        }
    }

    /// A request or a probe was answered.
    pub(super) fn answered(&mut self) {
        *self = Self::new();
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }

    /// When the next probe is due. While it is closed, only if nobody has got an answer by then.
    pub(super) fn probe_at(&self, now: Instant) -> Instant {
        match self {
            Self::Closed { failures: 0 } => now + IDLE_PROBE_EVERY,
            Self::Closed { .. } => now + PROBE_EVERY,
            Self::Open { probe_at, .. } => *probe_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(times: u32, now: Instant) -> Breaker {
        let mut breaker = Breaker::new();
        (0..times).for_each(|_| breaker.failed(now));
        breaker
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_an_answer_in_between_starts_the_row_anew() {
        let now = Instant::now();
        assert!(!failing(4, now).is_open() && failing(5, now).is_open());
        let mut breaker = failing(4, now);
        breaker.answered();
        breaker.failed(now);
        assert_eq!(breaker, Breaker::Closed { failures: 1 });
    }

    #[test]
    fn while_it_is_open_a_probe_is_due_every_250_ms_until_one_is_answered() {
        let opened = Instant::now();
        let mut breaker = failing(5, opened);
        let later = |ms| opened + Duration::from_millis(ms);
        assert_eq!(breaker.probe_at(later(10)), later(250));
        // A request that was on its way when it opened changes nothing.
        breaker.failed(later(10));
        assert_eq!(breaker.probe_at(later(10)), later(250));
        breaker.probe_failed(later(260));
        assert_eq!(breaker.probe_at(later(260)), later(510));
        breaker.answered();
        assert!(!breaker.is_open());
    }

    #[test]
    fn while_nobody_asks_a_probe_is_due_every_second_and_five_that_fail_within_two_open_it() {
        let start = Instant::now();
        let (mut now, mut breaker) = (start, Breaker::new());
        while !breaker.is_open() {
            now = breaker.probe_at(now);
            breaker.probe_failed(now);
        }
        assert_eq!(now, start + Duration::from_millis(1_000 + 4 * 250));
    }
}
