//! Refusals that are certain for a while: where settled use alone is above a limit, asking the store again is of no use until
//! time has brought it down.
//!
//! What is remembered is how the counter stood, not the verdict: each request is compared with its own ceiling and hold, so a
//! limit that was changed acts at once. Only a reset by another sidecar is learnt late, hence the five seconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::name::CounterName;
use super::recent::Recent;
use crate::limit::{CounterState, Enforcement, Hold, Quantity, Refused, ReserveRequest};

/// A refusal is not believed for longer.
const LONGEST: Duration = Duration::from_secs(5);

/// Twice as many counters are remembered at most, about 4 MB. Whoever is not among them costs a round trip.
const HALF: usize = 8 * 1024;

#[derive(Debug)]
pub(super) struct Denials {
    seen: Mutex<Recent<Seen>>,
    epoch: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    state: CounterState,
    at: Instant,
}

/// What was learnt before a reload or a reset is not remembered after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch(u64);

impl Denials {
    pub(super) fn new() -> Self {
        Self { seen: Mutex::new(Recent::new(HALF)), epoch: AtomicU64::new(0) }
    }

    /// The refusal of a request that the store would refuse as well. `names` are those of its holds.
    pub(super) fn refusal(
        &self,
        request: &Arc<ReserveRequest>,
        names: &[CounterName],
        now: Instant,
    ) -> Option<Refused> {
        let states: Vec<_> = {
            let seen = self.seen();
            let stands = |(hold, name): (&Hold, &CounterName)| seen.get(*name)?.stands(hold, now);
            request.holds.iter().zip(names).map(stands).collect()
        };
        let by = states.iter().position(Option::is_some)?;
        Some(Refused { request: Arc::clone(request), by, states })
    }

    /// To be asked for before the store is, and handed to [`Self::learn`] after.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// How the counters of a refused request stood, when it was `asked` for.
    pub(super) fn learn(
        &self,
        holds: &[Hold],
        names: &[CounterName],
        states: &[CounterState],
        asked: Instant,
        epoch: Epoch,
    ) {
        let mut seen = self.seen();
        if epoch != self.epoch() {
            return;
        }
        for ((hold, name), state) in holds.iter().zip(names).zip(states) {
            if refuses(hold, state) {
                seen.insert(*name, Seen { state: *state, at: asked });
            }
        }
    }

    /// Forgets everything, also what is being learnt now.
    pub(super) fn forget(&self) {
        let mut seen = self.seen();
        self.epoch.fetch_add(1, Ordering::Release);
        seen.clear();
    }

    fn seen(&self) -> MutexGuard<'_, Recent<Seen>> {
        // A table of hints: whatever a panic left of it is as good as any.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// How the counter stands now, if that refuses the hold. What others hold by now is not known.
    fn stands(&self, hold: &Hold, now: Instant) -> Option<CounterState> {
        let age = Some(now.saturating_duration_since(self.at)).filter(|age| *age < LONGEST)?;
        let state = self.state.after(age, hold.limit.window.slides())?;
        refuses(hold, &state).then_some(CounterState { held: 0, ..state })
    }
}

