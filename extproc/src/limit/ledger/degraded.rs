//! What becomes of requests while the store does not answer: each limit's `onStoreError`, over all limits of a request at
//! once.
//!
//! `local` limits are counted here, in a memory store of this sidecar's own, up to its share of what was left when the store
//! last answered. What is counted here is dropped once the store has been told all of it: from then on the store's figures
//! include it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::shares::{Shares, is_local};
use crate::limit::{
    Admission, Decision, Enforcement, Growth, Hold, Keeper, MemoryStore, OnStoreError, Refused, Reservation,
    ReservationId, ReserveRequest, Settlement, StoreError,
};

#[derive(Debug)]
pub(super) struct Degraded {
    store: Mutex<MemoryStore>,
    untold: Arc<AtomicUsize>,
    /// Whether the store has answered since a request was last decided here.
    answered: AtomicBool,
    granted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

/// Requests that were decided here so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DegradedDecisions {
    /// Admitted.
    pub granted: u64,
    /// Refused, as this sidecar's share is used up.
    pub refused: u64,
    /// Failed: one of their limits has `onStoreError: deny`.
    pub failed: u64,
}

/// Something that was admitted or used here and that the store has not been told of; dropped when it has been, or never will.
#[derive(Debug)]
pub(super) struct Untold(Arc<AtomicUsize>);

impl Degraded {
    pub(super) fn new() -> Self {
        Self {
            store: Mutex::new(MemoryStore::new()),
            untold: Arc::default(),
            answered: AtomicBool::new(false),
            granted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Decides in the store's place, which failed with `error`. What is granted is another reservation: nobody knows what
    /// the store makes of the first.
    pub(super) fn reserve(
        &self,
        request: &ReserveRequest,
        shares: Shares<'_>,
        error: StoreError,
    ) -> Result<Decision, StoreError> {
        if request.holds.iter().any(denies) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return Err(error);
        }
        let request = Arc::new(ReserveRequest { id: ReservationId::random(), ..request.clone() });
        let share = shares.of(&request);
        let mut store = self.store();
        if self.answered.swap(false, Ordering::Relaxed) && self.untold.load(Ordering::Relaxed) == 0 {
            *store = MemoryStore::new();
        }
        match store.reserve_now(&share.request)? {
            Admission::Granted { states } => {
                self.untold.fetch_add(1, Ordering::Relaxed);
                self.granted.fetch_add(1, Ordering::Relaxed);
                let states = share.shown(&states);
                Ok(Decision::Granted(Reservation::new(request, states, Keeper::Sidecar)))
            }
            Admission::Refused { by, states } => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                let (by, states) = (share.index(by), share.shown(&states));
                Ok(Decision::Refused(Refused { request, by, states }))
            }
        }
    }

    /// Renews what was granted here, or lets it grow.
    pub(super) fn grow(&self, growth: &Growth, shares: Shares<'_>) -> Admission {
        let (from, to) = (shares.of(&growth.from), shares.of(&growth.to));
        let local = Growth {
            from: Arc::new(from.request.clone()),
            doubt: None,
            to: Arc::new(to.request.clone()),
            keeper: Keeper::Sidecar,
        };
        match self.store().grow_now(&local) {
            Admission::Granted { states } => Admission::Granted { states: to.shown_all(&states) },
            Admission::Refused { by, states } => Admission::Refused { by: to.index(by), states: to.shown_all(&states) },
        }
    }

    /// Ends what was granted here. What it cost is to be told to the store before this.
    pub(super) fn settle(&self, settlement: &Settlement) {
        let charges = settlement.charges.iter().filter(|charge| is_local(&charge.hold)).cloned().collect();
        self.store().settle_now(&Settlement { charges, ..settlement.clone() });
        drop(Untold(Arc::clone(&self.untold)));
    }

    /// Keeps this sidecar's counters until it is dropped.
    pub(super) fn untold(&self) -> Untold {
        self.untold.fetch_add(1, Ordering::Relaxed);
        Untold(Arc::clone(&self.untold))
    }

    /// The store has answered.
    pub(super) fn answered(&self) {
        if !self.answered.load(Ordering::Relaxed) {
            self.answered.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn decisions(&self) -> DegradedDecisions {
        DegradedDecisions {
            granted: self.granted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    fn store(&self) -> MutexGuard<'_, MemoryStore> {
        // The memory store has a lock of its own; this one keeps it from being emptied between looking and reserving.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A limit in shadow refuses nobody, whatever happens.
fn denies(hold: &Hold) -> bool {
    hold.limit.on_store_error == OnStoreError::Deny && hold.limit.enforcement == Enforcement::Refuse
}
