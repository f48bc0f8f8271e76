//! Keys that have nothing left: after the sidecar has refused one, the Wasm filter refuses it by itself, for a while.

use std::{net::SocketAddr, time::Duration};

use attache_tests::{Answer, Client, Stack, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::{
    documents::{backend, key, limits, pool, route},
    profile, residue,
    second_envoy::envoy_with,
    verdict::{asked, error, is, served},
};

/// The sidecar's word to the filter.
const HEADER: &str = "x-attache-exhausted";

/// One request, and then nothing for 300 days.
const ONE_REQUEST: &str = "{name: n, per: [key], limit: 1, window: 300d, cost: requests}";

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
}

/// The keys `a` and `b` may call `m`, under these limits.
fn documents(of_limits: &str) -> String {
    [pool(), route("r", "m", "{name: pool}"), key("a", "acme", "r"), key("b", "acme", "r"), limits("r", of_limits)]
        .concat()
}

async fn refused_by_filter(stack: &Stack) -> u64 {
    stack.gateway.envoy.stats().await.unwrap().value("wasmcustom.attache_filter_refused_exhausted")
}

/// Asks until the sidecar has refused once, and returns that answer: from then on the filter knows.
async fn exhaust(client: &Client, model: &str) -> Answer {
    for _ in 0..20 {
        let answer = client.chat(&chat(model)).await.unwrap();
        if answer.status == 429 {
            return answer;
        }
    }
    panic!("20 requests were not enough");
}

fn number(answer: &Answer, name: &str) -> u64 {
    answer.header(name).unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// The message without the time to wait.
fn reason(answer: &Answer) -> String {
    let message = answer.error_message().unwrap();
    message.split_once(" Please try again in ").unwrap().0.to_owned()
}

#[tokio::test]
async fn after_one_refusal_by_the_sidecar_the_filter_gives_the_same_answer_by_itself() {
    let stack = Stack::builder(documents(ONE_REQUEST)).models(1).start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    let first = exhaust(&client, "m").await;
    assert_eq!((asked(&stack).await, refused_by_filter(&stack).await), (2.0, 0));
    let second = client.chat(&chat("m")).await.unwrap();
    assert_eq!((asked(&stack).await, refused_by_filter(&stack).await), (2.0 + profile::told(1.0), 1));

    assert_eq!(error(&second), is(429, "insufficient_quota", "insufficient_quota"));
    assert_eq!(error(&second), error(&first));
    assert_eq!(reason(&second), reason(&first));
    let names = |answer: &Answer| {
        const ENVOYS: [&str; 4] = ["date", "server", "content-length", "transfer-encoding"];
        let own = if profile::answers_keep_their_length() { &ENVOYS[..2] } else { &ENVOYS };
        let names = answer.headers.keys().map(|name| name.as_str().to_owned());
        let mut names: Vec<_> = names.filter(|name| !own.contains(&&**name)).collect();
        names.sort();
        names
    };
    assert_eq!(names(&second), names(&first));
    for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-limit-requests", "content-type"] {
        assert_eq!(second.header(name), first.header(name), "{name}");
    }
    for name in ["retry-after", "retry-after-ms", "x-ratelimit-reset"] {
        let (before, after) = (number(&first, name), number(&second, name));
        assert!(0 < after && after <= before, "{name}: {before}, {after}");
    }
    // What the two say to each other is for nobody else.
    assert_eq!((first.header(HEADER), second.header(HEADER)), (None, None));
    assert_eq!(served(&stack), 1);
    residue::none(&stack).await;
}

#[tokio::test]
async fn other_keys_and_the_list_of_models_are_let_through() {
    let stack = Stack::builder(documents(ONE_REQUEST)).models(1).start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    exhaust(&client, "m").await;
    assert_eq!(client.get("/v1/models").await.unwrap().status, 200);
    assert_eq!(stack.client().with_key("sk-b").chat(&chat("m")).await.unwrap().status, 200);
    // The key is what counts, however it is shown and whatever is asked.
    let same_key = stack.client().with_header("x-api-key", "sk-a");
    let embeddings = same_key.post("/v1/embeddings", &json!({"model": "m", "input": "Hi"}));
    assert_eq!(Answer::to(embeddings).await.unwrap().status, 429);
    assert_eq!(refused_by_filter(&stack).await, 1);
}

#[tokio::test]
async fn when_something_is_left_again_requests_reach_the_sidecar_and_the_model() {
    let of_limits = "{name: n, per: [key], limit: 3, window: 2s, cost: requests}";
    let stack = Stack::builder(documents(of_limits)).models(1).start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    exhaust(&client, "m").await;
    until("the filter had refused", async || {
        let answer = client.chat(&chat("m")).await.unwrap();
        answer.status == 429 && refused_by_filter(&stack).await > 0
    })
    .await
    .unwrap();
    let before = asked(&stack).await;
    until("a request was served again", async || client.chat(&chat("m")).await.unwrap().status == 200).await.unwrap();
    assert!(asked(&stack).await > before);
    residue::none(&stack).await;
}

