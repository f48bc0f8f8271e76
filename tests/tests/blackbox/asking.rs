//! However an upstream tells of its usage, the ledger is asked a few times for each chunk of an answer: a sidecar whose ledger
//! answers at once goes on serving everybody.

use attache_tests::{EventStream, Stack};
use serde_json::{Value, json};

use crate::{
    documents::{backend, key, limits, pool, route},
    residue,
    scripted::Scripted,
};

/// Room for a thousand tokens.
const LIMIT: &str = "{name: t, per: [key], limit: 1000, window: 300d, mode: strict, cap: true}";

/// A stream: where it is asked for, what of it comes before the stream stays silent for a while, and how it ends.
struct Case {
    path: &'static str,
    before: Vec<String>,
    /// What the last event has that comes before the silence.
    last: &'static str,
    after: Vec<String>,
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

fn data(data: &Value) -> String {
    format!("data: {data}\n\n")
}

fn content(text: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {"content": text}}]})
}

/// A usage of 950 tokens of output after an event or two, as each API tells it, and single events that are very much.
fn cases() -> Vec<Case> {
    let usage = |output: u64| json!({"prompt_tokens": 10, "completion_tokens": output, "total_tokens": 10 + output});
    let chat = |before: Vec<String>, last| Case {
        path: "/v1/chat/completions",
        before,
        last,
        after: vec!["data: [DONE]\n\n".to_owned()],
    };
    let long = data(&content(&"x".repeat(40_000)));
    let pieces = long.as_bytes().chunks(10_000).map(|piece| String::from_utf8_lossy(piece).into_owned());
    vec![
        chat(vec![data(&content("Hello")), data(&json!({"choices": [], "usage": usage(950)}))], "completion_tokens"),
        // Told early, and told to be more than anybody has.
        chat(vec![data(&json!({"choices": [], "usage": usage(950)})), data(&content("Hello"))], "Hello"),
        chat(
            vec![data(&json!({"choices": [], "usage": usage(1 << 40)})), data(&content("Hello"))],
            "completion_tokens",
        ),
        // As one chunk it is too much, and the stream ends in an error; in several it goes on as it comes. Both have this letter.
        chat(pieces.collect(), "c"),
        Case {
            path: "/v1/responses",
            before: vec![
                event("response.output_text.delta", &json!({"type": "response.output_text.delta", "delta": "Hello"})),
                event(
                    "response.in_progress",
                    &json!({"type": "response.in_progress", "response": {"usage": {"input_tokens": 10, "output_tokens": 950}}}),
                ),
            ],
            last: "output_tokens",
            after: vec![event("response.completed", &json!({"type": "response.completed"}))],
        },
        Case {
            path: "/v1/messages",
            before: vec![
                event(
                    "message_start",
                    &json!({"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}),
                ),
                event(
                    "content_block_delta",
                    &json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hello"}}),
                ),
                event("message_delta", &json!({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 950}})),
            ],
            last: "950",
            after: vec![event("message_stop", &json!({"type": "message_stop"}))],
        },
    ]
}

/// Where the ledger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    Memory,
    Redis,
    /// It answered once and is gone: each sidecar counts by itself.
    Gone,
}

async fn stack(upstream: &Scripted, store: Store) -> Stack {
    let port = upstream.address.port();
    let documents = [
        pool(),
        backend("odd", &format!("[{{ip: {{address: 127.0.0.1, port: {port}}}}}]")),
        route("r", "odd", "{name: odd}"),
        route("plain", "m", "{name: pool}"),
        key("a", "acme", "r"),
        key("c", "acme", "r"),
        key("b", "other", "plain"),
        limits("r", LIMIT),
    ];
    let builder = Stack::builder(documents.concat()).models(1).without_wasm();
    let builder = if store == Store::Memory { builder } else { builder.redis() };
    let mut stack = builder.arguments(&["--drain-timeout", "1s"]).start().await.unwrap();
    if store == Store::Gone {
        stack.redis.as_mut().unwrap().kill().await.unwrap();
    }
    stack
}

async fn commands(stack: &Stack) -> f64 {
    stack.sidecar_metrics().await.unwrap().sum("attache_store_round_trips_total", &[])
}

async fn begun(stack: &Stack, case: &Case, key: &str) -> EventStream {
    let body = json!({
        "model": "odd", "stream": true, "stream_options": {"include_usage": true}, "input": "Hi",
        "messages": [{"role": "user", "content": "Hi"}],
    });
    let mut stream = EventStream::to(stack.client().with_key(key).post(case.path, &body)).await.unwrap();
    assert_eq!(stream.status, 200, "{}", case.path);
    let mut seen = String::new();
    while !seen.contains(case.last) {
        match stream.next().await {
            Ok(Some(event)) => seen += &event,
            end => panic!("{end:?} after {seen}: {}, {}", case.path, case.last),
        }
    }
    stream
}

#[tokio::test]
async fn a_stream_that_used_more_than_is_left_neither_hangs_the_sidecar_nor_floods_redis() {
    for store in [Store::Memory, Store::Redis, Store::Gone] {
        for case in cases() {
            let what = format!("{store:?}, {}, {}", case.path, case.last);
            let upstream = Scripted::start(case.before.clone(), case.after.clone()).await;
            let mut stack = stack(&upstream, store).await;
            let before = commands(&stack).await;
            let stream = begun(&stack, &case, "sk-a").await;
            // While the stream is silent, everybody else is served.
            for _ in 0..10 {
                assert!(stack.gateway.sidecar.page("/healthz").await.is_ok(), "{what}");
                let chat = json!({"model": "m", "messages": []});
                assert_eq!(stack.client().with_key("sk-b").chat(&chat).await.unwrap().status, 200, "{what}");
            }
            let asked = commands(&stack).await - before;
            assert!(asked < 40.0, "{asked} commands: {what}");
            upstream.go_on();
            stream.rest().await;
            if store != Store::Gone {
                residue::none(&stack).await;
            }
            // Another one is under way when the sidecar is told to end.
            let stream = begun(&stack, &case, "sk-c").await;
            assert!(stack.gateway.sidecar.terminate().await.unwrap().success(), "{what}");
            drop(stream);
        }
    }
}
