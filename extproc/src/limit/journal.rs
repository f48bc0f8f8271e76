//! The last decision on each key's requests, for people who ask why a key was refused.
//!
//! Bounded: a key that was not seen for longest makes room. Written with every reservation, so it takes one short lock, of which
//! there are several, and allocates nothing for a key that it knows.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use xxhash_rust::xxh3::xxh3_64;

use super::{CounterState, Decision, Dimension, Hold, Keeper, Limit, ReserveRequest, StoreError};

/// 4,096 keys, about 2 KB each with three limits: as many as a sidecar has that serves a large company.
const SHARDS: usize = 16;
const KEYS_OF_A_SHARD: usize = 256;

/// The counters of header values that are remembered of a key: which there are, only its requests tell.
const SEEN_BY_HEADER: usize = 16;

/// The last decisions. Requests without a key are one caller.
#[derive(Default)]
pub struct Journal {
    shards: [Mutex<HashMap<Arc<str>, LastDecision>>; SHARDS],
}

/// What is remembered of one key.
#[derive(Debug, Clone)]
pub struct LastDecision {
    /// When its last request was decided on.
    pub at: SystemTime,
    /// What it asked for.
    pub request: Arc<ReserveRequest>,
    /// What it got.
    pub outcome: Decided,
    /// The counters as they stood before, in the order of the request's holds, as far as they are known.
    pub states: Vec<Option<CounterState>>,
    /// The counters that its last requests fell on by the value of a header, the latest at the end.
    pub by_header: Vec<Hold>,
}

/// How a request's reservation was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// It was granted, and is kept there.
    Granted(Keeper),
    /// It was refused; the first hold that was.
    Refused(usize),
    /// The store gave no answer.
    Unanswered(StoreError),
}

impl Journal {
    /// Takes note of a decision.
    pub fn record(&self, request: &Arc<ReserveRequest>, decision: &Result<Decision, StoreError>, now: SystemTime) {
        let (outcome, states) = match decision {
            Ok(Decision::Granted(reservation)) => (Decided::Granted(reservation.keeper()), reservation.states()),
            Ok(Decision::Refused(refused)) => (Decided::Refused(refused.by), &*refused.states),
            Err(error) => (Decided::Unanswered(error.clone()), [].as_slice()),
        };
        let key = name(request.key_id.as_deref());
        let mut shard = self.shard(key);
        match shard.get_mut(key) {
            Some(entry) => entry.update(request, outcome, states, now),
            None => {
                make_room(&mut shard);
                let mut entry = LastDecision {
                    at: now,
                    request: Arc::clone(request),
                    outcome: outcome.clone(),
                    states: Vec::new(),
                    by_header: Vec::new(),
                };
                entry.update(request, outcome, states, now);
                shard.insert(Arc::from(key), entry);
            }
        }
    }

