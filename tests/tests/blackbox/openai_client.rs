//! The official OpenAI client reads from the gateway what it reads from the model server itself.

use attache_tests::{Stack, tools};
use tokio::process::Command;

use crate::{
    documents::{key, limits, pool, route},
    residue,
};

#[tokio::test]
async fn the_official_python_client_finds_no_difference_to_the_model_server() {
    let documents = [
        pool(),
        route("assistant", "assistant", "{name: pool, modelNameOverride: served}"),
        route("poor", "poor", "{name: pool, modelNameOverride: served}"),
        key("a", "acme", "assistant"),
        key("poor", "acme", "poor"),
        limits("assistant", "{name: n, per: [key], limit: 1000, window: 300d, cost: requests}"),
        limits("poor", "{name: n, per: [key], limit: 1, window: 300d, cost: requests}"),
    ];
    let stack = Stack::builder(documents.concat()).models(1).start().await.unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/openai_client.py");
    let mut python = Command::new(tools::python().unwrap());
    python.arg(script).arg(stack.gateway.envoy.url()).arg(stack.models[0].url());
    // What a developer has set for the client must not reach it.
    for name in [
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ] {
        python.env_remove(name);
    }
    let output = python.kill_on_drop(true).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("done"), "{said}");
    residue::none(&stack).await;
}
