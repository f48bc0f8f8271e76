//! What a request asks of Redis, counted by Redis, through the real Envoy and the real sidecar.

use attache_tests::{Error, Result, Sidecar, until};
use serde::Serialize;

use super::{latency::refused_load, monitor::Monitor};
use crate::{
    bed::Bed,
    bootstrap::Variant,
    client::{Load, Until},
    workload::Workload,
};

/// Requests that are counted.
const REQUESTS: usize = 500;

/// Commands of the sidecar that has its ledger in Redis.
#[derive(Debug, Serialize)]
pub(crate) struct RoundTrips {
    pub(super) admitted: usize,
    /// For each admitted request, on the connection that requests wait for.
    pub(super) on_the_path: f64,
    /// For each admitted request, on all connections.
    pub(super) in_all: f64,
    /// Refusals that the sidecar remembered: of a key whose settled use alone refuses it. After five seconds it asks anew.
    pub(super) remembered: f64,
    /// For all of those.
    pub(super) for_remembered: f64,
}

pub(super) async fn measure(bed: &Bed, workload: &Workload) -> Result<RoundTrips> {
    let (sidecar, redis) = bed.on_redis()?;
    let address = bed.listener(Variant::Redis)?;
    let failed = |source| Error::Io { what: "count commands".to_owned(), source };

    let request = workload.request(&address.to_string());
    let mut load = Load::connect(address, 1, request, workload.expected()).map_err(failed)?;
    settled(sidecar).await?;
    let monitor = Monitor::start(redis.address()).map_err(failed)?;
    load.run(Until::Requests(REQUESTS)).map_err(failed)?;
    settled(sidecar).await?;
    let admitted = monitor.end().map_err(failed)?;

    let mut load = refused_load(bed, Variant::Redis, workload)?;
    load.run(Until::Requests(1)).map_err(failed)?;
    let before = remembered(sidecar).await?;
    let monitor = Monitor::start(redis.address()).map_err(failed)?;
    load.run(Until::Requests(REQUESTS)).map_err(failed)?;
    let refused = monitor.end().map_err(failed)?;
    let remembered = remembered(sidecar).await? - before;
    if remembered == 0.0 {
        return Err(Error::unexpected("the sidecar remembers", "no refusal"));
    }

    let each = |commands: u64| commands as f64 / REQUESTS as f64;
    Ok(RoundTrips {
        admitted: REQUESTS,
        on_the_path: each(admitted.of_first_connection()),
        in_all: each(admitted.total()),
        remembered,
        // The others cost one each, as an admitted request does.
        for_remembered: refused.total() as f64 - (REQUESTS as f64 - remembered),
    })
}

async fn remembered(sidecar: &Sidecar) -> Result<f64> {
    Ok(sidecar.metrics().await?.sum("attache_ledger_cached_refusals_total", &[]))
}

/// Waits until nothing is on its way to Redis. What an answer cost is on its way before the client has all of it.
async fn settled(sidecar: &Sidecar) -> Result<()> {
    until("everything was settled", async || {
        let waiting = sidecar.metrics().await.map(|metrics| metrics.sum("attache_store_queue", &[]));
        waiting.is_ok_and(|waiting| waiting == 0.0)
    })
    .await
}
