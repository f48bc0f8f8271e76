//! The official OpenAI client's own retries back off by our headers.

use attache_tests::Stack;

use crate::{
    documents::{key, limits, pool, route},
    python, residue,
};

/// Two requests in two seconds, and one in 300 days.
async fn stack(routes: &str) -> Stack {
    let documents = [
        pool(),
        route("brief", "brief", "{name: pool}"),
        route("budget", "budget", "{name: pool}"),
        key("a", "acme", routes),
        limits("brief", "{name: n, per: [key], limit: 2, window: 2s, cost: requests}"),
        limits("budget", "{name: n, per: [key], limit: 1, window: 300d, cost: requests}"),
    ];
    Stack::builder(documents.concat()).models(1).start().await.unwrap()
}

async fn backs_off(stack: &Stack, models: &[&str]) {
    let models = models.iter().map(|&model| model.to_owned());
    let arguments: Vec<_> = [stack.gateway.envoy.url()].into_iter().chain(models).collect();
    let said = python::run("backoff.py", &arguments).await;
    assert!(said.contains("came back after"), "{said}");
    residue::none(stack).await;
}

async fn refused_by_filter(stack: &Stack) -> u64 {
    stack.gateway.envoy.stats().await.unwrap().value("wasmcustom.attache_filter_refused_exhausted")
}

#[tokio::test]
async fn the_official_python_client_comes_back_when_it_was_told_to_and_succeeds() {
    // A key with two endpoints, limited each for itself, is the sidecar's to refuse.
    let stack = stack("brief, budget").await;
    backs_off(&stack, &["brief", "budget"]).await;
    assert_eq!(refused_by_filter(&stack).await, 0);
}

#[tokio::test]
async fn it_does_so_where_the_filter_refuses_as_well() {
    let stack = stack("brief").await;
    backs_off(&stack, &["brief"]).await;
    assert!(refused_by_filter(&stack).await > 0);
}
