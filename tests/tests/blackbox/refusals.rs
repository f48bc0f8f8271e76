//! Refusals by the Wasm filter: when they are given, and that the connection outlives them.

use attache_tests::{Answer, Client, Envoy, Stack, until};
use serde_json::{Value, json};

use crate::{
    documents::{key, pool, route},
    raw::{
        Connection, RawAnswer, chunked,
        http2::{self, DATA, END_HEADERS, END_STREAM, HEADERS, frame},
        post,
    },
    second_envoy::envoy_with,
    verdict::{asked, error, error_in, is},
};

const CHAT: &str = "/v1/chat/completions";
const KEY: &str = "authorization: Bearer sk-a\r\n";

async fn stack() -> Stack {
    let documents = [pool(), route("r", "m", "{name: pool}"), key("a", "acme", "r")].concat();
    Stack::builder(documents).models(1).start().await.unwrap()
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
}

fn good() -> Vec<u8> {
    post(CHAT, KEY, chat().to_string().as_bytes()).to_vec()
}

/// What the filter refuses for want of a key, with so large a body.
fn bad(bytes: usize) -> Vec<u8> {
    post(CHAT, "", &vec![b'x'; bytes]).to_vec()
}

fn head_of(request: &[u8]) -> &[u8] {
    let end = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    &request[..end + 4]
}

#[track_caller]
fn assert_no_key(answer: &RawAnswer, connection: Option<&str>) {
    assert_eq!(error_in(answer.status, &answer.body), is(401, "invalid_request_error", "invalid_api_key"));
    assert_eq!((answer.header("www-authenticate"), answer.header("connection")), (Some("Bearer"), connection));
}

async fn refused(envoy: &Envoy) -> u64 {
    envoy.stats().await.unwrap().refused_by_filter()
}

#[tokio::test]
async fn a_connection_outlives_refusals_of_small_bodies_and_the_sidecar_hears_of_none() {
    let stack = stack().await;
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    for bytes in [0, 1, 200, 40_000, 65_536] {
        connection.send(bad(bytes)).await;
        assert_no_key(&connection.read_answer().await, None);
        connection.send(post("/v1/nothing", KEY, &vec![b'x'; bytes])).await;
        let answer = connection.read_answer().await;
        assert_eq!(error_in(answer.status, &answer.body), is(404, "invalid_request_error", "unknown_url"));
    }
    assert_eq!((asked(&stack).await, refused(&stack.gateway.envoy).await), (0.0, 10));
    connection.send(good()).await;
    assert_eq!(connection.read_answer().await.status, 200);
    assert_eq!(asked(&stack).await, 1.0);
    let stats = stack.gateway.envoy.stats().await.unwrap();
    assert_eq!(stats.value("http.attache.downstream_cx_total"), 1);
}

#[tokio::test]
async fn a_refusal_waits_for_the_last_byte_of_a_small_body() {
    let stack = stack().await;
    let envoy = &stack.gateway.envoy;
    let mut connection = Connection::open(envoy).await;
    let request = bad(40_000);
    for piece in request[..request.len() - 1].chunks(10_000) {
        connection.send(piece).await;
        until("the filter had refused it", async || refused(envoy).await == 1).await.unwrap();
    }
    let received = async || envoy.stats().await.unwrap().value("http.attache.downstream_cx_rx_bytes_total");
    until("Envoy had it but for one byte", async || received().await == request.len() as u64 - 1).await.unwrap();
    assert_eq!(envoy.stats().await.unwrap().value("http.attache.downstream_rq_4xx"), 0);
    connection.send(&request[request.len() - 1..]).await;
    assert_no_key(&connection.read_answer().await, None);
    assert_eq!(asked(&stack).await, 0.0);
}

#[tokio::test]
async fn nothing_of_a_refused_body_is_kept() {
    let stack = stack().await;
    let limits = [
        ("per_connection_buffer_limit_bytes: 1048576", "per_connection_buffer_limit_bytes: 16384"),
        ("request_body_buffer_limit: 33619968", "request_body_buffer_limit: 16384"),
    ];
    let envoy = envoy_with(&stack, &limits).await;
    let mut connection = Connection::open(&envoy).await;
    // Envoy's own 413 would come if it kept more than it may.
    for _ in 0..2 {
        connection.send(bad(65_536)).await;
        assert_no_key(&connection.read_answer().await, None);
    }
    assert_eq!(asked(&stack).await, 0.0);
}

#[tokio::test]
async fn a_long_body_and_one_of_unknown_length_are_refused_at_once() {
    let stack = stack().await;
    for request in [bad(65_537), bad(1 << 20), chunked(CHAT, "").into_bytes()] {
        let mut connection = Connection::open(&stack.gateway.envoy).await;
        connection.send(head_of(&request)).await;
        assert_no_key(&connection.read_answer().await, Some("close"));
    }
    assert_eq!(asked(&stack).await, 0.0);
}

