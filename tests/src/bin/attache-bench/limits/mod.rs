//! The chapter "Token limits": what a limit costs that several sidecars share, and how far each mode lets it be overdrawn.
//!
//! What is counted (round trips, bytes, tokens) is exact; what is timed is as good as the machine is quiet. Beside each
//! figure stands the aim that the ledger was designed to.

mod latency;
mod memory;
mod monitor;
mod overshoot;
mod population;
mod round_trips;
mod scripts;
mod table;

use attache::limit::{RedisOptions, RedisStore};
use attache_tests::{Error, Redis, Result};
use redis::{FromRedisValue, aio::MultiplexedConnection};
use serde::Serialize;

use crate::{measure::Pace, report::Progress};
use latency::{CachedRefusal, Way};
use memory::Memory;
use overshoot::{Capped, Overshoot};
use round_trips::RoundTrips;
use scripts::ScriptTime;

/// By which `--only` knows it.
pub(crate) const NAME: &str = "token limits";

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Chapter {
    round_trips: RoundTrips,
    scripts: Vec<ScriptTime>,
    memory: Memory,
    overshoot: Vec<Overshoot>,
    capped: Vec<Capped>,
    ways: Vec<Way>,
    cached_refusal: CachedRefusal,
}

/// Measures all of it.
///
/// # Errors
/// When something does not do what was to be measured.
pub(crate) async fn measure(pace: Pace, progress: &mut Progress) -> Result<Chapter> {
    let (round_trips, ways) = latency::measure(pace, progress).await?;
    Ok(Chapter {
        round_trips,
        ways,
        cached_refusal: latency::cached_refusal(progress).await?,
        scripts: scripts::measure(pace, progress).await?,
        memory: memory::measure(progress).await?,
        overshoot: overshoot::measure(progress).await?,
        capped: overshoot::capped(pace, progress).await?,
    })
}

/// A store with deadlines that no request of a bench meets.
fn store(redis: &Redis) -> Result<RedisStore> {
    let deadline = std::time::Duration::from_secs(10);
    let options = RedisOptions { deadline, settle_deadline: deadline };
    RedisStore::connect(&redis.url(), options).map_err(failed("connect"))
}

/// Asks Redis something.
async fn ask<T: FromRedisValue>(connection: &mut MultiplexedConnection, words: &[&str]) -> Result<T> {
    let mut command = redis::Cmd::new();
    command.arg(words);
    command.query_async(connection).await.map_err(failed(words.first().copied().unwrap_or_default()))
}

fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> Error {
    let what = format!("cannot {what}");
    move |error| Error::unexpected(what, error.to_string())
}
