//! Any history of operations, told to a store and to a model that is too simple to be wrong.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

use super::bed::{Bed, ERA};
use super::*;

const CALLERS: [&str; 2] = ["acme", "other"];

const LIMITS: usize = 6;

/// More that end at once would be given back over several requests.
const MOST_IN_FLIGHT: usize = 8;

#[derive(Debug, Clone)]
enum Step {
    /// A request of a caller to some of the limits, with an estimate for each.
    Reserve {
        caller: usize,
        estimates: [Option<u64>; LIMITS],
    },
    /// The end of the n-th request so far, whether or not it has ended before.
    Settle {
        request: Index,
        actual: [u64; LIMITS],
    },
    Grow {
        request: Index,
        by: u64,
        fate: Fate,
    },
    Reset {
        caller: usize,
    },
    Wait {
        seconds: u64,
    },
    NextWindow,
}

/// Of a growth and of its answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Answered,
    /// It happened, and nobody knows.
    AnswerLost,
    /// It did not happen, and nobody knows.
    Lost,
}

fn step() -> impl Strategy<Value = Step> {
    let estimates = prop::array::uniform6(prop::option::weighted(0.7, 0_u64..80));
    let fate = prop_oneof![3 => Just(Fate::Answered), 1 => Just(Fate::AnswerLost), 1 => Just(Fate::Lost)];
    let by = prop_oneof![Just(0), 1_u64..60];
    prop_oneof![
        6 => (0..CALLERS.len(), estimates).prop_map(|(caller, estimates)| Step::Reserve { caller, estimates }),
        5 => (any::<Index>(), prop::array::uniform6(0_u64..100))
            .prop_map(|(request, actual)| Step::Settle { request, actual }),
        4 => (any::<Index>(), by, fate).prop_map(|(request, by, fate)| Step::Grow { request, by, fate }),
        1 => (0..CALLERS.len()).prop_map(|caller| Step::Reset { caller }),
        2 => (1_u64..40).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::NextWindow),
    ]
}

fn limits() -> [Arc<Limit>; LIMITS] {
    let fixed = |limit| Limit { window: Window::Fixed(ERA), ..limit };
    [
        fixed(limit("soft", 150, Mode::Soft)),
        fixed(Limit { cap: Cap::Capped, ..limit("capped", 200, Mode::Strict) }),
        fixed(limit("check", 100, Mode::Check)),
        fixed(Limit { quantity: Quantity::Concurrency, ..limit("slots", 3, Mode::Strict) }),
        Limit { window: Window::Sliding(ERA), ..limit("sliding", 300, Mode::Strict) },
        fixed(Limit { enforcement: Enforcement::Shadow, ..limit("shadow", 50, Mode::Strict) }),
    ]
    .map(Arc::new)
}

fn is_slot(hold: &Hold) -> bool {
    hold.limit.quantity == Quantity::Concurrency
}

/// A request that was granted, as its sidecar sees it.
struct Ours {
    known: Arc<ReserveRequest>,
    doubt: Option<Arc<ReserveRequest>>,
}

/// The rules of the specification, by the book: what is held is added up from what is in flight, every time.
#[derive(Default)]
struct Model {
    /// Seconds.
    now: u64,
    /// Settled in this window and in the one before.
    settled: HashMap<(Arc<str>, CounterKey), (u64, u64)>,
    in_flight: Vec<(Arc<ReserveRequest>, u64)>,
    tombstones: HashMap<ReservationId, u64>,
    /// Everything that was charged in this window, and not reset.
    charged: u64,
}

/// (settled, in the window before, held)
type Figures = (u64, u64, u64);

fn figures(state: &CounterState) -> Figures {
    (state.settled, state.previous, state.held)
}

impl Model {
    fn figures(&self, hold: &Hold) -> Figures {
        let same = |other: &&Hold| other.limit.id == hold.limit.id && other.counter == hold.counter;
        let held = self.in_flight.iter().flat_map(|(request, _)| &request.holds).filter(same).map(Hold::amount).sum();
        let (settled, previous) =
            self.settled.get(&(hold.limit.id.clone(), hold.counter.clone())).copied().unwrap_or_default();
        (settled, if hold.limit.window.slides() { previous } else { 0 }, held)
    }

    /// Which hold is refused, by the model's figures; how far the window has gone, the store says.
    fn refusal(
        &self,
        holds: &[Hold],
        states: &[CounterState],
        refuses: impl Fn(usize, &Hold, u64, u64) -> bool,
    ) -> Option<usize> {
        holds.iter().zip(states).enumerate().position(|(index, (hold, state))| {
            let (settled, previous, held) = self.figures(hold);
            let used = CounterState { settled, previous, ..*state }.used();
            hold.limit.enforcement == Enforcement::Refuse && refuses(index, hold, used, held)
        })
    }

