//! What Envoy's counters say of its streams to the sidecar, since it started or since somebody set them back.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::doctor::finding::{Findings, Rule, Severity, counted};
use crate::doctor::json::Json;
use crate::doctor::route::Route;
use crate::doctor::scene::{BodyMode, Fate, Scene};

pub(in crate::doctor) static RULES: [&Rule; 7] =
    [&WAS_OPEN, &HAS_FAILED, &TIMED_OUT, &OVERFLOWED, &NEVER_ASKED, &TLS_FAILED, &NO_TRAFFIC];

static WAS_OPEN: Rule = Rule {
    id: "has-failed-open",
    severity: Severity::Error,
    envoy: "look why: the sidecar's log and restarts, whether it is where its cluster says. Then set the counters back (curl -X POST \
        ENVOY-ADMIN/reset_counters), and alert on ext_proc.failure_mode_allowed",
    envoy_gateway: "look why: the sidecar's pods, their log and restarts. Then set the counters back (curl -X POST \
        localhost:19000/reset_counters in the pod), and alert on envoy_http_ext_proc_failure_mode_allowed",
};
static HAS_FAILED: Rule = Rule {
    id: "has-failed",
    severity: Severity::Error,
    envoy: "look why: the sidecar's log and restarts, whether it is where its cluster says. Then set the counters back (curl -X POST \
        ENVOY-ADMIN/reset_counters), and alert on ext_proc.streams_failed",
    envoy_gateway: "look why: the sidecar's pods, their log and restarts. Then set the counters back (curl -X POST \
        localhost:19000/reset_counters in the pod), and alert on envoy_http_ext_proc_streams_failed",
};
static TIMED_OUT: Rule = Rule {
    id: "has-timed-out",
    severity: Severity::Warning,
    envoy: "look at the sidecar's CPU and at Redis (attache_store_*). That clients are not taken for a slow sidecar, have \
        message_timeout above the way in's idle_timeout, and the buffers above --max-body",
    envoy_gateway: "look at the sidecar's CPU limit and at Redis (attache_store_*)",
};
static OVERFLOWED: Rule = Rule {
    id: "has-overflowed",
    severity: Severity::Error,
    envoy: "raise the circuit breakers of the sidecar's cluster",
    envoy_gateway: "raise EnvoyExtensionPolicy spec.extProc[].backendSettings.circuitBreaker",
};
static NEVER_ASKED: Rule = Rule {
    id: "never-asked",
    severity: Severity::Warning,
    envoy: "nothing, if these requests were for something else than models; otherwise look which route they took",
    envoy_gateway: "nothing, if these requests were for something else than models; otherwise look which HTTPRoute they took",
};
static TLS_FAILED: Rule = Rule {
    id: "model-tls-failed",
    severity: Severity::Warning,
    envoy: "look at `failure` on the sidecar's /affinity, or at its log, for Envoy's own words; then at the server's certificate (openssl \
        s_client -connect HOST:PORT -servername NAME), and at what the BackendTLSPolicy or `tls` of its Backend trusts",
    envoy_gateway: "look at `failure` on the sidecar's /affinity, or at its log, for Envoy's own words; then at the server's certificate \
        (openssl s_client -connect HOST:PORT -servername NAME), and at what the BackendTLSPolicy trusts; for certificates on P-384 or P-521 \
        set EnvoyProxy spec.backendTLS.ecdhCurves and signatureAlgorithms as `attache render envoy-gateway` does",
};
static NO_TRAFFIC: Rule = Rule {
    id: "no-traffic",
    severity: Severity::Note,
    envoy: "send a request and look again; a stream must be counted in ext_proc.streams_started",
    envoy_gateway: "send a request and look again; a stream must be counted in ext_proc.streams_started",
};

/// Which of the two was last, no counter tells.
const SINCE: &str = "since this Envoy's counters were reset or it started";

/// What `/stats?format=json` says, by name.
#[derive(Debug)]
pub(in crate::doctor) struct Counters<'a>(BTreeMap<&'a str, u64>);

impl<'a> Counters<'a> {
    pub(in crate::doctor) fn of(stats: &'a Value) -> Self {
        let stats = stats.list("stats").iter();
        Self(stats.filter_map(|stat| Some((stat.text("name"), stat.number("value")?))).collect())
    }

