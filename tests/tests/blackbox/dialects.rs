//! Every dialect passes byte for byte, whatever the form of its stream, and no token is lost.
//!
//! Each request is made twice: through the gateway, and to a twin of its model server. Both servers are asked the same in the
//! same order, so their answers differ in nothing but the time that they were made at.

use attache_model_server::{Config, ModelServer};
use attache_tests::{Answer, Client, Result, Stack, until};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    codings::{decode, encode},
    documents::{key, pool, route},
    profile, residue,
};

/// Forms of streams that are all right by the standard.
const FORMS: [&str; 10] =
    ["", "crlf", "cr", "mixed", "bom", "no-space", "comments", "multi-line", "split=1", "split=7,crlf,multi-line"];

struct Twins {
    stack: Stack,
    twin: ModelServer,
    ours: Client,
    theirs: Client,
}

/// What a ledger or a journal has counted: input, output, and input that was cached.
type Tokens = [f64; 3];

impl Twins {
    async fn start() -> Self {
        let documents =
            [pool(), route("r", "assistant", "{name: pool, modelNameOverride: served}"), key("a", "acme", "r")];
        let stack = Stack::builder(documents.concat()).models(1).start().await.unwrap();
        let twin = ModelServer::start(Config::default()).await.unwrap();
        let (ours, theirs) = (stack.client().with_key("sk-a"), Client::new(twin.url()).unwrap());
        Self { stack, twin, ours, theirs }
    }

    /// Makes the request of both.
    async fn both(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> [Result<Answer>; 2] {
        let ask = async |client: &Client, model: &str| {
            let with = |client: Client, (name, value): &(&str, &str)| client.with_header(name, value);
            let client = headers.iter().fold(client.clone(), with);
            let mut body = body.clone();
            body["model"] = json!(model);
            Answer::to(client.post(path, &body)).await
        };
        [ask(&self.ours, "assistant").await, ask(&self.theirs, "served").await]
    }

    /// Makes the request of both and compares.
    async fn ask(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Answer {
        let [ours, theirs] = self.both(path, body, headers).await.map(Result::unwrap);
        let what = format!("{path} {body} {headers:?}");
        let compared: &[&str] = match profile::answers_keep_their_length() {
            true => &["content-type", "content-encoding", "content-length"],
            false => &["content-type", "content-encoding"],
        };
        for &name in compared {
            assert_eq!(ours.header(name), theirs.header(name), "{what}");
        }
        assert_eq!((ours.status, timeless(&ours.text())), (theirs.status, timeless(&theirs.text())), "{what}");
        ours
    }

    /// Waits until the gateway has counted what the twin has.
    async fn agree(&self, what: &str) {
        let mut expected = Tokens::default();
        for record in self.twin.requests() {
            let figures = [record.prompt_tokens, record.completion_tokens, record.cached_tokens];
            expected.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure as f64);
        }
        let mut counted = Tokens::default();
        let waited = until("the ledger agreed", async || {
            let metrics = self.stack.sidecar_metrics().await.unwrap();
            counted = ["input", "output", "cached_input"]
                .map(|kind| metrics.sum("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", kind)]));
            counted == expected
        });
        assert!(waited.await.is_ok(), "{what}: {counted:?} were counted, not {expected:?}");
    }
}

/// The text without the times in it.
fn timeless(text: &str) -> String {
    let mut pieces = text.split("\"created");
    let mut timeless = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        timeless.push_str("\"created");
        timeless.push_str(
            piece
                .trim_start_matches("_at")
                .trim_start_matches(['"', ':', ' '])
                .trim_start_matches(|digit: char| digit.is_ascii_digit()),
        );
    }
    timeless
}

