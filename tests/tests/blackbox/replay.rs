//! A slice of a trace through real gateways finds as much in the model servers' caches as the simulation says.
//!
//! Both sides run the same slice with the same caches, rates and policy, at the same pace: nothing has to be scaled on one
//! side only. What differs by design is below a point: a model server has blocks of 16 tokens where a trace has 512, wraps
//! prompts in a chat template, and keeps answers, which are short here.

use std::{num::NonZeroU64, time::Duration};

use attache_model_server::Config;
use attache_tests::{
    Client, Gateway, Stack,
    simulation::{Outcome, Policy, Run, Setup, Sharing, figures::ratio, simulate},
    traces::{Request, Shape, Trace, text::prompt},
};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::{
    documents::{pool, route},
    residue,
    verdict::served,
};

/// How much faster the slice goes than the trace that it is taken from. Sidecars tell each other five times a second, and on a
/// busy machine later: the faster, the more turns come before the news of those before them.
const PACE: u32 = 60;
/// One conversation in so many is in the slice.
const ONE_IN: u64 = 12;
/// Bodies stay below 100 kB, so that debug builds on a busy machine keep pace.
const LONGEST_PROMPT: u64 = 24_000;
/// Between two tokens of an answer, as in the simulation.
const TOKEN_INTERVAL: Duration = Duration::from_millis(25);

/// Some of the conversations of twenty minutes, in 20 s. Answers become shorter with the pauses between turns, as they run
/// at the same 25 ms a token.
fn slice() -> Trace {
    let whole = Shape::Conversations.draw_for(Duration::from_secs(1200), 1);
    let origin = whole.origin.clone();
    let fits = |request: &&Request| request.session.is_multiple_of(ONE_IN) && request.input_tokens <= LONGEST_PROMPT;
    let faster = |request: &Request| Request {
        arrival: request.arrival / PACE,
        output_tokens: (request.output_tokens / u64::from(PACE)).max(1),
        ..request.clone()
    };
    let requests = whole.requests.iter().filter(fits).map(faster).collect();
    Trace::new("a slice of conversations", origin, requests)
}

/// Caches that are small enough for blocks to be evicted, and servers that are about half busy. Where conversations have
/// their homes depends on the servers' ports, which are others in each run: by that alone the simulated hit ratio varies
/// with a standard deviation of 0.5 points. With caches of 60,000 tokens it would be 1.2, too much for a bound of 5.
fn setup(policy: Policy, trace: &Trace) -> Setup {
    Setup { cache_tokens: 100_000, prefill_rate: 22_500.0, ..Setup::of(trace, policy) }
}

fn model_server(setup: &Setup) -> Config {
    Config {
        cache_tokens: setup.cache_tokens,
        prefill_tokens_per_second: NonZeroU64::new(setup.prefill_rate as u64).unwrap(),
        time_per_output_token: TOKEN_INTERVAL,
        ..Config::default()
    }
}

fn hit_ratio(run: &Run) -> f64 {
    let sum = |tokens: fn(&Outcome) -> u64| run.outcomes.iter().map(tokens).sum();
    ratio(sum(|outcome| outcome.cached_tokens), sum(|outcome| outcome.input_tokens))
}

/// The prompt's tokens and those of them that were cached, as the answer's usage has them.
async fn ask(client: Client, prompt: String, answer_tokens: u64, at: Instant) -> (u64, u64) {
    sleep_until(at).await;
    // A stream, as the first byte of an answer says that its prefill is over.
    let body = json!({
        "model": "m",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": answer_tokens,
        "stream_options": {"include_usage": true},
    });
    let stream = client.stream_chat(&body).await.unwrap();
    assert_eq!(stream.status, 200);
    let events = stream.rest().await;
    assert!(events.is_done(), "{:?}", events.data.last());
    let usage = events.json().filter_map(|event| event.get("usage").filter(|usage| !usage.is_null()).cloned()).last();
    let usage = usage.unwrap();
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (usage["prompt_tokens"].as_u64().unwrap(), cached)
}

/// Replays the slice and compares.
async fn replay(sharing: Sharing) {
    let trace = slice();
    let setup = |policy| Setup { sharing, ..setup(policy, &trace) };
    let random = hit_ratio(&simulate(&trace, &setup(Policy::Random)));
    let setup = setup(Policy::Ours);
    let simulated = simulate(&trace, &setup);
    let expected = hit_ratio(&simulated);

    let mut builder = Stack::builder(pool() + &route("r", "m", "{name: pool}")).without_wasm();
    for _ in 0..setup.replicas {
        builder = builder.model(model_server(&setup));
    }
    if sharing == Sharing::Shared {
        builder = builder.redis();
    }
    let stack = builder.sidecars(setup.sidecars).start().await.unwrap();
    let clients: Vec<Client> = stack.gateways().map(Gateway::client).collect();

    let start = Instant::now();
    let mut exchanges = Vec::new();
    for ((number, request), outcome) in (0..).zip(&trace.requests).zip(&simulated.outcomes) {
        let client = clients[outcome.sidecar].clone();
        let exchange = ask(client, prompt(request, number), request.output_tokens, start + request.arrival);
        exchanges.push(tokio::spawn(exchange));
    }
    let (mut prompt_tokens, mut cached_tokens) = (0, 0);
    for exchange in exchanges {
        let (prompt, cached) = exchange.await.unwrap();
        prompt_tokens += prompt;
        cached_tokens += cached;
    }

    let requests = trace.requests.len();
    let delivered = ratio(cached_tokens, prompt_tokens);
    let figures = format!(
        "{requests} requests, {sharing:?}: delivered {delivered:.4}, simulated {expected:.4}, at random {random:.4}"
    );
    println!("{figures}");
    assert_eq!(served(&stack), requests as u64, "{figures}");
    assert!((delivered - expected).abs() <= 0.05, "{figures}");
    assert!(delivered >= 2.0 * random, "{figures}");
    residue::none(&stack).await;
}

#[tokio::test]
async fn four_sidecars_that_do_not_talk_find_as_much_in_caches_as_the_simulation_says() {
    replay(Sharing::Apart).await;
}

#[tokio::test]
async fn four_sidecars_that_share_find_as_much_in_caches_as_the_simulation_says() {
    replay(Sharing::Shared).await;
}
