//! What Envoy answers by itself: JSON, in the form in which the caller reads errors.

use attache_tests::{Answer, Client, Stack};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    documents::{pool, route},
    raw::Connection,
    second_envoy::envoy_with,
};

/// Paths of both forms, with and without a query.
const PATHS: [(&str, bool); 4] = [
    ("/v1/chat/completions", false),
    ("/v1/messages?beta=true", true),
    ("/anthropic/v1/messages", true),
    ("/v1/messages/count_tokens", true),
];

async fn stack() -> Stack {
    Stack::builder(pool() + &route("r", "m", "{name: pool}")).models(1).start().await.unwrap()
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
}

/// Asserts that it is an error in the form of its path, and gives its type.
fn error_type(body: &str, is_anthropic: bool) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert_eq!(body["type"] == "error", is_anthropic, "{body}");
    assert_eq!(body["error"].get("param").is_some(), !is_anthropic, "{body}");
    assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    body["error"]["type"].as_str().unwrap().to_owned()
}

async fn asked(client: &Client, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = client.request(Method::POST, path).json(&chat());
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    Answer::to(request).await.unwrap()
}

#[tokio::test]
async fn a_sidecar_that_is_gone_and_a_model_server_that_fails_are_told_in_the_callers_form() {
    let mut stack = stack().await;
    for (path, is_anthropic) in PATHS {
        let reset = asked(&stack.client(), path, &[("x-sim-fault", "reset")]).await;
        let expected = if is_anthropic { "api_error" } else { "server_error" };
        assert_eq!((reset.status, error_type(&reset.text(), is_anthropic).as_str()), (503, expected), "{path}");
        assert_eq!(reset.header("retry-after"), Some("1"));
    }
    stack.gateway.sidecar.kill().await.unwrap();
    for (path, is_anthropic) in PATHS {
        let gone = asked(&stack.client(), path, &[]).await;
        let expected = if is_anthropic { "api_error" } else { "server_error" };
        assert_eq!((gone.status, error_type(&gone.text(), is_anthropic).as_str()), (503, expected), "{path}");
        assert_eq!((gone.header("retry-after"), gone.header("content-type")), (Some("1"), Some("application/json")));
    }
}

#[tokio::test]
async fn what_envoy_refuses_by_itself_is_json_in_the_callers_form() {
    let stack = stack().await;
    let small = [
        ("max_request_headers_kb: 64", "max_request_headers_kb: 60"),
        ("idle_timeout: 15s", "idle_timeout: 1s"),
        ("request_body_mode: STREAMED", "request_body_mode: BUFFERED"),
        ("send_body_without_waiting_for_header_response: true\n", "\n"),
        ("request_body_buffer_limit: 33619968", "request_body_buffer_limit: 65536"),
        ("limit_bytes: 1048576\n    filter_chains", "limit_bytes: 65536\n    filter_chains"),
    ];
    let envoy = envoy_with(&stack, &small).await;
    let wanted = |is_anthropic: bool, anthropic: &'static str, openai: &'static str| {
        if is_anthropic { anthropic } else { openai }
    };
    for (path, is_anthropic) in PATHS {
        // An upgrade that nobody serves, a body above the buffer, and one that does not go on.
        let upgrade = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n");
        let body = "x".repeat(200_000);
        let large = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        let unfinished = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{{");
        let invalid = wanted(is_anthropic, "invalid_request_error", "invalid_request_error");
        let too_large = wanted(is_anthropic, "request_too_large", "invalid_request_error");
        let web_socket = upgrade.replace("upgrade: other", "upgrade: WebSocket");
        for (request, status, kind) in [
            (&upgrade, 403, invalid),
            (&web_socket, 426, invalid),
            (&large, 413, too_large),
            (&unfinished, 408, invalid),
        ] {
            let mut connection = Connection::open(&envoy).await;
            connection.send(request).await;
            let answer = connection.read_answer().await;
            let found = (answer.status, error_type(&answer.body, is_anthropic));
            assert_eq!(found, (status, kind.to_owned()), "{path}: {}", answer.body);
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert!(answer.header("x-request-id").is_some_and(|id| id.len() == 36), "{path}: {status}");
        }
    }
    // What is no HTTP has no path by which to tell.
    for request in [
        format!("GET /v1/models HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(70_000)),
        "GET /v1/models HTTP/1.1\r\nhost: a\r\nno header\r\n\r\n".to_owned(),
        "GET /v1/models HTTP/1.1\r\n\r\n".to_owned(),
    ] {
        let mut connection = Connection::open(&envoy).await;
        connection.send(&request).await;
        let answer = connection.read_answer().await;
        assert!(matches!(answer.status, 400 | 431), "{}", answer.status);
        assert_eq!(error_type(&answer.body, false), "invalid_request_error");
    }
}

#[tokio::test]
async fn what_the_filter_and_the_sidecar_say_passes_as_it_is() {
    let stack = stack().await;
    let client = stack.client();
    let unknown = Answer::to(client.request(Method::POST, "/v1/nothing").json(&chat())).await.unwrap();
    assert_eq!(unknown.json().unwrap()["error"]["code"], "unknown_url");
    let mut body = chat();
    body["model"] = json!("nobody");
    let nobody = client.chat(&body).await.unwrap();
    assert_eq!((nobody.status, &nobody.json().unwrap()["error"]["code"]), (404, &json!("model_not_found")));
    // And what a model server says.
    for status in ["413", "431", "500", "504"] {
        let fault = format!("status={status}");
        let said = asked(&client, "/v1/messages", &[("x-sim-fault", &fault)]).await;
        assert_eq!(said.status.to_string(), status);
        assert!(!said.text().contains("taken here") && !said.text().contains("retry in a second"), "{}", said.text());
    }
}
