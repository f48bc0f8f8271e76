//! One endpoint of a pool, as its sidecar knows it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ages::Ages;
use super::load::Load;
use super::recent::Recent;
use crate::config::model::Endpoint;

/// An endpoint that has just come gets a small part of what it would get, and all of it after so long.
const SLOW_START: Duration = Duration::from_secs(60);
/// The part at the beginning.
const SLOWEST: f64 = 0.2;
/// How much one answer changes the trust in what is predicted.
const TRUST_STEP: f64 = 0.2;
/// Shorter predictions are not held against an endpoint: an engine caches in blocks of its own.
const TELLING_BYTES: u64 = 4096;
/// What was not used for so long is worth about a third of what was just used.
const FADES_WITHIN_SECONDS: f64 = 300.0;
/// So many predictions in a row that came to nothing mean that the engine has begun anew.
const RESTARTED_AFTER: u32 = 2;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) endpoint: Arc<Endpoint>,
    /// Its bit in the index, if it got one.
    pub(super) slot: Option<usize>,
    pub(super) load: Load,
    pub(super) ages: Ages,
    /// What was last used before is no longer there, in seconds since the pool's start.
    pub(super) horizon: u32,
    /// Prompt tokens of all requests that were sent here.
    pub(super) routed_tokens: u64,
    /// The same, of late.
    pub(super) recent_tokens: Recent,
    /// How far predictions are believed, from 0 to 1.
    pub(super) trust: f64,
    disappointments: u32,
    /// Since when it is there; `None` where it was from the beginning.
    since: Option<Instant>,
    standing: Standing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Well,
    Out,
}

/// What an answer said of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fair,
    /// Nothing of what was believed is there.
    Restarted,
}

impl Member {
    /// An endpoint that came at `since`, or was there from the beginning. What was used before `horizon` it cannot have.
    pub(super) fn new(endpoint: Arc<Endpoint>, slot: Option<usize>, since: Option<Instant>, horizon: u32) -> Self {
        Self {
            endpoint,
            slot,
            load: Load::default(),
            ages: Ages::default(),
            horizon,
            routed_tokens: 0,
            recent_tokens: Recent::default(),
            trust: 1.0,
            disappointments: 0,
            since,
            standing: Standing::Well,
        }
    }

    /// Notes whether it may be chosen: one that comes back starts slowly.
    pub(super) fn note_available(&mut self, is_available: bool, now: Instant) {
        match (self.standing, is_available) {
            (Standing::Well, false) => self.standing = Standing::Out,
            (Standing::Out, true) => {
                self.standing = Standing::Well;
                self.since = Some(now);
            }
            _ => {}
        }
    }

    /// Its weight among others: below 1 while it starts slowly.
    pub(super) fn weight(&self, now: Instant) -> f64 {
        let Some(since) = self.since else { return 1.0 };
        let part = now.saturating_duration_since(since).as_secs_f64() / SLOW_START.as_secs_f64();
        (SLOWEST + (1.0 - SLOWEST) * part).min(1.0)
    }

    /// Keeps what it is believed to hold within what it has room for.
    pub(super) fn keep_within(&mut self, capacity_bytes: u64) {
        if self.ages.bytes() > capacity_bytes {
            let horizon = self.ages.horizon(capacity_bytes).max(self.horizon);
            self.ages.forget_before(horizon);
            self.horizon = horizon;
        }
    }

    /// How dear what has to go is for so many bytes more, in bytes: what was used a moment ago counts in full, what has rested
    /// for long hardly, since it will hardly be asked for again.
    pub(super) fn evicts(&self, bytes: u64, capacity_bytes: u64, now: u32) -> f64 {
        let Some(excess) = self.ages.bytes().saturating_add(bytes).checked_sub(capacity_bytes) else { return 0.0 };
        let evicted = excess.min(bytes);
        let rested = now.saturating_sub(self.ages.end_of_oldest(evicted));
        evicted as f64 * (-f64::from(rested) / FADES_WITHIN_SECONDS).exp()
    }

