//! Bodies that come slowly, pause or stop, with the clocks as they are rendered.

use std::time::Duration;

use attache_tests::{Stack, client::StreamEnd, tools::Profile};
use serde_json::{Value, json};

use crate::{
    documents::open,
    profile,
    raw::{
        Connection, RawAnswer, chunked,
        http2::{self, DATA, END_HEADERS, END_STREAM, HEADERS, frame},
    },
    residue,
    verdict::{error_in, is, served},
};

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "What goes on and on, and comes in the end?"}]})
}

/// Sends a body in so many pieces with these pauses between them.
async fn upload(stack: &Stack, pieces: usize, pause: Duration) -> RawAnswer {
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    connection.send(chunked("/v1/chat/completions", "")).await;
    let body = chat().to_string();
    for (index, piece) in body.as_bytes().chunks(body.len().div_ceil(pieces)).enumerate() {
        if index > 0 {
            tokio::time::sleep(pause).await;
        }
        connection.send_chunk(piece).await;
    }
    connection.send_chunk(b"").await;
    connection.read_answer().await
}

#[tokio::test]
async fn an_upload_goes_on_after_a_pause_takes_as_long_as_it_takes_and_is_a_408_if_it_stops() {
    let stack = Stack::builder(open()).models(1).start().await.unwrap();
    // Longer than it takes Envoy Gateway's ext_proc to give up the sidecar; below the idle timeout of the way in.
    let paused = upload(&stack, 2, Duration::from_secs(12));
    // All pauses together are longer than all clocks together: 15 s of the way in, 20 s of ext_proc.
    let slow = upload(&stack, 13, Duration::from_secs(3));
    let stopped = async {
        // There the listener's 900 s are the first to ring: see `gateway_profile`.
        if !profile::is(Profile::Static) {
            return;
        }
        let mut connection = Connection::open(&stack.gateway.envoy).await;
        connection.send(chunked("/v1/chat/completions", "")).await;
        connection.send_chunk(&chat().to_string().as_bytes()[..20]).await;
        let answer = connection.read_answer().await;
        assert_eq!(error_in(answer.status, &answer.body), is(408, "invalid_request_error", None));
        assert_eq!((answer.header("connection"), answer.header("retry-after")), (Some("close"), None));
    };
    let (paused, slow, ()) = tokio::join!(paused, slow, stopped);
    for answer in [paused, slow] {
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    assert_eq!(served(&stack), 2);
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_body_in_frames_of_one_byte_is_served_and_costs_nobody_else_an_event() {
    let stack = Stack::builder(open()).models(1).without_wasm().start().await.unwrap();
    let mut body = chat();
    body["max_tokens"] = json!(60);
    let mut other = stack.client().with_header("x-sim-fault", "slow=50").stream_chat(&body).await.unwrap();
    other.next().await.unwrap().unwrap();

    // More than Envoy writes at once by default, fewer than fit into the window that it begins with.
    const FRAMES: usize = 60_000;
    let mut body = chat();
    let padding = FRAMES - body.to_string().len() - r#","user":"""#.len();
    body["user"] = json!("x".repeat(padding));
    let body = body.to_string();
    assert_eq!(body.len(), FRAMES);
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    // HPACK: `:method: POST`, `:scheme: http`, `:authority: a`, `:path: /v1/chat/completions`, `content-type: application/json`.
    let path = b"/v1/chat/completions";
    let kind = b"application/json";
    let head = [&[0x83, 0x86, 0x01, 1, b'a', 0x04, 20][..], path, &[0x0f, 0x10, 16], kind].concat();
    connection.send([http2::preface(), frame(HEADERS, END_HEADERS, 1, &head)].concat()).await;
    connection.send(body.as_bytes().iter().flat_map(|byte| frame(DATA, 0, 1, &[*byte])).collect::<Vec<_>>()).await;
    connection.send(frame(DATA, END_STREAM, 1, b"")).await;
    let answer: Value = serde_json::from_str(&connection.read_data_frame().await).unwrap();
    assert!(answer["choices"].is_array(), "{answer}");

    let rest = other.rest().await;
    assert_eq!((rest.is_done(), rest.end.clone()), (true, StreamEnd::Complete));
    assert!(!rest.json().any(|event| event["usage"].is_object()), "the sidecar left before the stream had ended");
    residue::none(&stack).await;
}
