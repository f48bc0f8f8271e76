//! The ledger of a sidecar that has no Redis: the same rules, in this process.
//!
//! One lock over everything, held for a few map operations and never across an await: a request's limits are checked and
//! written together. What time takes away (leases, tombstones, idle counters) is cleared a little with every operation, so
//! there is no background task and no long pause. Memory is bounded by a number of counters; beyond it, a request that would
//! need a new one is refused an answer, as by a Redis that is full: forgetting somebody's use would be a way around limits. A
//! caller that makes counters, by values of a header, gets no more of them than it leaves free for others.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::clock::{Clock, SystemClock};
use super::counter::Counter;
use super::store::{LEASE_MS, SWEEP_AT_MOST, SWEEP_BEFORE_REFUSAL, TOMBSTONE_MS};
use super::{
    Admission, CounterKey, CounterState, Growth, Hold, Mode, ReservationId, ReserveRequest, Settlement, Store,
    StoreError,
};

/// About 64 MB of counters.
const MAX_COUNTERS: usize = 256 * 1024;

/// Counters, leases and tombstones in memory. Clones share them.
#[derive(Clone)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    max_counters: usize,
    books: Arc<Mutex<Books>>,
}

impl MemoryStore {
    /// An empty store on the system's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store on a clock of the caller's.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { clock, max_counters: MAX_COUNTERS, books: Arc::default() }
    }

    /// Bounds the number of counters, which is 262,144 otherwise.
    #[must_use]
    pub fn with_max_counters(self, max_counters: usize) -> Self {
        Self { max_counters, ..self }
    }

    /// [`Store::reserve`], at once.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`] when the request needs a counter and there is no room for one.
    pub fn reserve_now(&self, request: &ReserveRequest) -> Result<Admission, StoreError> {
        let now = self.now_ms();
        let mut books = self.books();
        books.sweep(now);
        let (by, states) = books.first_refusal(&request.holds, now, |_, hold, state| hold.is_refused(state));
        if let Some(by) = by {
            return Ok(Admission::Refused { by, states });
        }
        books.check_room(request, self.max_counters)?;
        books.hold(request, now);
        Ok(Admission::Granted { states })
    }

    /// [`Store::settle`], at once.
    pub fn settle_now(&self, settlement: &Settlement) -> Vec<CounterState> {
        let now = self.now_ms();
        let mut books = self.books();
        books.sweep_tombstones(now);
        if !books.is_settled(&settlement.id, now) {
            books.settle(settlement, now);
        }
        books.states(settlement.charges.iter().map(|charge| &charge.hold), now)
    }

    /// [`Store::grow`], at once. What is held is known here, so no doubt about it matters.
    pub fn grow_now(&self, growth: &Growth) -> Admission {
        let now = self.now_ms();
        let mut books = self.books();
        if books.is_settled(&growth.to.id, now) {
            return Admission::Granted { states: books.states(&growth.to.holds, now) };
        }
        if let Some(lease) = books.end_lease(&growth.to.id) {
            books.release(&lease.holds);
        }
        books.sweep(now);
        let (by, states) = books.first_refusal(&growth.to.holds, now, |index, to, state| {
            let grows = growth.from.holds.get(index).is_some_and(|from| to.amount() > from.amount());
            grows && to.is_capped() && !Mode::Strict.admits(to.ceiling, state.used(), state.held, to.amount())
        });
        match by {
            // Even where the lease had ended: the request goes on, with what it held.
            Some(by) => {
                books.hold(&growth.from, now);
                Admission::Refused { by, states }
            }
            None => {
                books.hold(&growth.to, now);
                Admission::Granted { states }
            }
        }
    }

    /// [`Store::peek`], at once.
    pub fn peek_now(&self, holds: &[Hold]) -> Vec<CounterState> {
        let now = self.now_ms();
        let mut books = self.books();
        books.sweep_leases(now, SWEEP_BEFORE_REFUSAL);
        books.states(holds, now)
    }

    /// [`Store::reset`], at once.
    pub fn reset_now(&self, holds: &[Hold]) {
        let now = self.now_ms();
        let mut books = self.books();
        for hold in holds {
            books.update(hold, None, now, Counter::reset);
        }
    }

    /// Reservations that are held now.
    pub fn reservations(&self) -> usize {
        self.books().leases.len()
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.now().as_millis()).unwrap_or(u64::MAX)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing in here panics half-way through a change; if it did, counting on is better than failing every request.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("max_counters", &self.max_counters).finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    async fn reserve(&self, request: &ReserveRequest) -> Result<Admission, StoreError> {
        self.reserve_now(request)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Vec<CounterState>, StoreError> {
        Ok(self.settle_now(settlement))
    }

    async fn grow(&self, growth: &Growth) -> Result<Admission, StoreError> {
        Ok(self.grow_now(growth))
    }

    async fn peek(&self, holds: &[Hold]) -> Result<Vec<CounterState>, StoreError> {
        Ok(self.peek_now(holds))
    }

    async fn reset(&self, holds: &[Hold]) -> Result<(), StoreError> {
        self.reset_now(holds);
        Ok(())
    }
}

