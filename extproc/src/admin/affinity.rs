//! `/affinity`: what replicas are thought to hold and to have to do; and `/affinity/explain`: where a request would go, and why.
//!
//! Neither shows text. But whoever may ask where a prompt is in cache can try whether somebody has sent it, so explaining is for
//! this machine alone, and not for a browser's pages.

use std::net::SocketAddr;
use std::time::Instant;

use attache_gate::{Access, KeyEntry};
use attache_proto::Operation;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::Admin;
use super::guard::{Stranger, stranger};
use crate::affinity::{EndpointStats, Standing};
use crate::config::Config;
use crate::exchange::{self, Explanation, Headers, Question, SiteExplanation};
use crate::telemetry::{EndpointState, PoolFigure, PoolFigures};

/// `GET /affinity`: the figures of every pool, as `/metrics` has them, in one piece.
///
/// ```json
/// {"pools": [{"cluster": "default/vllm", "promptTokens": 0, "availableTokens": 0, "predictedTokens": 0, "deliveredTokens": 0,
///   "imbalance": null, "sharing": false, "restarts": 0, "droppedNews": 0,
///   "index": {"blocks": 0, "bytes": 0, "budgetBytes": 0, "evictions": 0},
///   "endpoints": [{"endpoint": "10.0.0.1:8000", "state": "up", "failure": null, "inFlight": 0, "ownPendingTokens": 0, "pendingTokens": 0,
///     "waiting": null, "running": null, "kvUsage": null, "cacheTokens": null, "trust": 1.0, "weight": 1.0,
///     "heldBytes": 0, "routedTokens": 0, "recentTokens": 0}]}]}
/// ```
pub(super) async fn show(State(admin): State<Admin>) -> Json<Value> {
    let figures = PoolFigures::of(&admin.world.fleet, &admin.world.cooldown, Instant::now());
    Json(json!({"pools": figures.iter().map(pool).collect::<Vec<_>>()}))
}

fn pool(PoolFigure { cluster, stats, states, failures }: &PoolFigure) -> Value {
    let endpoints = stats.endpoints.iter().zip(states).zip(failures);
    json!({
        "cluster": &**cluster,
        "promptTokens": stats.prompt_tokens,
        "availableTokens": stats.available_tokens,
        "predictedTokens": stats.predicted_tokens,
        "deliveredTokens": stats.delivered_tokens,
        "imbalance": stats.imbalance().map(rounded),
        "sharing": stats.is_shared,
        "restarts": stats.restarts,
        "droppedNews": stats.dropped_news,
        "index": {
            "blocks": stats.index_blocks,
            "bytes": stats.index_bytes,
            "budgetBytes": stats.index_budget_bytes,
            "evictions": stats.index_evictions,
        },
        "endpoints": endpoints.map(|((stats, state), failure)| endpoint(stats, *state, failure.as_deref())).collect::<Vec<_>>(),
    })
}

fn endpoint(stats: &EndpointStats, state: EndpointState, failure: Option<&str>) -> Value {
    json!({
        "endpoint": &*stats.endpoint,
        "state": state.as_str(),
        "failure": failure,
        "inFlight": stats.own.requests,
        "ownPendingTokens": stats.own.pending_tokens.round(),
        "pendingTokens": stats.pending_tokens.round(),
        "waiting": stats.page.map(|page| page.waiting),
        "running": stats.page.map(|page| page.running),
        "kvUsage": stats.page.map(|page| page.kv_usage),
        "cacheTokens": stats.page.and_then(|page| page.capacity_tokens),
        "trust": rounded(stats.trust),
        "weight": rounded(stats.weight),
        "heldBytes": stats.held_bytes,
        "routedTokens": stats.routed_tokens,
        "recentTokens": stats.recent_tokens.round(),
    })
}

/// `POST /affinity/explain`: where the request in the body would go now. Nothing of it is noted, and nothing of its text comes back.
///
/// The query may have `path`, the API that is called (`/v1/chat/completions` where it is left out), `key`, a ClientKey as
/// NAMESPACE/NAME or as a NAME in `default`, by whose routes and tenant it is judged, and `tenant`, for one without a key. Headers
/// that routes or policies look at (a session, `x-...` conditions) are taken from this request's own.
///
/// ```json
/// {"model": "chat", "route": "default/chat", "promptBytes": 5120, "blocks": 20, "chosen": 0, "reason": "home",
///  "sites": [{"backend": "default/vllm", "cluster": "default/vllm", "model": "qwen", "policy": "default/vllm-affinity",
///    "priority": 0, "weight": 1, "bySession": false, "hotBlocks": 4, "bytesPerToken": 4.1,
///    "reason": "prefix", "cost": 0.021, "order": ["10.0.0.1:8000", "10.0.0.2:8000"],
///    "endpoints": [{"endpoint": "10.0.0.1:8000", "state": "up", "matchedBytes": 4864, "pendingTokens": 0, "rank": 0,
///      "cost": 0.021}]}]}
/// ```
/// `reason` of all is `only`, `home`, `weight` or `load`; that of a site is one of `attache_affinity_decisions_total`. `cost` is
/// in seconds; `rank` 0 is the home; `endpoints` are in the pool's order, `order` is as they would be tried, and empty where there
/// are none. `promptBytes` is null for what leaves nothing in a cache. An error is `{"error": "..."}` with 400, 403 or 404.
pub(super) async fn explain(
    State(admin): State<Admin>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match try_explain(&admin, peer, &headers, query.as_deref().unwrap_or_default(), &body) {
        Ok(page) => Json(page).into_response(),
        Err(problem) => problem.into_response(),
    }
}

