//! One HTTP exchange as a state machine without I/O: messages of the proxy and answers of the ledger go in, [`Action`]s come
//! out.
//!
//! ```text
//! Headers ─▶ Body ─▶ Admission ─▶ Upstream ─▶ Answering ─▶ Over
//!    ├─────────┴─────────┴── Respond (our own answer) ────▶ Over
//!    │                           Questioned (whose fault?) ─▶ Answering, or Respond
//!    │                           Cut (no more of it) ◀─┘ ─▶ Over
//!    └── Foreign (another filter answered before us, or the proxy amid the body) ▶ Over
//! ```
//!
//! It holds the configuration it started with to its end. Whatever happens, [`Exchange::gone`] leaves a settlement for every
//! reservation that was granted, and a summary; the driver fetches both with `poll_settlement` and `take_summary`.

mod answering;
mod asked;
mod body;
mod body_memory;
mod bounds;
mod chunks;
mod coded;
mod event;
mod explain;
mod failure;
mod lease;
mod models;
mod placing;
mod plan;
mod refused_bound;
mod replies;
mod response;
mod summary;
#[cfg(test)]
mod tests;
mod trailers;
mod upstream;

pub use body_memory::{BodyMemory, DEFAULT_BODY_MEMORY_BYTES};
pub use event::{Action, Answers, Body, Costs, End, Headers, LocalResponse, Mutations, Profile, Reply, Routing};

pub use explain::{Explanation, Question, SiteExplanation, Unexplained, explain};
pub use failure::Failure;
pub use plan::Memory;
pub use replies::Replies;
pub use summary::{AdmissionOutcome, Counted, LimitEvent, Outcome, Summary};
pub use upstream::UpstreamHeaders;

use std::sync::Arc;
use std::time::{Duration, Instant};

use attache_gate::{Caller, Learned, Refusal, RequestHead, Verdict};
use attache_proto::{ApiError, Dialect, ErrorKind, Operation, headers};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::affinity::{Answered, DebugHeaders, PlacementMode, Ticket};
use crate::config::model::{Backend, Config, Endpoint};
use crate::limit::{Decision, Form, Growth, Refused, Reservation, Settlement, StoreError};
use crate::route::{CoolDown, Witness};
use answering::Answering;
use body::{BodyBuffer, BodyRefused, RequestBody};
use body_memory::Holder;
use lease::Lease;
use plan::Plan;
use refused_bound::Questioned;
use replies::Ended;
use response::Answer;

/// The proxy sent what does not belong here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{message} came while the exchange was {phase}")]
pub struct OutOfOrder {
    message: &'static str,
    phase: &'static str,
}

/// One HTTP exchange.
#[derive(Debug)]
pub struct Exchange {
    config: Arc<Config>,
    memory: Memory,
    profile: Profile,
    answers: Answers,
    entropy: u64,
    /// When it began, since 1970: by that keys end.
    began: Duration,
    ended: Ended,
    phase: Phase,
    head: Option<Head>,
    ticket: Option<Ticket>,
    lease: Option<Lease>,
    growth: Option<Growth>,
    /// The clusters of endpoints that began an answer well, until its first content comes: some errors come in its place.
    unjudged: Vec<Arc<str>>,
    settlement: Option<Settlement>,
    summary: Option<Summary>,
    started: Instant,
    released: Option<Instant>,
    /// Why no upstream could be asked, and of whom that is to be said.
    failure: Option<Failure>,
    news: Vec<(Arc<str>, Arc<str>)>,
}

/// What is known from the request's headers.
#[derive(Debug)]
struct Head {
    operation: Operation,
    dialect: Dialect,
    caller: Option<Caller>,
    /// Whose memory its body and its answer take.
    holder: Holder,
    headers: Headers,
}

impl Head {
    /// Who sees how an endpoint answers.
    fn witness(&self) -> Witness {
        let tenant = self.caller.as_ref().map_or(0, |caller| xxh3_64(caller.tenant().as_bytes()));
        Witness { key: self.holder.hash(), tenant }
    }
}