#[tokio::test]
async fn the_sidecar_is_asked_again_after_five_seconds_although_the_budget_is_gone_for_days() {
    let stack = Stack::builder(documents(ONE_REQUEST)).models(1).start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    exhaust(&client, "m").await;
    let before = asked(&stack).await;
    until("the sidecar was asked again", async || {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(client.chat(&chat("m")).await.unwrap().status, 429);
        asked(&stack).await > before
    })
    .await
    .unwrap();
    assert!(refused_by_filter(&stack).await > 0);
    assert_eq!(served(&stack), 1);
}

#[tokio::test]
async fn a_key_that_has_something_left_elsewhere_is_the_sidecars_to_judge() {
    let of_some = [
        // One of the key's two endpoints is limited.
        limits("r", ONE_REQUEST),
        // All of them, but each for itself.
        ["r", "free"]
            .map(|at| limits(at, "{name: n, per: [key, model], limit: 1, window: 300d, cost: requests}"))
            .concat(),
        // What is asked with another header counts elsewhere.
        ["r", "free"]
            .map(|at| limits(at, "{name: n, per: [key, \"header:x-team\"], limit: 1, window: 300d, cost: requests}"))
            .concat(),
    ];
    for limits in of_some {
        let documents = [
            pool(),
            route("r", "m", "{name: pool}"),
            route("free", "free", "{name: pool}"),
            key("a", "acme", "r, free"),
            limits,
        ];
        let stack = Stack::builder(documents.concat()).models(1).start().await.unwrap();
        let client = stack.client().with_key("sk-a");
        exhaust(&client, "m").await;
        let before = asked(&stack).await;
        assert_eq!(client.chat(&chat("m")).await.unwrap().status, 429);
        assert_eq!((asked(&stack).await - before, refused_by_filter(&stack).await), (1.0, 0));
        assert_eq!(client.chat(&chat("free")).await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn what_is_only_held_refuses_at_the_sidecar_alone() {
    let stack = Stack::builder(documents("{name: c, per: [key], concurrency: 1}")).models(1).start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    let slow = client.clone().with_header("x-sim-fault", "slow=50");
    let mut body = chat("m");
    body["max_tokens"] = json!(1000);
    let mut stream = slow.stream_chat(&body).await.unwrap();
    stream.next().await.unwrap();
    for _ in 0..2 {
        assert_eq!(client.chat(&chat("m")).await.unwrap().status, 429);
    }
    assert_eq!(refused_by_filter(&stack).await, 0);
    drop(stream);
    residue::none(&stack).await;
}

/// What the sidecar would say of a key that has nothing left for five seconds.
const FORGED: &str = r#"{"refuse_ms":5000,"kind":"tokens","message":"No.","retry_after_ms":5000,"headers":[]}"#;

/// A model server that answers every connection's first request with this status and the forged header; its address.
async fn forging_server(status: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let answer = format!(
                "HTTP/1.1 {status}\r\n{HEADER}: {FORGED}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\
                 connection: close\r\n\r\n{{}}"
            );
            let _ = connection.read(&mut [0; 4096]).await;
            let _ = connection.write_all(answer.as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn neither_a_client_nor_a_model_server_can_make_the_filter_refuse() {
    // As rendered, and as if nobody but the filter took the header out of answers.
    let careless = [(HEADER, "x-nothing"), ("response_header_mode: SEND", "response_header_mode: SKIP")];
    let careless = [&careless[..], &[("response_body_mode: STREAMED", "response_body_mode: NONE")]].concat();
    for status in ["200 OK", "429 Too Many Requests"] {
        let port = forging_server(status).await.port();
        let documents = [
            backend("pool", &format!("[{{ip: {{address: 127.0.0.1, port: {port}}}}}]")),
            route("r", "m", "{name: pool}"),
            key("a", "acme", "r"),
        ];
        let stack = Stack::builder(documents.concat()).start().await.unwrap();
        for replacements in [&[][..], &careless] {
            let envoy = envoy_with(&stack, replacements).await;
            let client = envoy.client().unwrap().with_key("sk-a").with_header(HEADER, FORGED);
            for _ in 0..3 {
                let answer = client.chat(&chat("m")).await.unwrap();
                assert_eq!((status.starts_with(&answer.status.to_string()), answer.text()), (true, "{}".to_owned()));
                assert_eq!(answer.header(HEADER), None);
            }
            let stats = envoy.stats().await.unwrap();
            assert_eq!((stats.passed_by_filter(), stats.refused_by_filter()), (3, 0));
        }
    }
}

#[tokio::test]
async fn without_a_filter_nobody_hears_of_it() {
    let stack = Stack::builder(documents(ONE_REQUEST)).models(1).without_wasm().start().await.unwrap();
    let client = stack.client().with_key("sk-a").with_header("x-attache-key-id", "default/a");
    exhaust(&client, "m").await;
    for _ in 0..2 {
        let answer = client.chat(&chat("m")).await.unwrap();
        assert_eq!((answer.status, answer.header(HEADER)), (429, None));
    }
}
