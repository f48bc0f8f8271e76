//! A model server: one prefill at a time, first come first served, then an answer of a token each 25 ms.
//!
//! Which tokens are cached is decided when a prefill starts; its blocks are cached when it ends. Answers do not slow each other.

use std::{collections::VecDeque, time::Duration};

use super::cache::BlockCache;
use crate::traces::Request;

/// Between two tokens of an answer.
pub(super) const DECODE: Duration = Duration::from_millis(25);

/// What a replica's metrics page says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scrape {
    /// Requests whose prefill has not started.
    pub waiting: u64,
    /// Requests in prefill or answer.
    pub running: u64,
    /// The share of the cache that running requests hold, at most 1.
    pub kv_usage: f64,
    /// The size of the cache.
    pub capacity_tokens: u64,
}

#[derive(Debug)]
pub(super) struct Replica {
    cache: BlockCache,
    capacity_tokens: u64,
    prefill_rate: f64,
    waiting: VecDeque<usize>,
    prefilling: Option<usize>,
    running: u64,
    /// Prompt and answer tokens of what runs, each counted for itself though some are the same.
    running_tokens: u64,
    up: bool,
}

/// A prefill that has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefill {
    pub(super) request: usize,
    pub(super) cached_tokens: u64,
    pub(super) takes: Duration,
}

impl Replica {
    pub(super) fn new(cache_tokens: u64, prefill_rate: f64) -> Self {
        Self {
            cache: BlockCache::new(cache_tokens),
            capacity_tokens: cache_tokens,
            prefill_rate,
            waiting: VecDeque::new(),
            prefilling: None,
            running: 0,
            running_tokens: 0,
            up: true,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    pub(super) fn scrape(&self) -> Option<Scrape> {
        let kv_usage = (self.running_tokens as f64 / self.capacity_tokens.max(1) as f64).min(1.0);
        self.up.then_some(Scrape {
            waiting: self.waiting.len() as u64,
            running: self.running,
            kv_usage,
            capacity_tokens: self.capacity_tokens,
        })
    }

    pub(super) fn enqueue(&mut self, request: usize) {
        self.waiting.push_back(request);
    }

    /// Begins the next prefill if none is under way.
    pub(super) fn next_prefill(&mut self, requests: &[Request]) -> Option<Prefill> {
        if self.prefilling.is_some() {
            return None;
        }
        let number = self.waiting.pop_front()?;
        let request = requests.get(number)?;
        self.prefilling = Some(number);
        self.running += 1;
        self.running_tokens += kv_tokens(request);
        let cached_tokens = self.cache.matched_tokens(&request.blocks, request.input_tokens);
        let uncached = request.input_tokens - cached_tokens;
        let takes = Duration::from_secs_f64(uncached as f64 / self.prefill_rate);
        Some(Prefill { request: number, cached_tokens, takes })
    }

    pub(super) fn prefilled(&mut self, request: &Request) {
        self.prefilling = None;
        self.cache.touch(&request.blocks);
    }

    pub(super) fn answered(&mut self, request: &Request) {
        self.running = self.running.saturating_sub(1);
        self.running_tokens = self.running_tokens.saturating_sub(kv_tokens(request));
    }

    /// All that it had is gone.
    pub(super) fn go_down(&mut self) {
        self.cache.clear();
        self.waiting.clear();
        self.prefilling = None;
        (self.running, self.running_tokens) = (0, 0);
        self.up = false;
    }

    pub(super) fn come_up(&mut self) {
        self.up = true;
    }
}

fn kv_tokens(request: &Request) -> u64 {
    request.input_tokens.saturating_add(request.output_tokens)
}
