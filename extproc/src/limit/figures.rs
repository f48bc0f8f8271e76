//! What is told of each limit as figures: the highest share of it that a counter has used, as far as this sidecar has seen, and
//! what was charged beyond it. No caller is named, so there are as many figures as limits.
//!
//! A share is that of one counter: the one that stood highest when it was last seen. It falls as its window goes by.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Charge, CounterKey, CounterState, Enforcement, Hold, Limit, Quantity, Settlement};

/// The figures of all limits.
#[derive(Default)]
pub struct LimitFigures(Mutex<HashMap<Arc<str>, Seen>>);

/// Those of one limit.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitFigure {
    /// The limit's id.
    pub limit: Arc<str>,
    /// Whether it refuses.
    pub enforcement: Enforcement,
    /// The highest share of its amount that a counter has settled use of; more than 1 where that went over it. Of concurrency, which
    /// nobody uses up, it is always 0.
    pub highest_share: f64,
    /// Tokens that were charged when nothing was left; 0 for what is not counted in tokens, and in shadow, where nothing is kept to.
    pub overdraft_tokens: u64,
}

struct Seen {
    limit: Arc<Limit>,
    highest: Option<Highest>,
    overdraft_tokens: u64,
}

struct Highest {
    counter: CounterKey,
    state: CounterState,
    at: Instant,
}

impl LimitFigures {
    /// How the counters of these holds stood.
    pub fn stood<'h>(&self, holds: impl IntoIterator<Item = &'h Hold>, states: &[CounterState], now: Instant) {
        let mut seen = self.seen();
        for (hold, state) in holds.into_iter().zip(states) {
            of(&mut seen, &hold.limit).stood(hold, state, now);
        }
    }

    /// A reservation has ended, and its counters stand at `states`.
    pub fn settled(&self, settlement: &Settlement, states: &[CounterState], now: Instant) {
        let mut seen = self.seen();
        for (charge, state) in settlement.charges.iter().zip(states) {
            let figure = of(&mut seen, &charge.hold.limit);
            figure.stood(&charge.hold, state, now);
            figure.overdraft_tokens = figure.overdraft_tokens.saturating_add(overdraft(charge, state));
        }
    }

    /// These limits are in force, and no others. What is known of a counter holds against a changed amount.
    pub fn adopt<'l>(&self, limits: impl Iterator<Item = &'l Arc<Limit>>) {
        let mut seen = self.seen();
        let mut kept = HashSet::new();
        for limit in limits {
            if let Some(figure) = seen.get_mut(&limit.id) {
                figure.limit_is(limit);
                kept.insert(Arc::clone(&limit.id));
            }
        }
        seen.retain(|id, _| kept.contains(id));
    }

    /// As they are now, by the limits' ids.
    pub fn at(&self, now: Instant) -> Vec<LimitFigure> {
        let seen = self.seen();
        let figures = seen.values().map(|figure| LimitFigure {
            limit: Arc::clone(&figure.limit.id),
            enforcement: figure.limit.enforcement,
            highest_share: figure.highest.as_ref().map_or(0.0, |highest| highest.share(&figure.limit, now)),
            overdraft_tokens: figure.overdraft_tokens,
        });
        let mut figures: Vec<_> = figures.collect();
        figures.sort_unstable_by(|one, other| one.limit.cmp(&other.limit));
        figures
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<Arc<str>, Seen>> {
        // Nothing in here panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LimitFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitFigures").finish_non_exhaustive()
    }
}

fn of<'s>(seen: &'s mut HashMap<Arc<str>, Seen>, limit: &Arc<Limit>) -> &'s mut Seen {
    let new = || Seen { limit: Arc::clone(limit), highest: None, overdraft_tokens: 0 };
    seen.entry(Arc::clone(&limit.id)).or_insert_with(new)
}

impl Seen {
    fn stood(&mut self, hold: &Hold, state: &CounterState, now: Instant) {
        if hold.limit.quantity == Quantity::Concurrency {
            return;
        }
        let is_higher = match &self.highest {
            None => true,
            // What was seen later was not always asked later: a counter only rises within a bucket, but by a reset.
            Some(highest) if highest.counter == hold.counter => {
                let count = |state: &CounterState| (state.epoch, state.bucket, state.settled);
                count(state) >= count(&highest.state)
            }
            Some(highest) => state.used() >= highest.used(&self.limit, now),
        };
        if is_higher {
            self.highest = Some(Highest { counter: hold.counter.clone(), state: *state, at: now });
        }
    }

    fn limit_is(&mut self, limit: &Arc<Limit>) {
        // Another window or quantity has counters of its own, and what was used of the one says nothing of the other.
        if (&limit.window, &limit.quantity) != (&self.limit.window, &self.limit.quantity) {
            self.highest = None;
        }
        self.limit = Arc::clone(limit);
    }
}

impl Highest {
    fn used(&self, limit: &Limit, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.at);
        self.state.after(elapsed, limit.window.slides()).map_or(0, |state| state.used())
    }

    fn share(&self, limit: &Limit, now: Instant) -> f64 {
        self.used(limit, now) as f64 / limit.amount as f64
    }
}

