//! Endpoints that fail are left alone for a while.
//!
//! Two failures in a row take an endpoint out for 2^k seconds, at most 60; the next success forgets it all. Whom it is out for depends
//! on who saw it fail. That it could not be reached says something about it to everybody. An answer of 5xx may be the request's own
//! doing: what one caller saw counts for that caller, what two keys of a tenant saw for the tenant, what two tenants saw for all. So
//! nobody takes an endpoint from others. Envoy's `override_host` ignores host health, so this is ours to do. The table holds an entry
//! only for endpoints that have failed since their last success, with a bounded number of witnesses, and whoever changes the
//! endpoints has those forgotten that are gone, so its size is bounded by the number of endpoints.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;

/// Failures in a row that take an endpoint out.
const FAILURES: u32 = 2;
/// The longest time out.
const LONGEST: Duration = Duration::from_secs(60);
/// How many callers' failures are remembered of an endpoint, the latest. More are hardly ever needed: two tenants speak for all.
const WITNESSES: usize = 32;

/// Who is cooling down, keyed by the endpoint's own cluster name, which is unique among all backends.
#[derive(Debug, Default)]
pub struct CoolDown {
    failing: DashMap<Arc<str>, Failing>,
    /// Why those could not even be asked of whom that is known.
    reasons: DashMap<Arc<str>, Arc<str>>,
}

/// Who saw an endpoint fail, as hashes. Where there are no keys, a caller is an address, and all are of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Witness {
    /// The caller.
    pub key: u64,
    /// Its tenant.
    pub tenant: u64,
}

/// What is known of an endpoint since its last success.
#[derive(Debug, Default)]
struct Failing {
    /// How often it could not be reached.
    unreachable: u32,
    seen: Vec<Seen>,
    /// Out for everybody.
    until: Option<Instant>,
}

/// What one caller saw.
#[derive(Debug)]
struct Seen {
    by: Witness,
    times: u32,
    /// Out for the caller.
    until: Option<Instant>,
    /// Out for its tenant.
    until_for_tenant: Option<Instant>,
}

impl CoolDown {
    /// Records that the endpoint could not be reached at `now`.
    pub fn failed(&self, endpoint: &Arc<str>, now: Instant) {
        let mut failing = self.failing.entry(Arc::clone(endpoint)).or_default();
        failing.unreachable = failing.unreachable.saturating_add(1);
        failing.judge(now);
    }

    /// Records that it answered somebody's request with a status of 5xx at `now`.
    pub fn answered_badly(&self, endpoint: &Arc<str>, by: Witness, now: Instant) {
        let mut failing = self.failing.entry(Arc::clone(endpoint)).or_default();
        failing.see(by, now);
        failing.judge(now);
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

    /// Whether the endpoint may be chosen at `now` for anybody.
    pub fn admits(&self, endpoint: &str, now: Instant) -> bool {
        self.failing.get(endpoint).is_none_or(|failing| !is_out(failing.until, now))
    }

    /// Whether it may be chosen for this caller.
    pub fn admits_for(&self, endpoint: &str, caller: Witness, now: Instant) -> bool {
        self.failing.get(endpoint).is_none_or(|failing| {
            let is_out_for = |seen: &Seen| {
                seen.by == caller && is_out(seen.until, now)
                    || seen.by.tenant == caller.tenant && is_out(seen.until_for_tenant, now)
            };
            !is_out(failing.until, now) && !failing.seen.iter().any(is_out_for)
        })
    }

    /// Forgets all endpoints but these.
    pub fn keep_only(&self, endpoints: &HashSet<Arc<str>>) {
        self.failing.retain(|endpoint, _| endpoints.contains(endpoint));
        self.reasons.retain(|endpoint, _| endpoints.contains(endpoint));
    }

    /// How many endpoints failed everybody's last requests and have served none since, whether or not they may be tried again by now.
    pub fn failing(&self) -> usize {
        self.failing.iter().filter(|failing| failing.until.is_some()).count()
    }

    /// How many endpoints are out at `now`, for everybody or for some.
    pub fn cooling(&self, now: Instant) -> usize {
        self.failing.iter().filter(|failing| failing.is_out_for_some(now)).count()
    }
}

impl Failing {
    fn is_out_for_some(&self, now: Instant) -> bool {
        let is_out_for = |seen: &Seen| is_out(seen.until, now) || is_out(seen.until_for_tenant, now);
        is_out(self.until, now) || self.seen.iter().any(is_out_for)
    }

