//! Envoy's messages to ours, and back.

use attache_proto::headers::{COST_METADATA_NAMESPACE, DETAILS_PREFIX, OWNED};
use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpBody, HttpHeaders,
    ImmediateResponse, ProcessingRequest, ProcessingResponse, ProtocolConfiguration, TrailersResponse, body_mutation,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::{Struct, Value, value};
use tonic::Status;

use crate::exchange::{Answers, Body, Costs, End, Failure, Headers, LocalResponse, Mutations, Profile, Reply, Routing};

/// One message of Envoy's, in our terms.
#[derive(Debug)]
pub(super) enum Message {
    RequestHeaders(Headers, End),
    RequestBody(Bytes, End),
    ResponseHeaders(Headers, End, Option<String>, Option<Failure>),
    ResponseBody(Bytes, End),
    RequestTrailers,
    ResponseTrailers,
}

impl Message {
    /// # Errors
    /// `invalid_argument` for a message without content.
    pub(super) fn from_envoy(message: ProcessingRequest) -> Result<Self, Status> {
        match message.request {
            Some(Request::RequestHeaders(HttpHeaders { headers, end_of_stream, .. })) => {
                Ok(Self::RequestHeaders(from_header_map(headers), end(end_of_stream)))
            }
            Some(Request::RequestBody(HttpBody { body, end_of_stream, .. })) => {
                Ok(Self::RequestBody(Bytes::from(body), end(end_of_stream)))
            }
            Some(Request::ResponseHeaders(HttpHeaders { headers, end_of_stream, .. })) => {
                let upstream = attribute(&message.attributes, "upstream.address").map(str::to_owned);
                let failure =
                    attribute(&message.attributes, "upstream.transport_failure_reason").and_then(Failure::of_tls);
                Ok(Self::ResponseHeaders(from_header_map(headers), end(end_of_stream), upstream, failure))
            }
            Some(Request::ResponseBody(HttpBody { body, end_of_stream, .. })) => {
                Ok(Self::ResponseBody(Bytes::from(body), end(end_of_stream)))
            }
            Some(Request::RequestTrailers(_)) => Ok(Self::RequestTrailers),
            Some(Request::ResponseTrailers(_)) => Ok(Self::ResponseTrailers),
            _ => Err(Status::invalid_argument("an ext_proc message without content")),
        }
    }
}

/// The profile that the proxy's first message announces.
///
/// # Errors
/// `failed_precondition`, naming the setting, for a mode in which we would lose requests or hold back answers.
pub(super) fn profile(protocol: Option<&ProtocolConfiguration>) -> Result<Profile, Status> {
    let Some(protocol) = protocol else {
        return Err(Status::failed_precondition(
            "no protocol_config in the first message: Envoy 1.33 or later is needed",
        ));
    };
    match BodySendMode::try_from(protocol.response_body_mode) {
        Ok(BodySendMode::None | BodySendMode::Streamed) => {}
        _ => {
            return Err(Status::failed_precondition(
                "response_body_mode must be STREAMED or NONE: buffering an answer loses it above the buffer limit",
            ));
        }
    }
    match (BodySendMode::try_from(protocol.request_body_mode), protocol.send_body_without_waiting_for_header_response) {
        (Ok(BodySendMode::Streamed), true) => Ok(Profile::Streamed),
        (Ok(BodySendMode::Buffered), _) => Ok(Profile::Buffered),
        _ => Err(Status::failed_precondition(
            "request_body_mode must be BUFFERED, or STREAMED with send_body_without_waiting_for_header_response",
        )),
    }
}

/// Whether the bodies of answers will come.
pub(super) fn answers(protocol: Option<&ProtocolConfiguration>) -> Answers {
    match protocol.map(|protocol| BodySendMode::try_from(protocol.response_body_mode)) {
        Some(Ok(BodySendMode::None)) => Answers::Hidden,
        _ => Answers::Shown,
    }
}

