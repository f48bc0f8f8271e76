//! `/limits`: what limits a caller, how its counters stand and what was last decided; and `/limits/reset`, which lets it begin
//! anew.
//!
//! Showing is for everyone who reaches the port. Resetting is for this machine alone, since the port may be open to scrapers,
//! and not for a browser's pages, which could be anybody's.

mod concern;
mod page;

use std::net::SocketAddr;
use std::time::SystemTime;

use attache_gate::{Access, KeyEntry};
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::Admin;
use super::guard::{Stranger, stranger};
use crate::config::Config;
use crate::limit::{CounterState, Dimension, Hold};
use concern::{Concern, Counter, concerns};

/// Keys that are listed, or explained at once for a tenant.
const MOST_LISTED: usize = 100;
const MOST_EXPLAINED: usize = 20;
/// Keys that are looked at for whether they share a counter: each takes some microseconds for a rule.
const MOST_COMPARED: usize = 1_000;

/// `GET /limits?key=NAMESPACE/NAME`, `?tenant=NAME`, or neither for a list of what there is to ask for.
pub(super) async fn show(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    let config = admin.world.config.load_full();
    let asked = match Asked::read(query.as_deref().unwrap_or_default(), &["key", "tenant"]) {
        Ok(asked) => asked,
        Err(problem) => return problem.into_response(),
    };
    match (&asked.key, &asked.tenant) {
        (Some(key), None) => match find_key(&config, key) {
            Ok(key) => answer(StatusCode::OK, explain(&admin, &config, Some(key)).await),
            Err(problem) => problem.into_response(),
        },
        (None, Some(tenant)) => {
            let keys: Vec<_> = keys(&config).filter(|key| key.tenant == *tenant).collect();
            if keys.is_empty() {
                return Problem::new(
                    StatusCode::NOT_FOUND,
                    format!("no key has the tenant `{tenant}`"),
                    tenants(&config),
                )
                .into_response();
            }
            let mut explained = Vec::new();
            for key in keys.iter().take(MOST_EXPLAINED) {
                explained.push(explain(&admin, &config, Some(*key)).await);
            }
            let more = keys.len().saturating_sub(MOST_EXPLAINED);
            answer(StatusCode::OK, json!({"tenant": tenant, "keys": explained, "more": more}))
        }
        (Some(_), Some(_)) => {
            Problem::new(StatusCode::BAD_REQUEST, "ask for a key or for a tenant", Value::Null).into_response()
        }
        (None, None) => {
            let everyone = match config.gate_config.access {
                Access::Open => Some(explain(&admin, &config, None).await),
                Access::Keys(_) => None,
            };
            answer(StatusCode::OK, index(&config, everyone))
        }
    }
}

/// `POST /limits/reset?key=NAMESPACE/NAME&limit=ID`: forgets what is settled in the counters of that limit that the key's
/// requests fall on. What requests in flight hold stays.
pub(super) async fn reset(
    State(admin): State<Admin>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    match try_reset(&admin, peer, &headers, query.as_deref().unwrap_or_default()).await {
        Ok(page) => answer(StatusCode::OK, page),
        Err(problem) => problem.into_response(),
    }
}

