//! The manifests for Envoy Gateway mean what we think: an Envoy that is configured as Envoy Gateway would configure it serves,
//! refuses, counts and places as ours does. The rest of this suite runs on it with `ATTACHE_TEST_PROFILE=envoy-gateway`.

use std::{fs, path::Path, process::Command};

use attache_tests::{
    Answer, Directory, Envoy, Stack,
    gateway_profile::{self, Places},
    port, tools,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    documents::{affinity, key, limits, pool, route, route_with},
    raw::{Connection, chunked},
};

/// A second Envoy before the stack's sidecar.
async fn envoy_of(stack: &Stack, wasm: bool) -> Envoy {
    envoy_edited(stack, wasm, &[]).await
}

/// The same with these replacements, each of which must be there to replace.
async fn envoy_edited(stack: &Stack, wasm: bool, replacements: &[(&str, &str)]) -> Envoy {
    let places = Places {
        listen: port::free().unwrap(),
        admin: port::free().unwrap(),
        extproc: stack.gateway.sidecar.listen().to_owned(),
        wasm: wasm.then(|| tools::wasm_filter().unwrap()),
    };
    let config = [stack.directory().join("config/attache.yaml")];
    let mut text = gateway_profile::render(&config, &[], &places).await.unwrap();
    for (old, new) in replacements {
        assert!(text.contains(old), "{old:?} is not in the bootstrap");
        text = text.replace(old, new);
    }
    let bootstrap = stack.directory().join("envoy-gateway.yaml");
    std::fs::write(&bootstrap, text).unwrap();
    Envoy::start_with("envoy-gateway", &bootstrap, places.listen, places.admin, stack.directory()).await.unwrap()
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hello there"}]})
}

#[tokio::test]
async fn requests_are_rewritten_counted_and_limited_on_what_the_manifests_become() {
    let costs = "llmRequestCosts: [{metadataKey: llm_total_token, type: TotalToken}]";
    let documents = pool()
        + &route_with("unified", "assistant", "{name: pool, modelNameOverride: served}", costs)
        + &limits("unified", "{name: day, per: [key], limit: 100000000, window: 300d}")
        + &key("a", "acme", "unified");
    let stack = Stack::builder(documents).models(2).without_wasm().start().await.unwrap();
    for wasm in [false, true] {
        let envoy = envoy_of(&stack, wasm).await;
        let client = envoy.client().unwrap().with_key("sk-a");
        let whole = client.chat(&chat("assistant")).await.unwrap();
        assert_eq!((whole.status, &whole.json().unwrap()["model"]), (200, &json!("served")), "{}", whole.text());
        let events = client.stream_chat(&chat("assistant")).await.unwrap();
        assert!(events.header("x-ratelimit-remaining-tokens").is_some());
        assert!(events.rest().await.is_done());
        let large = json!({"model": "assistant", "messages": [{"role": "user", "content": "x".repeat(5 << 20)}]});
        assert_eq!(client.chat(&large).await.unwrap().status, 200);
        let refused = client.chat(&chat("nobody")).await.unwrap();
        assert_eq!((refused.status, &refused.json().unwrap()["error"]["code"]), (404, &json!("model_not_found")));
        assert_eq!(envoy.client().unwrap().chat(&chat("assistant")).await.unwrap().status, 401);
        let raw = client.request(Method::POST, "/v1/chat/completions").body("not json");
        assert_eq!(Answer::to(raw).await.unwrap().status, 400);
        assert_eq!(envoy.stats().await.unwrap().passed_by_filter() > 0, wasm);
    }
}

#[tokio::test]
async fn a_client_cannot_choose_its_model_server_and_nothing_of_ours_leaves() {
    let documents = pool() + &route("open", "m", "{name: pool}");
    let mut stack = Stack::builder(documents).models(1).without_wasm().start().await.unwrap();
    let envoy = envoy_of(&stack, false).await;
    let spoofed = || {
        let headers = [("x-attache-cluster", "default/pool"), ("x-gateway-destination-endpoint", "127.0.0.1:1")];
        headers.into_iter().fold(envoy.client().unwrap(), |client, (name, value)| client.with_header(name, value))
    };
    let answer = spoofed().chat(&chat("m")).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    for name in attache_proto::headers::OWNED {
        assert_eq!(answer.header(name), None, "{name}");
    }
    let sent = stack.models[0].requests();
    let names = sent[0].headers.keys().map(ToString::to_string);
    let ours: Vec<_> = names.filter(|name| name.starts_with("x-attache") || name.starts_with("x-envoy")).collect();
    assert_eq!(ours, Vec::<String>::new());

    stack.gateway.sidecar.kill().await.unwrap();
    let answer = spoofed().chat(&chat("m")).await.unwrap();
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.text());
    assert_eq!(answer.json().unwrap()["error"]["type"], "server_error");
    assert_eq!(stack.models[0].requests_total(), 1);
}

#[tokio::test]
async fn an_upload_that_stops_gets_a_408_from_the_listener_and_no_other_clock_rings_before() {
    let stack =
        Stack::builder(pool() + &route("open", "m", "{name: pool}")).models(1).without_wasm().start().await.unwrap();
    let clocks = [
        ("\"message_timeout\": \"10s\"", "\"message_timeout\": \"1s\""),
        ("\"stream_idle_timeout\": \"900s\"", "\"stream_idle_timeout\": \"4s\""),
    ];
    let envoy = envoy_edited(&stack, false, &clocks).await;
    let mut connection = Connection::open(&envoy).await;
    connection.send(chunked("/v1/chat/completions", "")).await;
    connection.send_chunk(b"{").await;
    let answer = connection.read_answer().await;
    assert_eq!((answer.status, answer.header("connection")), (408, Some("close")), "{}", answer.body);
    assert_eq!(stack.models[0].requests_total(), 0);
}

