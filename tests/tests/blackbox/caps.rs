//! Limits that must not be overdrawn: answers that are kept to what is left, and streams that end where nothing is.

use attache_model_server::{EVENT_TOKENS_HEADER, Finished, UNBOUNDED_HEADER};
use attache_tests::{Answer, Client, Events, Stack, tools::Profile, until};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::{
    documents::{key, limits, pool, route},
    profile,
    profiles::AS_ENVOY_GATEWAY,
    residue,
    second_envoy::envoy_with,
    verdict::{counted, error, is},
};

/// No test runs over the boundary of such a window, but once in 300 days.
const WINDOW: &str = "window: 300d";

fn capped(limit: u64) -> String {
    let limit = format!("{{name: t, per: [key], limit: {limit}, {WINDOW}, mode: strict, cap: true}}");
    [pool(), route("r", "m", "{name: pool}"), key("a", "acme", "r"), key("b", "acme", "r"), limits("r", &limit)]
        .concat()
}

/// A chat of which the prompt has 9 tokens by the model server's rule.
fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
}

/// What a short chat is taken to have at most, by the sidecar's rule: three tokens for its bytes, five for its message, 32 for
/// the template.
const PROMPT_AT_MOST: u64 = 40;

/// A client whose answers are so long if nothing ends them.
fn of_length(client: &Client, tokens: u64) -> Client {
    client.clone().with_header("x-sim-answer-tokens", &tokens.to_string())
}

/// The same with servers that do not care what clients say of the length of answers.
fn unbounded(client: &Client) -> Client {
    client.clone().with_header(UNBOUNDED_HEADER, "1")
}

/// What was charged by all sidecars.
async fn charged(stack: &Stack) -> u64 {
    residue::none(stack).await;
    let mut charged = 0.0;
    for gateway in stack.gateways() {
        let metrics = gateway.sidecar.metrics().await.unwrap();
        for kind in ["input", "output"] {
            charged += metrics.sum("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", kind)]);
        }
    }
    charged as u64
}

/// The tokens that a stream delivered before it was cut, and the error in its last event; none of a stream that was not.
fn delivered(events: &Events) -> (u64, Option<Value>) {
    let has_content = |event: &Value| event["choices"][0]["delta"]["content"].as_str().is_some_and(|it| !it.is_empty());
    let tokens = events.json().filter(has_content).count() as u64;
    assert!(events.is_done(), "{:?}", events.data.last());
    (tokens, events.json().last().filter(|event| event["error"].is_object()))
}

#[tokio::test]
async fn a_stream_ends_where_the_limit_does_and_its_model_server_stops() {
    for replacements in [&[][..], &AS_ENVOY_GATEWAY] {
        let stack = Stack::builder(capped(700)).models(1).without_wasm().start().await.unwrap();
        let other = envoy_with(&stack, replacements).await;
        let clients =
            [other.client().unwrap().with_key("sk-a"), Client::over_http2(other.url()).unwrap().with_key("sk-b")];
        for (number, client) in clients.into_iter().enumerate() {
            // Its server does not do what it is asked to, so that nobody else ends the stream.
            let slow = unbounded(&of_length(&client, 50_000)).with_header("x-sim-fault", "slow=1");
            let stream = slow.stream_chat(&chat()).await.unwrap();
            assert_eq!(stream.status, 200);
            let events = stream.rest().await;
            let (tokens, error) = delivered(&events);
            let error = &error.expect("an error ends the stream")["error"];
            assert_eq!((&error["type"], &error["code"]), (&json!("insufficient_quota"), &json!("insufficient_quota")));
            assert!(error["message"].as_str().unwrap().contains("Limit 700. The answer ends here"), "{error}");
            assert_eq!(tokens, 700 - PROMPT_AT_MOST);
            let record = || stack.models[0].requests().remove(number);
            until("the model server had stopped", async || record().finished == Finished::Aborted).await.unwrap();
            assert!((tokens..5_000).contains(&record().completion_tokens), "{:?}", record());
            counted(&stack, "cut", number + 1).await;
            // The prompt is charged as it was estimated: one token.
            assert_eq!(charged(&stack).await, (number as u64 + 1) * (1 + tokens));
            // Envoy and the sidecar go on as if nothing had been.
            assert_eq!(client.chat(&chat()).await.unwrap().status, 429);
        }
    }
}

