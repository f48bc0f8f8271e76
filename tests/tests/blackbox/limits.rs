//! Token limits through HTTP: what is admitted, what is charged, what clients are told, and what the model servers never see.

use attache_model_server::ModelServer;
use attache_tests::{Answer, Client, EventStream, Signal, Stack, until};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::{
    documents::{key, limits, pool, route},
    residue::{self, Counters},
    verdict::{counted, error, is, served},
};

/// Windows begin by UTC. No test runs over the boundary of one as long as this, but once in 300 days.
pub(crate) const WINDOW: &str = "window: 300d";

/// With the key `a`, `m` on all model servers, under these limits.
pub(crate) fn documents(of_limits: &str) -> String {
    [pool(), route("r", "m", "{name: pool}"), key("a", "acme", "r"), key("b", "acme", "r"), limits("r", of_limits)]
        .concat()
}

/// A chat that costs exactly so many tokens: its prompt has 9 by the model server's rule.
pub(crate) fn chat(tokens: u64) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": tokens - 9})
}

fn remaining(answer: &Answer) -> u64 {
    answer.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap()
}

pub(crate) async fn settled(stack: &Stack) -> f64 {
    residue::none(stack).await;
    Counters::read(&mut stack.redis.as_ref().unwrap().connection().await.unwrap()).await.settled
}

/// Limit 300, calls of 29 to 40 tokens, each shown what was left before it: specs of the product that this one replaces.
const LAB: [(u64, u64); 10] =
    [(40, 300), (29, 260), (30, 231), (31, 201), (32, 170), (29, 138), (30, 109), (29, 79), (30, 50), (40, 20)];

#[tokio::test]
async fn ten_calls_pass_and_the_eleventh_is_refused_unseen_by_the_model_servers() {
    let stack = Stack::builder(documents(&format!("{{name: t, per: [key], limit: 300, {WINDOW}}}"))).models(2);
    let stack = stack.start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    for (cost, left) in LAB {
        let answer = client.chat(&chat(cost)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json().unwrap()["usage"]["total_tokens"], cost);
        assert_eq!((answer.header("x-ratelimit-limit-tokens"), remaining(&answer)), (Some("300"), left));
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(&*left.to_string()));
        assert_eq!((answer.header("retry-after"), answer.header("retry-after-ms")), (None, None));
    }
    let refused = client.chat(&chat(29)).await.unwrap();
    assert_eq!((refused.status, remaining(&refused)), (429, 0));
    assert_eq!(error(&refused), is(429, "insufficient_quota", "insufficient_quota"));
    let message = refused.json().unwrap()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("Limit 300, Used 320, Requested 21. Please try again in "), "{message}");
    let seconds = |name: &str| refused.header(name).unwrap().parse::<u64>().unwrap();
    assert!((1..=300 * 86_400).contains(&seconds("retry-after")));
    assert_eq!(seconds("retry-after-ms").div_ceil(1000), seconds("retry-after"));
    assert_eq!(served(&stack), 10);
    // Another key has a budget of its own.
    let other = stack.client().with_key("sk-b").chat(&chat(29)).await.unwrap();
    assert_eq!((other.status, remaining(&other)), (200, 300));
    counted(&stack, "limited", 1).await;
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_limit_a_minute_refuses_as_openai_does_and_says_when_to_come_back() {
    let stack = Stack::builder(documents("{name: t, per: [key], limit: 10, window: 1m}")).models(1).without_wasm();
    let stack = stack.start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    // The minute may turn between the two calls; it cannot do so twice in a row.
    let mut refused = client.chat(&chat(29)).await.unwrap();
    for _ in 0..3 {
        refused = client.chat(&chat(29)).await.unwrap();
        if refused.status == 429 {
            break;
        }
    }
    assert_eq!(error(&refused), is(429, "tokens", "rate_limit_exceeded"));
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&retry_after), "{retry_after}");
    assert_eq!(refused.header("x-ratelimit-limit"), Some("10, 10;w=60"));
    let reset = refused.header("x-ratelimit-reset-tokens").unwrap();
    assert!(reset.ends_with('s'), "{reset}");
    let reset: u64 = refused.header("x-ratelimit-reset").unwrap().parse().unwrap();
    assert!((1..=60).contains(&reset), "{reset}");
}

