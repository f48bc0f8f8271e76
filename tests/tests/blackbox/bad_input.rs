//! What clients and model servers do wrong: each gets its answer, is counted, and leaves nothing behind.

use std::fs;

use attache_model_server::{FaultSpan, Finished};
use attache_tests::{Answer, Client, Directory, EventStream, Stack, client::StreamEnd, tools, until};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    documents::{key, limits, open, pool, route},
    profile,
    raw::{Connection, chunked, post},
    residue,
    verdict::{counted, error, error_in, is, served},
};

const CHAT: &str = "/v1/chat/completions";
const INVALID: &str = "invalid_request_error";

/// Everything that could be left behind is in use: tokens and slots, in Redis.
async fn stack() -> Stack {
    let of_limits = "{name: t, per: [key], limit: 100000000, window: 300d}, {name: c, per: [key], concurrency: 100}";
    let documents = [pool(), route("r", "m", "{name: pool}"), key("a", "acme", "r"), limits("r", of_limits)].concat();
    Stack::builder(documents).models(1).redis().start().await.unwrap()
}

fn client(stack: &Stack) -> Client {
    stack.client().with_key("sk-a")
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10})
}

#[tokio::test]
async fn what_is_no_http_gets_an_answer_and_the_sidecar_is_not_asked() {
    for wasm in [false, true] {
        let builder = Stack::builder(open()).models(1);
        let stack = if wasm { builder } else { builder.without_wasm() }.start().await.unwrap();
        let many_headers = (0..120).map(|index| format!("x-h{index}: 1\r\n")).collect::<String>();
        for (request, status) in [
            ("FOO /v1/models HTTP/1.1\r\nhost: gateway\r\n\r\n".to_owned(), 400),
            ("POST /v1/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: abc\r\n\r\n".to_owned(), 400),
            ("GET /v1/models HTTP/1.1\r\n\r\n".to_owned(), 400),
            (format!("GET /v1/models HTTP/1.1\r\nhost: gateway\r\n{many_headers}\r\n"), 431),
        ] {
            let mut connection = Connection::open(&stack.gateway.envoy).await;
            connection.send(&request).await;
            assert_eq!(connection.read_answer().await.status, status, "{request:.60}");
        }
        assert_eq!(stack.sidecar_metrics().await.unwrap().sum("attache_streams_total", &[]), 0.0);
    }
}

#[tokio::test]
async fn more_headers_than_ours_can_be_added_to_are_refused_in_json() {
    for wasm in [false, true] {
        let builder = Stack::builder(open()).models(1);
        let stack = if wasm { builder } else { builder.without_wasm() }.start().await.unwrap();
        let with = |count: usize| {
            (0..count).fold(stack.client(), |client, index| client.with_header(&format!("x-h{index}"), "1"))
        };
        let body = json!({"model": "m", "messages": []});
        assert_eq!(with(60).chat(&body).await.unwrap().status, 200);
        let refused = with(95).chat(&body).await.unwrap();
        assert_eq!((refused.status, &refused.json().unwrap()["error"]["code"]), (431, &json!("headers_too_large")));
        assert_eq!(stack.models[0].requests_total(), 1);
    }
}

