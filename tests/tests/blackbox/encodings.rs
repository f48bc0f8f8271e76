//! Content codings through the real Envoy: requests in each of them, answers in each of them, and those that are not what they
//! say.

use std::io::Read as _;

use attache_model_server::Finished;
use attache_tests::{Answer, Client, Envoy, Stack, client::StreamEnd};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    codings::{decode, encode},
    documents::{key, limits, pool, route},
    profiles::AS_ENVOY_GATEWAY,
    raw::{Connection, RawAnswer, chunked, post},
    residue,
    second_envoy::envoy_with,
    verdict::{counted, error, error_in, is, served},
};

const CHAT: &str = "/v1/chat/completions";
const INVALID: &str = "invalid_request_error";

/// Of our own words for how data is encoded, and the header's.
const ENCODINGS: [(&str, &str); 7] = [
    ("gzip", "gzip"),
    ("gzip", "X-GZip"),
    ("br", "br"),
    ("zstd", "zstd"),
    ("deflate", "deflate"),
    ("raw-deflate", "deflate"),
    ("gzip+br", "gzip, br"),
];

/// `assistant` has another name upstream, `m` has not.
async fn stack() -> Stack {
    let documents = pool()
        + &route("renamed", "assistant", "{name: pool, modelNameOverride: served}")
        + &route("plain", "m", "{name: pool}")
        + &limits("plain", "{name: t, per: [key], limit: 100000000, window: 300d}")
        + &key("a", "acme", "renamed, plain");
    Stack::builder(documents).models(1).redis().start().await.unwrap()
}

fn client(stack: &Stack) -> Client {
    stack.client().with_key("sk-a")
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hello there"}]})
}

async fn send(client: &Client, coding: &str, body: Vec<u8>) -> Answer {
    let request = client.request(Method::POST, CHAT).header("content-type", "application/json");
    Answer::to(request.header("content-encoding", coding).body(body)).await.unwrap()
}

/// The same without a `content-length`, in pieces of so many bytes.
async fn send_chunked(envoy: &Envoy, coding: &str, body: &[u8], piece: usize) -> RawAnswer {
    let mut connection = Connection::open(envoy).await;
    let headers = format!("authorization: Bearer sk-a\r\ncontent-encoding: {coding}\r\n");
    connection.send(chunked(CHAT, &headers)).await;
    for piece in body.chunks(piece) {
        connection.send_chunk(piece).await;
    }
    connection.send("0\r\n\r\n").await;
    connection.read_answer().await
}

/// Tokens that were charged since the last time.
struct Charges(f64);

impl Charges {
    async fn charged(&mut self, stack: &Stack) -> f64 {
        residue::none(stack).await;
        let metrics = stack.sidecar_metrics().await.unwrap();
        let of = |kind| metrics.sum("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", kind)]);
        let all = of("input") + of("output");
        all - std::mem::replace(&mut self.0, all)
    }
}

/// Both ways in which Envoys hand over bodies: ours, and Envoy Gateway's.
async fn in_both_profiles(stack: &Stack, check: impl AsyncFn(&Envoy, &Client)) {
    let buffered = envoy_with(stack, &AS_ENVOY_GATEWAY).await;
    for envoy in [&stack.gateway.envoy, &buffered] {
        check(envoy, &envoy.client().unwrap().with_key("sk-a")).await;
    }
    residue::none(stack).await;
}

#[tokio::test]
async fn requests_are_read_in_every_coding_and_changed_or_left_alone() {
    let stack = stack().await;
    in_both_profiles(&stack, async |envoy, client| {
        let plain = client.chat(&chat("assistant")).await.unwrap().json().unwrap()["usage"].clone();
        for (how, coding) in ENCODINGS {
            for model in ["assistant", "m"] {
                let encoded = encode(how, chat(model).to_string().as_bytes());
                let answer = send(client, coding, encoded.clone()).await;
                assert_eq!(answer.status, 200, "{coding}: {}", answer.text());
                assert_eq!(answer.json().unwrap()["usage"], plain, "{coding}");
                let whole = stack.models[0].requests().pop().unwrap();
                let answer = send_chunked(envoy, coding, &encoded, 7).await;
                assert_eq!(answer.status, 200, "{coding}: {}", answer.body);
                let in_chunks = stack.models[0].requests().pop().unwrap();
                for sent in [whole, in_chunks] {
                    if model == "m" {
                        assert_eq!(sent.raw_body, encoded, "{coding}");
                        assert_eq!(sent.headers["content-encoding"], coding);
                    } else {
                        assert_eq!(sent.body, chat("served").to_string(), "{coding}");
                        assert_eq!(sent.headers.get("content-encoding"), None);
                    }
                    let length = sent.headers.get("content-length").map(|length| length.parse().unwrap());
                    assert!(length.is_none_or(|length: usize| length == sent.body_bytes), "{length:?}");
                }
            }
        }
    })
    .await;
}