/// A request of each dialect that streams.
fn streaming() -> [(&'static str, Value); 4] {
    let user = json!([{"role": "user", "content": "Hello, é😀!"}]);
    [
        ("/v1/chat/completions", json!({"messages": user, "max_tokens": 5, "stream_options": {"include_usage": true}})),
        ("/v1/completions", json!({"prompt": "Once", "max_tokens": 5, "stream_options": {"include_usage": true}})),
        ("/v1/responses", json!({"input": user})),
        ("/v1/messages", json!({"messages": user, "max_tokens": 64})),
    ]
}

fn streamed(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body
}

#[tokio::test]
async fn whole_answers_pass_byte_for_byte_and_are_counted() {
    let twins = Twins::start().await;
    for (path, mut body) in streaming() {
        body.as_object_mut().unwrap().remove("stream_options");
        let answer = twins.ask(path, &body, &[]).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        twins.agree(path).await;
    }
    for body in [json!({"input": ["one", "two"]}), json!({"input": "one", "encoding_format": "base64"})] {
        assert_eq!(twins.ask("/v1/embeddings", &body, &[]).await.status, 200);
        twins.agree("embeddings").await;
    }
    residue::none(&twins.stack).await;
}

#[tokio::test]
async fn streams_of_every_form_pass_byte_for_byte_and_are_counted() {
    let twins = Twins::start().await;
    for (path, body) in streaming() {
        for form in FORMS {
            let answer = twins.ask(path, &streamed(&body), &[("x-sim-fault", form)]).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            twins.agree(&format!("{path}, {form}")).await;
        }
    }
    residue::none(&twins.stack).await;
}

#[tokio::test]
async fn where_the_usage_is_ours_a_stream_has_a_null_in_its_place_and_else_what_the_server_sends() {
    let twins = Twins::start().await;
    for (path, body) in &streaming()[..2] {
        let mut body = streamed(body);
        body.as_object_mut().unwrap().remove("stream_options");
        let [ours, theirs] = twins.both(path, &body, &[]).await.map(|answer| timeless(&answer.unwrap().text()));
        assert_eq!(ours.replace(",\"usage\":null", ""), theirs, "{path}");
        // All but `[DONE]`.
        assert_eq!(ours.matches(",\"usage\":null").count(), theirs.matches("data: ").count() - 1, "{path}");
        twins.agree(path).await;
    }
    residue::none(&twins.stack).await;
}

#[tokio::test]
async fn tools_and_reasoning_pass_byte_for_byte_and_are_counted() {
    let twins = Twins::start().await;
    let parameters = json!({"type": "object", "properties": {}});
    let tool = json!([{
        "type": "function", "name": "look_up", "function": {"name": "look_up", "parameters": parameters},
        "parameters": parameters, "input_schema": parameters,
    }]);
    let headers = [("x-sim-tools", "3"), ("x-sim-reasoning-tokens", "4"), ("x-sim-answer-tokens", "24")];
    for (path, mut body) in streaming() {
        body["tools"] = tool.clone();
        let answer = twins.ask(path, &streamed(&body), &headers).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.text().contains("look_up"), path != "/v1/completions", "{}", answer.text());
        twins.agree(path).await;
    }
    residue::none(&twins.stack).await;
}

#[tokio::test]
async fn errors_before_and_within_a_stream_pass_as_they_are() {
    let twins = Twins::start().await;
    for (path, body) in streaming() {
        for fault in
            ["status=400", "status=429,retry-after=3", "status=500", "status=529", "error-after=0", "error-after=4"]
        {
            for body in [body.clone(), streamed(&body)] {
                let is_asked = body.get("stream").is_none() && body.get("stream_options").is_some();
                if !is_asked {
                    twins.ask(path, &body, &[("x-sim-fault", fault)]).await;
                }
            }
        }
    }
    residue::none(&twins.stack).await;
}

/// What `x-sim-encode` takes.
const CODINGS: [&str; 5] = ["gzip", "br", "zstd", "deflate", "raw-deflate"];

#[tokio::test]
async fn encoded_answers_are_counted_and_passed_in_their_coding() {
    let twins = Twins::start().await;
    for (path, body) in streaming() {
        for coding in CODINGS {
            for body in [json!({"stream": false}), json!({"stream": true})].map(|more| merged(&body, &more)) {
                if body["stream"] == json!(false) && body.get("stream_options").is_some() {
                    continue;
                }
                let answers = twins.both(path, &body, &[("x-sim-encode", coding)]).await.map(Result::unwrap);
                for answer in &answers {
                    let encoding = answer.header("content-encoding");
                    assert_eq!((answer.status, encoding), (200, Some(coding.trim_start_matches("raw-"))), "{path}");
                }
                let [ours, theirs] = answers.map(|answer| timeless(&decode(coding, &answer.body)));
                assert_eq!(ours, theirs, "{path}, {coding}");
                twins.agree(&format!("{path}, {coding}")).await;
            }
        }
    }
    residue::none(&twins.stack).await;
}

#[tokio::test]
async fn an_answer_whose_coding_lies_is_passed_as_it_is() {
    let twins = Twins::start().await;
    for (path, body) in streaming() {
        let answer = twins.ask(path, &streamed(&body), &[("x-sim-encode", "lie")]).await;
        assert_eq!((answer.status, answer.header("content-encoding")), (200, Some("gzip")), "{path}");
        twins.agree(path).await;
    }
    residue::none(&twins.stack).await;
}

