//! How much of Redis' memory an active key takes.

use attache::limit::{RedisStore, ReserveRequest, Store as _};
use attache_proto::Usage;
use attache_tests::{Directory, Error, Redis, Result};
use futures_util::{StreamExt as _, stream};
use redis::aio::MultiplexedConnection;
use serde::Serialize;

use super::{
    ask, failed,
    population::{Population, USUAL},
    store,
};
use crate::report::Progress;

const KEYS: usize = 10_000;

/// Tombstones that are there at one time where none are to be measured.
const PART: usize = 250;

/// Bytes of Redis' `used_memory` for one key that has one limit, with Redis' own tables and times to live.
#[derive(Debug, Serialize)]
pub(crate) struct Memory {
    pub(super) keys: usize,
    /// The counter alone.
    pub(super) counter_bytes: f64,
    /// With a request in flight: the counter and its lease.
    pub(super) in_flight_bytes: f64,
    /// For ten seconds after a request: the counter and its tombstone.
    pub(super) settled_bytes: f64,
}

pub(super) async fn measure(progress: &mut Progress) -> Result<Memory> {
    progress.say("memory of an active key");
    let directory = Directory::temporary()?;
    let bed = Bed::start(&directory).await?;
    // So that Redis knows the scripts, and has grown what every connection needs.
    let requests = bed.reserve().await?;
    bed.settle(&requests).await?;

    let mut redis = bed.redis.connection().await?;
    let before = emptied(&mut redis).await?;
    let requests = bed.reserve().await?;
    let in_flight = used(&mut redis).await?;
    bed.settle(&requests).await?;
    let settled = used(&mut redis).await?;

    // Redis' tables do not shrink at once, so the counters alone are made anew, and tombstones go as they come.
    let before_counters = emptied(&mut redis).await?;
    for part in requests.chunks(PART) {
        bed.settle(part).await?;
        let tombstones: Vec<String> = ask(&mut redis, &["KEYS", "att1:*:settled:*"]).await?;
        let words: Vec<&str> = std::iter::once("DEL").chain(tombstones.iter().map(String::as_str)).collect();
        let () = ask(&mut redis, &words).await?;
    }
    let counters = used(&mut redis).await?;
    let keys: usize = ask(&mut redis, &["DBSIZE"]).await?;
    if keys != KEYS {
        return Err(Error::unexpected(format!("{KEYS} keys have not one counter each"), format!("{keys} counters")));
    }
    let each = |bytes: u64, before: u64| bytes.saturating_sub(before) as f64 / KEYS as f64;
    Ok(Memory {
        keys: KEYS,
        counter_bytes: each(counters, before_counters),
        in_flight_bytes: each(in_flight, before),
        settled_bytes: each(settled, before),
    })
}

struct Bed {
    redis: Redis,
    store: RedisStore,
    population: Population,
}

impl Bed {
    async fn start(directory: &Directory) -> Result<Self> {
        let redis = Redis::start(directory.path(), &[]).await?;
        let population = Population::new(USUAL.get(..1).unwrap_or_default(), KEYS)?;
        Ok(Self { store: store(&redis)?, redis, population })
    }

    /// One request of each key.
    async fn reserve(&self) -> Result<Vec<ReserveRequest>> {
        let requests: Vec<_> = (0..KEYS).map(|index| self.population.request(index, 600)).collect();
        let reserve = async |request| self.store.reserve(request).await.map(drop).map_err(failed("reserve"));
        all(&requests, reserve).await?;
        Ok(requests)
    }

    async fn settle(&self, requests: &[ReserveRequest]) -> Result<()> {
        let usage = Usage { input: 300, output: 200, total: 500, ..Usage::default() };
        let settle = async |request: &ReserveRequest| {
            self.store.settle(&request.settlement(&usage)).await.map(drop).map_err(failed("settle"))
        };
        all(requests, settle).await
    }
}

/// Runs all, many at a time.
async fn all<'r>(requests: &'r [ReserveRequest], run: impl AsyncFn(&'r ReserveRequest) -> Result<()>) -> Result<()> {
    const IN_FLIGHT: usize = 64;
    let done: Vec<_> = stream::iter(requests).map(|request| run(request)).buffer_unordered(IN_FLIGHT).collect().await;
    done.into_iter().collect()
}

/// What Redis uses when it has no key.
async fn emptied(redis: &mut MultiplexedConnection) -> Result<u64> {
    let () = ask(redis, &["FLUSHALL", "SYNC"]).await?;
    used(redis).await
}

async fn used(redis: &mut MultiplexedConnection) -> Result<u64> {
    let info: String = ask(redis, &["INFO", "memory"]).await?;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
    used.ok_or_else(|| Error::unexpected("Redis does not say what it uses", info))
}
