//! One budget, four sidecars, 128 requests in flight: what the modes promise of it (limits.md, section 7), seen from outside.
//!
//! Every gateway is an Envoy and a sidecar of its own; all have their ledger in one Redis. What is settled and held there is
//! read by the test itself.

use std::{collections::BTreeMap, time::Duration};

use attache::limit::CounterState;
use attache_model_server::Config as ModelConfig;
use attache_tests::{Answer, Client, Counters, EventStream, Stack, until};
use futures_util::future::{join_all, select};
use redis::AsyncCommands as _;
use serde_json::{Value, json};

use crate::{
    documents::{key, limits, pool, route},
    residue,
    verdict::served,
};

const GATEWAYS: usize = 4;
const IN_FLIGHT: usize = 128;

/// No test runs over the boundary of one as long as this, but once in 300 days.
const WINDOW: &str = "window: 300d";

/// Calls cost from 29 to 40 tokens.
const CHEAPEST: u64 = 29;
const DEAREST: u64 = 40;

/// What the model server counts of the prompt. It is all that an estimate can miss: answers are as long as they may be.
const PROMPT: u64 = 9;

/// A route for each of these limits, of its name, and a key for all of them.
fn documents(of_limits: &[(&str, String)]) -> String {
    let mut documents = pool();
    for (name, limit) in of_limits {
        documents += &route(name, name, "{name: pool}");
        documents += &limits(name, &format!("{{name: limit, {limit}}}"));
    }
    let routes: Vec<_> = of_limits.iter().map(|(name, _)| *name).collect();
    documents + &key("a", "acme", &routes.join(", "))
}

/// Four gateways on one Redis, in front of one model server that takes a while.
async fn stack(of_limits: &[(&str, String)]) -> Stack {
    let model = ModelConfig { time_per_output_token: Duration::from_millis(5), ..ModelConfig::default() };
    let stack = Stack::builder(documents(of_limits)).model(model).without_wasm().sidecars(GATEWAYS).redis();
    stack.start().await.unwrap()
}

fn clients(stack: &Stack) -> Vec<Client> {
    stack.gateways().map(|gateway| gateway.client().with_key("sk-a")).collect()
}

fn chat(model: &str, tokens: u64) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": tokens - PROMPT})
}

fn remaining(answer: &Answer) -> u64 {
    answer.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap()
}

async fn state(counters: &Counters, name: &str) -> CounterState {
    counters.state(&format!("{name}-limits/limit"), "a", "acme").await.unwrap()
}

/// What is settled when nothing is under way any more. That nothing is held then is I6.
async fn settled(stack: &Stack, counters: &Counters, name: &str) -> u64 {
    let mut found = None;
    let waited = until("nothing was under way", async || {
        for gateway in stack.gateways() {
            let metrics = gateway.sidecar.metrics().await.unwrap();
            if metrics.sum("attache_in_flight", &[]) + metrics.sum("attache_store_queue", &[]) > 0.0 {
                return false;
            }
        }
        let state = state(counters, name).await;
        found = Some(state);
        state.held == 0
    });
    if let Err(error) = waited.await {
        panic!("{error}: {name}: {found:?}");
    }
    found.unwrap().used()
}

/// What a rush of 128 callers led to.
struct Rush {
    /// What each admitted call was shown before it, and what its answer says it cost.
    admitted: Vec<(u64, u64)>,
    /// The most that was settled and held at any moment that was looked at.
    peak: u64,
    settled: u64,
}