#[derive(Debug)]
enum Phase {
    Headers,
    Body(BodyBuffer),
    Admission(Box<Pending>),
    Upstream(Box<Plan>),
    /// It was refused, maybe for what we did to it.
    Questioned(Box<Questioned>),
    Answering(Box<Answering>),
    /// The answer was ended, and the proxy is still to be told: with this, which nobody sees.
    Cut {
        response: LocalResponse,
        reset_at: Instant,
    },
    Foreign,
    Over,
}

/// A request that is complete but not yet released.
#[derive(Debug)]
struct Pending {
    plan: Plan,
    body: RequestBody,
    /// How often the ledger was asked.
    asked: u8,
}

/// How often the ledger is asked for one request. A refusal says what is left, as far as is known, and an answer that is no longer
/// is asked for next. By then others may have taken some of it; and who refused from memory, may have known less.
const ASKED_AT_MOST: u8 = 4;

/// Why we answer where an upstream refused the operator's key, for logs and metrics.
pub const UPSTREAM_KEY_REFUSED: &str = "upstream_key_refused";

/// RFC 9110, sections 15.5.2 and 15.5.4.
const fn is_about_credentials(status: u16) -> bool {
    matches!(status, 401 | 403)
}

impl Exchange {
    /// A new exchange. `entropy` is a fresh random number.
    pub fn new(config: Arc<Config>, memory: Memory, profile: Profile, entropy: u64, now: Instant) -> Self {
        Self {
            config,
            memory,
            profile,
            answers: Answers::default(),
            entropy,
            began: Duration::MAX,
            ended: Ended::ByItself,
            phase: Phase::Headers,
            head: None,
            ticket: None,
            lease: None,
            growth: None,
            unjudged: Vec::new(),
            settlement: None,
            summary: Some(Summary::new()),
            started: now,
            released: None,
            failure: None,
            news: Vec::new(),
        }
    }

    /// The same where the bodies of answers are shown or not; without this, they are.
    #[must_use]
    pub fn with_answers(self, answers: Answers) -> Self {
        Self { answers, ..self }
    }

    /// The same at this time, since 1970. Without it, every key that ends has ended.
    #[must_use]
    pub fn with_wall_clock(self, now: Duration) -> Self {
        Self { began: now, ..self }
    }

    /// The request's headers came.
    ///
    /// # Errors
    /// [`OutOfOrder`] when they came before.
    pub fn request_headers(&mut self, headers: Headers, end: End, now: Instant) -> Result<Action, OutOfOrder> {
        let Phase::Headers = self.phase else { return Err(self.out_of_order("request headers")) };
        self.note(|summary| summary.request_id = request_id(&headers));
        let head = RequestHead::read(headers.iter());
        let (verdict, dialect) = (self.config.gate.check(&head, self.began), self.config.gate.dialect(&head));
        let passed = match verdict {
            Verdict::Pass(passed) => passed,
            Verdict::Refuse(refusal) => return Ok(self.respond(refusal_at_the_gate(&refusal, &headers), now)),
        };
        self.note(|summary| summary.operation = Some(passed.operation));
        if !passed.operation.is_forwarded() {
            return Ok(self.respond(models::answer(&self.config, &passed, &headers), now));
        }
        let holder = Holder::of(passed.caller.as_ref(), &headers);
        let body = match self.body(&headers, passed.operation, holder) {
            Ok(body) => body,
            Err(refused) => return Ok(self.respond(refused.response(dialect), now)),
        };
        self.head = Some(Head { operation: passed.operation, dialect, caller: passed.caller, holder, headers });
        self.phase = Phase::Body(body);
        match (end, self.profile) {
            (End::Last, _) => Ok(self.complete(now)),
            (End::More, Profile::Streamed) => Ok(Action::Wait),
            (End::More, Profile::Buffered) => Ok(Action::Answer(Reply::RequestHeaders(Mutations::default()))),
        }
    }

    /// What collects the body of a request with these headers.
    fn body(&self, headers: &Headers, operation: Operation, holder: Holder) -> Result<BodyBuffer, BodyRefused> {
        let claim = self.memory.bodies.claim(holder);
        let mut body = BodyBuffer::new(headers, operation, self.config.settings.max_body_bytes, claim)?;
        // The proxy has to collect it as well, and then sends it at once: nobody need wait for what is refused then.
        if let (Profile::Buffered, Some(length)) = (self.profile, headers.only("content-length")) {
            body.expect(length.parse().unwrap_or(0))?;
        }
        Ok(body)
    }

