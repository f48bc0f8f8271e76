//! Scripts with the official client libraries.

use std::path::Path;

use attache_tests::tools;
use tokio::process::Command;

/// Runs a script of `tests/python` to its end and returns what it said. It must say `done`.
pub(crate) async fn run(script: &str, arguments: &[String]) -> String {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python"));
    let mut python = Command::new(tools::python().unwrap());
    python.arg(directory.join(script)).args(arguments);
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
    said.into_owned()
}
