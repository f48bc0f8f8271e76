//! How long Redis is busy for one request.

use std::time::{Duration, Instant};

use attache::limit::{RedisStore, ReserveRequest, Settlement, Store as _};
use attache_proto::Usage;
use attache_tests::{Directory, Error, Redis, Result};
use futures_util::{StreamExt as _, future::join_all, stream};
use redis::aio::MultiplexedConnection;
use serde::Serialize;

use super::{
    ask, failed,
    population::{Population, USUAL},
    store,
};
use crate::{
    measure::{Pace, us},
    report::Progress,
    usage::Usage as Cpu,
};

/// As many sidecars.
const STORES: usize = 4;

/// On each of them: what a pipeline of a busy sidecar holds.
const IN_FLIGHT: usize = 16;

/// All are reserved, then all are settled, so that Redis' own account tells the two apart.
const BATCH: usize = 1_024;

const KEYS: usize = 1_000;

/// What one request costs Redis.
#[derive(Debug, Serialize)]
pub(crate) struct ScriptTime {
    pub(super) limits: usize,
    pub(super) requests: usize,
    /// The script alone, by `INFO commandstats`.
    pub(super) reserve_us: f64,
    pub(super) settle_us: f64,
    /// All that Redis' process used for both: reading, writing and expiring too.
    pub(super) redis_cpu_us: f64,
    /// Of this closed loop, which shares the machine with its clients.
    pub(super) requests_per_second: f64,
}

impl ScriptTime {
    /// What one core could do that has nothing else to do.
    pub(super) fn requests_per_core(&self) -> f64 {
        1e6 / self.redis_cpu_us
    }
}

/// Calls of a script.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    calls: u64,
    us: u64,
}

/// Measures requests of 1, 3 and 6 limits.
pub(super) async fn measure(pace: Pace, progress: &mut Progress) -> Result<Vec<ScriptTime>> {
    let time = pace.whole.saturating_mul(u32::try_from(pace.rounds).unwrap_or(1));
    let mut measured = Vec::new();
    for limits in [1, 3, 6] {
        progress.say(&format!("script time, limits of a request: {limits}"));
        measured.push(of(limits, time).await?);
    }
    Ok(measured)
}

async fn of(limits: usize, time: Duration) -> Result<ScriptTime> {
    let directory = Directory::temporary()?;
    let redis = Redis::start(directory.path(), &[]).await?;
    let population = Population::new(USUAL.get(..limits).unwrap_or_default(), KEYS)?;
    let stores = (0..STORES).map(|_| store(&redis)).collect::<Result<Vec<_>>>()?;
    let mut connection = redis.connection().await?;

    let (mut reserve, mut settle, mut requests) = (Calls::default(), Calls::default(), 0);
    // The first batch teaches Redis the scripts.
    batch(&stores, &population, 0, &mut connection).await?;
    let (cpu, start) = (Cpu::of_process(redis.id()), Instant::now());
    while requests == 0 || start.elapsed() < time {
        let [reserved, settled] = batch(&stores, &population, requests, &mut connection).await?;
        reserve = reserve.and(reserved);
        settle = settle.and(settled);
        requests += BATCH;
    }
    let (elapsed, cpu) = (start.elapsed(), Cpu::of_process(redis.id()).saturating_sub(cpu));
    if (reserve.calls, settle.calls) != (requests as u64, requests as u64) {
        return Err(Error::unexpected(
            "not every request was one script call each way",
            format!("{reserve:?}, {settle:?}"),
        ));
    }
    Ok(ScriptTime {
        limits,
        requests,
        reserve_us: reserve.mean_us(),
        settle_us: settle.mean_us(),
        redis_cpu_us: us(cpu) / requests as f64,
        requests_per_second: requests as f64 / elapsed.as_secs_f64(),
    })
}

/// Reserves and settles one batch; gives Redis' account of each.
async fn batch(
    stores: &[RedisStore],
    population: &Population,
    first: usize,
    connection: &mut MultiplexedConnection,
) -> Result<[Calls; 2]> {
    let requests: Vec<_> = (first..first + BATCH).map(|index| population.request(index, 600)).collect();
    let usage = Usage { input: 300, output: 200, total: 500, ..Usage::default() };
    let settlements: Vec<_> = requests.iter().map(|request| request.settlement(&usage)).collect();
    let () = ask(connection, &["CONFIG", "RESETSTAT"]).await?;
    each(stores, &requests, async |store: &RedisStore, request: &ReserveRequest| {
        store.reserve(request).await.map(drop).map_err(failed("reserve"))
    })
    .await?;
    let reserved = Calls::so_far(connection).await?;
    let () = ask(connection, &["CONFIG", "RESETSTAT"]).await?;
    each(stores, &settlements, async |store: &RedisStore, settlement: &Settlement| {
        store.settle(settlement).await.map(drop).map_err(failed("settle"))
    })
    .await?;
    Ok([reserved, Calls::so_far(connection).await?])
}

/// Has each store work off its part, many at a time.
async fn each<T>(stores: &[RedisStore], items: &[T], run: impl AsyncFn(&RedisStore, &T) -> Result<()>) -> Result<()> {
    let parts = items.chunks(items.len().div_ceil(stores.len()).max(1));
    let lanes = stores.iter().zip(parts).map(|(store, part)| {
        let run = &run;
        stream::iter(part).map(move |item| run(store, item)).buffer_unordered(IN_FLIGHT).collect::<Vec<_>>()
    });
    join_all(lanes).await.into_iter().flatten().collect()
}

impl Calls {
    /// Since the last reset.
    async fn so_far(connection: &mut MultiplexedConnection) -> Result<Self> {
        let info: String = ask(connection, &["INFO", "commandstats"]).await?;
        Ok(Self::parse(&info))
    }

    fn parse(info: &str) -> Self {
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or_default();
        let number = |name: &str| {
            let value = line.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
        };
        Self { calls: number("calls"), us: number("usec") }
    }

    fn and(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, us: self.us + other.us }
    }

    fn mean_us(self) -> f64 {
        self.us as f64 / self.calls as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_account_is_read() {
        let info = "# Commandstats\r\ncmdstat_eval:calls=1,usec=9,usec_per_call=9.00\r\n\
            cmdstat_evalsha:calls=200,usec=9000,usec_per_call=45.00,rejected_calls=0,failed_calls=0\r\n";
        let Calls { calls, us } = Calls::parse(info);
        assert_eq!((calls, us), (200, 9_000));
        assert_eq!(Calls::parse("").calls, 0);
    }
}
