//! Whether Envoy reaches the sidecar, and whether that is the sidecar which was asked about.
//!
//! What Envoy counts is of all the time since it started; what the sidecar counts, since the sidecar did. Where one is older than the
//! other, its count says nothing about the other.

use std::time::Duration;

use serde_json::Value;

use super::run_time::Counters;
use crate::doctor::Evidence;
use crate::doctor::dump::Host;
use crate::doctor::finding::{Findings, Rule, Severity, counted};
use crate::doctor::json::Json;
use crate::doctor::scene::Scene;

pub(in crate::doctor) static RULES: [&Rule; 6] =
    [&SILENT, &UNREACHABLE, &NOT_CONNECTED, &NEVER_ANSWERED, &ANOTHER, &REFUSED];

static SILENT: Rule = Rule {
    id: "sidecar-silent",
    severity: Severity::Error,
    envoy: "start the sidecar (attache run); one that runs and is silent hangs or is stopped: look at its log, and start it anew. If it \
        listens elsewhere (--admin-listen, port 10002 by default), say where with --sidecar-admin",
    envoy_gateway: "look whether the sidecar's pods are ready, and at their log; if they are, forward port 10002 of one of them, and say \
        where with --sidecar-admin",
};
static UNREACHABLE: Rule = Rule {
    id: "sidecar-unreachable",
    severity: Severity::Error,
    envoy: "start the sidecar there (attache run --extproc-listen ADDRESS), or have the cluster's load_assignment say where it listens",
    envoy_gateway: "look whether the sidecar's pods are ready, whether its Service has their port (10001), and whether a NetworkPolicy \
        keeps the proxies from it",
};
static NOT_CONNECTED: Rule = Rule {
    id: "sidecar-not-connected",
    severity: Severity::Warning,
    envoy: "send a request, and look again: if more connections have failed then, the cluster's load_assignment does not say where the \
        sidecar listens (--extproc-listen)",
    envoy_gateway: "send a request, and look again: if more connections have failed then, look whether the sidecar's Service has its port \
        (10001), and whether a NetworkPolicy keeps the proxies from it",
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

/// `silence` says where the sidecar was asked, and why there was no answer.
pub(in crate::doctor) fn silent(silence: &str, findings: &mut Findings) {
    findings.add(&SILENT, "", format!("the sidecar's admin page does not answer: {silence}"));
}

/// Whether there is a way from Envoy to the sidecar.
pub(in crate::doctor) fn envoy(
    scene: &Scene<'_>,
    evidence: &Evidence,
    counters: &Counters<'_>,
    findings: &mut Findings,
) {
    let place = format!("cluster {}", scene.sidecar_cluster());
    let hosts = hosts(scene, evidence);
    let lost: Vec<String> = hosts.iter().filter(|host| is_lost(host)).map(describe).collect();
    if let ([host], [lost], Some(ago)) = (hosts, lost.as_slice(), younger_than_envoy(evidence))
        && !is_unhealthy(host)
    {
        let state = match evidence.attached.field("last_stream_seconds_ago").is_null() {
            true => "Envoy has not connected since",
            false => "Envoy is not connected now",
        };
        let what = format!(
            "the sidecar that was asked is up and started {} s ago, and {state}; what failed may be from before: {lost}",
            ago.as_secs()
        );
        findings.add(&NOT_CONNECTED, &place, what);
        return;
    }
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

/// Whether the sidecar that was asked is the one that Envoy asks.
pub(in crate::doctor) fn sidecar(
    scene: &Scene<'_>,
    evidence: &Evidence,
    counters: &Counters<'_>,
    findings: &mut Findings,
) {
    let place = &scene.gateway.place;
    let attached = &evidence.attached;
    let refusal = attached.text("last_refusal");
    if !attached.is_true("attached") && !refusal.is_empty() {
        findings.add(&REFUSED, place, format!("the sidecar refused the last stream: {refusal}"));
    }
    let started = counters.of_filter(scene, "streams_started");
    let answered = counters.of_filter(scene, "stream_msgs_received");
    let hosts = hosts(scene, evidence);
    match attached.number("last_stream_seconds_ago") {
        None if answered > 0 => {
            let count = scene.proxy.hosts(scene.sidecar_cluster()).map_or(1, |hosts| hosts.len() as u64);
            let is_by_chance = count > 1 && started < STREAMS_A_HOST * count;
            // Envoy connects when it has a stream to open: a connection of now is one to a sidecar that has seen a stream.
            let is_connected = hosts.iter().any(|host| counter(host, "cx_active") > 0);
            let is_of_before = younger_than_envoy(evidence).is_some() && !is_connected;
            if !is_by_chance && !is_of_before {
                let what = format!(
                    "Envoy got {} from its sidecar, and the sidecar that was asked has seen no stream: it is another one",
                    counted(answered, "answer")
                );
                findings.add(&ANOTHER, place, what);
            }
        }
        Some(ago) if started == 0 => {
            let is_of_before = envoys_age(evidence).is_some_and(|age| age < Duration::from_secs(ago));
            // Counters that were set back; those of hosts are not, measured on Envoy 1.40.
            let was_reset = hosts.iter().any(|host| counter(host, "cx_total") > 0);
            if !is_of_before && !was_reset {
                let what = "the sidecar has seen streams, and this Envoy has opened none: they are of another Envoy";
                findings.add(&ANOTHER, place, what);
            }
        }
        _ => {}
    }
}

/// How long ago the sidecar that was asked started, if that was after Envoy did.
fn younger_than_envoy(evidence: &Evidence) -> Option<Duration> {
    // By each one's own clock: those of two machines may differ.
    let age = Duration::from_secs(evidence.attached.number("started_seconds_ago")?);
    (age <= envoys_age(evidence)?).then_some(age)
}

fn envoys_age(evidence: &Evidence) -> Option<Duration> {
    // A hot restart takes the counters along.
    evidence.server_info.duration("uptime_all_epochs")
}

/// The hosts of the sidecar's cluster, as `/clusters?format=json` has them.
fn hosts<'a>(scene: &Scene<'_>, evidence: &'a Evidence) -> &'a [Value] {
    let mut clusters = evidence.clusters.list("cluster_statuses").iter();
    let status = clusters.find(|status| status.text("name") == scene.sidecar_cluster());
    status.map_or(&[][..], |status| status.list("host_statuses"))
}

fn is_lost(host: &Value) -> bool {
    is_unhealthy(host) || (counter(host, "cx_connect_fail") > 0 && counter(host, "cx_active") == 0)
}

fn is_unhealthy(host: &Value) -> bool {
    let unhealthy = ["failed_active_health_check", "failed_outlier_check", "failed_active_degraded_check"];
    unhealthy.iter().any(|flag| host.field("health_status").is_true(flag))
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
