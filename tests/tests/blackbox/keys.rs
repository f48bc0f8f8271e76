//! Who may call what, and what a client cannot claim: with the Wasm filter, which refuses by headers, and without it, when
//! the sidecar makes the same checks.

use attache_tests::{Client, Stack};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    documents::{key, limits, replica, route},
    profile,
    raw::{Connection, chunked},
    residue,
    verdict::{asked, counted, error, error_in, is, served},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    Attached,
    Absent,
}

const BOTH: [Filter; 2] = [Filter::Attached, Filter::Absent];

/// `model-one` on the first server for the key `one`, `model-two` on the second for the key `two`.
async fn stack(filter: Filter) -> Stack {
    let documents = [
        replica("first", 0),
        replica("second", 1),
        route("one", "model-one", "{name: first}"),
        route("two", "model-two", "{name: second}"),
        key("one", "acme", "one"),
        key("two", "umbrella", "two"),
        limits("one", "{name: tenant, per: [tenant], limit: 3, window: 300d, cost: requests}"),
    ];
    let builder = Stack::builder(documents.concat()).models(2);
    let builder = if filter == Filter::Absent { builder.without_wasm() } else { builder };
    builder.start().await.unwrap()
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hi"}]})
}

#[tokio::test]
async fn without_a_known_key_nobody_gets_in_and_the_sidecar_is_not_asked_where_the_filter_is() {
    for filter in BOTH {
        let stack = stack(filter).await;
        let client = stack.client();
        let nobody: [(&str, Client); 7] = [
            ("key_missing", client.clone()),
            ("key_missing", client.clone().with_header("authorization", "Basic sk-one")),
            ("key_missing", client.clone().with_header("authorization", "sk-one")),
            ("key_unknown", client.clone().with_key("sk-on")),
            ("key_unknown", client.clone().with_key("SK-ONE")),
            ("key_unknown", client.clone().with_header("x-api-key", "sk-zero")),
            ("several_keys", client.clone().with_key("sk-one").with_header("api-key", "sk-two")),
        ];
        for (_, client) in &nobody {
            let answer = client.chat(&chat("model-one")).await.unwrap();
            assert_eq!(error(&answer), is(401, "invalid_request_error", "invalid_api_key"), "{filter:?}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        assert_eq!(served(&stack), 0);
        match filter {
            Filter::Attached => {
                let stats = stack.gateway.envoy.stats().await.unwrap();
                let counts = ["key_missing", "key_unknown", "several_keys"]
                    .map(|reason| stats.value(&format!("wasmcustom.attache_filter_refused_{reason}")));
                assert_eq!((asked(&stack).await, counts), (profile::told(7.0), [3, 3, 1]));
            }
            Filter::Absent => {
                counted(&stack, "key_missing", 3).await;
                counted(&stack, "key_unknown", 3).await;
                counted(&stack, "several_keys", 1).await;
            }
        }
        residue::none(&stack).await;
    }
}

#[tokio::test]
async fn a_key_opens_the_endpoints_that_it_is_attached_to_and_no_other() {
    for filter in BOTH {
        let stack = stack(filter).await;
        for (name, value) in [("authorization", "Bearer sk-one"), ("x-api-key", "sk-one"), ("api-key", "sk-one")] {
            let answer = stack.client().with_header(name, value).chat(&chat("model-one")).await.unwrap();
            assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        }
        let refusal = is(401, "invalid_request_error", "key_not_attached");
        // The model stands in the body, which only the sidecar reads.
        let answer = stack.client().with_key("sk-one").chat(&chat("model-two")).await.unwrap();
        assert_eq!(error(&answer), refusal, "{filter:?}");
        counted(&stack, "key_not_attached", 1).await;
        // Where a header says it, the filter need not ask.
        let before = asked(&stack).await;
        let hinting = stack.client().with_key("sk-one").with_header("x-ai-eg-model", "model-two");
        assert_eq!(error(&hinting.chat(&chat("model-two")).await.unwrap()), refusal, "{filter:?}");
        assert_eq!(asked(&stack).await - before, if filter == Filter::Attached { profile::told(1.0) } else { 1.0 });
        assert_eq!((stack.models[0].requests_total(), stack.models[1].requests_total()), (3, 0));
    }
}

#[tokio::test]
async fn a_client_cannot_choose_its_cluster_endpoint_key_tenant_or_route() {
    for filter in BOTH {
        let stack = stack(filter).await;
        let elsewhere = stack.models[1].addr().to_string();
        let client = stack
            .client()
            .with_key("sk-one")
            .with_header("x-attache-cluster", "default/second")
            .with_header("x-gateway-destination-endpoint", &elsewhere)
            .with_header("x-attache-key-id", "default/two")
            .with_header("x-attache-tenant", "umbrella")
            .with_header("x-attache-route", "default/two")
            .with_header("x-attache-reservation", "0")
            .with_header("x-attache-decision", "mine");
        for _ in 0..3 {
            let answer = client.chat(&chat("model-one")).await.unwrap();
            assert_eq!((answer.status, answer.header("x-attache-decision")), (200, None), "{}", answer.text());
        }
        assert_eq!((stack.models[0].requests_total(), stack.models[1].requests_total()), (3, 0), "{filter:?}");
        for record in stack.models[0].requests() {
            let claimed: Vec<_> = record.headers.iter().filter(|(name, _)| name.starts_with("x-attache-")).collect();
            assert!(claimed.is_empty(), "{claimed:?}");
        }
        // The hint refuses or does nothing: a body that says otherwise is judged by itself.
        let lying = client.clone().with_header("x-ai-eg-model", "model-one");
        assert_eq!(error(&lying.chat(&chat("model-two")).await.unwrap()).0, 401);
        assert_eq!(stack.models[1].requests_total(), 0);
        // All three were charged to the key's own tenant, whatever it claimed.
        assert_eq!(client.chat(&chat("model-one")).await.unwrap().status, 429);
        // Without a key, the claims open nothing.
        let keyless = client.with_header("authorization", "");
        assert_eq!(keyless.chat(&chat("model-one")).await.unwrap().status, 401);
    }
}

#[tokio::test]
async fn a_client_cannot_set_envoys_timeouts_and_retries() {
    let stack = stack(Filter::Absent).await;
    let client = stack
        .client()
        .with_key("sk-one")
        .with_header("x-envoy-upstream-rq-timeout-ms", "1")
        .with_header("x-envoy-upstream-rq-per-try-timeout-ms", "1")
        .with_header("x-envoy-retry-on", "5xx")
        .with_header("x-envoy-max-retries", "5");
    let answer = client.clone().with_header("x-sim-fault", "hang=300").chat(&chat("model-one")).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = client.with_header("x-sim-fault", "status=500").chat(&chat("model-one")).await.unwrap();
    assert_eq!((answer.status, stack.models[0].requests_total()), (500, 2));
}

#[tokio::test]
async fn a_path_that_nobody_serves_a_wrong_method_and_too_much_of_anything_are_refused_in_json() {
    const INVALID: &str = "invalid_request_error";
    for filter in BOTH {
        let stack = stack(filter).await;
        let client = stack.client().with_key("sk-one");
        let send = async |method: Method, path: &str| {
            attache_tests::Answer::to(client.request(method, path).json(&chat("model-one"))).await.unwrap()
        };
        for path in ["/", "/v1/nothing", "/v1/chat/completions/", "/v1/Chat/completions", "/v1/chat%2fcompletions"] {
            assert_eq!(error(&send(Method::POST, path).await), is(404, INVALID, "unknown_url"), "{filter:?} {path}");
        }
        for (method, path, allow) in
            [(Method::GET, "/v1/chat/completions", "POST"), (Method::POST, "/v1/models", "GET")]
        {
            let answer = send(method, path).await;
            assert_eq!(error(&answer), is(405, INVALID, "method_not_supported"), "{filter:?} {path}");
            assert_eq!(answer.header("allow"), Some(allow));
        }
        let long = client.clone().with_header("x-long", &"x".repeat(50 * 1024)).chat(&chat("model-one")).await.unwrap();
        assert_eq!(error(&long), is(431, INVALID, "headers_too_large"), "{filter:?}");
        let mut declared = Connection::open(&stack.gateway.envoy).await;
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-one\r\ncontent-length: 16777217\r\n\r\n";
        declared.send(head).await;
        let answer = declared.read_answer().await;
        assert_eq!(error_in(answer.status, &answer.body), is(413, INVALID, "request_too_large"), "{filter:?}");
        // Anthropic's callers get Anthropic's form.
        let answer = send(Method::POST, "/v1/messages/batches").await;
        assert_eq!((answer.status, answer.json().unwrap()["type"].clone()), (404, json!("error")));
        match filter {
            Filter::Attached => assert_eq!(asked(&stack).await, 0.0),
            Filter::Absent => {
                counted(&stack, "path_not_found", 6).await;
                counted(&stack, "method_not_allowed", 2).await;
                counted(&stack, "headers_too_large", 1).await;
                counted(&stack, "body_too_large", 1).await;
            }
        }
        assert_eq!(served(&stack), 0);
        // The query is not part of the path, and a path is taken in its plain form.
        assert_eq!(send(Method::POST, "/v1/chat/completions?api-version=1").await.status, 200);
        let mut plain = Connection::open(&stack.gateway.envoy).await;
        plain.send(chunked("//v1/x/../chat/./completions", "authorization: Bearer sk-one\r\n")).await;
        plain.send_chunk(chat("model-one").to_string().as_bytes()).await;
        plain.send_chunk(b"").await;
        assert_eq!(plain.read_answer().await.status, 200, "{filter:?}");
        residue::none(&stack).await;
    }
}

#[tokio::test]
async fn a_path_prefix_is_demanded_of_clients_and_taken_off_for_model_servers() {
    let documents = replica("first", 0) + &route("one", "model-one", "{name: first}");
    let stack = Stack::builder(documents).models(1).environment("ATTACHE_PATH_PREFIX", "/enterpriseai/gateway");
    let stack = stack.start().await.unwrap();
    let post = async |path: &str| {
        attache_tests::Answer::to(stack.client().post(path, &chat("model-one"))).await.unwrap().status
    };
    assert_eq!(post("/enterpriseai/gateway/v1/chat/completions").await, 200);
    assert_eq!(post("/v1/chat/completions").await, 404);
    assert_eq!(post("/enterpriseai/gatewayv1/chat/completions").await, 404);
    assert_eq!(stack.client().get("/enterpriseai/gateway/v1/models").await.unwrap().status, 200);
    let paths: Vec<_> = stack.models[0].requests().into_iter().map(|record| record.path).collect();
    assert_eq!(paths, ["/v1/chat/completions"]);
}
