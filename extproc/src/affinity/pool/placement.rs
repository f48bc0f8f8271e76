//! Where a request goes: what is asked, what is answered, and how the one comes of the other.

use std::sync::Arc;
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64;

use super::State;
use super::beliefs::Walk;
use crate::affinity::blocks::PrefixChain;
use crate::affinity::decision::{Candidate, Decision, Keyed, Question, Sharing, decide};
use crate::affinity::policy::Basis;
use crate::affinity::pressure::Pressure;
use crate::affinity::rank::preference;
use crate::affinity::ticket::Predicted;
use crate::config::model::Endpoint;

/// A request that is to be placed.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What else than its text makes its prefix: [`PrefixScope::hash`](super::PrefixScope::hash).
    pub scope: u64,
    /// Its prompt; `None` where it leaves nothing in a cache.
    pub prompt: Option<Arc<PrefixChain>>,
    /// The hash of a key that the client or the operator named: it wins over the prompt.
    pub session: Option<u64>,
    /// Any number that differs from request to request.
    pub entropy: u64,
}

/// Where a request goes.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The choice, then at most two to fall back on. Empty only where there are no endpoints.
    pub order: Vec<Arc<Endpoint>>,
    /// Why.
    pub reason: Reason,
    /// What the choice costs, in seconds: comparable between pools.
    pub cost: f64,
    /// What is expected of caches.
    pub predicted: Predicted,
    /// How many of the prompt's first blocks so many requests here have that they tell no conversation from another.
    pub hot_blocks: usize,
    /// Tokens that the choice has to compute before.
    pub pending_tokens: f64,
    /// How many bytes of prompts are a token here, as answers taught.
    pub bytes_per_token: f64,
    ask: Ask,
}

impl Placement {
    /// What was asked.
    pub fn ask(&self) -> &Ask {
        &self.ask
    }
}

/// Why a request goes where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// With the other requests of its session.
    Session,
    /// To where most of its prompt is in cache.
    Prefix,
    /// To the home of its prompt, of which we know nothing.
    Home,
    /// Away from where its prompt is in cache, or its home: it would have waited there for longer than it takes to compute it
    /// anew.
    Load,
    /// Nothing speaks for one endpoint.
    Spread,
    /// No endpoint is available; it is tried all the same.
    NoneAvailable,
}

impl Reason {
    /// As metrics and `x-attache-decision` name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Prefix => "prefix",
            Self::Home => "home",
            Self::Load => "load",
            Self::Spread => "spread",
            Self::NoneAvailable => "none_available",
        }
    }
}

/// What one endpoint would be for a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Its id.
    pub endpoint: Arc<str>,
    /// Bytes of the prompt, from the beginning, that it probably holds.
    pub matched_bytes: u64,
    /// Tokens to compute before.
    pub pending_tokens: f64,
    /// Its place in the key's order; 0 is the home.
    pub rank: usize,
    /// In seconds.
    pub cost: f64,
}

impl State {
    pub(super) fn place(&mut self, ask: &Ask, available: impl Fn(&Endpoint) -> bool, now: Instant) -> Placement {
        let mut candidates = Vec::with_capacity(self.members.len());
        for (at, member) in self.members.iter_mut().enumerate() {
            let is_available = available(&member.endpoint);
            member.note_available(is_available, now);
            candidates.extend(is_available.then_some(at));
        }
        let walk = self.walk(ask);
        let none_available = candidates.is_empty();
        if none_available {
            candidates = (0..self.members.len()).collect();
        }
        let (decision, keyed) = self.decide(&candidates, ask, &walk, now);
        let pick = decision.order.first().copied();
        let member = |at: usize| candidates.get(at).and_then(|at| self.members.get(*at));
        let matched = |at: usize| candidates.get(at).and_then(|at| walk.matched.get(*at)).copied().unwrap_or(0);
        let most = (0..candidates.len()).map(matched).max().unwrap_or(0);
        let predicted = pick.map_or(0, matched);
        let rank = pick.and_then(|pick| decision.ranks.get(pick)).copied().unwrap_or(0);
        let reason = if none_available {
            Reason::NoneAvailable
        } else if ask.session.is_some() && rank == 0 {
            Reason::Session
        } else if keyed == Keyed::No {
            Reason::Spread
        } else if predicted > walk.hot_bytes && predicted == most {
            Reason::Prefix
        } else if rank == 0 {
            Reason::Home
        } else {
            Reason::Load
        };
        Placement {
            order: decision
                .order
                .iter()
                .filter_map(|at| member(*at))
                .map(|member| Arc::clone(&member.endpoint))
                .collect(),
            reason,
            cost: pick.and_then(|pick| decision.costs.get(pick)).copied().unwrap_or(f64::MAX),
            predicted: Predicted {
                bytes: ask.prompt.as_ref().map_or(0, |prompt| prompt.bytes),
                hot: walk.hot_bytes,
                available: most,
                chosen: predicted,
            },
            hot_blocks: walk.hot_blocks,
            pending_tokens: pick
                .and_then(member)
                .map_or(0.0, |member| member.load.pending_tokens(self.average_uncached, self.sharing(now), now)),
            bytes_per_token: self.bytes_per_token(),
            ask: ask.clone(),
        }
    }

