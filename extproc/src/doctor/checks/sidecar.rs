//! What the sidecar may choose, held against what Envoy can reach.

use serde_json::Value;

use crate::doctor::finding::{Findings, Rule, Severity};
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
    let leads = |cluster: &str| {
        let mut targets = scene.targets().filter(|route| route.takes(cluster));
        // A cluster_header takes whatever the sidecar says.
        targets.any(|route| route.cluster_header().is_empty() || scene.proxy.clusters.contains_key(cluster))
    };
    for cluster in clusters.iter().filter(|cluster| !leads(cluster)) {
        let what = "the sidecar may choose it, and Envoy has no route to it: such requests get 503";
        findings.add(&UNKNOWN_TARGET, &format!("backend {cluster}"), what);
    }
    for route in scene.targets().filter(|route| route.reads_choice()) {
        // A replica's own cluster is named after its backend's.
        let is_of_replica = |cluster: &&str| route.is_for_names_under(&format!("{cluster}/"));
        if !clusters.iter().any(|cluster| route.takes(cluster) || is_of_replica(cluster)) {
            findings.add(&UNUSED_ROUTE, &scene.at(route), "the sidecar knows no backend that leads here");
        }
    }
}