#[tokio::test]
async fn an_encoded_request_that_needs_no_change_is_sent_on_as_it_came() {
    let documents = pool() + &route("r", "served", "{name: pool}");
    let stack = Stack::builder(documents).models(1).without_wasm().start().await.unwrap();
    let text = r#"{"model":"served","messages":[{"role":"user","content":"é😀"}]}"#;
    for (coding, body) in [("gzip", encode("gzip", text.as_bytes())), ("zstd", encode("zstd", text.as_bytes()))] {
        stack.forget_requests();
        let request = stack.client().request(Method::POST, "/v1/chat/completions").body(body.clone());
        let request = request.header("content-type", "application/json").header("content-encoding", coding);
        let answer = Answer::to(request).await.unwrap();
        assert_eq!(answer.status, 200, "{coding}: {}", answer.text());
        let record = stack.models[0].requests().remove(0);
        assert_eq!((record.raw_body.as_ref(), record.headers["content-encoding"].as_str()), (&body[..], coding));
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn usage_that_comes_twice_counts_once() {
    let twins = Twins::start().await;
    for (path, body) in streaming() {
        let answer = twins.ask(path, &streamed(&body), &[("x-sim-fault", "usage-twice")]).await;
        assert_eq!(answer.status, 200, "{path}");
        if path != "/v1/messages" {
            twins.agree(path).await;
        }
    }
    // Anthropic's figures are sums so far, and an event that leaves some out does not take them back: the largest holds.
    let mut expected = [0, 0];
    for record in twins.twin.requests() {
        let times = if record.path == "/v1/messages" { 3 } else { 1 };
        expected[0] += times * record.prompt_tokens;
        expected[1] += times * record.completion_tokens;
    }
    residue::none(&twins.stack).await;
    let metrics = twins.stack.sidecar_metrics().await.unwrap();
    let counted = ["input", "output"]
        .map(|kind| metrics.sum("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", kind)]) as u64);
    assert_eq!(counted, expected);
}

#[tokio::test]
async fn figures_that_cannot_be_are_passed_and_not_believed() {
    let twins = Twins::start().await;
    for (path, body) in streaming() {
        let mut whole = body.clone();
        whole.as_object_mut().unwrap().remove("stream_options");
        for fault in ["negative-usage", "huge-usage"] {
            twins.ask(path, &streamed(&body), &[("x-sim-fault", fault)]).await;
            twins.ask(path, &whole, &[("x-sim-fault", fault)]).await;
        }
    }
    residue::none(&twins.stack).await;
    let metrics = twins.stack.sidecar_metrics().await.unwrap();
    for sample in metrics.samples("gen_ai_client_token_usage_sum") {
        assert!((0.0..1e9).contains(&sample.value), "{sample:?}");
    }
}

#[tokio::test]
async fn answers_that_break_off_break_off_where_they_did() {
    let twins = Twins::start().await;
    for (path, mut body) in streaming() {
        body.as_object_mut().unwrap().remove("stream_options");
        for fault in ["truncate=0", "short-length=20"] {
            let answers = twins.both(path, &body, &[("x-sim-fault", fault)]).await;
            let [ours, theirs] = answers.map(|answer| answer.map(|answer| timeless(&answer.text())).ok());
            assert_eq!(ours, theirs, "{path}, {fault}");
        }
        let [ours, theirs] = twins.both(path, &body, &[("x-sim-fault", "long-length=20")]).await;
        // Where the connection broke before Envoy had passed the headers on, it answers by itself.
        assert!(theirs.is_err() && ours.as_ref().map_or(true, |answer| answer.status == 502), "{path}: {ours:?}");
    }
    residue::none(&twins.stack).await;
}

#[tokio::test]
async fn a_stream_without_an_end_is_counted_when_its_client_leaves() {
    let twins = Twins::start().await;
    for (path, body) in streaming() {
        let body = merged(&streamed(&body), &json!({"model": "assistant"}));
        let client = twins.ours.clone().with_header("x-sim-fault", "endless=5");
        let mut response = client.post(path, &body).send().await.unwrap();
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(": keep-alive") {
            seen.extend(response.chunk().await.unwrap().unwrap());
        }
        drop(response);
    }
    residue::none(&twins.stack).await;
    let mut expected = 0.0;
    for record in twins.stack.models[0].requests() {
        expected += (record.prompt_tokens + record.completion_tokens) as f64;
    }
    let metrics = twins.stack.sidecar_metrics().await.unwrap();
    let sum = |kind| metrics.sum("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", kind)]);
    assert_eq!(sum("input") + sum("output"), expected);
}

fn merged(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}
