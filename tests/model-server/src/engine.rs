//! The simulated GPU: one prefill at a time, first come first served; then a token each interval for every sequence that runs.
//!
//! A prefill takes as long as the prompt's uncached tokens need. A sequence that is dropped, because its client left, leaves the queue, the gauges
//! and the GPU at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Instant, sleep_until};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Config,
    cache::{Chain, PrefixCache},
    metrics::{Figures, Held},
    pause::pause,
    prompt::{END_OF_MESSAGE, Prompt},
};

/// The engine behind all models of a server.
#[derive(Debug)]
pub(crate) struct Engine {
    config: Arc<Config>,
    figures: Arc<Figures>,
    cache: Mutex<PrefixCache>,
    /// Held during a prefill. Tokio's mutex is fair: the queue is its own.
    gpu: tokio::sync::Mutex<()>,
}

impl Engine {
    pub(crate) fn new(config: Arc<Config>, figures: Arc<Figures>) -> Self {
        let cache = Mutex::new(PrefixCache::new(config.cache_blocks()));
        Self { config, figures, cache, gpu: tokio::sync::Mutex::new(()) }
    }

    /// Waits for the GPU, computes the prompt and returns the sequence that is about to yield its first token. Requests share cached blocks only if
    /// they have the same `cache_salt`.
    pub(crate) async fn prefill(self: &Arc<Self>, prompt: &Prompt, cache_salt: &str, plan: Plan) -> Sequence {
        let waiting = self.figures.waiting.hold(1);
        let _gpu = self.gpu.lock().await;
        drop(waiting);
        let running = self.figures.running.hold(1);
        let prompt_tokens = prompt.tokens();
        let occupied = self.figures.occupied_tokens.hold(prompt_tokens + plan.tokens());

        let mut chain = Chain::new(self.config.block_bytes(), xxh3_64(cache_salt.as_bytes()));
        chain.extend(prompt.as_bytes());
        let cached_tokens = self.cached_tokens(&chain, prompt_tokens);
        self.figures.prompt_tokens.add(prompt_tokens);
        self.figures.queried_tokens.add(prompt_tokens);
        self.figures.hit_tokens.add(cached_tokens);

        pause(self.config.prefill_time(prompt_tokens - cached_tokens)).await;
        self.cache().insert(&chain);
        Sequence {
            engine: Arc::clone(self),
            prompt_tokens,
            cached_tokens,
            plan,
            chain,
            next_token_at: Instant::now(),
            _running: running,
            _occupied: occupied,
        }
    }

    /// vLLM's rule: whole blocks, and at least one token is left to compute, as the first token of the answer comes from it.
    fn cached_tokens(&self, chain: &Chain, prompt_tokens: u64) -> u64 {
        let block_tokens = self.config.block_tokens.get() as u64;
        let held = self.cache().held(chain) as u64;
        held.min(prompt_tokens.saturating_sub(1) / block_tokens) * block_tokens
    }

    fn cache(&self) -> MutexGuard<'_, PrefixCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a prompt's answers will take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// How many answers are generated side by side.
    pub(crate) choices: u64,
    /// The length of each.
    pub(crate) answer_tokens: u64,
}

impl Plan {
    fn tokens(self) -> u64 {
        self.choices.saturating_mul(self.answer_tokens)
    }
}

/// A prompt that has been computed and whose answers are being generated.
#[derive(Debug)]
pub(crate) struct Sequence {
    engine: Arc<Engine>,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    plan: Plan,
    chain: Chain,
    next_token_at: Instant,
    _running: Held,
    _occupied: Held,
}

impl Sequence {
    /// Waits until every choice has its next token. The first is there when the prefill ends.
    pub(crate) async fn next_token(&mut self) {
        if self.next_token_at > Instant::now() {
            sleep_until(self.next_token_at).await;
        }
        self.next_token_at += self.engine.config.time_per_output_token;
        self.engine.figures.generated_tokens.add(self.plan.choices);
    }