#[tokio::test]
async fn a_stream_is_kept_to_what_is_left_by_its_server_however_many_tokens_its_events_have() {
    let limit = 1_000;
    let left = limit - PROMPT_AT_MOST;
    for (fields, sent, length) in [
        (json!({}), json!({"max_tokens": left}), left),
        (json!({"max_tokens": 9_000}), json!({"max_tokens": left}), left),
        (json!({"max_completion_tokens": 9_000}), json!({"max_completion_tokens": left}), left),
        (json!({"max_tokens": 300}), json!({"max_tokens": 300}), 300),
        (json!({"n": 2}), json!({"max_tokens": left / 2}), left / 2 * 2),
    ] {
        for event_tokens in [1, 4] {
            let stack = Stack::builder(capped(limit)).models(1).without_wasm().start().await.unwrap();
            let client = of_length(&stack.client().with_key("sk-a"), 5_000);
            let client = client.with_header(EVENT_TOKENS_HEADER, &event_tokens.to_string());
            let mut body = chat();
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let events = client.stream_chat(&body).await.unwrap().rest().await;
            assert_eq!(delivered(&events).1, None, "{fields}");
            assert!(events.json().any(|event| event["choices"][0]["finish_reason"] == "length"), "{fields}");
            assert_eq!(charged(&stack).await, 9 + length, "{fields}");
            let record = stack.models[0].requests().pop().unwrap();
            let asked: Value = serde_json::from_str(&record.body).unwrap();
            for bound in ["max_tokens", "max_completion_tokens"] {
                assert_eq!(asked[bound], sent[bound], "{fields}");
            }
        }
    }
}

#[tokio::test]
async fn a_stream_whose_server_ignores_what_the_client_allows_ends_where_the_limit_does() {
    for fields in [json!({"max_completion_tokens": 10}), json!({"max_tokens": 10}), json!({"max_tokens": 5, "n": 2})] {
        let stack = Stack::builder(capped(1_000)).models(1).without_wasm().start().await.unwrap();
        let client = unbounded(&of_length(&stack.client().with_key("sk-a"), 2_000));
        let mut body = chat();
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let events = client.stream_chat(&body).await.unwrap().rest().await;
        let (_, error) = delivered(&events);
        assert_eq!(error.expect("an error ends the stream")["error"]["code"], "insufficient_quota", "{fields}");
        let charged = charged(&stack).await;
        assert!((1_000 - PROMPT_AT_MOST..=1_000).contains(&charged), "{charged}: {fields}");
    }
}

#[tokio::test]
async fn how_many_tokens_events_have_is_learned_from_streams_that_end() {
    let limit = |key: &str, amount: u64| {
        let when = format!("when: [{{dimension: key, is: default/{key}}}]");
        format!("{{name: {key}, per: [key], {when}, limit: {amount}, {WINDOW}, mode: strict, cap: true}}")
    };
    let limits_of_both = format!("{}, {}", limit("a", 100_000), limit("b", 1_000));
    let documents = [
        pool(),
        route("r", "m", "{name: pool}"),
        key("a", "acme", "r"),
        key("b", "acme", "r"),
        limits("r", &limits_of_both),
    ];
    let stack = Stack::builder(documents.concat()).models(1).without_wasm().start().await.unwrap();
    let client = unbounded(&of_length(&stack.client(), 800)).with_header(EVENT_TOKENS_HEADER, "3");
    for _ in 0..4 {
        let events = client.clone().with_key("sk-a").stream_chat(&chat()).await.unwrap().rest().await;
        assert_eq!(delivered(&events).1, None);
    }
    let before = charged(&stack).await;
    let slow = of_length(&client, 50_000).with_header("x-sim-fault", "slow=1");
    let events = slow.with_key("sk-b").stream_chat(&chat()).await.unwrap().rest().await;
    let (events, error) = delivered(&events);
    assert!(error.is_some());
    let used = 3 * events;
    let left = 1_000 - PROMPT_AT_MOST;
    // Its server was asked to end it, and is believed to do so by some percent longer than its events say.
    assert!((left * 9 / 10..=left * 13 / 10).contains(&used), "{used} of {left}");
    let charged = charged(&stack).await - before;
    assert!((used * 9 / 10..=used * 11 / 10).contains(&charged), "{charged} of {used}");
}

