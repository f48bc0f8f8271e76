//! What one request asks of its limits, and how it ends: holds before the model, charges after it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use attache_proto::Usage;

use super::estimate::Estimate;
use super::subject::{CounterKey, Subject};
use super::{Cap, CostContext, CounterState, Enforcement, Keeper, Limit, Quantity};

/// What one request asks for, over all of its limits at once: granted whole or refused whole.
#[derive(Debug, Clone)]
pub struct ReserveRequest {
    /// Unique for this request.
    pub id: ReservationId,
    /// Whose request it is, for people who ask: the key's id.
    pub key_id: Option<Arc<str>>,
    /// What its costs depend on besides its usage.
    pub context: Arc<CostContext>,
    /// What it will probably use.
    pub estimate: Estimate,
    /// One entry a limit.
    pub holds: Vec<Hold>,
    /// Who may refuse it.
    pub judge: Judge,
}

/// Who may refuse a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// The sidecar by what it remembers of counters that are used up, and else the store.
    Anyone,
    /// The store alone: what is remembered may be a few answers old, and the request was made to fit what is left to the token.
    Store,
}

impl ReserveRequest {
    /// What a request of `subject` asks of those of `limits` that are about it. A limit that is listed twice, because its policy
    /// targets a route and one of its rules, counts once.
    pub fn new<'l>(
        limits: impl IntoIterator<Item = &'l Arc<Limit>>,
        subject: &Subject<'_>,
        estimate: Estimate,
    ) -> Self {
        let mut holds: Vec<Hold> = Vec::new();
        for limit in limits {
            if !subject.is_limited_by(limit) || holds.iter().any(|hold| hold.limit.id == limit.id) {
                continue;
            }
            holds.push(Hold {
                limit: Arc::clone(limit),
                counter: CounterKey::new(limit, subject),
                estimate: estimate.of(limit, subject.context),
                ceiling: limit.ceiling(subject.priority),
            });
        }
        Self {
            id: ReservationId::random(),
            key_id: subject.key_id.map(Arc::from),
            context: Arc::clone(subject.context),
            estimate,
            holds,
            judge: Judge::Anyone,
        }
    }

    /// Whether a limit that refuses counts what its answer uses: tokens of any kind, or what they cost.
    pub fn counts_tokens(&self) -> bool {
        self.holds.iter().any(|hold| {
            let counts = match hold.limit.quantity {
                Quantity::Tokens(_) | Quantity::Weighted(_) | Quantity::Money(_) => true,
                Quantity::Requests | Quantity::Concurrency => false,
            };
            counts && hold.limit.enforcement == Enforcement::Refuse
        })
    }

    /// The same reservation for an answer that may have so many tokens at most.
    #[must_use]
    pub fn with_output(&self, output_tokens: u64) -> Self {
        let estimate = self.estimate.with_output(output_tokens);
        let hold = |hold: &Hold| Hold { estimate: estimate.of(&hold.limit, &self.context), ..hold.clone() };
        Self { estimate, holds: self.holds.iter().map(hold).collect(), ..self.clone() }
    }

    /// The same reservation with so many more tokens of output.
    #[must_use]
    pub fn grown(&self, output_tokens: u64) -> Self {
        let more = |output: u64| output.saturating_add(output_tokens);
        let Estimate { output, output_at_most, .. } = self.estimate;
        let estimate = Estimate { output: more(output), output_at_most: more(output_at_most), ..self.estimate };
        let grow = |hold: &Hold| Hold {
            // Never less than before, whatever an expression makes of it.
            estimate: estimate.of(&hold.limit, &self.context).max(hold.estimate),
            ..hold.clone()
        };
        Self { estimate, holds: self.holds.iter().map(grow).collect(), ..self.clone() }
    }

    /// How this reservation ends when the model was never asked: nothing is charged, not even one request.
    pub fn release(&self) -> Settlement {
        self.end(|_| 0)
    }

    /// How this reservation ends when the model used `usage`.
    pub fn settlement(&self, usage: &Usage) -> Settlement {
        self.end(|hold| hold.limit.quantity.actual(usage, &self.context))
    }

    fn end(&self, actual: impl Fn(&Hold) -> u64) -> Settlement {
        let charge = |hold: &Hold| Charge { actual: actual(hold), hold: hold.clone() };
        Settlement {
            id: self.id.clone(),
            charges: self.holds.iter().map(charge).collect(),
            doubt: None,
            keeper: Keeper::Store,
        }
    }
}

impl Estimate {
    /// What of `limit` that is. One that may not be overdrawn expects a dense prompt, and as long an answer as there may be.
    pub(super) fn of(&self, limit: &Limit, context: &CostContext) -> u64 {
        let Self { input_at_most: input, output_at_most: output, .. } = *self;
        let expected = match (limit.cap, limit.enforcement) {
            (Cap::Open, _) => *self,
            (Cap::Capped, Enforcement::Refuse) => Self { input, output, ..*self },
            // No answer is bounded for its sake, and it should not count as refused what would have been bounded.
            (Cap::Capped, Enforcement::Shadow) => Self { input, ..*self },
        };
        limit.quantity.estimate(&expected, context)
    }

    /// The same for an answer that may have so many tokens at most.
    pub(super) fn with_output(self, output_tokens: u64) -> Self {
        Self { output: self.output.min(output_tokens), output_at_most: output_tokens, ..self }
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
    /// Up to where this caller may use the limit.
    pub ceiling: u64,
}

impl Hold {
    /// What is held while the request is in flight: the estimate, but for limits that only check.
    pub fn amount(&self) -> u64 {
        self.limit.held(self.estimate)
    }