    /// A chunk of the request's body came.
    ///
    /// # Errors
    /// [`OutOfOrder`] when it is not its turn.
    pub fn request_body(&mut self, chunk: Bytes, end: End, now: Instant) -> Result<Action, OutOfOrder> {
        let Phase::Body(body) = &mut self.phase else { return Err(self.out_of_order("a request body chunk")) };
        if let Err(refused) = body.push(chunk) {
            return Ok(self.respond(refused.response(self.dialect()), now));
        }
        match (end, self.profile) {
            (End::More, Profile::Streamed) => Ok(Action::Wait),
            // Of a buffered body there is one message. It does not say that it is the last where trailers follow.
            (End::Last, _) | (End::More, Profile::Buffered) => Ok(self.complete(now)),
        }
    }

    /// The ledger answered [`Action::Reserve`].
    pub fn admitted(&mut self, decision: Result<Decision, StoreError>, now: Instant) -> Action {
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        let Phase::Admission(pending) = phase else {
            self.phase = phase;
            return Action::Wait;
        };
        match decision {
            Ok(Decision::Granted(reservation)) => self.granted(*pending, reservation, now),
            Ok(Decision::Refused(refused)) => {
                let least = pending.plan.output.least();
                match refused.shortened(least).filter(|_| pending.asked < ASKED_AT_MOST) {
                    Some(shorter) => {
                        let asked = pending.asked + 1;
                        self.phase = Phase::Admission(Box::new(Pending { asked, ..*pending }));
                        Action::Reserve(Arc::new(shorter))
                    }
                    None => self.refused(&refused.of_least(least), now),
                }
            }
            Err(_) => {
                self.note(|summary| summary.admission = Some(AdmissionOutcome::Unavailable));
                let error =
                    ApiError::new(ErrorKind::Unavailable, "the token ledger does not answer; try again in a moment");
                let response = LocalResponse {
                    headers: vec![("retry-after", "1".to_owned())],
                    ..LocalResponse::error(&error, self.dialect(), "ledger_unavailable")
                };
                self.respond(response, now)
            }
        }
    }

    /// Why no upstream could be asked, as the proxy says it with the response's headers; before those.
    pub fn upstream_failed(&mut self, failure: Option<Failure>) {
        self.failure = failure;
    }

    /// What is to be said of endpoints that could not be asked: cluster and reason, once.
    pub fn take_news(&mut self) -> Vec<(Arc<str>, Arc<str>)> {
        std::mem::take(&mut self.news)
    }

