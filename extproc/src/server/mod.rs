//! The gRPC server: one stream of messages from Envoy drives one [`Exchange`](crate::exchange::Exchange).
//!
//! It fails closed. A stream that closes cleanly is a bypass for Envoy, whatever `failure_mode_allow` says, so a stream
//! whose request phase did not complete always ends with an error status: after a panic, a decoding error, an oversized
//! message or a message out of order.

mod cut;
mod framing;
pub mod listen;
mod service;
mod stream;
pub mod transport;
mod wire;

pub use cut::Cut;
pub use service::ProcessorService;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingResponse;
use futures_util::{Stream, StreamExt};
use tonic::Status;

use crate::world::World;
use framing::Messages;

/// The name under which Envoy asks for our health.
pub const HEALTH_SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

/// What a message may be larger than a body's cap: headers, attributes and framing.
const MESSAGE_OVERHEAD_BYTES: usize = 64 * 1024;

/// The replies to one stream.
type Replies = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

/// What answers streams of messages.
#[derive(Debug, Clone)]
pub struct Processor {
    world: Arc<World>,
    cut: Cut,
}

impl Processor {
    /// The ext_proc service, ready to be added to a tonic server.
    pub fn service(world: Arc<World>, cut: Cut) -> ProcessorService {
        let cap = usize::try_from(world.settings.max_body_bytes).unwrap_or(usize::MAX);
        ProcessorService::new(Self { world, cut }, cap.saturating_add(MESSAGE_OVERHEAD_BYTES))
    }

    fn replies(&self, messages: Messages) -> Replies {
        // Boxed here as well: what takes a stream by value and pins it keeps room for two of them.
        let replies = Box::pin(catch_panics(stream::replies(messages, Arc::clone(&self.world))));
        Box::pin(self.cut.before(replies))
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
