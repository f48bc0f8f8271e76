//! What limits cost at the client: admitted with the ledger in memory and in Redis; refused by the store, by what the
//! sidecar remembers, and by the Wasm filter. Beside the plain route of the same round, like the tables of the other chapters.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use attache::limit::{Decision, Ledger, SharedOptions};
use attache_model_server::{Config as ModelConfig, ModelServer};
use attache_proto::Usage;
use attache_tests::{Client, Directory, Error, EventStream, Redis, Result, Sidecar, template};
use serde::Serialize;
use serde_json::json;
use tokio::task::AbortHandle;

use super::{
    failed,
    population::Population,
    round_trips::{self, RoundTrips},
    store,
};
use crate::{
    bed::{self, Bed},
    bootstrap::Variant,
    client::{Expected, Load},
    measure::{self, Pace, Row, Turn, take_turn, us},
    report::Progress,
    statistics::{percentile, turns},
    workload::{Answers, Caller, Workload},
};

const CASE: &str = "limits at the client, 2 kB body, 1 connection";

/// Whose use is settled: one token was allowed.
const SPENT: Caller = Caller { key: "sk-bench-spent", model: "spent" };

/// Who has one slot, which is taken. Only the store knows whether it still is.
const BUSY: Caller = Caller { key: "sk-bench-busy", model: "busy" };

/// A way to an answer.
#[derive(Debug, Serialize)]
pub(crate) struct Way {
    pub(super) name: &'static str,
    pub(super) row: Row,
    /// How often the sidecar was asked, for each request.
    pub(super) sidecar_asked: f64,
    /// How often the store was asked or told, for each request.
    pub(super) store_asked: f64,
    /// How often Envoy closed the connection, for each request.
    pub(super) reconnects: f64,
}

/// A refusal by what the sidecar remembers, inside it.
#[derive(Debug, Serialize)]
pub(crate) struct CachedRefusal {
    pub(super) refusals: usize,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

struct Lane {
    name: &'static str,
    variant: Variant,
    load: Load,
    turns: Vec<Turn>,
    asked: Asked,
}

#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    sidecar: f64,
    store: f64,
}

/// Measures all ways, and counts what two of them ask of Redis.
pub(super) async fn measure(pace: Pace, progress: &mut Progress) -> Result<(RoundTrips, Vec<Way>)> {
    let slow = ModelConfig { time_per_output_token: Duration::from_millis(100), ..ModelConfig::default() };
    let slow = ModelServer::start(slow).await.map_err(failed("start a model server"))?;
    let bed = Bed::start(Answers::Whole, &template::fill(&documents(), &[slow.addr()])?).await?;
    let workload = Workload { answers: Answers::Whole, body_bytes: 2_000, connections: 1 };
    for variant in [Variant::Redis, Variant::Both] {
        spend(&bed, variant, &workload).await?;
    }
    let busy = keep_busy(&bed).await?;

    let round_trips = round_trips::measure(&bed, &workload).await?;
    let admitted = |variant| load(&bed, variant, &workload, Caller::UNLIMITED, 200);
    let lane = |name, variant, load| Lane { name, variant, load, turns: Vec::new(), asked: Asked::default() };
    let mut lanes = [
        lane("plain Envoy", Variant::Plain, admitted(Variant::Plain)?),
        lane("admitted, memory", Variant::Sidecar, admitted(Variant::Sidecar)?),
        lane("admitted, Redis", Variant::Redis, admitted(Variant::Redis)?),
        lane("refused by Redis", Variant::Redis, load(&bed, Variant::Redis, &workload, BUSY, 429)?),
        lane("refused by sidecar", Variant::Redis, refused_load(&bed, Variant::Redis, &workload)?),
        lane("refused by filter", Variant::Both, refused_load(&bed, Variant::Both, &workload)?),
    ];
    for round in 0..=pace.rounds {
        progress.show(CASE, round, pace.rounds);
        for turn in turns(round, lanes.len()) {
            let Some(lane) = lanes.get_mut(turn) else { continue };
            let before = Asked::so_far(&bed, lane.variant).await?;
            let turn = take_turn(&bed, lane.variant, &mut lane.load, pace.whole, Answers::Whole);
            let turn = turn.map_err(measure::failed(lane.name, lane.variant))?;
            if round > 0 {
                lane.asked.add(Asked::so_far(&bed, lane.variant).await?, before);
                lane.turns.push(turn);
            }
        }
    }
    busy.abort();

    let plain = lanes.first().map(|lane| lane.turns.clone()).unwrap_or_default();
    let ways = lanes.into_iter().map(|lane| {
        let requests: f64 = lane.turns.iter().map(|turn| turn.requests).sum();
        Way {
            name: lane.name,
            row: Row::of(lane.variant, &lane.turns, &plain),
            sidecar_asked: lane.asked.sidecar / requests,
            store_asked: lane.asked.store / requests,
            reconnects: lane.turns.iter().map(|turn| turn.reconnects).sum::<f64>() / requests,
        }
    });
    Ok((round_trips, ways.collect()))
}