    fn named(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Of the connection manager.
    fn of_gateway(&self, scene: &Scene<'_>, counter: &str) -> u64 {
        self.named(&format!("http.{}.{counter}", scene.gateway.manager.text("stat_prefix")))
    }

    /// Of the sidecar's filter.
    pub(in crate::doctor) fn of_filter(&self, scene: &Scene<'_>, counter: &str) -> u64 {
        match scene.processor.text("stat_prefix") {
            "" => self.of_gateway(scene, &format!("ext_proc.{counter}")),
            prefix => self.of_gateway(scene, &format!("ext_proc.{prefix}.{counter}")),
        }
    }
}

pub(in crate::doctor) fn gateway(scene: &Scene<'_>, counters: &Counters<'_>, findings: &mut Findings) {
    let place = &scene.gateway.place;
    if counters.of_filter(scene, "streams_started") == 0 {
        let served = counters.of_gateway(scene, "downstream_rq_2xx");
        if served > 0 {
            let what = format!("{} succeeded here, and none came to the sidecar", counted(served, "request"));
            findings.add(&NEVER_ASKED, place, what);
        } else {
            findings.add(&NO_TRAFFIC, place, format!("no request has come to the sidecar {SINCE}"));
        }
    }
    failures(scene, counters, findings);
    tls(scene, counters, findings);
    let cluster = scene.sidecar_cluster();
    let names = ["upstream_rq_pending_overflow", "upstream_cx_overflow"];
    let overflows: u64 = names.iter().map(|name| counters.named(&format!("cluster.{cluster}.{name}"))).sum();
    if overflows > 0 {
        let what = format!("a circuit breaker kept {} from the sidecar {SINCE}", counted(overflows, "stream"));
        findings.add(&OVERFLOWED, &format!("cluster {cluster}"), what);
    }
}

/// Connections to model servers that failed for their TLS, by what Envoy counts of each cluster.
fn tls(scene: &Scene<'_>, counters: &Counters<'_>, findings: &mut Findings) {
    // Whatever fails is a connection error; the others say why, where it was the certificate.
    const WHY: [(&str, &str); 4] = [
        ("fail_verify_error", "an authority that is not trusted, or a certificate out of its time"),
        ("fail_verify_san", "a certificate for another name"),
        ("fail_verify_no_cert", "no certificate"),
        ("fail_verify_cert_hash", "a certificate other than the one that is pinned"),
    ];
    let clusters: BTreeSet<&str> = scene.targets().flat_map(Route::clusters).collect();
    for cluster in clusters {
        let count = |name: &str| counters.named(&format!("cluster.{cluster}.ssl.{name}"));
        let reasons: Vec<String> = WHY
            .iter()
            .filter(|(name, _)| count(name) > 0)
            .map(|(name, why)| format!("{why} ({name} {})", count(name)))
            .collect();
        let errors = count("connection_error");
        if errors == 0 && reasons.is_empty() {
            continue;
        }
        let mut what = format!("{} failed for TLS {SINCE} (ssl.connection_error)", counted(errors, "connection"));
        if !reasons.is_empty() {
            what.push_str(": ");
            what.push_str(&reasons.join(", "));
        }
        findings.add(&TLS_FAILED, &format!("cluster {cluster}"), what);
    }
}

/// Measured on Envoy 1.40: a stream that cannot be opened or ends with an error counts as `streams_failed`; a message that is not
/// answered in time as `message_timeouts`, whoever made it wait. Either counts as `failure_mode_allowed` besides, where that is set.
fn failures(scene: &Scene<'_>, counters: &Counters<'_>, findings: &mut Findings) {
    let place = &scene.gateway.place;
    let allowed = counters.of_filter(scene, "failure_mode_allowed");
    let timeouts = counters.of_filter(scene, "message_timeouts");
    let open = scene.entries().map(|route| scene.unanswered(route)).find(|fate| matches!(fate, Fate::LetThrough(_)));
    let failed = counters.of_filter(scene, "streams_failed").max(allowed.saturating_sub(timeouts));
    let streams = counted(failed, "stream");
    if failed > 0 && allowed > 0 {
        let fates: BTreeSet<_> = scene.entries().map(|route| scene.failed(route)).collect();
        let fates: Vec<_> = fates.iter().map(Fate::of_those).collect();
        let what = format!(
            "{streams} failed {SINCE} (streams_failed, failure_mode_allowed): of these, requests {}; answers under way went on, \
             uncounted",
            fates.join(", or ")
        );
        findings.add(&WAS_OPEN, place, what);
    } else if failed > 0 {
        let what = format!("{streams} to the sidecar failed {SINCE} (streams_failed), and their requests with them");
        findings.add(&HAS_FAILED, place, what);
    }
    if timeouts == 0 {
        return;
    }
    let messages = counted(timeouts, "message");
    if let (Some(fate), true) = (&open, allowed > 0) {
        let what =
            format!("{messages} had no answer in time {SINCE} (message_timeouts); such a request {}", fate.of_one());
        findings.add(&WAS_OPEN, place, what);
    }
    let waits_for_clients = scene.entries().any(|route| {
        let is_idle_first = matches!(scene.stalled(route), (_, Fate::Answered(408)));
        scene.request_body(Some(route)) == BodyMode::Streamed && !is_idle_first
    });
    let whose = match waits_for_clients {
        true => {
            "by a client that paused its upload, by a body above Envoy's buffer, or by a slow sidecar: Envoy's counters \
             do not tell which"
        }
        false => "by a slow sidecar: no pause of a client ends so here",
    };
    let what = format!("{messages} had no answer in time {SINCE} (message_timeouts), held up {whose}");
    findings.add(&TIMED_OUT, place, what);
}
