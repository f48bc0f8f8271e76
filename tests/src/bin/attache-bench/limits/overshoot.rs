//! How far a limit is overdrawn with 128 requests in flight: in each mode at the real gateway, and with a cap at the stores.

use std::time::{Duration, Instant};

use attache::limit::{Admission, MemoryStore, ReserveRequest, Settlement, Store, StoreError};
use attache_model_server::Config as ModelConfig;
use attache_proto::Usage;
use attache_tests::{Client, Counters, Directory, Error, Redis, Result, Stack, until};
use futures_util::{StreamExt as _, future::try_join_all, stream};
use serde::Serialize;
use serde_json::{Value, json};

use super::{failed, population::Population, store};
use crate::{bed::sha256, measure::Pace, report::Progress};

const IN_FLIGHT: usize = 128;

/// What a call costs: from 29 to 40 tokens.
const CHEAPEST: usize = 29;
const DEAREST: usize = 40;

/// What the simulated model server counts of the prompt.
const PROMPT: usize = 9;

const KEY: &str = "sk-bench";

/// What the product that this one replaces let through of each limit: it checks, calls the model, and charges afterwards.
const LIMITS: [(u64, f64); 2] = [(300, 32.8), (10_000, 2.45)];

/// A mode as an operator writes it.
struct Mode {
    name: &'static str,
    fields: &'static str,
    /// The most that may be settled of a limit; nothing where requests in flight have no bound.
    bound: fn(u64) -> Option<u64>,
}

const MODES: [Mode; 4] = [
    Mode { name: "strict, cap", fields: "mode: strict, cap: true", bound: Some },
    Mode { name: "strict", fields: "mode: strict", bound: |limit| Some(limit + missed(limit)) },
    Mode { name: "soft", fields: "mode: soft", bound: |limit| Some(limit - 1 + DEAREST as u64 + missed(limit)) },
    Mode { name: "check", fields: "mode: check", bound: |_| None },
];

/// What the estimates of all requests miss that are held within a limit: at most the prompt, as answers are as long as the
/// request lets them be.
fn missed(limit: u64) -> u64 {
    let held_at_once = (limit / (CHEAPEST - PROMPT) as u64 + 1).min(IN_FLIGHT as u64);
    PROMPT as u64 * held_at_once
}

/// What became of one limit in one mode.
#[derive(Debug, Serialize)]
pub(crate) struct Overshoot {
    pub(super) mode: &'static str,
    pub(super) limit: u64,
    pub(super) admitted: usize,
    pub(super) settled: u64,
    /// What may be settled at most; nothing where the mode has no bound.
    pub(super) bound: Option<u64>,
    /// What the product that is replaced let through, as a share of the limit.
    pub(super) replaced: f64,
}

/// Requests with a cap at a store alone, many keys one after another.
#[derive(Debug, Serialize)]
pub(crate) struct Capped {
    pub(super) store: &'static str,
    pub(super) requests: usize,
    pub(super) admitted: usize,
    /// Above the limits, all keys together.
    pub(super) tokens_over: u64,
}

/// Measures every mode: 128 clients call until they are refused.
pub(super) async fn measure(progress: &mut Progress) -> Result<Vec<Overshoot>> {
    let model = ModelConfig { time_per_output_token: Duration::from_millis(5), ..ModelConfig::default() };
    let stack = Stack::builder(documents()).model(model).without_wasm().redis().start().await?;
    let counters = stack.counters()?;
    let mut measured = Vec::new();
    for (limit, replaced) in LIMITS {
        for (index, Mode { name: mode, bound, .. }) in MODES.into_iter().enumerate() {
            progress.say(&format!("overshoot at 128 in flight: {mode}, {limit} tokens"));
            let name = name(limit, index);
            let client = stack.client().with_key(KEY);
            let admitted = try_join_all((0..IN_FLIGHT).map(|caller| until_refused(&client, &name, caller))).await?;
            let settled = at_rest(&counters, &name).await?;
            let admitted = admitted.into_iter().sum();
            measured.push(Overshoot { mode, limit, admitted, settled, bound: bound(limit), replaced });
        }
    }
    Ok(measured)
}

/// Calls until it is refused; says how often it was not.
async fn until_refused(client: &Client, model: &str, caller: usize) -> Result<usize> {
    let mut admitted = 0;
    loop {
        let answer = client.chat(&chat(model, CHEAPEST + (caller + admitted) % (DEAREST - CHEAPEST + 1))).await?;
        match answer.status {
            200 => admitted += 1,
            429 => return Ok(admitted),
            _ => return Err(Error::unexpected("an answer is neither 200 nor 429", answer.text())),
        }
    }
}