/// Whether settled use alone does.
fn refuses(hold: &Hold, state: &CounterState) -> bool {
    hold.limit.enforcement == Enforcement::Refuse
        && hold.limit.quantity != Quantity::Concurrency
        && !hold.fits(&CounterState { held: 0, ..*state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::tests::{hold, limit, request};
    use crate::limit::{Limit, Mode, Window};

    const MINUTE: Duration = Duration::from_secs(60);

    struct Bench {
        denials: Denials,
        start: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self { denials: Denials::new(), start: Instant::now() }
        }

        fn learn(&self, hold: &Hold, state: CounterState) {
            let epoch = self.denials.epoch();
            self.denials.learn(std::slice::from_ref(hold), &[CounterName::of(hold)], &[state], self.start, epoch);
        }

        fn refusal_after(&self, holds: Vec<Hold>, ms: u64) -> Option<Refused> {
            let names: Vec<_> = holds.iter().map(CounterName::of).collect();
            self.denials.refusal(&Arc::new(request(holds)), &names, self.start + Duration::from_millis(ms))
        }

        fn refuses_after(&self, hold: &Hold, ms: u64) -> bool {
            self.refusal_after(vec![hold.clone()], ms).is_some()
        }
    }

    fn used(settled: u64, left: Duration) -> CounterState {
        CounterState { settled, left, held: 50, ..CounterState::empty() }
    }

    #[test]
    fn a_refusal_by_settled_use_holds_for_five_seconds_and_knows_only_its_own_limit() {
        let bench = Bench::new();
        let [wide, narrow] = ["wide", "narrow"].map(|id| hold(&Arc::new(limit(id, 300, Mode::Soft)), "caller", 40));
        bench.learn(&narrow, used(300, MINUTE));
        let refused = bench.refusal_after(vec![wide, narrow.clone()], 4_999).unwrap();
        assert_eq!((refused.by, refused.states[0]), (1, None));
        let state = refused.states[1].unwrap();
        assert_eq!((state.settled, state.held, state.left), (300, 0, MINUTE - Duration::from_millis(4_999)));
        assert!(!bench.refuses_after(&narrow, 5_000));
    }

    #[test]
    fn it_ends_with_the_window() {
        let bench = Bench::new();
        let hold = hold(&Arc::new(limit("a", 300, Mode::Soft)), "caller", 40);
        bench.learn(&hold, used(300, Duration::from_secs(2)));
        assert!(bench.refuses_after(&hold, 1_999) && !bench.refuses_after(&hold, 2_000));
    }

    #[test]
    fn in_a_sliding_window_it_ends_when_enough_has_slid_out() {
        let bench = Bench::new();
        let sliding = Limit { window: Window::Sliding(MINUTE), ..limit("a", 300, Mode::Soft) };
        let hold = hold(&Arc::new(sliding), "caller", 40);
        // 3000 in the bucket before, of which 50 go with each second.
        bench.learn(&hold, CounterState { settled: 200, previous: 3_000, ..used(0, Duration::from_secs(4)) });
        assert!(bench.refuses_after(&hold, 1_900) && !bench.refuses_after(&hold, 2_100));
    }

    #[test]
    fn a_changed_ceiling_or_another_hold_acts_at_once() {
        let bench = Bench::new();
        let strict = Arc::new(limit("a", 300, Mode::Strict));
        let large = hold(&strict, "caller", 40);
        bench.learn(&large, used(280, MINUTE));
        assert!(bench.refuses_after(&large, 0));
        assert!(!bench.refuses_after(&Hold { estimate: 20, ..large.clone() }, 0));
        assert!(!bench.refuses_after(&Hold { ceiling: 400, ..large }, 0));
    }

    #[test]
    fn what_is_in_flight_is_never_a_reason() {
        let bench = Bench::new();
        let held = CounterState { held: 300, ..used(0, MINUTE) };
        for changed in [
            limit("soft", 300, Mode::Soft),
            Limit { quantity: Quantity::Concurrency, ..limit("slots", 8, Mode::Strict) },
            Limit { enforcement: Enforcement::Shadow, ..limit("shadow", 1, Mode::Soft) },
        ] {
            let hold = hold(&Arc::new(changed), "caller", 1);
            bench.learn(&hold, held);
            assert!(!bench.refuses_after(&hold, 0), "{}", hold.limit.id);
        }
        let shadow = Limit { enforcement: Enforcement::Shadow, ..limit("shadow", 1, Mode::Soft) };
        let hold = hold(&Arc::new(shadow), "caller", 1);
        bench.learn(&hold, used(300, MINUTE));
        assert!(!bench.refuses_after(&hold, 0));
    }

    #[test]
    fn what_was_asked_for_before_everything_was_forgotten_is_forgotten_too() {
        let bench = Bench::new();
        let hold = hold(&Arc::new(limit("a", 300, Mode::Soft)), "caller", 40);
        bench.learn(&hold, used(300, MINUTE));
        let before = bench.denials.epoch();
        bench.denials.forget();
        assert!(!bench.refuses_after(&hold, 0));
        let (holds, names) = ([hold.clone()], [CounterName::of(&hold)]);
        bench.denials.learn(&holds, &names, &[used(300, MINUTE)], bench.start, before);
        assert!(!bench.refuses_after(&hold, 0));
    }
}
