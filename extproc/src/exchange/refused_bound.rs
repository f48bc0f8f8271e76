//! An upstream's refusal of a request that has a bound of ours, until it has said whether it is about that: then the caller, who set none,
//! is not to blame, and is told to send the request again, which gets another.
//!
//! Where the proxy shows the refusal's body while its headers wait ([`Profile::Streamed`]), 503 takes its place. Elsewhere the headers
//! are gone by then: they say that it may be tried again for as long as nobody knows what this server takes, and the body says why.

use std::time::Instant;

use attache_proto::objection::Objection;
use attache_proto::{ApiError, ErrorKind};
use bytes::{Bytes, BytesMut};

use super::answering::Answering;
use super::event::{Action, Answers, Body, Costs, End, Headers, LocalResponse, Mutations, Profile, Reply};
use super::plan::{Added, Plan};
use super::response::Answer;
use super::summary::Outcome;
use super::{Exchange, Phase};

/// A longer refusal is about something else.
const LONGEST_BYTES: usize = 16 * 1024;

/// As is one in more pieces.
const MOST_CHUNKS: usize = 64;

/// What SDKs do at once, whatever the status.
const TRY_AGAIN: (&str, &str) = ("x-should-retry", "true");

/// Why we answer, for logs and metrics.
const REASON: &str = "bound_refused";

/// A refusal that may be about our bound.
#[derive(Debug)]
pub(super) struct Questioned {
    added: Added,
    head: Head,
    /// Of its body, what came.
    chunks: Vec<Bytes>,
    bytes: usize,
}

#[derive(Debug)]
enum Head {
    /// Its headers wait for a reply, as do the chunks.
    Waiting { plan: Box<Plan>, answer: Box<Answer>, headers: Headers },
    /// They have gone on, and nothing of the body has.
    Gone(Box<Answering>),
}

impl Exchange {
    /// The bound of ours that an answer with these headers may be about.
    pub(super) fn in_question(&self, plan: &Plan, answer: &Answer, headers: &Headers, end: End) -> Option<Added> {
        let is_about_fields = matches!(answer.status, 400 | 422);
        let is_readable =
            end == End::More && self.answers == Answers::Shown && headers.bytes("content-encoding").is_none();
        plan.output.added.filter(|_| is_about_fields && is_readable)
    }

    /// Waits for what the refusal says.
    pub(super) fn question(
        &mut self,
        added: Added,
        plan: Box<Plan>,
        answer: Answer,
        headers: &Headers,
        now: Instant,
    ) -> Action {
        let (head, action) = match self.profile {
            Profile::Streamed => {
                let answer = Box::new(answer);
                (Head::Waiting { plan, answer, headers: headers.clone() }, Action::Wait)
            }
            Profile::Buffered => {
                let is_new = !self.memory.experience.bounds().by(plan.served_at).was_taken(added.name);
                let action = self.begin_answer(plan, answer, headers, End::More, now);
                let Action::Answer(Reply::ResponseHeaders(mutations)) = action else { return action };
                let Phase::Answering(answering) = std::mem::replace(&mut self.phase, Phase::Over) else {
                    return Action::Answer(Reply::ResponseHeaders(mutations));
                };
                (Head::Gone(answering), Action::Answer(Reply::ResponseHeaders(doubtful(mutations, is_new, headers))))
            }
        };
        self.phase = Phase::Questioned(Box::new(Questioned { added, head, chunks: Vec::new(), bytes: 0 }));
        action
    }

    /// A chunk of the refusal came.
    pub(super) fn hear(&mut self, chunk: &Bytes, end: End, now: Instant) -> Action {
        let Phase::Questioned(questioned) = &mut self.phase else { return Action::Wait };
        questioned.chunks.push(chunk.clone());
        questioned.bytes = questioned.bytes.saturating_add(chunk.len());
        if end == End::More && questioned.bytes <= LONGEST_BYTES && questioned.chunks.len() <= MOST_CHUNKS {
            return match questioned.head {
                Head::Waiting { .. } => Action::Wait,
                Head::Gone(_) => Action::Answer(Reply::ResponseBody(Body::Replaced(Bytes::new()), Costs::new())),
            };
        }
        self.heard(end, now).unwrap_or(Action::Wait)
    }