impl Reply {
    pub(super) fn into_envoy(self) -> ProcessingResponse {
        match self {
            Self::RequestHeaders(mutations) => respond(Response::RequestHeaders(HeadersResponse {
                response: Some(common(mutations, Body::Unchanged)),
            })),
            Self::RequestBody(mutations, body) => {
                respond(Response::RequestBody(BodyResponse { response: Some(common(mutations, body)) }))
            }
            Self::ResponseHeaders(mutations) => respond(Response::ResponseHeaders(HeadersResponse {
                response: Some(common(mutations, Body::Unchanged)),
            })),
            Self::ResponseBody(body, costs) => ProcessingResponse {
                dynamic_metadata: metadata(costs),
                ..respond(Response::ResponseBody(BodyResponse { response: Some(common(Mutations::default(), body)) }))
            },
            Self::RequestTrailers => {
                // Where an upstream takes trailers, none of them is called like a header of ours.
                let remove_headers = OWNED.into_iter().map(str::to_owned).collect();
                let header_mutation = Some(HeaderMutation { set_headers: Vec::new(), remove_headers });
                respond(Response::RequestTrailers(TrailersResponse { header_mutation }))
            }
            Self::ResponseTrailers(costs) => ProcessingResponse {
                dynamic_metadata: metadata(costs),
                ..respond(Response::ResponseTrailers(TrailersResponse::default()))
            },
        }
    }
}

impl LocalResponse {
    pub(super) fn into_envoy(self) -> ProcessingResponse {
        let mut headers = vec![set_header("content-type", "application/json".to_owned())];
        headers.extend(self.headers.into_iter().map(|(name, value)| set_header(name, value)));
        respond(Response::ImmediateResponse(ImmediateResponse {
            status: Some(HttpStatus { code: i32::from(self.status) }),
            headers: Some(HeaderMutation { set_headers: headers, remove_headers: Vec::new() }),
            body: self.body.into_bytes(),
            grpc_status: None,
            details: format!("{DETAILS_PREFIX}{}", self.reason),
        }))
    }
}

fn respond(response: Response) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
}

fn common(mutations: Mutations, body: Body) -> CommonResponse {
    let clear_route_cache = mutations.routing == Routing::Again;
    let Mutations { set, remove, upstream, routing: _ } = mutations;
    let of_operator = upstream.set.iter().map(|(name, value)| set_header(name, value.to_string()));
    let set: Vec<_> = set.into_iter().map(|(name, value)| set_header(name, value)).chain(of_operator).collect();
    let of_operator = upstream.remove.iter().map(|name| name.to_string());
    let remove: Vec<_> = remove.into_iter().map(str::to_owned).chain(of_operator).collect();
    let header_mutation =
        (!set.is_empty() || !remove.is_empty()).then_some(HeaderMutation { set_headers: set, remove_headers: remove });
    let body_mutation = match body {
        Body::Unchanged => None,
        Body::Replaced(bytes) if bytes.is_empty() => Some(body_mutation::Mutation::ClearBody(true)),
        Body::Replaced(bytes) => Some(body_mutation::Mutation::Body(Vec::from(bytes))),
    };
    CommonResponse {
        header_mutation,
        body_mutation: body_mutation.map(|mutation| BodyMutation { mutation: Some(mutation) }),
        clear_route_cache,
        ..CommonResponse::default()
    }
}

/// Always `raw_value` and an explicit action: with `value`, or with the default action, Envoy appends where a header is
/// already there.
fn set_header(name: &str, value: String) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), raw_value: value.into_bytes(), ..HeaderValue::default() }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}

fn metadata(costs: Costs) -> Option<Struct> {
    if costs.is_empty() {
        return None;
    }
    let number = |tokens: u64| Value { kind: Some(value::Kind::NumberValue(tokens as f64)) };
    let fields = costs.into_iter().map(|(key, tokens)| (key.to_string(), number(tokens))).collect();
    let namespace = Value { kind: Some(value::Kind::StructValue(Struct { fields })) };
    Some(Struct { fields: [(COST_METADATA_NAMESPACE.to_owned(), namespace)].into() })
}

fn from_header_map(headers: Option<envoy_types::pb::envoy::config::core::v3::HeaderMap>) -> Headers {
    let headers = headers.map(|map| map.headers).unwrap_or_default();
    Headers(
        headers
            .into_iter()
            .map(|HeaderValue { key, value, raw_value }| {
                (key, if raw_value.is_empty() { Bytes::from(value) } else { Bytes::from(raw_value) })
            })
            .collect(),
    )
}

/// What `response_attributes` asks for: the address of the endpoint that answered (`upstream.address`), and why none did
/// (`upstream.transport_failure_reason`).
fn attribute<'a>(attributes: &'a std::collections::HashMap<String, Struct>, name: &str) -> Option<&'a str> {
    attributes.values().find_map(|filter| match filter.fields.get(name)?.kind.as_ref()? {
        value::Kind::StringValue(text) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    })
}

fn end(end_of_stream: bool) -> End {
    if end_of_stream { End::Last } else { End::More }
}
