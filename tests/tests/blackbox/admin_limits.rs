//! `GET /limits`, and `attache limits` from another process: what a key has left, and a limit that begins anew.

use attache_tests::{Stack, tools, until};
use serde_json::{Value, json};

use crate::{
    documents::{key, limits, pool, route},
    residue,
};

fn chat(tokens: u64) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": tokens - 9})
}

fn documents() -> String {
    let of_limits = "{name: day, per: [key], limit: 300, window: 300d}, {name: n, per: [tenant], limit: 1000, window: 300d, cost: requests}";
    [pool(), route("r", "m", "{name: pool}"), key("a", "acme", "r"), key("b", "acme", "r"), limits("r", of_limits)]
        .concat()
}

/// Exit status, standard output, standard error.
async fn attache_limits(stack: &Stack, gateway: usize, arguments: &[&str]) -> (bool, String, String) {
    let gateway = stack.gateways().nth(gateway).unwrap();
    let admin = gateway.sidecar.admin_url();
    let mut command = tokio::process::Command::from(tools::attache().unwrap());
    command.arg("limits").args(arguments).args(["--admin", admin.strip_prefix("http://").unwrap()]);
    let output = command.kill_on_drop(true).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

async fn page(stack: &Stack, query: &str) -> Value {
    serde_json::from_str(&stack.gateway.sidecar.page(&format!("/limits?{query}")).await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_key_that_is_refused_finds_out_why_and_a_reset_lets_it_in_again() {
    let stack = Stack::builder(documents()).models(1).start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    assert_eq!(client.chat(&chat(200)).await.unwrap().status, 200);
    residue::none(&stack).await;
    let shown = page(&stack, "key=a").await;
    assert_eq!(shown["limits"][0]["counters"][0]["says"], "100 of 300 left");
    assert_eq!(shown["lastDecision"]["outcome"], "granted");

    assert_eq!(client.chat(&chat(120)).await.unwrap().status, 200);
    residue::none(&stack).await;
    let refused = client.chat(&chat(50)).await.unwrap();
    assert_eq!(refused.status, 429);
    let (is_well, drawn, _) = attache_limits(&stack, 0, &["show", "--key", "default/a"]).await;
    let message = refused.error_message().unwrap();
    assert!(is_well && drawn.contains(&format!("refused by default/r-limits/day: {message}")), "{drawn}");
    assert!(drawn.contains("██████████"), "{drawn}");

    let (is_well, said, _) = attache_limits(&stack, 0, &["reset", "--key", "a", "--limit", "day"]).await;
    assert!(is_well && said.contains("default/a: 320 were used"), "{said}");
    // The filter may go on refusing what it knows to be refused, for 5 s.
    until("the key was let in again", async || client.chat(&chat(50)).await.unwrap().status == 200).await.unwrap();
    residue::none(&stack).await;
    let shown = page(&stack, "key=a").await;
    assert_eq!(shown["limits"][0]["counters"][0]["used"], 50);
    // The other limit is as it was: it has counted all requests that were served.
    assert_eq!(shown["limits"][1]["counters"][0]["used"], 3);
}

#[tokio::test]
async fn who_asks_for_what_is_not_there_is_told_what_is() {
    let stack = Stack::builder(documents()).models(1).without_wasm().start().await.unwrap();
    let (is_well, _, error) = attache_limits(&stack, 0, &["show", "--key", "nobody"]).await;
    assert_eq!(
        (is_well, error.trim()),
        (false, "attache: there is no key `default/nobody`; there is default/a, default/b")
    );
    let (is_well, _, error) = attache_limits(&stack, 0, &["reset", "--key", "a", "--limit", "week"]).await;
    assert!(!is_well && error.contains("there is default/r-limits/day, default/r-limits/n"), "{error}");
    let (is_well, drawn, _) = attache_limits(&stack, 0, &["show"]).await;
    assert!(is_well && drawn.contains("keys: default/a, default/b"), "{drawn}");
    let (is_well, json, _) = attache_limits(&stack, 0, &["show", "--tenant", "acme", "--json"]).await;
    let tenant: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((is_well, tenant["keys"].as_array().unwrap().len()), (true, 2));
}

#[tokio::test]
async fn a_page_in_a_browser_resets_nothing() {
    let stack = Stack::builder(documents()).models(1).without_wasm().start().await.unwrap();
    assert_eq!(stack.client().with_key("sk-a").chat(&chat(200)).await.unwrap().status, 200);
    residue::none(&stack).await;
    let url = format!("{}/limits/reset?key=a&limit=day", stack.gateway.sidecar.admin_url());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let status = |request: reqwest::RequestBuilder| async { request.send().await.unwrap().status().as_u16() };
    assert_eq!(status(http.get(&url)).await, 405);
    assert_eq!(status(http.post(&url).header("origin", "https://example.com")).await, 403);
    assert_eq!(page(&stack, "key=a").await["limits"][0]["counters"][0]["used"], 200);
    assert_eq!(status(http.post(&url)).await, 200);
    assert_eq!(page(&stack, "key=a").await["limits"][0]["counters"][0]["used"], 0);
}

#[tokio::test]
async fn every_sidecar_of_a_redis_shows_and_resets_what_all_have_counted() {
    let stack = Stack::builder(documents()).models(1).without_wasm().sidecars(2).redis().start().await.unwrap();
    assert_eq!(stack.client().with_key("sk-a").chat(&chat(200)).await.unwrap().status, 200);
    residue::none(&stack).await;
    // The second one has never seen the key.
    let (is_well, json, error) = attache_limits(&stack, 1, &["show", "--key", "a", "--json"]).await;
    assert!(is_well, "{error}");
    let shown: Value = serde_json::from_str(&json).unwrap();
    let counter = &shown["limits"][0]["counters"][0];
    assert_eq!((&counter["used"], &shown["lastDecision"]), (&json!(200), &Value::Null), "{shown:#}");
    let (is_well, said, error) = attache_limits(&stack, 1, &["reset", "--key", "a", "--limit", "day"]).await;
    assert!(is_well && said.contains("default/a: 200 were used"), "{said}{error}");
    assert_eq!(page(&stack, "key=a").await["limits"][0]["counters"][0]["used"], 0);
    let answer = stack.client().with_key("sk-a").chat(&chat(50)).await.unwrap();
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), Some("300"));
}
