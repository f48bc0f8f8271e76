//! `attache doctor` before a real Envoy: it finds nothing in what we render, and what was broken where something was. (That every
//! breakage is found, and nothing else, is proved on dumps in `extproc/src/doctor/tests`.)

mod bodies;
mod discovered;
mod names;
mod running;

use std::{collections::BTreeSet, fs, process::Output};

use attache_tests::{Directory, Envoy, Stack, port, tools, until};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    documents::{open, pool, route},
    profiles::AS_ENVOY_GATEWAY,
    second_envoy::envoy_with,
};

/// Runs it; gives its exit status and what it printed.
async fn doctor(arguments: &[&str]) -> Output {
    Command::from(tools::attache().unwrap()).arg("doctor").args(arguments).output().await.unwrap()
}

/// `HOST:PORT` of a URL.
fn address(url: &str) -> String {
    url.trim_start_matches("http://").to_owned()
}

/// What it says of this Envoy: the exit status and what was found, but for notes.
async fn diagnose(envoy: &Envoy, sidecar_admin: Option<&str>) -> (Option<i32>, BTreeSet<String>, Value) {
    let admin = address(&envoy.admin_url());
    let mut arguments = vec!["--json", "--admin", &admin];
    arguments.extend(sidecar_admin.into_iter().flat_map(|admin| ["--sidecar-admin", admin]));
    let output = doctor(&arguments).await;
    let page: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let proxy = page["proxies"][0].clone();
    let findings = proxy["findings"].as_array().unwrap();
    let found = findings.iter().filter(|finding| finding["severity"] != "note");
    let found = found.map(|finding| finding["id"].as_str().unwrap().to_owned()).collect();
    (output.status.code(), found, proxy)
}

fn ids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The words of the first finding of this rule.
fn what(proxy: &Value, id: &str) -> String {
    let findings = proxy["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["id"] == id).and_then(|finding| finding["what"].as_str());
    found.unwrap_or_default().to_owned()
}

/// The setting as the rendering has it.
fn message_timeout(stack: &Stack) -> String {
    let bootstrap = fs::read_to_string(stack.directory().join("envoy-0.yaml")).unwrap();
    let line = bootstrap.lines().find(|line| line.trim_start().starts_with("message_timeout: ")).unwrap();
    line.trim_start().to_owned()
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
}

async fn stack() -> Stack {
    Stack::builder(pool() + &route("r", "m", "{name: pool}")).models(2).start().await.unwrap()
}

#[tokio::test]
async fn nothing_is_wrong_with_what_we_render_before_a_real_envoy() {
    let stack = stack().await;
    let admin = address(&stack.gateway.sidecar.admin_url());
    let (status, found, proxy) = diagnose(&stack.gateway.envoy, Some(&admin)).await;
    assert_eq!((status, found), (Some(0), ids(&[])), "{proxy}");
    assert_eq!(proxy["attachments"][0]["request_body"], "STREAMED");
    let notes: Vec<_> = proxy["findings"].as_array().unwrap().iter().map(|finding| &finding["id"]).collect();
    assert_eq!(notes, ["no-traffic"]);

    assert_eq!(stack.client().chat(&chat()).await.unwrap().status, 200);
    let (_, _, proxy) = diagnose(&stack.gateway.envoy, None).await;
    assert_eq!(proxy["findings"], json!([]), "a stream was counted");
    let text = doctor(&["--admin", &address(&stack.gateway.envoy.admin_url())]).await;
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("\nattached, by what Envoy has seen so far: 0 errors, 0 warnings, 0 notes\n"), "{text}");
}