fn try_explain(
    admin: &Admin,
    peer: SocketAddr,
    headers: &HeaderMap,
    query: &str,
    body: &[u8],
) -> Result<Value, Problem> {
    if let Some(stranger) = stranger(peer, headers) {
        let message = match stranger {
            Stranger::Remote => {
                "placements are explained to the sidecar's own machine or pod alone: they tell what others have sent"
            }
            Stranger::Forwarded => "placements are not explained through a proxy: nobody here sees who is behind it",
            Stranger::Page => "placements are not explained to a browser",
        };
        return Err(Problem::new(StatusCode::FORBIDDEN, message));
    }
    let asked = Asked::read(query)?;
    let config = admin.world.config.load_full();
    let key = asked.key.as_deref().map(|key| find_key(&config, key)).transpose()?;
    let headers = Headers(
        headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())))
            .collect(),
    );
    let question = Question {
        operation: asked.operation,
        body,
        headers: &headers,
        routes: key.map(|key| key.routes.as_slice()),
        tenant: asked.tenant.as_deref().or(key.map(|key| key.tenant.as_str())),
        entropy: admin.world.entropy(),
    };
    let now = Instant::now();
    let explanation = exchange::explain(&question, &config, &admin.world.memory(), now)
        .map_err(|unexplained| Problem::new(StatusCode::BAD_REQUEST, unexplained.to_string()))?;
    Ok(page(&explanation, &PoolFigures::of(&admin.world.fleet, &admin.world.cooldown, now)))
}

fn page(explanation: &Explanation<'_>, figures: &PoolFigures) -> Value {
    json!({
        "model": &*explanation.model,
        "route": &*explanation.route,
        "promptBytes": explanation.prompt_bytes,
        "blocks": explanation.blocks,
        "chosen": explanation.chosen,
        "reason": explanation.reason.as_str(),
        "sites": explanation.sites.iter().map(|one| site(one, figures)).collect::<Vec<_>>(),
    })
}

fn site(site: &SiteExplanation<'_>, figures: &PoolFigures) -> Value {
    let pool = figures.iter().find(|pool| pool.cluster == site.backend.cluster);
    let state = |endpoint: &str| {
        let mut known = pool.into_iter().flat_map(|pool| pool.stats.endpoints.iter().zip(&pool.states));
        known.find(|(stats, _)| *stats.endpoint == *endpoint).map(|(_, state)| state.as_str())
    };
    let endpoint = |standing: &Standing| {
        json!({
            "endpoint": &*standing.endpoint,
            "state": state(&standing.endpoint),
            "matchedBytes": standing.matched_bytes,
            "pendingTokens": standing.pending_tokens.round(),
            "rank": standing.rank,
            "cost": rounded(standing.cost),
        })
    };
    json!({
        "backend": site.backend.name.to_string(),
        "cluster": &*site.backend.cluster,
        "model": &*site.served_model,
        "policy": &*site.backend.affinity.id,
        "priority": site.target.priority,
        "weight": site.target.weight,
        "bySession": site.by_session,
        "hotBlocks": site.hot_blocks,
        "bytesPerToken": rounded(site.bytes_per_token),
        "reason": site.reason.as_str(),
        "cost": rounded(site.cost),
        "order": site.order.iter().map(|endpoint| &**endpoint).collect::<Vec<_>>(),
        "endpoints": site.standings.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// To the thousandth; null for what has no end.
fn rounded(figure: f64) -> Option<f64> {
    (figure < f64::MAX).then(|| (figure * 1_000.0).round() / 1_000.0)
}

/// A name without a namespace is one in `default`, as everywhere.
fn find_key<'a>(config: &'a Config, name: &str) -> Result<&'a KeyEntry, Problem> {
    let id = if name.contains('/') { name.to_owned() } else { format!("default/{name}") };
    let keys = match &config.gate_config.access {
        Access::Open => [].iter(),
        Access::Keys(keys) => keys.iter(),
    };
    let mut keys = keys;
    keys.find(|key| key.id == id).ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, format!("there is no key `{id}`")))
}

/// What a query asks for.
#[derive(Debug)]
struct Asked {
    operation: Operation,
    key: Option<String>,
    tenant: Option<String>,
}

impl Asked {
    fn read(query: &str) -> Result<Self, Problem> {
        let mut asked = Self { operation: Operation::ChatCompletions, key: None, tenant: None };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "path" => {
                    asked.operation = Operation::resolve("POST", &value, "").map_err(|_| {
                        Problem::new(StatusCode::BAD_REQUEST, "`path` is no API here; write /v1/chat/completions")
                    })?;
                }
                "key" if !value.is_empty() => asked.key = Some(value.into_owned()),
                "tenant" if !value.is_empty() => asked.tenant = Some(value.into_owned()),
                _ => {
                    let message = format!("`{name}` is not understood or empty; there is path, key and tenant");
                    return Err(Problem::new(StatusCode::BAD_REQUEST, message));
                }
            }
        }
        Ok(asked)
    }
}

/// Why there is no page.
#[derive(Debug)]
struct Problem {
    status: StatusCode,
    message: String,
}

impl Problem {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"error": self.message}))).into_response()
    }
}

#[cfg(test)]
mod tests;