#[tokio::test]
async fn an_answer_in_one_piece_is_no_longer_than_what_is_held_for_it() {
    let (limit, default, asked) = (5_323, 4_096, 900);
    let stack = Stack::builder(capped(limit)).models(1).without_wasm().start().await.unwrap();
    let client = of_length(&stack.client().with_key("sk-a"), 8_000);
    let bounded = {
        let mut body = chat();
        body["max_tokens"] = json!(asked);
        body
    };
    let ask = async |body: &Value| {
        let answer = client.chat(body).await.unwrap().json().unwrap();
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        let record = stack.models[0].requests().pop().unwrap();
        let bound = serde_json::from_str::<Value>(&record.body).unwrap()["max_tokens"].as_u64().unwrap();
        assert_eq!(answer["usage"]["completion_tokens"], bound);
        bound
    };
    // What the client asks for, where there is room; the default, where it asks for nothing; what is left, but for the prompt,
    // of which the first two answers have taught a little.
    assert_eq!(ask(&bounded).await, asked);
    assert_eq!(ask(&chat()).await, default);
    let left = limit - (9 + asked) - (9 + default);
    let last = ask(&chat()).await;
    assert!((left - PROMPT_AT_MOST..=left - 9).contains(&last), "{last} of {left}");
    // With nothing left there is no answer, and what is told is what even the shortest would need.
    let refused = client.chat(&chat()).await.unwrap();
    assert_eq!(error(&refused).0, 429);
    let text = refused.text();
    let requested = text.split("Requested ").nth(1).and_then(|rest| rest.split('.').next()).unwrap().parse().unwrap();
    assert!((9 + 16..=PROMPT_AT_MOST + 16).contains(&requested), "{text}");
    assert_eq!(charged(&stack).await, 3 * 9 + asked + default + last);
}

#[tokio::test]
async fn short_prompts_are_held_closely_once_some_answers_have_come() {
    let stack = Stack::builder(capped(100_000)).models(1).without_wasm().start().await.unwrap();
    let client = of_length(&stack.client().with_key("sk-a"), 1);
    let text = |bytes: usize| json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(bytes)}]});
    for round in 0..60 {
        for bytes in [2, 900, 4_000] {
            assert_eq!(client.chat(&text(bytes)).await.unwrap().status, 200, "{round}");
        }
    }
    // A client that asks for more than there is gets all but what is held for its prompt of nine tokens.
    let before = charged(&stack).await;
    let mut body = chat();
    body["max_tokens"] = json!(200_000);
    let answer = of_length(&stack.client().with_key("sk-a"), 1).chat(&body).await.unwrap();
    assert_eq!(answer.status, 200);
    let record = stack.models[0].requests().pop().unwrap();
    let bound = serde_json::from_str::<Value>(&record.body).unwrap()["max_tokens"].as_u64().unwrap();
    let held = 100_000 - before - bound;
    assert!((9..=9 + 9 / 4 + 12).contains(&held), "{held}");
}

#[tokio::test]
async fn a_long_stream_that_the_limit_has_room_for_is_delivered_whole() {
    let stack = Stack::builder(capped(100_000)).models(1).without_wasm().start().await.unwrap();
    let client = of_length(&stack.client().with_key("sk-a"), 5_000);
    for fault in ["", "split=100", "crlf,split=7", "big=300000"] {
        let client = client.clone().with_header("x-sim-fault", fault);
        let before = charged(&stack).await;
        let events = client.stream_chat(&chat()).await.unwrap().rest().await;
        assert_eq!(delivered(&events), (5_000, None), "{fault}");
        assert_eq!(charged(&stack).await - before, 5_009, "{fault}");
    }
}

/// Streams and whole answers of several lengths at once, until nothing more is admitted.
async fn used_up(stack: &Stack, limit: u64) {
    let clients: Vec<Client> = stack.gateways().map(|gateway| gateway.client().with_key("sk-a")).collect();
    let ask = async |index: usize| {
        let client = of_length(&clients[index % clients.len()], [300, 900, 2_000][index % 3]);
        if index.is_multiple_of(2) {
            let stream = client.stream_chat(&chat()).await.unwrap();
            let is_admitted = stream.status == 200;
            assert!(is_admitted || stream.status == 429, "{}", stream.status);
            if is_admitted {
                delivered(&stream.rest().await);
            }
            is_admitted
        } else {
            let answer: Answer = client.chat(&chat()).await.unwrap();
            assert!(matches!(answer.status, 200 | 429), "{}", answer.text());
            answer.status == 200
        }
    };
    for round in 0.. {
        let admitted = join_all((0..64).map(&ask)).await.into_iter().filter(|admitted| *admitted).count();
        let charged = charged(stack).await;
        assert!(charged <= limit, "{charged} of {limit} after round {round}");
        if admitted == 0 {
            // What is left is less than a prompt of unknown density and a few words.
            assert!(charged + PROMPT_AT_MOST + 16 > limit, "{charged} of {limit}");
            return;
        }
    }
}

