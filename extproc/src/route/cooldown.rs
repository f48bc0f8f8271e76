//! Endpoints that fail are left alone for a while.
//!
//! Two failures in a row (no connection, 5xx, reset before headers) take an endpoint out for 2^k seconds, at most 60; the
//! next success forgets it all. Envoy's `override_host` ignores host health, so this is ours to do. The table holds an entry
//! only for endpoints that have failed since their last success, and whoever changes the endpoints has those forgotten that are
//! gone, so its size is bounded by the number of endpoints.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;

/// Failures in a row that take an endpoint out.
const FAILURES: u32 = 2;
/// The longest time out.
const LONGEST: Duration = Duration::from_secs(60);

/// Who is cooling down, keyed by the endpoint's own cluster name, which is unique among all backends.
#[derive(Debug, Default)]
pub struct CoolDown {
    failing: DashMap<Arc<str>, Failing>,
    /// Why those could not even be asked of whom that is known.
    reasons: DashMap<Arc<str>, Arc<str>>,
}

#[derive(Debug, Clone, Copy)]
struct Failing {
    in_a_row: u32,
    until: Option<Instant>,
}

impl CoolDown {
    /// Records that the endpoint failed a request at `now`.
    pub fn failed(&self, endpoint: &Arc<str>, now: Instant) {
        let mut failing = self.failing.entry(Arc::clone(endpoint)).or_insert(Failing { in_a_row: 0, until: None });
        failing.in_a_row = failing.in_a_row.saturating_add(1);
        if let Some(beyond) = failing.in_a_row.checked_sub(FAILURES) {
            let out = Duration::from_secs(1u64.checked_shl(beyond).unwrap_or(u64::MAX).max(1)).min(LONGEST);
            failing.until = Some(now + out);
        }
    }

    /// Notes why the endpoint could not even be asked. Says whether that is news.
    pub fn explain(&self, endpoint: &Arc<str>, reason: &Arc<str>) -> bool {
        self.reasons.insert(Arc::clone(endpoint), Arc::clone(reason)).is_none_or(|known| known != *reason)
    }

    /// Why the endpoint could not be asked, if that is known and it has served nothing since.
    pub fn reason(&self, endpoint: &str) -> Option<Arc<str>> {
        self.reasons.get(endpoint).map(|reason| Arc::clone(&reason))
    }

    /// Records that the endpoint served a request.
    pub fn served(&self, endpoint: &str) {
        if self.reasons.contains_key(endpoint) {
            self.reasons.remove(endpoint);
        }
        // The table is empty while all is well: no shard is locked for writing then.
        if self.failing.contains_key(endpoint) {
            self.failing.remove(endpoint);
        }
    }

    /// Whether the endpoint may be chosen at `now`.
    pub fn admits(&self, endpoint: &str, now: Instant) -> bool {
        self.failing.get(endpoint).and_then(|failing| failing.until).is_none_or(|until| until <= now)
    }

    /// Forgets all endpoints but these.
    pub fn keep_only(&self, endpoints: &HashSet<Arc<str>>) {
        self.failing.retain(|endpoint, _| endpoints.contains(endpoint));
        self.reasons.retain(|endpoint, _| endpoints.contains(endpoint));
    }

    /// How many endpoints are out at `now`.
    pub fn cooling(&self, now: Instant) -> usize {
        self.failing.iter().filter(|failing| failing.until.is_some_and(|until| until > now)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_is_forgiven_and_two_in_a_row_cool_down_for_a_second() {
        let table = CoolDown::default();
        let (a, now) = (Arc::from("a"), Instant::now());
        table.failed(&a, now);
        assert!(table.admits(&a, now));
        table.failed(&a, now);
        assert!(!table.admits(&a, now + Duration::from_millis(999)));
        assert!(table.admits(&a, now + Duration::from_secs(1)));
        assert_eq!(table.cooling(now), 1);
    }

    #[test]
    fn the_time_out_doubles_up_to_a_minute() {
        let table = CoolDown::default();
        let (a, now) = (Arc::from("a"), Instant::now());
        let mut outs = Vec::new();
        for _ in 0..200 {
            table.failed(&a, now);
            outs.push((0..=60).find(|&s| table.admits(&a, now + Duration::from_secs(s))));
        }
        assert_eq!(outs.get(..9), Some(&[0, 1, 2, 4, 8, 16, 32, 60, 60].map(Some)[..]));
        assert_eq!(outs.last(), Some(&Some(60)));
    }

    #[test]
    fn a_reason_is_news_once_until_the_endpoint_serves_or_gives_another() {
        let table = CoolDown::default();
        let (a, one, other): (Arc<str>, Arc<str>, Arc<str>) = (Arc::from("a"), Arc::from("one"), Arc::from("other"));
        let news = [&one, &one, &other, &one].map(|reason| table.explain(&a, reason));
        assert_eq!((news, table.reason("a")), ([true, false, true, true], Some(Arc::clone(&one))));
        table.served("a");
        assert_eq!((table.reason("a"), table.explain(&a, &one)), (None, true));
        table.keep_only(&HashSet::new());
        assert_eq!(table.reason("a"), None);
    }

    #[test]
    fn endpoints_that_are_gone_are_forgotten() {
        let table = CoolDown::default();
        let (a, b, now) = (Arc::from("a"), Arc::from("b"), Instant::now());
        for endpoint in [&a, &b, &a, &b] {
            table.failed(endpoint, now);
        }
        table.keep_only(&HashSet::from([Arc::clone(&a)]));
        assert_eq!((table.admits(&a, now), table.admits(&b, now), table.cooling(now)), (false, true, 1));
    }

    #[test]
    fn a_success_forgets_every_failure() {
        let table = CoolDown::default();
        let (a, now) = (Arc::from("a"), Instant::now());
        table.failed(&a, now);
        table.failed(&a, now);
        table.served(&a);
        table.failed(&a, now);
        assert!(table.admits(&a, now));
    }
}