#[tokio::test]
async fn what_was_broken_in_an_envoy_is_found_there() {
    let stack = stack().await;
    // Settings that Envoy takes, and that hurt.
    type Breakage = (&'static [(&'static str, &'static str)], &'static [&'static str]);
    let breakages: [Breakage; 4] = [
        (&[("timeout: 0s", "timeout: 10s")], &["answers-time-out"]),
        (
            &[
                ("limit_bytes: 1048576\n    filter_chains", "limit_bytes: 32768\n    filter_chains"),
                ("request_body_buffer_limit: 33619968", "request_body_buffer_limit: 32768"),
            ],
            // Over HTTP/1.1; over HTTP/2 the window holds as much as the sidecar takes.
            &["buffer-too-small", "buffer-below-cap"],
        ),
        (&[("- {remove: x-attache-cluster}\n", "\n")], &["headers-not-stripped"]),
        (&AS_ENVOY_GATEWAY, &[]),
    ];
    let timeout = message_timeout(&stack);
    let short: (&[_], &[_]) = (&[(timeout.as_str(), "message_timeout: 0.2s")], &["message-timeout"]);
    for (replacements, expected) in breakages.into_iter().chain([short]) {
        let envoy = envoy_with(&stack, replacements).await;
        let (status, found, proxy) = diagnose(&envoy, None).await;
        assert_eq!(found, ids(expected), "{proxy}");
        let has_errors = proxy["findings"].as_array().unwrap().iter().any(|finding| finding["severity"] == "error");
        assert_eq!(status, Some(i32::from(has_errors)));
    }
}

#[tokio::test]
async fn a_target_that_envoy_was_not_rendered_for_is_found() {
    let stack = stack().await;
    stack.reconfigure(&(pool() + &pool().replace("pool", "fresh") + &route("r", "m", "{name: fresh}"))).await.unwrap();
    let admin = address(&stack.gateway.sidecar.admin_url());
    let (status, found, _) = diagnose(&stack.gateway.envoy, Some(&admin)).await;
    assert_eq!((status, found), (Some(1), ids(&["target-unknown-to-envoy"])));
}

/// An Envoy as Envoy Gateway would configure it for the stack's pool, with these replacements.
async fn as_envoy_gateway(stack: &Stack, name: &str, replacements: &[(&str, &str)]) -> Envoy {
    let (listen, admin) = (port::free().unwrap(), port::free().unwrap());
    let bootstrap = fs::read_to_string(stack.directory().join("envoy-0.yaml")).unwrap();
    // Where the sidecar is, as the rendering has it.
    let pipe = bootstrap.lines().find_map(|line| line.split_once("{pipe: {path: ")).map(|(_, rest)| rest);
    let pipe = pipe.unwrap().split('}').next().unwrap();
    let routes = stack.directory().join(format!("{name}-routes.yaml"));
    let mut text = include_str!("doctor/envoy_gateway.yaml")
        .replace("socket_address: {address: 127.0.0.1, port_value: SIDECAR_PORT}", &format!("pipe: {{path: {pipe}}}"))
        .replace("ADMIN_PORT", &admin.port().to_string())
        .replace("LISTEN_PORT", &listen.port().to_string())
        .replace("MODEL_PORT", &stack.models[0].addr().port().to_string())
        .replace("RDS_FILE", routes.to_str().unwrap())
        .replace("WASM_FILE", tools::wasm_filter().unwrap().to_str().unwrap());
    let mut table = include_str!("doctor/routes.yaml").to_owned();
    for (old, new) in replacements {
        assert!(text.contains(old) || table.contains(old), "{old:?} is not there");
        text = text.replace(old, new);
        table = table.replace(old, new);
    }
    fs::write(&routes, table).unwrap();
    let file = stack.directory().join(format!("{name}.yaml"));
    fs::write(&file, text).unwrap();
    Envoy::start_with(name, &file, listen, admin, stack.directory()).await.unwrap()
}

#[tokio::test]
async fn the_profile_of_envoy_gateway_serves_and_is_found_sound_and_its_defaults_are_not() {
    let stack = Stack::builder(pool() + &route("r", "m", "{name: pool}")).models(1).start().await.unwrap();
    let envoy = as_envoy_gateway(&stack, "as-gateway", &[]).await;
    let (status, found, proxy) = diagnose(&envoy, None).await;
    assert_eq!((status, found), (Some(0), ids(&[])), "{proxy}");
    assert_eq!(proxy["attachments"][0]["request_body"], "BUFFERED");
    assert_eq!(envoy.client().unwrap().chat(&chat()).await.unwrap().status, 200);

    // What is there if nobody sets ClientTrafficPolicy, breakers and timeouts.
    let defaults = [
        ("per_connection_buffer_limit_bytes: 34603008", "per_connection_buffer_limit_bytes: 32768"),
        ("stream_idle_timeout: 900s", "stream_idle_timeout: 300s"),
        ("message_timeout: 10s", "message_timeout: 0.2s"),
        ("failure_mode_allow: true", "failure_mode_allow: false"),
        ("max_connections: 1000000, max_pending_requests: 1000000, max_requests: 1000000", "max_connections: 1024"),
        ("        timeout: 0s\n", ""),
    ];
    let envoy = as_envoy_gateway(&stack, "defaults", &defaults).await;
    let (status, found, proxy) = diagnose(&envoy, None).await;
    let expected = [
        "buffer-too-small",
        "silent-answers-time-out",
        "message-timeout",
        "answers-cut",
        "sidecar-breakers",
        "model-breakers",
        "answers-time-out",
    ];
    assert_eq!((status, found), (Some(1), ids(&expected)), "{proxy}");
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(40_000)}]});
    let status = envoy.client().unwrap().chat(&body).await.unwrap().status;
    assert_eq!(status, 413, "as buffer-too-small says");
}

