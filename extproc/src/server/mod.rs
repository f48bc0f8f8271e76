//! The gRPC server: one stream of messages from Envoy drives one [`Exchange`](crate::exchange::Exchange).
//!
//! It fails closed. A stream that closes cleanly is a bypass for Envoy, whatever `failure_mode_allow` says, so a stream
//! whose request phase did not complete always ends with an error status: after a panic, a decoding error, an oversized
//! message or a message out of order.

mod cut;
pub mod listen;
mod stream;
mod wire;

pub use cut::Cut;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures_util::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use crate::world::World;

/// What a message may be larger than a body's cap: headers, attributes and framing.
const MESSAGE_OVERHEAD_BYTES: usize = 64 * 1024;

/// The ext_proc service.
#[derive(Debug, Clone)]
pub struct Processor {
    world: Arc<World>,
    cut: Cut,
}

impl Processor {
    /// The service, ready to be added to a tonic server.
    pub fn service(world: Arc<World>, cut: Cut) -> ExternalProcessorServer<Self> {
        let cap = usize::try_from(world.settings.max_body_bytes).unwrap_or(usize::MAX);
        ExternalProcessorServer::new(Self { world, cut })
            .max_decoding_message_size(cap.saturating_add(MESSAGE_OVERHEAD_BYTES))
            .max_encoding_message_size(usize::MAX)
    }
}

#[tonic::async_trait]
impl ExternalProcessor for Processor {
    type ProcessStream = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let replies = stream::replies(request.into_inner(), Arc::clone(&self.world));
        Ok(Response::new(Box::pin(self.cut.before(catch_panics(replies)))))
    }
}

/// A panic must not take the connection with it, which carries every stream of an Envoy worker, and must not look like a
/// clean end.
fn catch_panics(
    replies: impl Stream<Item = Result<ProcessingResponse, Status>>,
) -> impl Stream<Item = Result<ProcessingResponse, Status>> {
    AssertUnwindSafe(replies)
        .catch_unwind()
        .map(|reply| reply.unwrap_or_else(|_| Err(Status::internal("the exchange panicked"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_an_exchange_ends_its_stream_with_an_error() {
        let replies = async_stream::stream! {
            yield Ok(ProcessingResponse::default());
            panic!("a fault of ours");
        };
        let seen: Vec<_> = catch_panics(replies).map(|reply| reply.map_err(|status| status.code())).collect().await;
        assert_eq!(seen, [Ok(ProcessingResponse::default()), Err(tonic::Code::Internal)]);
    }
}
