//! What this sidecar last knew of each counter, for the time when the store does not answer.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::name::CounterName;
use super::recent::Recent;
use crate::limit::{Admission, CounterState, Growth, Hold, OnStoreError, Quantity, ReserveRequest, Settlement};

/// Twice as many counters are known at most, about 8 MB. One that was forgotten counts as unused.
const HALF: usize = 16 * 1024;

#[derive(Debug)]
pub(super) struct KnownUse(Mutex<Recent<Seen>>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    state: CounterState,
    at: Instant,
    /// What was held then, of this sidecar's requests too: it is as good as used.
    held: u64,
}

impl KnownUse {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Recent::new(HALF)))
    }

    /// What the store answered to a request, when it was `asked`. `names` are those of its holds.
    pub(super) fn learn(&self, request: &ReserveRequest, names: &[CounterName], answer: &Admission, asked: Instant) {
        let granted = matches!(answer, Admission::Granted { .. });
        let mut seen = self.seen();
        for ((hold, name), state) in request.holds.iter().zip(names).zip(answer.states()) {
            if is_asked_for(hold) {
                let held = state.held.saturating_add(if granted { hold.amount() } else { 0 });
                seen.insert(*name, Seen { state: *state, at: asked, held });
            }
        }
    }

    /// A reservation of this sidecar has grown in the store.
    pub(super) fn grow(&self, growth: &Growth) {
        let mut seen = self.seen();
        for (from, to) in growth.from.holds.iter().zip(&growth.to.holds).filter(|(from, _)| is_asked_for(from)) {
            if let Some(seen) = seen.get_mut(CounterName::of(from)) {
                seen.held = seen.held.saturating_add(to.amount().saturating_sub(from.amount()));
            }
        }
    }

    /// A reservation of this sidecar in the store has ended, whether the store has been told yet or not.
    pub(super) fn settle(&self, settlement: &Settlement, now: Instant) {
        let mut seen = self.seen();
        for charge in settlement.charges.iter().filter(|charge| is_asked_for(&charge.hold)) {
            let name = CounterName::of(&charge.hold);
            let settled = seen.get_mut(name).map(|seen| seen.settle(&charge.hold, charge.actual, now));
            if settled == Some(None) {
                seen.remove(name);
            }
        }
    }

    /// What was used or held of each hold's counter, as far as is known; 0 once its window has ended.
    pub(super) fn of<'h>(&self, holds: impl Iterator<Item = &'h Hold>, now: Instant) -> Vec<u64> {
        let seen = self.seen();
        let known = |hold: &Hold| {
            let seen = seen.get(CounterName::of(hold))?;
            Some(seen.now(hold, now)?.used().saturating_add(seen.held))
        };
        holds.map(|hold| known(hold).unwrap_or(0)).collect()
    }

    /// How each hold's counter stands, as far as is known; `None` for what was never seen, is not kept, or has ended.
    pub(super) fn states(&self, holds: &[Hold], now: Instant) -> Vec<Option<CounterState>> {
        let seen = self.seen();
        let state = |hold: &Hold| {
            let seen = seen.get(CounterName::of(hold)).filter(|_| is_asked_for(hold))?;
            Some(CounterState { held: seen.held, ..seen.now(hold, now)? })
        };
        holds.iter().map(state).collect()
    }

    /// Forgets these holds' counters.
    pub(super) fn forget(&self, holds: &[Hold]) {
        let mut seen = self.seen();
        holds.iter().for_each(|hold| seen.remove(CounterName::of(hold)));
    }

    fn seen(&self) -> MutexGuard<'_, Recent<Seen>> {
        // Entries are replaced whole; a panic leaves no half of one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Its state now; none once its window has ended.
    fn now(&self, hold: &Hold, now: Instant) -> Option<CounterState> {
        self.state.after(now.saturating_duration_since(self.at), hold.limit.window.slides())
    }

    fn settle(&mut self, hold: &Hold, actual: u64, now: Instant) -> Option<()> {
        let state = self.now(hold, now)?;
        self.state = CounterState { settled: state.settled.saturating_add(actual), ..state };
        self.held = self.held.saturating_sub(hold.amount());
        self.at = now;
        Some(())
    }
}

