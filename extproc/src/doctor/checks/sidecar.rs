//! What the sidecar may choose, held against what Envoy can reach.

use serde_json::Value;

use crate::doctor::finding::{Findings, Rule, Severity};
use crate::doctor::gateway::Named;
use crate::doctor::json::Json;
use crate::doctor::scene::Scene;

pub(in crate::doctor) static RULES: [&Rule; 2] = [&UNKNOWN_TARGET, &UNUSED_ROUTE];

static UNKNOWN_TARGET: Rule = Rule {
    id: "target-unknown-to-envoy",
    severity: Severity::Error,
    envoy: "render the bootstrap anew from the sidecar's documents, and restart Envoy with it",
    envoy_gateway: "render the manifests anew from the sidecar's documents, and apply them",
};
static UNUSED_ROUTE: Rule = Rule {
    id: "target-unknown-to-sidecar",
    severity: Severity::Note,
    envoy: "nothing, or render the bootstrap anew",
    envoy_gateway: "nothing, or render the manifests anew",
};

/// `config` is what the sidecar's admin page `/config` says.
pub(in crate::doctor) fn gateway(scene: &Scene<'_>, config: &Value, findings: &mut Findings) {
    let clusters: Vec<&str> = config.list("backends").iter().map(|backend| backend.text("cluster")).collect();
    if scene.targets().any(|route| route.named_cluster().is_none()) {
        // A cluster_header takes whatever the sidecar says.
        for cluster in clusters.iter().filter(|cluster| !scene.proxy.clusters.contains_key(*cluster)) {
            missing(cluster, findings);
        }
        return;
    }
    let named: Vec<_> = scene.targets().filter_map(|route| Some((route, route.named_cluster()?))).collect();
    for cluster in &clusters {
        if !named.iter().any(|(_, named)| named.takes(cluster)) {
            missing(cluster, findings);
        }
    }
    for (route, named) in &named {
        let replica_of = |cluster: &&str| match named {
            Named::Exactly(name) => name.starts_with(&format!("{cluster}/")),
            Named::ByPrefix(prefix) => prefix.starts_with(*cluster),
        };
        if !clusters.iter().any(|cluster| named.takes(cluster) || replica_of(cluster)) {
            findings.add(&UNUSED_ROUTE, &scene.at(route), "the sidecar knows no backend that leads here");
        }
    }
}

fn missing(cluster: &str, findings: &mut Findings) {
    let what = "the sidecar may choose it, and Envoy has no route to it: such requests get 503";
    findings.add(&UNKNOWN_TARGET, &format!("backend {cluster}"), what);
}