    pub(super) fn standings(&mut self, ask: &Ask, now: Instant) -> Vec<Standing> {
        let walk = self.walk(ask);
        let all: Vec<usize> = (0..self.members.len()).collect();
        let (Decision { costs, ranks, .. }, _) = self.decide(&all, ask, &walk, now);
        let facts = self.members.iter().zip(walk.matched).zip(costs).zip(ranks);
        facts
            .map(|(((member, matched_bytes), cost), rank)| Standing {
                endpoint: Arc::clone(&member.endpoint.id),
                matched_bytes,
                pending_tokens: member.load.pending_tokens(self.average_uncached, self.sharing(now), now),
                rank,
                cost,
            })
            .collect()
    }

    fn decide(&self, candidates: &[usize], ask: &Ask, walk: &Walk, now: Instant) -> (Decision, Keyed) {
        let key = ask.session.or(walk.key);
        let keyed = if key.is_some() { Keyed::Yes } else { Keyed::No };
        // A number that counts up is no hash yet.
        let key = key.unwrap_or_else(|| xxh3_64(&ask.entropy.to_le_bytes()));
        let goes_by_key_alone = self.policy.basis == Basis::KeyOnly;
        let bytes = ask.prompt.as_ref().map_or(0, |prompt| prompt.bytes);
        let pressure = Pressure::mean(self.members.iter().map(|member| member.load.pressure()));
        let facts: Vec<Candidate> = candidates
            .iter()
            .filter_map(|at| Some((*at, self.members.get(*at)?, *walk.matched.get(*at)?)))
            .map(|(at, member, matched)| {
                let slow_start = member.weight(now);
                let matched_beyond_hot = matched.saturating_sub(walk.hot_bytes) as f64 * member.trust;
                if goes_by_key_alone {
                    let preference = preference(key, &member.endpoint.id, slow_start);
                    return Candidate { preference, matched: 0.0, pending_tokens: 0.0, kv_usage: 0.0, evicts: 0.0 };
                }
                // Whoever named a key wants to find what it left there, whatever others have to do.
                let share = if ask.session.is_some() { 1.0 } else { member.load.pressure().weight(pressure) };
                Candidate {
                    preference: preference(key, &member.endpoint.id, slow_start * share),
                    matched: matched_beyond_hot,
                    pending_tokens: member.load.pending_tokens(self.average_uncached, self.sharing(now), now),
                    kv_usage: member.load.page(now).map_or(0.0, |page| page.kv_usage),
                    evicts: self.capacity_bytes(at).map_or(0.0, |capacity| {
                        member.evicts(bytes.saturating_sub(matched), capacity, self.seconds(now))
                    }),
                }
            })
            .collect();
        let question = Question {
            bytes: bytes as f64,
            hot_bytes: walk.hot_bytes as f64,
            expected: self.reuse.expected(),
            bytes_per_token: self.bytes_per_token(),
            keyed,
            sharing: self.sharing(now),
        };
        (decide(&facts, &question, &self.policy.weights), keyed)
    }

    pub(super) fn sharing(&self, now: Instant) -> Sharing {
        if self.shared_until.is_some_and(|until| now <= until) { Sharing::Live } else { Sharing::None }
    }
}
