//! Web pages that call: those of the origins that the operator named can, whatever becomes of their request, and no other can.

use attache_tests::{Answer, Client, Stack, StackBuilder};
use reqwest::Method;
use serde_json::{Value, json};

use crate::documents::{key, limits, pool, route};

const CHAT: &str = "/v1/chat/completions";
const APP: &str = "https://app.example";

fn builder() -> StackBuilder {
    let documents = pool()
        + &route("r", "m", "{name: pool}")
        + &limits("r", "{name: day, per: [key], limit: 100000, window: 300d}")
        + &key("a", "acme", "r");
    Stack::builder(documents).models(1)
}

async fn stack(origins: &str) -> Stack {
    builder().environment("ATTACHE_CORS_ORIGIN", origins).start().await.unwrap()
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
}

/// As a browser asks whether it may send what the client libraries send.
async fn preflight(client: &Client, origin: &str) -> Answer {
    let request = client
        .request(Method::OPTIONS, CHAT)
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type,x-stainless-lang");
    Answer::to(request).await.unwrap()
}

fn of_cors(answer: &Answer) -> Vec<&str> {
    answer.headers.keys().map(|name| name.as_str()).filter(|name| name.starts_with("access-control-")).collect()
}

fn allowed(answer: &Answer) -> Option<&str> {
    answer.header("access-control-allow-origin")
}

#[tokio::test]
async fn a_named_origin_may_ask_and_read_answers_and_refusals() {
    let mut stack = stack("https://app.example,https://*.apps.example").await;
    for origin in [APP, "https://a.apps.example"] {
        let asked = preflight(&stack.client(), origin).await;
        assert_eq!((asked.status, allowed(&asked)), (200, Some(origin)));
        let listed = |name: &str| asked.header(name).unwrap().to_ascii_lowercase();
        assert!(listed("access-control-allow-methods").contains("post"));
        for header in ["authorization", "content-type", "x-api-key", "anthropic-version", "x-stainless-lang"] {
            assert!(listed("access-control-allow-headers").contains(header), "{header}");
        }
        assert_eq!(asked.header("access-control-allow-credentials"), None);
    }
    let page = stack.client().with_header("origin", APP);
    let good = page.clone().with_key("sk-a");
    let served = good.chat(&chat()).await.unwrap();
    let mut nobody = chat();
    nobody["model"] = json!("nobody");
    // Of the filter, the sidecar, a limit, the model server, and Envoy itself.
    let refused = page.chat(&chat()).await.unwrap();
    let unknown = good.chat(&nobody).await.unwrap();
    let failed = good.clone().with_header("x-sim-fault", "status=400").chat(&chat()).await.unwrap();
    stack.gateway.sidecar.kill().await.unwrap();
    let gone = good.chat(&chat()).await.unwrap();
    for (answer, status) in [(&served, 200), (&refused, 401), (&unknown, 404), (&failed, 400), (&gone, 503)] {
        assert_eq!((answer.status, allowed(answer)), (status, Some(APP)), "{}", answer.text());
        let exposed = answer.header("access-control-expose-headers").unwrap();
        for header in ["x-ratelimit-remaining-tokens", "retry-after", "x-request-id"] {
            assert!(exposed.contains(header), "{header}: {exposed}");
        }
    }
}

#[tokio::test]
async fn a_hostile_origin_gets_nothing() {
    let stack = stack("https://app.example,https://*.apps.example").await;
    for origin in [
        "https://evil.example",
        "http://app.example",
        "https://app.example:81",
        "https://app.example.evil",
        "https://xapps.example",
        "https://apps.example",
        "null",
        "",
        "*",
    ] {
        let asked = preflight(&stack.client(), origin).await;
        assert_eq!((asked.status, of_cors(&asked)), (405, Vec::new()), "{origin}");
        for client in [stack.client(), stack.client().with_key("sk-a")] {
            let answer = client.with_header("origin", origin).chat(&chat()).await.unwrap();
            assert_eq!(of_cors(&answer), Vec::<&str>::new(), "{origin}");
        }
    }
}

#[tokio::test]
async fn without_the_option_no_page_can_call() {
    let stack = builder().start().await.unwrap();
    let asked = preflight(&stack.client(), APP).await;
    assert_eq!((asked.status, of_cors(&asked)), (405, Vec::new()));
    let answer = stack.client().with_key("sk-a").with_header("origin", APP).chat(&chat()).await.unwrap();
    assert_eq!((answer.status, of_cors(&answer)), (200, Vec::new()));
}

#[tokio::test]
async fn everybody_is_a_choice_and_never_with_credentials() {
    let stack = stack("*").await;
    for origin in [APP, "https://other.example"] {
        let asked = preflight(&stack.client(), origin).await;
        assert!(asked.status == 200 && matches!(allowed(&asked), Some(allowed) if allowed == origin || allowed == "*"));
        assert_eq!(asked.header("access-control-allow-credentials"), None);
    }
    let named = builder().environment("ATTACHE_CORS_ORIGIN", APP).environment("ATTACHE_CORS_CREDENTIALS", "true");
    let stack = named.start().await.unwrap();
    let asked = preflight(&stack.client(), APP).await;
    assert_eq!((allowed(&asked), asked.header("access-control-allow-credentials")), (Some(APP), Some("true")));
    assert!(!asked.header("access-control-allow-headers").unwrap().contains('*'));
    assert_eq!(of_cors(&preflight(&stack.client(), "https://other.example").await), Vec::<&str>::new());
    let error = builder().environment("ATTACHE_CORS_ORIGIN", "*").environment("ATTACHE_CORS_CREDENTIALS", "true");
    let error = error.start().await.unwrap_err().to_string();
    assert!(error.contains("name the origins"), "{error}");
}
