//! Whether the Wasm filter and the sidecar go by the same documents.

use std::collections::BTreeSet;

use attache_gate::{Access, ConfigDigest, GateConfig, UnknownKeys};
use serde_json::Value;

use crate::doctor::finding::{Findings, Rule, Severity, counted};
use crate::doctor::json::Json;
use crate::doctor::scene::Scene;

pub(in crate::doctor) static RULES: [&Rule; 4] = [&REFUSED, &UNSERVED, &STALE, &DIFFERS];

static REFUSED: Rule = Rule {
    id: "wasm-refuses-new-keys",
    severity: Severity::Error,
    envoy: "render the bootstrap anew from the sidecar's documents and restart Envoy with it; --unknown-keys ask spares that",
    envoy_gateway: "render the manifests anew from the sidecar's documents and apply them; --unknown-keys ask spares that",
};
static UNSERVED: Rule = Rule {
    id: "wasm-refuses-new-paths",
    severity: Severity::Error,
    envoy: "render the bootstrap anew from the sidecar's documents, and restart Envoy with it",
    envoy_gateway: "render the manifests anew from the sidecar's documents, and apply them",
};
static STALE: Rule = Rule {
    id: "wasm-stale",
    severity: Severity::Warning,
    envoy: "render the bootstrap anew from the sidecar's documents, and restart Envoy with it",
    envoy_gateway: "render the manifests anew from the sidecar's documents, and apply them",
};
static DIFFERS: Rule = Rule {
    id: "wasm-differs",
    severity: Severity::Warning,
    envoy: "see in the sidecar's log whether it has read the documents as they are; then render the bootstrap anew from them",
    envoy_gateway: "see in the sidecar's log whether it has read the documents as they are; then render the manifests anew from them",
};

/// So many keys are named of many.
const MOST_NAMED: usize = 3;

/// `sidecar` is what its admin page `/config` says.
pub(in crate::doctor) fn gateway(scene: &Scene<'_>, sidecar: &Value, findings: &mut Findings) {
    let Some((_, plugin)) = scene.wasm else { return };
    // What cannot be read is told of elsewhere.
    let Ok(filter) = GateConfig::from_json(plugin.text("configuration.value").as_bytes()) else { return };
    let Ok(in_force) = sidecar.text("filter.digest").parse::<ConfigDigest>() else { return };
    let theirs = ConfigDigest::of(&filter);
    let place = &scene.gateway.place;
    let parts = theirs.differences(&in_force);
    if parts.is_empty() {
        return;
    }
    let (missing, gone) = keys(&filter, sidecar);
    if let Some(what) =
        named("the Wasm filter answers 404, and the sidecar would serve them:", &paths(&filter, sidecar), "paths")
    {
        findings.add(&UNSERVED, place, what);
    }
    let mut details = vec![format!("they differ in: {}", parts.join(", "))];
    details.extend(named("the filter does not know", &missing, "keys"));
    details.extend(named("the sidecar does not know", &gone, "keys"));
    let details = details.join("; ");
    let demands_keys = filter.access != Access::Open;
    if demands_keys && filter.unknown_keys == UnknownKeys::Refuse && !missing.is_empty() {
        let keys = counted(missing.len() as u64, "key");
        let what = format!("the Wasm filter refuses {keys} that the sidecar would let in; {details}");
        findings.add(&REFUSED, place, what);
    }
    let was_in_force = sidecar.list("filter.earlier").iter().any(|earlier| *earlier == *theirs.to_string());
    if was_in_force {
        let consequence = match filter.unknown_keys {
            UnknownKeys::Ask => "new keys work, as the sidecar is asked about them",
            UnknownKeys::Refuse => "it refuses what it does not know",
        };
        let what = format!(
            "the Wasm filter is stale: its configuration was in force in the sidecar before, and is older; {details}; {consequence}"
        );
        findings.add(&STALE, place, what);
    } else {
        let what = format!(
            "the Wasm filter's configuration is not what the sidecar has in force, nor was it since the sidecar started: it is \
             older than that, or the sidecar has not read, or could not use, what it was rendered from; {details}"
        );
        findings.add(&DIFFERS, place, what);
    }
}

/// The keys that the sidecar has and the filter has not, and the other way round, by their names.
fn keys(filter: &GateConfig, sidecar: &Value) -> (Vec<String>, Vec<String>) {
    let ours: BTreeSet<&str> = sidecar.list("keys").iter().filter_map(Value::as_str).collect();
    let theirs: BTreeSet<&str> = match &filter.access {
        Access::Open => BTreeSet::new(),
        Access::Keys(keys) => keys.iter().map(|key| &*key.id).collect(),
    };
    let only = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| a.difference(b).map(|key| (*key).to_owned()).collect();
    (only(&ours, &theirs), only(&theirs, &ours))
}

/// The paths that pass through the sidecar, and that the filter does not know.
fn paths(filter: &GateConfig, sidecar: &Value) -> Vec<String> {
    let ours = sidecar.list("pass_through").iter().filter_map(Value::as_str);
    ours.filter(|path| !filter.pass_through.contains_key(*path)).map(str::to_owned).collect()
}

fn named(who: &str, names: &[String], what: &str) -> Option<String> {
    let first = names.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        count if count > MOST_NAMED => Some(format!("{who} {first} and {} further {what}", count - MOST_NAMED)),
        _ => Some(format!("{who} {first}")),
    }
}
