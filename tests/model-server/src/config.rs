//! What a simulated model server is like.

use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use crate::prompt::BYTES_PER_TOKEN;

/// What a simulated model server is like. The defaults are quick, for tests.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen, `HOST:PORT`; port 0 takes a free one.
    pub listen: String,
    /// The models that are served, all by one engine; none means that any name is accepted.
    pub models: Vec<String>,
    /// The size of the prefix cache, in tokens.
    pub cache_tokens: u64,
    /// The size of a cache block, in tokens.
    pub block_tokens: NonZeroUsize,
    /// How many uncached prompt tokens are computed in a second.
    pub prefill_tokens_per_second: NonZeroU64,
    /// The time from one token of an answer to the next.
    pub time_per_output_token: Duration,
    /// The length of an answer when the request does not set it, in tokens.
    pub answer_tokens: u64,
    /// The key that `/v1` wants as a bearer token.
    pub api_key: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            models: Vec::new(),
            cache_tokens: 1_000_000,
            block_tokens: NonZeroUsize::MIN.saturating_add(15),
            prefill_tokens_per_second: NonZeroU64::MIN.saturating_add(999_999),
            time_per_output_token: Duration::from_millis(1),
            answer_tokens: 16,
            api_key: None,
        }
    }
}

impl Config {
    pub(crate) fn serves(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|served| served == model)
    }

    /// The name that stands for the engine where there is no request to take one from.
    pub(crate) fn primary_model(&self) -> &str {
        self.models.first().map_or("simulated", String::as_str)
    }

    pub(crate) fn cache_blocks(&self) -> usize {
        usize::try_from(self.cache_tokens).unwrap_or(usize::MAX) / self.block_tokens
    }

    pub(crate) fn block_bytes(&self) -> NonZeroUsize {
        self.block_tokens.saturating_mul(BYTES_PER_TOKEN)
    }

    /// The time that the prefill of so many uncached tokens takes.
    pub(crate) fn prefill_time(&self, uncached_tokens: u64) -> Duration {
        Duration::from_secs_f64(uncached_tokens as f64 / self.prefill_tokens_per_second.get() as f64)
    }
}