    /// What has expired is given back by the next request of the same caller; it cannot see what others left.
    fn sweep(&mut self, of: &ReserveRequest) {
        self.in_flight.retain(|(other, end)| *end > self.now || caller(other) != caller(of));
    }

    fn hold(&mut self, request: &Arc<ReserveRequest>) {
        self.in_flight.retain(|(other, _)| other.id != request.id);
        self.in_flight.push((Arc::clone(request), self.now + LEASE.as_secs()));
    }

    fn settle(&mut self, settlement: &Settlement) {
        if self.is_settled(&settlement.id) {
            return;
        }
        self.tombstones.insert(settlement.id.clone(), self.now + 10);
        self.in_flight.retain(|(request, _)| request.id != settlement.id);
        for charge in &settlement.charges {
            let counter = (charge.hold.limit.id.clone(), charge.hold.counter.clone());
            self.settled.entry(counter).or_default().0 += charge.actual;
            self.charged += charge.actual;
        }
    }

    fn reset(&mut self, hold: &Hold) {
        let settled = self.settled.entry((hold.limit.id.clone(), hold.counter.clone())).or_default();
        self.charged -= settled.0;
        *settled = (0, 0);
    }

    fn next_window(&mut self) {
        self.now += ERA.as_secs();
        self.settled.values_mut().for_each(|(current, previous)| (*current, *previous) = (0, *current));
        self.charged = 0;
    }

    fn is_settled(&self, id: &ReservationId) -> bool {
        self.tombstones.get(id).is_some_and(|until| *until > self.now)
    }
}

fn caller(request: &ReserveRequest) -> &str {
    request.holds[0].counter.parts().0
}

/// A store, the model, and the sidecar between them.
struct Tale<'b> {
    bed: &'b Bed,
    model: Model,
    granted: Vec<Ours>,
}

impl Tale<'_> {
    async fn reserve(&mut self, request: ReserveRequest) {
        if request.holds.is_empty() || self.model.in_flight.len() >= MOST_IN_FLIGHT {
            return;
        }
        let request = Arc::new(request);
        self.model.sweep(&request);
        let admission = self.bed.reserve(&request).await;
        let expected: Vec<_> = request.holds.iter().map(|hold| self.model.figures(hold)).collect();
        assert_eq!(admission.states().iter().map(figures).collect::<Vec<_>>(), expected);
        let refusal = self.model.refusal(&request.holds, admission.states(), |_, hold, used, held| {
            let (limit, e) = (hold.limit.amount, hold.estimate);
            match hold.limit.mode {
                Mode::Strict => used + held + e > limit,
                Mode::Soft => used + held >= limit,
                Mode::Check => used >= limit,
            }
        });
        match admission {
            Admission::Refused { by, .. } => assert_eq!(Some(by), refusal),
            Admission::Granted { .. } => {
                assert_eq!(refusal, None);
                self.model.hold(&request);
                self.promises_are_kept(&request).await;
                self.granted.push(Ours { known: request, doubt: None });
            }
        }
    }

    /// Strict limits are not overdrawn after an admission.
    async fn promises_are_kept(&self, request: &ReserveRequest) {
        let strict = |hold: &&Hold| hold.limit.mode == Mode::Strict && hold.limit.enforcement == Enforcement::Refuse;
        for hold in request.holds.iter().filter(strict) {
            let (used, held) = self.bed.peek(hold).await;
            assert!(used + held <= hold.limit.amount);
        }
    }

    async fn settle(&mut self, request: Index, actual: [u64; LIMITS]) {
        let Ours { known, doubt } = request.get(&self.granted);
        let actual: Vec<_> =
            known.holds.iter().zip(actual).map(|(hold, n)| if is_slot(hold) { 0 } else { n }).collect();
        let settlement = Settlement { doubt: doubt.clone(), ..settlement(known, &actual) };
        self.model.settle(&settlement);
        self.bed.settle(&settlement).await;
    }

    async fn grow(&mut self, request: Index, by: u64, fate: Fate) {
        if self.model.in_flight.len() >= MOST_IN_FLIGHT {
            return;
        }
        let ours = request.index(self.granted.len());
        let Ours { known, doubt } = &self.granted[ours];
        let grow = |hold: &Hold| Hold { estimate: hold.estimate + if is_slot(hold) { 0 } else { by }, ..hold.clone() };
        let to = match (by, doubt) {
            (0, _) => Arc::clone(known),
            // What is in doubt is asked for again before anything else is.
            (_, Some(doubt)) => Arc::clone(doubt),
            (_, None) => Arc::new(ReserveRequest {
                holds: known.holds.iter().map(grow).collect(),
                ..ReserveRequest::clone(known)
            }),
        };
        let growth = Growth { from: Arc::clone(known), doubt: doubt.clone(), to, keeper: Keeper::Store };
        let granted = fate == Fate::Lost || self.grow_in_both(&growth).await;
        let ours = &mut self.granted[ours];
        match fate {
            Fate::Answered => {
                ours.known = if granted { growth.to } else { growth.from };
                ours.doubt = None;
            }
            Fate::AnswerLost | Fate::Lost if by > 0 => ours.doubt = Some(growth.to),
            Fate::AnswerLost | Fate::Lost => {}
        }
    }

    /// Whether it was granted.
    async fn grow_in_both(&mut self, growth: &Growth) -> bool {
        let admission = self.bed.grow(growth).await;
        if self.model.is_settled(&growth.to.id) {
            assert!(matches!(admission, Admission::Granted { .. }));
            return true;
        }
        self.model.in_flight.retain(|(other, _)| other.id != growth.to.id);
        self.model.sweep(&growth.to);
        let holds = &growth.to.holds;
        let expected: Vec<_> = holds.iter().map(|hold| self.model.figures(hold)).collect();
        assert_eq!(admission.states().iter().map(figures).collect::<Vec<_>>(), expected);
        let refusal = self.model.refusal(holds, admission.states(), |index, hold, used, held| {
            let grows = hold.estimate > growth.from.holds[index].estimate;
            hold.limit.cap == Cap::Capped && grows && used + held + hold.estimate > hold.limit.amount
        });
        let by = match admission {
            Admission::Granted { .. } => None,
            Admission::Refused { by, .. } => Some(by),
        };
        assert_eq!(by, refusal);
        self.model.hold(if by.is_none() { &growth.to } else { &growth.from });
        by.is_none()
    }

    /// I5, I6.
    async fn end(mut self, counters: &[Hold]) {
        // Whoever looks does not see what has expired.
        self.model.in_flight.retain(|(_, end)| *end > self.model.now);
        let mut charged = 0;
        for counter in counters {
            let state = self.bed.state(counter).await;
            assert_eq!(figures(&state), self.model.figures(counter));
            charged += state.settled;
        }
        assert_eq!(charged, self.model.charged, "everything that was settled is charged, once");
        for Ours { known, doubt } in &self.granted {
            let release = Settlement { doubt: doubt.clone(), ..known.release() };
            self.bed.settle(&release).await;
        }
        for counter in counters {
            assert_eq!(self.bed.peek(counter).await.1, 0, "nothing is held at rest");
        }
    }
}

