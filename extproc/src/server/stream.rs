//! One stream: messages in, replies out, the ledger asked in between.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use attache_gate::ConfigDigest;
use attache_proto::headers::FILTER_CONFIG;
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures_util::Stream;
use tokio::task::coop::consume_budget;
use tokio::time::{Interval, interval_at};
use tonic::Status;
use tracing::warn;

use super::framing::Messages;
use super::wire::{self, Message};
use crate::exchange::{Action, Exchange, Headers, Replies, Reply};
use crate::limit::{Admission, Growth, RENEW_EVERY, ReserveRequest, StoreError};
use crate::telemetry::InFlight;
use crate::world::World;

/// The replies to one stream of messages.
pub(super) fn replies(
    mut inbound: Messages,
    world: Arc<World>,
) -> impl Stream<Item = Result<ProcessingResponse, Status>> + Send {
    async_stream::stream! {
        let mut session: Option<Session> = None;
        // One timer for the life of the stream, not one for each message.
        let mut renew = interval_at(tokio::time::Instant::now() + RENEW_EVERY, RENEW_EVERY);
        loop {
            // Whatever is ready at once, of the proxy's messages and of the ledger's answers, others get their turn.
            consume_budget().await;
            let event = match &mut session {
                Some(session) => session.next(&mut inbound, &mut renew).await,
                None => Event::of(inbound.message().await),
            };
            let session = match (&mut session, &event) {
                (_, Event::End) => break,
                (Some(session), _) => session,
                (None, Event::Message(message)) => match Session::open(message, &world) {
                    Ok(opened) => session.insert(opened),
                    Err(status) => {
                        yield Err(status);
                        return;
                    }
                },
                (None, _) => break,
            };
            match session.handle(event).await {
                Ok(outgoing) => {
                    for reply in outgoing {
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

/// What a stream waits for.
enum Event {
    Message(Box<ProcessingRequest>),
    /// The ledger has answered a growth.
    Grown(Growth, Result<Admission, StoreError>),
    /// It is time to renew the lease.
    Renew,
    /// What the exchange waited for.
    Timeout,
    End,
}

impl Event {
    /// Every normal end of a stream looks like an error here: Envoy resets it once it needs no more answers.
    fn of(received: Result<Option<ProcessingRequest>, Status>) -> Self {
        match received {
            Ok(Some(message)) => Self::Message(Box::new(message)),
            Ok(None) | Err(_) => Self::End,
        }
    }
}

/// What is said next, message by message: of very many that are alike, none is there before it is its turn.
enum Outgoing {
    Nothing,
    One(Box<ProcessingResponse>),
    Replies(Box<Replies>),
    /// In reverse order.
    Few(Vec<Reply>),
}

impl Iterator for Outgoing {
    type Item = ProcessingResponse;

    fn next(&mut self) -> Option<ProcessingResponse> {
        if let Self::Replies(replies) = self {
            return replies.next().map(Reply::into_envoy);
        }
        if let Self::Few(replies) = self {
            return replies.pop().map(Reply::into_envoy);
        }
        match std::mem::replace(self, Self::Nothing) {
            Self::One(response) => Some(*response),
            Self::Nothing | Self::Replies(_) | Self::Few(_) => None,
        }
    }
}

/// A growth that the ledger is asked for.
type Growing = Pin<Box<dyn Future<Output = (Growth, Result<Admission, StoreError>)> + Send>>;

/// An exchange and what it is driven with. Dropping it, however that comes about, settles what the exchange holds.
struct Session {
    exchange: Exchange,
    world: Arc<World>,
    /// Beside the stream: a store that hangs must not hold back a chunk.
    growing: Option<Growing>,
    _in_flight: InFlight,
}

impl Session {
    fn open(first: &ProcessingRequest, world: &Arc<World>) -> Result<Self, Status> {
        let attached = world.telemetry.attached();
        let profile = wire::profile(first.protocol_config.as_ref())
            .inspect_err(|status| attached.refused(status.message(), SystemTime::now()))?;
        attached.served(profile, SystemTime::now());
        let exchange =
            Exchange::new(world.config.load_full(), world.memory(), profile, world.entropy(), Instant::now())
                .with_answers(wire::answers(first.protocol_config.as_ref()))
                .with_wall_clock(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        let _in_flight = world.telemetry.stream_opened();
        Ok(Self { exchange, world: Arc::clone(world), growing: None, _in_flight })
    }

    /// What happens next.
    async fn next(&mut self, inbound: &mut Messages, renew: &mut Interval) -> Event {
        let is_withholding = self.exchange.is_withholding();
        tokio::select! {
            biased;
            (growth, answer) = outcome(&mut self.growing) => {
                self.growing = None;
                Event::Grown(growth, answer)
            }
            received = inbound.message(), if !is_withholding => Event::of(received),
            _ = renew.tick() => Event::Renew,
            () = timeout(self.exchange.poll_timeout()) => Event::Timeout,
        }
    }

    async fn handle(&mut self, event: Event) -> Result<Outgoing, Status> {
        let now = Instant::now();
        let mut action = match event {
            Event::Message(message) => self.receive(*message, now)?,
            Event::Grown(growth, answer) => self.exchange.grown(&growth, &answer, now),
            Event::Renew => {
                self.exchange.renew();
                Action::Wait
            }
            Event::Timeout => self.exchange.handle_timeout(now),
            Event::End => Action::Wait,
        };
        // Twice at most: again for a shorter answer.
        while let Action::Reserve(request) = &action {
            action = self.reserve(&Arc::clone(request)).await;
        }
        if let Some(growth) = self.exchange.poll_growth() {
            let world = Arc::clone(&self.world);
            self.growing = Some(Box::pin(async move {
                let answer = world.ledger.grow(&growth).await;
                (growth, answer)
            }));
        }
        // Before the last reply leaves, so that a client that has its answer finds its use charged.
        if let Some(settlement) = self.exchange.poll_settlement() {
            self.growing = None;
            self.world.ledger.settle_detached(settlement);
        }
        Ok(match action {
            Action::Wait | Action::Reserve(_) => Outgoing::Nothing,
            Action::Answer(reply) => Outgoing::One(Box::new(reply.into_envoy())),
            Action::Release(replies) => Outgoing::Replies(Box::new(replies)),
            Action::AnswerAll(replies) => Outgoing::Few(replies.into_iter().rev().collect()),
            Action::Respond(response) => Outgoing::One(Box::new(response.into_envoy())),
        })
    }

    fn receive(&mut self, message: ProcessingRequest, now: Instant) -> Result<Action, Status> {
        match Message::from_envoy(message)? {
            Message::RequestHeaders(headers, end) => {
                self.look_at_the_filter(&headers);
                self.exchange.request_headers(headers, end, now)
            }
            Message::RequestBody(chunk, end) => self.exchange.request_body(chunk, end, now),
            Message::ResponseHeaders(headers, end, upstream, failure) => {
                self.exchange.upstream_failed(failure);
                let action = self.exchange.response_headers(&headers, end, upstream.as_deref(), now);
                for (endpoint, reason) in self.exchange.take_news() {
                    warn!(%endpoint, %reason, "a model server could not be asked by TLS; said once until it serves");
                }
                action
            }
            Message::ResponseBody(chunk, end) => self.exchange.response_body(&chunk, end, now),
            Message::RequestTrailers => self.exchange.request_trailers(now),
            Message::ResponseTrailers => self.exchange.response_trailers(now),
        }
        .map_err(|error| Status::failed_precondition(error.to_string()))
    }

    /// Says once if the Wasm filter before us runs on another configuration: it refuses paths that it does not know, or more.
    fn look_at_the_filter(&self, headers: &Headers) {
        let Some(theirs) = headers.only(FILTER_CONFIG).and_then(|text| text.parse::<ConfigDigest>().ok()) else {
            return;
        };
        let config = self.world.config.load();
        let in_force = config.filter.digest;
        if self.world.telemetry.filters().is_news(theirs, in_force) {
            let stale = match config.filter.earlier.contains(&theirs) {
                true => "the Wasm filter's configuration is older than what is in force",
                false => {
                    "the Wasm filter's configuration is another than what is in force, and was not in force before"
                }
            };
            warn!(
                filter = %theirs,
                in_force = %in_force,
                generation = config.generation,
                "{stale}; they differ in: {}. Render Envoy's configuration anew from these documents and put it into force; \
                 `attache doctor --sidecar-admin` says more",
                theirs.differences(&in_force).join(", ")
            );
        }
    }

    async fn reserve(&mut self, request: &Arc<ReserveRequest>) -> Action {
        let mut pending = PendingReservation { world: &self.world, request: Some(request) };
        let decision = self.world.ledger.reserve(request).await;
        pending.request = None;
        drop(pending);
        self.world.journal.record(request, &decision, SystemTime::now());
        self.exchange.admitted(decision, Instant::now())
    }
}

/// Until that time; without one, for ever.
async fn timeout(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// What becomes of a growth; of none, nothing ever.
async fn outcome(growing: &mut Option<Growing>) -> (Growth, Result<Admission, StoreError>) {
    match growing {
        Some(growing) => growing.await,
        None => std::future::pending().await,
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
