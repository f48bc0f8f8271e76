//! What one request asks of its limits, and how it ends: holds before the model, charges after it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use attache_proto::Usage;

use super::estimate::EstimateInput;
use super::subject::{CounterKey, Subject};
use super::{CounterState, Limit};

/// What one request asks for, over all of its limits at once: granted whole or refused whole.
#[derive(Debug, Clone)]
pub struct ReserveRequest {
    /// Unique for this request.
    pub id: ReservationId,
    /// One entry a limit.
    pub holds: Vec<Hold>,
}

impl ReserveRequest {
    /// What a request of `subject` asks of `limits`. A limit that is listed twice, because its policy targets a route and
    /// one of its rules, counts once.
    pub fn new<'l>(
        limits: impl IntoIterator<Item = &'l Arc<Limit>>,
        subject: &Subject<'_>,
        input: &EstimateInput,
    ) -> Self {
        let mut holds: Vec<Hold> = Vec::new();
        for limit in limits {
            if holds.iter().any(|hold| hold.limit.id == limit.id) {
                continue;
            }
            holds.push(Hold {
                limit: Arc::clone(limit),
                counter: CounterKey::new(limit, subject),
                estimate: limit.quantity.estimate(input),
            });
        }
        Self { id: ReservationId::random(), holds }
    }

    /// How this reservation ends when the model was never asked: nothing is charged, not even one request.
    pub fn release(&self) -> Settlement {
        let charge = |hold: &Hold| Charge { actual: 0, hold: hold.clone() };
        Settlement { id: self.id.clone(), charges: self.holds.iter().map(charge).collect() }
    }

    /// How this reservation ends when the model used `usage`.
    pub fn settlement(&self, usage: &Usage) -> Settlement {
        let charge = |hold: &Hold| Charge { actual: hold.limit.quantity.actual(usage), hold: hold.clone() };
        Settlement { id: self.id.clone(), charges: self.holds.iter().map(charge).collect() }
    }
}

/// A reservation's identity: 128 random bits, in hex.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReservationId(pub Arc<str>);

impl ReservationId {
    /// One that no other request of any sidecar has.
    pub fn random() -> Self {
        // SipHash of a sequence, under keys that std takes from the operating system: ids of two processes are as unrelated
        // as their keys, and no further dependency is needed.
        static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let sequence = NEXT.fetch_add(1, Ordering::Relaxed);
        let [high, low] = KEYS.each_ref().map(|key| key.hash_one(sequence));
        Self(format!("{high:016x}{low:016x}").into())
    }
}

/// What a request wants to hold of one limit.
#[derive(Debug, Clone)]
pub struct Hold {
    /// The limit.
    pub limit: Arc<Limit>,
    /// Which of the limit's counters.
    pub counter: CounterKey,
    /// The estimate, in the limit's unit.
    pub estimate: u64,
}

impl Hold {
    /// What is held while the request is in flight: the estimate, but for limits that only check.
    pub fn amount(&self) -> u64 {
        self.limit.held(self.estimate)
    }

    /// Whether the limit admits this request while its counter stands at `state`.
    pub fn is_admitted(&self, state: &CounterState) -> bool {
        self.limit.admits(state.settled, state.held, self.estimate)
    }
}

/// What was really used, in the order of the reservation's holds.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The reservation it ends. Settling it again changes nothing.
    pub id: ReservationId,
    /// One entry a hold.
    pub charges: Vec<Charge>,
}

/// The end of one hold.
#[derive(Debug, Clone)]
pub struct Charge {
    /// What was held.
    pub hold: Hold,
    /// What was used, in the limit's unit.
    pub actual: u64,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::tests::{limit, nobody};
    use super::super::{Cost, Mode, Quantity};
    use super::*;

    #[test]
    fn a_limit_that_is_listed_twice_is_held_once() {
        let limit = Arc::new(limit("a", 300, Mode::Soft));
        let request = ReserveRequest::new([&limit, &limit], &nobody(), &EstimateInput::default());
        assert_eq!(request.holds.len(), 1);
    }

    #[test]
    fn a_settlement_charges_tokens_by_cost_one_request_and_no_slot() {
        let limits = [Quantity::Tokens(Cost::Output), Quantity::Requests, Quantity::Concurrency]
            .map(|quantity| Arc::new(Limit { quantity, ..limit(&format!("{quantity:?}"), 300, Mode::Soft) }));
        let request = ReserveRequest::new(&limits, &nobody(), &EstimateInput::default());
        let settlement = request.settlement(&Usage { input: 7, output: 11, total: 18, ..Usage::default() });
        assert_eq!(settlement.id, request.id);
        assert_eq!(settlement.charges.iter().map(|charge| charge.actual).collect::<Vec<_>>(), [11, 1, 0]);
    }

    #[test]
    fn ids_are_128_bits_in_hex_and_never_repeat() {
        let ids: HashSet<_> = (0..10_000).map(|_| ReservationId::random()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.0.len() == 32 && id.0.bytes().all(|byte| byte.is_ascii_hexdigit())));
    }
}
