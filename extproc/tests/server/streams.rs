//! Streams by a client that does what Envoy does, and what it should not.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use attache::config::model::Settings;
use attache::config::{self, Documents};
use attache::limit::{Cap, Ledger, Limit, Mode};
use attache::server::{Cut, Processor, transport};
use attache::world::World;
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

const NONE: i32 = 0;
const STREAMED: i32 = 1;
const BUFFERED: i32 = 2;
const FULL_DUPLEX_STREAMED: i32 = 4;

const YAML: &str = r#"
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: pool}
spec: {endpoints: [{ip: {address: 10.0.0.1, port: 80}}]}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: pool}
spec: {schema: {name: OpenAI}, backendRef: {name: pool, kind: Backend, group: gateway.envoyproxy.io}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: unified}
spec:
  rules:
  - matches: [{headers: [{type: Exact, name: x-ai-eg-model, value: assistant}]}]
    backendRefs: [{name: pool, modelNameOverride: qwen}]
---
apiVersion: attache.dev/v1alpha1
kind: TokenLimitPolicy
metadata: {name: all}
spec:
  targetRefs: [{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: unified}]
  limits: [{name: day, per: [], limit: 1000000, window: 1d}]
"#;

/// A server with a body cap of 1 MiB, and a connection to it.
struct Sidecar {
    client: ExternalProcessorClient<Channel>,
    world: Arc<World>,
}

impl Sidecar {
    async fn start() -> Self {
        Self::start_with(|limit| limit).await
    }

