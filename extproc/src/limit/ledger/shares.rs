//! This sidecar's share of a limit while the store does not answer: of what was left when it last did, one part for each
//! sidecar.

use std::time::Instant;

use super::known::KnownUse;
use crate::limit::{CounterState, Hold, OnStoreError, Quantity, ReserveRequest};

/// By what shares are computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares<'l> {
    pub(super) known: &'l KnownUse,
    /// At least one.
    pub(super) sidecars: usize,
    pub(super) now: Instant,
}

/// What of a request this sidecar counts by itself.
#[derive(Debug)]
pub(super) struct Share<'r> {
    whole: &'r ReserveRequest,
    /// The holds of local limits alone, each with its share for a ceiling.
    pub(super) request: ReserveRequest,
}

/// Whether this sidecar counts for the hold's limit.
pub(super) fn is_local(hold: &Hold) -> bool {
    hold.limit.on_store_error == OnStoreError::Local
}

impl Shares<'_> {
    pub(super) fn of<'r>(&self, whole: &'r ReserveRequest) -> Share<'r> {
        let local = || whole.holds.iter().filter(|hold| is_local(hold));
        let known = self.known.of(local(), self.now);
        let share = |(hold, known): (&Hold, u64)| Hold { ceiling: self.share(hold.ceiling, known), ..hold.clone() };
        let request = ReserveRequest {
            id: whole.id.clone(),
            key_id: whole.key_id.clone(),
            context: whole.context.clone(),
            estimate: whole.estimate,
            holds: local().zip(known).map(share).collect(),
            judge: whole.judge,
        };
        Share { whole, request }
    }

    /// Rounded up: a limit of one is one for each, not none for all.
    fn share(&self, ceiling: u64, known: u64) -> u64 {
        ceiling.saturating_sub(known).div_ceil(self.sidecars.max(1) as u64)
    }
}

impl Share<'_> {
    /// The place in the whole request of one of the local holds.
    pub(super) fn index(&self, of_local: usize) -> usize {
        let mut local = self.whole.holds.iter().enumerate().filter(|(_, hold)| is_local(hold));
        local.nth(of_local).map_or(0, |(index, _)| index)
    }

    /// How clients are shown local counters: what is not this sidecar's share counts as used, so the limit reads as it is
    /// written and admits as the share does. What nobody counts is not known.
    pub(super) fn shown(&self, states: &[CounterState]) -> Vec<Option<CounterState>> {
        let mut local = self.request.holds.iter().zip(states);
        let shown = |hold: &Hold| {
            let (share, state) = is_local(hold).then(|| local.next()).flatten()?;
            let others = hold.ceiling.saturating_sub(share.ceiling);
            Some(match hold.limit.quantity {
                Quantity::Concurrency => CounterState { held: state.held.saturating_add(others), ..*state },
                _ => CounterState { settled: state.settled.saturating_add(others), ..*state },
            })
        };
        self.whole.holds.iter().map(shown).collect()
    }

    /// The same; what nobody counts reads as unused.
    pub(super) fn shown_all(&self, states: &[CounterState]) -> Vec<CounterState> {
        let unused = |hold: &Hold| {
            let length = hold.limit.window.longest();
            CounterState { bucket: 0, epoch: 0, settled: 0, previous: 0, held: 0, left: length, length }
        };
        let shown = self.shown(states).into_iter().zip(&self.whole.holds);
        shown.map(|(state, hold)| state.unwrap_or_else(|| unused(hold))).collect()
    }
}
