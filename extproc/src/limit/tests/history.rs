//! Any history of operations, told to a store and to a model that is too simple to be wrong.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::bed::{Bed, ERA};
use super::*;

const CALLERS: [&str; 2] = ["acme", "other"];

/// More that end at once would be given back over several requests.
const MOST_IN_FLIGHT: usize = 8;

#[derive(Debug, Clone)]
enum Step {
    /// A request of a caller to some of the limits, with an estimate for each.
    Reserve {
        caller: usize,
        estimates: [Option<u64>; 4],
    },
    /// The end of the n-th request so far, whether or not it has ended before.
    Settle {
        request: prop::sample::Index,
        actual: [u64; 4],
    },
    Renew {
        request: prop::sample::Index,
    },
    Wait {
        seconds: u64,
    },
    NextWindow,
}

fn step() -> impl Strategy<Value = Step> {
    let estimates = prop::array::uniform4(prop::option::weighted(0.7, 0_u64..80));
    prop_oneof![
        6 => (0..CALLERS.len(), estimates).prop_map(|(caller, estimates)| Step::Reserve { caller, estimates }),
        5 => (any::<prop::sample::Index>(), prop::array::uniform4(0_u64..100))
            .prop_map(|(request, actual)| Step::Settle { request, actual }),
        2 => any::<prop::sample::Index>().prop_map(|request| Step::Renew { request }),
        2 => (1_u64..40).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::NextWindow),
    ]
}

fn limits() -> [Arc<Limit>; 4] {
    let slots = Limit { quantity: Quantity::Concurrency, ..limit("slots", 3, Mode::Strict) };
    [limit("soft", 150, Mode::Soft), limit("strict", 200, Mode::Strict), limit("check", 100, Mode::Check), slots]
        .map(|limit| Arc::new(Limit { window: Window::Fixed(ERA), ..limit }))
}

/// The rules of the specification, by the book: what is held is added up from what is in flight, every time.
#[derive(Default)]
struct Model {
    /// Seconds.
    now: u64,
    settled: HashMap<(Arc<str>, CounterKey), u64>,
    in_flight: Vec<(ReserveRequest, u64)>,
    tombstones: HashMap<ReservationId, u64>,
    /// Everything that was ever charged in this window.
    charged: u64,
}

impl Model {
    fn state(&self, hold: &Hold) -> (u64, u64) {
        let same = |other: &&Hold| other.limit.id == hold.limit.id && other.counter == hold.counter;
        let held = self.in_flight.iter().flat_map(|(request, _)| &request.holds).filter(same).map(Hold::amount).sum();
        (self.settled.get(&(hold.limit.id.clone(), hold.counter.clone())).copied().unwrap_or(0), held)
    }

    fn reserve(&mut self, request: &ReserveRequest) -> (Option<usize>, Vec<(u64, u64)>) {
        // A request clears up among its own caller's; it cannot see what the others left.
        self.in_flight.retain(|(other, end)| *end > self.now || caller(other) != caller(request));
        let states: Vec<_> = request.holds.iter().map(|hold| self.state(hold)).collect();
        let refuses = request.holds.iter().zip(&states).position(|(hold, (s, h))| {
            let (limit, e) = (hold.limit.amount, hold.estimate);
            match (&hold.limit.quantity, hold.limit.mode) {
                (Quantity::Concurrency, _) | (_, Mode::Strict) => s + h + e > limit,
                (_, Mode::Soft) => s + h >= limit,
                (_, Mode::Check) => *s >= limit,
            }
        });
        if refuses.is_none() {
            self.in_flight.push((request.clone(), self.now + LEASE.as_secs()));
        }
        (refuses, states)
    }

    fn settle(&mut self, settlement: &Settlement) {
        if self.is_settled(&settlement.id) {
            return;
        }
        self.tombstones.insert(settlement.id.clone(), self.now + 10);
        self.in_flight.retain(|(request, _)| request.id != settlement.id);
        for charge in &settlement.charges {
            let counter = (charge.hold.limit.id.clone(), charge.hold.counter.clone());
            *self.settled.entry(counter).or_default() += charge.actual;
            self.charged += charge.actual;
        }
    }

    fn renew(&mut self, request: &ReserveRequest) {
        if !self.is_settled(&request.id) {
            self.in_flight.retain(|(other, _)| other.id != request.id);
            self.in_flight.push((request.clone(), self.now + LEASE.as_secs()));
        }
    }

    fn next_window(&mut self) {
        self.now += ERA.as_secs();
        self.settled.clear();
        self.charged = 0;
    }

