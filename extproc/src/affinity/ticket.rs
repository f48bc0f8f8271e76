//! A request that is under way at an endpoint: it weighs on its load until it ends, whichever way, and teaches the pool what
//! came of it.

use std::sync::Arc;
use std::time::Instant;

use super::load::Part;
use super::pool::{Ask, Placement, Pool, Sent};
use super::under_way::UnderWayId;

/// What is expected of caches, in bytes of the prompt's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Predicted {
    /// The whole prompt.
    pub bytes: u64,
    /// What of its beginning is hot.
    pub hot: u64,
    /// The most that any endpoint holds.
    pub available: u64,
    /// What the chosen one holds.
    pub chosen: u64,
}

/// A request under way. Dropping it gives back what it weighs. Only an endpoint that answered it with success is believed to hold its
/// prompt; until then others like it are drawn to where it went.
#[derive(Debug)]
pub struct Ticket {
    pool: Arc<Pool>,
    /// Who has it: the choice, until another one answers.
    endpoint: Arc<str>,
    predicted: Predicted,
    part: Option<Part>,
    unanswered: Option<Unanswered>,
}

#[derive(Debug)]
struct Unanswered {
    ask: Ask,
    under_way: Option<UnderWayId>,
}

/// How an endpoint answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// With success: its cache has the prompt.
    Well,
    /// With an error.
    Badly,
}

impl Ticket {
    pub(super) fn new(pool: Arc<Pool>, placement: &Placement, sent: Sent) -> Self {
        let Sent { part, under_way } = sent;
        let endpoint = placement.order.first().map(|endpoint| Arc::clone(&endpoint.id)).unwrap_or_default();
        let unanswered = Some(Unanswered { ask: placement.ask().clone(), under_way });
        Self { pool, endpoint, predicted: placement.predicted, part: Some(part), unanswered }
    }

    /// The response's headers came, from `served` where that is known.
    pub fn answered(&mut self, answered: Answered, served: Option<&Arc<str>>, now: Instant) {
        let Some(Unanswered { ask, under_way }) = self.unanswered.take() else { return };
        if let Some(served) = served.filter(|served| **served != self.endpoint) {
            // Nothing was predicted of this one.
            self.predicted.chosen = 0;
            self.give_back();
            self.endpoint = Arc::clone(served);
        }
        self.pool.over(&ask, under_way);
        if answered == Answered::Well {
            self.pool.served(&self.endpoint, &ask, &self.predicted, now);
        }
    }

    /// The first byte of the answer's body came: the prompt is computed. Not before: servers send the headers of a stream
    /// before they begin.
    pub fn first_byte(&mut self) {
        if let Some(part) = &mut self.part {
            self.pool.computed(&self.endpoint, part);
        }
    }

    /// The answer is complete and said how many tokens its prompt had, where that was text alone (of an image nobody knows what its
    /// bytes are in tokens), and how many of them came from a cache.
    pub fn finish(self, prompt_tokens: Option<u64>, cached: u64, now: Instant) {
        self.pool.learn(&self.endpoint, &self.predicted, prompt_tokens, cached, now);
    }

    /// What was expected.
    pub fn predicted(&self) -> Predicted {
        self.predicted
    }

    fn give_back(&mut self) {
        if let Some(part) = self.part.take() {
            self.pool.ended(&self.endpoint, part);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.give_back();
        if let Some(Unanswered { ask, under_way }) = self.unanswered.take() {
            self.pool.over(&ask, under_way);
        }
    }
}
