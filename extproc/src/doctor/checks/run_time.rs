//! What Envoy's version and its counters say.

use serde_json::Value;

use crate::doctor::dump::Proxy;
use crate::doctor::finding::{Findings, Rule, Severity};
use crate::doctor::json::Json;
use crate::doctor::scene::{BodyMode, Scene};

pub(in crate::doctor) static RULES: [&Rule; 6] = [&TOO_OLD, &OLD, &WAS_OPEN, &TIMED_OUT, &OVERFLOWED, &NO_TRAFFIC];

static TOO_OLD: Rule = Rule {
    id: "envoy-too-old",
    severity: Severity::Error,
    envoy: "use Envoy 1.38 or later",
    envoy_gateway: "use Envoy Gateway 1.8 or later",
};
static OLD: Rule = Rule {
    id: "envoy-old",
    severity: Severity::Warning,
    envoy: "use Envoy 1.38 or later: the rendered bootstrap was measured on 1.40",
    envoy_gateway: "use Envoy Gateway 1.8 or later",
};
static WAS_OPEN: Rule = Rule {
    id: "has-failed-open",
    severity: Severity::Warning,
    envoy: "look why the sidecar did not answer: its log, its restarts, message_timeout; alert on ext_proc.failure_mode_allowed",
    envoy_gateway: "look why the sidecar did not answer: its pods, their restarts, messageTimeout; alert on \
        envoy_http_ext_proc_failure_mode_allowed",
};
static TIMED_OUT: Rule = Rule {
    id: "has-timed-out",
    severity: Severity::Warning,
    envoy: "look at the sidecar's CPU, at Redis (attache_store_*), and at clients that upload slowly",
    envoy_gateway: "look at the sidecar's CPU limit, at Redis (attache_store_*), and at clients that upload slowly",
};
static OVERFLOWED: Rule = Rule {
    id: "has-overflowed",
    severity: Severity::Error,
    envoy: "raise the circuit breakers of the sidecar's cluster",
    envoy_gateway: "raise EnvoyExtensionPolicy spec.extProc[].backendSettings.circuitBreaker",
};
static NO_TRAFFIC: Rule = Rule {
    id: "no-traffic",
    severity: Severity::Note,
    envoy: "send a request and look again; a stream must be counted in ext_proc.streams_started",
    envoy_gateway: "send a request and look again; a stream must be counted in ext_proc.streams_started",
};

/// Without `protocol_config`, which came with it, the sidecar cannot know how bodies come.
const OLDEST: (u64, u64) = (1, 33);
/// From which on `request_body_buffer_limit` and the no-wait flag are as we render them.
const OLDEST_RENDERED: (u64, u64) = (1, 38);

/// The version, as `(1, 40)`.
pub(in crate::doctor) fn version(proxy: &Proxy<'_>) -> Option<(u64, u64)> {
    let version = proxy.node?.field("user_agent_build_version.version");
    // Zero is left out.
    Some((version.number("major_number")?, version.number("minor_number").unwrap_or(0)))
}

pub(in crate::doctor) fn envoy(proxy: &Proxy<'_>, scenes: &[Scene<'_>], findings: &mut Findings) {
    let Some(version) = version(proxy) else { return };
    let (major, minor) = version;
    let is_streamed = scenes.iter().any(|scene| scene.request_body(None) == BodyMode::Streamed);
    if version < OLDEST {
        let what = format!("Envoy {major}.{minor} does not tell the sidecar how it sends bodies, so nothing is served");
        findings.add(&TOO_OLD, "", what);
    } else if version < OLDEST_RENDERED && is_streamed {
        findings.add(&OLD, "", format!("Envoy {major}.{minor} is older than what the static profile needs"));
    }
}

/// `stats` is what `/stats?format=json` says.
pub(in crate::doctor) fn counters(stats: &Value, scenes: &[Scene<'_>], findings: &mut Findings) {
    let total = |is_meant: &dyn Fn(&str) -> bool| -> u64 {
        let stats = stats.list("stats").iter();
        stats.filter(|stat| is_meant(stat.text("name"))).filter_map(|stat| stat.number("value")).sum()
    };
    let of_filter = |counter: &str| {
        let suffix = format!(".{counter}");
        total(&|name| name.contains(".ext_proc.") && name.ends_with(&suffix))
    };
    if scenes.is_empty() {
        return;
    }
    if of_filter("streams_started") == 0 {
        findings.add(&NO_TRAFFIC, "", "no request has come to the sidecar since this Envoy started");
    }
    let allowed = of_filter("failure_mode_allowed");
    if allowed > 0 {
        let what =
            format!("{allowed} streams went on without the sidecar since this Envoy started (failure_mode_allowed)");
        findings.add(&WAS_OPEN, "", what);
    }
    let timeouts = of_filter("message_timeouts");
    if timeouts > 0 {
        findings.add(
            &TIMED_OUT,
            "",
            format!("the sidecar did not answer {timeouts} messages in time (message_timeouts)"),
        );
    }
    for scene in scenes {
        let cluster = scene.sidecar_cluster();
        let names =
            ["upstream_rq_pending_overflow", "upstream_cx_overflow"].map(|name| format!("cluster.{cluster}.{name}"));
        let overflows = total(&|name| names.iter().any(|known| known == name));
        if overflows > 0 {
            let what = format!("a circuit breaker kept {overflows} streams from the sidecar since this Envoy started");
            findings.add(&OVERFLOWED, &format!("cluster {cluster}"), what);
        }
    }
}