#[derive(Default)]
struct Books {
    counters: HashMap<CounterId, Slot>,
    /// How many of them each key was the first to need.
    made_by: HashMap<Owner, usize>,
    /// When each counter is looked at next; it is gone then, unless it was used in the meantime.
    idle: BinaryHeap<Reverse<(u64, CounterId)>>,
    leases: HashMap<ReservationId, Lease>,
    /// The leases by their end.
    lease_ends: BTreeSet<(u64, ReservationId)>,
    /// Settled reservations, until when they are remembered.
    tombstones: HashMap<ReservationId, u64>,
    /// The tombstones in the order in which they were set, which is that of their end.
    tombstone_ends: VecDeque<(u64, ReservationId)>,
}

/// A limit's counter: the window is part of it, the amount is not, so that a changed amount acts on the next request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct CounterId {
    limit: Arc<str>,
    window: Arc<str>,
    counter: CounterKey,
}

impl CounterId {
    fn of(hold: &Hold) -> Self {
        Self {
            limit: Arc::clone(&hold.limit.id),
            window: hold.limit.window.to_string().into(),
            counter: hold.counter.clone(),
        }
    }
}

struct Slot {
    counter: Counter,
    expires: u64,
    owner: Owner,
}

/// The id of the key whose request made a counter; `None` is everybody without a key.
type Owner = Option<Arc<str>>;

struct Lease {
    expires: u64,
    holds: Vec<(CounterId, u64)>,
}

impl Books {
    /// Whether there is room for the counters that a request would make. Each key may have made as many as are free: one alone
    /// gets half of the room, of two that flood it each a third, and a third of it is left.
    fn check_room(&self, request: &ReserveRequest, max_counters: usize) -> Result<(), StoreError> {
        let new = request.holds.iter().filter(|hold| !self.counters.contains_key(&CounterId::of(hold))).count();
        if new == 0 {
            return Ok(());
        }
        let free = max_counters.saturating_sub(self.counters.len());
        let made = self.made_by.get(&request.key_id).copied().unwrap_or(0);
        if new > free {
            return Err(StoreError::NoRoom(format!("there are {max_counters}")));
        }
        // The first ones need no comparison: a table that is nearly full still serves whoever is new.
        if made > 0 && made + new > free {
            return Err(StoreError::NoRoom(format!("one key uses {made}, and only {free} more are free")));
        }
        Ok(())
    }

    /// Holds what the request asks for, unless it is settled already: then it was the answer to the reservation that came
    /// too late.
    fn hold(&mut self, request: &ReserveRequest, now: u64) {
        if self.is_settled(&request.id, now) {
            return;
        }
        let mut holds = Vec::new();
        for hold in &request.holds {
            // Of a limit that only checks, too: whoever is charged afterwards, this key has made the counter.
            self.update(hold, request.key_id.as_ref(), now, |counter| counter.hold(hold.amount()));
            if hold.amount() > 0 {
                holds.push((CounterId::of(hold), hold.amount()));
            }
        }
        if !holds.is_empty() {
            self.begin_lease(request.id.clone(), holds, now);
        }
    }

    fn settle(&mut self, settlement: &Settlement, now: u64) {
        self.bury(settlement.id.clone(), now);
        if let Some(lease) = self.end_lease(&settlement.id) {
            self.release(&lease.holds);
        }
        for charge in settlement.charges.iter().filter(|charge| charge.actual > 0) {
            self.update(&charge.hold, None, now, |counter| counter.charge(charge.actual));
        }
    }

    fn release(&mut self, holds: &[(CounterId, u64)]) {
        for (id, amount) in holds {
            if let Some(slot) = self.counters.get_mut(id) {
                slot.counter.release(*amount);
            }
        }
    }