/// Megabytes of text that is not all the same.
fn long_text(bytes: usize) -> String {
    let mut state = 1_u64;
    let mut text = String::with_capacity(bytes + 20);
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.push_str(&(state >> 20).to_string());
        text.push(' ');
    }
    text
}

#[tokio::test]
async fn an_encoded_body_of_ten_megabytes_goes_on_decoded() {
    let stack = stack().await;
    let texts = [long_text(10 << 20), "x".repeat(10 << 20)];
    let body_of = |model: &str, text: &str| json!({"model": model, "messages": [{"role": "user", "content": text}]});
    in_both_profiles(&stack, async |envoy, client| {
        for (text, how) in texts.iter().flat_map(|text| [(text, "gzip"), (text, "zstd")]) {
            let encoded = encode(how, body_of("assistant", text).to_string().as_bytes());
            let expected = body_of("served", text).to_string().len();
            let answer = send(client, how, encoded.clone()).await;
            assert_eq!(answer.status, 200, "{how} {}: {}", encoded.len(), answer.text());
            assert_eq!(stack.models[0].requests().pop().unwrap().body_bytes, expected);
            let answer = send_chunked(envoy, how, &encoded, 50_000).await;
            assert_eq!(answer.status, 200, "{how} {}: {}", encoded.len(), answer.body);
            assert_eq!(stack.models[0].requests().pop().unwrap().body_bytes, expected);
            stack.forget_requests();
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_not_what_it_says_is_refused_and_nobody_else_sees_it() {
    let stack = stack().await;
    let mut zeros = vec![b' '; 64 << 20];
    zeros[0] = b'{';
    let bombs = ["gzip", "br", "zstd", "deflate", "raw-deflate", "gzip+br"].map(|how| {
        let coding = ENCODINGS.into_iter().find(|(name, _)| *name == how).unwrap().1;
        (coding, encode(how, &zeros))
    });
    in_both_profiles(&stack, async |envoy, client| {
        for (coding, bomb) in &bombs {
            let answer = send(client, coding, bomb.clone()).await;
            assert_eq!(error(&answer), is(413, INVALID, "request_too_large"), "{coding}");
        }
        let encoded = encode("gzip", chat("m").to_string().as_bytes());
        let cut = &encoded[..encoded.len() - 9];
        let trailing = [&*encoded, b"x"].concat();
        for (coding, body) in [
            ("gzip", chat("m").to_string().into_bytes()),
            ("br", encoded.clone()),
            ("zstd", encoded.clone()),
            ("gzip", cut.to_vec()),
            ("gzip", trailing),
            ("gzip, gzip", encoded.clone()),
        ] {
            let answer = send(client, coding, body.clone()).await;
            assert_eq!(error(&answer), is(400, INVALID, None), "{coding}");
            let answer = send_chunked(envoy, coding, &body, 11).await;
            let text = answer.body.lines().find(|line| line.starts_with('{')).unwrap_or(&answer.body);
            assert_eq!(error_in(answer.status, text), is(400, INVALID, None), "{coding}");
        }
        for coding in ["compress", "gzip, dcb", "gzip, gzip, gzip, gzip"] {
            let answer = send(client, coding, encoded.clone()).await;
            assert_eq!(error(&answer), is(415, INVALID, None), "{coding}");
            assert_eq!(answer.header("accept-encoding"), Some("gzip, br, zstd, deflate"));
        }
        let anthropic = client.request(Method::POST, "/v1/messages").header("content-encoding", "compress");
        let answer = Answer::to(anthropic.body(encoded.clone())).await.unwrap();
        assert_eq!((answer.status, &answer.json().unwrap()["type"]), (415, &json!("error")));
    })
    .await;
    counted(&stack, "body_too_large", 2 * bombs.len()).await;
    counted(&stack, "encoded_body", 2 * (2 * 6 + 3 + 1)).await;
    assert_eq!(served(&stack), 0);
}

#[tokio::test]
async fn answers_come_in_the_coding_that_was_asked_for_and_are_charged_what_they_say() {
    let stack = stack().await;
    let mut charges = Charges(0.0);
    let client = client(&stack).with_header("x-sim-answer-tokens", "40");
    let plain = client.chat(&chat("m")).await.unwrap().json().unwrap();
    let total = plain["usage"]["total_tokens"].as_f64().unwrap();
    assert_eq!(charges.charged(&stack).await, total);
    for coding in ["gzip", "br", "zstd", "deflate"] {
        let client = client.clone().with_header("accept-encoding", &format!("{coding}, dcb"));
        let client = client.with_header("x-sim-encode", "auto");
        let answer = client.chat(&chat("m")).await.unwrap();
        assert_eq!(answer.header("content-encoding"), Some(coding));
        let decoded: Value = serde_json::from_str(&decode(coding, &answer.body)).unwrap();
        assert_eq!((&decoded["usage"], &decoded["choices"]), (&plain["usage"], &plain["choices"]));
        assert_eq!(stack.models[0].requests().pop().unwrap().headers["accept-encoding"], coding);
        assert_eq!(charges.charged(&stack).await, total, "{coding}");

        // The client asks for the usage itself, so nothing has to be taken out.
        let mut body = chat("m");
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let answer = client.chat(&body).await.unwrap();
        assert_eq!(answer.header("content-encoding"), Some(coding));
        let decoded = decode(coding, &answer.body);
        assert!(decoded.ends_with("data: [DONE]\n\n") && decoded.matches("\"usage\":{").count() == 1, "{decoded}");
        assert_eq!(charges.charged(&stack).await, total, "{coding}, streamed");
    }
}

#[tokio::test]
async fn where_something_is_to_be_taken_out_no_coding_is_asked_for_and_one_that_comes_all_the_same_is_undone() {
    let stack = stack().await;
    let mut charges = Charges(0.0);
    let client =
        client(&stack).with_header("x-sim-answer-tokens", "5").with_header("accept-encoding", "gzip, br, zstd");
    let plain = client.stream_chat(&chat("m")).await.unwrap();
    assert_eq!(plain.header("content-encoding"), None);
    let plain = plain.rest().await;
    assert!(plain.is_done() && plain.json().all(|event| event["usage"].is_null()), "{:?}", plain.data);
    assert_eq!(stack.models[0].requests().pop().unwrap().headers["accept-encoding"], "identity");
    let total = charges.charged(&stack).await;
    for coding in ["gzip", "br", "zstd", "deflate", "raw-deflate"] {
        let client = client.clone().with_header("x-sim-encode", coding);
        let events = client.stream_chat(&chat("m")).await.unwrap();
        assert_eq!((events.status, events.header("content-encoding")), (200, None), "{coding}");
        let events = events.rest().await;
        assert_eq!((events.text(), events.data.len(), &events.end), (plain.text(), plain.data.len(), &plain.end));
        assert!(events.is_done() && events.json().all(|event| event["usage"].is_null()), "{:?}", events.data);
        assert_eq!(charges.charged(&stack).await, total, "{coding}");

        // Each event at once: the server has not ended when the client has one.
        let client = client.with_header("x-sim-fault", "slow=200");
        let mut events = client.stream_chat(&chat("m")).await.unwrap();
        events.next().await.unwrap().unwrap();
        assert_eq!(stack.models[0].requests().pop().unwrap().finished, Finished::Running, "{coding}");
        assert!(events.rest().await.is_done());
        assert_eq!(charges.charged(&stack).await, total, "{coding}");
    }
}

#[tokio::test]
async fn an_answer_that_says_gzip_and_is_plain_is_read_as_it_is() {
    let stack = stack().await;
    let mut charges = Charges(0.0);
    let client = client(&stack).with_header("x-sim-answer-tokens", "5");
    let plain = client.stream_chat(&chat("m")).await.unwrap().rest().await;
    let total = charges.charged(&stack).await;
    let client = client.with_header("x-sim-encode", "lie");
    let answer = client.chat(&chat("m")).await.unwrap();
    assert_eq!((answer.status, answer.header("content-encoding")), (200, Some("gzip")), "as it came");
    assert_eq!(answer.json().unwrap()["usage"]["total_tokens"].as_f64(), Some(total));
    assert_eq!(charges.charged(&stack).await, total);
    for pieces in ["", "split=1", "split=40"] {
        let client = client.clone().with_header("x-sim-fault", pieces);
        // The usage is taken out, and the label with it.
        let events = client.stream_chat(&chat("m")).await.unwrap();
        assert_eq!(events.header("content-encoding"), None);
        let events = events.rest().await;
        assert_eq!((events.text(), events.data.len(), events.is_done()), (plain.text(), plain.data.len(), true));
        assert!(events.json().all(|event| event["usage"].is_null()), "{:?}", events.data);
        assert_eq!(charges.charged(&stack).await, total, "{pieces}");
        // It is the client's own, and passes with its label.
        let mut body = chat("m");
        body["stream_options"] = json!({"include_usage": true});
        let events = client.stream_chat(&body).await.unwrap();
        assert_eq!(events.header("content-encoding"), Some("gzip"));
        let events = events.rest().await;
        assert!(events.is_done() && events.json().any(|event| event["usage"].is_object()), "{:?}", events.data);
        assert_eq!(charges.charged(&stack).await, total, "{pieces}");
    }
    counted(&stack, "miscoded", 7).await;
    assert_eq!(stack.sidecar_metrics().await.unwrap().sum("attache_cancelled_total", &[]), 0.0);
}

#[tokio::test]
async fn an_answer_that_is_gzip_of_another_kind_than_it_says_goes_on_byte_for_byte_where_it_can() {
    let stack = stack().await;
    let mut charges = Charges(0.0);
    let client = client(&stack).with_header("x-sim-answer-tokens", "5").with_header("accept-encoding", "gzip");
    let plain = client.stream_chat(&chat("m")).await.unwrap().rest().await;
    let total = charges.charged(&stack).await;
    let mut asked = chat("m");
    (asked["stream"], asked["stream_options"]) = (json!(true), json!({"include_usage": true}));
    let mut miscoded = 0;
    for (coding, is_miscoded, is_reported) in [
        ("gzip-members", false, true),
        ("gzip-trailing", true, true),
        ("gzip-short", true, true),
        ("hidden-gzip", true, false),
    ] {
        let client = client.clone().with_header("x-sim-encode", coding);
        let answer = client.chat(&asked).await.unwrap();
        assert_eq!(answer.header("content-encoding"), Some("gzip").filter(|_| coding != "hidden-gzip"));
        let mut text = Vec::new();
        // What is wrong behind the data is for the client to judge.
        let _ = MultiGzDecoder::new(&answer.body[..]).read_to_end(&mut text);
        assert!(text.ends_with(b"data: [DONE]\n\n"), "{coding}");
        let charged = charges.charged(&stack).await;
        assert!(if is_reported { charged == total } else { charged > total }, "{coding}: {charged}, not {total}");

        // The usage is ours, so it goes on decoded; but where nobody saw that it is encoded.
        let answer =
            client.chat(&json!({"stream": true, "model": "m", "messages": chat("m")["messages"]})).await.unwrap();
        assert_eq!(answer.header("content-encoding"), None, "{coding}");
        if coding == "hidden-gzip" {
            assert!(answer.body.starts_with(b"\x1f\x8b"));
        } else {
            assert_eq!(answer.text().matches("data: ").count(), plain.data.len(), "{coding}: {}", answer.text());
            assert!(answer.text().ends_with("data: [DONE]\n\n"), "{coding}: {}", answer.text());
        }
        let charged = charges.charged(&stack).await;
        assert!(if is_reported { charged == total } else { charged > total }, "{coding}: {charged}, not {total}");
        miscoded += if !is_miscoded {
            0
        } else if coding == "hidden-gzip" {
            2
        } else {
            1
        };
    }
    counted(&stack, "miscoded", miscoded).await;
}

#[tokio::test]
async fn an_encoded_stream_that_breaks_off_ends_in_an_error_where_it_had_to_be_changed() {
    let stack = stack().await;
    let client = client(&stack).with_header("x-sim-answer-tokens", "5").with_header("x-sim-encode", "gzip-short");
    let client = client.with_header("x-sim-fault", "truncate=3");
    let events = client.stream_chat(&chat("m")).await.unwrap();
    assert_eq!(events.header("content-encoding"), None);
    let events = events.rest().await;
    let errors: Vec<_> = events.json().filter(|event| event["error"].is_object()).collect();
    assert_eq!((errors.len(), &errors[0]["error"]["type"]), (1, &json!("server_error")), "{:?}", events.data);
    assert!(events.end == StreamEnd::Cut || events.is_done());
    residue::none(&stack).await;
    counted(&stack, "miscoded", 1).await;
}

#[tokio::test]
async fn a_request_that_expects_a_hundred_continue_may_be_encoded() {
    let stack = stack().await;
    let encoded = encode("gzip", chat("assistant").to_string().as_bytes());
    let headers = "authorization: Bearer sk-a\r\ncontent-encoding: gzip\r\nexpect: 100-continue\r\n";
    let request: Bytes = post(CHAT, headers, &encoded);
    let (head, body) = request.split_at(request.len() - encoded.len());
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    connection.send(head).await;
    assert!(connection.read_head().await.starts_with("HTTP/1.1 100 "));
    connection.send(body).await;
    assert_eq!(connection.read_answer().await.status, 200);
    assert_eq!(stack.models[0].requests().pop().unwrap().body, chat("served").to_string());
    residue::none(&stack).await;
}