#[tokio::test]
async fn a_body_that_cannot_be_understood_is_refused_with_the_reason_and_counted() {
    let stack = stack().await;
    let deep = format!(r#"{{"model":"m","messages":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    let invalid: [(&str, Option<&str>); 16] = [
        ("", None),
        ("   \n", None),
        ("no JSON", None),
        ("[]", None),
        ("null", None),
        (r#""m""#, None),
        (r#"{"model":"m""#, None),
        (r#"{"model":"m"} x"#, None),
        (r#"{"model":"m","messages":[}"#, None),
        (r#"{"messages":[]}"#, Some("model")),
        (r#"{"model":5,"messages":[]}"#, Some("model")),
        (r#"{"model":null,"messages":[]}"#, Some("model")),
        (r#"{"model":"","messages":[]}"#, Some("model")),
        (r#"{"model":"m","model":"m","messages":[]}"#, Some("model")),
        (r#"{"model":"m","messages":[],"mod\u0065l":"other"}"#, Some("model")),
        (&deep, None),
    ];
    for (body, param) in &invalid {
        for path in [CHAT, "/v1/completions", "/v1/embeddings"] {
            let request = client(&stack).request(Method::POST, path).header("content-type", "application/json");
            let answer = Answer::to(request.body((*body).to_owned())).await.unwrap();
            assert_eq!(error(&answer), is(400, INVALID, None), "{body}");
            assert_eq!(answer.json().unwrap()["error"]["param"].as_str(), *param, "{body}");
        }
    }
    // A request without a body at all.
    let answer = Answer::to(client(&stack).request(Method::POST, CHAT)).await.unwrap();
    assert_eq!(error(&answer), is(400, INVALID, None));
    counted(&stack, "invalid_request", invalid.len() * 3 + 1).await;

    let unknown = [json!("other"), json!("M"), json!("m "), json!("a\"b\\\u{0}é"), json!("x".repeat(100_000))];
    for model in &unknown {
        let mut body = chat();
        body["model"] = model.clone();
        let answer = client(&stack).chat(&body).await.unwrap();
        assert_eq!(error(&answer), is(404, INVALID, "model_not_found"), "{model:.20}: {}", answer.text());
        assert!(answer.body.len() < 2_000, "{}", answer.body.len());
    }
    counted(&stack, "model_not_found", unknown.len()).await;

    let encoded = client(&stack).with_header("content-encoding", "gzip").chat(&chat()).await.unwrap();
    assert_eq!(error(&encoded), is(400, INVALID, None));
    counted(&stack, "encoded_body", 1).await;
    assert_eq!(served(&stack), 0);
    // Codings are told apart without regard to case (RFC 9110, section 8.4.1).
    for identity in ["identity", "Identity"] {
        let answer = client(&stack).with_header("content-encoding", identity).chat(&chat()).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_body_above_the_cap_is_refused_whether_its_length_is_declared_or_not() {
    let stack = stack().await;
    let too_large = is(413, INVALID, "request_too_large");
    // 40 MB in chunks: nobody knows how many there will be.
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    connection.send(chunked(CHAT, "authorization: Bearer sk-a\r\n")).await;
    connection.send_chunk(br#"{"model":"m","messages":[{"role":"user","content":""#).await;
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..40 {
        if !connection.send_chunk(&chunk).await {
            break;
        }
    }
    let answer = connection.read_answer().await;
    assert_eq!(error_in(answer.status, &answer.body), too_large);
    counted(&stack, "body_too_large", 1).await;
    // Declared, the filter refuses it.
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    let request = post(CHAT, "authorization: Bearer sk-a\r\n", &vec![b'x'; 33 << 20]);
    connection.send(&request[..1000]).await;
    let answer = connection.read_answer().await;
    assert_eq!(error_in(answer.status, &answer.body), too_large);
    // At the cap it passes.
    let mut body = chat();
    let overhead = body.to_string().len();
    body["messages"][0]["content"] = json!("x".repeat((32 << 20) - overhead + "Hi".len()));
    assert_eq!(body.to_string().len(), 32 << 20);
    let answer = client(&stack).chat(&body).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(served(&stack), 1);
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_slow_upload_is_waited_for_and_one_that_breaks_off_is_forgotten() {
    let stack = stack().await;
    let body = chat().to_string();
    let mut slow = Connection::open(&stack.gateway.envoy).await;
    slow.send(chunked(CHAT, "authorization: Bearer sk-a\r\n")).await;
    for piece in body.as_bytes().chunks(10) {
        slow.send_chunk(piece).await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    slow.send_chunk(b"").await;
    assert_eq!(slow.read_answer().await.status, 200);

    let mut broken = Connection::open(&stack.gateway.envoy).await;
    broken.send(chunked(CHAT, "authorization: Bearer sk-a\r\n")).await;
    broken.send_chunk(&body.as_bytes()[..20]).await;
    until("the sidecar had seen it", async || {
        stack.sidecar_metrics().await.unwrap().sum("attache_in_flight", &[]) == 1.0
    })
    .await
    .unwrap();
    drop(broken);
    counted(&stack, "cancelled", 1).await;
    assert_eq!(served(&stack), 1);
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_stream_passes_as_it_came_however_it_is_written_or_broken() {
    let stack = stack().await;
    let direct = Client::new(stack.models[0].url()).unwrap();
    let faults = [
        "no-done",
        "no-usage",
        "null-usage",
        "garbage",
        "split=1",
        "split=7",
        "no-space",
        "crlf",
        "cr",
        "comments",
        "multi-line",
        "big=2000000",
        "truncate=3",
        "truncate=0",
        "crlf,multi-line,comments,split=3",
        "garbage,cr,no-space",
        "slow=5",
    ];
    let mut body = chat();
    for asks in [false, true] {
        if asks {
            body["stream_options"] = json!({"include_usage": true});
        }
        for fault in faults {
            let events = async |client: Client| {
                client.with_header("x-sim-fault", fault).stream_chat(&body).await.unwrap().rest().await
            };
            let (ours, theirs) = (events(client(&stack)).await, events(direct.clone()).await);
            assert_eq!(
                (ours.text(), ours.is_done(), &ours.end),
                (theirs.text(), theirs.is_done(), &theirs.end),
                "{fault}"
            );
            // `null` is no usage, so the event that brings it is not taken for the one that we asked for.
            if !fault.contains("truncate") && fault != "null-usage" {
                assert_eq!(ours.data.len(), theirs.data.len(), "{fault} {asks}\n{ours:#?}\n{theirs:#?}");
            }
            let has_usage =
                |events: &attache_tests::client::Events| events.json().any(|event| event["usage"].is_object());
            assert_eq!(has_usage(&ours), has_usage(&theirs), "{fault} {asks}");
        }
    }
    counted(&stack, "served", faults.len() * 2).await;
    residue::none(&stack).await;
}

#[tokio::test]
async fn an_upstream_that_resets_before_its_answer_is_a_502_or_503_in_json() {
    let stack = stack().await;
    let before = stack.sidecar_metrics().await.unwrap().sum("attache_requests_total", &[]);
    for stream in [false, true] {
        let mut body = chat();
        body["stream"] = json!(stream);
        let answer = client(&stack).with_header("x-sim-fault", "reset").chat(&body).await.unwrap();
        assert!(matches!(answer.status, 502 | 503), "{}", answer.text());
        if profile::own_errors_are_json() {
            assert_eq!((error(&answer).1.as_str(), answer.header("retry-after")), ("server_error", Some("1")));
        }
    }
    counted(&stack, "upstream_5xx", 2).await;
    assert_eq!(stack.sidecar_metrics().await.unwrap().sum("attache_requests_total", &[]) - before, 2.0);
    residue::none(&stack).await;
}

#[tokio::test]
async fn an_upstream_that_resets_amid_its_answer_cuts_it_and_is_counted() {
    let stack = stack().await;
    for events in [1, 3, 10] {
        let client = client(&stack).with_header("x-sim-fault", &format!("slow=30,reset-after={events}"));
        let received = client.stream_chat(&chat()).await.unwrap().rest().await;
        assert_eq!(received.end, StreamEnd::Cut);
        assert!(received.data.len() <= events, "{received:?}");
    }
    counted(&stack, "cancelled", 3).await;
    // A reset overtakes what was sent before it: Envoy may not have seen the headers yet.
    for _ in 0..3 {
        if let Ok(answer) = client(&stack).with_header("x-sim-fault", "reset-after=1").chat(&chat()).await {
            assert_eq!(answer.status, 502);
            assert!(!profile::own_errors_are_json() || error(&answer) == is(502, "server_error", None));
        }
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_or_amid_the_answer_frees_the_model_server() {
    let stack = stack().await;
    let running = || stack.models[0].requests().last().is_some_and(|record| record.finished == Finished::Running);
    let mut body = chat();
    body["max_tokens"] = json!(100_000);
    // Before the answer: it is not streamed, so there is none for long.
    let request = tokio::spawn({
        let (client, body) = (client(&stack), body.clone());
        async move { client.chat(&body).await }
    });
    until("the model server was asked", async || running()).await.unwrap();
    request.abort();
    until("the model server was let go", async || !running()).await.unwrap();
    counted(&stack, "cancelled", 1).await;
    // Amid it.
    let mut stream = client(&stack).stream_chat(&body).await.unwrap();
    for _ in 0..5 {
        stream.next().await.unwrap().unwrap();
    }
    drop(stream);
    until("the model server was let go", async || !running()).await.unwrap();
    counted(&stack, "cancelled", 2).await;
    assert_eq!(stack.models[0].requests().last().unwrap().finished, Finished::Aborted);
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_compressed_answer_that_nobody_asked_for_reaches_the_client_as_it_is() {
    let stack = stack().await;
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10});
    let send = async |client: Client| client.with_header("x-sim-fault", "gzip").chat(&body).await.unwrap();
    let answer = send(client(&stack).with_header("accept-encoding", "gzip")).await;
    assert_eq!((answer.status, answer.header("content-encoding")), (200, Some("gzip")));
    assert_eq!(answer.body[..2], [0x1f, 0x8b]);
    assert_eq!(stack.models[0].requests()[0].headers["accept-encoding"], "gzip");
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_hundred_requests_of_every_kind_at_once_leave_nothing_behind() {
    let stack = stack().await;
    let faults = ["", "status=500", "reset", "reset-after=2", "truncate=2", "garbage", "slow=10", "hang=50"];
    let requests = (0..104).map(|index| {
        let client = client(&stack).with_header("x-sim-fault", faults[index % faults.len()]);
        let mut body = chat();
        body["stream"] = json!(index % 3 > 0);
        async move {
            match index % 13 {
                // Leaves at once.
                0 => drop(EventStream::to(client.post(CHAT, &body)).await),
                1 => drop(client.post(CHAT, &json!({"model": "other"})).send().await),
                _ => drop(client.chat(&body).await),
            }
        }
    });
    futures_util::future::join_all(requests).await;
    residue::none(&stack).await;
    let metrics = stack.sidecar_metrics().await.unwrap();
    assert_eq!(metrics.sum("attache_streams_total", &[]), metrics.sum("attache_requests_total", &[]));
    stack.models[0].arm("".parse().unwrap(), FaultSpan::UntilCleared);
    until("the endpoint had cooled down", async || client(&stack).chat(&chat()).await.unwrap().status == 200)
        .await
        .unwrap();
}

/// What `attache check` says of a file with this text, and whether it is content.
fn check(text: &str) -> (bool, String) {
    let directory = Directory::temporary().unwrap();
    let file = directory.path().join("attache.yaml");
    fs::write(&file, text.replace("${MODELS}", "[{ip: {address: 127.0.0.1, port: 1}}]")).unwrap();
    let output = tools::attache().unwrap().arg("check").arg(&file).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn check_reports_what_is_wrong_with_file_line_and_a_way_out() {
    let good = pool() + &route("r", "m", "{name: pool}") + &key("a", "acme", "r");
    assert_eq!(check(&good), (true, "4 objects, 0 errors, 0 warnings\n".to_owned()));
    let lines = good.lines().count();
    let wrong = [
        // Broken YAML.
        (format!("{good}a: [1, 2\nb: }}\n"), lines + 2, ""),
        // A missing reference.
        (good.clone() + &route("other", "n", "{name: nowhere}"), lines + 7, "nowhere"),
        // Two routes with one name.
        (good.clone() + &route("r", "n", "{name: pool}"), lines + 3, "r"),
        // A wrong value.
        (good.clone() + &limits("r", "{name: t, limit: many, window: 1m}"), lines + 4, "many"),
    ];
    for (text, line, quoted) in wrong {
        let (is_content, report) = check(&text);
        assert!(!is_content, "{report}");
        assert!(
            report.contains(&format!("attache.yaml:{line}:")) && report.contains(quoted),
            "line {line} in {report}"
        );
        assert!(report.contains("1 error, ") || report.contains("errors, "), "{report}");
    }
    // An unknown field is a warning, never silence, and no reason to fail.
    let (is_content, report) = check(&good.replace("spec:\n", "spec:\n  retires: 3\n"));
    assert!(is_content && report.contains("warning") && report.contains("`retires`"), "{report}");
}

#[tokio::test]
async fn of_a_file_with_a_wrong_object_the_sound_ones_are_served_and_the_wrong_one_is_counted() {
    let documents = pool() + &route("r", "m", "{name: pool}") + &route("other", "n", "{name: nowhere}");
    // Envoy's bootstrap is rendered of sound files only.
    let stack =
        Stack::builder(pool() + &route("r", "m", "{name: pool}")).models(1).without_wasm().start().await.unwrap();
    stack.reconfigure(&documents).await.unwrap();
    let metrics = stack.sidecar_metrics().await.unwrap();
    assert_eq!(metrics.sum("attache_config_objects_in_error", &[]), 1.0);
    assert_eq!(metrics.sum("attache_config_last_reload_successful", &[]), 0.0);
    assert_eq!(stack.client().chat(&chat()).await.unwrap().status, 200);
    let mut other = chat();
    other["model"] = json!("n");
    assert_eq!(stack.client().chat(&other).await.unwrap().status, 404);
}