/// What is settled when nothing is held any more.
async fn at_rest(counters: &Counters, name: &str) -> Result<u64> {
    let (mut before, mut settled) = (None, None);
    until("everything was settled", async || {
        before = settled;
        settled = match counters.state(&format!("{name}/limit"), "bench", "bench").await {
            Ok(state) if state.held == 0 => Some(state.used()),
            _ => None,
        };
        // `check` holds nothing, so only a use that stays says that all of it is there.
        tokio::time::sleep(Duration::from_millis(100)).await;
        settled.is_some() && settled == before
    })
    .await?;
    Ok(settled.unwrap_or_default())
}

/// Measures what the stores let through where answers are held to their reservations.
pub(super) async fn capped(pace: Pace, progress: &mut Progress) -> Result<Vec<Capped>> {
    const MOST: usize = 1_000_000;
    progress.say("strict with a cap at the stores");
    let time = pace.whole.saturating_mul(u32::try_from(pace.rounds).unwrap_or(1));
    let memory = of_store("memory", &MemoryStore::new(), time, MOST).await?;
    let directory = Directory::temporary()?;
    let redis = Redis::start(directory.path(), &[]).await?;
    Ok(vec![memory, of_store("Redis", &store(&redis)?, time, MOST).await?])
}

async fn of_store<S: Store>(name: &'static str, store: &S, time: Duration, most: usize) -> Result<Capped> {
    /// So many that the last of them are refused whatever the first have used.
    const CALLS_OF_A_KEY: usize = 500;
    let limit = "{name: capped, per: [key], limit: 10000, window: 300d, mode: strict, cap: true}";
    let population = Population::new(&[limit], usize::MAX)?;
    let mut capped = Capped { store: name, requests: 0, admitted: 0, tokens_over: 0 };
    let start = Instant::now();
    for key in 0.. {
        if capped.requests >= most || start.elapsed() >= time {
            break;
        }
        let calls = stream::iter(0..CALLS_OF_A_KEY)
            .map(|call| exchange(store, population.request(key, tokens_of(call)), call))
            .buffer_unordered(IN_FLIGHT);
        let calls: Vec<Result<bool, StoreError>> = calls.collect().await;
        capped.requests += calls.len();
        for admitted in calls {
            capped.admitted += usize::from(admitted.map_err(failed("reserve"))?);
        }
        let holds = population.request(key, 0).holds;
        let states = store.peek(&holds).await.map_err(failed("read a counter"))?;
        let over = states.iter().zip(&holds).map(|(state, hold)| state.used().saturating_sub(hold.limit.amount));
        capped.tokens_over += over.sum::<u64>();
    }
    Ok(capped)
}

fn tokens_of(call: usize) -> u64 {
    (CHEAPEST + call % (DEAREST - CHEAPEST + 1)) as u64
}

/// Whether it was admitted. What was used is settled after others had their turn, and never is more than what was held.
async fn exchange<S: Store>(store: &S, request: ReserveRequest, call: usize) -> Result<bool, StoreError> {
    if let Admission::Refused { .. } = store.reserve(&request).await? {
        return Ok(false);
    }
    tokio::task::yield_now().await;
    let held = request.holds.iter().map(|hold| hold.estimate).min().unwrap_or_default();
    let used = held.saturating_sub(call as u64 % 3);
    let settlement: Settlement = request.settlement(&Usage { total: used, ..Usage::default() });
    store.settle(&settlement).await?;
    Ok(true)
}

/// A route, and the model, of one limit in one mode.
fn name(limit: u64, mode: usize) -> String {
    format!("limit-{limit}-{mode}")
}

fn chat(model: &str, tokens: usize) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": tokens - PROMPT})
}

/// A route and a policy for each limit in each mode.
fn documents() -> String {
    let mut documents = r"apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: pool}
spec: {endpoints: ${MODELS}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: pool}
spec:
  schema: {name: OpenAI}
  backendRef: {group: gateway.envoyproxy.io, kind: Backend, name: pool}
"
    .to_owned();
    let mut routes = Vec::new();
    for (limit, _) in LIMITS {
        for (index, Mode { fields, .. }) in MODES.into_iter().enumerate() {
            let name = name(limit, index);
            documents += &format!(
                r"---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {{name: {name}}}
spec:
  rules:
  - matches: [{{headers: [{{name: x-ai-eg-model, value: {name}}}]}}]
    backendRefs: [{{name: pool}}]
---
apiVersion: attache.dev/v1alpha1
kind: TokenLimitPolicy
metadata: {{name: {name}}}
spec:
  targetRefs: [{{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: {name}}}]
  limits: [{{name: limit, per: [key], limit: {limit}, window: 300d, {fields}}}]
"
            );
            routes.push(name);
        }
    }
    let (sha256, routes) = (sha256(KEY), routes.join(", "));
    documents
        + &format!(
            "---\napiVersion: attache.dev/v1alpha1\nkind: ClientKey\nmetadata: {{name: bench}}\n\
             spec: {{sha256: {sha256}, tenant: bench, routes: [{routes}]}}\n"
        )
}