#[tokio::test]
async fn placement_reaches_the_replica_that_the_sidecar_chose_in_both_modes() {
    for mode in ["endpoint", "cluster"] {
        let documents = pool()
            + &route("open", "m", "{name: pool}")
            + &affinity("pool", &format!("mode: {mode}, sessionHeader: x-session-id"));
        let stack = Stack::builder(documents).models(3).without_wasm().start().await.unwrap();
        let envoy = envoy_of(&stack, false).await;
        let client = envoy.client().unwrap().with_header("x-session-id", "one");
        for _ in 0..6 {
            assert_eq!(client.chat(&chat("m")).await.unwrap().status, 200);
        }
        let mut served: Vec<_> = stack.models.iter().map(|model| model.requests_total()).collect();
        served.sort_unstable();
        assert_eq!(served, [0, 0, 6], "{mode}");
    }
}

#[tokio::test]
async fn envoy_takes_what_the_manifests_of_every_example_become() {
    let directory = Directory::temporary().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config/examples");
    let mut taken = 0;
    for entry in fs::read_dir(examples).unwrap() {
        let file = entry.unwrap().path();
        if !fs::read_to_string(&file).unwrap().lines().any(|line| line.starts_with("kind: AIGatewayRoute")) {
            continue;
        }
        for wasm in [None, Some(tools::wasm_filter().unwrap())] {
            let places = Places {
                listen: "127.0.0.1:10000".parse().unwrap(),
                admin: "127.0.0.1:9901".parse().unwrap(),
                extproc: "unix:/run/attache/extproc.sock".to_owned(),
                wasm,
            };
            let text = gateway_profile::render(std::slice::from_ref(&file), &[], &places).await.unwrap();
            let bootstrap = directory.path().join("bootstrap.yaml");
            fs::write(&bootstrap, text).unwrap();
            let mut envoy = Command::new(tools::envoy().unwrap());
            let validated = envoy.args(["--mode", "validate", "-c"]).arg(&bootstrap).output().unwrap();
            assert!(validated.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&validated.stderr));
            taken += 1;
        }
    }
    assert!(taken >= 10, "{taken}");
}

#[test]
fn what_cannot_be_rendered_is_refused_with_a_way_out_and_nothing_is_printed() {
    let directory = Directory::temporary().unwrap();
    let file = directory.path().join("attache.yaml");
    let replica = |address: &str| {
        let endpoints = format!("[{{ip: {{address: {address}, port: 8000}}}}]");
        pool().replace("${MODELS}", &endpoints) + &route("r", "m", "{name: pool}")
    };
    let good = replica("10.0.0.1");
    let hash = "a5".repeat(32);
    let gateway = ["--gateway", "gateways/llm"];
    let url = ["--wasm-url", "https://files.example.com/a.wasm"];
    let hostnames =
        vec!["--hostname"; 17].into_iter().zip((b'a'..=b'q').map(|letter| format!("{}.example", char::from(letter))));
    let hostnames: Vec<String> = hostnames.flat_map(|(option, name)| [option.to_owned(), name]).collect();
    let hostnames: Vec<&str> = gateway.into_iter().chain(hostnames.iter().map(String::as_str)).collect();
    let cases: [(&str, Vec<&str>, &str); 16] = [
        (&good, vec![], "--gateway"),
        (&good, vec!["--gateway", "llm"], "NAMESPACE/NAME"),
        (&good, [&gateway[..], &url[..]].concat(), "--wasm-sha256"),
        (&good, [&gateway[..], &url[..], &["--wasm-sha256", "a5"]].concat(), "64 hexadecimal digits"),
        (&good, [&gateway[..], &["--wasm-sha256", &hash]].concat(), "--wasm-url"),
        (&good, [&gateway[..], &["--redis", "redis://:secret@redis:6379"]].concat(), "--redis-secret"),
        (&good, [&gateway[..], &["--namespace", "A_b"]].concat(), "no namespace"),
        (&replica("127.0.0.1"), gateway.to_vec(), "loopback"),
        (&good, [&gateway[..], &["--redis", "redis://localhost:6379"]].concat(), "the pod itself"),
        (&good, [&gateway[..], &["--wasm-url", "oci://registry.example.com/a:1"]].concat(), "the image's digest"),
        (&good, hostnames, "at most 16"),
        (&good, [&gateway[..], &["--hostname", "10.0.0.1"]].concat(), "is an IP address"),
        (&good, [&gateway[..], &["--path-prefix", "/a//b"]].concat(), "no path prefix"),
        ("# Nothing yet.\n", gateway.to_vec(), "documents were found in no file"),
        (
            &pool().replace("${MODELS}", "[{ip: {address: 10.0.0.1, port: 8000}}]"),
            gateway.to_vec(),
            "no AIGatewayRoute",
        ),
        (&(good.clone() + &route("s", "n", "{name: nowhere}")), gateway.to_vec(), "nowhere"),
    ];
    for (text, arguments, expected) in cases {
        fs::write(&file, text).unwrap();
        let mut render = tools::attache().unwrap();
        let rendered = render.args(["render", "envoy-gateway"]).arg(&file).args(&arguments).output().unwrap();
        let said = String::from_utf8(rendered.stderr).unwrap();
        assert!(!rendered.status.success() && rendered.stdout.is_empty(), "{arguments:?}");
        assert!(said.contains(expected) && !said.contains("secret@"), "{arguments:?}: {said}");
    }
}
