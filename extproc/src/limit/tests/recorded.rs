//! A history as it really went: several sidecars, one Redis, many requests in flight. Each answer is recorded with Redis's time,
//! and judged when all is over.
//!
//! Redis runs one script after the other, so everything of an earlier millisecond came before, and everything of a later one
//! after; within a millisecond, any order is possible.

use tokio::task::JoinSet;

use super::bed::{ERA, connect};
use super::redis_server::RedisServer;
use super::*;

const SIDECARS: usize = 4;
const IN_FLIGHT: usize = 128;
const CALLS: u64 = 8;

#[derive(Debug)]
struct Recorded {
    request: ReserveRequest,
    reserved_ms: u64,
    admission: Admission,
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    settled_ms: u64,
    actual: Vec<u64>,
}

fn limits() -> Vec<Arc<Limit>> {
    let requests = Limit { quantity: Quantity::Requests, ..limit("requests", 600, Mode::Soft) };
    let slots = Limit { quantity: Quantity::Concurrency, ..limit("slots", 90, Mode::Strict) };
    [limit("soft", 18_000, Mode::Soft), limit("strict", 17_000, Mode::Strict), requests, slots]
        .map(|limit| Arc::new(Limit { window: Window::Fixed(ERA), ..limit }))
        .into()
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One caller after the other: reserves, lives for a while, settles, now and then twice at once.
async fn call(store: RedisStore, limits: Vec<Arc<Limit>>, mut dice: Dice) -> Vec<Recorded> {
    let mut record = Vec::new();
    for _ in 0..CALLS {
        let estimate = 20 + dice.below(40);
        let holds = limits.iter().map(|limit| {
            let is_tokens = matches!(limit.quantity, Quantity::Tokens(_));
            hold(limit, "caller", if is_tokens { estimate } else { 1 })
        });
        let request = request(holds.collect());
        let (reserved_ms, admission) = store.reserve_at(&request).await.unwrap();
        let mut end = None;
        if matches!(admission, Admission::Granted { .. }) {
            for _ in 0..dice.below(4) {
                tokio::task::yield_now().await;
            }
            let used = estimate - 10 + dice.below(20);
            let actual: Vec<_> = request
                .holds
                .iter()
                .map(|hold| match hold.limit.quantity {
                    Quantity::Concurrency => 0,
                    Quantity::Requests => 1,
                    _ => used,
                })
                .collect();
            let settlement = settlement(&request, &actual);
            let settled_ms = if dice.below(4) == 0 {
                let (one, other) = tokio::join!(store.settle_at(&settlement), store.settle_at(&settlement));
                one.unwrap().min(other.unwrap())
            } else {
                store.settle_at(&settlement).await.unwrap()
            };
            end = Some(End { settled_ms, actual });
        }
        record.push(Recorded { request, reserved_ms, admission, end });
    }
    record
}

/// What the record says of one limit at one time: at least and at most.
struct Judge<'r> {
    record: &'r [Recorded],
    limit: usize,
}

impl Judge<'_> {
    fn settled(&self, at: u64) -> std::ops::RangeInclusive<u64> {
        let sum = |counts: &dyn Fn(u64) -> bool| {
            let ends = self.record.iter().filter_map(|recorded| recorded.end.as_ref());
            ends.filter(|end| counts(end.settled_ms)).map(|end| end.actual[self.limit]).sum::<u64>()
        };
        sum(&|settled| settled < at)..=sum(&|settled| settled <= at)
    }

    fn held(&self, at: u64, but: &ReservationId) -> std::ops::RangeInclusive<u64> {
        let sum = |counts: &dyn Fn(u64, u64) -> bool| {
            let others = self.record.iter().filter(|recorded| recorded.request.id != *but);
            let live = others.filter(|recorded| {
                recorded.end.as_ref().is_some_and(|end| counts(recorded.reserved_ms, end.settled_ms))
            });
            live.map(|recorded| recorded.request.holds[self.limit].amount()).sum::<u64>()
        };
        sum(&|from, to| from < at && at < to)..=sum(&|from, to| from <= at && at <= to)
    }
}

/// I1 to I7 and I10, on the record.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_sidecars_with_128_requests_in_flight_keep_all_promises() {
    let server = RedisServer::start().await;
    let stores: Vec<_> = (0..SIDECARS).map(|_| connect(&server)).collect();
    let limits = limits();
    let mut tasks = JoinSet::new();
    for worker in 0..IN_FLIGHT {
        tasks.spawn(call(stores[worker % SIDECARS].clone(), limits.clone(), Dice(worker as u64)));
    }
    let record: Vec<Recorded> = tasks.join_all().await.into_iter().flatten().collect();
    let holds: Vec<_> = limits.iter().map(|limit| hold(limit, "caller", 0)).collect();
    let at_rest = stores[0].peek(&holds).await.unwrap();
    judge(&record, &limits, &at_rest);
}

fn judge(record: &[Recorded], limits: &[Arc<Limit>], at_rest: &[CounterState]) {
    let granted = record.iter().filter(|recorded| recorded.end.is_some()).count();
    assert!(granted > 0 && granted < record.len(), "some are admitted and some are not: {granted}");
    for (index, limit) in limits.iter().enumerate() {
        let judge = Judge { record, limit: index };
        let mut overshoot = 0;
        let mut largest = 0;
        for Recorded { request, reserved_ms, admission, end } in record {
            let (state, hold) = (admission.states()[index], &request.holds[index]);
            // I4: refused requests are not in these sums.
            assert!(judge.settled(*reserved_ms).contains(&state.settled), "{limit:?} {state:?}");
            assert!(judge.held(*reserved_ms, &request.id).contains(&state.held), "{limit:?} {state:?}");
            let Some(end) = end else { continue };
            // I1, I2.
            assert!(hold.fits(&state), "{limit:?} {state:?}");
            overshoot += end.actual[index].saturating_sub(hold.amount());
            largest = largest.max(hold.amount());
        }
        // I3.
        let bound = match limit.mode {
            Mode::Strict => limit.amount,
            Mode::Soft | Mode::Check => limit.amount - 1 + largest,
        };
        assert!(at_rest[index].settled <= bound + overshoot, "{limit:?} {at_rest:?}");
        // I5, I6.
        assert_eq!(at_rest[index].settled, *judge.settled(u64::MAX).end());
        assert_eq!(at_rest[index].held, 0);
    }
    // I10.
    for Recorded { request, admission, .. } in record {
        if let Admission::Refused { by, states } = admission {
            let refuses = |(hold, state): (&Hold, &CounterState)| hold.is_refused(state);
            assert_eq!(request.holds.iter().zip(states).position(refuses), Some(*by));
        }
    }
}
