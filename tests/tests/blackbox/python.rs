//! Scripts with the official client libraries.

use std::path::Path;

use attache_model_server::{Config, ModelServer};
use attache_tests::{Stack, tools};
use tokio::process::Command;

/// What a developer may have set for the clients; it must not reach them.
const ENVIRONMENT: [&str; 11] = [
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
];

/// Runs a script of `tests/python` to its end and returns what it said. It must say `done`.
pub(crate) async fn run(script: &str, arguments: &[String]) -> String {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python"));
    let mut python = Command::new(tools::python().unwrap());
    // No compiled scripts beside the sources; nothing about what the clients mean to drop.
    python.args(["-B", "-W", "ignore"]).arg(directory.join(script)).args(arguments);
    for name in ENVIRONMENT {
        python.env_remove(name);
    }
    let output = python.kill_on_drop(true).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("done"), "{said}");
    said.into_owned()
}

/// Runs a script's parts, separated by commas, against the gateway and a twin of its model server, with all answers in this
/// content coding. The gateway's ledger must grow by what the twin counts.
pub(crate) async fn compare(script: &str, stack: &Stack, parts: &str, coding: Option<&str>) {
    let twin = ModelServer::start(Config::default()).await.unwrap();
    let admin = ["--admin".to_owned(), stack.gateway.sidecar.admin_url()];
    let mut arguments = arguments([stack.gateway.envoy.url(), twin.url()], parts, coding);
    arguments.extend(admin);
    run(script, &arguments).await;
}

/// Runs a script's parts against two model servers, without a gateway.
pub(crate) async fn compare_servers(script: &str, parts: &str, coding: Option<&str>) {
    let servers =
        [ModelServer::start(Config::default()).await.unwrap(), ModelServer::start(Config::default()).await.unwrap()];
    let mut arguments = arguments([servers[0].url(), servers[1].url()], parts, coding);
    arguments.extend(["--model", "served"].map(str::to_owned));
    run(script, &arguments).await;
}

fn arguments(urls: [String; 2], parts: &str, coding: Option<&str>) -> Vec<String> {
    let mut arguments = Vec::from(urls);
    arguments.extend(["--parts".to_owned(), parts.to_owned()]);
    arguments.extend(coding.into_iter().flat_map(|coding| ["--coding".to_owned(), coding.to_owned()]));
    arguments
}