#[tokio::test]
async fn under_a_cap_exactly_the_limit_is_used_however_many_ask_at_once() {
    let limit = 60_000;
    let stack = Stack::builder(capped(limit)).models(1).without_wasm().start().await.unwrap();
    used_up(&stack, limit).await;
}

#[tokio::test]
async fn under_a_cap_two_sidecars_on_one_redis_use_exactly_the_limit() {
    let limit = 60_000;
    let stack = Stack::builder(capped(limit)).models(1).without_wasm().sidecars(2).redis().start().await.unwrap();
    used_up(&stack, limit).await;
}

#[tokio::test]
async fn a_limit_in_shadow_refuses_nobody_and_counts_what_it_would_have() {
    let limit = format!("{{name: t, per: [key], limit: 10, {WINDOW}, shadow: true}}");
    let documents = [pool(), route("r", "m", "{name: pool}"), key("a", "acme", "r"), limits("r", &limit)].concat();
    let stack = Stack::builder(documents).models(1).without_wasm().start().await.unwrap();
    let client = of_length(&stack.client().with_key("sk-a"), 20);
    for _ in 0..3 {
        let answer = client.chat(&chat()).await.unwrap();
        assert_eq!((answer.status, answer.header("x-ratelimit-limit-tokens")), (200, None));
    }
    counted(&stack, "served", 3).await;
    let metrics = stack.sidecar_metrics().await.unwrap();
    let of_limit = [("limit", "default/r-limits/t")];
    assert_eq!(metrics.sum("attache_limit_shadow_refusals_total", &of_limit), 2.0);
    assert_eq!(metrics.sum("attache_limit_refusals_total", &[]), 0.0);
}

/// On both stores: Redis tells it when it is settled.
#[tokio::test]
async fn what_is_charged_beyond_a_limit_is_counted_and_what_was_only_not_held_is_not() {
    for redis in [false, true] {
        let limit = format!("{{name: t, per: [key], limit: 1500, {WINDOW}}}");
        let documents = [pool(), route("r", "m", "{name: pool}"), key("a", "acme", "r"), limits("r", &limit)].concat();
        let stack = Stack::builder(documents).models(1).without_wasm();
        let stack = if redis { stack.redis() } else { stack }.start().await.unwrap();
        let client = of_length(&stack.client().with_key("sk-a"), 1_000);
        let labels = [("limit", "default/r-limits/t")];
        let figures = async || {
            let metrics = stack.sidecar_metrics().await.unwrap();
            let of_limit = |name: &str| metrics.sum(name, &labels);
            (of_limit("attache_limit_overdraft_tokens_total"), of_limit("attache_limit_highest_use_ratio"))
        };
        client.chat(&chat()).await.unwrap();
        // More than the 513 that were held for it, and within the limit.
        until("the first answer is charged", async || figures().await.1 > 0.0).await.unwrap();
        assert_eq!(figures().await, (0.0, 1_009.0 / 1_500.0));
        client.chat(&chat()).await.unwrap();
        until("the second answer is charged", async || figures().await.1 > 1.0).await.unwrap();
        assert_eq!(figures().await, (518.0, 2_018.0 / 1_500.0));
        assert_eq!(client.chat(&chat()).await.unwrap().status, 429);
    }
}

#[tokio::test]
async fn an_answer_that_the_sidecar_is_not_shown_is_refused_under_a_cap_and_charged_by_its_estimate_without() {
    let hidden = if profile::is(Profile::Static) {
        ("response_body_mode: STREAMED", "response_body_mode: NONE")
    } else {
        ("\"response_body_mode\": \"STREAMED\"", "\"response_body_mode\": \"NONE\"")
    };
    for (documents, status) in [(capped(2_000), 502), (capped(2_000).replace(", cap: true", ""), 200)] {
        let stack = Stack::builder(documents).models(1).without_wasm().start().await.unwrap();
        let envoy = envoy_with(&stack, &[hidden]).await;
        let client = envoy.client().unwrap().with_key("sk-a");
        let mut body = chat();
        body["stream"] = json!(true);
        let answer = client.chat(&body).await.unwrap();
        assert_eq!(answer.status, status, "{}", answer.text());
        match status {
            502 => assert_eq!(error(&answer), is(502, "server_error", None)),
            _ => assert!(answer.text().contains("[DONE]")),
        }
        // More than the prompt.
        assert!(charged(&stack).await > PROMPT_AT_MOST, "{status}");
    }
}
