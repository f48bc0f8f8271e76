//! One stream: messages in, replies out, the ledger asked in between.

use std::sync::Arc;
use std::time::Instant;

use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures_util::Stream;
use tokio::time::interval_at;
use tonic::{Status, Streaming};

use super::wire::{self, Message};
use crate::exchange::{Action, Exchange};
use crate::limit::{RENEW_EVERY, ReserveRequest};
use crate::telemetry::InFlight;
use crate::world::World;

/// The replies to one stream of messages.
pub(super) fn replies(
    mut inbound: Streaming<ProcessingRequest>,
    world: Arc<World>,
) -> impl Stream<Item = Result<ProcessingResponse, Status>> + Send {
    async_stream::stream! {
        let mut session: Option<Session> = None;
        // One timer for the life of the stream, not one for each message.
        let mut renew = interval_at(tokio::time::Instant::now() + RENEW_EVERY, RENEW_EVERY);
        loop {
            let received = tokio::select! {
                biased;
                received = inbound.message() => received,
                _ = renew.tick() => {
                    if let Some(session) = &session {
                        session.renew();
                    }
                    continue;
                }
            };
            // Every normal end of a stream looks like an error here: Envoy resets it once it needs no more answers.
            let Ok(Some(message)) = received else { break };
            let session = match &mut session {
                Some(session) => session,
                None => match Session::open(&message, &world) {
                    Ok(opened) => session.insert(opened),
                    Err(status) => {
                        yield Err(status);
                        return;
                    }
                },
            };
            match session.handle(message).await {
                Ok(replies) => {
                    for reply in replies {
                        yield Ok(reply);
                    }
                }
                Err(status) => {
                    yield Err(status);
                    return;
                }
            }
            if session.exchange.is_over() {
                return;
            }
        }
        if session.is_none_or(|session| !session.exchange.is_released()) {
            yield Err(Status::aborted("the stream ended before the request was processed"));
        }
    }
}

/// An exchange and what it is driven with. Dropping it, however that comes about, settles what the exchange holds.
struct Session {
    exchange: Exchange,
    world: Arc<World>,
    _in_flight: InFlight,
}

impl Session {
    fn open(first: &ProcessingRequest, world: &Arc<World>) -> Result<Self, Status> {
        let profile = wire::profile(first.protocol_config.as_ref())?;
        let exchange = Exchange::new(
            world.config.load_full(),
            Arc::clone(&world.cooldown),
            profile,
            world.entropy(),
            Instant::now(),
        );
        Ok(Self { exchange, world: Arc::clone(world), _in_flight: world.telemetry.stream_opened() })
    }

    async fn handle(&mut self, message: ProcessingRequest) -> Result<Vec<ProcessingResponse>, Status> {
        let now = Instant::now();
        let mut action = match Message::from_envoy(message)? {
            Message::RequestHeaders(headers, end) => self.exchange.request_headers(headers, end, now),
            Message::RequestBody(chunk, end) => self.exchange.request_body(chunk, end, now),
            Message::ResponseHeaders(headers, end, upstream) => {
                self.exchange.response_headers(&headers, end, upstream.as_deref(), now)
            }
            Message::ResponseBody(chunk, end) => self.exchange.response_body(&chunk, end, now),
            Message::Trailers => {
                return Err(Status::invalid_argument("trailers are not asked for: set both modes to SKIP"));
            }
        }
        .map_err(|error| Status::failed_precondition(error.to_string()))?;
        if let Action::Reserve(request) = &action {
            action = self.reserve(&Arc::clone(request)).await;
        }
        // Before the last reply leaves, so that a client that has its answer finds its use charged.
        if let Some(settlement) = self.exchange.poll_settlement() {
            self.world.ledger.settle_detached(settlement);
        }
        Ok(match action {
            Action::Wait | Action::Reserve(_) => Vec::new(),
            Action::Answer(reply) => vec![reply.into_envoy()],
            Action::Release(replies) => replies.into_iter().map(|reply| reply.into_envoy()).collect(),
            Action::Respond(response) => vec![response.into_envoy()],
        })
    }

    async fn reserve(&mut self, request: &Arc<ReserveRequest>) -> Action {
        let mut pending = PendingReservation { world: &self.world, request: Some(request) };
        let decision = self.world.ledger.reserve(request).await;
        pending.request = None;
        drop(pending);
        self.exchange.admitted(decision, Instant::now())
    }

    fn renew(&self) {
        if let Some(reservation) = self.exchange.reservation() {
            let (world, growth) = (Arc::clone(&self.world), reservation.growth(0));
            // Beside the stream: a store that hangs must not hold back a chunk. A renewal that fails is counted by the
            // ledger, and the next one comes before the lease ends.
            tokio::spawn(async move { world.ledger.grow(&growth).await });
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.exchange.gone(Instant::now());
        if let Some(settlement) = self.exchange.poll_settlement() {
            self.world.ledger.settle_detached(settlement);
        }
        if let Some(summary) = self.exchange.take_summary() {
            self.world.telemetry.observe(&summary);
        }
    }
}

/// A reservation whose answer is awaited. If the client leaves meanwhile, the answer will never be seen, but the hold may
/// well have been written: it is given back.
struct PendingReservation<'a> {
    world: &'a World,
    request: Option<&'a Arc<ReserveRequest>>,
}

impl Drop for PendingReservation<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request {
            self.world.ledger.settle_detached(request.release());
        }
    }
}