    /// `by` is the key whose request needs the counter, where that is known.
    fn update(&mut self, hold: &Hold, by: Option<&Arc<str>>, now: u64, change: impl FnOnce(&mut Counter)) {
        let mut counter = self.counter(hold, now);
        change(&mut counter);
        let id = CounterId::of(hold);
        let expires = now.saturating_add(hold.limit.time_to_live_ms());
        match self.counters.entry(id) {
            Entry::Occupied(mut slot) => {
                let slot = slot.get_mut();
                (slot.counter, slot.expires) = (counter, expires);
            }
            Entry::Vacant(slot) => {
                let owner = by.cloned();
                *self.made_by.entry(owner.clone()).or_default() += 1;
                self.idle.push(Reverse((expires, slot.key().clone())));
                slot.insert(Slot { counter, expires, owner });
            }
        }
    }

    fn forget(&mut self, id: &CounterId) {
        let Some(Slot { owner, .. }) = self.counters.remove(id) else { return };
        if let Entry::Occupied(mut made) = self.made_by.entry(owner) {
            *made.get_mut() -= 1;
            if *made.get() == 0 {
                made.remove();
            }
        }
    }

    fn begin_lease(&mut self, id: ReservationId, holds: Vec<(CounterId, u64)>, now: u64) {
        let expires = now.saturating_add(LEASE_MS);
        self.lease_ends.insert((expires, id.clone()));
        self.leases.insert(id, Lease { expires, holds });
    }

    fn end_lease(&mut self, id: &ReservationId) -> Option<Lease> {
        let (id, lease) = self.leases.remove_entry(id)?;
        let end = (lease.expires, id);
        self.lease_ends.remove(&end);
        Some(lease)
    }

    fn bury(&mut self, id: ReservationId, now: u64) {
        let until = now.saturating_add(TOMBSTONE_MS);
        self.tombstone_ends.push_back((until, id.clone()));
        self.tombstones.insert(id, until);
    }

    /// The first hold that `refuses`, and how the counters stand: with nothing of them held by expired leases, if it is
    /// refused.
    fn first_refusal(
        &mut self,
        holds: &[Hold],
        now: u64,
        refuses: impl Fn(usize, &Hold, &CounterState) -> bool,
    ) -> (Option<usize>, Vec<CounterState>) {
        let first = |books: &Self| {
            let states = books.states(holds, now);
            let by =
                holds.iter().zip(&states).enumerate().position(|(index, (hold, state))| refuses(index, hold, state));
            (by, states)
        };
        let found = first(self);
        if found.0.is_none() {
            return found;
        }
        self.sweep_leases(now, SWEEP_BEFORE_REFUSAL);
        first(self)
    }

    fn sweep(&mut self, now: u64) {
        self.sweep_leases(now, SWEEP_AT_MOST);
        self.sweep_tombstones(now);
        self.sweep_counters(now);
    }

    fn sweep_leases(&mut self, now: u64, at_most: usize) {
        for _ in 0..at_most {
            let Some((_, id)) = self.lease_ends.first().filter(|(expires, _)| *expires <= now).cloned() else {
                return;
            };
            if let Some(lease) = self.end_lease(&id) {
                self.release(&lease.holds);
            }
        }
    }

    fn sweep_tombstones(&mut self, now: u64) {
        for _ in 0..SWEEP_AT_MOST {
            let Some((until, id)) = self.tombstone_ends.pop_front_if(|(until, _)| *until <= now) else {
                return;
            };
            // Set anew in the meantime, it has another entry further back.
            if self.tombstones.get(&id) == Some(&until) {
                self.tombstones.remove(&id);
            }
        }
    }

    fn sweep_counters(&mut self, now: u64) {
        for _ in 0..SWEEP_AT_MOST {
            let Some(Reverse((due, _))) = self.idle.peek() else {
                return;
            };
            if *due > now {
                return;
            }
            let Some(Reverse((_, id))) = self.idle.pop() else {
                return;
            };
            match self.counters.get(&id).map(|slot| slot.expires) {
                Some(expires) if expires > now => self.idle.push(Reverse((expires, id))),
                _ => self.forget(&id),
            }
        }
    }