#[tokio::test]
async fn two_sidecars_on_one_redis_show_the_same_table_as_one() {
    let stack = Stack::builder(documents(&format!("{{name: t, per: [key], limit: 300, {WINDOW}}}"))).models(1);
    let stack = stack.without_wasm().sidecars(2).redis().start().await.unwrap();
    let clients: Vec<Client> = stack.gateways().map(|gateway| gateway.client().with_key("sk-a")).collect();
    for (index, (cost, left)) in LAB.into_iter().enumerate() {
        let answer = clients[index % 2].chat(&chat(cost)).await.unwrap();
        assert_eq!((answer.status, remaining(&answer)), (200, left), "{}", answer.text());
        // In Redis the use is charged a moment after the answer; until then the estimate counts.
        residue::none(&stack).await;
    }
    for client in &clients {
        assert_eq!(client.chat(&chat(29)).await.unwrap().status, 429);
    }
    assert_eq!((settled(&stack).await, served(&stack)), (320.0, 10));
}

#[tokio::test]
async fn two_sidecars_in_parallel_admit_exactly_the_limit() {
    let stack = Stack::builder(documents(&format!("{{name: n, per: [key], limit: 25, {WINDOW}, cost: requests}}")));
    let stack = stack.models(1).without_wasm().sidecars(2).redis().start().await.unwrap();
    let clients: Vec<Client> = stack.gateways().map(|gateway| gateway.client().with_key("sk-a")).collect();
    let body = chat(29);
    let calls = (0..80).map(|index| clients[index % 2].chat(&body));
    let answers: Vec<Answer> = join_all(calls).await.into_iter().map(|answer| answer.unwrap()).collect();
    let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!((count(200), count(429)), (25, 55));
    let mut left: Vec<u64> = answers
        .iter()
        .filter(|answer| answer.status == 200)
        .map(|answer| answer.header("x-ratelimit-remaining-requests").unwrap().parse().unwrap())
        .collect();
    left.sort_unstable();
    assert_eq!(left, (1..=25).collect::<Vec<_>>());
    assert_eq!((settled(&stack).await, served(&stack)), (25.0, 25));
    let counters = Counters::read(&mut stack.redis.as_ref().unwrap().connection().await.unwrap()).await;
    assert_eq!(counters.endless, 0);
}

#[tokio::test]
async fn strict_is_never_above_its_limit_with_many_requests_in_flight() {
    // The estimate is exact where the client bounds the answer: what is held is charged.
    let stack = Stack::builder(documents(&format!(
        "{{name: t, per: [key], limit: 100, {WINDOW}, mode: strict, cost: output}}"
    )));
    let stack = stack.models(1).without_wasm().sidecars(2).redis().start().await.unwrap();
    let clients: Vec<Client> = stack.gateways().map(|gateway| gateway.client().with_key("sk-a")).collect();
    let body = chat(9 + 15);
    let calls = (0..60).map(|index| clients[index % 2].chat(&body));
    let answers: Vec<Answer> = join_all(calls).await.into_iter().map(|answer| answer.unwrap()).collect();
    let admitted = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!((admitted, settled(&stack).await), (6, 90.0));
}

