//! The admin port: health, whether Envoy asks us, metrics, the configuration in force, how limits stand and what replicas are thought to hold. It is for
//! operators and probes and shows no secret.

mod affinity;
mod guard;
mod limits;

pub use guard::{Guard, first_line};

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use attache_gate::Access;
use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::Config;
use crate::config::host::HostName;
use crate::config::model::{RuleMatch, ValueMatch};
use crate::config::upstream::{Credentials, Mutation};
use crate::readiness::Readiness;
use crate::telemetry::PoolFigures;
use crate::world::World;

/// What the pages read.
#[derive(Debug, Clone)]
pub struct Admin {
    world: Arc<World>,
    readiness: watch::Receiver<Readiness>,
}

impl Admin {
    /// Pages about `world`; `readiness` is what `/readyz` says.
    pub fn new(world: Arc<World>, readiness: watch::Receiver<Readiness>) -> Self {
        Self { world, readiness }
    }

    /// The routes.
    fn router(self) -> Router {
        let longest_body = usize::try_from(self.world.settings.max_body_bytes).unwrap_or(usize::MAX);
        Router::new()
            .route("/attached", get(attached))
            .route("/metrics", get(metrics))
            .route("/config", get(config))
            .route("/limits", get(limits::show))
            .route("/limits/reset", post(limits::reset))
            .route("/affinity", get(affinity::show))
            .route("/affinity/explain", post(affinity::explain).layer(DefaultBodyLimit::max(longest_body)))
            .with_state(self)
    }

    /// The same behind a guard, made to know who asks: not everyone may change something. Whether it is alive and ready it says to
    /// everybody.
    pub fn service(self, guard: Guard) -> IntoMakeServiceWithConnectInfo<Router, SocketAddr> {
        let health = self.clone().health();
        let guarded = self.router().layer(middleware::from_fn_with_state(Arc::new(guard), guard::check));
        health.merge(guarded).into_make_service_with_connect_info()
    }

    /// What monitoring needs, and nothing else: its port may be open to more than the others are.
    pub fn monitoring(self) -> Router {
        self.clone().health().merge(Router::new().route("/metrics", get(metrics)).with_state(self))
    }

    fn health(self) -> Router {
        Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(readyz)).with_state(self)
    }
}

/// The status says whether requests may come, the text whether they do: a sidecar that is not ready before somebody asks it
/// would never be asked.
async fn readyz(State(admin): State<Admin>) -> impl IntoResponse {
    if let Some(obstacle) = admin.readiness.borrow().obstacle() {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {obstacle}\n"));
    }
    let seen = admin.world.telemetry.attached().at(SystemTime::now());
    let attached = match (seen.last_stream_seconds_ago, seen.last_refusal) {
        (None, _) => "not attached: Envoy has opened no stream yet".to_owned(),
        (Some(ago), _) if seen.is_attached => format!("attached: the last stream began {ago} s ago"),
        (Some(ago), refusal) => {
            format!("not attached: Envoy's stream of {ago} s ago was refused: {}", refusal.unwrap_or_default())
        }
    };
    (StatusCode::OK, format!("ready\n{attached}\n"))
}

async fn attached(State(admin): State<Admin>) -> Json<Value> {
    let seen = admin.world.telemetry.attached().at(SystemTime::now());
    let [(streamed, of_streamed), (buffered, of_buffered)] = seen.streams;
    Json(json!({
        "started_seconds_ago": seen.started_seconds_ago,
        "attached": seen.is_attached,
        "last_stream_seconds_ago": seen.last_stream_seconds_ago,
        "streams": {streamed: of_streamed, buffered: of_buffered},
        "refused": seen.refused,
        "last_refusal": seen.last_refusal,
    }))
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    let world = &admin.world;
    let now = Instant::now();
    let pools = PoolFigures::of(&world.fleet, &world.cooldown, now);
    world.telemetry.bodies(&world.bodies);
    world.telemetry.endpoints_failing(world.cooldown.failing());
    let limits = world.ledger.figures();
    let page = world.telemetry.page(&world.ledger.stats(), &limits, world.cooldown.cooling(now), pools);
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], page)
}

async fn config(State(admin): State<Admin>) -> Json<Value> {
    Json(describe(&admin.world.config.load()))
}

/// What is changed of requests, by names alone: a value may be a key.
fn mutation(mutation: &Mutation) -> Value {
    json!({
        "set_headers": mutation.headers.to_set().map(|(name, _)| &**name).collect::<Vec<_>>(),
        "remove_headers": mutation.headers.to_remove().map(|name| &**name).collect::<Vec<_>>(),
        "fields": mutation.body.names().collect::<Vec<_>>(),
    })
}

/// How a match that names no model says which it is about.
fn pattern(one: &RuleMatch) -> Option<&str> {
    match &one.model {
        Some(ValueMatch::Exact(_)) => None,
        Some(ValueMatch::Pattern(pattern)) => Some(pattern.as_str()),
        None => Some(".*"),
    }
}

/// The configuration as JSON, without key hashes and keys.
fn describe(config: &Config) -> Value {
    let rules = |route: &crate::config::model::Route| -> Vec<Value> {
        route
            .rules
            .iter()
            .map(|rule| {
                json!({
                    "name": rule.name.as_deref(),
                    "models": rule.matches.iter().filter_map(|one| one.model_name().map(|name| &**name)).collect::<Vec<_>>(),
                    "model_patterns": rule.matches.iter().filter_map(pattern).collect::<Vec<_>>(),
                    "targets": rule.targets.iter().map(|target| json!({
                        "backend": config.backends.get(target.backend).map(|backend| backend.name.to_string()),
                        "priority": target.priority,
                        "weight": target.weight,
                        "model": target.model_override.as_deref(),
                        "mutation": mutation(&target.mutation),
                    })).collect::<Vec<_>>(),
                    "limits": rule.limits.iter().map(|limit| &*limit.id).collect::<Vec<_>>(),
                })
            })
            .collect()
    };
    let keys = match &config.gate_config.access {
        Access::Open => Value::Null,
        Access::Keys(keys) => keys.iter().map(|key| &*key.id).collect(),
    };
    json!({
        "generation": config.generation,
        "filter": {
            "digest": config.filter.digest.to_string(),
            "earlier": config.filter.earlier.iter().map(ToString::to_string).collect::<Vec<_>>(),
        },
        "keys": keys,
        "pass_through": config.gate_config.pass_through.keys().collect::<Vec<_>>(),
        "routes": config.routes.iter().map(|route| json!({
            "name": &*route.id,
            "hosts": route.hosts.iter().map(HostName::text).collect::<Vec<_>>(),
            "rules": rules(route),
            "limits": route.limits.iter().map(|limit| &*limit.id).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "backends": config.backends.iter().map(|backend| json!({
            "name": backend.name.to_string(),
            "cluster": &*backend.cluster,
            "endpoints": backend.endpoints.iter().map(|endpoint| &*endpoint.id).collect::<Vec<_>>(),
            "affinity": &*backend.affinity.id,
            "schema": backend.api.schema.as_str(),
            "prefix": &*backend.api.prefix,
            "key": match &backend.credentials {
                Credentials::NotNeeded => json!(null),
                Credentials::Known(credential) => json!({"policy": credential.policy.to_string()}),
                Credentials::Unknown => json!("unknown"),
            },
        })).collect::<Vec<_>>(),
    })
}
