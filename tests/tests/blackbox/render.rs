//! What `attache render static` prints, Envoy takes: for every example, with and without the Wasm filter.

use std::{
    fs,
    path::{Path, PathBuf},
};

use attache_tests::{Directory, tools};
use tokio::process::Command;

use crate::documents::{affinity, backend, key, limits, pool, route};

/// Envoy's word on the rendering of this file.
async fn validate(file: &Path, sidecars: &[&str], directory: &Directory) {
    for wasm in [None, Some(tools::wasm_filter().unwrap())] {
        for extproc in sidecars {
            let mut render = Command::from(tools::attache().unwrap());
            render.args(["render", "static"]).arg(file).args(["--extproc", extproc]);
            render.args(["--admin", "127.0.0.1:9901", "--stats", "127.0.0.1:9902"]);
            if let Some(wasm) = &wasm {
                render.arg("--wasm").arg(wasm);
            }
            let rendered = render.output().await.unwrap();
            let said = String::from_utf8_lossy(&rendered.stderr);
            assert!(rendered.status.success(), "{}: {said}", file.display());
            let bootstrap = directory.path().join("bootstrap.yaml");
            fs::write(&bootstrap, &rendered.stdout).unwrap();
            let envoy =
                Command::new(tools::envoy().unwrap()).args(["--mode", "validate", "-c"]).arg(&bootstrap).output();
            let envoy = envoy.await.unwrap();
            assert!(
                envoy.status.success(),
                "{} {wasm:?} {extproc}: {}",
                file.display(),
                String::from_utf8_lossy(&envoy.stderr)
            );
        }
    }
}

/// The files with documents of ours, and not with what is rendered of them.
fn examples(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(examples(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path).unwrap();
            let is_ours = text.lines().any(|line| line.starts_with("kind: AIGatewayRoute"));
            files.extend(is_ours.then_some(path));
        }
    }
    files.sort();
    files
}

#[tokio::test]
async fn envoy_takes_the_rendering_of_every_example() {
    let directory = Directory::temporary().unwrap();
    let files = examples(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config"));
    assert!(!files.is_empty());
    for file in files {
        validate(&file, &["unix:/run/attache.sock"], &directory).await;
    }
}

#[tokio::test]
async fn envoy_takes_every_kind_of_endpoint_mode_and_sidecar() {
    let directory = Directory::temporary().unwrap();
    let documents = [
        backend("v4", "[{ip: {address: 10.0.0.1, port: 8000}}, {ip: {address: 10.0.0.2, port: 8000}}]"),
        backend("v6", "[{ip: {address: \"fd00::1\", port: 8000}}]"),
        backend("named", "[{fqdn: {hostname: a.example, port: 80}}, {fqdn: {hostname: b.example, port: 80}}]"),
        backend("socket", "[{unix: {path: /run/model.sock}}]"),
        backend("clusters", "[{ip: {address: 10.0.0.1, port: 8000}}, {ip: {address: 10.0.0.2, port: 8000}}]"),
        affinity("clusters", "mode: cluster"),
        route(
            "r",
            "a \u{e9} model/with:signs",
            "{name: v4}, {name: v6}, {name: named}, {name: socket}, {name: clusters}",
        ),
        key("a", "acme", "r"),
        limits("r", "{name: t, per: [key], limit: 1, window: 1m}"),
    ];
    let file = directory.path().join("attache.yaml");
    fs::write(&file, documents.concat()).unwrap();
    validate(&file, &["127.0.0.1:10001", "sidecar.example:10001", "unix:/run/attache.sock"], &directory).await;
}

#[tokio::test]
async fn a_backend_that_two_service_backends_share_is_one_cluster() {
    let directory = Directory::temporary().unwrap();
    let twin = "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIServiceBackend\nmetadata: {name: twin}\n\
        spec: {schema: {name: OpenAI}, backendRef: {group: gateway.envoyproxy.io, kind: Backend, name: pool}}\n---\n";
    let file = directory.path().join("attache.yaml");
    for policy in [String::new(), affinity("twin", "mode: cluster"), affinity("pool", "mode: cluster")] {
        let pool = backend("pool", "[{ip: {address: 10.0.0.1, port: 8000}}, {ip: {address: 10.0.0.2, port: 8000}}]");
        let routes = route("r", "m", "{name: pool}") + &route("s", "n", "{name: twin}");
        fs::write(&file, pool + twin + &policy + &routes).unwrap();
        validate(&file, &["unix:/run/attache.sock"], &directory).await;
    }
}

#[tokio::test]
async fn nothing_is_rendered_of_a_file_with_errors() {
    let directory = Directory::temporary().unwrap();
    let file = directory.path().join("attache.yaml");
    let text =
        pool().replace("${MODELS}", "[{ip: {address: 10.0.0.1, port: 1}}]") + &route("r", "m", "{name: nowhere}");
    fs::write(&file, text).unwrap();
    let rendered = tools::attache().unwrap().args(["render", "static"]).arg(&file).output().unwrap();
    assert!(!rendered.status.success() && rendered.stdout.is_empty());
    let said = String::from_utf8(rendered.stderr).unwrap();
    assert!(said.contains("attache.yaml:") && said.contains("nowhere"), "{said}");
}