async fn try_reset(admin: &Admin, peer: SocketAddr, headers: &HeaderMap, query: &str) -> Result<Value, Problem> {
    if let Some(stranger) = stranger(peer, headers) {
        let message = match stranger {
            Stranger::Remote => {
                "limits are reset from the sidecar's own machine or pod alone: the admin port may be open to others"
            }
            Stranger::Forwarded => "limits are not reset through a proxy: nobody here sees who is behind it",
            Stranger::Page => "limits are not reset from a browser",
        };
        return Err(Problem::new(StatusCode::FORBIDDEN, message, Value::Null));
    }
    let asked = Asked::read(query, &["key", "limit"])?;
    let config = admin.world.config.load_full();
    let key = match (&asked.key, &config.gate_config.access) {
        (Some(key), _) => Some(find_key(&config, key)?),
        (None, Access::Open) => None,
        (None, Access::Keys(_)) => {
            let message = "whose? name a key, with `--key NAME` or in a query `key=NAME`";
            return Err(Problem::new(
                StatusCode::BAD_REQUEST,
                message,
                listed(keys(&config).map(|key| key.id.as_str())),
            ));
        }
    };
    let concerns = concerns_of(admin, &config, key);
    let concern = find_limit(&concerns, asked.limit.as_deref())?;
    let holds: Vec<Hold> = concern.counters.iter().map(|counter| counter.hold.clone()).collect();
    let unanswered = |error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, page::store_error(&error), Value::Null);
    let before = admin.world.ledger.peek(&holds).await.map_err(unanswered)?;
    admin.world.ledger.reset(&holds).await.map_err(unanswered)?;
    tracing::info!(
        limit = &*concern.limit.id,
        key = key.map(|key| &*key.id),
        counters = holds.len(),
        "a limit was reset"
    );
    let before = before.into_iter().map(Some).collect::<Vec<_>>();
    let sharing = sharing(admin, &config, key, concern);
    Ok(json!({
        "reset": &*concern.limit.id,
        "key": key.map(|key| &key.id),
        "says": format!("{} of {} begins anew", counters(holds.len()), page::says(&concern.limit)),
        "note": "an Envoy whose filter has just refused this key goes on doing so for up to 5 seconds",
        "before": page::counters(concern, page::Source::Store, &before),
        "alsoOf": listed(sharing.iter().copied()),
        "alsoOfMore": sharing.len().saturating_sub(MOST_LISTED),
    }))
}

/// The other keys whose requests fall on one of these counters: theirs is gone as well. A counter by a header's value may be
/// shared by more, as only those requests tell that the journal remembers.
fn sharing<'a>(admin: &Admin, config: &'a Config, key: Option<&KeyEntry>, concern: &Concern) -> Vec<&'a str> {
    // Where the key is counted by, nobody shares: no need to look at thousands.
    if concern.limit.per.contains(&Dimension::Key) {
        return Vec::new();
    }
    let is_here = |counter: &Counter| concern.counters.iter().any(|own| own.hold.counter == counter.hold.counter);
    let shares = |other: &&KeyEntry| {
        let theirs = concerns_of(admin, config, Some(*other));
        let same = theirs.iter().find(|theirs| theirs.limit.id == concern.limit.id);
        same.is_some_and(|same| same.counters.iter().any(is_here))
    };
    let others = keys(config).filter(|other| key.is_none_or(|key| key.id != other.id));
    others.take(MOST_COMPARED).filter(shares).map(|other| other.id.as_str()).collect()
}

fn counters(count: usize) -> String {
    if count == 1 { "the counter".to_owned() } else { format!("each of {count} counters") }
}

async fn explain(admin: &Admin, config: &Config, key: Option<&KeyEntry>) -> Value {
    let concerns = concerns_of(admin, config, key);
    let holds: Vec<Hold> =
        concerns.iter().flat_map(|concern| &concern.counters).map(|counter| counter.hold.clone()).collect();
    let mut page = page::caller(key);
    page.insert("generation".to_owned(), json!(config.generation));
    let (source, states): (_, Vec<Option<CounterState>>) = match admin.world.ledger.peek(&holds).await {
        Ok(states) => (page::Source::Store, states.into_iter().map(Some).collect()),
        Err(error) => {
            let unanswered = admin.world.ledger.unanswered(&holds);
            page.extend(page::unanswered(&error, &unanswered));
            (page::Source::Memory, unanswered.known)
        }
    };
    let mut rest = states.as_slice();
    let limits = concerns.iter().map(|concern| {
        let (own, others) = rest.split_at_checked(concern.counters.len()).unwrap_or_default();
        rest = others;
        page::concern(concern, source, own)
    });
    page.insert("limits".to_owned(), limits.collect());
    let last = admin.world.journal.last(key.map(|key| key.id.as_str()));
    let last = last.map(|last| page::last_decision(&last, SystemTime::now()));
    page.insert("lastDecision".to_owned(), last.unwrap_or_default());
    Value::Object(page)
}

