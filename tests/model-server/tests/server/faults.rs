//! What happens when it is asked to.

use std::{io::ErrorKind, time::Duration};

use attache_model_server::{FAULT_HEADER, FaultSpan, Finished};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt as _, time::Instant};

use crate::client::{
    chat, chat_body, events, events_of, gunzip, json_of, post, read_raw, send_raw, start, text_of, until,
};

fn streamed() -> Value {
    json!({"stream": true, "stream_options": {"include_usage": true}, "max_tokens": 3})
}

#[tokio::test]
async fn a_status_is_an_error_in_openais_form_with_its_retry_after() {
    let server = start().await;
    for (fault, status, kind, retry_after) in [
        ("status=500", 500, "server_error", None),
        ("status=503,retry-after=7", 503, "server_error", Some("7")),
        ("status=429,retry-after=1", 429, "rate_limit_error", Some("1")),
    ] {
        let response = chat(&server, &json!({})).header(FAULT_HEADER, fault).send().await.unwrap();
        assert_eq!(response.status(), status);
        let header = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(header.as_deref(), retry_after);
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["type"], kind);
    }
    assert!(server.requests().iter().all(|record| record.finished == Finished::Complete));
}

#[tokio::test]
async fn a_reset_comes_before_any_byte_of_the_answer() {
    let server = start().await;
    let mut stream = send_raw(&server, "x-sim-fault: reset\r\n", &chat_body(&json!({}))).await;
    let (bytes, end) = read_raw(&mut stream).await;
    assert!(bytes.is_empty());
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.requests()[0].finished, Finished::Aborted);
}

#[tokio::test]
async fn a_reset_in_a_stream_comes_after_exactly_so_many_events() {
    let server = start().await;
    for events in [0, 1, 3] {
        let fault = format!("x-sim-fault: reset-after={events}\r\n");
        let mut stream = send_raw(&server, &fault, &chat_body(&streamed())).await;
        let (bytes, end) = read_raw(&mut stream).await;
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"));
        assert_eq!(text.matches("data: ").count(), events);
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert!(server.requests().iter().all(|record| record.finished == Finished::Aborted));
}

#[tokio::test]
async fn a_json_answer_is_reset_half_way() {
    let server = start().await;
    let mut stream = send_raw(&server, "x-sim-fault: reset-after=0\r\n", &chat_body(&json!({}))).await;
    let (bytes, end) = read_raw(&mut stream).await;
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains("content-length: ") && text.contains("chat.completion") && !text.ends_with('}'));
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.requests()[0].finished, Finished::Aborted);
}

#[tokio::test]
async fn a_truncated_body_ends_in_good_order_within_an_event() {
    let server = start().await;
    let text = text_of(chat(&server, &streamed()).header(FAULT_HEADER, "truncate=2")).await;
    let whole = text.rfind("\n\n").unwrap();
    assert_eq!(events(&text[..whole]).len(), 2);
    assert!(text[whole + 2..].starts_with("data: {\"id\""));
    assert_eq!(server.requests()[0].finished, Finished::Aborted);
}

#[tokio::test]
async fn a_stream_that_is_truncated_within_done_was_aborted_all_the_same() {
    let server = start().await;
    let text = text_of(chat(&server, &streamed()).header(FAULT_HEADER, "truncate=6")).await;
    assert!(text.ends_with("data: ["), "{text}");
    assert_eq!(server.requests()[0].finished, Finished::Aborted);
}

#[tokio::test]
async fn a_hanging_server_answers_late_and_as_usual() {
    let server = start().await;
    let start = Instant::now();
    let late = json_of(chat(&server, &json!({})).header(FAULT_HEADER, "hang=60")).await;
    assert!(start.elapsed() >= Duration::from_millis(60));
    assert_eq!(late["choices"], json_of(chat(&server, &json!({}))).await["choices"]);
}

#[tokio::test]
async fn a_slow_stream_pauses_before_every_event() {
    let server = start().await;
    let start = Instant::now();
    let events = events_of(chat(&server, &streamed()).header(FAULT_HEADER, "slow=10")).await;
    assert!(start.elapsed() >= Duration::from_millis(10 * events.len() as u64));
}