    /// The response's headers came, from the upstream or from the proxy itself. `upstream` is the address that served.
    ///
    /// # Errors
    /// [`OutOfOrder`] when it is not their turn.
    pub fn response_headers(
        &mut self,
        headers: &Headers,
        end: End,
        upstream: Option<&str>,
        now: Instant,
    ) -> Result<Action, OutOfOrder> {
        let plan = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Upstream(plan) => plan,
            Phase::Headers => return Ok(self.pass_foreign(end)),
            Phase::Body(_) => return Ok(self.pass_of_proxy(headers, end, now)),
            phase => {
                self.phase = phase;
                return Err(self.out_of_order("response headers"));
            }
        };
        let mut answer = Answer::new(headers, self.operation(), plan.visibility);
        if let Some(head) = &self.head {
            answer.hold(self.memory.bodies.claim(head.holder));
        }
        self.learn(&plan, answer.status, upstream, now);
        self.explain_failure(&plan, answer.status, upstream);
        if is_about_credentials(answer.status)
            && self.backend(&plan).is_some_and(|backend| plan.has_operators_key(backend))
        {
            return Ok(self.key_refused(now));
        }
        if self.answers == Answers::Hidden {
            answer.hide();
        }
        if let Some(added) = plan.output.added.filter(|_| (200..300).contains(&answer.status)) {
            self.memory.experience.bounds().taken(plan.served_at, added.name);
        }
        if let Some(added) = self.in_question(&plan, &answer, headers, end) {
            return Ok(self.question(added, plan, answer, headers, now));
        }
        Ok(self.begin_answer(plan, answer, headers, end, now))
    }

    /// Lets the answer's headers go on.
    fn begin_answer(
        &mut self,
        plan: Box<Plan>,
        mut answer: Answer,
        headers: &Headers,
        end: End,
        now: Instant,
    ) -> Action {
        answer.weigh(plan.tokens_per_seen);
        if let Some(allowance) = self.lease.as_ref().and_then(Lease::allowance) {
            answer.allow(allowance);
        }
        if end == End::More && answer.is_out_of_reach() {
            return self.refuse_answer(&plan, &answer, now);
        }
        let mut mutations = answer.mutations();
        if let Some(lease) = &self.lease {
            mutations.replace_rate_limits(lease.reservation().headers(), headers);
        }
        if let Some(backend) = self.backend(&plan)
            && backend.affinity.debug_headers == DebugHeaders::Shown
        {
            mutations.set.push((headers::DECISION, plan.decision(backend)));
        }
        if let Some(id) = self.request_id() {
            mutations.tell_request_id(id, headers);
        }
        mutations.keep_within_bounds_of(headers);
        self.phase = Phase::Answering(Box::new(Answering::new(*plan, answer)));
        if end == End::Last {
            self.finish_answer(now);
        }
        Action::Answer(Reply::ResponseHeaders(mutations))
    }

    /// The stream is gone: the end, or the client, the upstream or the proxy left. Calling it again changes nothing.
    pub fn gone(&mut self, now: Instant) {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            // What was cut is settled.
            Phase::Over | Phase::Cut { .. } => {}
            Phase::Headers | Phase::Body(_) => self.end(Outcome::Cancelled, now),
            Phase::Foreign => {}
            // Refusals cost nothing.
            Phase::Questioned(_) => {
                self.settle(None);
                self.end(Outcome::Cancelled, now);
            }
            // The ledger's answer is on its way: the driver gives the hold back, it alone knows of it.
            Phase::Admission(_) => self.end(Outcome::Cancelled, now),
            Phase::Upstream(plan) => {
                // Where answers are hidden, this may be the end of any.
                let output = match self.answers {
                    Answers::Shown => plan.unreported.abandoned,
                    Answers::Hidden => plan.unreported.whole,
                };
                let estimated = || Counted::Estimated(response::estimated(&plan.estimate, output));
                self.settle(self.operation().uses_tokens().then(estimated));
                self.end(Outcome::Cancelled, now);
            }
            Phase::Answering(answering) => {
                let counted = answering.answer.counted(&answering.plan.estimate, answering.plan.unreported);
                self.note(|summary| summary.content_events = answering.answer.content_events());
                self.settle(counted);
                self.judge(answering.answer.fault(), now);
                self.end(Outcome::Cancelled, now);
            }
        }
    }

    /// What is to be settled now, once.
    pub fn poll_settlement(&mut self) -> Option<Settlement> {
        self.settlement.take()
    }

    /// The summary, once the exchange is over, once.
    pub fn take_summary(&mut self) -> Option<Summary> {
        if self.is_over() { self.summary.take() } else { None }
    }

    /// Whether nothing more can come of it.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Whether the request was dealt with: sent on, or answered by us. Until then the stream must not end cleanly.
    pub fn is_released(&self) -> bool {
        matches!(
            self.phase,
            Phase::Upstream(_)
                | Phase::Questioned(_)
                | Phase::Answering(_)
                | Phase::Cut { .. }
                | Phase::Foreign
                | Phase::Over
        )
    }

    /// The body is complete: decide, and ask the ledger if there is a limit.
    fn complete(&mut self, now: Instant) -> Action {
        let (Phase::Body(body), Some(head)) = (std::mem::replace(&mut self.phase, Phase::Over), &self.head) else {
            return Action::Wait;
        };
        let body = match body.finish() {
            Ok(body) => body,
            Err(refused) => return self.respond(refused.response(self.dialect()), now),
        };
        let plan = match plan::plan(&body.bytes, head, &self.config, &self.memory, self.entropy, now) {
            Ok(plan) => plan,
            Err(refused) => return self.respond(refused, now),
        };
        self.describe(&plan);
        let pending = Pending { plan, body, asked: 1 };
        match &pending.plan.reservation {
            Some(request) => {
                let action = Action::Reserve(Arc::clone(request));
                self.phase = Phase::Admission(Box::new(pending));
                action
            }
            None => self.release(pending, now),
        }
    }

    /// The reservation is held.
    fn granted(&mut self, mut pending: Pending, reservation: Reservation, now: Instant) -> Action {
        self.note(|summary| {
            summary.admission = Some(AdmissionOutcome::Granted);
            summary.limits.extend(LimitEvent::shadows(reservation.standings()));
        });
        pending.plan.reserved(&reservation);
        self.lease = Some(match pending.plan.output.form {
            Form::Whole => Lease::of_whole(reservation),
            Form::Stream => Lease::of_stream(reservation, pending.plan.output.ended_by_server_at()),
        });
        self.release(pending, now)
    }

    /// A limit is used up.
    fn refused(&mut self, refused: &Refused, now: Instant) -> Action {
        self.note(|summary| {
            summary.admission = Some(AdmissionOutcome::Refused);
            summary.limits.extend(LimitEvent::shadows(refused.standings()));
            summary.limits.extend(LimitEvent::refusals(refused));
        });
        let mut headers = refused.headers();
        headers.extend(self.exhausted(refused));
        let response = LocalResponse { headers, ..LocalResponse::error(&refused.error(), self.dialect(), "limited") };
        self.respond(response, now)
    }

    /// The upstream does not take the operator's key. No caller can mend that, or need know whose key it was.
    fn key_refused(&mut self, now: Instant) -> Action {
        self.settle(None);
        let message = "this model cannot be served at the moment; try again later";
        let error = ApiError::new(ErrorKind::Unavailable, message);
        let response = LocalResponse::error(&error, self.dialect(), UPSTREAM_KEY_REFUSED);
        self.respond(LocalResponse { status: 502, ..response }, now)
    }

    /// What the filter is told with a refusal, where there is a filter: nobody else says in the request who the caller is.
    fn exhausted(&self, refused: &Refused) -> Option<(&'static str, String)> {
        let Head { caller, headers: request, .. } = self.head.as_ref()?;
        let caller = caller.as_ref().filter(|caller| request.only(headers::KEY_ID) == Some(caller.key_id()))?;
        Some((headers::EXHAUSTED, refused.exhausted(&self.config, caller)?.to_header()?))
    }

    /// Lets the request go: one reply for every message that is unanswered.
    fn release(&mut self, pending: Pending, now: Instant) -> Action {
        let Pending { plan, body, .. } = pending;
        let Some(head) = &mut self.head else { return Action::Wait };
        let Some(mutations) = plan.mutations(&self.config, head) else { return Action::Wait };
        // An answer may stream for minutes, and nobody asks for the request's headers any more.
        head.headers = Headers::default();
        let replies = Replies::new(self.profile, mutations, body.answers(&plan.splice), self.ended);
        self.ticket = plan.pool.dispatch(&plan.placement);
        self.phase = Phase::Upstream(Box::new(plan));
        self.released = Some(now);
        let held = now.saturating_duration_since(self.started);
        self.note(|summary| summary.held = Some(held));
        Action::Release(replies)
    }

    /// Ends the reservation, if there is one, with what was used.
    fn settle(&mut self, counted: Option<Counted>) {
        self.growth = None;
        if let Some(lease) = self.lease.take() {
            let usage = counted.as_ref().map(Counted::usage).copied().unwrap_or_default();
            self.settlement = Some(lease.settlement(&usage));
        }
        self.note(|summary| summary.usage = counted);
    }

    /// A filter before us answered a request that we never saw, and the proxy shows us that answer: it passes. Nothing goes
    /// upstream by it, and it is no exchange of ours to tell of.
    fn pass_foreign(&mut self, end: End) -> Action {
        self.summary = None;
        self.phase = if end == End::Last { Phase::Over } else { Phase::Foreign };
        Action::Answer(Reply::ResponseHeaders(Mutations::default()))
    }

    /// The proxy itself ended a request whose body had not come in: it was too large for its buffer, say, and that is all we ever
    /// see of it. Its answer passes.
    fn pass_of_proxy(&mut self, headers: &Headers, end: End, now: Instant) -> Action {
        let status = headers.get(":status").and_then(|status| status.parse().ok()).unwrap_or(502);
        self.end(Outcome::Local { status, reason: "proxy" }, now);
        self.phase = if end == End::Last { Phase::Over } else { Phase::Foreign };
        Action::Answer(Reply::ResponseHeaders(Mutations::default()))
    }

    /// Who served, and whether the endpoints that were tried are well. The proxy walks the list in order, so whoever stands
    /// before the one that served has failed it; where nobody served, all have.
    fn learn(&mut self, plan: &Plan, status: u16, upstream: Option<&str>, now: Instant) {
        let Some(backend) = self.backend(plan) else { return };
        let answered = if (200..300).contains(&status) { Answered::Well } else { Answered::Badly };
        let cooldown = &self.memory.cooldown;
        let witness = self.head.as_ref().map(Head::witness).unwrap_or_default();
        let mut unjudged = Vec::new();
        let mut judge = |endpoint: &Endpoint| match status {
            // An error may come in the place of its first content.
            200..=299 => unjudged.push(Arc::clone(&endpoint.cluster)),
            status => blame(cooldown, &endpoint.cluster, status, witness, now),
        };
        let tried: Vec<&Endpoint> = plan.order(backend).collect();
        if tried.is_empty() {
            // No name of the Backend has been resolved yet: the names answer for whoever served.
            backend.endpoints.iter().for_each(judge);
            self.unjudged = unjudged;
            return;
        }
        let position = upstream.and_then(|address| tried.iter().position(|endpoint| *endpoint.id == *address));
        if let (None, Some(address), PlacementMode::Endpoint) = (position, upstream, backend.affinity.mode) {
            // The proxy did not have those of the list: it resolves names in its own time. That is no fault of theirs.
            let served = plan.pool.member(address);
            served.iter().for_each(|endpoint| judge(endpoint));
            let served = served.map_or_else(|| Arc::from(address), |endpoint| Arc::clone(&endpoint.id));
            self.unjudged = unjudged;
            if let Some(ticket) = &mut self.ticket {
                ticket.answered(answered, Some(&served), now);
            }
            return;
        }
        // In a cluster of one name, whichever of its addresses it was.
        let served = position.or(upstream.and(Some(0)));
        for (index, endpoint) in tried.iter().enumerate() {
            match served {
                Some(served) if index == served => judge(endpoint),
                // Where every one fails it, it may be the request's own doing: 503 is tried again as well.
                Some(served) if index < served && status >= 500 => judge(endpoint),
                Some(served) if index < served => cooldown.failed(&endpoint.cluster, now),
                None if status >= 500 => cooldown.failed(&endpoint.cluster, now),
                _ => {}
            }
        }
        let served = served.and_then(|served| tried.get(served)).map(|endpoint| Arc::clone(&endpoint.id));
        self.unjudged = unjudged;
        if let Some(ticket) = &mut self.ticket {
            ticket.answered(answered, served.as_ref(), now);
        }
    }

    /// Why nobody could be asked, where the proxy says so, noted of whoever it was.
    fn explain_failure(&mut self, plan: &Plan, status: u16, upstream: Option<&str>) {
        let (Some(failure), 500.., Some(backend)) = (&self.failure, status, self.backend(plan)) else { return };
        let tried: Vec<&Endpoint> = plan.order(backend).collect();
        // Without an address, whoever was to be asked first.
        let by_address = upstream.and_then(|address| tried.iter().find(|endpoint| *endpoint.id == *address));
        let failed = by_address.or(tried.first()).copied().or(backend.endpoints.first());
        let news = failed.filter(|endpoint| self.memory.cooldown.explain(&endpoint.cluster, failure.text()));
        self.news =
            news.map(|endpoint| (Arc::clone(&endpoint.cluster), Arc::clone(failure.text()))).into_iter().collect();
    }

    fn respond(&mut self, mut response: LocalResponse, now: Instant) -> Action {
        self.phase = Phase::Over;
        response.headers.extend(self.request_id().map(|id| (headers::REQUEST_ID, id.to_owned())));
        self.end(Outcome::Local { status: response.status, reason: response.reason }, now);
        Action::Respond(response)
    }

    /// An answer that began well has content, or an error of that status in its place.
    fn judge(&mut self, fault: Option<u16>, now: Instant) {
        let witness = self.head.as_ref().map(Head::witness).unwrap_or_default();
        let cooldown = &self.memory.cooldown;
        for cluster in self.unjudged.drain(..) {
            match fault {
                Some(status) => blame(cooldown, &cluster, status, witness, now),
                None => cooldown.served(&cluster),
            }
        }
    }

    fn end(&mut self, outcome: Outcome, now: Instant) {
        self.judge(None, now);
        self.ticket = None;
        let duration = now.saturating_duration_since(self.started);
        self.note(|summary| {
            summary.outcome = outcome;
            summary.duration = duration;
        });
    }

    fn describe(&mut self, plan: &Plan) {
        let (config, placement) = (Arc::clone(&self.config), plan.placement.reason);
        self.note(|summary| {
            summary.model = Some(Arc::clone(plan.model.bounded()));
            summary.served_model = Some(Arc::clone(plan.served_model.bounded()));
            summary.route = config.route(plan.rule).map(|route| Arc::clone(&route.id));
            summary.cluster = config.backends.get(plan.backend).map(|backend| Arc::clone(&backend.cluster));
            summary.placement = Some(placement);
        });
    }

    fn note(&mut self, write: impl FnOnce(&mut Summary)) {
        if let Some(summary) = &mut self.summary {
            write(summary);
        }
    }

    fn backend(&self, plan: &Plan) -> Option<&Backend> {
        self.config.backends.get(plan.backend)
    }

    fn request_id(&self) -> Option<&str> {
        self.summary.as_ref()?.request_id.as_deref()
    }

    fn tenant(&self) -> Option<&str> {
        self.head.as_ref()?.caller.as_ref().map(Caller::tenant)
    }

    fn key_id(&self) -> Option<&str> {
        self.head.as_ref()?.caller.as_ref().map(Caller::key_id)
    }

    fn operation(&self) -> Operation {
        self.head.as_ref().map_or(Operation::ChatCompletions, |head| head.operation)
    }

    fn dialect(&self) -> Dialect {
        self.head.as_ref().map_or(Dialect::OpenAi, |head| head.dialect)
    }

    fn out_of_order(&self, message: &'static str) -> OutOfOrder {
        let phase = match self.phase {
            Phase::Headers => "waiting for headers",
            Phase::Body(_) => "reading the body",
            Phase::Admission(_) => "waiting for the ledger",
            Phase::Upstream(_) => "waiting for the upstream",
            Phase::Questioned(_) => "reading a refusal",
            Phase::Answering(_) | Phase::Foreign => "passing the answer",
            Phase::Cut { .. } => "ending the answer",
            Phase::Over => "over",
        };
        OutOfOrder { message, phase }
    }
}