/// 128 callers, 32 at each gateway, call until they are refused.
async fn rush(stack: &Stack, counters: &Counters, name: &str) -> Rush {
    let clients = clients(stack);
    let caller = async |index: usize| {
        let mut admitted = Vec::new();
        loop {
            let tokens = CHEAPEST + (index + admitted.len()) as u64 % (DEAREST - CHEAPEST + 1);
            let answer = clients[index % GATEWAYS].chat(&chat(name, tokens)).await.unwrap();
            if answer.status != 200 {
                assert_eq!((answer.status, remaining(&answer)), (429, 0), "{}", answer.text());
                return admitted;
            }
            let cost = answer.json().unwrap()["usage"]["total_tokens"].as_u64().unwrap();
            admitted.push((remaining(&answer), cost));
        }
    };
    let mut peak = 0;
    let watch = async {
        loop {
            let state = state(counters, name).await;
            peak = peak.max(state.used() + state.held);
        }
    };
    let callers = join_all((0..IN_FLIGHT).map(caller));
    let admitted = match select(Box::pin(callers), Box::pin(watch)).await {
        futures_util::future::Either::Left((admitted, _)) => admitted.into_iter().flatten().collect(),
        futures_util::future::Either::Right(_) => unreachable!("it watches for ever"),
    };
    assert!(peak > 0, "nobody looked while it went on");
    Rush { admitted, peak, settled: settled(stack, counters, name).await }
}

/// How many requests can be held within a limit at most.
fn held_at_once(limit: u64) -> u64 {
    (limit / (CHEAPEST - PROMPT) + 1).min(IN_FLIGHT as u64)
}

const LIMITS: [u64; 2] = [300, 10_000];

/// One limit of each size.
fn of_mode(mode: &str) -> Vec<(&'static str, String)> {
    ["small", "large"]
        .into_iter()
        .zip(LIMITS)
        .map(|(name, limit)| (name, format!("per: [key], limit: {limit}, {WINDOW}, {mode}")))
        .collect()
}

/// What every mode promises: all that answers say is charged once (I5, I15).
fn assert_charged_once(rush: &Rush) {
    assert_eq!(rush.settled, rush.admitted.iter().map(|(_, cost)| cost).sum::<u64>());
}

/// I2, I3, I5, I6, I10.
#[tokio::test]
async fn soft_admits_while_anything_is_left_and_exceeds_a_shared_limit_by_what_is_in_flight_at_most() {
    let of_limits = of_mode("mode: soft");
    let stack = stack(&of_limits).await;
    let counters = stack.counters().unwrap();
    for ((name, _), limit) in of_limits.iter().zip(LIMITS) {
        let rush = rush(&stack, &counters, name).await;
        assert!(rush.admitted.iter().all(|(left, _)| (1..=limit).contains(left)), "{:?}", rush.admitted);
        assert_charged_once(&rush);
        let bound = limit - 1 + DEAREST + PROMPT * held_at_once(limit);
        assert!((limit..=bound).contains(&rush.settled), "{} of {limit}, at most {bound}", rush.settled);
    }
}

/// I3, I5, I6, where estimates miss what the template adds to a prompt.
#[tokio::test]
async fn strict_exceeds_a_shared_limit_by_what_its_estimates_missed_at_most() {
    let of_limits = of_mode("mode: strict");
    let stack = stack(&of_limits).await;
    let counters = stack.counters().unwrap();
    for ((name, _), limit) in of_limits.iter().zip(LIMITS) {
        let rush = rush(&stack, &counters, name).await;
        assert_charged_once(&rush);
        let bound = limit + PROMPT * held_at_once(limit);
        assert!((limit - DEAREST..=bound).contains(&rush.settled), "{} of {limit}, at most {bound}", rush.settled);
        assert!(rush.peak <= bound, "{} of {limit}, at most {bound}", rush.peak);
    }
}

/// I1, I3, I5, I6, where estimates are exact.
#[tokio::test]
async fn strict_never_holds_and_settles_more_than_a_shared_limit_in_sum() {
    let of_limits = of_mode("mode: strict, cost: output");
    let stack = stack(&of_limits).await;
    let counters = stack.counters().unwrap();
    for ((name, _), limit) in of_limits.iter().zip(LIMITS) {
        let rush = rush(&stack, &counters, name).await;
        assert!(rush.peak <= limit, "{} of {limit}", rush.peak);
        let output: u64 = rush.admitted.iter().map(|(_, cost)| cost - PROMPT).sum();
        assert_eq!(rush.settled, output);
        assert!((limit - DEAREST..=limit).contains(&rush.settled), "{} of {limit}", rush.settled);
    }
}

