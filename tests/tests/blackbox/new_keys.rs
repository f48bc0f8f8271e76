//! Keys that change while Envoy runs on what it was started with: the sidecar decides, the Wasm filter lets it, and whoever looks
//! is told that the filter is stale.

use std::process::Stdio;

use attache_tests::{Answer, Client, Stack, until};
use serde_json::{Value, json};

use crate::{
    documents::{digest, key, key_with, pool, route, route_with},
    profile, residue,
    verdict::{asked, error, is, served},
};

const HEADER: &str = "x-attache-verdict";

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
}

async fn status(client: &Client, model: &str) -> u16 {
    client.chat(&chat(model)).await.unwrap().status
}

/// The route `r` to `m`, and these keys.
fn documents(keys: &[String]) -> String {
    pool() + &route("r", "m", "{name: pool}") + &keys.concat()
}

async fn counted_by_filter(stack: &Stack, name: &str) -> u64 {
    stack.gateway.envoy.stats().await.unwrap().value(&format!("wasmcustom.attache_filter_{name}"))
}

const OF_STALENESS: [&str; 3] = ["wasm-refuses-new-keys", "wasm-stale", "wasm-differs"];

/// The findings of `attache doctor` about documents of different age, each with what it says.
async fn diagnose(stack: &Stack) -> Vec<(String, String)> {
    let without_scheme = |url: String| url.trim_start_matches("http://").to_owned();
    let mut command = attache_tests::tools::attache().unwrap();
    command.args(["doctor", "--json", "--admin", &without_scheme(stack.gateway.envoy.admin_url())]);
    command.args(["--sidecar-admin", &without_scheme(stack.gateway.sidecar.admin_url())]);
    command.stdin(Stdio::null());
    let output = tokio::process::Command::from(command).output().await.unwrap();
    let page: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let findings = page["proxies"][0]["findings"].as_array().unwrap();
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_owned();
    findings
        .iter()
        .map(|finding| (text(finding, "id"), text(finding, "what")))
        .filter(|(id, _)| OF_STALENESS.contains(&id.as_str()))
        .collect()
}

#[tokio::test]
async fn a_key_that_is_added_rotated_or_taken_away_acts_without_a_new_envoy() {
    let first = [key("a", "acme", "r"), key("old", "acme", "r")];
    let stack = Stack::builder(documents(&first)).models(1).start().await.unwrap();
    let of = |name: &str| stack.client().with_key(&format!("sk-{name}"));
    assert_eq!(
        (status(&of("a"), "m").await, status(&of("b"), "m").await, status(&of("old"), "m").await),
        (200, 401, 200)
    );
    assert_eq!(diagnose(&stack).await, []);

    let rotated = key("old", "acme", "r").replace(&digest("old"), &digest("new"));
    stack.reconfigure(&documents(&[key("b", "acme", "r"), key("c", "acme", "r"), rotated])).await.unwrap();
    // One that nobody has tried, at once; one that was refused a moment ago, soon.
    assert_eq!((status(&of("c"), "m").await, status(&of("new"), "m").await), (200, 200));
    until("the key was let in", async || status(&of("b"), "m").await == 200).await.unwrap();
    assert_eq!((status(&of("a"), "m").await, status(&of("old"), "m").await), (401, 401));
    assert!(counted_by_filter(&stack, "asked").await >= 3);

    let log = stack.gateway.sidecar.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("Wasm filter's configuration")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("is older than what is in force; they differ in: keys."), "{}", warnings[0]);
    let [(id, what)] = diagnose(&stack).await.try_into().unwrap();
    assert_eq!(id, "wasm-stale");
    assert!(
        what.contains("the filter does not know default/b, default/c; the sidecar does not know default/a"),
        "{what}"
    );
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_hint_at_a_model_or_a_route_that_the_filter_does_not_know_is_the_sidecars_to_judge() {
    let documents = |routes: &str, more: &str| {
        let known = [pool(), route("r", "m", "{name: pool}"), route("other", "n", "{name: pool}")].concat();
        known + &key("a", "acme", routes) + more
    };
    let stack = Stack::builder(documents("r", "")).models(1).start().await.unwrap();
    let hinting = |model: &str| stack.client().with_key("sk-a").with_header("x-ai-eg-model", model);
    assert_eq!((status(&hinting("m"), "m").await, status(&hinting("n"), "n").await), (200, 401));
    let further = route_with("further", "new", "{name: pool}", "");
    stack.reconfigure(&documents("r, other, further", &further)).await.unwrap();
    assert_eq!(status(&hinting("new"), "new").await, 200);
    until("the key was attached", async || status(&hinting("n"), "n").await == 200).await.unwrap();
    // A hint still refuses, and never admits.
    stack.reconfigure(&documents("r", "")).await.unwrap();
    assert_eq!(
        error(&hinting("n").chat(&chat("m")).await.unwrap()),
        is(401, "invalid_request_error", "key_not_attached")
    );
    assert_eq!(status(&hinting("m"), "n").await, 401);
}