    /// An answer delivered so many bytes of prompt from the cache, of those that were predicted.
    pub(super) fn learn(&mut self, predicted: u64, delivered: u64) -> Verdict {
        if predicted < TELLING_BYTES {
            return Verdict::Fair;
        }
        let sample = (delivered as f64 / predicted as f64).min(1.0);
        self.trust += TRUST_STEP * (sample - self.trust);
        self.disappointments = if delivered == 0 { self.disappointments + 1 } else { 0 };
        if self.disappointments < RESTARTED_AFTER {
            return Verdict::Fair;
        }
        self.disappointments = 0;
        // What will be predicted from now on is new.
        self.trust = 1.0;
        Verdict::Restarted
    }

    /// Its engine has begun anew, at a time when nobody had asked it for what it does not have any more.
    pub(super) fn restarted(&mut self, now: u32) {
        self.forget(now);
        self.disappointments = 0;
        self.trust = 1.0;
    }

    /// Everything it was believed to hold up to now is gone.
    pub(super) fn forget(&mut self, now: u32) {
        self.horizon = now.saturating_add(1);
        self.ages = Ages::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::EndpointAddress;

    fn member(since: Option<Instant>) -> Member {
        let address = std::net::SocketAddr::from(([10, 0, 0, 1], 8000));
        let endpoint =
            Endpoint { id: "10.0.0.1:8000".into(), cluster: "c".into(), address: EndpointAddress::Ip(address) };
        Member::new(Arc::new(endpoint), Some(0), since, 0)
    }

    #[test]
    fn one_that_comes_or_comes_back_starts_slowly() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(member(None).weight(now), 1.0);
        let mut new = member(Some(now));
        let percent = |weight: f64| (weight * 100.0).round();
        let weights = [0, 30, 60, 600].map(|seconds| percent(new.weight(after(seconds))));
        assert_eq!(weights, [20.0, 60.0, 100.0, 100.0]);
        new.note_available(false, after(600));
        new.note_available(false, after(601));
        new.note_available(true, after(602));
        new.note_available(true, after(632));
        assert_eq!(percent(new.weight(after(632))), 60.0);
    }

    #[test]
    fn trust_follows_what_was_delivered_and_short_predictions_say_nothing() {
        let mut member = member(None);
        member.learn(TELLING_BYTES - 1, 0);
        assert_eq!(member.trust, 1.0);
        member.learn(10_000, 5_000);
        assert!((member.trust - 0.9).abs() < 1e-9);
        member.learn(10_000, 20_000);
        assert!((member.trust - 0.92).abs() < 1e-9);
    }

    #[test]
    fn two_predictions_in_a_row_that_came_to_nothing_are_a_restart() {
        let mut member = member(None);
        assert_eq!(member.learn(10_000, 0), Verdict::Fair);
        assert_eq!(member.learn(10_000, 10), Verdict::Fair);
        assert_eq!(member.learn(10_000, 0), Verdict::Fair);
        assert_eq!(member.learn(10_000, 0), Verdict::Restarted);
        assert_eq!(member.trust, 1.0);
    }

    #[test]
    fn what_has_to_go_is_the_dearer_the_younger_it_is() {
        let mut member = member(None);
        (0..10).for_each(|second| member.ages.add(100, second));
        assert_eq!(member.evicts(500, 1_500, 9), 0.0);
        assert_eq!(member.evicts(500, 1_400, 0), 100.0);
        let rounded = |bytes, now| member.evicts(bytes, 1_000, now).round();
        assert_eq!((rounded(500, 5), rounded(500, 305), rounded(5_000, 10)), (500.0, 184.0, 5_000.0));
    }

    #[test]
    fn what_it_holds_is_kept_within_its_room() {
        let mut member = member(None);
        (0..10).for_each(|second| member.ages.add(100, second));
        member.keep_within(1_000);
        assert_eq!((member.horizon, member.ages.bytes()), (0, 1_000));
        member.keep_within(400);
        assert_eq!((member.horizon, member.ages.bytes()), (6, 400));
        member.forget(20);
        assert_eq!((member.horizon, member.ages.bytes()), (21, 0));
    }
}
