//! The answer's way through an exchange: chunk by chunk, as far as what is held goes, to its end or to where it is cut.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attache_proto::response::Output;
use attache_proto::{ApiError, ErrorKind};
use bytes::{Bytes, BytesMut};

use super::event::{Action, Body, Costs, End, LocalResponse, Reply};
use super::lease::{Lease, Progress};
use super::plan::Plan;
use super::response::Answer;
use super::summary::{Counted, Outcome};
use super::{Exchange, OutOfOrder, Phase};
use crate::config::model::RequestCost;
use crate::limit::{Admission, Growth, StoreError};

/// How long after its last event the two sides of an answer that was cut are reset. Envoy drops what it has not written to the
/// client by then: told at once, it dropped the last event of every HTTP/2 stream that was tried. The upstream works in vain for
/// as long.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// An answer that is passing.
#[derive(Debug)]
pub(super) struct Answering {
    pub(super) plan: Plan,
    pub(super) answer: Answer,
    /// A chunk that is not answered: the store has to say first whether there is more for it.
    withheld: Option<Withheld>,
}

#[derive(Debug)]
struct Withheld {
    /// What of it goes on in any case.
    passed: Bytes,
    /// What of it comes after the event that may not.
    rest: Bytes,
    end: End,
}

impl Answering {
    pub(super) fn new(plan: Plan, answer: Answer) -> Self {
        Self { plan, answer, withheld: None }
    }

    pub(super) fn is_withholding(&self) -> bool {
        self.withheld.is_some()
    }

    fn progress(&self) -> Progress {
        match self.withheld {
            Some(_) => Progress::Withheld(self.answer.awaited()),
            None => Progress::Passing,
        }
    }
}

impl Exchange {
    /// A chunk of the response's body came.
    ///
    /// # Errors
    /// [`OutOfOrder`] when it is not its turn.
    pub fn response_body(&mut self, chunk: &Bytes, end: End, now: Instant) -> Result<Action, OutOfOrder> {
        match &mut self.phase {
            Phase::Answering(answering) if !answering.is_withholding() => {}
            Phase::Foreign => {
                if end == End::Last {
                    self.phase = Phase::Over;
                }
                return Ok(Action::Answer(Reply::ResponseBody(Body::Unchanged, Costs::new())));
            }
            Phase::Cut { .. } => return Ok(self.swallow(end, now)),
            Phase::Questioned(_) => return Ok(self.hear(chunk, end, now)),
            _ => return Err(self.out_of_order("a response body chunk")),
        }
        if let (Some(released), Some(summary)) = (self.released, &mut self.summary)
            && summary.time_to_first_token.is_none()
            && !chunk.is_empty()
        {
            summary.time_to_first_token = Some(now.saturating_duration_since(released));
            if let Some(ticket) = &mut self.ticket {
                ticket.first_byte();
            }
        }
        if let Some(lease) = &mut self.lease {
            lease.chunk_came();
        }
        Ok(self.feed(Bytes::new(), chunk, end, now))
    }

    /// The growth that the ledger is to be asked for, once. At most one is under way: its outcome goes to
    /// [`Exchange::grown`].
    pub fn poll_growth(&mut self) -> Option<Growth> {
        self.growth.take()
    }

    /// It is time to renew the lease of what is held.
    pub fn renew(&mut self) {
        if let Some(growth) = self.lease.as_mut().and_then(Lease::renew) {
            self.growth = Some(growth);
        }
    }

    /// The ledger answered a growth. What waited for it is answered now.
    pub fn grown(&mut self, growth: &Growth, answer: &Result<Admission, StoreError>, now: Instant) -> Action {
        let Some(lease) = &mut self.lease else { return Action::Wait };
        let Phase::Answering(answering) = &mut self.phase else {
            lease.answered(growth, answer, 0, Progress::Passing);
            return Action::Wait;
        };
        lease.answered(growth, answer, answering.answer.delivered(), answering.progress());
        if let Some(allowance) = lease.allowance() {
            answering.answer.allow(allowance);
        }
        match answering.withheld.take() {
            Some(Withheld { passed, rest, end }) => self.feed(passed, &rest, end, now),
            None => {
                self.ask();
                Action::Wait
            }
        }
    }