#[tokio::test]
async fn a_filter_that_no_way_in_enables_is_found_and_does_not_run() {
    let stack = Stack::builder(open()).models(1).start().await.unwrap();
    let envoy = as_envoy_gateway(&stack, "disabled", &[("      typed_per_filter_config: *enabled\n", "")]).await;
    let (status, found, _) = diagnose(&envoy, None).await;
    assert_eq!((status, found), (Some(1), ids(&["never-runs"])));
    assert_eq!(envoy.client().unwrap().chat(&chat()).await.unwrap().status, 503);
}

#[tokio::test]
async fn what_is_no_dump_is_nothing_to_examine() {
    let directory = Directory::temporary().unwrap();
    for text in ["", "{", "[]", "{\"configs\": []}", "not JSON", "{\"configs\": [{\"@type\": \"a.ListenersConfigDump\""]
    {
        let file = directory.path().join("dump.json");
        fs::write(&file, text).unwrap();
        let output = doctor(&["--config-dump", file.to_str().unwrap()]).await;
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(output.stdout.is_empty() && output.stderr.starts_with(b"attache: "), "{text}");
    }
    let nobody = port::free().unwrap().to_string();
    assert_eq!(doctor(&["--admin", &nobody]).await.status.code(), Some(2));
    assert_eq!(doctor(&[]).await.status.code(), Some(2));
}

#[tokio::test]
async fn the_sidecar_says_whether_it_is_asked_and_in_which_mode() {
    let stack = stack().await;
    let sidecar = &stack.gateway.sidecar;
    assert!(sidecar.page("/readyz").await.unwrap().starts_with("ready\nnot attached: Envoy has opened no stream yet"));
    assert_eq!(sidecar.metrics().await.unwrap().sum("attache_attached", &[]), 0.0);

    assert_eq!(stack.client().chat(&chat()).await.unwrap().status, 200);
    until("it is attached", async || {
        sidecar.metrics().await.is_ok_and(|page| page.sum("attache_attached", &[]) == 1.0)
    })
    .await
    .unwrap();
    assert!(sidecar.page("/readyz").await.unwrap().starts_with("ready\nattached: the last stream began "));
    let streamed = [("request_body", "streamed")];
    assert_eq!(sidecar.metrics().await.unwrap().sum("attache_streams_served_total", &streamed), 1.0);

    // A mode that cannot be served: the request gets 503, and the sidecar says why.
    let waiting = [("send_body_without_waiting_for_header_response: true\n", "\n")];
    let envoy = envoy_with(&stack, &waiting).await;
    assert_eq!(envoy.client().unwrap().chat(&chat()).await.unwrap().status, 503);
    let page: Value = serde_json::from_str(&sidecar.page("/attached").await.unwrap()).unwrap();
    assert_eq!((&page["attached"], &page["refused"]), (&json!(false), &json!(1)));
    assert!(page["last_refusal"].as_str().unwrap().starts_with("request_body_mode must be"), "{page}");
    assert!(sidecar.page("/readyz").await.unwrap().starts_with("ready\nnot attached: Envoy's stream of "));
}
