//! Requests that end in trailers: the trailers are the end of the body, and nothing else. Nobody waits for more, and none of
//! them becomes a header.

use std::net::SocketAddr;

use attache_tests::{Stack, tools::Profile};
use bytes::Bytes;
use http::{HeaderName, Request};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::{
    documents::{key, limits, pool, route},
    profile,
    raw::{Connection, chunked, http2, post},
    residue,
};

use http2::{DATA, END_HEADERS, END_STREAM, HEADERS, frame};

const CHAT: &str = "/v1/chat/completions";

async fn stack() -> Stack {
    let documents = pool()
        + &route("r", "m", "{name: pool}")
        + &limits("r", "{name: day, per: [key], limit: 1000000, window: 300d}")
        + &key("a", "acme", "r");
    Stack::builder(documents).models(1).start().await.unwrap()
}

fn chat() -> String {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}).to_string()
}

/// A POST over HTTP/2, its body in these pieces, and then these trailers.
struct Post<'a> {
    headers: &'a [(&'a str, &'a str)],
    pieces: &'a [&'a [u8]],
    trailers: &'a [(&'a str, &'a str)],
    /// Whether Envoy gets all of it at once, or the frames one after the other.
    at_once: bool,
}

impl Post<'_> {
    /// The status and body of the answer. An error where Envoy ends the stream.
    async fn send(&self, stack: &Stack) -> Result<(u16, Value), h2::Error> {
        let address: SocketAddr = stack.gateway.envoy.url().trim_start_matches("http://").parse().unwrap();
        let connection = TcpStream::connect(address).await.unwrap();
        let (mut client, connection) = h2::client::handshake(connection).await?;
        let connection = tokio::spawn(connection);
        let request = Request::post(format!("http://gateway{CHAT}"))
            .header("content-type", "application/json")
            .header("authorization", "Bearer sk-a");
        let request = self.headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let (answer, mut sending) = client.send_request(request.body(()).unwrap(), false)?;
        for piece in self.pieces {
            self.pause(stack).await;
            sending.send_data(Bytes::copy_from_slice(piece), false)?;
        }
        self.pause(stack).await;
        let trailer = |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        sending.send_trailers(self.trailers.iter().map(trailer).collect())?;
        let (head, mut body) = answer.await?.into_parts();
        let mut whole = Vec::new();
        while let Some(piece) = body.data().await {
            whole.extend_from_slice(&piece?);
        }
        connection.abort();
        Ok((head.status.as_u16(), serde_json::from_slice(&whole).unwrap()))
    }

    /// Lets the connection write what it has, and the sidecar hear of it.
    async fn pause(&self, stack: &Stack) {
        if !self.at_once {
            stack.gateway.envoy.stats().await.unwrap();
        }
    }
}

/// A POST whose body comes in these pieces.
fn posted<'a>(pieces: &'a [&'a [u8]], at_once: bool) -> Post<'a> {
    Post { headers: &[], pieces, trailers: TRAILERS, at_once }
}

const TRAILERS: &[(&str, &str)] = &[("x-checksum", "1")];

#[tokio::test]
async fn a_body_that_ends_in_trailers_is_served_like_one_that_ends_by_itself() {
    let stack = stack().await;
    let body = chat();
    let (first, second) = body.as_bytes().split_at(20);
    let length = body.len().to_string();
    let declared = [("content-length", length.as_str())];
    let grpc = [("te", "trailers"), ("grpc-accept-encoding", "identity")];
    for at_once in [true, false] {
        for (headers, pieces) in [
            (&[][..], &[body.as_bytes()][..]),
            (&declared, &[body.as_bytes()]),
            (&grpc, &[first, second]),
            (&declared, &[first, b"", second, b""]),
        ] {
            let (status, answer) = Post { headers, ..posted(pieces, at_once) }.send(&stack).await.unwrap();
            assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(3)), "{at_once} {answer}");
        }
    }
    for record in stack.models[0].requests() {
        assert_eq!(record.body, body);
        assert_eq!(record.headers.get("x-checksum"), None);
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn half_a_body_and_none_before_trailers_are_refused_at_once() {
    let stack = stack().await;
    let body = chat();
    for at_once in [true, false] {
        for pieces in [&[&body.as_bytes()[..20]][..], &[b"{"], &[b""], &[]] {
            let (status, answer) = posted(pieces, at_once).send(&stack).await.unwrap();
            // Of no byte at all, the Envoy of Envoy Gateway may tell the sidecar nothing.
            let is_unseen = profile::is(Profile::EnvoyGateway) && pieces.concat().is_empty() && status == 503;
            assert!(status == 400 || is_unseen, "{at_once} {pieces:?} {status} {answer}");
            assert!(answer["error"]["message"].is_string(), "{answer}");
        }
    }
    assert_eq!(stack.models[0].requests_total(), 0);
    residue::none(&stack).await;
}

#[tokio::test]
async fn no_trailer_is_ever_a_header() {
    let stack = stack().await;
    let body = chat();
    let forbidden: [&[(&str, &str)]; 5] = [
        &[("x-attache-cluster", "default/pool"), ("x-attache-route", "default/r")],
        &[("x-gateway-destination-endpoint", "127.0.0.1:1"), ("x-attache-protocol", "HTTP/1.1")],
        &[("authorization", "Bearer sk-b"), ("x-envoy-upstream-rq-timeout-ms", "1")],
        &[("content-length", "5")],
        &[("connection", "close"), ("transfer-encoding", "chunked")],
    ];
    for trailers in forbidden {
        // Envoy ends the stream for those that HTTP/2 forbids.
        if let Ok((status, answer)) = (Post { trailers, ..posted(&[body.as_bytes()], true) }).send(&stack).await {
            assert!(status == 200 || status == 400, "{trailers:?}: {status} {answer}");
        }
    }
    // And the connection for pseudo-headers. HPACK: a literal, `:path: /x`.
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    let head = [&[0x83, 0x86, 0x01, 1, b'a', 0x04, 20][..], CHAT.as_bytes()].concat();
    let request = [
        http2::preface(),
        frame(HEADERS, END_HEADERS, 1, &head),
        frame(DATA, 0, 1, body.as_bytes()),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x05:path\x02/x"),
    ];
    connection.send(request.concat()).await;
    connection.read_to_end().await;
    let requests = stack.models[0].requests();
    assert!(requests.len() >= 3, "{}", requests.len());
    for record in requests {
        assert_eq!((record.path.as_str(), record.body.as_str()), (CHAT, body.as_str()));
        for name in ["x-attache-cluster", "x-attache-route", "x-attache-protocol", "authorization"] {
            assert_eq!(record.headers.get(name), None);
        }
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn trailers_behind_chunks_of_http1_end_a_body_as_well() {
    let stack = stack().await;
    let body = chat();
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    let key = "authorization: Bearer sk-a\r\n";
    let sent = format!("{}{:x}\r\n{body}\r\n0\r\nx-attache-cluster: x\r\n\r\n", chunked(CHAT, key), body.len());
    connection.send(sent).await;
    assert_eq!(connection.read_answer().await.status, 200);
    // The connection goes on behind them.
    connection.send(post(CHAT, key, body.as_bytes())).await;
    assert_eq!(connection.read_answer().await.status, 200);
    assert_eq!(stack.models[0].requests_total(), 2);
    residue::none(&stack).await;
}
