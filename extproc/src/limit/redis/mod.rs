//! The ledger that several sidecars share: each operation is one script call, atomic over all limits of a request.
//!
//! The clock is Redis's, so sidecars need not agree on theirs. Every call has a deadline of ours. Reservations and everything
//! else go over connections of their own, so that a burst of settlements never makes a request wait. For Redis 7.0 or later
//! and Valkey 8, on a single node; a Cluster will need one call for each group of counters.

mod call;
mod eviction;
mod link;
mod presence;
mod script;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use redis::{Client, IntoConnectionInfo, ProtocolVersion, Value};

use super::{Admission, CounterState, Growth, Hold, ReserveRequest, Settlement, Store, StoreError};
use call::Call;
use link::Link;
use script::{RENEW, RESERVE, SETTLE, Script};

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
        call: &Call,
        deadline: Duration,
    ) -> Result<Vec<u64>, StoreError> {
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

    async fn attempt(&self, channel: &Channel, script: &Script, call: &Call) -> Result<Vec<u64>, StoreError> {
        let mut connection = channel.link.connection().await?;
        self.shared.round_trips.fetch_add(1, Ordering::Relaxed);
        let mut answer = connection.query(&call.by_hash(script)).await;
        if answer.as_ref().is_err_and(script::is_unknown) {
            // EVAL, not SCRIPT LOAD: proxies and access lists block that one.
            self.shared.round_trips.fetch_add(1, Ordering::Relaxed);
            answer = connection.query(&call.by_text(script)).await;
        }
        numbers(answer.map_err(failed)?)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL: it may carry a password.
        f.debug_struct("RedisStore").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Store for RedisStore {
    async fn reserve(&self, request: &ReserveRequest) -> Result<Admission, StoreError> {
        if request.holds.is_empty() {
            return Ok(Admission::Granted { states: Vec::new() });
        }
        let call = Call::reserve(request);
        let answer = self.run(&self.shared.reserving, &RESERVE, &call, self.shared.options.deadline).await?;
        admission(&answer, request.holds.len()).ok_or_else(|| StoreError::Failed(format!("it answered {answer:?}")))
    }

    async fn settle(&self, settlement: &Settlement) -> Result<(), StoreError> {
        if settlement.charges.is_empty() {
            return Ok(());
        }
        let call = Call::settle(settlement);
        self.run(&self.shared.settling, &SETTLE, &call, self.shared.options.settle_deadline).await.map(drop)
    }

    async fn grow(&self, growth: &Growth) -> Result<Admission, StoreError> {
        let call = Call::renew(&growth.to);
        self.run(&self.shared.settling, &RENEW, &call, self.shared.options.settle_deadline).await?;
        Ok(Admission::Granted { states: Vec::new() })
    }

    async fn peek(&self, _: &[Hold]) -> Result<Vec<CounterState>, StoreError> {
        Ok(Vec::new())
    }

    async fn reset(&self, _: &[Hold]) -> Result<(), StoreError> {
        Ok(())
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

fn numbers(answer: Value) -> Result<Vec<u64>, StoreError> {
    redis::from_redis_value(answer).map_err(|error| StoreError::Failed(format!("it answered nonsense: {error}")))
}

/// Reads the answer of the script `reserve.lua` for `holds` holds.
fn admission(answer: &[u64], holds: usize) -> Option<Admission> {
    let (refuses, states) = answer.split_first()?;
    let states: Vec<_> = states
        .chunks_exact(3)
        .filter_map(|state| match state {
            [settled, held, reset_ms] => Some(CounterState {
                bucket: 0,
                epoch: 0,
                settled: *settled,
                previous: 0,
                held: *held,
                left: Duration::from_millis(*reset_ms),
                length: Duration::from_millis(*reset_ms),
            }),
            _ => None,
        })
        .collect();
    if states.len() != holds {
        return None;
    }
    match usize::try_from(*refuses).ok()?.checked_sub(1) {
        None => Some(Admission::Granted { states }),
        Some(by) => (by < holds).then_some(Admission::Refused { by, states }),
    }
}