    /// The same with its limit changed.
    async fn start_with(change: impl FnOnce(Limit) -> Limit) -> Self {
        let settings = Settings { max_body_bytes: 1 << 20, ..Settings::default() };
        let mut outcome = config::compile(Documents::from_text("test.yaml", YAML), settings.clone(), 1, None).unwrap();
        let limits = &mut outcome.config.routes[0].limits;
        *limits = vec![Arc::new(change(Limit::clone(&limits[0])))];
        let config = Arc::new(ArcSwap::from_pointee(outcome.config));
        let world = Arc::new(World::new(settings, config, Ledger::memory(), Arc::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = transport::server().add_service(Processor::service(Arc::clone(&world), Cut::default()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let client = ExternalProcessorClient::connect(format!("http://{address}")).await.unwrap();
        Self { client: client.max_encoding_message_size(usize::MAX), world }
    }

    async fn open(&self) -> (mpsc::Sender<ProcessingRequest>, Streaming<ProcessingResponse>) {
        let (send, receive) = mpsc::channel(16);
        let replies = self.client.clone().process(ReceiverStream::new(receive)).await.unwrap().into_inner();
        (send, replies)
    }

    /// Sends messages, closes, and returns what came back.
    async fn converse(&self, messages: Vec<ProcessingRequest>) -> (Vec<ProcessingResponse>, Result<(), Status>) {
        let (send, mut replies) = self.open().await;
        for message in messages {
            // A server that has ended the stream takes no more.
            let _ = send.send(message).await;
        }
        drop(send);
        let mut seen = Vec::new();
        loop {
            match replies.message().await {
                Ok(Some(reply)) => seen.push(reply),
                Ok(None) => return (seen, Ok(())),
                Err(status) => return (seen, Err(status)),
            }
        }
    }

    /// Nothing is in flight and nothing is reserved.
    async fn is_at_rest(&self) {
        let rest = async {
            while self.world.telemetry.in_flight() != 0 || self.world.ledger.stats().reservations != Some(0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let held = || (self.world.telemetry.in_flight(), self.world.ledger.stats());
        assert!(tokio::time::timeout(Duration::from_secs(20), rest).await.is_ok(), "left behind: {:?}", held());
    }
}

fn protocol(request_body: i32, response_body: i32, no_wait: bool) -> ProtocolConfiguration {
    ProtocolConfiguration {
        request_body_mode: request_body,
        response_body_mode: response_body,
        send_body_without_waiting_for_header_response: no_wait,
    }
}

fn headers(pairs: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    let headers = pairs
        .iter()
        .map(|(key, value)| HeaderValue {
            key: key.to_string(),
            raw_value: value.as_bytes().to_vec(),
            ..HeaderValue::default()
        })
        .collect();
    HttpHeaders { headers: Some(HeaderMap { headers }), end_of_stream, ..HttpHeaders::default() }
}

fn head(protocol_config: Option<ProtocolConfiguration>) -> ProcessingRequest {
    let request = headers(&[(":method", "POST"), (":path", "/v1/chat/completions")], false);
    ProcessingRequest {
        protocol_config,
        request: Some(Request::RequestHeaders(request)),
        ..ProcessingRequest::default()
    }
}

fn static_head() -> ProcessingRequest {
    head(Some(protocol(STREAMED, STREAMED, true)))
}

fn body(bytes: &[u8], end_of_stream: bool) -> ProcessingRequest {
    let body = HttpBody { body: bytes.to_vec(), end_of_stream, ..HttpBody::default() };
    ProcessingRequest { request: Some(Request::RequestBody(body)), ..ProcessingRequest::default() }
}

fn answer_head() -> ProcessingRequest {
    let response = headers(&[(":status", "200"), ("content-type", "application/json")], false);
    ProcessingRequest { request: Some(Request::ResponseHeaders(response)), ..ProcessingRequest::default() }
}

fn answer_body(bytes: &[u8], end_of_stream: bool) -> ProcessingRequest {
    let body = HttpBody { body: bytes.to_vec(), end_of_stream, ..HttpBody::default() };
    ProcessingRequest { request: Some(Request::ResponseBody(body)), ..ProcessingRequest::default() }
}

fn trailers() -> ProcessingRequest {
    let trailers = Request::RequestTrailers(HttpTrailers::default());
    ProcessingRequest { request: Some(trailers), ..ProcessingRequest::default() }
}

fn answer_trailers() -> ProcessingRequest {
    let trailers = Request::ResponseTrailers(HttpTrailers::default());
    ProcessingRequest { request: Some(trailers), ..ProcessingRequest::default() }
}

fn immediate_status(reply: &ProcessingResponse) -> Option<i32> {
    match reply.response.as_ref()? {
        Response::ImmediateResponse(response) => Some(response.status.as_ref()?.code),
        _ => None,
    }
}

const CHAT: &[u8] = br#"{"model":"assistant","messages":[]}"#;

#[tokio::test]
async fn a_whole_exchange_is_answered_message_by_message_and_then_ends_cleanly() {
    let sidecar = Sidecar::start().await;
    let usage = br#"{"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#;
    let messages = vec![static_head(), body(CHAT, true), answer_head(), answer_body(usage, true)];
    let (replies, end) = sidecar.converse(messages).await;
    let kinds: Vec<_> = replies
        .iter()
        .map(|reply| match reply.response {
            Some(Response::RequestHeaders(_)) => "request headers",
            Some(Response::RequestBody(_)) => "request body",
            Some(Response::ResponseHeaders(_)) => "response headers",
            Some(Response::ResponseBody(_)) => "response body",
            _ => "something else",
        })
        .collect();
    assert_eq!(kinds, ["request headers", "request body", "response headers", "response body"]);
    assert!(end.is_ok(), "{end:?}");
    sidecar.is_at_rest().await;
}

#[tokio::test]
async fn trailers_end_bodies_and_get_replies_that_take_our_headers_out_of_them() {
    let sidecar = Sidecar::start().await;
    let usage = br#"{"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#;
    let buffered = || head(Some(protocol(BUFFERED, STREAMED, false)));
    for first in [static_head(), buffered()] {
        let messages =
            vec![first, body(CHAT, false), trailers(), answer_head(), answer_body(usage, false), answer_trailers()];
        let (replies, end) = sidecar.converse(messages).await;
        assert!(end.is_ok(), "{end:?}");
        let replies: Vec<_> = replies.into_iter().filter_map(|reply| reply.response).collect();
        let [_, _, Response::RequestTrailers(reply), _, _, Response::ResponseTrailers(_)] = replies.as_slice() else {
            panic!("{replies:?}")
        };
        let removed = &reply.header_mutation.as_ref().unwrap().remove_headers;
        assert!(attache_proto::headers::OWNED.iter().all(|name| removed.iter().any(|removed| removed == name)));
    }
    for first in [static_head(), buffered()] {
        let (replies, end) = sidecar.converse(vec![first, trailers()]).await;
        assert_eq!((replies.last().and_then(immediate_status), end.is_ok()), (Some(400), true), "{replies:?}");
    }
    sidecar.is_at_rest().await;
    assert_eq!(sidecar.world.ledger.stats().reservations, Some(0));
}

#[tokio::test]
async fn a_stream_that_ends_before_its_request_is_dealt_with_ends_in_an_error() {
    let sidecar = Sidecar::start().await;
    for messages in [vec![], vec![static_head()], vec![static_head(), body(b"{\"model\":", false)]] {
        let count = messages.len();
        let (replies, end) = sidecar.converse(messages).await;
        assert_eq!(replies, [], "after {count} messages");
        assert_eq!(end.unwrap_err().code(), Code::Aborted, "after {count} messages");
    }
    sidecar.is_at_rest().await;
}

#[tokio::test]
async fn a_message_above_the_size_bound_is_an_error_and_never_a_clean_end() {
    let sidecar = Sidecar::start().await;
    let (_, end) = sidecar.converse(vec![static_head(), body(&vec![b' '; 2 << 20], true)]).await;
    assert!(end.is_err(), "{end:?}");
    sidecar.is_at_rest().await;
}

#[tokio::test]
async fn a_body_above_the_cap_is_413_even_where_each_message_is_small() {
    let sidecar = Sidecar::start().await;
    let chunk = body(&vec![b' '; 700 << 10], false);
    let (replies, end) = sidecar.converse(vec![static_head(), chunk.clone(), chunk]).await;
    assert_eq!(replies.iter().map(immediate_status).collect::<Vec<_>>(), [Some(413)]);
    assert!(end.is_ok(), "an answer of our own is an end: {end:?}");
    sidecar.is_at_rest().await;
}

#[tokio::test]
async fn a_mode_that_would_lose_requests_is_refused_with_its_name() {
    let sidecar = Sidecar::start().await;
    for (config, words) in [
        (None, "protocol_config"),
        (Some(protocol(STREAMED, STREAMED, false)), "send_body_without_waiting_for_header_response"),
        (Some(protocol(NONE, NONE, true)), "request_body_mode"),
        (Some(protocol(FULL_DUPLEX_STREAMED, STREAMED, true)), "request_body_mode"),
        (Some(protocol(99, STREAMED, true)), "request_body_mode"),
        (Some(protocol(BUFFERED, BUFFERED, false)), "response_body_mode"),
    ] {
        let (replies, end) = sidecar.converse(vec![head(config)]).await;
        let status = end.unwrap_err();
        assert_eq!((replies.len(), status.code()), (0, Code::FailedPrecondition));
        assert!(status.message().contains(words), "{status}");
    }
    sidecar.is_at_rest().await;
}

#[tokio::test]
async fn messages_out_of_order_end_the_stream_in_an_error() {
    let sidecar = Sidecar::start().await;
    let protocol_config = Some(protocol(STREAMED, STREAMED, true));
    let first_body = ProcessingRequest { protocol_config, ..body(CHAT, true) };
    for messages in [
        vec![first_body],
        vec![static_head(), static_head()],
        vec![static_head(), answer_head(), answer_head()],
        vec![static_head(), body(CHAT, true), answer_body(b"", true)],
        vec![static_head(), answer_trailers()],
        vec![static_head(), body(CHAT, true), answer_trailers()],
        vec![static_head(), ProcessingRequest::default()],
    ] {
        let (_, end) = sidecar.converse(messages).await;
        let code = end.unwrap_err().code();
        assert!(matches!(code, Code::FailedPrecondition | Code::InvalidArgument), "{code:?}");
    }
    sidecar.is_at_rest().await;
}

#[tokio::test]
async fn a_client_that_leaves_at_any_point_leaves_nothing_behind() {
    let sidecar = Sidecar::start().await;
    let messages = [static_head(), body(CHAT, true), answer_head(), answer_body(b"{", false)];
    for count in 0..=messages.len() {
        let (send, replies) = sidecar.open().await;
        for message in messages.iter().take(count) {
            send.send(message.clone()).await.unwrap();
        }
        // Dropping both ends resets the stream, as Envoy does when its client is gone.
        drop((send, replies));
        sidecar.is_at_rest().await;
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_gets_its_error_and_then_a_reset_though_its_upstream_is_silent() {
    let sidecar =
        Sidecar::start_with(|limit| Limit { amount: 1_000, mode: Mode::Strict, cap: Cap::Capped, ..limit }).await;
    let (send, mut replies) = sidecar.open().await;
    let chat = br#"{"model":"assistant","messages":[],"stream":true}"#;
    let response = headers(&[(":status", "200"), ("content-type", "text/event-stream")], false);
    let head = ProcessingRequest { request: Some(Request::ResponseHeaders(response)), ..ProcessingRequest::default() };
    let tokens = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n".repeat(100);
    let mut seen = String::new();
    for message in [static_head(), body(chat, true), head] {
        send.send(message).await.unwrap();
    }
    for _ in 0..3 {
        replies.message().await.unwrap().unwrap();
    }
    while !seen.contains("error") {
        send.send(answer_body(tokens.as_bytes(), false)).await.unwrap();
        let reply = replies.message().await.unwrap().unwrap();
        let Some(Response::ResponseBody(reply)) = reply.response else { panic!("{reply:?}") };
        match reply.response.and_then(|common| common.body_mutation?.mutation) {
            None => seen += &tokens,
            Some(Mutation::Body(bytes)) => seen += std::str::from_utf8(&bytes).unwrap(),
            Some(other) => panic!("{other:?}"),
        }
    }
    // The limit, but for what the template may add to a prompt of nothing.
    assert_eq!(seen.matches("content").count(), 1_000 - 32);
    assert!(seen.ends_with("\"code\":\"insufficient_quota\"}}\n\ndata: [DONE]\n\n"), "{}", &seen[seen.len() - 300..]);
    // Nobody has asked for this one.
    let reply = replies.message().await.unwrap().unwrap();
    assert_eq!(immediate_status(&reply), Some(429));
    assert!(replies.message().await.unwrap().is_none());
    sidecar.is_at_rest().await;
}
