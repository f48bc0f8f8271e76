//! What others put around the sidecar: the ext_proc settings that Envoy Gateway makes, and an access log that reads the costs.

use attache_tests::{Answer, Stack, until};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    documents::{key, limits, pool, route_with},
    residue,
    second_envoy::envoy_with,
};

const DAY: &str = "{name: day, per: [key], limit: 1000000, window: 300d}";

async fn stack() -> Stack {
    let costs =
        "llmRequestCosts: [{metadataKey: llm_total_token, type: TotalToken}, {metadataKey: out, type: OutputToken}]";
    let documents = pool()
        + &route_with("unified", "assistant", "{name: pool, modelNameOverride: served}", costs)
        + &limits("unified", DAY)
        + &key("a", "acme", "unified");
    Stack::builder(documents).models(1).without_wasm().start().await.unwrap()
}

/// Envoy Gateway has bodies buffered, and has no words for these settings.
pub(crate) const AS_ENVOY_GATEWAY: [(&str, &str); 4] = [
    ("request_body_mode: STREAMED", "request_body_mode: BUFFERED"),
    ("send_body_without_waiting_for_header_response: true\n", "\n"),
    ("allow_content_length_header: true\n", "\n"),
    ("mutation_rules: {allow_all_routing: true, allow_envoy: true}\n", "\n"),
];

fn chat() -> Value {
    json!({"model": "assistant", "messages": [{"role": "user", "content": "Hello there"}]})
}

#[tokio::test]
async fn in_the_profile_of_envoy_gateway_requests_are_rewritten_counted_and_limited_all_the_same() {
    let stack = stack().await;
    let envoy = envoy_with(&stack, &AS_ENVOY_GATEWAY).await;
    let client = envoy.client().unwrap().with_key("sk-a");

    let whole = client.chat(&chat()).await.unwrap();
    assert_eq!(whole.status, 200, "{}", whole.text());
    assert_eq!((whole.status, &whole.json().unwrap()["model"]), (200, &json!("served")), "{}", whole.text());
    let used = whole.json().unwrap()["usage"]["total_tokens"].as_u64().unwrap();

    let events = client.stream_chat(&chat()).await.unwrap();
    assert_eq!(events.header("x-ratelimit-remaining-tokens"), Some((1_000_000 - used).to_string().as_str()));
    let events = events.rest().await;
    assert!(events.is_done() && events.json().all(|event| event["usage"].is_null()), "{:?}", events.data);

    let large = json!({"model": "assistant", "messages": [{"role": "user", "content": "x".repeat(5 << 20)}]});
    assert_eq!(client.chat(&large).await.unwrap().status, 200);

    let sent: Vec<Value> =
        stack.models[0].requests().iter().filter_map(|record| serde_json::from_str(&record.body).ok()).collect();
    assert_eq!(sent[0]["model"], "served");
    assert_eq!(sent[1]["stream_options"]["include_usage"], true);
    let lengths: Vec<_> = stack.models[0].requests().iter().map(|record| record.body_bytes).collect();
    assert_eq!(lengths[2], large.to_string().len() - "assistant".len() + "served".len());
    residue::none(&stack).await;
}

#[tokio::test]
async fn in_the_profile_of_envoy_gateway_refusals_read_the_same() {
    let stack = stack().await;
    let envoy = envoy_with(&stack, &AS_ENVOY_GATEWAY).await;
    let client = envoy.client().unwrap().with_key("sk-a");
    let raw = |body: &'static str| client.request(Method::POST, "/v1/chat/completions").body(body);
    for (body, status) in [("", 400), ("not json", 400), (r#"{"model":"nobody"}"#, 404)] {
        let answer = Answer::to(raw(body)).await.unwrap();
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert!(answer.json().unwrap()["error"]["message"].is_string());
    }
    assert_eq!(envoy.client().unwrap().chat(&chat()).await.unwrap().status, 401);
    assert_eq!(client.get("/v1/models").await.unwrap().json().unwrap()["data"][0]["id"], "assistant");
    assert_eq!(stack.models[0].requests_total(), 0);
    residue::none(&stack).await;
}

#[tokio::test]
async fn access_logs_find_the_costs_that_the_route_names() {
    let stack = stack().await;
    let log = stack.directory().join("access.log");
    let logging = format!(
        "stat_prefix: attache\n          access_log:\n          - name: file\n            typed_config:\n              \
         \"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog\n              \
         path: {}\n              log_format: {{text_format_source: {{inline_string: \
         \"%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_total_token)% %DYNAMIC_METADATA(io.envoy.ai_gateway:out)%\\n\"}}}}\n",
        log.display()
    );
    let envoy = envoy_with(&stack, &[("stat_prefix: attache\n", &logging)]).await;
    let client = envoy.client().unwrap().with_key("sk-a").with_header("x-sim-answer-tokens", "7");
    let usage = client.chat(&chat()).await.unwrap().json().unwrap()["usage"].clone();
    client.stream_chat(&chat()).await.unwrap().rest().await;
    let line = format!("{} 7", usage["total_tokens"]);
    let mut lines = String::new();
    // Envoy writes its access log every few seconds, and when it ends.
    until("the access log is written", async || {
        lines = std::fs::read_to_string(&log).unwrap_or_default();
        lines.lines().count() == 2
    })
    .await
    .unwrap();
    assert_eq!(lines.lines().collect::<Vec<_>>(), [line.as_str(), line.as_str()]);
}