fn concerns_of(admin: &Admin, config: &Config, key: Option<&KeyEntry>) -> Vec<Concern> {
    let last = admin.world.journal.last(key.map(|key| key.id.as_str()));
    concerns(config, key, last.as_ref())
}

/// What there is to ask for.
fn index(config: &Config, everyone: Option<Value>) -> Value {
    let limits = concerns(config, None, None);
    json!({
        "usage": "GET /limits?key=NAMESPACE/NAME or ?tenant=NAME; POST /limits/reset?key=...&limit=ID",
        "generation": config.generation,
        "keys": listed(keys(config).map(|key| key.id.as_str())),
        "tenants": tenants(config),
        "limits": limits.iter().map(|concern| page::rule(&concern.limit, &concern.places)).collect::<Vec<_>>(),
        "everyone": everyone,
    })
}

fn keys(config: &Config) -> impl Iterator<Item = &KeyEntry> {
    match &config.gate_config.access {
        Access::Open => [].iter(),
        Access::Keys(keys) => keys.iter(),
    }
}

/// A name without a namespace is one in `default`, as everywhere.
fn find_key<'a>(config: &'a Config, name: &str) -> Result<&'a KeyEntry, Problem> {
    let id = if name.contains('/') { name.to_owned() } else { format!("default/{name}") };
    keys(config).find(|key| key.id == id).ok_or_else(|| {
        let known = listed(keys(config).map(|key| key.id.as_str()));
        Problem::new(StatusCode::NOT_FOUND, format!("there is no key `{id}`"), known)
    })
}

/// By its id, or by the end of it: `NAMESPACE/POLICY/LIMIT`, `POLICY/LIMIT` or `LIMIT`.
fn find_limit<'a>(concerns: &'a [Concern], name: Option<&str>) -> Result<&'a Concern, Problem> {
    let known = || listed(concerns.iter().map(|concern| &*concern.limit.id));
    let Some(name) = name else {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "which? name a limit, with `--limit ID` or in a query `limit=ID`",
            known(),
        ));
    };
    let is_named = |concern: &&Concern| {
        concern.limit.id.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    };
    let mut named = concerns.iter().filter(is_named);
    match (named.next(), named.next()) {
        (Some(concern), None) => Ok(concern),
        (Some(_), Some(_)) => Err(Problem::new(StatusCode::BAD_REQUEST, format!("`{name}` may be several"), known())),
        (None, _) => Err(Problem::new(StatusCode::NOT_FOUND, format!("no limit `{name}` concerns this key"), known())),
    }
}

fn tenants(config: &Config) -> Value {
    let mut tenants: Vec<&str> = keys(config).map(|key| key.tenant.as_str()).collect();
    tenants.sort_unstable();
    tenants.dedup();
    listed(tenants.into_iter())
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> Value {
    names.take(MOST_LISTED).collect()
}

/// What a query asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    key: Option<String>,
    tenant: Option<String>,
    limit: Option<String>,
}

impl Asked {
    fn read(query: &str, known: &[&str]) -> Result<Self, Problem> {
        let mut asked = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let field = match &*name {
                "key" => &mut asked.key,
                "tenant" => &mut asked.tenant,
                "limit" => &mut asked.limit,
                _ => &mut None,
            };
            if !known.contains(&&*name) || field.is_some() || value.is_empty() {
                let message = format!("`{name}` is not understood, empty, or there twice");
                return Err(Problem::new(StatusCode::BAD_REQUEST, message, json!(known)));
            }
            *field = Some(value.into_owned());
        }
        Ok(asked)
    }
}

/// Why there is no page.
#[derive(Debug)]
struct Problem {
    status: StatusCode,
    message: String,
    /// What would have been understood.
    known: Value,
}

impl Problem {
    fn new(status: StatusCode, message: impl Into<String>, known: Value) -> Self {
        Self { status, message: message.into(), known }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let page = match self.known {
            Value::Null => json!({"error": self.message}),
            known => json!({"error": self.message, "known": known}),
        };
        answer(self.status, page)
    }
}

/// Indented: people read it.
fn answer(status: StatusCode, page: Value) -> Response {
    let text = format!("{page:#}\n");
    (status, [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], text).into_response()
}

#[cfg(test)]
mod tests;