#[tokio::test]
async fn what_the_sidecar_refused_the_filter_refuses_by_itself_for_a_moment_in_the_same_words() {
    let ended = key_with("ended", "notAfter: 2001-01-01T00:00:00Z", "r");
    let off = key_with("off", "disabled: true", "r");
    let stack = Stack::builder(documents(&[key("a", "acme", "r"), ended, off])).models(1).start().await.unwrap();
    for (name, reason) in [("nobody", "key_unknown"), ("ended", "key_expired"), ("off", "key_disabled")] {
        let client = stack.client().with_key(&format!("sk-{name}"));
        let first = client.chat(&chat("m")).await.unwrap();
        assert_eq!(error(&first), is(401, "invalid_request_error", "invalid_api_key"));
        let mut repeated: Option<Answer> = None;
        until("the filter refused by itself", async || {
            repeated = client.chat(&chat("m")).await.ok();
            counted_by_filter(&stack, &format!("refused_{reason}")).await > 0
        })
        .await
        .unwrap();
        let repeated = repeated.unwrap();
        assert_eq!((repeated.status, repeated.text()), (first.status, first.text()), "{name}");
        assert_eq!(repeated.header("www-authenticate"), Some("Bearer"));
        assert_eq!((first.header(HEADER), repeated.header(HEADER)), (None, None));
    }
    assert_eq!(served(&stack), 0);
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_filter_that_is_told_to_refuses_what_it_does_not_know_and_doctor_says_so() {
    let builder = Stack::builder(documents(&[key("a", "acme", "r")])).models(1);
    let stack = builder.environment("ATTACHE_UNKNOWN_KEYS", "refuse").start().await.unwrap();
    stack.reconfigure(&documents(&[key("a", "acme", "r"), key("b", "acme", "r")])).await.unwrap();
    let before = asked(&stack).await;
    assert_eq!(status(&stack.client().with_key("sk-b"), "m").await, 401);
    assert_eq!(asked(&stack).await - before, profile::told(1.0));
    assert_eq!(status(&stack.client().with_key("sk-a"), "m").await, 200);
    let found: Vec<String> = diagnose(&stack).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(found, ["wasm-refuses-new-keys", "wasm-stale"]);
}

#[tokio::test]
async fn the_first_key_shuts_a_gate_that_stood_open_although_the_filter_knows_of_none() {
    let stack = Stack::builder(documents(&[])).models(1).start().await.unwrap();
    assert_eq!(status(&stack.client(), "m").await, 200);
    stack.reconfigure(&documents(&[key("a", "acme", "r")])).await.unwrap();
    assert_eq!(status(&stack.client(), "m").await, 401);
    assert_eq!(status(&stack.client().with_key("sk-a"), "m").await, 200);
    assert_eq!(status(&stack.client().with_key("sk-b"), "m").await, 401);
}

#[tokio::test]
async fn a_client_can_neither_name_a_filter_nor_learn_what_is_said_to_it() {
    let stack = Stack::builder(documents(&[key("a", "acme", "r")])).models(1).without_wasm().start().await.unwrap();
    let digest = format!("{0}-{0}-{0}-{0}", "0".repeat(12));
    let client = stack.client().with_header("x-attache-filter-config", &digest);
    let refused = client.clone().with_key("sk-b").chat(&chat("m")).await.unwrap();
    assert_eq!((refused.status, refused.header(HEADER)), (401, None));
    let answer = client.with_key("sk-a").with_header(HEADER, "{}").chat(&chat("m")).await.unwrap();
    assert_eq!((answer.status, answer.header(HEADER)), (200, None));
    assert!(!stack.gateway.sidecar.log().contains("Wasm filter's configuration"));
    let record = stack.models[0].requests().remove(0);
    assert!(!record.headers.keys().any(|name| name.starts_with("x-attache-")), "{:?}", record.headers);
}

/// What `attache` says with these arguments: whether it went well, its standard output and its standard error.
fn attache(arguments: &[&str]) -> (bool, String, String) {
    let output = attache_tests::tools::attache().unwrap().args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// The only line of standard error that is a key.
fn shown_key(stderr: &str) -> String {
    let keys: Vec<&str> = stderr.lines().filter(|line| line.starts_with("sk-")).collect();
    let [key] = keys[..] else { panic!("{stderr}") };
    key.to_owned()
}

#[tokio::test]
async fn a_key_of_the_command_line_is_shown_once_apart_from_its_client_key_and_works() {
    let before = documents(&[key("a", "acme", "r")]);
    let stack = Stack::builder(before.clone()).models(1).start().await.unwrap();
    let (well, yaml, shown) = attache(&["key", "new", "app-b", "--tenant", "acme", "--route", "r"]);
    assert!(well, "{shown}");
    let key = shown_key(&shown);
    assert!(!yaml.contains(&key) && yaml.contains("kind: ClientKey\nmetadata: {name: app-b}\n"), "{yaml}");
    let client = stack.client().with_key(&key);
    stack.reconfigure(&(before + &yaml)).await.unwrap();
    assert_eq!(status(&client, "m").await, 200);
    let (well, yaml, shown) = attache(&["key", "new", "No Name", "--route", "r"]);
    assert!(!well && yaml.is_empty() && !shown.contains("sk-"), "{shown}");
}

#[test]
fn a_starting_file_passes_the_strictest_check_and_is_written_over_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    let path = file.to_str().unwrap();
    let (well, said, shown) = attache(&["init", path]);
    assert!(well && said.contains("attache check"), "{said}{shown}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains(&shown_key(&shown)), "{text}");
    let (well, report, _) = attache(&["check", "--deny-warnings", path]);
    assert!(well && report.contains("5 objects, 0 errors, 0 warnings"), "{report}");
    assert!(attache(&["render", "static", path]).0);
    let (well, _, error) = attache(&["init", path]);
    assert!(!well && error.contains("is there already") && !error.contains("sk-"), "{error}");
    // Into a directory, by the usual name.
    let (well, _, error) = attache(&["init", directory.path().to_str().unwrap()]);
    assert!(!well && error.contains("gateway.yaml is there already"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}
