//! Bodies that come slowly, pause or stop, with the clocks as they are rendered.

use std::time::Duration;

use attache_tests::{Stack, tools::Profile};
use serde_json::{Value, json};

use crate::{
    documents::open,
    profile,
    raw::{Connection, RawAnswer, chunked},
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
