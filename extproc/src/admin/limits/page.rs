//! A caller's limits as JSON, in people's units and in plain words.

use std::time::{Duration, SystemTime};

use attache_gate::{KeyEntry, KeyPriority, spoken};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::concern::{Concern, Counter};
use crate::limit::{
    Cap, Condition, CounterState, Decided, Dimension, Enforcement, Expected, Hold, Keeper, LastDecision, Limit, Mode,
    OnStoreError, Quantity, Refused, StoreError, Unanswered, Window, amount, measure, subject, until_empty, until_room,
};

/// Who calls; `None` where no keys are demanded.
pub(super) fn caller(key: Option<&KeyEntry>) -> Map<String, Value> {
    object(match key {
        Some(key) => json!({
            "key": key.id,
            "tenant": key.tenant,
            "labels": key.labels,
            "priority": match key.priority { KeyPriority::Normal => "normal", KeyPriority::Low => "low" },
            "routes": key.routes,
        }),
        None => json!({"key": null, "says": "no keys are demanded: this holds for everyone"}),
    })
}

/// A limit's rule.
pub(super) fn rule(limit: &Limit, places: &[String]) -> Map<String, Value> {
    object(json!({
        "id": &*limit.id,
        "says": says(limit),
        "at": places,
        "per": limit.per.iter().map(dimension).collect::<Vec<_>>(),
        "when": limit.when.iter().map(condition).collect::<Vec<_>>(),
        "counts": counts(&limit.quantity),
        "amount": figure(&limit.quantity, limit.amount),
        "lowPriorityPercent": limit.low_priority_percent,
        "window": window(limit),
        "mode": match limit.mode { Mode::Soft => "soft", Mode::Strict => "strict", Mode::Check => "check" },
        "cap": limit.cap == Cap::Capped,
        "shadow": limit.enforcement == Enforcement::Shadow,
        "onStoreError": match limit.on_store_error {
            OnStoreError::Local => "local",
            OnStoreError::Allow => "allow",
            OnStoreError::Deny => "deny",
        },
    }))
}

/// Who says how counters stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The store.
    Store,
    /// This sidecar's memory, as the store does not answer.
    Memory,
}

/// A limit with its counters.
pub(super) fn concern(concern: &Concern, source: Source, states: &[Option<CounterState>]) -> Map<String, Value> {
    let mut page = rule(&concern.limit, &concern.places);
    page.insert("counters".to_owned(), counters(concern, source, states));
    page
}

/// The counters of a limit with their states, in their order; `None` where nobody knows.
pub(super) fn counters(concern: &Concern, source: Source, states: &[Option<CounterState>]) -> Value {
    let counters = concern.counters.iter().enumerate();
    counters.map(|(index, counter)| of_counter(counter, source, states.get(index).and_then(Option::as_ref))).collect()
}

/// What `GET /limits` says beside the counters while the store does not answer.
pub(super) fn unanswered(error: &StoreError, unanswered: &Unanswered) -> Map<String, Value> {
    let lasting = unanswered.lasting.map(spoken);
    let says = match &lasting {
        Some(lasting) => {
            format!("the store has not answered for {lasting}: what is shown is what this sidecar last saw")
        }
        None => "the store did not answer just now: what is shown is what this sidecar last saw".to_owned(),
    };
    object(json!({"error": store_error(error), "storeSilentFor": lasting, "says": says}))
}

fn of_counter(counter: &Counter, source: Source, state: Option<&CounterState>) -> Value {
    let hold = &counter.hold;
    let quantity = &hold.limit.quantity;
    let (of, up_to) = (of(counter), figure(quantity, hold.ceiling));
    let Some(state) = state else {
        return json!({"of": of, "upTo": up_to, "says": format!("not seen by this sidecar yet; {}", meanwhile(hold))});
    };
    let left = left(hold, state);
    let wait = until_room(hold, state);
    let is_of_window = *quantity != Quantity::Concurrency;
    json!({
        "of": of,
        "upTo": up_to,
        "used": figure(quantity, state.used()),
        "held": figure(quantity, state.held),
        "remaining": figure(quantity, left),
        "roomIn": wait.filter(|_| is_of_window).map(spoken),
        "emptyIn": is_of_window.then(|| spoken(until_empty(hold, state))),
        "says": match (source, wait) {
            (Source::Memory, _) => format!("as this sidecar last saw it; {}", meanwhile(hold)),
            (Source::Store, Some(_)) if state.used() < hold.ceiling => {
                "all that is left is held by requests in flight".to_owned()
            }
            (Source::Store, Some(wait)) => format!("used up; something is left in {}", spoken(wait)),
            (Source::Store, None) => format!("{} of {} left", amount(quantity, left), amount(quantity, hold.ceiling)),
        },
    })
}

/// What becomes of requests until the store answers.
fn meanwhile(hold: &Hold) -> &'static str {
    match hold.limit.on_store_error {
        OnStoreError::Local => "until the store answers, each sidecar admits its share of what was left",
        OnStoreError::Allow => "until the store answers, everything is admitted",
        OnStoreError::Deny => "until the store answers, nothing is admitted",
    }
}