    /// When [`Exchange::handle_timeout`] is to be called, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Cut { reset_at, .. } => Some(reset_at),
            _ => None,
        }
    }

    /// That time has come, or may have. An answer of ours, though nobody is there to see it, is what makes the proxy reset both
    /// sides: the response's headers are long sent.
    pub fn handle_timeout(&mut self, now: Instant) -> Action {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Cut { response, reset_at } if reset_at <= now => Action::Respond(response),
            phase => {
                self.phase = phase;
                Action::Wait
            }
        }
    }

    /// Whether a chunk of the answer waits for a growth.
    pub fn is_withholding(&self) -> bool {
        matches!(&self.phase, Phase::Answering(answering) if answering.is_withholding())
    }

    /// Passes a chunk on, behind what of it has passed already.
    fn feed(&mut self, passed: Bytes, chunk: &Bytes, end: End, now: Instant) -> Action {
        let Phase::Answering(answering) = &mut self.phase else { return Action::Wait };
        let body = match answering.answer.feed(chunk, end) {
            Output::Unchanged if passed.is_empty() => Body::Unchanged,
            Output::Unchanged => Body::Replaced(joined(passed, chunk)),
            Output::Replaced(bytes) => Body::Replaced(joined(passed, &bytes)),
            Output::Withheld { passed: more, rest } => {
                answering.withheld = Some(Withheld { passed: joined(passed, &more), rest, end });
                return self.withhold(now);
            }
        };
        if let Some(error) = answering.answer.broken() {
            let error = ApiError::new(ErrorKind::Unavailable, error);
            let decoded = if let Body::Replaced(decoded) = body { decoded } else { Bytes::new() };
            // Behind an event that broke off, whose bytes may have gone on.
            return self.end_early(joined(decoded, b"\n\n"), end, &error, Outcome::Miscoded, now);
        }
        let begins = !self.unjudged.is_empty() && answering.answer.content_events().is_some_and(|events| events > 0);
        if begins {
            self.judge(None, now);
        }
        let costs = match end {
            End::More => {
                self.ask();
                Costs::new()
            }
            End::Last => self.finish_answer(now),
        };
        Action::Answer(Reply::ResponseBody(body, costs))
    }

    /// Waits for a growth, or ends the answer if there is none to wait for.
    fn withhold(&mut self, now: Instant) -> Action {
        let error = self.lease.as_ref().and_then(|lease| lease.end().cloned());
        if error.is_none() {
            self.ask();
            if self.lease.as_ref().is_some_and(Lease::is_growing) {
                return Action::Wait;
            }
        }
        let error = error.unwrap_or_else(|| ApiError::new(ErrorKind::RateLimited, "what was reserved is used up"));
        self.cut(&error, now)
    }

    /// Asks for a growth if it is time for one.
    fn ask(&mut self) {
        if let (Some(lease), Phase::Answering(answering)) = (&mut self.lease, &self.phase)
            && let Some(growth) = lease.grow(answering.answer.delivered(), answering.progress())
        {
            self.growth = Some(growth);
        }
    }

    /// The answer is complete: learn, settle and say what it cost.
    pub(super) fn finish_answer(&mut self, now: Instant) -> Costs {
        let Phase::Answering(answering) = std::mem::replace(&mut self.phase, Phase::Over) else { return Costs::new() };
        let Answering { plan, answer, .. } = *answering;
        let counted = answer.finished(&plan.estimate, plan.unreported);
        if let Some(Counted::Reported(usage)) = &counted {
            let (tenant, key_id) = (self.tenant(), self.key_id());
            let lesson = plan.lesson(usage, &answer);
            self.memory.experience.learn(plan.served_model.bounded(), tenant, key_id, &lesson);
            if let Some(ticket) = self.ticket.take() {
                ticket.finish(plan.text_tokens(usage), usage.cached_input, now);
            }
        }
        let costs = self.costs(&plan, counted.as_ref());
        self.note(|summary| summary.content_events = answer.content_events());
        self.settle(counted);
        let fault = answer.fault();
        self.judge(fault, now);
        let outcome = match fault {
            _ if answer.is_miscoded() => Outcome::Miscoded,
            // Whoever reads the metrics wants to know what became of it, not what was announced.
            Some(status) => Outcome::Answered(status),
            None => Outcome::Answered(answer.status),
        };
        self.end(outcome, now);
        costs
    }

    /// Ends the answer before what is withheld of it.
    fn cut(&mut self, error: &ApiError, now: Instant) -> Action {
        let Phase::Answering(answering) = &mut self.phase else { return Action::Wait };
        let Some(Withheld { passed, end, .. }) = answering.withheld.take() else { return Action::Wait };
        self.end_early(passed, end, error, Outcome::Cut, now)
    }

    /// Ends the answer behind these bytes. What was delivered is charged.
    ///
    /// In the caller's stream the error comes as an event, since its status has long been sent. A little later the proxy is told
    /// to reset both sides, so that the upstream stops.
    fn end_early(&mut self, last: Bytes, end: End, error: &ApiError, outcome: Outcome, now: Instant) -> Action {
        let (operation, dialect) = (self.operation(), self.dialect());
        let Phase::Answering(answering) = std::mem::replace(&mut self.phase, Phase::Over) else { return Action::Wait };
        let Answering { plan, answer, .. } = *answering;
        let counted = answer.counted(&plan.estimate, plan.unreported);
        let costs = self.costs(&plan, counted.as_ref());
        self.note(|summary| summary.content_events = answer.content_events());
        self.settle(counted);
        self.end(outcome, now);
        if end == End::More {
            let response = LocalResponse::error(error, dialect, "cut");
            self.phase = Phase::Cut { response, reset_at: now + LAST_WORDS };
        }
        let body = joined(last, error.events(operation, answer.events()).as_bytes());
        Action::Answer(Reply::ResponseBody(Body::Replaced(body), costs))
    }

    /// More of an answer that was cut: nobody gets it.
    fn swallow(&mut self, end: End, now: Instant) -> Action {
        if end == End::Last {
            self.phase = Phase::Over;
        }
        match self.handle_timeout(now) {
            Action::Wait => Action::Answer(Reply::ResponseBody(Body::Replaced(Bytes::new()), Costs::new())),
            action => action,
        }
    }

    /// Answers in place of the upstream, whose answer can be neither counted nor cut and so might be more than is held. It is
    /// charged as if it had been delivered: the model has begun it.
    pub(super) fn refuse_answer(&mut self, plan: &Plan, answer: &Answer, now: Instant) -> Action {
        self.settle(answer.counted(&plan.estimate, plan.unreported));
        let message = "the upstream's answer cannot be kept within what is left of a limit: it is no stream of events that can be read \
                       here";
        let error = ApiError::new(ErrorKind::Unavailable, message);
        let response = LocalResponse::error(&error, self.dialect(), "answer_unreadable");
        self.respond(LocalResponse { status: 502, ..response }, now)
    }

    fn costs(&self, plan: &Plan, counted: Option<&Counted>) -> Costs {
        let (Some(counted), Some(route)) = (counted, self.config.route(plan.rule)) else { return Costs::new() };
        let published = |cost: &RequestCost| cost.cost.of(counted.usage(), &plan.context);
        route.costs.iter().map(|cost| (Arc::clone(&cost.key), published(cost))).collect()
    }
}

fn joined(first: Bytes, second: &[u8]) -> Bytes {
    if second.is_empty() {
        return first;
    }
    let mut bytes = BytesMut::with_capacity(first.len() + second.len());
    bytes.extend_from_slice(&first);
    bytes.extend_from_slice(second);
    bytes.freeze()
}
