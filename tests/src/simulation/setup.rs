//! What one run is made of.

use std::time::Duration;

use crate::traces::Trace;

/// The servers, the sidecars, how they place, and what goes wrong meanwhile.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// How requests are placed.
    pub policy: Policy,
    /// Model servers of one model.
    pub replicas: usize,
    /// Sidecars in front of them; each request comes through one of them.
    pub sidecars: usize,
    /// The KV cache of a replica.
    pub cache_tokens: u64,
    /// How many tokens a replica prefills in a second.
    pub prefill_rate: f64,
    /// Whether sidecars hear of each other.
    pub sharing: Sharing,
    /// What happens at half time.
    pub incident: Incident,
    /// How long a metrics page takes to arrive.
    pub scrape_delay: Duration,
    /// Which requests meet which sidecar, and every other chance.
    pub seed: u64,
}

impl Setup {
    /// Eight replicas of a million tokens behind four sidecars that do not talk, at the prefill rate that suits `trace`.
    pub fn of(trace: &Trace, policy: Policy) -> Self {
        Self {
            policy,
            replicas: 8,
            sidecars: 4,
            cache_tokens: 1_000_000,
            prefill_rate: prefill_rate(trace),
            sharing: Sharing::Apart,
            incident: Incident::None,
            scrape_delay: Duration::from_millis(20),
            seed: 1,
        }
    }
}

/// What the servers of such a trace prefill in a second: agents' prompts, of 80,000 tokens, need faster ones than
/// conversations do.
fn prefill_rate(trace: &Trace) -> f64 {
    if trace.mean_input_tokens() > 40_000.0 { 25_000.0 } else { 10_000.0 }
}

/// How requests are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Anywhere.
    Random,
    /// In turn.
    RoundRobin,
    /// Where this sidecar has the fewest requests under way.
    LeastRequests,
    /// Where the fewest requests wait and run by the metrics page, and this sidecar's since.
    LeastRequestsScraped,
    /// By the hash of the first block.
    FirstBlockHash,
    /// By the hash of the first block, but never beyond 125 % of the mean of this sidecar's requests under way.
    BoundedLoadHash,
    /// Where the longest part of the prompt was sent before, whatever the load.
    LongestMatch,
    /// Queue 2, KV cache use 2, prefix 3: the default of the Gateway API inference extension.
    Scorer,
    /// The production decision.
    Ours,
}

impl Policy {
    /// Every one.
    pub const ALL: [Self; 9] = [
        Self::Random,
        Self::RoundRobin,
        Self::LeastRequests,
        Self::LeastRequestsScraped,
        Self::FirstBlockHash,
        Self::BoundedLoadHash,
        Self::LongestMatch,
        Self::Scorer,
        Self::Ours,
    ];

    /// What tables call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round robin",
            Self::LeastRequests => "least requests, own",
            Self::LeastRequestsScraped => "least requests, scraped",
            Self::FirstBlockHash => "first-block consistent hash",
            Self::BoundedLoadHash => "bounded-load hash 125 %",
            Self::LongestMatch => "longest match, no load term",
            Self::Scorer => "queue 2 / kv 2 / prefix 3",
            Self::Ours => "ours",
        }
    }
}

/// Whether sidecars hear of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// They do not talk.
    Apart,
    /// They share where prefixes went and how much they have under way.
    Shared,
}

/// What happens at half time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incident {
    /// Nothing.
    None,
    /// The first sidecar starts again and knows nothing.
    SidecarRestart,
    /// All sidecars start again at the same time.
    AllSidecarsRestart,
    /// The first replica goes away and comes back with an empty cache.
    ReplicaLoss,
    /// One more replica comes, and its cache is empty.
    ScaleUp,
}

impl Incident {
    /// How long a replica that goes away stays away: a process that loads its weights again.
    pub const OUTAGE: Duration = Duration::from_secs(120);

    /// What happens afterwards is looked at for this long.
    pub const AFTERMATH: Duration = Duration::from_secs(300);

    /// What tables call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::SidecarRestart => "one sidecar restarts",
            Self::AllSidecarsRestart => "all sidecars restart",
            Self::ReplicaLoss => "a replica is lost for 2 min",
            Self::ScaleUp => "a replica is added",
        }
    }
}
