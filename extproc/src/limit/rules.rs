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
    /// The window's length; aligned to the epoch. For concurrency it is the reset that callers are told.
    pub window: Duration,
    /// When a request is admitted.
    pub mode: Mode,
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
