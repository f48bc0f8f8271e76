//! One name in front of other names: what reaches the model server, and what comes back.

use attache_tests::{Answer, Client, EventStream, Stack, client::StreamEnd, tools::Profile};
use bytes::Bytes;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::{
    documents::{key, pool, route},
    profile,
    raw::{Connection, chunked, post},
    residue,
};

const CHAT: &str = "/v1/chat/completions";

/// Clients ask for `assistant`; the model server knows it as `served`.
async fn stack() -> Stack {
    let documents = pool() + &route("unified", "assistant", "{name: pool, modelNameOverride: served}");
    Stack::builder(documents).models(1).without_wasm().start().await.unwrap()
}

fn raw_post(client: &Client, path: &str, body: impl Into<Bytes>) -> RequestBuilder {
    client.request(Method::POST, path).header("content-type", "application/json").body(body.into())
}

/// The answer without what differs from request to request.
fn comparable(mut answer: Value) -> Value {
    if let Some(fields) = answer.as_object_mut() {
        fields.remove("id");
        fields.remove("created");
        // The second request of two equal ones finds the first in the cache.
        if let Some(usage) = fields.get_mut("usage").and_then(Value::as_object_mut) {
            usage.remove("prompt_tokens_details");
        }
    }
    answer
}

#[tokio::test]
async fn only_the_value_of_model_changes_on_its_way_to_the_server() {
    let stack = stack().await;
    let bodies = [
        r#"{"model":"assistant","messages":[{"role":"user","content":"Hi"}]}"#,
        "\r\n{ \t\"messages\" : [ ] ,\n\n \"model\"\t:\n\"assistant\"  ,\"temperature\": 1.50e0 }  \n",
        r#"{"mod\u0065l":"assistant","messages":[{"role":"user","content":"\u00e9\ud83d\ude00 \/ \"model\":\"assistant\""}]}"#,
        r#"{"model":"\u0061ssistant","messages":[],"metadata":{"model":"assistant"}}"#,
        r#"{"messages":[{"role":"user","content":"a","vendor":{"deep":[[[1,null,true]]]}}],"top_k":40,"guided":{},"model":"assistant"}"#,
        r#"{"messages":[{"role":"user","content":"é😀"}],"big":123456789012345678901234567890,"model":"assistant","n":1,"same":1,"same":2}"#,
    ];
    for body in bodies {
        stack.forget_requests();
        let answer = Answer::to(raw_post(&stack.client(), CHAT, body)).await.unwrap();
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        let record = stack.models[0].requests().remove(0);
        let value = if body.contains(r#""\u0061ssistant""#) { r#""\u0061ssistant""# } else { r#""assistant""# };
        // The last of them is the value of the top-level key in one body, the first in the others.
        let at =
            if body.contains(r#"\ud83d"#) || body.contains("metadata") { body.find(value) } else { body.rfind(value) };
        let mut expected = body.to_owned();
        expected.replace_range(at.unwrap()..at.unwrap() + value.len(), r#""served""#);
        assert_eq!(record.body, expected);
        assert_eq!(record.headers["content-length"], expected.len().to_string());
        assert_eq!(record.path, CHAT);
        assert_eq!(answer.json().unwrap()["model"], "served");
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_streamed_request_is_changed_in_the_model_and_in_asking_for_usage_alone() {
    let stack = stack().await;
    // What is sent, and what is to be read there once the model is renamed.
    let cases = [
        (json!({"model": "assistant", "stream": true, "messages": []}), true),
        (
            json!({"stream_options": {"include_usage": false, "x": 1}, "model": "assistant", "stream": true, "messages": []}),
            true,
        ),
        (json!({"stream_options": {}, "model": "assistant", "stream": true, "messages": []}), true),
        (json!({"stream_options": null, "model": "assistant", "stream": true, "messages": []}), true),
        (
            json!({"stream_options": {"include_usage": true}, "model": "assistant", "stream": true, "messages": []}),
            false,
        ),
        (json!({"model": "assistant", "stream": false, "messages": []}), false),
    ];
    for (body, is_asked) in cases {
        stack.forget_requests();
        let answer = Answer::to(stack.client().post(CHAT, &body)).await.unwrap();
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        let record = stack.models[0].requests().remove(0);
        let sent: Value = serde_json::from_str(&record.body).unwrap();
        let mut expected = body.clone();
        expected["model"] = json!("served");
        if is_asked {
            if !expected["stream_options"].is_object() {
                expected["stream_options"] = json!({});
            }
            expected["stream_options"]["include_usage"] = json!(true);
        }
        assert_eq!(sent, expected);
        assert_eq!(record.headers["content-length"], record.body_bytes.to_string());
    }
}

#[tokio::test]
async fn the_usage_event_is_hidden_unless_the_client_asked_for_it() {
    let stack = stack().await;
    for path in [CHAT, "/v1/completions"] {
        let body = json!({"model": "assistant", "messages": [], "prompt": "Hi", "max_tokens": 5, "stream": true});
        let mut asking = body.clone();
        asking["stream_options"] = json!({"include_usage": true});
        for (body, is_shown) in [(&body, false), (&asking, true)] {
            let gateway = EventStream::to(stack.client().post(path, body)).await.unwrap().rest().await;
            let mut direct_body = body.clone();
            direct_body["model"] = json!("served");
            let direct = Client::new(stack.models[0].url()).unwrap();
            let direct = EventStream::to(direct.post(path, &direct_body)).await.unwrap().rest().await;
            let events =
                |events: &attache_tests::client::Events| -> Vec<Value> { events.json().map(comparable).collect() };
            let mut ours = events(&gateway);
            // The client did not ask for usage, so it must not see the trace of our asking: vLLM's `"usage":null`.
            if !is_shown {
                for event in &mut ours {
                    if let Some(fields) = event.as_object_mut()
                        && fields.get("usage") == Some(&Value::Null)
                    {
                        fields.remove("usage");
                    }
                }
            }
            assert_eq!(ours, events(&direct), "{path}");
            assert_eq!(gateway.data.len(), direct.data.len());
            assert!(gateway.is_done());
            let has_usage = gateway.json().any(|event| event["usage"].is_object());
            assert_eq!((has_usage, gateway.end), (is_shown, StreamEnd::Complete), "{path}");
        }
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn every_endpoint_answers_as_the_model_server_does() {
    let stack = stack().await;
    let direct = Client::new(stack.models[0].url()).unwrap();
    let cases = [
        (CHAT, json!({"messages": [{"role": "user", "content": "Hello"}], "n": 2})),
        ("/v1/completions", json!({"prompt": ["one", "two"], "max_tokens": 4})),
        ("/v1/completions", json!({"prompt": [1, 2, 3, 4], "max_tokens": 4})),
        ("/v1/embeddings", json!({"input": ["one", "two"], "encoding_format": "float"})),
    ];
    for (path, body) in cases {
        let named = |name: &str| {
            let mut body = body.clone();
            body["model"] = json!(name);
            body
        };
        let ours = Answer::to(stack.client().post(path, &named("assistant"))).await.unwrap();
        let theirs = Answer::to(direct.post(path, &named("served"))).await.unwrap();
        assert_eq!((ours.status, ours.header("content-type")), (200, theirs.header("content-type")), "{path}");
        assert_eq!(comparable(ours.json().unwrap()), comparable(theirs.json().unwrap()), "{path}");
    }
}

#[tokio::test]
async fn large_bodies_arrive_whole_over_both_versions_of_http() {
    let stack = stack().await;
    let h2 = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let url = format!("{}{CHAT}", stack.gateway.envoy.url());
    let direct = Client::new(stack.models[0].url()).unwrap();
    for bytes in [100_000, 5_000_000] {
        let content: String =
            (0..bytes / 10).map(|line| format!("line {line:04}\n").chars().take(10).collect::<String>()).collect();
        let body = |model: &str| {
            let tail = "x".repeat(3);
            format!(
                r#"{{"messages":[{{"role":"user","content":{}}}],"model":"{model}","tail":"{tail}"}}"#,
                json!(content)
            )
        };
        let expected = Answer::to(raw_post(&direct, CHAT, body("served"))).await.unwrap().json().unwrap();
        let requests = [
            raw_post(&stack.client(), CHAT, body("assistant")),
            h2.post(&url).header("content-type", "application/json").body(body("assistant")),
        ];
        for request in requests {
            stack.forget_requests();
            let answer = Answer::to(request).await.unwrap();
            assert_eq!(answer.status, 200, "{bytes}: {}", answer.text());
            // The answer's words are a function of the whole prompt.
            assert_eq!(answer.json().unwrap()["choices"], expected["choices"]);
            let record = stack.models[0].requests().remove(0);
            assert_eq!(record.body_bytes, body("served").len());
            assert_eq!(record.body, body("served")[..record.body.len()]);
        }
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn many_large_bodies_at_once_do_not_hold_each_other_up() {
    let stack = stack().await;
    let body = json!({"model": "assistant", "messages": [{"role": "user", "content": "x".repeat(4_000_000)}]});
    let client = stack.client();
    let answers = futures_util::future::join_all((0..12).map(|_| client.chat(&body))).await;
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_chunked_upload_arrives_as_it_was_meant() {
    let stack = stack().await;
    let body = r#"{"stream":true,"messages":[{"role":"user","content":"é😀"}],"model":"assistant"}"#;
    for size in [1, 3, 50] {
        stack.forget_requests();
        let mut connection = Connection::open(&stack.gateway.envoy).await;
        connection.send(chunked(CHAT, "")).await;
        for piece in body.as_bytes().chunks(size) {
            connection.send_chunk(piece).await;
        }
        connection.send_chunk(b"").await;
        let answer = connection.read_answer().await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.body.contains("data: [DONE]"), "{}", answer.body);
        let record = stack.models[0].requests().remove(0);
        let sent: Value = serde_json::from_str(&record.body).unwrap();
        assert_eq!(sent["model"], "served");
        assert_eq!(sent["messages"], json!([{"role": "user", "content": "é😀"}]));
        assert_eq!(sent["stream_options"], json!({"include_usage": true}));
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_client_that_expects_100_continue_gets_it() {
    let stack = stack().await;
    let body = br#"{"model":"assistant","messages":[]}"#;
    let request = post(CHAT, "expect: 100-continue\r\n", body);
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    connection.send(&request[..request.len() - body.len()]).await;
    assert!(connection.read_head().await.starts_with("HTTP/1.1 100 Continue"));
    connection.send(body).await;
    assert_eq!(connection.read_answer().await.status, 200);
}

#[tokio::test]
async fn models_lists_what_the_key_may_call() {
    let documents = [
        pool(),
        route("one", "model-one", "{name: pool}"),
        route("two", "model-two", "{name: pool}"),
        key("both", "acme", "one, two"),
        key("second", "acme", "two"),
    ];
    let stack = Stack::builder(documents.concat()).models(1).without_wasm().start().await.unwrap();
    let list = async |key: &str| {
        let answer = stack.client().with_key(key).get("/v1/models").await.unwrap();
        let json = answer.json().unwrap();
        let ids: Vec<_> = json["data"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect();
        (answer.status, json["object"].clone(), ids)
    };
    assert_eq!(list("sk-both").await, (200, json!("list"), vec!["model-one".to_owned(), "model-two".to_owned()]));
    assert_eq!(list("sk-second").await, (200, json!("list"), vec!["model-two".to_owned()]));
    assert_eq!(list("sk-nobody").await.0, 401);
    assert_eq!(stack.models[0].requests_total(), 0);
}

#[tokio::test]
async fn neither_the_clients_key_nor_our_headers_reach_the_model_server_or_come_back() {
    let documents =
        [pool(), route("one", "assistant", "{name: pool, modelNameOverride: served}"), key("secret", "acme", "one")];
    let stack = Stack::builder(documents.concat()).models(1).start().await.unwrap();
    let ways = [("authorization", "Bearer sk-secret"), ("x-api-key", "sk-secret"), ("api-key", "sk-secret")];
    for (name, value) in ways {
        stack.forget_requests();
        let client = stack.client().with_header(name, value).with_header("x-request-tag", "kept");
        let answer = client.chat(&json!({"model": "assistant", "messages": []})).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let record = stack.models[0].requests().remove(0);
        assert!(!format!("{record:?}").contains("sk-secret"), "{record:?}");
        assert_eq!(record.headers["x-request-tag"], "kept");
        let ours =
            |name: &str| name.starts_with("x-attache-") || name == "x-ai-eg-model" || name.starts_with("x-envoy-");
        // Envoy Gateway has no word for what is done once a replica is chosen.
        let is_destination = |name: &str| name.starts_with("x-gateway-") && profile::is(Profile::Static);
        let leaked: Vec<_> = record.headers.keys().filter(|name| ours(name) || is_destination(name)).collect();
        assert!(leaked.is_empty(), "{leaked:?}");
        let leaked: Vec<_> = answer
            .headers
            .keys()
            .filter(|name| ours(name.as_str()) || name.as_str().starts_with("x-gateway"))
            .collect();
        assert!(leaked.is_empty(), "{leaked:?}");
    }
}

#[tokio::test]
async fn errors_of_the_model_server_pass_as_they_are() {
    let stack = stack().await;
    let direct = Client::new(stack.models[0].url()).unwrap();
    for fault in ["status=400", "status=404", "status=418", "status=429,retry-after=7", "status=500", "status=503"] {
        for stream in [false, true] {
            let body = |model: &str| json!({"model": model, "messages": [], "stream": stream});
            let ours = stack.client().with_header("x-sim-fault", fault).chat(&body("assistant")).await.unwrap();
            let theirs = direct.clone().with_header("x-sim-fault", fault).chat(&body("served")).await.unwrap();
            assert_eq!((ours.status, &ours.body), (theirs.status, &theirs.body), "{fault}");
            for name in ["content-type", "retry-after"] {
                assert_eq!(ours.header(name), theirs.header(name), "{fault}, {name}");
            }
        }
    }
    residue::none(&stack).await;
}

/// As the default configuration of Envoy AI Gateway's own command line has it.
#[tokio::test]
async fn a_route_of_a_regular_expression_serves_whatever_it_matches_and_the_exact_ones_before_it() {
    let any = route("any", ".*", "{name: pool}")
        .replace("name: x-ai-eg-model,", "name: x-ai-eg-model, type: RegularExpression,");
    let documents = [
        pool(),
        any,
        route("exact", "assistant", "{name: pool, modelNameOverride: served}"),
        key("a", "acme", "any, exact"),
    ];
    let stack = Stack::builder(documents.concat()).models(1).start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    for (asked, sent) in [("gpt-4o", "gpt-4o"), ("assistant", "served"), ("assistant-2", "assistant-2")] {
        let body = json!({"model": asked, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3});
        let answer = client.clone().with_header("x-ai-eg-model", asked).chat(&body).await.unwrap();
        assert_eq!(answer.status, 200, "{asked}: {}", answer.text());
        assert_eq!(stack.models[0].requests().pop().unwrap().model.as_deref(), Some(sent));
    }
    let list = client.get("/v1/models").await.unwrap().json().unwrap();
    let names: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["assistant"], "patterns are no names");
    // What clients make up is no label.
    let page = stack.gateway.sidecar.page("/metrics").await.unwrap();
    assert!(page.contains("default/any/0") && !page.contains("gpt-4o"), "{page}");
}
