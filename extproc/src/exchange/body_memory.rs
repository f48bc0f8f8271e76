//! The memory that the bodies of all requests take together until they have gone on, and what decoders take: one budget for the
//! process, of which nobody has more than he leaves free.
//!
//! Whoever holds memory has a [`Claim`] on the budget, which gives it back when it is dropped. Holders are told apart by their
//! API keys or, where there are none, by their addresses. One alone gets half of the budget, two get a third each, and there is
//! always something left for the next (dynamic thresholds, as switches share buffers: Choudhury and Hahne, 1998).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use attache_gate::Caller;
use attache_proto::{ApiError, Dialect, ErrorKind};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::event::{Headers, LocalResponse};

/// The budget where nobody says otherwise, in bytes: what a container of 512 MiB can spare beside an index of 64 MiB and the
/// counters, and for one body of the default cap three times what it takes decoded and changed.
pub const DEFAULT_BODY_MEMORY_BYTES: u64 = 192 << 20;

/// The budget, and who has what of it.
#[derive(Debug)]
pub struct BodyMemory {
    budget_bytes: u64,
    taken: Mutex<Taken>,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    /// Of those who hold something at all: no more entries than there are claims.
    by_holder: HashMap<Holder, u64>,
}

/// Whose claims are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Holder(u64);

/// There is no memory for it at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoMemory;

impl BodyMemory {
    /// A budget of so many bytes.
    pub fn new(budget_bytes: u64) -> Self {
        Self { budget_bytes, taken: Mutex::default(), refused: AtomicU64::new(0) }
    }

    /// The budget, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// How much of it is taken, in bytes.
    pub fn in_use_bytes(&self) -> u64 {
        self.taken().bytes
    }

    /// How often it had no room for somebody.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// A claim that has nothing yet.
    pub(crate) fn claim(self: &Arc<Self>, holder: Holder) -> Claim {
        Claim { memory: Arc::clone(self), holder, bytes: 0 }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Each change is whole before anything can panic.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for BodyMemory {
    fn default() -> Self {
        Self::new(DEFAULT_BODY_MEMORY_BYTES)
    }
}

impl Holder {
    /// Of a request: its key or, of an open gateway, the address that the proxy saw, which it writes behind whatever the client
    /// says of itself.
    pub(super) fn of(caller: Option<&Caller>, headers: &Headers) -> Self {
        const KEY: u64 = 1;
        const ADDRESS: u64 = 2;
        if let Some(caller) = caller {
            return Self(xxh3_64_with_seed(caller.key_id().as_bytes(), KEY));
        }
        let forwarded = headers.iter().filter(|(name, _)| *name == "x-forwarded-for").last();
        let address =
            forwarded.and_then(|(_, value)| value.rsplit(|byte| *byte == b',').next()).map(<[u8]>::trim_ascii);
        address.map_or_else(Self::nobody, |address| Self(xxh3_64_with_seed(address, ADDRESS)))
    }

    /// A number that stands for it.
    pub(super) fn hash(self) -> u64 {
        self.0
    }

    /// Of those of whom nothing is known.
    pub(crate) fn nobody() -> Self {
        Self(xxh3_64(b""))
    }
}

/// Part of the budget, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    memory: Arc<BodyMemory>,
    holder: Holder,
    bytes: u64,
}

impl Claim {
    /// Has so many bytes from now on, more or less than before. An error changes nothing.
    pub(super) fn resize(&mut self, bytes: u64) -> Result<(), NoMemory> {
        self.change(bytes, |budget, taken, of_holder| of_holder <= budget.saturating_sub(taken))
    }

    /// The same of memory that is taken already and cannot be refused; others are, meanwhile.
    pub(crate) fn force(&mut self, bytes: u64) {
        // It is allowed, so this does not fail.
        let _ = self.change(bytes, |_, _, _| true);
    }

    fn change(&mut self, bytes: u64, allowed: impl Fn(u64, u64, u64) -> bool) -> Result<(), NoMemory> {
        if bytes == self.bytes {
            return Ok(());
        }
        let mut taken = self.memory.taken();
        let before = taken.by_holder.get(&self.holder).copied().unwrap_or(0);
        let of_holder = before.saturating_sub(self.bytes).saturating_add(bytes);
        let of_all = taken.bytes.saturating_sub(self.bytes).saturating_add(bytes);
        if bytes > self.bytes && !allowed(self.memory.budget_bytes, of_all, of_holder) {
            drop(taken);
            self.memory.refused.fetch_add(1, Ordering::Relaxed);
            return Err(NoMemory);
        }
        taken.bytes = of_all;
        match of_holder {
            0 => taken.by_holder.remove(&self.holder),
            of_holder => taken.by_holder.insert(self.holder, of_holder),
        };
        drop(taken);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.force(0);
    }
}

impl NoMemory {
    /// What the client is told.
    pub(super) fn response(self, dialect: Dialect) -> LocalResponse {
        let message = "too many request bodies are under way at the moment; try again in a moment";
        let error = ApiError::new(ErrorKind::Unavailable, message);
        let headers = vec![("retry-after", "1".to_owned())];
        LocalResponse { headers, ..LocalResponse::error(&error, dialect, "body_memory") }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn nobody_has_more_than_he_leaves_free_and_all_comes_back() {
        let memory = Arc::new(BodyMemory::new(100));
        let [mut a, mut b, mut c] = [1, 2, 3].map(|holder| memory.claim(Holder(holder)));
        assert_eq!(a.resize(51), Err(NoMemory));
        assert_eq!(a.resize(50), Ok(()));
        // Claims of one holder are added up.
        let mut again = memory.claim(Holder(1));
        assert_eq!(again.resize(1), Err(NoMemory));
        assert_eq!((b.resize(26), b.resize(25), c.resize(12)), (Err(NoMemory), Ok(()), Ok(())));
        assert_eq!((memory.in_use_bytes(), memory.refused()), (87, 3));
        // What is less than before is never refused.
        assert_eq!(a.resize(40), Ok(()));
        c.force(1_000);
        assert_eq!((memory.in_use_bytes(), b.resize(26)), (1_065, Err(NoMemory)));
        drop((a, b, c, again));
        assert_eq!(memory.in_use_bytes(), 0);
        assert!(memory.taken().by_holder.is_empty());
    }

    #[test]
    fn however_many_hold_something_there_is_room_for_the_next() {
        let memory = Arc::new(BodyMemory::new(1 << 20));
        let claims: Vec<Claim> = (0..10)
            .map(|holder| {
                let mut claim = memory.claim(Holder(holder));
                // As much as it gets.
                while claim.resize(claim.bytes + 64).is_ok() {}
                claim
            })
            .collect();
        assert!(claims.iter().all(|claim| claim.bytes >= 512), "{claims:?}");
        assert!(memory.in_use_bytes() < memory.budget_bytes());
    }

    #[test]
    fn without_keys_holders_are_told_apart_by_the_address_that_the_proxy_saw() {
        let of = |values: &[&str]| {
            let header = |value: &&str| ("x-forwarded-for".to_owned(), Bytes::copy_from_slice(value.as_bytes()));
            Holder::of(None, &Headers(values.iter().map(header).collect()))
        };
        assert_eq!(of(&["1.1.1.1, 10.0.0.7"]), of(&["9.9.9.9", "2.2.2.2,10.0.0.7"]));
        assert_ne!(of(&["1.1.1.1, 10.0.0.7"]), of(&["1.1.1.1, 10.0.0.8"]));
        assert_eq!(of(&[]), Holder::nobody());
    }
}
