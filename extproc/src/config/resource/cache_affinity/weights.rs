//! `weights` of a CacheAffinityPolicy.

use std::time::Duration;

use crate::affinity::Weights;
use crate::config::fields::{Fields, FromNode, Log};
use crate::config::node::Node;
use crate::config::value::decimal;

/// Where waiting is free at one end, and caches are all that counts at the other.
pub(in crate::config) const MAX_UNCACHED: f64 = 100.0;
/// Between a laptop and what no accelerator computes.
pub(in crate::config) const MAX_TOKENS_PER_SECOND: f64 = 100_000_000.0;
/// A request that waits for longer is lost anyway.
const MAX_DURATION: Duration = Duration::from_secs(3_600);

impl FromNode for Weights {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let default = Self::default();
            let uncached = fields.take_with("uncached", |node, log| decimal(node, log, 0.0, MAX_UNCACHED));
            let rate =
                fields.take_with("prefillTokensPerSecond", |node, log| decimal(node, log, 1.0, MAX_TOKENS_PER_SECOND));
            let far = fields.take_with("far", read_duration);
            let tie = fields.take_with("tie", read_duration);
            Some(Self {
                uncached: uncached.unwrap_or(default.uncached),
                prefill_tokens_per_second: rate.unwrap_or(default.prefill_tokens_per_second),
                far: far.unwrap_or(default.far),
                tie: tie.unwrap_or(default.tie),
            })
        })
    }
}

fn read_duration(node: &Node, log: &mut Log) -> Option<Duration> {
    let duration = Duration::from_node(node, log)?;
    if duration <= MAX_DURATION {
        return Some(duration);
    }
    log.fail(node, "it is longer than an hour", "write what a prompt may wait for, such as `1s` or `100ms`")
}
