//! How much came lately: a sum in which everything counts half as much after each half-life. What came during the last one is
//! half of it, and what is older than five is all but gone.

use std::time::{Duration, Instant};

/// Long enough to be no picture of single prompts, and short enough that one mends within minutes.
const HALF_LIFE: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(super) struct Recent {
    sum: f64,
    /// When the sum was that.
    at: Option<Instant>,
}

impl Recent {
    pub(super) fn add(&mut self, amount: f64, now: Instant) {
        self.sum = self.sum_at(now) + amount;
        self.at = Some(now);
    }

    pub(super) fn sum_at(&self, now: Instant) -> f64 {
        let age = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.sum * (-age.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_counts_half_as_much_after_each_half_life() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        assert_eq!(recent.sum_at(now), 0.0);
        recent.add(800.0, now);
        assert_eq!([0, 1, 3].map(|lives| recent.sum_at(now + HALF_LIFE * lives)), [800.0, 400.0, 100.0]);
        recent.add(100.0, now + HALF_LIFE);
        assert_eq!(recent.sum_at(now + HALF_LIFE * 2), 250.0);
    }
}
