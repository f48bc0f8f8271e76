//! How large, how long and how often: the bounds that Envoy sets to requests on their way.

use std::time::Duration;

use crate::doctor::finding::{Findings, Rule, Severity};
use crate::doctor::gateway::Route;
use crate::doctor::json::Json;
use crate::doctor::scene::{BodyMode, Scene};

pub(in crate::doctor) static RULES: [&Rule; 7] =
    [&SMALL_BUFFER, &BUFFER_BELOW_CAP, &SHORT_TIMEOUT, &MODEST_TIMEOUT, &IDLE_TIMEOUT, &RETRIES, &NO_RETRIES];

static SMALL_BUFFER: Rule = Rule {
    id: "buffer-too-small",
    severity: Severity::Error,
    envoy: "set request_body_buffer_limit of the virtual host above the sidecar's --max-body (16842752 for 16MiB)",
    envoy_gateway: "set ClientTrafficPolicy spec.connection.bufferLimit above the sidecar's --max-body (17Mi for 16MiB)",
};
static BUFFER_BELOW_CAP: Rule = Rule {
    id: "buffer-below-cap",
    severity: Severity::Warning,
    envoy: "set request_body_buffer_limit of the virtual host above the sidecar's --max-body, or that below the limit",
    envoy_gateway: "set ClientTrafficPolicy spec.connection.bufferLimit above the sidecar's --max-body, or that below the limit",
};
static SHORT_TIMEOUT: Rule = Rule {
    id: "answers-time-out",
    severity: Severity::Error,
    envoy: "set the route's timeout: 0s, and the rule's own in `timeouts` of the AIGatewayRoute",
    envoy_gateway: "set `timeouts: {request: 0s}` in the HTTPRoute's rule, or BackendTrafficPolicy \
        spec.timeout.http.requestTimeout: 0s",
};
static MODEST_TIMEOUT: Rule = Rule {
    id: "long-answers-time-out",
    severity: Severity::Warning,
    envoy: "set the route's timeout: 0s (and max_stream_duration, per_try_timeout likewise) if answers may take longer",
    envoy_gateway: "set `timeouts: {request: 0s}` in the HTTPRoute's rule, and no maxStreamDuration or perRetry.timeout in the \
        BackendTrafficPolicy, if answers may take longer",
};
static IDLE_TIMEOUT: Rule = Rule {
    id: "silent-answers-time-out",
    severity: Severity::Warning,
    envoy: "set stream_idle_timeout: 900s, or the route's idle_timeout",
    envoy_gateway: "set ClientTrafficPolicy spec.timeout.http.streamIdleTimeout: 900s",
};
static RETRIES: Rule = Rule {
    id: "generations-repeated",
    severity: Severity::Warning,
    envoy: "set retry_on: connect-failure,refused-stream,reset-before-request,retriable-status-codes with \
        retriable_status_codes: [503]",
    envoy_gateway: "set BackendTrafficPolicy spec.retry.retryOn: {triggers: [connect-failure, refused-stream, \
        retriable-status-codes], httpStatusCodes: [503]}",
};
static NO_RETRIES: Rule = Rule {
    id: "no-retries",
    severity: Severity::Note,
    envoy: "give the route a retry_policy",
    envoy_gateway: "set BackendTrafficPolicy spec.retry",
};

/// A page of text in every known language, or one small picture: below it, ordinary requests fail.
const ORDINARY_BODY_BYTES: u64 = 1024 * 1024;
/// Answers of a few hundred tokens on a busy server take that long.
const SHORT: Duration = Duration::from_secs(60);
/// What OpenAI's SDKs wait.
const AS_LONG_AS_CLIENTS: Duration = Duration::from_secs(600);

pub(in crate::doctor) fn gateway(scene: &Scene<'_>, findings: &mut Findings) {
    for route in scene.entries() {
        buffer(scene, route, findings);
    }
    for route in scene.targets() {
        timeouts(scene, route, findings);
        retries(scene, route, findings);
    }
}

fn buffer(scene: &Scene<'_>, route: &Route<'_>, findings: &mut Findings) {
    let (limit, cap) = (route.buffer_limit(scene.gateway.listener), scene.body_cap);
    let fate = match scene.request_body(Some(route)) {
        BodyMode::Buffered if limit >= cap => return,
        BodyMode::Buffered => "are refused by Envoy with 413",
        // The chunk that goes over the cap must still come through, or nobody could refuse it.
        _ if limit > cap => return,
        _ => "stall until a timeout",
    };
    let what =
        format!("bodies above {} {fate}, though the sidecar takes up to {}", shown_bytes(limit), shown_bytes(cap));
    let rule = if limit < ORDINARY_BODY_BYTES { &SMALL_BUFFER } else { &BUFFER_BELOW_CAP };
    findings.add(rule, &scene.at(route), what);
}

fn timeouts(scene: &Scene<'_>, route: &Route<'_>, findings: &mut Findings) {
    const ENVOYS_DEFAULT: Duration = Duration::from_secs(15);
    let place = scene.at(route);
    let of_route = Some(route.route.duration("route.timeout").unwrap_or(ENVOYS_DEFAULT));
    let bounds = [
        ("the route's timeout", of_route),
        ("max_stream_duration", route.route.duration("route.max_stream_duration.max_stream_duration")),
        ("max_stream_duration", scene.gateway.manager.duration("common_http_protocol_options.max_stream_duration")),
        ("per_try_timeout", route.route.duration("route.retry_policy.per_try_timeout")),
    ];
    for (name, bound) in bounds {
        let Some(bound) = bound.filter(|bound| !bound.is_zero() && *bound < AS_LONG_AS_CLIENTS) else { continue };
        let rule = if bound < SHORT { &SHORT_TIMEOUT } else { &MODEST_TIMEOUT };
        findings.add(rule, &place, format!("answers that take longer than {} s are cut ({name})", bound.as_secs_f64()));
    }
    let idle = scene.idle_timeout(route);
    if !idle.is_zero() && idle < AS_LONG_AS_CLIENTS {
        let what = format!(
            "an answer that is not streamed is silent until it is complete, and cut after {} s of silence",
            idle.as_secs_f64()
        );
        findings.add(&IDLE_TIMEOUT, &place, what);
    }
}

fn retries(scene: &Scene<'_>, route: &Route<'_>, findings: &mut Findings) {
    let place = scene.at(route);
    let policy = route.route.field("route.retry_policy");
    if !policy.is_object() {
        findings.add(&NO_RETRIES, &place, "a connection that fails is an error for the client: nothing is tried again");
        return;
    }
    // Each of them may come after the model has begun.
    const REPEATING: [&str; 4] = ["5xx", "gateway-error", "reset", "retriable-4xx"];
    let conditions = policy.text("retry_on").split(',').map(str::trim).filter(|name| REPEATING.contains(name));
    let codes = policy.list("retriable_status_codes").iter().filter_map(serde_json::Value::as_u64);
    let codes = codes.filter(|code| matches!(code, 500 | 502 | 504)).map(|code| code.to_string());
    let repeating: Vec<String> = conditions.map(str::to_owned).chain(codes).collect();
    if !repeating.is_empty() {
        let what = format!(
            "a generation that a model had begun may be repeated, and paid for twice ({})",
            repeating.join(", ")
        );
        findings.add(&RETRIES, &place, what);
    }
}

/// Bytes as people write them.
pub(in crate::doctor) fn shown_bytes(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    }
}