#[tokio::test]
async fn what_is_charged_is_what_the_answer_says_on_every_endpoint_streamed_or_not() {
    let stack = Stack::builder(documents(&format!("{{name: t, per: [key], limit: 1000000, {WINDOW}}}")));
    let stack = stack.models(1).without_wasm().redis().start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    let messages = json!([{"role": "user", "content": "How much is this?"}]);
    let requests = [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 7})),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 7, "n": 3})),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 7, "stream": true})),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "stream": true, "stream_options": {"include_usage": true}}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}}),
        ),
        ("/v1/completions", json!({"prompt": "How much?", "max_tokens": 5})),
        ("/v1/completions", json!({"prompt": ["How", "much?"], "max_tokens": 5, "stream": true})),
        ("/v1/embeddings", json!({"input": ["How much is this?", "And this?"]})),
    ];
    let mut before = settled(&stack).await;
    for fault in ["", "split=1", "crlf", "cr,no-space", "comments", "multi-line", "big=300000", "no-done"] {
        for (path, body) in &requests {
            let mut body = body.clone();
            body["model"] = json!("m");
            stack.forget_requests();
            let client = client.clone().with_header("x-sim-fault", fault);
            let answer = Answer::to(client.post(path, &body)).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            let record = stack.models[0].requests().remove(0);
            let after = settled(&stack).await;
            assert_eq!(
                after - before,
                (record.prompt_tokens + record.completion_tokens) as f64,
                "{fault} {path} {body}"
            );
            before = after;
        }
    }
}