/// The answer to what the gate refuses, and to the filter, where there is one, why.
fn refusal_at_the_gate(refusal: &Refusal, request: &Headers) -> LocalResponse {
    let mut response = LocalResponse::refusal(refusal);
    if request.only(headers::FILTER_CONFIG).is_some() {
        let verdict = Learned::of(refusal).and_then(|learned| learned.to_header());
        response.headers.extend(verdict.map(|verdict| (headers::VERDICT, verdict)));
    }
    response
}

/// What a request is called, as far as that can stand in headers and logs: Envoy's own ids have 36 bytes, and a client's may be anything.
fn request_id(headers: &Headers) -> Option<Arc<str>> {
    const LONGEST_BYTES: usize = 128;
    let id = headers.only(headers::REQUEST_ID)?;
    let is_plain = !id.is_empty() && id.len() <= LONGEST_BYTES && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain.then(|| id.into())
}

/// What an error says of the endpoint that answered with it.
fn blame(cooldown: &CoolDown, cluster: &Arc<str>, status: u16, witness: Witness, now: Instant) {
    match status {
        // The server does not do what was asked of it, or not in this way: that is nothing that another request would meet.
        501 | 505 | 506 | 508 | 510 | 511 => {}
        500.. => cooldown.answered_badly(cluster, witness, now),
        // A request that is refused says nothing of how others fare.
        _ => {}
    }
}
