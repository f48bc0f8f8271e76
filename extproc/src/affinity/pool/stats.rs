//! Figures of a pool.

use std::sync::Arc;
use std::time::Instant;

use super::State;
use crate::affinity::decision::Sharing;
use crate::affinity::load::{OwnLoad, Scrape};
use crate::affinity::news::Newsroom;

/// Figures of a pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolStats {
    /// Blocks that the index knows.
    pub index_blocks: usize,
    /// What it takes, in bytes.
    pub index_bytes: usize,
    /// What it may take, in bytes.
    pub index_budget_bytes: usize,
    /// Blocks that had to go for others.
    pub index_evictions: u64,
    /// Tokens of all prompts that were sent.
    pub prompt_tokens: u64,
    /// Tokens of prompts that some endpoint probably held.
    pub available_tokens: u64,
    /// Tokens of prompts that the chosen endpoint probably held.
    pub predicted_tokens: u64,
    /// Tokens of prompts that came from a cache, as answers said.
    pub delivered_tokens: u64,
    /// News that peers were not told, as they were too many.
    pub dropped_news: u64,
    /// Engines that had begun anew, as their answers showed.
    pub restarts: u64,
    /// Whether peers say all that they send, so that what is known here is the whole picture.
    pub is_shared: bool,
    /// Whether metrics pages are read.
    pub is_scraped: bool,
    /// Of each endpoint.
    pub endpoints: Vec<EndpointStats>,
}

/// Figures of one endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointStats {
    /// Its id.
    pub endpoint: Arc<str>,
    /// What this sidecar has under way there.
    pub own: OwnLoad,
    /// Its metrics page, if that is not stale.
    pub page: Option<Scrape>,
    /// How far predictions are believed.
    pub trust: f64,
    /// Its weight among others; below 1 while it starts slowly.
    pub weight: f64,
    /// Bytes of prompts that it is believed to hold.
    pub held_bytes: u64,
    /// Tokens to compute before a new request's, by all that is known: what this sidecar sent, what waits there by its page, what
    /// peers say.
    pub pending_tokens: f64,
    /// Prompt tokens of all requests that this sidecar sent there.
    pub routed_tokens: u64,
    /// The same, of late: what was sent two minutes earlier counts half.
    pub recent_tokens: f64,
}

impl PoolStats {
    /// How unevenly prompts were spread of late: what the busiest endpoint got, in shares of what one got on average. 1 is even, the
    /// number of endpoints is all for one. `None` where nothing was sent of late.
    pub fn imbalance(&self) -> Option<f64> {
        /// Less than a prompt of one token, long ago.
        const NOTHING: f64 = 1.0;
        let recent = || self.endpoints.iter().map(|endpoint| endpoint.recent_tokens);
        let sum: f64 = recent().sum();
        let mean = sum / self.endpoints.len() as f64;
        (sum >= NOTHING).then(|| recent().fold(0.0, f64::max) / mean)
    }
}

impl State {
    pub(super) fn stats(&self, now: Instant) -> PoolStats {
        let endpoints = self.members.iter().map(|member| EndpointStats {
            endpoint: Arc::clone(&member.endpoint.id),
            own: member.load.own(),
            page: member.load.page(now),
            trust: member.trust,
            weight: member.weight(now),
            held_bytes: member.ages.bytes(),
            pending_tokens: member.load.pending_tokens(self.average_uncached, self.sharing(now), now),
            routed_tokens: member.routed_tokens,
            recent_tokens: member.recent_tokens.sum_at(now),
        });
        PoolStats {
            index_blocks: self.index.len(),
            index_bytes: self.index.bytes(),
            index_budget_bytes: self.policy.index_bytes,
            index_evictions: self.index.evictions(),
            prompt_tokens: self.totals.prompt as u64,
            available_tokens: self.totals.available as u64,
            predicted_tokens: self.totals.predicted as u64,
            delivered_tokens: self.totals.delivered as u64,
            dropped_news: self.newsroom.as_ref().map_or(0, Newsroom::dropped),
            restarts: self.totals.restarts,
            is_shared: self.sharing(now) == Sharing::Live,
            is_scraped: self.policy.scraping.is_some(),
            endpoints: endpoints.collect(),
        }
    }
}