    fn see(&mut self, by: Witness, now: Instant) {
        let mut seen = match self.seen.iter().position(|seen| seen.by == by) {
            Some(at) => self.seen.remove(at),
            None => Seen { by, times: 0, until: None, until_for_tenant: None },
        };
        seen.times = seen.times.saturating_add(1);
        seen.until = out(seen.times, now);
        let of_tenant = || self.seen.iter().filter(|other| other.by.tenant == by.tenant);
        if of_tenant().next().is_some() {
            let times = of_tenant().map(|other| other.times).fold(seen.times, u32::saturating_add);
            seen.until_for_tenant = out(times, now);
        }
        if self.seen.len() >= WITNESSES {
            self.seen.remove(0);
        }
        self.seen.push(seen);
    }

    /// What all saw together.
    fn judge(&mut self, now: Instant) {
        let tenant = self.seen.last().map(|seen| seen.by.tenant);
        let by_several = self.seen.iter().any(|seen| Some(seen.by.tenant) != tenant);
        let seen = self.seen.iter().map(|seen| seen.times).fold(0, u32::saturating_add);
        let times = if by_several { self.unreachable.saturating_add(seen) } else { self.unreachable };
        self.until = out(times, now).or(self.until);
    }
}

/// Until when an endpoint is out that has failed so often.
fn out(times: u32, now: Instant) -> Option<Instant> {
    let beyond = times.checked_sub(FAILURES)?;
    Some(now + Duration::from_secs(1_u64.checked_shl(beyond).unwrap_or(u64::MAX).max(1)).min(LONGEST))
}

fn is_out(until: Option<Instant>, now: Instant) -> bool {
    until.is_some_and(|until| until > now)
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
        let later = now + Duration::from_secs(1);
        assert!(table.admits(&a, later));
        assert_eq!((table.cooling(now), table.cooling(later), table.failing()), (1, 0, 1));
        table.served(&a);
        assert_eq!(table.failing(), 0);
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

    /// A caller of a tenant.
    fn of(tenant: u64, key: u64) -> Witness {
        Witness { key, tenant }
    }

    #[test]
    fn what_one_caller_saw_takes_an_endpoint_from_nobody_else() {
        let table = CoolDown::default();
        let (a, now) = (Arc::from("a"), Instant::now());
        let (client, colleague, stranger) = (of(1, 10), of(1, 11), of(2, 20));
        let admitted = |now| [client, colleague, stranger].map(|caller| table.admits_for(&a, caller, now));
        table.answered_badly(&a, client, now);
        assert_eq!(admitted(now), [true; 3]);
        for _ in 0..100 {
            table.answered_badly(&a, client, now);
        }
        assert_eq!((admitted(now), table.admits(&a, now)), ([false, true, true], true));
        assert_eq!((table.cooling(now), table.failing()), (1, 0));
        assert_eq!(admitted(now + LONGEST), [true; 3]);
        table.answered_badly(&a, colleague, now);
        assert_eq!((admitted(now), table.failing()), ([false, false, true], 0), "two keys speak for their tenant");
        table.answered_badly(&a, stranger, now);
        assert_eq!((admitted(now), table.failing()), ([false; 3], 1), "two tenants speak for all");
        table.served(&a);
        assert_eq!(admitted(now), [true; 3]);
    }

    #[test]
    fn two_tenants_take_out_a_sick_endpoint_with_their_first_failures() {
        let table = CoolDown::default();
        let (a, now) = (Arc::from("a"), Instant::now());
        table.answered_badly(&a, of(1, 10), now);
        table.answered_badly(&a, of(2, 20), now);
        assert!(!table.admits(&a, now));
    }

    #[test]
    fn callers_without_number_take_no_memory_without_bound() {
        let table = CoolDown::default();
        let (a, now) = (Arc::from("a"), Instant::now());
        for key in 0..1_000 {
            table.answered_badly(&a, of(1, key), now);
        }
        let seen = table.failing.get(&*a).map(|failing| failing.seen.len());
        assert_eq!((seen, table.admits(&a, now)), (Some(WITNESSES), true));
        assert!(!table.admits_for(&a, of(1, 5), now), "of one tenant");
    }
}