async fn tell(bed: &mut Bed, steps: &[Step]) {
    bed.clear().await;
    let limits = limits();
    let counters_of = |caller: usize| limits.iter().map(|limit| hold(limit, CALLERS[caller], 0)).collect::<Vec<_>>();
    let mut tale = Tale { bed, model: Model::default(), granted: Vec::new() };
    for step in steps {
        match step {
            Step::Reserve { caller, estimates } => {
                let holds = limits.iter().zip(estimates).filter_map(|(limit, estimate)| {
                    let slot = limit.quantity == Quantity::Concurrency;
                    let estimate = if slot { estimate.map(|_| 1) } else { *estimate };
                    Some(hold(limit, CALLERS[*caller], estimate?))
                });
                tale.reserve(request(holds.collect())).await;
            }
            Step::Settle { request, actual } if !tale.granted.is_empty() => tale.settle(*request, *actual).await,
            Step::Grow { request, by, fate } if !tale.granted.is_empty() => tale.grow(*request, *by, *fate).await,
            Step::Reset { caller } => {
                let counters = counters_of(*caller);
                counters.iter().for_each(|counter| tale.model.reset(counter));
                tale.bed.reset(&counters).await;
            }
            Step::Wait { seconds } => {
                tale.model.now += seconds;
                tale.bed.advance(Duration::from_secs(*seconds)).await;
            }
            Step::NextWindow => {
                tale.model.next_window();
                tale.bed.advance(ERA).await;
            }
            Step::Settle { .. } | Step::Grow { .. } => {}
        }
    }
    let counters: Vec<_> = (0..CALLERS.len()).flat_map(counters_of).collect();
    tale.end(&counters).await;
}

fn for_any_history(cases: u32, mut bed: impl AsyncFnMut() -> Bed) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bed = std::cell::RefCell::new(runtime.block_on(bed()));
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(step(), 1..50), |steps| {
            runtime.block_on(tell(&mut bed.borrow_mut(), &steps));
            Ok(())
        })
        .unwrap();
    drop(runtime.enter());
}

/// I1, I2, I4, I5, I6, I7 and I10.
#[test]
fn the_memory_store_answers_any_history_as_the_model_does() {
    for_any_history(512, async || Bed::memory());
}

/// I1, I2, I4, I5, I6, I7 and I10.
#[test]
fn the_redis_store_answers_any_history_as_the_model_does() {
    for_any_history(64, async || Bed::redis().await);
}
