//! Who may call what, and what a client cannot claim: with the Wasm filter, which refuses by headers, and without it, when
//! the sidecar makes the same checks.

use attache_tests::{Client, Stack, until};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    documents::{digest, key, key_with, limits, replica, route},
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
async fn without_a_known_key_nobody_gets_in_and_the_sidecar_decides_which_are_known() {
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
                let counts = ["refused_key_missing", "refused_key_unknown", "refused_several_keys", "asked"]
                    .map(|name| stats.value(&format!("wasmcustom.attache_filter_{name}")));
                assert_eq!((asked(&stack).await, counts), (profile::told(3.0) + 4.0, [3, 0, 0, 4]));
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
        // Where a header says it, the body need not be read. The filter asks once.
        let hinting = stack.client().with_key("sk-one").with_header("x-ai-eg-model", "model-two");
        for _ in 0..3 {
            assert_eq!(error(&hinting.chat(&chat("model-two")).await.unwrap()), refusal, "{filter:?}");
        }
        assert_eq!((stack.models[0].requests_total(), stack.models[1].requests_total()), (3, 0));
    }
}

#[tokio::test]
async fn a_foreign_credential_beside_a_key_changes_nothing_and_goes_no_further() {
    const FOREIGN: &str = "Bearer eyJhbGciOiJub25lIn0.e30.";
    for filter in BOTH {
        let stack = stack(filter).await;
        let ours = [("authorization", "Bearer sk-one"), ("x-api-key", "sk-one"), ("api-key", "sk-one")];
        let foreign = [("authorization", FOREIGN), ("x-api-key", "sk-ant-foreign"), ("api-key", "foreign")];
        let mut served_so_far = 0;
        for (name, value) in ours {
            for (other, foreign) in foreign {
                // The limit is of three requests a tenant; the list of models is free.
                let client = stack.client().with_header(name, value);
                let joined = if other == name { format!("{foreign}, {value}") } else { foreign.to_owned() };
                let client = client.with_header(other, &joined);
                let answer = client.get("/v1/models").await.unwrap();
                assert_eq!(answer.status, 200, "{filter:?} {name} {other}: {}", answer.text());
                if served_so_far < 3 {
                    assert_eq!(client.chat(&chat("model-one")).await.unwrap().status, 200, "{filter:?} {name} {other}");
                    served_so_far += 1;
                }
            }
        }
        for record in stack.models[0].requests() {
            let shown: Vec<_> = record.headers.keys().filter(|name| CREDENTIALS.contains(&name.as_str())).collect();
            assert!(shown.is_empty(), "{shown:?}");
        }
        // It was charged to the key's tenant.
        let both = stack.client().with_header("authorization", FOREIGN).with_header("x-api-key", "sk-one");
        assert_eq!(both.chat(&chat("model-one")).await.unwrap().status, 429);
        let refusal = is(401, "invalid_request_error", "invalid_api_key");
        for (first, second) in [("Bearer sk-one", "sk-two"), (FOREIGN, "sk-ant-foreign")] {
            let client = stack.client().with_header("authorization", first).with_header("x-api-key", second);
            assert_eq!(error(&client.chat(&chat("model-one")).await.unwrap()), refusal, "{filter:?} {second}");
        }
        residue::none(&stack).await;
    }
}

const CREDENTIALS: [&str; 3] = ["authorization", "x-api-key", "api-key"];

#[tokio::test]
async fn a_key_that_ends_is_disabled_or_has_a_successor_acts_at_once() {
    let documents = |fields: &str, sha256: &str| {
        let key = key_with("one", fields, "one").replace(&digest("one"), sha256);
        [
            replica("first", 0),
            route("one", "model-one", "{name: first}"),
            key,
            key_with("two", "disabled: false", "one"),
        ]
        .concat()
    };
    for filter in BOTH {
        let builder = Stack::builder(documents("disabled: true", &digest("one"))).models(1);
        let builder = if filter == Filter::Absent { builder.without_wasm() } else { builder };
        let stack = builder.start().await.unwrap();
        let client = |name: &str| stack.client().with_key(&format!("sk-{name}"));
        let ask = async |name: &str| client(name).chat(&chat("model-one")).await.unwrap();
        let refused = ask("one").await;
        assert_eq!(error(&refused), is(401, "invalid_request_error", "invalid_api_key"), "{filter:?}");
        assert!(refused.error_message().unwrap().contains("this key is disabled"), "{}", refused.text());
        stack.reconfigure(&documents("notAfter: 2999-12-31T23:59:59Z", &digest("one"))).await.unwrap();
        // What the filter was told of it holds for a moment.
        until("the key was let in", async || ask("one").await.status == 200).await.unwrap();
        stack.reconfigure(&documents("notAfter: 2001-12-31T23:59:59+02:00", &digest("one"))).await.unwrap();
        assert!(ask("one").await.error_message().unwrap().contains("this key has expired"));
        let both = format!("[{}, {}]", digest("one"), digest("successor"));
        stack.reconfigure(&documents("tenant: acme", &both)).await.unwrap();
        until("the key was let in", async || ask("one").await.status == 200).await.unwrap();
        assert_eq!(ask("successor").await.status, 200);
        let client = stack.client().with_key("sk-one").with_header("x-api-key", "sk-successor");
        assert_eq!(client.chat(&chat("model-one")).await.unwrap().status, 200, "both are one caller's");
        stack.reconfigure(&documents("tenant: acme", &digest("successor"))).await.unwrap();
        assert_eq!((ask("one").await.status, ask("successor").await.status), (401, 200), "{filter:?}");
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
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-one\r\ncontent-length: 33554433\r\n\r\n";
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