#[tokio::test]
async fn a_stream_may_end_without_done_or_without_usage() {
    let server = start().await;
    let text = text_of(chat(&server, &streamed()).header(FAULT_HEADER, "no-done")).await;
    let last = events(&text).pop().unwrap();
    assert_eq!(last["usage"]["completion_tokens"], 3);

    let events = events_of(chat(&server, &streamed()).header(FAULT_HEADER, "no-usage")).await;
    assert!(events.iter().all(|event| event["usage"].is_null() && event["choices"] != json!([])));

    let events = events_of(chat(&server, &streamed()).header(FAULT_HEADER, "null-usage")).await;
    let last = events.last().unwrap();
    assert_eq!((last.get("usage"), &last["choices"]), (Some(&Value::Null), &json!([])));
    assert!(server.requests().iter().all(|record| record.finished == Finished::Complete));
}

#[tokio::test]
async fn a_json_answer_may_have_no_usage_or_null() {
    let server = start().await;
    let without = json_of(chat(&server, &json!({})).header(FAULT_HEADER, "no-usage")).await;
    assert_eq!(without.get("usage"), None);
    let null = json_of(chat(&server, &json!({})).header(FAULT_HEADER, "null-usage")).await;
    assert_eq!(null.get("usage"), Some(&Value::Null));
}

#[tokio::test]
async fn gzip_comes_unasked_and_is_the_same_answer() {
    let server = start().await;
    let plain = events_of(chat(&server, &streamed())).await;
    let response = chat(&server, &streamed()).header(FAULT_HEADER, "gzip").send().await.unwrap();
    assert_eq!(response.headers()["content-encoding"], "gzip");
    let text = gunzip(&response.bytes().await.unwrap());
    let unzipped = events(text.strip_suffix("data: [DONE]\n\n").unwrap());
    let choices = |events: &[Value]| events.iter().map(|event| event["choices"].clone()).collect::<Vec<_>>();
    assert_eq!(choices(&unzipped), choices(&plain));

    let plain = json_of(chat(&server, &json!({}))).await;
    let response = chat(&server, &json!({})).header(FAULT_HEADER, "gzip").send().await.unwrap();
    let unzipped: Value = serde_json::from_str(&gunzip(&response.bytes().await.unwrap())).unwrap();
    assert_eq!(unzipped["choices"], plain["choices"]);
}

#[tokio::test]
async fn a_big_event_has_its_bytes_in_one_event_and_a_big_answer_has_them_too() {
    let server = start().await;
    let events = events_of(chat(&server, &streamed()).header(FAULT_HEADER, "big=2000000")).await;
    let lengths: Vec<_> = events.iter().map(|event| event.to_string().len()).collect();
    assert!(lengths[0] > 2_000_000 && lengths[1..].iter().all(|length| *length < 1_000), "{lengths:?}");
    let answer = json_of(chat(&server, &json!({})).header(FAULT_HEADER, "big=2000000")).await;
    assert_eq!(answer["choices"][0]["padding"].as_str().unwrap().len(), 2_000_000);
}

#[tokio::test]
async fn usage_may_be_negative_or_huge_in_every_dialect() {
    let server = start().await;
    for (path, pointer) in [
        ("/v1/chat/completions", "/usage/prompt_tokens"),
        ("/v1/responses", "/usage/input_tokens"),
        ("/v1/messages", "/usage/output_tokens"),
        ("/v2/rerank", "/meta/tokens/input_tokens"),
    ] {
        let body = json!({
            "model": "m", "messages": [], "input": "Hi", "max_tokens": 9, "query": "Hi", "documents": ["a"],
        });
        let figure = async |fault: &str| {
            let answer = json_of(post(&server, path, &body).header(FAULT_HEADER, fault)).await;
            answer.pointer(pointer).cloned()
        };
        let right = figure("").await.unwrap().as_i64().unwrap();
        assert!(right > 0, "{path}");
        assert_eq!(figure("negative-usage").await, Some(json!(-right)), "{path}");
        assert_eq!(figure("huge-usage").await, Some(json!(u64::MAX)), "{path}");
        assert_eq!(figure("no-usage").await, None, "{path}");
    }
}