    /// The refusal has said what it is about, or too much.
    pub(super) fn heard(&mut self, end: End, now: Instant) -> Option<Action> {
        let Phase::Questioned(questioned) = std::mem::replace(&mut self.phase, Phase::Over) else { return None };
        let Questioned { added, head, mut chunks, bytes } = *questioned;
        let text = joined(&chunks, bytes);
        let objection = Objection::read(added.name, added.tokens, &text).filter(|objection| {
            // Where the bound left room for the prompt, as far as anybody can tell, it is the prompt that is too long.
            let is_new = !matches!(objection, Objection::MoreThanContext(context) if added.context == Some(*context));
            bytes <= LONGEST_BYTES && is_new
        });
        let served_at = match &head {
            Head::Waiting { plan, .. } => plan.served_at,
            Head::Gone(answering) => answering.plan.served_at,
        };
        if let Some(objection) = objection {
            self.memory.experience.bounds().refused(served_at, added.name, objection, now);
        }
        Some(match (head, objection) {
            (Head::Waiting { .. }, Some(_)) => {
                self.settle(None);
                let response = LocalResponse::error(&not_the_callers(), self.dialect(), REASON);
                let headers = vec![("retry-after", "1".to_owned()), (TRY_AGAIN.0, TRY_AGAIN.1.to_owned())];
                self.respond(LocalResponse { headers, ..response }, now)
            }
            (Head::Waiting { plan, answer, headers }, None) => {
                let mut replies = vec![self.begin_answer(plan, *answer, &headers, End::More, now)];
                let last = chunks.pop();
                let mut feed = |chunk: Bytes, end| replies.extend(self.response_body(&chunk, end, now));
                chunks.into_iter().for_each(|chunk| feed(chunk, End::More));
                last.into_iter().for_each(|chunk| feed(chunk, end));
                Action::AnswerAll(replies.into_iter().filter_map(Action::into_reply).collect())
            }
            (Head::Gone(answering), Some(_)) => {
                self.settle(None);
                self.end(Outcome::Local { status: answering.answer.status, reason: REASON }, now);
                let body = not_the_callers().body(self.dialect());
                Action::Answer(Reply::ResponseBody(Body::Replaced(Bytes::from(body)), Costs::new()))
            }
            (Head::Gone(answering), None) => {
                self.phase = Phase::Answering(answering);
                match self.response_body(&text, end, now) {
                    Ok(Action::Answer(Reply::ResponseBody(Body::Unchanged, costs))) => {
                        Action::Answer(Reply::ResponseBody(Body::Replaced(text), costs))
                    }
                    Ok(action) => action,
                    Err(_) => Action::Wait,
                }
            }
        })
    }
}

/// What becomes of headers whose body may have to be replaced.
fn doubtful(mut mutations: Mutations, is_new: bool, headers: &Headers) -> Mutations {
    if headers.bytes("content-length").is_some() && !mutations.remove.contains(&"content-length") {
        mutations.remove.push("content-length");
    }
    if is_new {
        mutations.set.push((TRY_AGAIN.0, TRY_AGAIN.1.to_owned()));
    }
    mutations
}

fn not_the_callers() -> ApiError {
    let message = "the model server does not take the bound that this gateway added to the request for a limit's sake; that is remembered: \
                   send the request again";
    ApiError::new(ErrorKind::Unavailable, message)
}

fn joined(chunks: &[Bytes], bytes: usize) -> Bytes {
    let mut text = BytesMut::with_capacity(bytes);
    chunks.iter().for_each(|chunk| text.extend_from_slice(chunk));
    text.freeze()
}