    /// Leaves the GPU. The answers stay in the cache, for the conversation's next request.
    pub(crate) fn finish<'a>(self, answers: impl IntoIterator<Item = &'a str>) {
        for answer in answers {
            let mut chain = self.chain.clone();
            chain.extend(answer.as_bytes());
            chain.extend(END_OF_MESSAGE.as_bytes());
            self.engine.cache().insert(&chain);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        num::{NonZeroU64, NonZeroUsize},
        time::Duration,
    };

    use futures_util::FutureExt as _;
    use serde_json::json;

    use super::*;

    const ONE_ANSWER: Plan = Plan { choices: 1, answer_tokens: 4 };

    fn engine() -> (Arc<Engine>, Arc<Figures>) {
        let config = Config {
            cache_tokens: 64,
            block_tokens: NonZeroUsize::new(4).unwrap(),
            prefill_tokens_per_second: NonZeroU64::new(1_000).unwrap(),
            time_per_output_token: Duration::from_millis(10),
            ..Config::default()
        };
        let figures = Arc::new(Figures::default());
        (Arc::new(Engine::new(Arc::new(config), Arc::clone(&figures))), figures)
    }

    /// A prompt of so many tokens, all alike, unlike those of another letter.
    fn prompt(letter: &str, tokens: usize) -> Prompt {
        Prompt::all_from(&json!(letter.repeat(tokens * 4))).unwrap().remove(0)
    }

    #[tokio::test(start_paused = true)]
    async fn a_prefill_takes_the_time_of_its_uncached_tokens() {
        let (engine, _) = engine();
        let start = Instant::now();
        let first = engine.prefill(&prompt("a", 30), "", ONE_ANSWER).await;
        assert_eq!((first.prompt_tokens, first.cached_tokens), (30, 0));
        assert_eq!(start.elapsed(), Duration::from_millis(30));
        let again = engine.prefill(&prompt("a", 30), "", ONE_ANSWER).await;
        assert_eq!(again.cached_tokens, 28);
        assert_eq!(start.elapsed(), Duration::from_millis(32));
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_prompt_that_is_cached_whole_the_last_block_is_computed_again() {
        let (engine, _) = engine();
        engine.prefill(&prompt("a", 8), "", ONE_ANSWER).await;
        assert_eq!(engine.prefill(&prompt("a", 8), "", ONE_ANSWER).await.cached_tokens, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn another_salt_finds_nothing() {
        let (engine, _) = engine();
        engine.prefill(&prompt("a", 8), "", ONE_ANSWER).await;
        assert_eq!(engine.prefill(&prompt("a", 8), "pepper", ONE_ANSWER).await.cached_tokens, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn prefills_queue_and_tokens_flow_side_by_side() {
        let (engine, figures) = engine();
        let start = Instant::now();
        let (first, second) = (prompt("a", 20), prompt("b", 20));
        let run = async |prompt: &Prompt| {
            let mut sequence = engine.prefill(prompt, "", ONE_ANSWER).await;
            let prefilled = start.elapsed();
            for _ in 0..4 {
                sequence.next_token().await;
            }
            (prefilled, start.elapsed())
        };
        let (first, second, ()) = tokio::join!(run(&first), run(&second), async {
            assert_eq!((figures.waiting.value(), figures.running.value()), (1, 1));
        });
        let ms = Duration::from_millis;
        assert_eq!((first, second), ((ms(20), ms(50)), (ms(40), ms(70))));
        assert_eq!(figures.generated_tokens.value(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sequence_that_is_dropped_leaves_the_queue_and_the_gauges() {
        let (engine, figures) = engine();
        let (first, second) = (prompt("a", 20), prompt("b", 20));
        let mut running = Box::pin(engine.prefill(&first, "", ONE_ANSWER));
        let mut waiting = Box::pin(engine.prefill(&second, "", ONE_ANSWER));
        assert!((&mut running).now_or_never().is_none());
        assert!((&mut waiting).now_or_never().is_none());
        assert_eq!((figures.waiting.value(), figures.running.value(), figures.occupied_tokens.value()), (1, 1, 24));
        drop(running);
        waiting.await;
        assert_eq!((figures.waiting.value(), figures.running.value(), figures.occupied_tokens.value()), (0, 0, 0));
        assert_eq!(engine.prefill(&first, "", ONE_ANSWER).await.cached_tokens, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_cached_for_the_conversations_next_request() {
        let (engine, _) = engine();
        let sequence = engine.prefill(&prompt("a", 4), "", Plan { choices: 1, answer_tokens: 4 }).await;
        sequence.finish(["bbbbbbbbbbbbbbbb"]);
        let next = Prompt::all_from(&json!("aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb<|end|>\nmore")).unwrap().remove(0);
        assert_eq!(engine.prefill(&next, "", ONE_ANSWER).await.cached_tokens, 8);
    }
}
