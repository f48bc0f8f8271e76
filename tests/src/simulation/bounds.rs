//! What no placement can exceed: one cache for all, and a cache without end.

use std::collections::HashSet;

use super::cache::BlockCache;
use crate::traces::{BLOCK_TOKENS, Trace};

/// The cached tokens of each request of a trace, had all requests gone to one cache in the order of their arrival.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// One LRU cache as large as those of all replicas together.
    pub pooled: Vec<u64>,
    /// A cache that forgets nothing.
    pub infinite: Vec<u64>,
}

impl Bounds {
    /// Those of `trace`; the pooled cache holds `pooled_tokens`.
    pub fn of(trace: &Trace, pooled_tokens: u64) -> Self {
        let mut pool = BlockCache::new(pooled_tokens);
        let mut seen = HashSet::new();
        let (mut pooled, mut infinite) = (Vec::new(), Vec::new());
        for request in &trace.requests {
            pooled.push(pool.matched_tokens(&request.blocks, request.input_tokens));
            pool.touch(&request.blocks);
            let known = request.blocks.partition_point(|block| seen.contains(block)) as u64;
            infinite.push((known * BLOCK_TOKENS).min(request.input_tokens));
            seen.extend(request.blocks.iter().copied());
        }
        Self { pooled, infinite }
    }
}
