//! What an operator may say about placement: CacheAffinityPolicy, checked.

use std::sync::Arc;
use std::time::Duration;

use super::prefix::Canon;
use super::scraping::Scraping;

/// One CacheAffinityPolicy, or the default where none is attached.
#[derive(Debug, Clone, PartialEq)]
pub struct AffinityPolicy {
    /// `namespace/name`, or `default`.
    pub id: Arc<str>,
    /// How the choice reaches Envoy.
    pub mode: PlacementMode,
    /// What a choice goes by.
    pub basis: Basis,
    /// A request header (lower case) whose value, where it is sent, is the affinity key instead of the prompt.
    pub session_header: Option<Arc<str>>,
    /// Whether two tenants with the same prompt share a cache.
    pub tenancy: Tenancy,
    /// How prompts are read: what of them differs from request to request, and how much of them is looked at.
    pub canon: Canon,
    /// What a choice weighs.
    pub weights: Weights,
    /// The most memory that the pool's index takes, in bytes.
    pub index_bytes: usize,
    /// Tokens that one replica's cache has room for; where this is not said, its metrics page is believed.
    pub cache_tokens: Option<u64>,
    /// How the replicas' metrics pages are read; `None` where they are not.
    pub scraping: Option<Scraping>,
    /// Whether clients get `x-attache-decision`.
    pub debug_headers: DebugHeaders,
}

impl Default for AffinityPolicy {
    fn default() -> Self {
        Self {
            id: Arc::from("default"),
            mode: PlacementMode::Endpoint,
            basis: Basis::Prefix,
            session_header: None,
            tenancy: Tenancy::Shared,
            canon: Canon::default(),
            weights: Weights::default(),
            index_bytes: 64 * 1024 * 1024,
            cache_tokens: None,
            scraping: Some(Scraping::default()),
            debug_headers: DebugHeaders::Hidden,
        }
    }
}

impl AffinityPolicy {
    /// What of it concerns the pool, which two AIServiceBackends may share: the rest is each request's own.
    pub fn pool_part(&self) -> impl PartialEq + '_ {
        (self.basis, self.weights, self.index_bytes, self.cache_tokens, &self.scraping)
    }
}

/// What a choice goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// What the replicas probably have in cache, and how busy they are.
    Prefix,
    /// The key alone, whatever anybody holds or has to do: the same replica for the same key, always.
    KeyOnly,
}

/// What a choice weighs against each other. The defaults were found on four traces of requests (see README) and need no tuning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// How much a token of this prompt that is not in cache counts, beside one that waits already: computing it takes the
    /// replica from those who come after, and their caches with it.
    pub uncached: f64,
    /// Tokens of prompt that one replica computes in a second.
    pub prefill_tokens_per_second: f64,
    /// What it costs to go away from the two replicas that all sidecars would look at first, while they do not tell each other
    /// what they do.
    pub far: Duration,
    /// Costs that are no further apart than this are equal.
    pub tie: Duration,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            uncached: 15.0,
            prefill_tokens_per_second: 10_000.0,
            far: Duration::from_secs(1),
            tie: Duration::from_millis(100),
        }
    }
}

/// How the choice reaches Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementMode {
    /// A list of `ip:port` within the Backend's one cluster, for Envoy's `override_host`. A DNS name
    /// stands for all of its addresses, each a replica. Unix sockets have none.
    Endpoint,
    /// One Envoy cluster a replica: for Unix sockets, and for names that are to be one replica each.
    Cluster,
}

/// Whether the tenant is part of a prefix's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenancy {
    /// Equal prompts of different tenants are one prefix.
    Shared,
    /// They are not.
    Isolated,
}

/// Whether the decision is told to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugHeaders {
    /// It stays inside.
    Hidden,
    /// In `x-attache-decision`.
    Shown,
}
