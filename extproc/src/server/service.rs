//! The ext_proc service on the wire, in place of the one that is generated: it has the same path and the same checks, and
//! buffers of the size of Envoy's messages.
//!
//! tonic gives a stream two buffers of 8 KiB each before its first message, and most of a stream's life is spent between
//! two events of an answer, whose messages have some hundred bytes. They grow where a message is larger.

use std::convert::Infallible;
use std::task::{Context, Poll};

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::SERVICE_NAME;
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec};
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::{Processor, Replies};

/// What a stream's buffers hold before they grow, in bytes: the headers of a request fit. Measured with 500 streams that live
/// at one time: with tonic's 8 KiB, each took 5 kB more.
const BUFFER_BYTES: usize = 1024;

/// How many bytes of replies are written at once. tonic's own default.
const WRITE_AT_ONCE_BYTES: usize = 32 * 1024;

/// The path of the service's one method.
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

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

impl Service<http::Request<Body>> for ProcessorService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != PROCESS {
            return Box::pin(async { Ok(Status::unimplemented("the service has one method: Process").into_http()) });
        }
        let process = Process(self.processor.clone());
        let mut grpc = Grpc::new(SmallBuffers)
            .max_decoding_message_size(self.max_message_bytes)
            .max_encoding_message_size(usize::MAX);
        Box::pin(async move { Ok(grpc.streaming(process, request).await) })
    }
}

/// The method.
struct Process(Processor);

impl StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = Replies;
    type Future = std::future::Ready<Result<Response<Replies>, Status>>;

    fn call(&mut self, request: Request<Streaming<ProcessingRequest>>) -> Self::Future {
        std::future::ready(Ok(Response::new(self.0.replies(request.into_inner()))))
    }
}

/// Protobuf, with buffers of [`BUFFER_BYTES`].
struct SmallBuffers;

type Prost = ProstCodec<ProcessingResponse, ProcessingRequest>;

impl Codec for SmallBuffers {
    type Encode = ProcessingResponse;
    type Decode = ProcessingRequest;
    type Encoder = <Prost as Codec>::Encoder;
    type Decoder = <Prost as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        Prost::raw_encoder(BufferSettings::new(BUFFER_BYTES, WRITE_AT_ONCE_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        Prost::raw_decoder(BufferSettings::new(BUFFER_BYTES, WRITE_AT_ONCE_BYTES))
    }
}
