//! The ledger that several sidecars share: each operation is one script call, atomic over all limits of a request.
//!
//! The clock is Redis's, so sidecars need not agree on theirs. Every call has a deadline of ours. Reservations and everything
//! else go over connections of their own, so that a burst of settlements never makes a request wait. For Redis 7.0 or later
//! and Valkey 8. `url` says where it is and `dial` connects, with `credentials` and `tls`; `sentinel` and `cluster` find the
//! server; a `link` keeps one connection, a `channel` runs a `call` over links, and `spread` puts together what a cluster cannot
//! do at once.

mod call;
mod channel;
mod cluster;
mod credentials;
mod dial;
mod errand;
mod floors;
mod inspection;
mod known;
mod link;
mod part;
mod presence;
mod reply;
mod script;
mod sentinel;
mod slots;
mod spread;
mod tls;
mod url;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;

use super::{Admission, CounterState, Growth, Hold, ReserveRequest, Settlement, Store, StoreError};
use call::Call;
use channel::Channel;
pub(crate) use errand::Errand;
use known::Known;
use link::Inspection;
use part::Part;
pub(super) use presence::Presence;
pub use presence::StoreMemory;
use reply::{Answer, Verdict};
use script::{PEEK, RESET, Script};
pub use url::{InvalidRedisUrl, RedisFiles, RedisTarget};

/// What an access list must allow, as [`Channel`] says it.
const RIGHTS: &str =
    "token limits need: ~att1:* +eval +evalsha +time +exists +get +set +pttl +pexpire +zadd +zrem +zrangebyscore";

/// How long a sidecar waits for its Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedisOptions {
    /// For a reservation, which a request waits for.
    pub deadline: Duration,
    /// For settling and renewing, which nobody waits for.
    pub settle_deadline: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_millis(25), settle_deadline: Duration::from_millis(500) }
    }
}

/// Counters and leases in Redis. Clones share their connections.
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

struct Shared {
    options: RedisOptions,
    reserving: Channel,
    settling: Channel,
    known: Known,
    errors: AtomicU64,
}

impl RedisStore {
    /// A store in the Redis at `url`, without files: [`RedisStore::new`].
    ///
    /// # Errors
    /// [`InvalidRedisUrl`] when the URL is none; the message shows which there are.
    pub fn connect(url: &str, options: RedisOptions) -> Result<Self, InvalidRedisUrl> {
        Ok(Self::new(url.parse()?, options))
    }

