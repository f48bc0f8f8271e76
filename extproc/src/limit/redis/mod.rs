//! The ledger that several sidecars share: each operation is one script call, atomic over all limits of a request.
//!
//! The clock is Redis's, so sidecars need not agree on theirs. Every call has a deadline of ours. Reservations and everything
//! else go over connections of their own, so that a burst of settlements never makes a request wait. For Redis 7.0 or later
//! and Valkey 8, on a single node; a Cluster will need one call for each group of counters.

mod call;
mod eviction;
mod floors;
mod known;
mod link;
mod part;
mod presence;
mod reply;
mod script;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use redis::{Client, IntoConnectionInfo, ProtocolVersion, Value};

use super::{Admission, CounterState, Growth, Hold, ReserveRequest, Settlement, Store, StoreError};
use call::Call;
use known::Known;
use link::Link;
use part::Part;
use reply::{Answer, Verdict};
use script::{GROW, PEEK, RESERVE, RESET, SETTLE, Script};

/// This many calls in a row without an answer, and the connection is given up: on a quick deadline a few may miss it when
/// Redis is busy, a connection that is cut misses all.
const TIMEOUTS_IN_A_ROW: u32 = 5;

/// How a sidecar talks to its Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedisOptions {
    /// For a reservation, which a request waits for.
    pub deadline: Duration,
    /// For settling and renewing, which nobody waits for.
    pub settle_deadline: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_millis(100), settle_deadline: Duration::from_millis(500) }
    }
}

/// The text is no URL of a Redis that we can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRedisUrl(String);

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
    round_trips: AtomicU64,
    errors: AtomicU64,
}

/// A link and how it has been doing.
struct Channel {
    link: Link,
    timeouts: AtomicU32,
}