    /// What is remembered of a key; of the requests without one, for `None`.
    pub fn last(&self, key_id: Option<&str>) -> Option<LastDecision> {
        self.shard(name(key_id)).get(name(key_id)).cloned()
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, HashMap<Arc<str>, LastDecision>> {
        let index = usize::try_from(xxh3_64(key.as_bytes()) % SHARDS as u64).unwrap_or_default();
        let [first, ..] = &self.shards;
        // Nothing in here panics half-way through a change.
        self.shards.get(index).unwrap_or(first).lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl LastDecision {
    fn update(
        &mut self,
        request: &Arc<ReserveRequest>,
        outcome: Decided,
        states: &[Option<CounterState>],
        now: SystemTime,
    ) {
        self.at = now;
        self.request = Arc::clone(request);
        self.outcome = outcome;
        self.states.clear();
        self.states.extend_from_slice(states);
        for hold in request.holds.iter().filter(|hold| is_by_header(&hold.limit)) {
            let is_same = |other: &Hold| other.limit.id == hold.limit.id && other.counter == hold.counter;
            match self.by_header.iter().position(is_same) {
                Some(index) => drop(self.by_header.remove(index)),
                None if self.by_header.len() >= SEEN_BY_HEADER => drop(self.by_header.remove(0)),
                None => {}
            }
            self.by_header.push(hold.clone());
        }
    }
}

/// Every id of a key has a slash in it.
fn name(key_id: Option<&str>) -> &str {
    key_id.unwrap_or_default()
}

fn is_by_header(limit: &Limit) -> bool {
    limit.per.iter().any(|dimension| matches!(dimension, Dimension::Header(_)))
}

fn make_room(shard: &mut HashMap<Arc<str>, LastDecision>) {
    if shard.len() < KEYS_OF_A_SHARD {
        return;
    }
    let oldest = shard.iter().min_by_key(|(_, entry)| entry.at).map(|(key, _)| Arc::clone(key));
    if let Some(oldest) = oldest {
        shard.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{limit, nobody};
    use super::super::{Admission, Estimate, Mode, Subject};
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn request(key_id: Option<&str>, team: &'static str) -> Arc<ReserveRequest> {
        let per = vec![Dimension::Header("x-team".into())];
        let limits =
            [limit("plain", 300, Mode::Soft), Limit { per, ..limit("by-team", 300, Mode::Soft) }].map(Arc::new);
        let header = move |_: &str| Some(team.as_bytes());
        let subject = Subject { key_id, header: &header, ..nobody() };
        Arc::new(ReserveRequest::new(&limits, &subject, Estimate { input: 1, output: 39, ..Estimate::default() }))
    }

    fn granted(request: &Arc<ReserveRequest>, settled: u64) -> Result<Decision, StoreError> {
        let states = vec![CounterState { settled, ..CounterState::empty() }; request.holds.len()];
        Ok(Decision::new(Arc::clone(request), Admission::Granted { states }, Keeper::Store))
    }

    #[test]
    fn the_last_decision_of_each_key_is_kept() {
        let journal = Journal::default();
        let (a, b, none) = (request(Some("ns/a"), "red"), request(Some("ns/b"), "red"), request(None, "red"));
        journal.record(&a, &granted(&a, 10), at(1));
        let states = vec![CounterState { settled: 300, ..CounterState::empty() }; 2];
        let refused = Decision::new(Arc::clone(&a), Admission::Refused { by: 1, states }, Keeper::Store);
        journal.record(&a, &Ok(refused), at(2));
        journal.record(&b, &granted(&b, 20), at(3));
        journal.record(&none, &Err(StoreError::Timeout(Duration::from_millis(25))), at(4));

        let seen = |key| {
            let entry: LastDecision = journal.last(key).unwrap();
            let settled: Vec<_> = entry.states.iter().flatten().map(|state| state.settled).collect();
            (entry.at, entry.outcome, settled)
        };
        assert_eq!(seen(Some("ns/a")), (at(2), Decided::Refused(1), vec![300, 300]));
        assert_eq!(seen(Some("ns/b")), (at(3), Decided::Granted(Keeper::Store), vec![20, 20]));
        assert_eq!(seen(None), (at(4), Decided::Unanswered(StoreError::Timeout(Duration::from_millis(25))), vec![]));
        assert!(journal.last(Some("ns/c")).is_none());
    }

    #[test]
    fn counters_by_header_are_kept_beyond_the_last_request_up_to_a_bound() {
        const TEAMS: [&str; SEEN_BY_HEADER + 1] =
            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q"];
        let journal = Journal::default();
        let seen = || -> Vec<_> {
            journal.last(Some("ns/a")).unwrap().by_header.into_iter().map(|hold| hold.counter).collect()
        };
        let record = |team| {
            let request = request(Some("ns/a"), team);
            journal.record(&request, &granted(&request, 0), at(1));
            request.holds[1].counter.clone()
        };
        let mut counters: Vec<_> = TEAMS.map(record).into();
        counters.remove(0);
        assert_eq!(seen(), counters);
        // One that is known moves to the end.
        record("c");
        let known = counters.remove(1);
        counters.push(known);
        assert_eq!(seen(), counters);
    }

    #[test]
    fn a_key_that_was_not_seen_for_longest_makes_room() {
        let journal = Journal::default();
        let keys: Vec<String> = (0..20_000).map(|index| format!("ns/key-{index}")).collect();
        for (index, key) in keys.iter().enumerate() {
            let request = request(Some(key), "red");
            journal.record(&request, &granted(&request, 0), at(index as u64));
        }
        let kept: Vec<bool> = keys.iter().map(|key| journal.last(Some(key)).is_some()).collect();
        assert_eq!(kept.iter().filter(|kept| **kept).count(), SHARDS * KEYS_OF_A_SHARD);
        assert!(kept[keys.len() - KEYS_OF_A_SHARD..].iter().all(|kept| *kept));
        assert!(!kept[0]);
    }
}
