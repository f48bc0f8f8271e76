//! What is recorded and counted.

use std::{num::NonZeroU64, time::Duration};

use attache_model_server::{Config, Finished, Load, ModelServer};
use futures_util::future::join_all;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::client::{chat, chat_body, json_of, post, send_raw, start, text_of, until};

const IDLE: Load = Load { waiting: 0, running: 0 };

#[tokio::test]
async fn a_request_is_recorded_as_received() {
    let server = start().await;
    let body = r#"{ "model" : "m", "prompt":"Once\u0020upon", "max_tokens": 3 }"#;
    let request = Client::new().post(format!("{}/v1/completions?a=b", server.url()));
    request.header("X-Team", "red").body(body).send().await.unwrap();
    let records = json_of(Client::new().get(format!("{}/sim/requests", server.url()))).await;
    let record = &records[0];
    for (field, value) in [
        ("number", json!(1)),
        ("method", json!("POST")),
        ("path", json!("/v1/completions?a=b")),
        ("model", json!("m")),
        ("body", json!(body)),
        ("body_bytes", json!(body.len())),
        ("prompt_tokens", json!(3)),
        ("cached_tokens", json!(0)),
        ("completion_tokens", json!(3)),
        ("finished", json!("complete")),
    ] {
        assert_eq!(record[field], value, "{field}");
    }
    assert_eq!(record["headers"]["x-team"], "red");
    assert_eq!(record["headers"]["content-length"], body.len().to_string());
}

#[tokio::test]
async fn records_are_forgotten_on_request_and_their_number_is_not() {
    let server = start().await;
    chat(&server, &json!({})).send().await.unwrap();
    let url = format!("{}/sim/requests", server.url());
    assert_eq!(Client::new().delete(&url).send().await.unwrap().status(), 204);
    assert_eq!(json_of(Client::new().get(&url)).await, json!([]));
    chat(&server, &json!({})).send().await.unwrap();
    server.forget_requests();
    assert!(server.requests().is_empty());
    assert_eq!(server.requests_total(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_one_of_many_requests_at_once_is_counted_and_the_metrics_add_up() {
    let server = start().await;
    let requests = (0..200).map(|number| {
        let stream = number % 2 == 0;
        let prompt = format!("{number:0128}");
        let body = json!({"model": "m", "prompt": prompt, "stream": stream, "max_tokens": 2});
        text_of(post(&server, "/v1/completions", &body))
    });
    join_all(requests).await;
    let records = server.requests();
    assert_eq!((server.requests_total(), records.len()), (200, 200));
    assert!(records.iter().all(|record| record.finished == Finished::Complete && record.prompt_tokens == 32));
    let cached_tokens: u64 = records.iter().map(|record| record.cached_tokens).sum();
    // All begin with the same 16 tokens, which only the first has to compute.
    assert_eq!(cached_tokens, 199 * 16);
    assert_eq!(server.load(), IDLE);

    let page = text_of(Client::new().get(format!("{}/metrics", server.url()))).await;
    let labels = "{engine=\"0\",model_name=\"simulated\"}";
    for line in [
        "sim_requests_total 200".to_owned(),
        format!("vllm:prompt_tokens_total{labels} {}", 200 * 32),
        format!("vllm:prefix_cache_queries_total{labels} {}", 200 * 32),
        format!("vllm:prefix_cache_hits_total{labels} {cached_tokens}"),
        format!("vllm:generation_tokens_total{labels} 400"),
        format!("vllm:num_requests_running{labels} 0"),
        format!("vllm:num_requests_waiting{labels} 0"),
        format!("vllm:kv_cache_usage_perc{labels} 0"),
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in:\n{page}");
    }
}

#[tokio::test]
async fn a_client_who_leaves_a_stream_is_noticed() {
    let server = start().await;
    let body = chat_body(&json!({"stream": true, "max_tokens": 1_000_000}));
    let mut stream = send_raw(&server, "", &body).await;
    let mut seen = Vec::new();
    while !seen.ends_with(b"}\n\n\r\n") {
        stream.read_buf(&mut seen).await.unwrap();
    }
    assert_eq!((server.load(), server.requests()[0].finished), (Load { waiting: 0, running: 1 }, Finished::Running));
    drop(stream);
    until("the request is aborted", || server.requests()[0].finished == Finished::Aborted).await;
    until("the engine is idle", || server.load() == IDLE).await;
    let tokens = server.requests()[0].completion_tokens;
    assert!((1..1_000_000).contains(&tokens), "{tokens}");
}

#[tokio::test]
async fn clients_who_leave_the_prefill_and_its_queue_are_noticed() {
    let config = Config { prefill_tokens_per_second: NonZeroU64::MIN, ..Config::default() };
    let server = ModelServer::start(config).await.unwrap();
    let first = send_raw(&server, "", &chat_body(&json!({}))).await;
    until("the first is in prefill", || server.load() == Load { waiting: 0, running: 1 }).await;
    let second = send_raw(&server, "", &chat_body(&json!({"stream": true}))).await;
    until("the second waits", || server.load() == Load { waiting: 1, running: 1 }).await;
    drop(second);
    until("the second has left", || server.load() == Load { waiting: 0, running: 1 }).await;
    drop(first);
    until("the first has left", || server.load() == IDLE).await;
    until("both are aborted", || server.requests().iter().all(|record| record.finished == Finished::Aborted)).await;
    assert_eq!(server.requests_total(), 2);
}

#[tokio::test]
async fn a_client_who_leaves_while_sending_is_noticed() {
    let server = start().await;
    let mut stream = TcpStream::connect(server.addr()).await.unwrap();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    until("the request is seen", || server.requests_total() == 1).await;
    drop(stream);
    until("the request is aborted", || server.requests()[0].finished == Finished::Aborted).await;
}

#[tokio::test]
async fn a_server_that_is_shut_down_cuts_its_streams_and_refuses_connections() {
    let config = Config { time_per_output_token: Duration::from_secs(3_600), ..Config::default() };
    let server = ModelServer::start(config).await.unwrap();
    let response = chat(&server, &json!({"stream": true})).send().await.unwrap();
    let addr = server.addr();
    server.shutdown().await;
    assert!(response.text().await.is_err());
    assert!(TcpStream::connect(addr).await.is_err());
    let again = ModelServer::start(Config { listen: addr.to_string(), ..Config::default() }).await.unwrap();
    let answer: Value = json_of(chat(&again, &json!({}))).await;
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}