/// I1, I3, I5, I6.
#[tokio::test]
async fn with_a_cap_a_shared_limit_is_never_exceeded_by_one_token() {
    let of_limits = of_mode("mode: strict, cap: true");
    let stack = stack(&of_limits).await;
    let counters = stack.counters().unwrap();
    for ((name, _), limit) in of_limits.iter().zip(LIMITS) {
        let rush = rush(&stack, &counters, name).await;
        assert_charged_once(&rush);
        assert!(rush.peak <= limit, "{} of {limit}", rush.peak);
        assert!((limit / 2..=limit).contains(&rush.settled), "{} of {limit}", rush.settled);
    }
}

/// Opens 128 streams of 40 tokens, 32 at each gateway, slow enough for all of them to live at one time.
async fn open_streams(stack: &Stack, name: &str) -> Vec<EventStream> {
    let clients: Vec<_> =
        clients(stack).into_iter().map(|client| client.with_header("x-sim-fault", "slow=250")).collect();
    let mut body = chat(name, DEAREST);
    body["stream_options"] = json!({"include_usage": true});
    let open = async |index: usize| clients[index % GATEWAYS].stream_chat(&body).await.unwrap();
    join_all((0..IN_FLIGHT).map(open)).await
}

/// Reads all of them to their ends; says what they cost.
async fn finish(streams: Vec<EventStream>) -> u64 {
    let finish = async |stream: EventStream| {
        let events = stream.rest().await;
        assert!(events.is_done(), "{:?}", events.end);
        events.json().filter_map(|event| event["usage"]["total_tokens"].as_u64()).last().unwrap()
    };
    join_all(streams.into_iter().map(finish)).await.into_iter().sum()
}

/// The mode that Envoy's own limiter has, as a measure for the others.
#[tokio::test]
async fn check_lets_everything_through_that_is_in_flight() {
    let of_limits = [("m", format!("per: [key], limit: 300, {WINDOW}, mode: check"))];
    let stack = stack(&of_limits).await;
    let counters = stack.counters().unwrap();
    let streams = open_streams(&stack, "m").await;
    assert!(streams.iter().all(|stream| stream.status == 200));
    let cost = finish(streams).await;
    assert_eq!(cost, DEAREST * IN_FLIGHT as u64);
    assert_eq!(settled(&stack, &counters, "m").await, cost);
    for client in clients(&stack) {
        let refused = client.chat(&chat("m", CHEAPEST)).await.unwrap();
        assert_eq!((refused.status, remaining(&refused)), (429, 0));
    }
}

/// I6.
#[tokio::test]
async fn what_is_held_is_the_sum_of_what_is_in_flight_at_all_gateways() {
    let of_limits = [("m", format!("per: [key], limit: 10000, {WINDOW}, mode: strict, cost: output"))];
    let stack = stack(&of_limits).await;
    let counters = stack.counters().unwrap();
    let streams = open_streams(&stack, "m").await;
    assert!(streams.iter().all(|stream| stream.status == 200));
    let all = (DEAREST - PROMPT) * IN_FLIGHT as u64;
    let now = state(&counters, "m").await;
    assert_eq!((now.used(), now.held), (0, all));
    finish(streams).await;
    assert_eq!(settled(&stack, &counters, "m").await, all);
}