#[tokio::test]
async fn who_waits_for_100_continue_is_told_to_send_a_small_body_and_answered_after_it() {
    let stack = stack().await;
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    let request = post(CHAT, "expect: 100-continue\r\n", &[b'x'; 200]);
    for _ in 0..2 {
        connection.send(head_of(&request)).await;
        // Envoy says so by itself, before any filter.
        assert_eq!(connection.read_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
        connection.send(&request[head_of(&request).len()..]).await;
        assert_no_key(&connection.read_answer().await, None);
    }
    // Where Envoy leaves it to others, the filter has the last word.
    let manager = "codec_type: AUTO";
    let envoy = envoy_with(&stack, &[(manager, "codec_type: AUTO\n          proxy_100_continue: true")]).await;
    let mut connection = Connection::open(&envoy).await;
    connection.send(head_of(&request)).await;
    assert_no_key(&connection.read_answer().await, Some("close"));
    assert_eq!(asked(&stack).await, 0.0);
}

#[tokio::test]
async fn what_is_refused_without_a_body_leaves_the_connection_open() {
    let stack = stack().await;
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    for _ in 0..2 {
        connection.send("GET /v1/models HTTP/1.1\r\nhost: gateway\r\n\r\n").await;
        assert_no_key(&connection.read_answer().await, None);
    }
    assert_eq!(asked(&stack).await, 0.0);
}

#[tokio::test]
async fn a_request_that_was_sent_behind_a_refused_one_is_served() {
    let stack = stack().await;
    for bytes in [200, 40_000] {
        // A connection each: Envoy bounds its own answers to requests that were sent before it could write them
        // (`http1.response_flood`).
        let mut connection = Connection::open(&stack.gateway.envoy).await;
        connection.send([bad(bytes), good()].concat()).await;
        assert_no_key(&connection.read_answer().await, None);
        let answer = connection.read_answer().await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    assert_eq!(asked(&stack).await, 2.0);
}

#[tokio::test]
async fn over_http2_refusals_are_the_same() {
    let stack = stack().await;
    let client = Client::over_http2(stack.gateway.envoy.url()).unwrap();
    for bytes in [0, 200, 40_000, 65_536, 65_537, 1 << 20] {
        let request = client.request(reqwest::Method::POST, CHAT).body(vec![b'x'; bytes]);
        let answer = Answer::to(request).await.unwrap();
        assert_eq!(error(&answer), is(401, "invalid_request_error", "invalid_api_key"), "{bytes}");
    }
    assert_eq!(client.get("/v1/models").await.unwrap().status, 401);
    assert_eq!(asked(&stack).await, 0.0);
    assert_eq!(client.with_key("sk-a").chat(&chat()).await.unwrap().status, 200);
    let stats = stack.gateway.envoy.stats().await.unwrap();
    assert_eq!(stats.value("http.attache.downstream_cx_total"), 1);
}

#[tokio::test]
async fn a_body_that_ends_in_trailers_is_no_way_around_a_refusal() {
    let stack = stack().await;
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    // HPACK: `:method: POST`, `:scheme: http`, `:authority: a`, `:path: /v1/nothing`, `content-length: 2`.
    let head = [&[0x83, 0x86, 0x01, 1, b'a', 0x04, 11][..], b"/v1/nothing", &[0x0f, 0x0d, 1, b'2']].concat();
    let request = [
        http2::preface(),
        frame(HEADERS, END_HEADERS, 1, &head),
        frame(DATA, 0, 1, b"{}"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x01t\x011"),
    ];
    connection.send(request.concat()).await;
    let answer = connection.read_data_frame().await;
    assert_eq!(error_in(404, &answer), is(404, "invalid_request_error", "unknown_url"));
    assert_eq!((asked(&stack).await, refused(&stack.gateway.envoy).await), (0.0, 1));
}

#[tokio::test]
async fn who_does_not_send_the_rest_is_told_so_after_a_while() {
    let stack = stack().await;
    let envoy = envoy_with(&stack, &[("idle_timeout: 15s", "idle_timeout: 1s")]).await;
    let mut connection = Connection::open(&envoy).await;
    let request = bad(200);
    connection.send(&request[..request.len() - 1]).await;
    let answer = connection.read_answer().await;
    assert_eq!(error_in(answer.status, &answer.body), is(408, "invalid_request_error", None));
    assert_eq!((answer.header("connection"), asked(&stack).await), (Some("close"), 0.0));
    // An answer takes as long as it takes.
    let slow = envoy.client().unwrap().with_key("sk-a").with_header("x-sim-fault", "hang=2000");
    assert_eq!(slow.chat(&chat()).await.unwrap().status, 200);
}

#[tokio::test]
async fn who_sends_the_rest_byte_by_byte_is_answered_before_the_end() {
    let stack = stack().await;
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    let request = bad(60_000);
    connection.send(head_of(&request)).await;
    let answered = async || stack.gateway.envoy.stats().await.unwrap().value("http.attache.downstream_rq_4xx") == 1;
    until("it was answered", async || {
        connection.send("x").await;
        answered().await
    })
    .await
    .unwrap();
    assert_no_key(&connection.read_answer().await, Some("close"));
    assert_eq!(asked(&stack).await, 0.0);
}

#[tokio::test]
async fn who_leaves_before_the_end_leaves_nothing_behind() {
    let stack = stack().await;
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    connection.send(&bad(40_000)[..30_000]).await;
    until("the filter had refused it", async || refused(&stack.gateway.envoy).await == 1).await.unwrap();
    drop(connection);
    let active = async || stack.gateway.envoy.stats().await.unwrap().value("http.attache.downstream_rq_active");
    until("Envoy had forgotten it", async || active().await == 0).await.unwrap();
    assert_eq!(asked(&stack).await, 0.0);
    assert_eq!(stack.client().with_key("sk-a").chat(&chat()).await.unwrap().status, 200);
}

#[tokio::test]
async fn an_envoy_that_gives_the_filter_no_bodies_is_answered_at_once() {
    let stack = stack().await;
    let said = ",\"answers\":\"after_body\"";
    let allowed = "allow_on_headers_stop_iteration: true";
    for replacements in [&[(said, ""), (allowed, "allow_on_headers_stop_iteration: false")][..], &[(said, "")]] {
        let envoy = envoy_with(&stack, replacements).await;
        let mut connection = Connection::open(&envoy).await;
        connection.send(head_of(&bad(200))).await;
        assert_no_key(&connection.read_answer().await, Some("close"));
    }
    assert_eq!(asked(&stack).await, 0.0);
}
