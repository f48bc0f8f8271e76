//! Whether Envoy reaches the sidecar, and whether that is the sidecar which was asked about.

use serde_json::Value;

use super::run_time::Counters;
use crate::doctor::dump::Host;
use crate::doctor::finding::{Findings, Rule, Severity, counted};
use crate::doctor::json::Json;
use crate::doctor::scene::Scene;

pub(in crate::doctor) static RULES: [&Rule; 4] = [&UNREACHABLE, &NEVER_ANSWERED, &ANOTHER, &REFUSED];

static UNREACHABLE: Rule = Rule {
    id: "sidecar-unreachable",
    severity: Severity::Error,
    envoy: "start the sidecar there (attache run --extproc-listen ADDRESS), or have the cluster's load_assignment say where it listens",
    envoy_gateway: "look whether the sidecar's pods are ready, whether its Service has their port (10001), and whether a NetworkPolicy \
        keeps the proxies from it",
};
static NEVER_ANSWERED: Rule = Rule {
    id: "sidecar-never-answered",
    severity: Severity::Error,
    envoy: "have the cluster name the sidecar's --extproc-listen (10001), not its --admin-listen (10002) nor another server; its log \
        says whether it refuses streams",
    envoy_gateway: "have the backendRef of the EnvoyExtensionPolicy name port 10001, not 10002; the sidecar's log says whether it \
        refuses streams",
};
static ANOTHER: Rule = Rule {
    id: "another-sidecar",
    severity: Severity::Error,
    envoy: "give --sidecar-admin of a sidecar that this Envoy's cluster names, or correct the cluster",
    envoy_gateway: "give --sidecar-admin of a pod that the EnvoyExtensionPolicy's backend selects (port 10002), or correct the backend",
};
static REFUSED: Rule = Rule {
    id: "streams-refused",
    severity: Severity::Error,
    envoy: "set the filter's processing_mode as the refusal says; `attache render static` prints it",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].processingMode as the refusal says; `attache render envoy-gateway` prints it",
};

/// A few streams may all have gone to the other hosts.
const STREAMS_A_HOST: u64 = 20;

/// `clusters` is what `/clusters?format=json` says.
pub(in crate::doctor) fn envoy(scene: &Scene<'_>, clusters: &Value, counters: &Counters<'_>, findings: &mut Findings) {
    let name = scene.sidecar_cluster();
    let place = format!("cluster {name}");
    let status = clusters.list("cluster_statuses").iter().find(|status| status.text("name") == name);
    let hosts = status.map_or(&[][..], |status| status.list("host_statuses"));
    let lost: Vec<String> = hosts.iter().filter(|host| is_lost(host)).map(describe).collect();
    if !lost.is_empty() {
        let of = if lost.len() == hosts.len() { String::new() } else { format!(" (of {} hosts)", hosts.len()) };
        findings.add(&UNREACHABLE, &place, format!("Envoy does not reach the sidecar at {}{of}", lost.join(", ")));
        return;
    }
    let failed = counters.of_filter(scene, "streams_failed");
    if failed > 0 && counters.of_filter(scene, "stream_msgs_received") == 0 {
        let addresses: Vec<_> = hosts.iter().map(address).collect();
        let what = format!(
            "{} failed and none was answered: what listens at {} is no sidecar, or one that refuses every stream",
            counted(failed, "stream"),
            if addresses.is_empty() { "the cluster's address".to_owned() } else { addresses.join(", ") }
        );
        findings.add(&NEVER_ANSWERED, &place, what);
    }
}

/// `attached` is what the admin page `/attached` of the sidecar says.
pub(in crate::doctor) fn sidecar(
    scene: &Scene<'_>,
    attached: &Value,
    counters: &Counters<'_>,
    findings: &mut Findings,
) {
    let place = &scene.gateway.place;
    let refusal = attached.text("last_refusal");
    if !attached.is_true("attached") && !refusal.is_empty() {
        findings.add(&REFUSED, place, format!("the sidecar refused the last stream: {refusal}"));
    }
    let is_new = attached.field("last_stream_seconds_ago").is_null();
    let answered = counters.of_filter(scene, "stream_msgs_received");
    let hosts = scene.proxy.hosts(scene.sidecar_cluster()).map_or(1, |hosts| hosts.len() as u64);
    let is_by_chance = hosts > 1 && counters.of_filter(scene, "streams_started") < STREAMS_A_HOST * hosts;
    if is_new && answered > 0 && !is_by_chance {
        let what = format!(
            "Envoy got {} from its sidecar, and the sidecar that was asked has seen no stream: it is another one, or has begun \
             anew since",
            counted(answered, "answer")
        );
        findings.add(&ANOTHER, place, what);
    }
    let has_seen = attached.field("last_stream_seconds_ago").is_number();
    if has_seen && counters.of_filter(scene, "streams_started") == 0 {
        let what = "the sidecar has seen streams, and this Envoy has opened none: they are of another Envoy, or this one has begun \
                    anew since";
        findings.add(&ANOTHER, place, what);
    }
}

fn is_lost(host: &Value) -> bool {
    let unhealthy = ["failed_active_health_check", "failed_outlier_check", "failed_active_degraded_check"];
    unhealthy.iter().any(|flag| host.field("health_status").is_true(flag))
        || (counter(host, "cx_connect_fail") > 0 && counter(host, "cx_active") == 0)
}

fn describe(host: &Value) -> String {
    let (failed, all) = (counter(host, "cx_connect_fail"), counter(host, "cx_total"));
    if failed == 0 {
        return format!("{}: a health check fails", address(host));
    }
    format!("{}: {failed} of {} failed, and none is open", address(host), counted(all, "connection"))
}

fn address(host: &Value) -> String {
    Host::address_of(host.field("address"))
}

fn counter(host: &Value, name: &str) -> u64 {
    let stat = host.list("stats").iter().find(|stat| stat.text("name") == name);
    // Zero is left out.
    stat.and_then(|stat| stat.number("value")).unwrap_or(0)
}
