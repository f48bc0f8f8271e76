//! What the store is still to be told: bounded, and worth telling. No I/O.
//!
//! Settlements of reservations that the store keeps wait one by one, as each ends a lease. What was admitted without it is
//! summed up, one sum for each counter, so an outage may be as long as it likes. Sums roll with their windows as counters do:
//! what was used in a window that has ended is never charged in a later one.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::degraded::Untold;
use super::name::CounterName;
use crate::limit::counter::Counter;
use crate::limit::store::{LEASE, TOMBSTONE_MS};
use crate::limit::{Charge, Hold, Keeper, ReservationId, Settlement, StoreError, Window};

/// Settlements and sums, about half a kilobyte each.
const CAPACITY: usize = 16 * 1024;

/// A settlement that may have reached the store is tried again for so long. The store remembers it a little longer: the first
/// attempt began a deadline earlier, and the last may arrive one later.
const DOUBT: Duration = Duration::from_millis(TOMBSTONE_MS - 2_000);

/// Only what has waited for so long is looked through for windows that have ended: a store that answers charges what it is
/// told in the window that it is told in.
const STALE: Duration = Duration::from_secs(1);

/// The moment that something happens: by the clock that never jumps, and by the one that windows go by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) instant: Instant,
    /// Since the epoch.
    pub(super) ms: u64,
}

#[derive(Debug)]
pub(super) struct Backlog {
    capacity: usize,
    waiting: VecDeque<Waiting>,
    sums: HashMap<CounterName, Sum>,
    /// Taken and neither done nor put back.
    taken: usize,
    losses: Losses,
    pruned: Option<Instant>,
}

/// What was given up so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Losses {
    /// Settlements that should have been charged.
    pub(super) lost: u64,
    /// Settlements that were of no use any more: their windows and leases had ended.
    pub(super) expired: u64,
}

/// A settlement that is to be sent.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) settlement: Settlement,
    since: Moment,
    /// Until when it may be tried again, where it may have reached the store.
    doubtful_until: Option<Instant>,
    /// Of a sum.
    _untold: Option<Untold>,
}

/// What was used of one counter without the store.
#[derive(Debug)]
struct Sum {
    hold: Hold,
    counter: Counter,
    untold: Untold,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self {
            capacity: CAPACITY,
            waiting: VecDeque::new(),
            sums: HashMap::new(),
            taken: 0,
            losses: Losses::default(),
            pruned: None,
        }
    }

    /// The end of a reservation that the store keeps. Where there is no room for it, the one that has waited longest is
    /// given up: its lease and its window are the likeliest to have ended.
    pub(super) fn push(&mut self, settlement: Settlement, now: Moment) {
        self.make_room(now);
        if self.len() >= self.capacity
            && let Some(mut oldest) = self.waiting.pop_front()
        {
            let count = if oldest.is_worth_telling(now) { &mut self.losses.lost } else { &mut self.losses.expired };
            *count += 1;
        }
        if self.len() >= self.capacity {
            self.losses.lost += 1;
            return;
        }
        self.waiting.push_back(Waiting { settlement, since: now, doubtful_until: None, _untold: None });
    }

    /// What was used by a reservation that the store knows nothing of.
    pub(super) fn add(&mut self, settlement: &Settlement, now: Moment, untold: impl Fn() -> Untold) {
        let mut is_lost = false;
        for Charge { hold, actual } in settlement.charges.iter().filter(|charge| charge.actual > 0) {
            let name = CounterName::of(hold);
            if !self.sums.contains_key(&name) {
                self.make_room(now);
                if self.len() >= self.capacity {
                    is_lost = true;
                    continue;
                }
            }
            let sum = self.sums.entry(name).or_insert_with(|| Sum {
                hold: hold.clone(),
                counter: Counter::new(&hold.limit.window, now.ms),
                untold: untold(),
            });
            sum.counter.roll(&hold.limit.window, now.ms);
            sum.counter.charge(*actual);
        }
        self.losses.lost += u64::from(is_lost);
    }

    /// Takes up to so many settlements to be sent; each is to be handed to [`Self::done`].
    pub(super) fn take(&mut self, at_most: usize, now: Moment) -> Vec<Waiting> {
        let mut batch = Vec::new();
        while batch.len() < at_most
            && let Some(mut waiting) = self.waiting.pop_front()
        {
            if waiting.doubtful_until.is_some_and(|until| until <= now.instant) {
                self.losses.lost += 1;
            } else if waiting.is_worth_telling(now) {
                batch.push(waiting);
            } else {
                self.losses.expired += 1;
            }
        }
        let names: Vec<_> = self.sums.keys().take(at_most - batch.len()).copied().collect();
        for sum in names.iter().filter_map(|name| self.sums.remove(name)) {
            match sum.settlement(now) {
                Some(waiting) => batch.push(waiting),
                None => self.losses.expired += 1,
            }
        }
        self.taken += batch.len();
        batch
    }

    /// What became of one that was taken.
    pub(super) fn done(&mut self, mut waiting: Waiting, outcome: &Result<(), StoreError>, now: Moment) {
        self.taken = self.taken.saturating_sub(1);
        match outcome {
            Ok(()) => return,
            Err(StoreError::Unreachable(_) | StoreError::NoRoom(_)) => {}
            Err(StoreError::Timeout(_) | StoreError::Failed(_)) => {
                waiting.doubtful_until.get_or_insert(now.instant + DOUBT);
            }
        }
        self.waiting.push_back(waiting);
    }

    /// What waits or is on its way.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.sums.len() + self.taken
    }

    pub(super) fn losses(&self) -> Losses {
        self.losses
    }

    /// Lets sums go that are of no use any more, when there is no room; not with every call, as it looks at all of them.
    fn make_room(&mut self, now: Moment) {
        let is_early = self.pruned.is_some_and(|pruned| now.instant.saturating_duration_since(pruned) < STALE);
        if self.len() < self.capacity || is_early {
            return;
        }
        self.pruned = Some(now.instant);
        let before = self.sums.len();
        self.sums.retain(|_, sum| sum.used(now) > 0);
        self.losses.expired += (before - self.sums.len()) as u64;
    }
}