#[tokio::test]
async fn usage_may_come_twice_and_the_last_is_right() {
    let server = start().await;
    let events = events_of(chat(&server, &streamed()).header(FAULT_HEADER, "usage-twice")).await;
    let figures: Vec<_> = events.iter().filter_map(|event| event["usage"]["completion_tokens"].as_u64()).collect();
    assert_eq!(figures, [9, 3]);
    let text = text_of(chat(&server, &json!({"max_tokens": 3})).header(FAULT_HEADER, "usage-twice")).await;
    assert_eq!(text.matches("\"usage\":").count(), 2, "{text}");
    // serde_json takes the last of two members of a name.
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn a_stream_may_end_in_an_error_of_its_dialect() {
    let server = start().await;
    for (path, end) in [
        ("/v1/chat/completions", "data: {\"error\":{\"message\":"),
        ("/v1/responses", "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\","),
        ("/v1/messages", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\","),
    ] {
        let body = json!({"model": "m", "messages": [], "input": "Hi", "max_tokens": 9, "stream": true});
        let text = text_of(post(&server, path, &body).header(FAULT_HEADER, "error-after=2")).await;
        let events: Vec<_> = text.split_terminator("\n\n").collect();
        assert!(events[2].starts_with(end), "{text}");
        assert_eq!(events.get(3).copied(), (path == "/v1/chat/completions").then_some("data: [DONE]"), "{text}");
    }
}

#[tokio::test]
async fn a_stream_without_an_end_stays_open_until_the_client_leaves() {
    let server = start().await;
    let mut stream = send_raw(&server, "x-sim-fault: endless=1\r\n", &chat_body(&streamed())).await;
    let mut seen = Vec::new();
    while String::from_utf8_lossy(&seen).matches(": keep-alive").count() < 3 {
        stream.read_buf(&mut seen).await.unwrap();
    }
    assert!(!String::from_utf8_lossy(&seen).contains("[DONE]"));
    assert_eq!(server.requests()[0].finished, Finished::Running);
    drop(stream);
    until("the request is aborted", || server.requests()[0].finished == Finished::Aborted).await;
}

#[tokio::test]
async fn a_wrong_length_is_claimed_and_the_answer_is_cut_or_the_connection_closed() {
    let server = start().await;
    for (fault, difference) in [("long-length=10", 10), ("short-length=10", -10)] {
        let header = format!("x-sim-fault: {fault}\r\nconnection: close\r\n");
        let mut stream = send_raw(&server, &header, &chat_body(&json!({}))).await;
        let (bytes, _) = read_raw(&mut stream).await;
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let claimed = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let whole = json_of(chat(&server, &json!({}))).await.to_string().len() as i64;
        assert_eq!(claimed.parse::<i64>().unwrap(), whole + difference, "{fault}");
        assert_eq!(body.len() as i64, whole + difference.min(0), "{fault}");
    }
}

#[tokio::test]
async fn split_events_come_in_pieces_of_their_own() {
    let server = start().await;
    let headers = "x-sim-fault: split=7\r\nconnection: close\r\n";
    let mut stream = send_raw(&server, headers, &chat_body(&streamed())).await;
    let (bytes, end) = read_raw(&mut stream).await;
    end.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (_, chunks) = text.split_once("\r\n\r\n").unwrap();
    let sizes: Vec<_> =
        chunks.split("\r\n").step_by(2).map(|size| usize::from_str_radix(size, 16).unwrap_or(0)).collect();
    assert!(sizes.len() > 100 && sizes.iter().all(|size| *size <= 7), "{sizes:?}");
}

#[tokio::test]
async fn an_armed_fault_takes_the_next_exchanges_and_a_header_comes_before_it() {
    let server = start().await;
    let url = format!("{}/sim/fault", server.url());
    let arming = Client::new().put(&url).json(&json!({"fault": "status=503", "requests": 2}));
    assert_eq!(arming.send().await.unwrap().status(), StatusCode::NO_CONTENT);
    let status = async |header: &str| {
        let mut request = chat(&server, &json!({}));
        if !header.is_empty() {
            request = request.header(FAULT_HEADER, header);
        }
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(
        [status("").await, status("status=500").await, status("").await, status("").await],
        [503, 500, 503, 200]
    );

    server.arm("status=502".parse().unwrap(), FaultSpan::UntilCleared);
    assert_eq!([status("").await, status("").await], [502, 502]);
    assert_eq!(Client::new().delete(&url).send().await.unwrap().status(), StatusCode::NO_CONTENT);
    assert_eq!(status("").await, 200);

    server.arm("status=502".parse().unwrap(), FaultSpan::UntilCleared);
    server.disarm();
    assert_eq!(status("").await, 200);
}

#[tokio::test]
async fn a_fault_that_cannot_be_read_is_refused() {
    let server = start().await;
    let response = chat(&server, &json!({})).header(FAULT_HEADER, "explode").send().await.unwrap();
    assert_eq!(response.status(), 400);
    assert!(response.text().await.unwrap().contains("`explode`"));
    let url = format!("{}/sim/fault", server.url());
    for body in [json!({"fault": "explode"}), json!({"fault": "gzip", "request": 1}), json!({})] {
        assert_eq!(Client::new().put(&url).json(&body).send().await.unwrap().status(), 400);
    }
    assert_eq!(chat(&server, &json!({})).send().await.unwrap().status(), 200);
}
