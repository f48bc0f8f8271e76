//! The official Anthropic client reads from the gateway what it reads from the model server itself.

use attache_tests::Stack;

use crate::{
    documents::{key, limits, pool, route},
    python, residue,
};

const SCRIPT: &str = "anthropic_client.py";

async fn stack() -> Stack {
    let documents = [
        pool(),
        route("assistant", "assistant", "{name: pool, modelNameOverride: served}"),
        route("poor", "poor", "{name: pool, modelNameOverride: served}"),
        key("a", "acme", "assistant"),
        key("poor", "acme", "poor"),
        limits("assistant", "{name: tokens, per: [key], limit: 100000000, window: 300d}"),
        limits("poor", "{name: n, per: [key], limit: 1, window: 300d, cost: requests}"),
    ];
    Stack::builder(documents.concat()).models(1).start().await.unwrap()
}

#[tokio::test]
async fn the_official_python_client_finds_no_difference_to_the_model_server() {
    let stack = stack().await;
    python::compare(SCRIPT, &stack, "core,broken,errors", None).await;
    residue::none(&stack).await;
}

#[tokio::test]
async fn the_model_server_speaks_as_the_official_client_understands_it() {
    for coding in [None, Some("auto"), Some("raw-deflate")] {
        python::compare_servers(SCRIPT, "core,endpoints,broken", coding).await;
    }
}

#[tokio::test]
async fn the_remaining_endpoints_answer_as_the_model_server_does() {
    let stack = stack().await;
    python::compare(SCRIPT, &stack, "endpoints", None).await;
    residue::none(&stack).await;
}

#[tokio::test]
async fn answers_in_every_coding_read_the_same_and_are_counted() {
    for coding in ["auto", "gzip", "br", "zstd", "deflate", "raw-deflate"] {
        let stack = stack().await;
        python::compare(SCRIPT, &stack, "core,endpoints,broken", Some(coding)).await;
        residue::none(&stack).await;
    }
}