impl RedisStore {
    /// A store in the Redis at `url` (`redis://host:port/db` or `redis+unix:///path`). It connects in the background and
    /// whenever the connection is lost; until it is there, operations fail. To be called within a Tokio runtime.
    ///
    /// # Errors
    /// [`InvalidRedisUrl`] when the URL is none, or asks for what is not supported.
    pub fn connect(url: &str, options: RedisOptions) -> Result<Self, InvalidRedisUrl> {
        if url.starts_with("rediss:") {
            return Err(InvalidRedisUrl("TLS (rediss://) is not supported yet; use redis://".to_owned()));
        }
        let client = client(url).map_err(|error| {
            InvalidRedisUrl(format!(
                "{error}; write redis://HOST:PORT, redis://USER:PASSWORD@HOST:PORT/DB or redis+unix:///PATH"
            ))
        })?;
        let channel = || Channel { link: Link::new(client.clone()), timeouts: AtomicU32::new(0) };
        let shared = Shared {
            options,
            reserving: channel(),
            settling: channel(),
            known: Known::default(),
            round_trips: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        };
        eviction::warn_at_first_connection(&shared.settling.link);
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Commands sent so far.
    pub fn round_trips(&self) -> u64 {
        self.shared.round_trips.load(Ordering::Relaxed)
    }

    /// Operations that got no answer, or an error for one, so far.
    pub fn errors(&self) -> u64 {
        self.shared.errors.load(Ordering::Relaxed)
    }

    /// Runs a script within the deadline.
    async fn run(
        &self,
        channel: &Channel,
        script: &Script,
        call: &Call<'_>,
        deadline: Duration,
    ) -> Result<Value, StoreError> {
        let answer = match tokio::time::timeout(deadline, self.attempt(channel, script, call)).await {
            Ok(answer) => {
                channel.timeouts.store(0, Ordering::Relaxed);
                answer
            }
            Err(_) => {
                if channel.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_IN_A_ROW {
                    channel.timeouts.store(0, Ordering::Relaxed);
                    channel.link.give_up();
                }
                Err(StoreError::Timeout(deadline))
            }
        };
        if answer.is_err() {
            self.shared.errors.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    async fn attempt(&self, channel: &Channel, script: &Script, call: &Call<'_>) -> Result<Value, StoreError> {
        let mut connection = channel.link.connection().await?;
        self.shared.round_trips.fetch_add(1, Ordering::Relaxed);
        let mut answer = connection.query(&call.by_hash(script)).await;
        if answer.as_ref().is_err_and(script::is_unknown) {
            // EVAL, not SCRIPT LOAD: proxies and access lists block that one.
            self.shared.round_trips.fetch_add(1, Ordering::Relaxed);
            answer = connection.query(&call.by_text(script)).await;
        }
        answer.map_err(failed)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL: it may carry a password.
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
            Verdict::Done | Verdict::OutsideCalendar => Admission::Granted { states: self.states },
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
            if answer.verdict != Verdict::OutsideCalendar {
                return Ok(Done {
                    verdict: answer.verdict,
                    #[cfg(test)]
                    at_ms: answer.now_ms,
                    states: call.states(&answer),
                });
            }
        }
        Err(StoreError::Failed("its clock does not go steadily".to_owned()))
    }

    async fn ask_to_reserve(&self, request: &ReserveRequest) -> Result<Done, StoreError> {
        let part = Part::whole(request.holds.len());
        let (channel, deadline) = (&self.shared.reserving, self.shared.options.deadline);
        self.ask(channel, &RESERVE, deadline, |known| Call::reserve(request, &part, known)).await
    }

    async fn ask_to_settle(&self, settlement: &Settlement) -> Result<Done, StoreError> {
        let part = Part::whole(settlement.charges.len());
        let (channel, deadline) = (&self.shared.settling, self.shared.options.settle_deadline);
        self.ask(channel, &SETTLE, deadline, |known| Call::settle(settlement, &part, known)).await
    }

    async fn ask_of_counters(&self, script: &Script, holds: &[Hold]) -> Result<Done, StoreError> {
        let part = Part::whole(holds.len());
        let (channel, deadline) = (&self.shared.settling, self.shared.options.settle_deadline);
        self.ask(channel, script, deadline, |known| Call::of_counters(holds, &part, known)).await
    }
}

impl Store for RedisStore {
    async fn reserve(&self, request: &ReserveRequest) -> Result<Admission, StoreError> {
        if request.holds.is_empty() {
            return Ok(Admission::Granted { states: Vec::new() });
        }
        self.ask_to_reserve(request).await.map(Done::admission)
    }

    async fn grow(&self, growth: &Growth) -> Result<Admission, StoreError> {
        if growth.to.holds.is_empty() {
            return Ok(Admission::Granted { states: Vec::new() });
        }
        let part = Part::whole(growth.to.holds.len());
        let (channel, deadline) = (&self.shared.settling, self.shared.options.settle_deadline);
        let done = self.ask(channel, &GROW, deadline, |known| Call::grow(growth, &part, known)).await?;
        Ok(done.admission())
    }

    async fn settle(&self, settlement: &Settlement) -> Result<(), StoreError> {
        if settlement.charges.is_empty() {
            return Ok(());
        }
        self.ask_to_settle(settlement).await.map(drop)
    }

    async fn peek(&self, holds: &[Hold]) -> Result<Vec<CounterState>, StoreError> {
        if holds.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.ask_of_counters(&PEEK, holds).await?.states)
    }

    async fn reset(&self, holds: &[Hold]) -> Result<(), StoreError> {
        if holds.is_empty() {
            return Ok(());
        }
        self.ask_of_counters(&RESET, holds).await.map(drop)
    }
}

/// For tests of what happened when, and of sidecars that know little or what is wrong.
#[cfg(test)]
impl RedisStore {
    pub(in crate::limit) async fn reserve_at(&self, request: &ReserveRequest) -> Result<(u64, Admission), StoreError> {
        let done = self.ask_to_reserve(request).await?;
        Ok((done.at_ms, done.admission()))
    }

    pub(in crate::limit) async fn settle_at(&self, settlement: &Settlement) -> Result<u64, StoreError> {
        Ok(self.ask_to_settle(settlement).await?.at_ms)
    }

    pub(in crate::limit) fn forget_what_was_seen(&self) {
        self.shared.known.forget();
    }

    pub(in crate::limit) fn believe_it_is_later_by(&self, ms: i64) {
        self.shared.known.believe_it_is_later_by(ms);
    }
}

fn client(url: &str) -> redis::RedisResult<Client> {
    let info = url.into_connection_info()?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Client::open(info.set_redis_settings(settings))
}

fn failed(error: redis::RedisError) -> StoreError {
    StoreError::Failed(error.to_string())
}