/// I16. Calls of 29 to 40 tokens, each with what was left of 300 before it.
#[tokio::test]
async fn the_table_of_ten_calls_is_the_same_at_four_gateways() {
    const LAB: [(u64, u64); 10] =
        [(40, 300), (29, 260), (30, 231), (31, 201), (32, 170), (29, 138), (30, 109), (29, 79), (30, 50), (40, 20)];
    let stack = stack(&[("m", format!("per: [key], limit: 300, {WINDOW}"))]).await;
    let counters = stack.counters().unwrap();
    let clients = clients(&stack);
    for (index, (cost, left)) in LAB.into_iter().enumerate() {
        let answer = clients[index % GATEWAYS].chat(&chat("m", cost)).await.unwrap();
        assert_eq!((answer.status, remaining(&answer)), (200, left), "{}", answer.text());
        assert_eq!(answer.header("x-ratelimit-limit-tokens"), Some("300"));
        let spent: u64 = LAB.iter().take(index + 1).map(|(cost, _)| cost).sum();
        assert_eq!(settled(&stack, &counters, "m").await, spent);
    }
    for client in &clients {
        let refused = client.chat(&chat("m", CHEAPEST)).await.unwrap();
        assert_eq!((refused.status, remaining(&refused)), (429, 0));
    }
    assert_eq!((settled(&stack, &counters, "m").await, served(&stack)), (320, 10));
}

/// I11.
#[tokio::test]
async fn a_raised_or_lowered_limit_acts_on_the_next_request_at_every_gateway() {
    let of_limit = |limit: u64| [("m", format!("per: [key], limit: {limit}, {WINDOW}"))];
    let stack = stack(&of_limit(100)).await;
    let counters = stack.counters().unwrap();
    let clients = clients(&stack);
    let ask = async |gateway: usize| {
        let answer = clients[gateway].chat(&chat("m", DEAREST)).await.unwrap();
        settled(&stack, &counters, "m").await;
        (answer.status, remaining(&answer))
    };
    assert_eq!((ask(0).await, ask(1).await, ask(2).await, ask(3).await), ((200, 100), (200, 60), (200, 20), (429, 0)));
    // Every sidecar remembers the refusal now.
    for gateway in 0..GATEWAYS {
        assert_eq!(ask(gateway).await.0, 429);
    }
    stack.reconfigure(&documents(&of_limit(500))).await.unwrap();
    for gateway in 0..GATEWAYS {
        assert_eq!(ask(gateway).await, (200, 380 - DEAREST * gateway as u64));
    }
    stack.reconfigure(&documents(&of_limit(280))).await.unwrap();
    for gateway in 0..GATEWAYS {
        assert_eq!(ask(gateway).await, (429, 0));
    }
    stack.reconfigure(&documents(&of_limit(281))).await.unwrap();
    assert_eq!(ask(3).await, (200, 1));
}

/// When each key ends, by Redis' own clock in milliseconds; and that clock.
async fn ends(stack: &Stack) -> (BTreeMap<String, i64>, i64) {
    let mut redis = stack.redis.as_ref().unwrap().connection().await.unwrap();
    let (seconds, microseconds): (i64, i64) = redis::cmd("TIME").query_async(&mut redis).await.unwrap();
    // The ledger's: what sidecars tell each other of prompts stays for an hour.
    let keys: Vec<String> = redis.keys("att1:*").await.unwrap();
    let mut ends = BTreeMap::new();
    for key in keys {
        let end: i64 = redis::cmd("PEXPIRETIME").arg(&key).query_async(&mut redis).await.unwrap();
        // -2: it has ended since it was listed.
        if end != -2 {
            ends.insert(key, end);
        }
    }
    (ends, seconds * 1_000 + microseconds / 1_000)
}