    /// Whether it may not be overdrawn.
    pub fn is_capped(&self) -> bool {
        self.limit.cap == Cap::Capped && self.limit.enforcement == Enforcement::Refuse
    }

    /// Whether there is room for this request while the counter stands at `state`.
    pub fn fits(&self, state: &CounterState) -> bool {
        self.limit.admission().admits(self.ceiling, state.used(), state.held, self.amount())
    }

    /// Whether the limit refuses this request while its counter stands at `state`.
    pub fn is_refused(&self, state: &CounterState) -> bool {
        self.limit.enforcement == Enforcement::Refuse && !self.fits(state)
    }
}

/// A reservation whose lease begins anew, and that may hold more from now on.
#[derive(Debug, Clone)]
pub struct Growth {
    /// What is held, as far as is known.
    pub from: Arc<ReserveRequest>,
    /// What may be held instead: an earlier growth that nobody knows the end of.
    pub doubt: Option<Arc<ReserveRequest>>,
    /// What is to be held; the same reservation.
    pub to: Arc<ReserveRequest>,
    /// Who holds it.
    pub keeper: Keeper,
}

/// What was really used, in the order of the reservation's holds.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The reservation it ends. Settling it again changes nothing.
    pub id: ReservationId,
    /// One entry a hold, as far as is known.
    pub charges: Vec<Charge>,
    /// What may be held instead: a growth that nobody knows the end of.
    pub doubt: Option<Arc<ReserveRequest>>,
    /// Who holds it.
    pub keeper: Keeper,
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
    use super::super::{Condition, Cost, Dimension, Expected, Mode, Priority};
    use super::*;

    const ESTIMATE: Estimate = Estimate { input: 100, input_at_most: 200, output: 20, output_at_most: 50 };

    fn ask(limits: &[Limit], subject: &Subject<'_>) -> ReserveRequest {
        let limits: Vec<_> = limits.iter().cloned().map(Arc::new).collect();
        ReserveRequest::new(&limits, subject, ESTIMATE)
    }

    #[test]
    fn a_limit_that_is_listed_twice_is_held_once() {
        let limit = limit("a", 300, Mode::Soft);
        assert_eq!(ask(&[limit.clone(), limit], &nobody()).holds.len(), 1);
    }

    #[test]
    fn a_limit_that_is_not_about_the_request_is_not_held() {
        let when = vec![Condition { dimension: Dimension::Key, expected: Expected::Present }];
        let limit = Limit { when, ..limit("a", 300, Mode::Soft) };
        assert_eq!(ask(std::slice::from_ref(&limit), &nobody()).holds.len(), 0);
        assert_eq!(ask(&[limit], &Subject { key_id: Some("ns/key"), ..nobody() }).holds.len(), 1);
    }

    #[test]
    fn a_caller_of_low_priority_has_a_lower_ceiling() {
        let limit = Limit { low_priority_percent: 50, ..limit("a", 300, Mode::Soft) };
        assert_eq!(ask(&[limit], &Subject { priority: Priority::Low, ..nobody() }).holds[0].ceiling, 150);
    }

    #[test]
    fn a_settlement_charges_tokens_by_cost_one_request_and_no_slot() {
        let limits = [Quantity::Tokens(Cost::Output), Quantity::Requests, Quantity::Concurrency]
            .map(|quantity| Limit { id: format!("{quantity:?}").into(), quantity, ..limit("", 300, Mode::Soft) });
        let request = ask(&limits, &nobody());
        let settlement = request.settlement(&Usage { input: 7, output: 11, total: 18, ..Usage::default() });
        assert_eq!(settlement.id, request.id);
        assert_eq!(settlement.charges.iter().map(|charge| charge.actual).collect::<Vec<_>>(), [11, 1, 0]);
    }

    #[test]
    fn a_capped_limit_holds_a_dense_prompt_and_a_long_answer_and_all_holds_grow_by_their_own_cost() {
        let limits = [
            limit("total", 300, Mode::Soft),
            Limit { cap: Cap::Capped, ..limit("capped", 300, Mode::Strict) },
            Limit { cap: Cap::Capped, enforcement: Enforcement::Shadow, ..limit("shadow", 300, Mode::Strict) },
            Limit { quantity: Quantity::Tokens(Cost::Input), ..limit("input", 300, Mode::Soft) },
            Limit { quantity: Quantity::Requests, ..limit("requests", 300, Mode::Soft) },
        ];
        let request = ask(&limits, &nobody());
        let estimates = |request: &ReserveRequest| request.holds.iter().map(|hold| hold.estimate).collect::<Vec<_>>();
        assert_eq!(estimates(&request), [120, 250, 220, 100, 1]);
        assert_eq!(estimates(&request.grown(256)), [376, 506, 476, 100, 1]);
        assert_eq!(estimates(&request.with_output(30)), [120, 230, 220, 100, 1]);
        assert_eq!(estimates(&request.with_output(10)), [110, 210, 210, 100, 1]);
        assert_eq!(request.grown(256).id, request.id);
    }

    #[test]
    fn a_shadow_limit_refuses_nobody() {
        let limit = Limit { enforcement: Enforcement::Shadow, ..limit("a", 300, Mode::Soft) };
        let hold = &ask(&[limit], &nobody()).holds[0];
        let full = CounterState { settled: 300, ..CounterState::empty() };
        assert!(!hold.fits(&full) && !hold.is_refused(&full));
    }

    #[test]
    fn ids_are_128_bits_in_hex_and_never_repeat() {
        let ids: HashSet<_> = (0..10_000).map(|_| ReservationId::random()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.0.len() == 32 && id.0.bytes().all(|byte| byte.is_ascii_hexdigit())));
    }
}