/// `{"tenant": "acme", "model": "m"}`
fn of(counter: &Counter) -> Value {
    match &counter.values {
        Some(values) => {
            let names = counter.hold.limit.per.iter().map(dimension);
            Value::Object(names.zip(values.iter().map(|value| json!(value))).collect())
        }
        None => json!("what the key's last requests had in their headers"),
    }
}

/// The last decision on a caller's requests.
pub(super) fn last_decision(last: &LastDecision, now: SystemTime) -> Value {
    let LastDecision { request, states, .. } = last;
    let holds = request.holds.iter().enumerate().map(|(index, hold)| {
        let quantity = &hold.limit.quantity;
        let state = states.get(index).and_then(Option::as_ref);
        json!({
            "limit": &*hold.limit.id,
            "requested": figure(quantity, hold.estimate),
            "used": state.map(|state| figure(quantity, state.used())),
            "held": state.map(|state| figure(quantity, state.held)),
            "remaining": state.map(|state| figure(quantity, left(hold, state))),
        })
    });
    let (outcome, says) = outcome(last);
    json!({
        "at": Timestamp::try_from(last.at).map(|at| at.to_string()).unwrap_or_default(),
        "ago": spoken(now.duration_since(last.at).unwrap_or(Duration::ZERO)),
        "outcome": outcome,
        "says": says,
        "route": &*request.context.route,
        "model": &*request.context.model,
        "servedModel": &*request.context.served_model,
        "backend": &*request.context.backend,
        "limits": holds.collect::<Vec<_>>(),
    })
}

fn outcome(last: &LastDecision) -> (&'static str, String) {
    match &last.outcome {
        Decided::Granted(Keeper::Store) => ("granted", "the request was granted".to_owned()),
        Decided::Granted(Keeper::Sidecar) => {
            ("granted", "the request was granted by this sidecar alone: the store did not answer".to_owned())
        }
        Decided::Refused(by) => {
            let refused = Refused { request: last.request.clone(), by: *by, states: last.states.clone() };
            let id = last.request.holds.get(*by).map_or("", |hold| &*hold.limit.id);
            ("refused", format!("refused by {id}: {}", refused.error().message))
        }
        Decided::Unanswered(error) => ("unanswered", format!("the request got 503: {}", store_error(error))),
    }
}

/// Why the store does not answer.
pub(super) fn store_error(error: &StoreError) -> String {
    error.to_string()
}

fn left(hold: &Hold, state: &CounterState) -> u64 {
    hold.ceiling.saturating_sub(state.used()).saturating_sub(state.held)
}

/// `300 tokens per minute for this key`
pub(super) fn says(limit: &Limit) -> String {
    let shadow = if limit.enforcement == Enforcement::Shadow { " (only counted: it refuses nobody)" } else { "" };
    format!("{} {} for {}{shadow}", amount(&limit.quantity, limit.amount), measure(limit), subject(&limit.per))
}

fn counts(quantity: &Quantity) -> &'static str {
    match quantity {
        Quantity::Tokens(_) => "tokens",
        Quantity::Weighted(_) => "weighted tokens",
        Quantity::Money(_) => "money",
        Quantity::Requests => "requests",
        Quantity::Concurrency => "requests in flight",
    }
}

fn window(limit: &Limit) -> Value {
    match &limit.window {
        _ if limit.quantity == Quantity::Concurrency => Value::Null,
        Window::Sliding(length) => json!({"kind": "sliding", "length": spoken(*length)}),
        Window::Fixed(length) => json!({"kind": "fixed", "length": spoken(*length)}),
        Window::Calendar(calendar) => json!({
            "kind": "calendar",
            "length": calendar.period.name(),
            "timeZone": calendar.zone.iana_name().unwrap_or("UTC"),
        }),
    }
}

fn condition(condition: &Condition) -> String {
    let what = dimension(&condition.dimension);
    match &condition.expected {
        Expected::Present => format!("{what} is there"),
        Expected::Is(value) => format!("{what} is {value}"),
        Expected::IsNot(value) => format!("{what} is not {value}"),
    }
}

/// As policies write it.
fn dimension(dimension: &Dimension) -> String {
    match dimension {
        Dimension::Key => "key".to_owned(),
        Dimension::Tenant => "tenant".to_owned(),
        Dimension::Route => "endpoint".to_owned(),
        Dimension::Model => "model".to_owned(),
        Dimension::ServedModel => "servedModel".to_owned(),
        Dimension::ModelClass => "modelClass".to_owned(),
        Dimension::Header(name) => format!("header:{name}"),
        Dimension::Label(name) => format!("label:{name}"),
    }
}

/// What `json!` makes of braces.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

/// A count in people's units.
fn figure(quantity: &Quantity, count: u64) -> Value {
    match quantity.scale() {
        1 => json!(count),
        scale => json!(count as f64 / scale as f64),
    }
}