/// I13. A key that has an end which nobody puts off is gone when it has come: Redis sees to that.
#[tokio::test]
async fn every_key_ends_two_windows_and_two_leases_after_its_last_request_at_the_latest() {
    const LEASE: Duration = Duration::from_secs(30);
    const LONGEST_WINDOW: Duration = Duration::from_secs(2);
    let of_limits = [
        ("sliding", "per: [key], limit: 100, window: 1s".to_owned()),
        ("fixed", "per: [tenant], limit: 100, window: 2s, windowType: fixed, mode: strict".to_owned()),
        ("checked", "per: [model], limit: 100, window: 2s, mode: check, cost: output".to_owned()),
        ("requests", "per: [key], limit: 3, window: 2s, cost: requests".to_owned()),
        ("slots", "per: [key], concurrency: 2".to_owned()),
    ];
    let longest = i64::try_from((2 * LONGEST_WINDOW + 2 * LEASE).as_millis()).unwrap();
    let mut stack = stack(&of_limits).await;
    let clients = clients(&stack);
    let mut answers = BTreeMap::new();
    for (name, _) in &of_limits {
        let body = chat(name, CHEAPEST);
        for answer in join_all((0..40).map(|index| clients[index % GATEWAYS].chat(&body))).await {
            *answers.entry(answer.unwrap().status).or_insert(0) += 1;
        }
    }
    assert_eq!(answers.keys().collect::<Vec<_>>(), [&200, &429]);
    residue::none(&stack).await;

    let (first, now) = ends(&stack).await;
    assert!(first.len() >= of_limits.len(), "{first:?}");
    assert!(first.values().all(|end| (now..=now + longest).contains(end)), "{first:?} at {now}");
    let mut later = (first.clone(), now);
    until("a while had passed", async || {
        later = ends(&stack).await;
        later.1 > now + 1_500
    })
    .await
    .unwrap();
    for (key, end) in &later.0 {
        // That a sidecar lives it says again and again.
        assert!(key.contains("sidecars") || first.get(key) == Some(end), "{key} is kept for ever");
    }

    // A sidecar that dies leaves its leases behind.
    let mut streams = Vec::new();
    for (name, _) in &of_limits {
        let client = clients[0].clone().with_header("x-sim-fault", "slow=500");
        streams.push(client.stream_chat(&chat(name, DEAREST)).await.unwrap());
    }
    for gateway in [&mut stack.gateway].into_iter().chain(&mut stack.peers) {
        gateway.sidecar.kill().await.unwrap();
    }
    let (left, now) = ends(&stack).await;
    assert!(left.keys().any(|key| key.contains(":leases")), "{left:?}");
    assert!(left.values().all(|end| (now..=now + longest).contains(end)), "{left:?} at {now}");
}

/// I15.
#[tokio::test]
async fn what_an_answer_says_is_what_is_charged_whichever_gateway_and_endpoint() {
    let stack = stack(&[("m", format!("per: [key], limit: 1000000, {WINDOW}"))]).await;
    let counters = stack.counters().unwrap();
    let messages = json!([{"role": "user", "content": "How much is this?"}]);
    let usage = json!({"include_usage": true});
    let requests = [
        ("/v1/chat/completions", json!({"model": "m", "messages": messages, "max_tokens": 7, "n": 2})),
        (
            "/v1/chat/completions",
            json!({"model": "m", "messages": messages, "max_tokens": 300, "stream": true, "stream_options": usage}),
        ),
        ("/v1/completions", json!({"model": "m", "prompt": ["How", "much?"], "max_tokens": 5})),
        (
            "/v1/completions",
            json!({"model": "m", "prompt": "How much?", "max_tokens": 5, "stream": true, "stream_options": usage}),
        ),
        ("/v1/embeddings", json!({"model": "m", "input": ["How much is this?", "And this?"]})),
    ];
    let mut before = 0;
    for client in clients(&stack) {
        for (path, body) in &requests {
            let cost = if body["stream"] == true {
                let events = EventStream::to(client.post(path, body)).await.unwrap().rest().await;
                assert!(events.is_done());
                events.json().filter_map(|event| event["usage"]["total_tokens"].as_u64()).last().unwrap()
            } else {
                let answer = Answer::to(client.post(path, body)).await.unwrap();
                assert_eq!(answer.status, 200, "{}", answer.text());
                answer.json().unwrap()["usage"]["total_tokens"].as_u64().unwrap()
            };
            let after = settled(&stack, &counters, "m").await;
            assert_eq!(after - before, cost, "{path} {body}");
            before = after;
        }
    }
}
