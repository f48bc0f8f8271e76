//! What an operator may say about placement: CacheAffinityPolicy, checked.

use std::sync::Arc;

/// One CacheAffinityPolicy, or the default where none is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffinityPolicy {
    /// `namespace/name`, or `default`.
    pub id: Arc<str>,
    /// How the choice reaches Envoy.
    pub mode: PlacementMode,
    /// A request header (lower case) whose value, where it is sent, is the affinity key instead of the prompt.
    pub session_header: Option<Arc<str>>,
    /// Whether two tenants with the same prompt share a cache.
    pub tenancy: Tenancy,
    /// Whether clients get `x-attache-decision`.
    pub debug_headers: DebugHeaders,
}

impl Default for AffinityPolicy {
    fn default() -> Self {
        Self {
            id: Arc::from("default"),
            mode: PlacementMode::Endpoint,
            session_header: None,
            tenancy: Tenancy::Shared,
            debug_headers: DebugHeaders::Hidden,
        }
    }
}

/// How the choice reaches Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementMode {
    /// A list of `ip:port` within the Backend's one cluster, for Envoy's `override_host`. Needs IP endpoints.
    Endpoint,
    /// One Envoy cluster a replica: for endpoints that are DNS names or Unix sockets.
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
