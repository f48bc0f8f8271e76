//! How large, how long and how often: the bounds that Envoy sets to requests on their way.

use std::time::Duration;

use crate::doctor::finding::{Findings, Rule, Severity};
use crate::doctor::json::Json;
use crate::doctor::route::Route;
use crate::doctor::scene::{BodyMode, Hold, OVER_HTTP2, Scene};

pub(in crate::doctor) static RULES: [&Rule; 7] =
    [&SMALL_BUFFER, &BUFFER_BELOW_CAP, &SHORT_TIMEOUT, &MODEST_TIMEOUT, &IDLE_TIMEOUT, &RETRIES, &NO_RETRIES];

/// What is above the sidecar's cap by default.
const LARGER_BUFFER: &str = "set request_body_buffer_limit of the virtual host above the sidecar's --max-body (33619968 for 32MiB); \
    for a way in with a direct_response, to which Envoy does not apply it, per_connection_buffer_limit_bytes of the listener \
    (HTTP/1.1) and http2_protocol_options.initial_stream_window_size (HTTP/2)";
const LARGER_BUFFER_OF_GATEWAY: &str = "set ClientTrafficPolicy spec.connection.bufferLimit (HTTP/1.1) and \
    spec.http2.initialStreamWindowSize (HTTP/2) above the sidecar's --max-body (32832Ki for 32MiB)";

static SMALL_BUFFER: Rule = Rule {
    id: "buffer-too-small",
    severity: Severity::Error,
    envoy: LARGER_BUFFER,
    envoy_gateway: LARGER_BUFFER_OF_GATEWAY,
};
static BUFFER_BELOW_CAP: Rule = Rule {
    id: "buffer-below-cap",
    severity: Severity::Warning,
    envoy: LARGER_BUFFER,
    envoy_gateway: LARGER_BUFFER_OF_GATEWAY,
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
    let cap = scene.body_cap;
    let is_buffered = match scene.request_body(Some(route)) {
        BodyMode::Buffered => true,
        BodyMode::Streamed => false,
        // Not served at all.
        BodyMode::None | BodyMode::Other(_) => return,
    };
    for Hold { over, bytes } in scene.holds(route) {
        let is_buffered = is_buffered || (over == OVER_HTTP2 && scene.buffers_http2());
        // Of a streamed body the chunk that goes over the cap must still come through, or nobody could refuse it.
        if bytes > cap || (is_buffered && bytes == cap) {
            continue;
        }
        let mut what = format!("bodies of more than about {}{over} ", shown_bytes(bytes));
        if is_buffered {
            what.push_str("are refused by Envoy with 413");
        } else {
            let (after, fate) = scene.stalled(route);
            what.push_str(&format!("stall; after {} s the request {}", after.as_secs_f64(), fate.of_one()));
        }
        what.push_str(&match bytes < cap {
            true => format!("; the sidecar takes up to {}", shown_bytes(cap)),
            false => "; the sidecar would refuse them with 413".to_owned(),
        });
        let rule = if bytes < ORDINARY_BODY_BYTES { &SMALL_BUFFER } else { &BUFFER_BELOW_CAP };
        findings.add(rule, &scene.at(route), what);
    }
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