#[tokio::test]
async fn an_error_of_the_model_server_costs_no_tokens() {
    let stack = Stack::builder(documents(&format!("{{name: t, per: [key], limit: 1000, {WINDOW}}}")));
    let stack = stack.models(1).without_wasm().redis().start().await.unwrap();
    for fault in ["status=400", "status=500", "status=503", "reset"] {
        let client = stack.client().with_key("sk-a").with_header("x-sim-fault", fault);
        assert!(client.chat(&chat(40)).await.unwrap().status >= 400);
        assert_eq!(settled(&stack).await, 0.0, "{fault}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_charged_for_its_prompt_and_for_what_it_was_sent() {
    let stack = Stack::builder(documents(&format!("{{name: t, per: [key], limit: 100000, {WINDOW}}}")));
    let stack = stack.models(1).without_wasm().redis().start().await.unwrap();
    let client = stack.client().with_key("sk-a").with_header("x-sim-fault", "slow=20");
    let mut body = chat(9 + 500);
    body["messages"][0]["content"] = json!("x".repeat(4000));
    let mut stream = client.stream_chat(&body).await.unwrap();
    for _ in 0..10 {
        stream.next().await.unwrap().unwrap();
    }
    drop(stream);
    let charged = settled(&stack).await;
    let record = stack.models[0].requests().remove(0);
    assert!(record.completion_tokens < 500, "{record:?}");
    // The first event has no content. The prompt is estimated: it has 1009 tokens by the model server's rule.
    assert!((1000.0 + 9.0..=1010.0 + record.completion_tokens as f64).contains(&charged), "{charged}, {record:?}");
    counted(&stack, "cancelled", 1).await;
}

#[tokio::test]
async fn a_limit_counts_by_key_tenant_model_endpoint_and_header() {
    let by =
        |name: &str, per: &str| limits(name, &format!("{{name: n, per: [{per}], limit: 1, {WINDOW}, cost: requests}}"));
    let model_route = "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIGatewayRoute\nmetadata: {name: by-model}\nspec:\n  \
        rules:\n  - matches: [{headers: [{name: x-ai-eg-model, value: model-x}]}, {headers: [{name: x-ai-eg-model, value: model-y}]}]\n    \
        backendRefs: [{name: pool}]\n---\n";
    let endpoint_policy = format!(
        "apiVersion: attache.dev/v1alpha1\nkind: TokenLimitPolicy\nmetadata: {{name: shared}}\nspec:\n  targetRefs:\n  \
         - {{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: endpoint-x}}\n  \
         - {{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: endpoint-y}}\n  \
         limits: [{{name: n, per: [endpoint], limit: 1, {WINDOW}, cost: requests}}]\n---\n"
    );
    let routes = "by-key, by-tenant, by-model, by-header, endpoint-x, endpoint-y";
    let documents = [
        pool(),
        route("by-key", "by-key", "{name: pool}"),
        route("by-tenant", "by-tenant", "{name: pool}"),
        route("by-header", "by-header", "{name: pool}"),
        model_route.to_owned(),
        route("endpoint-x", "endpoint-x", "{name: pool}"),
        route("endpoint-y", "endpoint-y", "{name: pool}"),
        by("by-key", "key"),
        by("by-tenant", "tenant"),
        by("by-model", "model"),
        by("by-header", "\"header:x-team\""),
        endpoint_policy,
        key("a", "acme", routes),
        key("b", "acme", routes),
        key("c", "umbrella", routes),
    ];
    let stack = Stack::builder(documents.concat()).models(1).without_wasm().start().await.unwrap();
    let ask = async |key: &str, model: &str, team: &str| {
        let client = stack.client().with_key(key).with_header("x-team", team);
        client.chat(&json!({"model": model, "messages": []})).await.unwrap().status
    };
    for (first, shares, is_apart) in [
        (("sk-a", "by-key", "1"), ("sk-a", "by-key", "2"), ("sk-b", "by-key", "1")),
        (("sk-a", "by-tenant", "1"), ("sk-b", "by-tenant", "2"), ("sk-c", "by-tenant", "1")),
        (("sk-a", "model-x", "1"), ("sk-c", "model-x", "2"), ("sk-a", "model-y", "1")),
        (("sk-a", "endpoint-x", "1"), ("sk-c", "endpoint-x", "2"), ("sk-a", "endpoint-y", "1")),
        (("sk-a", "by-header", "red"), ("sk-c", "by-header", "red"), ("sk-a", "by-header", "blue")),
    ] {
        assert_eq!(ask(first.0, first.1, first.2).await, 200, "{first:?}");
        assert_eq!(ask(shares.0, shares.1, shares.2).await, 429, "{shares:?}");
        assert_eq!(ask(is_apart.0, is_apart.1, is_apart.2).await, 200, "{is_apart:?}");
    }
}

#[tokio::test]
async fn check_only_looks_at_what_is_settled() {
    let stack = Stack::builder(documents(&format!("{{name: t, per: [key], limit: 10, {WINDOW}, mode: check}}")));
    let stack = stack.models(1).without_wasm().start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    // All of them are in flight before the first is charged.
    let slow = client.clone().with_header("x-sim-fault", "slow=100");
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(slow.stream_chat(&chat(12)).await.unwrap());
    }
    for stream in streams {
        assert_eq!(stream.status, 200);
        assert!(stream.rest().await.is_done());
    }
    let refused = client.chat(&chat(12)).await.unwrap();
    assert_eq!((refused.status, remaining(&refused)), (429, 0));
    let message = refused.text();
    assert!(message.contains("Limit 10, Used 60"), "{message}");
}

#[tokio::test]
async fn slots_are_taken_while_a_request_is_in_flight_and_given_back_however_it_ends() {
    for redis in [false, true] {
        let builder = Stack::builder(documents("{name: c, per: [key], concurrency: 2}")).models(1).without_wasm();
        let stack = if redis { builder.redis() } else { builder }.start().await.unwrap();
        let client = stack.client().with_key("sk-a");
        let slow = client.clone().with_header("x-sim-fault", "slow=50");
        let mut streams = Vec::new();
        for _ in 0..2 {
            let mut stream = slow.stream_chat(&chat(9 + 1000)).await.unwrap();
            stream.next().await.unwrap();
            streams.push(stream);
        }
        let refused = client.chat(&chat(29)).await.unwrap();
        assert_eq!(error(&refused), is(429, "requests", "rate_limit_exceeded"));
        assert_eq!((refused.header("retry-after"), served(&stack)), (Some("1"), 2));
        // One client leaves; its slot is free.
        streams.pop();
        until("a slot was free", async || client.chat(&chat(29)).await.unwrap().status == 200).await.unwrap();
        drop(streams);
        for fault in ["reset", "reset-after=2", "truncate=2", "status=500"] {
            // However the answer breaks.
            let broken = client.clone().with_header("x-sim-fault", fault);
            let _ = EventStream::to(broken.post("/v1/chat/completions", &chat(29))).await.unwrap().rest().await;
        }
        residue::none(&stack).await;
        let body = chat(11);
        let answers = join_all((0..2).map(|_| slow.stream_chat(&body))).await;
        assert!(answers.into_iter().all(|answer| answer.unwrap().status == 200));
        residue::none(&stack).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_the_ledger_is_asked_holds_and_pays_nothing() {
    let both = format!(
        "{{name: t, per: [key], limit: 1000, {WINDOW}}}, {{name: n, per: [key], limit: 1000, {WINDOW}, cost: requests}}"
    );
    let mut stack = Stack::builder(documents(&both)).models(1).without_wasm().redis().start().await.unwrap();
    let round_trips =
        async |stack: &Stack| stack.sidecar_metrics().await.unwrap().sum("attache_store_round_trips_total", &[]);
    // The sidecar says that it is there.
    until("Redis was used", async || round_trips(&stack).await > 0.0).await.unwrap();
    stack.redis.as_mut().unwrap().signal(Signal::Stop).unwrap();
    let before = round_trips(&stack).await;
    let client = stack.client().with_key("sk-a");
    let request = tokio::spawn(async move { client.chat(&chat(29)).await });
    until("the ledger was asked", async || round_trips(&stack).await > before).await.unwrap();
    request.abort();
    counted(&stack, "cancelled", 1).await;
    stack.redis.as_mut().unwrap().signal(Signal::Continue).unwrap();
    assert_eq!((settled(&stack).await, served(&stack)), (0.0, 0));
}

#[tokio::test]
async fn what_is_charged_is_what_the_metrics_say() {
    let stack =
        Stack::builder(documents(&format!("{{name: t, per: [key], limit: 1000, {WINDOW}}}"))).models(1).without_wasm();
    let stack = stack.start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    client.chat(&chat(29)).await.unwrap();
    assert!(client.stream_chat(&chat(40)).await.unwrap().rest().await.is_done());
    counted(&stack, "served", 2).await;
    let metrics = stack.sidecar_metrics().await.unwrap();
    let tokens = |kind: &str| metrics.sum("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", kind)]);
    assert_eq!((tokens("input"), tokens("output")), (18.0, 51.0));
    let labels = [("gen_ai_operation_name", "chat"), ("gen_ai_original_model", "m"), ("error_type", "")];
    assert_eq!(metrics.sum("gen_ai_server_request_duration_seconds_count", &labels), 2.0);
    assert_eq!(metrics.sum("attache_limit_decisions_total", &[("decision", "granted")]), 2.0);
}

#[tokio::test]
async fn an_answer_under_way_survives_the_loss_of_redis_and_is_charged_when_it_is_back() {
    let documents = documents(&format!("{{name: t, per: [key], limit: 1000, {WINDOW}}}"));
    let mut stack = Stack::builder(documents).models(1).without_wasm().redis().start().await.unwrap();
    let client = stack.client().with_key("sk-a").with_header("x-sim-fault", "slow=20");
    let mut stream = client.stream_chat(&chat(29)).await.unwrap();
    stream.next().await.unwrap();
    stack.redis.as_mut().unwrap().kill().await.unwrap();
    assert!(stream.rest().await.is_done());
    stack.redis.as_mut().unwrap().restart().await.unwrap();
    assert_eq!(settled(&stack).await, 29.0);
}

#[tokio::test]
async fn the_limits_of_one_request_are_granted_together_or_not_at_all() {
    let both = format!(
        "{{name: wide, per: [tenant], limit: 3, {WINDOW}, cost: requests}}, {{name: narrow, per: [key], limit: 1, {WINDOW}, cost: requests}}"
    );
    let stack = Stack::builder(documents(&both)).models(1).without_wasm().redis().start().await.unwrap();
    let ask = async |key: &str| stack.client().with_key(key).chat(&chat(29)).await.unwrap().status;
    assert_eq!(ask("sk-a").await, 200);
    for _ in 0..5 {
        assert_eq!(ask("sk-a").await, 429);
    }
    // The refused ones took nothing of the tenant's.
    assert_eq!(ask("sk-b").await, 200);
    assert_eq!(settled(&stack).await, 4.0);
    assert_eq!(stack.models.iter().map(ModelServer::requests_total).sum::<u64>(), 2);
}