impl Waiting {
    /// Takes out what was used in windows that have ended, if it has waited for long. Whether anything is left: a charge, or
    /// a lease that the store may still hold.
    fn is_worth_telling(&mut self, now: Moment) -> bool {
        let age = now.instant.saturating_duration_since(self.since.instant);
        if age >= STALE {
            for Charge { hold, actual } in &mut self.settlement.charges {
                *actual = worth(&hold.limit.window, *actual, self.since, now);
            }
        }
        age <= LEASE || self.settlement.charges.iter().any(|charge| charge.actual > 0)
    }
}

/// What is left now of what was used `since`.
fn worth(window: &Window, actual: u64, since: Moment, now: Moment) -> u64 {
    let mut counter = Counter::new(window, since.ms);
    counter.charge(actual);
    counter.roll(window, now.ms);
    counter.state(window, now.ms).used()
}

impl Sum {
    fn used(&mut self, now: Moment) -> u64 {
        let window = &self.hold.limit.window;
        self.counter.roll(window, now.ms);
        self.counter.state(window, now.ms).used()
    }

    /// As a settlement of a reservation that holds nothing.
    fn settlement(mut self, now: Moment) -> Option<Waiting> {
        let actual = Some(self.used(now)).filter(|used| *used > 0)?;
        let settlement = Settlement {
            id: ReservationId::random(),
            charges: vec![Charge { hold: self.hold, actual }],
            doubt: None,
            keeper: Keeper::Store,
        };
        Some(Waiting { settlement, since: now, doubtful_until: None, _untold: Some(self.untold) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::degraded::Degraded;
    use super::*;
    use crate::limit::tests::{hold, limit, request, settlement};
    use crate::limit::{Limit, Mode};

    const MINUTE: Duration = Duration::from_secs(60);

    fn begin() -> Moment {
        Moment { instant: Instant::now(), ms: 1_000 * MINUTE.as_millis() as u64 }
    }

    impl Moment {
        fn after(self, ms: u64) -> Self {
            Self { instant: self.instant + Duration::from_millis(ms), ms: self.ms + ms }
        }
    }

    fn in_window(window: Window, actual: u64) -> Settlement {
        let limit = Arc::new(Limit { window, ..limit("a", 300, Mode::Soft) });
        settlement(&request(vec![hold(&limit, "caller", 40)]), &[actual])
    }

    fn minute(actual: u64) -> Settlement {
        in_window(Window::Fixed(MINUTE), actual)
    }

    fn charges(batch: &[Waiting]) -> Vec<u64> {
        batch.iter().map(|waiting| waiting.settlement.charges[0].actual).collect()
    }

    fn of(backlog: &Backlog) -> (u64, u64, usize) {
        (backlog.losses.lost, backlog.losses.expired, backlog.len())
    }

    #[test]
    fn what_did_not_reach_the_store_waits_for_as_long_as_its_window() {
        let (start, mut backlog) = (begin(), Backlog::new());
        backlog.push(minute(30), start);
        for ms in [0, 20_000, 40_000, 59_999] {
            let mut batch = backlog.take(10, start.after(ms));
            assert_eq!(charges(&batch), [30]);
            backlog.done(batch.remove(0), &Err(StoreError::Unreachable(String::new())), start.after(ms));
        }
        assert_eq!(backlog.take(10, start.after(60_000)).len(), 0);
        assert_eq!(of(&backlog), (0, 1, 0));
    }

    #[test]
    fn a_lease_is_ended_even_where_the_window_has() {
        let (start, mut backlog) = (begin().after(50_000), Backlog::new());
        backlog.push(minute(30), start);
        let batch = backlog.take(10, start.after(20_000));
        assert_eq!(charges(&batch), [0]);
    }

    #[test]
    fn what_waits_but_a_moment_is_charged_whatever_the_window() {
        let (start, mut backlog) = (begin().after(59_999), Backlog::new());
        backlog.push(minute(30), start);
        assert_eq!(charges(&backlog.take(10, start.after(900))), [30]);
    }

    #[test]
    fn what_may_have_reached_the_store_is_tried_again_only_while_it_is_remembered() {
        let (start, mut backlog) = (begin(), Backlog::new());
        backlog.push(minute(30), start);
        for ms in [0, 5_000, 7_999] {
            let mut batch = backlog.take(10, start.after(ms));
            assert_eq!(batch.len(), 1, "{ms}");
            // The first attempt began the doubt; that a later one surely failed does not end it.
            let error = match ms {
                0 => StoreError::Timeout(Duration::ZERO),
                _ => StoreError::Unreachable(String::new()),
            };
            backlog.done(batch.remove(0), &Err(error), start.after(ms));
        }
        assert_eq!(backlog.take(10, start.after(8_000)).len(), 0);
        assert_eq!(of(&backlog), (1, 0, 0));
    }

    #[test]
    fn what_was_used_without_the_store_is_one_sum_for_each_counter_and_rolls_with_its_window() {
        let (start, degraded) = (begin(), Degraded::new());
        let untold = || degraded.untold();
        let mut backlog = Backlog::new();
        for _ in 0..100 {
            backlog.add(&minute(3), start, untold);
        }
        assert_eq!(backlog.len(), 1);
        assert_eq!(charges(&backlog.take(10, start.after(59_999))), [300]);

        backlog.add(&minute(30), start, untold);
        backlog.add(&minute(4), start.after(60_000), untold);
        assert_eq!(charges(&backlog.take(10, start.after(119_999))), [4]);
        backlog.add(&minute(30), start, untold);
        assert_eq!(backlog.take(10, start.after(60_000)).len(), 0);
        assert_eq!(backlog.losses.expired, 1);

        let sliding = in_window(Window::Sliding(MINUTE), 30);
        backlog.add(&sliding, start, untold);
        backlog.add(&sliding, start.after(60_000), untold);
        // In the middle of the second bucket.
        assert_eq!(charges(&backlog.take(10, start.after(90_000))), [30 + 15]);
    }

    #[test]
    fn a_full_backlog_gives_up_the_oldest_and_counts_what_is_lost() {
        let (start, degraded) = (begin(), Degraded::new());
        let mut backlog = Backlog { capacity: 2, ..Backlog::new() };
        for actual in [1, 2, 3] {
            backlog.push(minute(actual), start);
        }
        assert_eq!(of(&backlog), (1, 0, 2));
        assert_eq!(charges(&backlog.take(10, start)), [2, 3]);

        // Those two are on their way: nothing more fits, be it a settlement or a sum.
        backlog.push(minute(4), start);
        backlog.add(&minute(5), start, || degraded.untold());
        assert_eq!(of(&backlog), (3, 0, 2));
    }

    #[test]
    fn sums_of_windows_that_have_ended_make_room() {
        let (start, degraded) = (begin(), Degraded::new());
        let mut backlog = Backlog { capacity: 1, ..Backlog::new() };
        backlog.add(&minute(5), start, || degraded.untold());
        backlog.push(minute(6), start.after(60_000));
        assert_eq!(of(&backlog), (0, 1, 1));
        assert_eq!(charges(&backlog.take(10, start.after(60_000))), [6]);
    }
}
