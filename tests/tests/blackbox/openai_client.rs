//! The official OpenAI client reads from the gateway what it reads from the model server itself.

use attache_tests::Stack;

use crate::{
    documents::{key, limits, pool, route},
    python, residue,
};

#[tokio::test]
async fn the_official_python_client_finds_no_difference_to_the_model_server() {
    let documents = [
        pool(),
        route("assistant", "assistant", "{name: pool, modelNameOverride: served}"),
        route("poor", "poor", "{name: pool, modelNameOverride: served}"),
        route("short", "short", "{name: pool, modelNameOverride: served}"),
        key("a", "acme", "assistant"),
        key("poor", "acme", "poor"),
        key("short", "acme", "short"),
        limits("assistant", "{name: n, per: [key], limit: 1000, window: 300d, cost: requests}"),
        limits("poor", "{name: n, per: [key], limit: 1, window: 300d, cost: requests}"),
        limits("short", "{name: t, per: [key], limit: 200, window: 300d, mode: strict, cap: true}"),
    ];
    let stack = Stack::builder(documents.concat()).models(1).start().await.unwrap();
    let urls = [stack.gateway.envoy.url(), stack.models[0].url()];
    python::run("openai_client.py", &urls).await;
    residue::none(&stack).await;
}
