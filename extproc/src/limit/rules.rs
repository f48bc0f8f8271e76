//! What a limit is: whom it counts together, what it counts, how much is allowed, and when a request is admitted.

use std::sync::Arc;
use std::time::Duration;

use attache_proto::Usage;

/// One limit of a TokenLimitPolicy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// `<namespace>/<policy>/<limit>`, unique in a configuration.
    pub id: Arc<str>,
    /// Requests that agree on all of these share one counter; empty: everyone shares it.
    pub per: Vec<Dimension>,
    /// What is counted.
    pub quantity: Quantity,
    /// How much of it is allowed in a window (or at once, for [`Quantity::Concurrency`]). Never 0.
    pub amount: u64,
    /// The window's length, at least a second; aligned to the epoch. For concurrency it only says for how long an idle
    /// counter is kept.
    pub window: Duration,
    /// When a request is admitted.
    pub mode: Mode,
}

/// The largest number that every store counts exactly (Redis scripts compute in doubles); counters stop there.
pub(super) const MAX_COUNT: u64 = (1 << 53) - 1;

impl Limit {
    /// Whether a request that will probably use `estimate` is admitted while `settled` is used and `held` is held.
    ///
    /// The Redis store's script decides the same; one suite runs over both.
    pub fn admits(&self, settled: u64, held: u64, estimate: u64) -> bool {
        match self.admission() {
            Mode::Soft => settled.saturating_add(held) < self.amount,
            Mode::Strict => settled.saturating_add(held).saturating_add(self.held(estimate)) <= self.amount,
            Mode::Check => settled < self.amount,
        }
    }

    /// What a request that will probably use `estimate` holds while it is in flight.
    pub fn held(&self, estimate: u64) -> u64 {
        match self.admission() {
            Mode::Soft | Mode::Strict => estimate.min(MAX_COUNT),
            Mode::Check => 0,
        }
    }

    /// The mode that acts. Requests in flight are always held: they leave no use behind that one could check.
    pub(super) fn admission(&self) -> Mode {
        match (self.quantity, self.mode) {
            (Quantity::Concurrency, Mode::Check) => Mode::Strict,
            (_, mode) => mode,
        }
    }

    /// The window in milliseconds, at least a second and at most about 35 years: a bucket's index fits 32 bits and its end
    /// a double.
    pub(super) fn window_ms(&self) -> u64 {
        u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX).clamp(1_000, 1 << 40)
    }
}

/// What requests are counted by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// The caller's key.
    Key,
    /// The caller's tenant.
    Tenant,
    /// The model asked for.
    Model,
    /// The unified endpoint: the route.
    Endpoint,
    /// The value of a request header, by its lower-case name. Requests without it share one counter, so leaving it out
    /// is no way around the limit.
    Header(Arc<str>),
}

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Tokens of the answer's usage.
    Tokens(Cost),
    /// Requests.
    Requests,
    /// Requests in flight.
    Concurrency,
}

impl Quantity {
    /// What a request has used of this once the model has used `usage`.
    pub fn actual(self, usage: &Usage) -> u64 {
        match self {
            Self::Tokens(cost) => cost.of(usage),
            Self::Requests => 1,
            Self::Concurrency => 0,
        }
    }
}

/// Which tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Prompt tokens.
    Input,
    /// Completion tokens.
    Output,
    /// All of them.
    Total,
    /// Prompt tokens that came from the upstream's cache.
    CachedInput,
    /// Prompt tokens written to the upstream's cache.
    CacheCreationInput,
    /// Completion tokens spent on reasoning.
    Reasoning,
}

impl Cost {
    /// The tokens of this kind in `usage`.
    pub fn of(self, usage: &Usage) -> u64 {
        match self {
            Self::Input => usage.input,
            Self::Output => usage.output,
            Self::Total => usage.total,
            Self::CachedInput => usage.cached_input,
            Self::CacheCreationInput => usage.cache_creation_input,
            Self::Reasoning => usage.reasoning,
        }
    }
}

/// When a request is admitted; S is settled use, H what live reservations hold, e this request's estimate, L the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// S + H < L
    #[default]
    Soft,
    /// S + H + e <= L
    Strict,
    /// S < L: nothing is held, the use is charged afterwards, as Envoy's own limiter does it.
    Check,
}

#[cfg(test)]
mod tests {
    use super::super::tests::limit;
    use super::*;

    #[test]
    fn soft_admits_while_anything_is_left() {
        let limit = limit("a", 300, Mode::Soft);
        assert!(limit.admits(299, 0, 10_000));
        assert!(limit.admits(200, 99, 10_000));
        assert!(!limit.admits(200, 100, 0));
        assert!(!limit.admits(u64::MAX, u64::MAX, 0));
    }

    #[test]
    fn strict_admits_what_fits() {
        let limit = limit("a", 300, Mode::Strict);
        assert!(limit.admits(200, 60, 40));
        assert!(!limit.admits(200, 60, 41));
        assert!(!limit.admits(0, 0, u64::MAX));
    }

    #[test]
    fn check_looks_at_settled_use_alone_and_holds_nothing() {
        let limit = limit("a", 300, Mode::Check);
        assert!(limit.admits(299, 1_000, 1_000));
        assert!(!limit.admits(300, 0, 0));
        assert_eq!(limit.held(40), 0);
    }

    #[test]
    fn requests_in_flight_are_held_in_every_mode() {
        for mode in [Mode::Soft, Mode::Strict, Mode::Check] {
            let limit = Limit { quantity: Quantity::Concurrency, ..limit("a", 8, mode) };
            assert_eq!(limit.held(1), 1);
            assert!(limit.admits(0, 7, 1));
            assert!(!limit.admits(0, 8, 1));
        }
    }

    #[test]
    fn a_window_is_kept_to_what_a_bucket_can_count() {
        let window = |window| Limit { window, ..limit("a", 1, Mode::Soft) }.window_ms();
        assert_eq!(window(Duration::from_secs(60)), 60_000);
        assert_eq!(window(Duration::ZERO), 1_000);
        assert_eq!(window(Duration::MAX), 1 << 40);
    }
}