    fn states<'h>(&self, holds: impl IntoIterator<Item = &'h Hold>, now: u64) -> Vec<CounterState> {
        holds.into_iter().map(|hold| self.counter(hold, now).state(&hold.limit.window, now)).collect()
    }

    /// The counter of a hold as it stands now, without writing anything.
    fn counter(&self, hold: &Hold, now: u64) -> Counter {
        let window = &hold.limit.window;
        let Some(slot) = self.counters.get(&CounterId::of(hold)) else {
            return Counter::new(window, now);
        };
        let mut counter = slot.counter;
        counter.roll(window, now);
        counter
    }

    fn is_settled(&self, id: &ReservationId, now: u64) -> bool {
        self.tombstones.get(id).is_some_and(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{Hand, hold, limit, renewal, request, settlement};
    use super::super::{Dimension, Limit, Mode};
    use super::*;

    fn store(hand: &Arc<Hand>) -> MemoryStore {
        MemoryStore::with_clock(Arc::clone(hand) as Arc<dyn Clock>)
    }

    #[test]
    fn an_idle_store_is_empty_again() {
        let hand = Arc::new(Hand::default());
        let store = store(&hand);
        let limit = Arc::new(limit("a", 1_000_000, Mode::Soft));
        for caller in 0..100 {
            let request = request(vec![hold(&limit, &format!("caller-{caller}"), 40)]);
            assert!(matches!(store.reserve_now(&request), Ok(Admission::Granted { .. })));
            if caller % 2 == 0 {
                store.settle_now(&settlement(&request, &[30]));
            }
        }
        hand.advance(Duration::from_secs(2 * 60 + 30));
        // Each operation clears a little; a refused one would as well.
        for _ in 0..20 {
            assert!(store.reserve_now(&request(vec![])).is_ok());
        }
        let books = store.books();
        assert_eq!((books.counters.len(), books.idle.len(), books.made_by.len()), (0, 0, 0));
        assert_eq!((books.leases.len(), books.lease_ends.len()), (0, 0));
        assert_eq!((books.tombstones.len(), books.tombstone_ends.len()), (0, 0));
    }

    #[test]
    fn a_counter_outlives_its_windows_while_it_is_used() {
        let hand = Arc::new(Hand::default());
        let store = store(&hand);
        let limit = Arc::new(Limit { per: vec![Dimension::Key], ..limit("a", 300, Mode::Soft) });
        let request = request(vec![hold(&limit, "caller", 40)]);
        store.reserve_now(&request).unwrap();
        for _ in 0..60 {
            hand.advance(Duration::from_secs(10));
            store.grow_now(&renewal(&request));
            store.reserve_now(&super::super::tests::request(vec![])).unwrap();
        }
        let seen = store.reserve_now(&super::super::tests::request(vec![hold(&limit, "caller", 1)])).unwrap();
        assert_eq!(seen.states()[0].held, 40);
    }

    #[test]
    fn a_full_store_serves_those_it_knows_and_forgets_nobody() {
        let hand = Arc::new(Hand::default());
        let store = store(&hand).with_max_counters(1);
        let limit = Arc::new(limit("a", 300, Mode::Soft));
        store.reserve_now(&request(vec![hold(&limit, "first", 40)])).unwrap();
        assert!(matches!(store.reserve_now(&request(vec![hold(&limit, "second", 40)])), Err(StoreError::NoRoom(_))));
        let seen = store.reserve_now(&request(vec![hold(&limit, "first", 40)])).unwrap();
        assert_eq!(seen.states()[0].held, 40);
    }

    #[test]
    fn a_key_that_makes_counters_without_end_leaves_room_for_the_others() {
        [Mode::Soft, Mode::Check].into_iter().for_each(leaves_room_for_the_others);
    }

    fn leaves_room_for_the_others(mode: Mode) {
        let hand = Arc::new(Hand::default());
        let store = store(&hand).with_max_counters(300);
        let limit = Arc::new(limit("a", 300, mode));
        let ask = |key: &str, value: usize| {
            let holds = vec![hold(&limit, &format!("{key} {value}"), 40)];
            let asked = ReserveRequest { key_id: Some(key.into()), ..request(holds) };
            let admission = store.reserve_now(&asked)?;
            store.settle_now(&settlement(&asked, &[1]));
            Ok::<_, StoreError>(admission)
        };
        let flood = |key: &str| (0..1_000).filter(|value| ask(key, *value).is_ok()).count();
        assert_eq!(flood("hostile"), 150);
        assert_eq!(flood("another"), 75);
        for neighbour in 0..20 {
            assert!(ask(&format!("key {neighbour}"), 0).is_ok(), "{neighbour}");
        }
        // What it made is still its own to use, and free again once nobody uses it.
        assert!(ask("hostile", 149).is_ok());
        hand.advance(Duration::from_secs(2 * 60 + 30));
        (0..100).for_each(|_| drop(store.reserve_now(&request(vec![]))));
        assert_eq!(flood("another"), 150);
    }
}
