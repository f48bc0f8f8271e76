//! What a limit is: whom it counts together, what it counts, how much is allowed, and when a request is admitted.

use std::sync::Arc;

use super::{Quantity, Window};

/// One limit of a TokenLimitPolicy, or of a policy that is read as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// `<namespace>/<policy>/<limit>`, unique in a configuration.
    pub id: Arc<str>,
    /// Requests that agree on all of these share one counter; empty: everyone shares it.
    pub per: Vec<Dimension>,
    /// The limit is about requests of which all of these hold; empty: all requests of its routes.
    pub when: Vec<Condition>,
    /// What is counted.
    pub quantity: Quantity,
    /// How much of it is allowed in a window (or at once, for [`Quantity::Concurrency`]), in the quantity's unit. Never 0.
    pub amount: u64,
    /// How much of the amount a caller of low priority may use, in percent: from 1 to 100.
    pub low_priority_percent: u8,
    /// The time it is counted in. For concurrency it only says for how long an idle counter is kept.
    pub window: Window,
    /// When a request is admitted.
    pub mode: Mode,
    /// Whether an answer may cost more than was held for it.
    pub cap: Cap,
    /// The bound of answers whose client sets none, in tokens of each choice, where it is capped; `None` leaves that to us.
    pub default_max_tokens: Option<u64>,
    /// Whether it refuses.
    pub enforcement: Enforcement,
    /// What becomes of requests while the store does not answer.
    pub on_store_error: OnStoreError,
}

/// The largest number that every store counts exactly (Redis scripts compute in doubles); counters stop there.
pub(super) const MAX_COUNT: u64 = (1 << 53) - 1;

impl Limit {
    /// What a request that will probably use `estimate` holds while it is in flight.
    pub fn held(&self, estimate: u64) -> u64 {
        match self.admission() {
            Mode::Soft | Mode::Strict => estimate.min(MAX_COUNT),
            Mode::Check => 0,
        }
    }

    /// Up to where a caller of this priority may use it.
    pub fn ceiling(&self, priority: Priority) -> u64 {
        match priority {
            Priority::Normal => self.amount,
            Priority::Low => {
                let share = u128::from(self.amount) * u128::from(self.low_priority_percent) / 100;
                u64::try_from(share).unwrap_or(self.amount).max(1)
            }
        }
    }

    /// The mode that acts. Requests in flight are always held: they leave no use behind that one could check.
    pub(super) fn admission(&self) -> Mode {
        match (&self.quantity, self.mode) {
            (Quantity::Concurrency, Mode::Check) => Mode::Strict,
            (_, mode) => mode,
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

impl Mode {
    /// Whether a request that would hold `amount` is admitted up to `ceiling`, while `settled` is used and `held` is held.
    ///
    /// The Redis store's script decides the same; one suite runs over both.
    pub fn admits(self, ceiling: u64, settled: u64, held: u64, amount: u64) -> bool {
        match self {
            Self::Soft => settled.saturating_add(held) < ceiling,
            Self::Strict => settled.saturating_add(held).saturating_add(amount) <= ceiling,
            Self::Check => settled < ceiling,
        }
    }
}

/// Whether an answer may cost more than was held for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cap {
    /// It may: what it cost is charged, and the next request pays.
    #[default]
    Open,
    /// It may not: a stream holds more as it grows and ends where no more is to be had, and any other answer is bounded by
    /// `max_tokens`. Only with [`Mode::Strict`].
    Capped,
}

/// Whether a limit refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enforcement {
    /// It does.
    #[default]
    Refuse,
    /// It counts, and what it would have refused is counted too.
    Shadow,
}

/// What becomes of requests while the store does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStoreError {
    /// This sidecar counts by itself, up to its share of what was left when the store was last seen.
    #[default]
    Local,
    /// They are admitted, and charged when the store is back.
    Allow,
    /// They are refused.
    Deny,
}

/// How much a caller's requests matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// Up to the whole limit.
    #[default]
    Normal,
    /// Up to a share of it, so that the rest is there for others.
    Low,
}

/// What requests are counted by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// The caller's key.
    Key,
    /// The caller's tenant.
    Tenant,
    /// A label of the caller's ClientKey, by its name.
    Label(Arc<str>),
    /// The unified endpoint: the route.
    Route,
    /// The model asked for.
    Model,
    /// The model that serves.
    ServedModel,
    /// The class of the model: a label on the backend that serves, or else on the route.
    ModelClass,
    /// The value of a request header, by its lower-case name. Requests without it share one counter, so leaving it out
    /// is no way around the limit.
    Header(Arc<str>),
}

/// Which requests a limit is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// What is looked at.
    pub dimension: Dimension,
    /// What it has to be.
    pub expected: Expected,
}

/// What a value has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// There.
    Present,
    /// This.
    Is(Arc<str>),
    /// Anything but this, or not there.
    IsNot(Arc<str>),
}

#[cfg(test)]
mod tests {
    use super::super::tests::limit;
    use super::*;

    #[test]
    fn soft_admits_while_anything_is_left() {
        assert!(Mode::Soft.admits(300, 299, 0, 10_000));
        assert!(Mode::Soft.admits(300, 200, 99, 10_000));
        assert!(!Mode::Soft.admits(300, 200, 100, 0));
        assert!(!Mode::Soft.admits(300, u64::MAX, u64::MAX, 0));
    }

    #[test]
    fn strict_admits_what_fits() {
        assert!(Mode::Strict.admits(300, 200, 60, 40));
        assert!(!Mode::Strict.admits(300, 200, 60, 41));
        assert!(!Mode::Strict.admits(300, 0, 0, u64::MAX));
    }

    #[test]
    fn check_looks_at_settled_use_alone_and_holds_nothing() {
        assert!(Mode::Check.admits(300, 299, 1_000, 1_000));
        assert!(!Mode::Check.admits(300, 300, 0, 0));
        assert_eq!(limit("a", 300, Mode::Check).held(40), 0);
    }

    #[test]
    fn requests_in_flight_are_held_in_every_mode() {
        for mode in [Mode::Soft, Mode::Strict, Mode::Check] {
            let limit = Limit { quantity: Quantity::Concurrency, ..limit("a", 8, mode) };
            assert_eq!(limit.held(1), 1);
            assert!(limit.admission().admits(8, 0, 7, 1));
            assert!(!limit.admission().admits(8, 0, 8, 1));
        }
    }

    #[test]
    fn a_caller_of_low_priority_is_held_to_its_share_and_never_to_nothing() {
        let ceiling = |amount, percent| {
            Limit { low_priority_percent: percent, ..limit("a", amount, Mode::Soft) }.ceiling(Priority::Low)
        };
        assert_eq!(ceiling(300, 80), 240);
        assert_eq!(ceiling(300, 100), 300);
        assert_eq!(ceiling(1, 1), 1);
        assert_eq!(ceiling(u64::MAX, 50), u64::MAX / 2);
        assert_eq!(limit("a", 300, Mode::Soft).ceiling(Priority::Normal), 300);
    }
}
