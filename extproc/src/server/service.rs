//! The ext_proc service on the wire, in place of the one that is generated: the same path and the same checks, with messages that
//! have memory only while they are read or written ([`framing`](super::framing)).

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::SERVICE_NAME;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

use super::Processor;
use super::framing::{Messages, ReplyBody};

/// The path of the service's one method.
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// How a client's messages are compressed, where they are.
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// The ext_proc service.
#[derive(Debug, Clone)]
pub struct ProcessorService {
    processor: Processor,
    max_message_bytes: usize,
}

impl ProcessorService {
    /// Refuses messages that are larger.
    pub(super) fn new(processor: Processor, max_message_bytes: usize) -> Self {
        Self { processor, max_message_bytes }
    }
}

impl NamedService for ProcessorService {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<Request<Body>> for ProcessorService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path() != PROCESS {
            return ready(Ok(Status::unimplemented("the service has one method: Process").into_http()));
        }
        if request.headers().get(GRPC_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return ready(Ok(Status::unimplemented("messages are taken uncompressed alone").into_http()));
        }
        let messages = Messages::new(request.into_body(), self.max_message_bytes);
        let mut response = Response::new(Body::new(ReplyBody::new(self.processor.replies(messages))));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        ready(Ok(response))
    }
}