/// What of a charge went over its limit, where its counter stands at `state` with it.
fn overdraft(charge: &Charge, state: &CounterState) -> u64 {
    let limit = &charge.hold.limit;
    let counts_tokens = matches!(limit.quantity, Quantity::Tokens(_) | Quantity::Weighted(_));
    if !counts_tokens || limit.enforcement == Enforcement::Shadow {
        return 0;
    }
    charge.actual.min(state.used().saturating_sub(limit.amount)).div_ceil(limit.quantity.scale())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{hold, limit, request, settlement};
    use super::super::{Mode, Window};
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn fixed(amount: u64) -> Arc<Limit> {
        Arc::new(Limit { window: Window::Fixed(MINUTE), ..limit("l", amount, Mode::Soft) })
    }

    fn at(settled: u64) -> CounterState {
        CounterState { settled, ..CounterState::empty() }
    }

    fn share(figures: &LimitFigures, now: Instant) -> f64 {
        figures.at(now)[0].highest_share
    }

    #[test]
    fn the_highest_counter_of_a_limit_is_told_until_its_window_ends() {
        let (figures, limit, now) = (LimitFigures::default(), fixed(300), Instant::now());
        for (caller, settled) in [("a", 30), ("b", 270), ("c", 150)] {
            figures.stood(&[hold(&limit, caller, 40)], &[at(settled)], now);
        }
        assert_eq!(share(&figures, now), 0.9);
        assert_eq!(share(&figures, now + MINUTE - Duration::from_secs(1)), 0.9);
        assert_eq!(share(&figures, now + MINUTE), 0.0);
        figures.stood(&[hold(&limit, "c", 40)], &[at(30)], now + MINUTE);
        assert_eq!(share(&figures, now + MINUTE), 0.1);
    }

    #[test]
    fn a_sliding_share_falls_as_time_goes_by() {
        let limit = Arc::new(Limit { window: Window::Sliding(MINUTE), ..limit("l", 300, Mode::Soft) });
        let (figures, now) = (LimitFigures::default(), Instant::now());
        figures.stood(&[hold(&limit, "a", 40)], &[at(300)], now);
        assert_eq!(share(&figures, now + MINUTE + MINUTE / 2), 0.5);
    }

    #[test]
    fn a_counter_that_was_reset_falls_and_what_was_seen_of_it_before_does_not_count() {
        let (figures, limit, now) = (LimitFigures::default(), fixed(300), Instant::now());
        let of_caller = [hold(&limit, "a", 40)];
        figures.stood(&of_caller, &[at(270)], now);
        figures.stood(&of_caller, &[at(240)], now);
        assert_eq!(share(&figures, now), 0.9, "an answer that was overtaken");
        figures.stood(&of_caller, &[CounterState { epoch: 1, ..at(0) }], now);
        assert_eq!(share(&figures, now), 0.0);
    }

    #[test]
    fn a_changed_amount_acts_at_once_and_a_limit_that_is_gone_is_not_told_of() {
        let (figures, limit, now) = (LimitFigures::default(), fixed(300), Instant::now());
        figures.stood(&[hold(&limit, "a", 40)], &[at(270)], now);
        figures.adopt([&fixed(2_700)].into_iter());
        assert_eq!(share(&figures, now), 0.1);
        let hourly = Arc::new(Limit { window: Window::Fixed(60 * MINUTE), ..Limit::clone(&limit) });
        figures.adopt([&hourly].into_iter());
        assert_eq!(share(&figures, now), 0.0);
        figures.adopt([].into_iter());
        assert_eq!(figures.at(now), []);
    }

    #[test]
    fn what_is_charged_beyond_a_limit_is_an_overdraft_and_what_was_not_held_is_none() {
        let (figures, limit, now) = (LimitFigures::default(), fixed(300), Instant::now());
        let shadow = Arc::new(Limit { id: "shadow".into(), enforcement: Enforcement::Shadow, ..Limit::clone(&limit) });
        let one = request(vec![hold(&limit, "a", 40), hold(&shadow, "a", 40)]);
        let overdrafts = || figures.at(now).iter().map(|figure| figure.overdraft_tokens).collect::<Vec<_>>();
        figures.settled(&settlement(&one, &[290, 290]), &[at(290), at(290)], now);
        assert_eq!(overdrafts(), [0, 0]);
        figures.settled(&settlement(&one, &[60, 60]), &[at(350), at(350)], now);
        figures.settled(&settlement(&one, &[25, 25]), &[at(375), at(375)], now);
        assert_eq!(overdrafts(), [75, 0]);
    }

    #[test]
    fn slots_and_requests_are_no_overdraft_and_slots_no_share() {
        let (figures, now) = (LimitFigures::default(), Instant::now());
        let limits = [Quantity::Concurrency, Quantity::Requests].map(|quantity| {
            Arc::new(Limit { id: format!("{quantity:?}").into(), quantity, ..limit("", 10, Mode::Soft) })
        });
        let one = request(limits.iter().map(|limit| hold(limit, "a", 1)).collect());
        figures.settled(&settlement(&one, &[0, 1]), &[at(12), at(12)], now);
        let seen: Vec<_> = figures.at(now).iter().map(|it| (it.highest_share, it.overdraft_tokens)).collect();
        assert_eq!(seen, [(0.0, 0), (1.2, 0)]);
    }
}