    /// A store in `target`. It connects in the background and whenever a connection is lost; until it is there, operations
    /// fail. To be called within a Tokio runtime.
    pub fn new(target: RedisTarget, options: RedisOptions) -> Self {
        let target = Arc::new(target);
        let shared = Shared {
            options,
            reserving: Channel::new(&target, Inspection::None, RIGHTS),
            settling: Channel::new(&target, Inspection::OfEachServer, RIGHTS),
            known: Known::default(),
            errors: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Commands sent so far.
    pub fn round_trips(&self) -> u64 {
        self.shared.reserving.round_trips() + self.shared.settling.round_trips()
    }

    /// Operations that got no answer, or an error for one, so far.
    pub fn errors(&self) -> u64 {
        self.shared.errors.load(Ordering::Relaxed)
    }

    /// The calls that an operation over these holds takes: one, but in a cluster one for each group of counters.
    fn parts<'h>(&self, holds: impl ExactSizeIterator<Item = &'h Hold>) -> Vec<Part> {
        if self.shared.reserving.is_cluster() { Part::by_group(holds) } else { vec![Part::whole(holds.len())] }
    }

    /// Runs a script within the deadline.
    async fn run(
        &self,
        channel: &Channel,
        script: &Script,
        call: &Call<'_>,
        deadline: Duration,
    ) -> Result<Value, StoreError> {
        self.counted(channel.run(script, call, deadline).await)
    }

    /// Counts an answer that is none.
    fn counted<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if answer.is_err() {
            self.shared.errors.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

/// What became of a call, and when.
struct Done {
    verdict: Verdict,
    /// Redis's time, in milliseconds since the epoch.
    #[cfg(test)]
    at_ms: u64,
    states: Vec<CounterState>,
}

impl Done {
    fn admission(self) -> Admission {
        match self.verdict {
            Verdict::Refused(by) => Admission::Refused { by, states: self.states },
            Verdict::Done | Verdict::OutsideCalendar | Verdict::Crowded => Admission::Granted { states: self.states },
        }
    }
}

impl RedisStore {
    /// Runs a script with the call that is made from what is known, and learns from the answer.
    async fn ask<'h>(
        &self,
        channel: &Channel,
        script: &Script,
        deadline: Duration,
        call: impl Fn(&Known) -> Call<'h> + Send + Sync,
    ) -> Result<Done, StoreError> {
        let known = &self.shared.known;
        // A second time only where our clock was so wrong that a calendar did not hold the present: now it is known better.
        for _ in 0..2 {
            let call = call(known);
            let answer = Answer::read(&self.run(channel, script, &call, deadline).await?, call.counters())?;
            known.learn(answer.now_ms, call.floors(&answer));
            match answer.verdict {
                Verdict::OutsideCalendar => {}
                Verdict::Crowded => {
                    return Err(StoreError::NoRoom(format!("one key has made its share, {}", known.share_of_room())));
                }
                verdict => {
                    return Ok(Done {
                        verdict,
                        #[cfg(test)]
                        at_ms: answer.now_ms,
                        states: call.states(&answer),
                    });
                }
            }
        }
        Err(StoreError::Failed("its clock does not go steadily".to_owned()))
    }
}

impl Store for RedisStore {
    async fn reserve(&self, request: &ReserveRequest) -> Result<Admission, StoreError> {
        if request.holds.is_empty() {
            return Ok(Admission::Granted { states: Vec::new() });
        }
        self.reserve_parts(request).await.map(Done::admission)
    }

    async fn grow(&self, growth: &Growth) -> Result<Admission, StoreError> {
        if growth.to.holds.is_empty() {
            return Ok(Admission::Granted { states: Vec::new() });
        }
        self.grow_parts(growth).await.map(Done::admission)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Vec<CounterState>, StoreError> {
        if settlement.charges.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.settle_parts(settlement).await?.states)
    }

    async fn peek(&self, holds: &[Hold]) -> Result<Vec<CounterState>, StoreError> {
        if holds.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.run_on_counters(&PEEK, holds).await?.states)
    }

    async fn reset(&self, holds: &[Hold]) -> Result<(), StoreError> {
        if holds.is_empty() {
            return Ok(());
        }
        self.run_on_counters(&RESET, holds).await.map(drop)
    }
}

/// For tests of what happened when, and of sidecars that know little or what is wrong.
#[cfg(test)]
impl RedisStore {
    pub(in crate::limit) async fn reserve_at(&self, request: &ReserveRequest) -> Result<(u64, Admission), StoreError> {
        let done = self.reserve_parts(request).await?;
        Ok((done.at_ms, done.admission()))
    }

    pub(in crate::limit) async fn settle_at(&self, settlement: &Settlement) -> Result<u64, StoreError> {
        Ok(self.settle_parts(settlement).await?.at_ms)
    }

    pub(in crate::limit) fn forget_what_was_seen(&self) {
        self.shared.known.forget();
    }

    pub(in crate::limit) fn believe_it_is_later_by(&self, ms: i64) {
        self.shared.known.believe_it_is_later_by(ms);
    }

    /// As a sidecar of another version does it, whose script has another text.
    pub(in crate::limit) async fn reserve_as_another_version(
        &self,
        request: &ReserveRequest,
    ) -> Result<Admission, StoreError> {
        let (script, whole) = (script::RESERVE.of_another_version(), Part::whole(request.holds.len()));
        let (channel, deadline) = (&self.shared.reserving, self.shared.options.deadline);
        let call = |known: &Known| Call::reserve(request, &whole, known);
        self.ask(channel, &script, deadline, call).await.map(Done::admission)
    }

    pub(in crate::limit) async fn settle_as_another_version(&self, settlement: &Settlement) -> Result<(), StoreError> {
        let (script, whole) = (script::SETTLE.of_another_version(), Part::whole(settlement.charges.len()));
        let (channel, deadline) = (&self.shared.settling, self.shared.options.settle_deadline);
        let call = |known: &Known| Call::settle(settlement, &whole, known);
        self.ask(channel, &script, deadline, call).await.map(drop)
    }
}