    fn is_settled(&self, id: &ReservationId) -> bool {
        self.tombstones.get(id).is_some_and(|until| *until > self.now)
    }
}

fn caller(request: &ReserveRequest) -> &str {
    request.holds[0].counter.parts().0
}

async fn tell(bed: &mut Bed, steps: &[Step]) {
    bed.clear().await;
    let limits = limits();
    let counters: Vec<_> =
        CALLERS.iter().flat_map(|caller| limits.iter().map(|limit| hold(limit, caller, 0))).collect();
    let mut model = Model::default();
    let mut requests = Vec::new();
    for step in steps {
        match step {
            Step::Reserve { caller, estimates } => {
                let holds = limits.iter().zip(estimates).filter_map(|(limit, estimate)| {
                    let estimate =
                        if limit.quantity == Quantity::Concurrency { estimate.map(|_| 1) } else { *estimate };
                    Some(hold(limit, CALLERS[*caller], estimate?))
                });
                let request = request(holds.collect());
                if request.holds.is_empty() || model.in_flight.len() >= MOST_IN_FLIGHT {
                    continue;
                }
                let (refuses, expected) = model.reserve(&request);
                let admission = bed.reserve(&request).await;
                let seen: Vec<_> = admission.states().iter().map(|state| (state.settled, state.held)).collect();
                assert_eq!(seen, expected);
                match admission {
                    Admission::Refused { by, .. } => assert_eq!(Some(by), refuses),
                    Admission::Granted { .. } => {
                        assert_eq!(refuses, None);
                        promises_are_kept(bed, &request, &seen).await;
                        requests.push(request);
                    }
                }
            }
            Step::Settle { request, actual } if !requests.is_empty() => {
                let request: &ReserveRequest = request.get(&requests);
                let slot = |hold: &Hold| hold.limit.quantity == Quantity::Concurrency;
                let actual: Vec<_> = request
                    .holds
                    .iter()
                    .zip(actual)
                    .map(|(hold, actual)| if slot(hold) { 0 } else { *actual })
                    .collect();
                let settlement = settlement(request, &actual);
                model.settle(&settlement);
                bed.settle(&settlement).await;
            }
            Step::Renew { request } if !requests.is_empty() => {
                let request: &ReserveRequest = request.get(&requests);
                if model.in_flight.len() >= MOST_IN_FLIGHT {
                    continue;
                }
                model.renew(request);
                bed.renew(request).await;
            }
            Step::Wait { seconds } => {
                model.now += seconds;
                bed.advance(Duration::from_secs(*seconds)).await;
            }
            Step::NextWindow => {
                // Somebody asks in every window, so nothing is forgotten before it has expired.
                for counter in &counters {
                    bed.peek(counter).await;
                }
                model.in_flight.retain(|(_, end)| *end > model.now);
                model.next_window();
                bed.advance(ERA).await;
            }
            Step::Settle { .. } | Step::Renew { .. } => {}
        }
    }
    // Whoever looks makes the store give back what has expired, as any request does.
    model.in_flight.retain(|(_, end)| *end > model.now);
    let mut charged = 0;
    for counter in &counters {
        let seen = bed.peek(counter).await;
        assert_eq!(seen, model.state(counter));
        charged += seen.0;
    }
    assert_eq!(charged, model.charged, "everything that was settled is charged, once");

    for request in &requests {
        let nothing = settlement(request, &vec![0; request.holds.len()]);
        model.settle(&nothing);
        bed.settle(&nothing).await;
    }
    for counter in &counters {
        assert_eq!(bed.peek(counter).await.1, 0, "nothing is held at rest");
    }
}

/// Soft limits had something left before, strict ones are not overdrawn after.
async fn promises_are_kept(bed: &Bed, request: &ReserveRequest, before: &[(u64, u64)]) {
    for (hold, (settled, held)) in request.holds.iter().zip(before) {
        match hold.limit.mode {
            Mode::Soft => assert!(settled + held < hold.limit.amount),
            Mode::Strict => {
                let (settled, held) = bed.peek(hold).await;
                assert!(settled + held <= hold.limit.amount);
            }
            Mode::Check => assert!(*settled < hold.limit.amount),
        }
    }
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

#[test]
fn the_memory_store_answers_any_history_as_the_model_does() {
    for_any_history(512, async || Bed::memory());
}

#[test]
fn the_redis_store_answers_any_history_as_the_model_does() {
    for_any_history(64, async || Bed::redis().await);
}