/// Slots are no use: whoever is in flight will be gone.
fn is_asked_for(hold: &Hold) -> bool {
    hold.limit.on_store_error == OnStoreError::Local && hold.limit.quantity != Quantity::Concurrency
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::limit::tests::{hold, limit, request, settlement};
    use crate::limit::{Keeper, Limit, Mode, Window};

    const MINUTE: Duration = Duration::from_secs(60);

    fn local(window: Window) -> Hold {
        let local = Limit { window, on_store_error: OnStoreError::Local, ..limit("a", 300, Mode::Soft) };
        hold(&Arc::new(local), "caller", 40)
    }

    /// 100 settled and 30 held by others, 20 s before the window's end, when a request that holds 40 was granted.
    fn granted(hold: &Hold, start: Instant) -> (KnownUse, ReserveRequest) {
        let state = CounterState { settled: 100, held: 30, left: Duration::from_secs(20), ..CounterState::empty() };
        let (known, request) = (KnownUse::new(), request(vec![hold.clone()]));
        known.learn(&request, &[CounterName::of(hold)], &Admission::Granted { states: vec![state] }, start);
        (known, request)
    }

    fn used(known: &KnownUse, hold: &Hold, now: Instant) -> u64 {
        known.of(std::iter::once(hold), now)[0]
    }

    #[test]
    fn what_is_settled_and_what_is_held_is_known_until_the_window_ends() {
        let (hold, start) = (local(Window::Fixed(MINUTE)), Instant::now());
        let (known, request) = granted(&hold, start);
        assert_eq!(used(&known, &hold, start), 100 + 30 + 40);
        let later = start + Duration::from_secs(19);
        known.settle(&settlement(&request, &[55]), later);
        assert_eq!(used(&known, &hold, later), 155 + 30);
        assert_eq!(used(&known, &hold, start + Duration::from_secs(20)), 0);
    }

    #[test]
    fn what_a_request_grew_by_is_known() {
        let (hold, start) = (local(Window::Fixed(MINUTE)), Instant::now());
        let (known, request) = granted(&hold, start);
        let grown = ReserveRequest { holds: vec![Hold { estimate: 296, ..hold.clone() }], ..request.clone() };
        let growth =
            Growth { from: Arc::new(request), doubt: None, to: Arc::new(grown.clone()), keeper: Keeper::Store };
        known.grow(&growth);
        assert_eq!(used(&known, &hold, start), 100 + 30 + 296);
        known.settle(&settlement(&grown, &[300]), start);
        assert_eq!(used(&known, &hold, start), 400 + 30);
    }

    #[test]
    fn a_sliding_window_lets_go_of_it_bit_by_bit() {
        let (hold, start) = (local(Window::Sliding(MINUTE)), Instant::now());
        let (known, request) = granted(&hold, start);
        known.settle(&settlement(&request, &[60]), start);
        // In the middle of the next bucket.
        assert_eq!(used(&known, &hold, start + Duration::from_secs(50)), 160 / 2 + 30);
        assert_eq!(used(&known, &hold, start + Duration::from_secs(80)), 0);
    }

    #[test]
    fn only_what_will_be_asked_for_is_kept_and_it_can_be_forgotten() {
        let start = Instant::now();
        let slots = Limit { quantity: Quantity::Concurrency, ..Limit::clone(&local(Window::Fixed(MINUTE)).limit) };
        let denies = Limit { on_store_error: OnStoreError::Deny, ..slots.clone() };
        for other in [slots, denies] {
            let hold = hold(&Arc::new(other), "caller", 1);
            assert_eq!(used(&granted(&hold, start).0, &hold, start), 0);
        }
        let hold = local(Window::Fixed(MINUTE));
        let (known, _) = granted(&hold, start);
        known.forget(std::slice::from_ref(&hold));
        assert_eq!(used(&known, &hold, start), 0);
    }
}