/// Measures a refusal at the ledger, without what gRPC and Envoy add.
pub(super) async fn cached_refusal(progress: &mut Progress) -> Result<CachedRefusal> {
    const REFUSALS: usize = 20_000;
    progress.say("a remembered refusal");
    let directory = Directory::temporary()?;
    let redis = Redis::start(directory.path(), &[]).await?;
    let ledger = Ledger::redis(store(&redis)?, SharedOptions::default());
    let population = Population::new(&["{name: spent, per: [key], limit: 1, window: 300d}"], 1)?;
    let ask = async || {
        let request = Arc::new(population.request(0, 40));
        let start = Instant::now();
        let decision = ledger.reserve(&request).await.map_err(failed("reserve"))?;
        Ok::<_, Error>((decision, start.elapsed()))
    };
    let (decision, _) = ask().await?;
    if let Decision::Granted(reservation) = decision {
        ledger.settle_detached(reservation.settlement(&Usage { total: 40, ..Usage::default() }));
        ledger.drain(Duration::from_secs(10)).await;
    }
    let mut taken = Vec::with_capacity(REFUSALS);
    for _ in 0..REFUSALS {
        let (decision, time) = ask().await?;
        if matches!(decision, Decision::Granted(_)) {
            return Err(Error::unexpected("a key that is spent was", "admitted"));
        }
        taken.push(us(time));
    }
    Ok(CachedRefusal {
        refusals: REFUSALS,
        p50_us: percentile(taken.iter().copied(), 50.0),
        p99_us: percentile(taken, 99.0),
    })
}

/// Requests that settled use alone refuses.
pub(super) fn refused_load(bed: &Bed, variant: Variant, workload: &Workload) -> Result<Load> {
    load(bed, variant, workload, SPENT, 429)
}

fn load(bed: &Bed, variant: Variant, workload: &Workload, caller: Caller, status: u16) -> Result<Load> {
    let address = bed.listener(variant)?;
    let request = workload.request_of(caller, &address.to_string());
    let load = Load::connect(address, workload.connections, request, Expected { status, events: 0 });
    load.map_err(measure::failed(CASE, variant))
}

/// Uses up what there is, until it is settled.
async fn spend(bed: &Bed, variant: Variant, workload: &Workload) -> Result<()> {
    const ATTEMPTS: usize = 100;
    let client = Client::new(format!("http://{}", bed.listener(variant)?))?.with_key(SPENT.key);
    let body = serde_json::from_str(&workload.body(SPENT.model)).map_err(failed("read a body"))?;
    for _ in 0..ATTEMPTS {
        match client.chat(&body).await?.status {
            200 => tokio::time::sleep(Duration::from_millis(20)).await,
            429 => return Ok(()),
            other => return Err(Error::unexpected("an answer is neither 200 nor 429", other.to_string())),
        }
    }
    Err(Error::unexpected("a limit of one token does not refuse", variant.name()))
}

/// Takes the one slot for as long as the measurement may take.
async fn keep_busy(bed: &Bed) -> Result<AbortHandle> {
    const LONG: Duration = Duration::from_secs(600);
    let client = Client::new(format!("http://{}", bed.listener(Variant::Redis)?))?.with_key(BUSY.key);
    let message = json!({"role": "user", "content": "Hi"});
    let body = json!({"model": BUSY.model, "messages": [message], "max_tokens": 1_000_000, "stream": true});
    let mut stream = EventStream::to(client.post("/v1/chat/completions", &body).timeout(LONG)).await?;
    if stream.status != 200 || stream.next().await?.is_none() {
        return Err(Error::unexpected("the slot is not to be had", stream.status.to_string()));
    }
    Ok(tokio::spawn(async move { while stream.next().await.is_ok_and(|event| event.is_some()) {} }).abort_handle())
}

impl Asked {
    async fn so_far(bed: &Bed, variant: Variant) -> Result<Self> {
        let sidecar: &Sidecar = if variant == Variant::Redis { &bed.on_redis()?.0 } else { &bed.sidecar };
        let metrics = sidecar.metrics().await?;
        Ok(Self {
            sidecar: metrics.sum("attache_streams_total", &[]),
            store: metrics.sum("attache_store_round_trips_total", &[]),
        })
    }

    fn add(&mut self, now: Self, before: Self) {
        self.sidecar += now.sidecar - before.sidecar;
        self.store += now.store - before.store;
    }
}

/// Two keys and their routes, beside those of every bed.
fn documents() -> String {
    let caller = |Caller { key, model }: Caller, backend: &str, limit: &str| {
        let sha256 = bed::sha256(key);
        format!(
            r#"---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {{name: {model}}}
spec:
  rules:
  - matches: [{{headers: [{{name: x-ai-eg-model, value: {model}}}]}}]
    backendRefs: [{{name: {backend}}}]
---
apiVersion: attache.dev/v1alpha1
kind: ClientKey
metadata: {{name: {model}}}
spec: {{sha256: {sha256}, tenant: {model}, routes: [{model}]}}
---
apiVersion: attache.dev/v1alpha1
kind: TokenLimitPolicy
metadata: {{name: {model}}}
spec:
  targetRefs: [{{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: {model}}}]
  limits: [{limit}]
"#
        )
    };
    let slow = r"---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: slow}
spec: {endpoints: ${MODELS}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: slow}
spec:
  schema: {name: OpenAI}
  backendRef: {group: gateway.envoyproxy.io, kind: Backend, name: slow}
";
    [
        slow.to_owned(),
        caller(SPENT, "pool", "{name: spent, per: [key], limit: 1, window: 300d}"),
        caller(BUSY, "slow", "{name: busy, per: [key], concurrency: 1}"),
    ]
    .concat()
}
