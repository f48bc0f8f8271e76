//! How much one endpoint has to do: by its own metrics page, by what we sent it, and by what other sidecars say they sent.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::decision::Sharing;
use super::pressure::Pressure;

/// What was scraped says nothing any more after so long.
pub const STALE_AFTER: Duration = Duration::from_secs(5);
/// What another sidecar said says nothing any more after so long.
pub const PEER_EXPIRES_AFTER: Duration = Duration::from_secs(2);

/// What an endpoint's metrics page said.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Scrape {
    /// Requests that wait for their prefill.
    pub waiting: f64,
    /// Requests in prefill or decode.
    pub running: f64,
    /// The share of its KV cache that running requests occupy, from 0 to 1.
    pub kv_usage: f64,
    /// Tokens that its KV cache has room for, where it says so.
    pub capacity_tokens: Option<u64>,
}

/// What one sidecar has under way at one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OwnLoad {
    /// Requests that have not ended.
    pub requests: u64,
    /// Tokens of prompts that are to be computed, of requests without a first byte of answer.
    pub pending_tokens: f64,
}

/// The load of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Load {
    requests: u64,
    /// What is pending of requests that were under way when the endpoint was last scraped.
    before: Pending,
    /// What is pending of requests that came since.
    since: Pending,
    /// How often it was scraped.
    scrapes: u32,
    scraped: Option<(Scrape, Instant)>,
    peers: HashMap<u64, (OwnLoad, Instant)>,
    pressure: Pressure,
}

/// Requests without a first byte of answer.
#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    requests: u64,
    tokens: f64,
}

/// A request's part of a load, to be given back.
#[derive(Debug)]
pub(super) struct Part {
    /// `None` when its prompt is computed.
    tokens: Option<f64>,
    scrapes: u32,
}

impl Load {
    /// A request with so many tokens to compute is sent.
    pub(super) fn add(&mut self, tokens: f64) -> Part {
        self.requests += 1;
        self.since.requests += 1;
        self.since.tokens += tokens;
        Part { tokens: Some(tokens), scrapes: self.scrapes }
    }

    /// Its prompt is computed.
    pub(super) fn computed(&mut self, part: &mut Part) {
        let Some(tokens) = part.tokens.take() else { return };
        let pending = if part.scrapes == self.scrapes { &mut self.since } else { &mut self.before };
        pending.requests = pending.requests.saturating_sub(1);
        // Sums of fractions do not come back to nothing by themselves.
        pending.tokens = if pending.requests == 0 { 0.0 } else { (pending.tokens - tokens).max(0.0) };
    }

    /// It has ended.
    pub(super) fn end(&mut self, mut part: Part) {
        self.computed(&mut part);
        self.requests = self.requests.saturating_sub(1);
    }

    pub(super) fn scraped(&mut self, scrape: Scrape, now: Instant) {
        let since = self.scraped.map_or(Duration::ZERO, |(_, before)| now.saturating_duration_since(before));
        // What an endpoint did while nobody looked is not known.
        self.pressure.note(scrape.waiting, scrape.running, since.min(STALE_AFTER).as_secs_f64());
        self.scraped = Some((scrape, now));
        self.scrapes = self.scrapes.wrapping_add(1);
        let since = std::mem::take(&mut self.since);
        self.before.requests += since.requests;
        self.before.tokens += since.tokens;
    }

    pub(super) fn peer(&mut self, peer: u64, load: OwnLoad, now: Instant) {
        self.peers.retain(|_, (_, said)| now.saturating_duration_since(*said) <= PEER_EXPIRES_AFTER);
        self.peers.insert(peer, (load, now));
    }

    /// How much it had to do of late.
    pub(super) fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    pub(super) fn own(&self) -> OwnLoad {
        OwnLoad { requests: self.requests, pending_tokens: self.before.tokens + self.since.tokens }
    }

    /// The page as it was last seen, unless that is too long ago.
    pub(super) fn page(&self, now: Instant) -> Option<Scrape> {
        let (scrape, seen) = self.scraped?;
        (now.saturating_duration_since(seen) <= STALE_AFTER).then_some(scrape)
    }

    /// Tokens that its cache has room for, as it last said.
    pub(super) fn capacity_tokens(&self) -> Option<u64> {
        self.scraped.and_then(|(scrape, _)| scrape.capacity_tokens)
    }

    /// Tokens that have to be computed before a new request's: our own, which we know, and others'. Peers that talk know theirs;
    /// where none do, the page tells how many wait there that are not ours, each taken for one of `average_uncached` tokens.
    pub(super) fn pending_tokens(&self, average_uncached: f64, sharing: Sharing, now: Instant) -> f64 {
        let others = match sharing {
            Sharing::Live => {
                let fresh = |said: &Instant| now.saturating_duration_since(*said) <= PEER_EXPIRES_AFTER;
                let told = self.peers.values().filter(|(_, said)| fresh(said));
                told.map(|(load, _)| load.pending_tokens).sum()
            }
            Sharing::None => {
                let waiting = self.page(now).map_or(0.0, |page| page.waiting);
                (waiting - self.before.requests as f64).max(0.0) * average_uncached
            }
        };
        self.before.tokens + self.since.tokens + others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(waiting: f64) -> Scrape {
        Scrape { waiting, ..Scrape::default() }
    }

    fn pending(load: &Load, now: Instant) -> f64 {
        load.pending_tokens(1_000.0, Sharing::None, now)
    }

    #[test]
    fn of_those_that_wait_our_own_are_known_and_others_are_taken_for_average_ones() {
        let (mut load, now) = (Load::default(), Instant::now());
        let mut first = load.add(3_000.0);
        assert_eq!(pending(&load, now), 3_000.0);
        load.scraped(waiting(5.0), now);
        assert_eq!(pending(&load, now), 7_000.0, "one of the five is ours");
        let second = load.add(200.0);
        assert_eq!(pending(&load, now), 7_200.0);
        load.computed(&mut first);
        load.end(second);
        assert_eq!(pending(&load, now), 5_000.0);
        load.end(first);
        assert_eq!(load.own(), OwnLoad::default());
    }

    #[test]
    fn one_long_prompt_that_is_being_computed_counts_although_nobody_waits() {
        let (mut load, now) = (Load::default(), Instant::now());
        let _part = load.add(90_000.0);
        load.scraped(waiting(0.0), now);
        assert_eq!(pending(&load, now), 90_000.0);
    }

    #[test]
    fn a_stale_page_and_a_silent_peer_say_nothing() {
        let (mut load, now) = (Load::default(), Instant::now());
        load.scraped(waiting(4.0), now);
        load.peer(7, OwnLoad { requests: 1, pending_tokens: 9_000.0 }, now);
        let later = |millis| now + Duration::from_millis(millis);
        let told = |millis| load.pending_tokens(1_000.0, Sharing::Live, later(millis));
        assert_eq!((told(2_000), told(2_001)), (9_000.0, 0.0));
        assert_eq!((pending(&load, later(5_000)), pending(&load, later(5_001))), (4_000.0, 0.0));
    }

    #[test]
    fn of_a_peer_its_last_word_counts() {
        let (mut load, now) = (Load::default(), Instant::now());
        load.peer(7, OwnLoad { requests: 1, pending_tokens: 9_000.0 }, now);
        load.peer(7, OwnLoad { requests: 1, pending_tokens: 100.0 }, now);
        load.peer(8, OwnLoad { requests: 1, pending_tokens: 50.0 }, now);
        assert_eq!(load.pending_tokens(1_000.0, Sharing::Live, now), 150.0);
    }
}
