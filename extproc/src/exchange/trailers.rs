//! Trailers: what they hold concerns nobody here, but they end a body.
//!
//! Envoy 1.40 holds a request's trailers back while an earlier message of it waits for a reply. So with `Profile::Streamed`, where all
//! messages wait until the body is complete, they never come, and the request waits for ever; `attache render static` has such
//! requests come `Profile::Buffered`.

use std::time::Instant;

use attache_proto::{ApiError, ErrorKind};
use bytes::Bytes;

use super::event::{Action, Costs, End, LocalResponse, Profile, Reply};
use super::replies::Ended;
use super::{Exchange, OutOfOrder, Phase};

impl Exchange {
    /// The request's trailers came: its body is complete.
    ///
    /// # Errors
    /// [`OutOfOrder`] when it is not their turn.
    pub fn request_trailers(&mut self, now: Instant) -> Result<Action, OutOfOrder> {
        match (&self.phase, self.profile) {
            (Phase::Body(_), Profile::Streamed) => {
                self.ended = Ended::ByTrailers;
                Ok(self.complete(now))
            }
            // The headers have been answered, no body came, and the reply to trailers cannot say where the request is to go.
            (Phase::Body(_), Profile::Buffered) => {
                let error = ApiError::new(ErrorKind::InvalidRequest, "the request has trailers and no body");
                let response = LocalResponse::error(&error, self.dialect(), "no_body");
                Ok(self.respond(response, now))
            }
            (Phase::Headers | Phase::Admission(_), _) => Err(self.out_of_order("request trailers")),
            _ => Ok(Action::Answer(Reply::RequestTrailers)),
        }
    }

    /// The response's trailers came: its body is complete.
    ///
    /// # Errors
    /// [`OutOfOrder`] when it is not their turn.
    pub fn response_trailers(&mut self, now: Instant) -> Result<Action, OutOfOrder> {
        if let Phase::Questioned(_) = self.phase {
            return self.trailers_of_refusal(now);
        }
        let costs = match &mut self.phase {
            Phase::Answering(answering) if !answering.is_withholding() => {
                // What an answer holds back at its end is half an event, and a reply to trailers has no body to put it in.
                let _ = answering.answer.feed(&Bytes::new(), End::Last);
                self.finish_answer(now)
            }
            Phase::Foreign | Phase::Cut { .. } => {
                self.phase = Phase::Over;
                Costs::new()
            }
            _ => return Err(self.out_of_order("response trailers")),
        };
        Ok(Action::Answer(Reply::ResponseTrailers(costs)))
    }

    /// A refusal that may be about our bound is over by them.
    fn trailers_of_refusal(&mut self, now: Instant) -> Result<Action, OutOfOrder> {
        match self.heard(End::More, now) {
            Some(Action::AnswerAll(mut replies)) => {
                replies.extend(self.response_trailers(now)?.into_reply());
                Ok(Action::AnswerAll(replies))
            }
            Some(Action::Respond(response)) => Ok(Action::Respond(response)),
            // A reply to trailers has no body to put the refusal's in.
            _ => {
                self.phase = Phase::Over;
                self.settle(None);
                Ok(Action::Answer(Reply::ResponseTrailers(Costs::new())))
            }
        }
    }
}
