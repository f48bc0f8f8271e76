//! Whether the ext_proc filter sends what the sidecar has to see, and lets it do what it has to do.

use std::time::Duration;

use attache_proto::headers::COST_METADATA_NAMESPACE;
use serde_json::Value;

use crate::doctor::finding::{Findings, Rule, Severity};
use crate::doctor::json::Json;
use crate::doctor::route::Route;
use crate::doctor::scene::{BodyMode, Scene};

pub(in crate::doctor) static RULES: [&Rule; 16] = [
    &REQUEST_HEADERS,
    &REQUEST_BODY,
    &RESPONSE_BODY,
    &TRAILERS,
    &OBSERVING,
    &ROUTE_KEPT,
    &REFUSALS_IGNORED,
    &MUTATIONS,
    &WITHHELD,
    &UNCOUNTED,
    &CUT_ANSWERS,
    &MESSAGE_TIMEOUT,
    &LENGTH_REMOVED,
    &MODE_OVERRIDE,
    &NO_COSTS,
    &NO_REPLICA,
];

static REQUEST_HEADERS: Rule = Rule {
    id: "request-headers-not-sent",
    severity: Severity::Error,
    envoy: "set processing_mode.request_header_mode: SEND",
    envoy_gateway: "give EnvoyExtensionPolicy spec.extProc[].processingMode a `request`",
};
static REQUEST_BODY: Rule = Rule {
    id: "request-body-mode",
    severity: Severity::Error,
    envoy: "set processing_mode.request_body_mode: STREAMED and send_body_without_waiting_for_header_response: true, or BUFFERED",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].processingMode.request.body: Buffered",
};
static RESPONSE_BODY: Rule = Rule {
    id: "response-body-mode",
    severity: Severity::Error,
    envoy: "set processing_mode.response_body_mode: STREAMED",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].processingMode.response.body: Streamed",
};
static TRAILERS: Rule = Rule {
    id: "trailers-hang",
    severity: Severity::Warning,
    envoy: "have HTTP/2 requests asked about with request_body_mode: BUFFERED, as `attache render static` does, or set codec_type: HTTP1",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].processingMode.request.body: Buffered",
};
static OBSERVING: Rule = Rule {
    id: "observability-mode",
    severity: Severity::Error,
    envoy: "remove observability_mode",
    envoy_gateway: "remove the EnvoyPatchPolicy that sets it",
};
static ROUTE_KEPT: Rule = Rule {
    id: "route-not-cleared",
    severity: Severity::Error,
    envoy: "remove disable_clear_route_cache, and route_cache_action: RETAIN",
    envoy_gateway: "remove the EnvoyPatchPolicy that sets it",
};
static REFUSALS_IGNORED: Rule = Rule {
    id: "refusals-ignored",
    severity: Severity::Error,
    envoy: "remove disable_immediate_response",
    envoy_gateway: "remove the EnvoyPatchPolicy that sets it",
};
static MUTATIONS: Rule = Rule {
    id: "mutations-forbidden",
    severity: Severity::Error,
    envoy: "set mutation_rules: {allow_all_routing: true, allow_envoy: true}, and nothing else",
    envoy_gateway: "remove the EnvoyPatchPolicy that sets mutation_rules",
};
static WITHHELD: Rule = Rule {
    id: "headers-withheld",
    severity: Severity::Warning,
    envoy: "remove forward_rules: the sidecar needs :path, :method, authorization, content-length and what limits count by",
    envoy_gateway: "remove the EnvoyPatchPolicy that sets forward_rules",
};
static UNCOUNTED: Rule = Rule {
    id: "answers-unseen",
    severity: Severity::Warning,
    envoy: "set response_header_mode: SEND and response_body_mode: STREAMED",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].processingMode.response.body: Streamed",
};
static CUT_ANSWERS: Rule = Rule {
    id: "answers-cut",
    severity: Severity::Warning,
    envoy: "set failure_mode_allow: true, once requests that were not processed can go nowhere (see fails-open)",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].failOpen: true, once the catch-all rule answers 503 by itself",
};
static MESSAGE_TIMEOUT: Rule = Rule {
    id: "message-timeout",
    severity: Severity::Warning,
    envoy: "set message_timeout above the idle_timeout of the way in, as `attache render static` does; the sidecar bounds its own work",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].messageTimeout as `attache render envoy-gateway` does",
};
static LENGTH_REMOVED: Rule = Rule {
    id: "content-length-removed",
    severity: Severity::Warning,
    envoy: "set allow_content_length_header: true",
    envoy_gateway: "nothing: with Buffered bodies Envoy sets the length itself",
};
static MODE_OVERRIDE: Rule = Rule {
    id: "mode-override",
    severity: Severity::Note,
    envoy: "remove allow_mode_override: the sidecar asks for no other mode",
    envoy_gateway: "remove EnvoyExtensionPolicy spec.extProc[].processingMode.allowModeOverride",
};
static NO_COSTS: Rule = Rule {
    id: "costs-not-received",
    severity: Severity::Note,
    envoy: "set metadata_options.receiving_namespaces.untyped: [io.envoy.ai_gateway]",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].metadata.writableNamespaces: [io.envoy.ai_gateway]",
};
static NO_REPLICA: Rule = Rule {
    id: "replica-not-told",
    severity: Severity::Note,
    envoy: "set response_attributes: [upstream.address]",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].processingMode.response.attributes: [upstream.address]",
};

/// An unknown mode is one that the sidecar refuses.
const REFUSED: &str = "the sidecar refuses such streams, so nothing is served";

/// Uploads of clients may pause for so long.
const LEAST_FOR_UPLOADS: Duration = Duration::from_secs(5);
/// Two round trips to a Redis that is about to be given up, and a busy machine.
const LEAST_FOR_OURSELVES: Duration = Duration::from_secs(1);

pub(in crate::doctor) fn gateway(scene: &Scene<'_>, findings: &mut Findings) {
    modes(scene, None, findings);
    for route in scene.entries().filter(|route| route.overrides(&scene.ext_proc).is_some()) {
        modes(scene, Some(route), findings);
    }
    powers(scene, findings);
    times(scene, findings);
}

fn modes(scene: &Scene<'_>, route: Option<&Route<'_>>, findings: &mut Findings) {
    let place = route.map_or_else(|| scene.gateway.place.clone(), |route| scene.at(route));
    let mode = scene.setting(route, "processing_mode");
    if mode.text("request_header_mode") == "SKIP" {
        findings.add(
            &REQUEST_HEADERS,
            &place,
            "the sidecar is not told of request headers: it cannot process anything",
        );
    }
    let waits = !scene.processor.is_true("send_body_without_waiting_for_header_response");
    match scene.request_body(route) {
        BodyMode::Buffered => {}
        BodyMode::Streamed if !waits => {}
        BodyMode::Streamed => {
            let what = format!("request bodies are STREAMED, but wait for the answer to the headers: {REFUSED}");
            findings.add(&REQUEST_BODY, &place, what);
        }
        BodyMode::None => {
            findings.add(&REQUEST_BODY, &place, format!("the sidecar does not get request bodies: {REFUSED}"));
        }
        BodyMode::Other(other) => {
            findings.add(&REQUEST_BODY, &place, format!("request bodies are sent as {other}: {REFUSED}"));
        }
    }
    match scene.response_body(route) {
        _ if mode.text("response_header_mode") == "SKIP" => unseen(&place, findings),
        BodyMode::Streamed => {}
        BodyMode::None => unseen(&place, findings),
        BodyMode::Buffered => {
            let what = format!("answers are BUFFERED, which loses those above the buffer limit: {REFUSED}");
            findings.add(&RESPONSE_BODY, &place, what);
        }
        BodyMode::Other(other) => {
            findings.add(&RESPONSE_BODY, &place, format!("answers are sent as {other}: {REFUSED}"));
        }
    }
    if keeps_trailers(scene, route) {
        let what = format!(
            "a request over HTTP/2 that ends in trailers hangs until it is given up: Envoy keeps them back while the headers wait \
             for an answer, which comes when the body is complete (request_body_mode: STREAMED, request_trailer_mode: {})",
            Some(mode.text("request_trailer_mode")).filter(|mode| *mode == "SEND").unwrap_or("SKIP"),
        );
        findings.add(&TRAILERS, &place, what);
    }
    if !scene.fails_open(route) && scene.response_body(route) != BodyMode::None {
        let what = "when the sidecar goes, every answer under way is cut (failure_mode_allow is false)";
        findings.add(&CUT_ANSWERS, &place, what);
    }
}

/// Whether the sidecar never hears that a body is complete which ends in trailers. A filter may hold several processors, one for
/// each version of HTTP; Envoy takes the trailers off HTTP/1.1 by itself.
fn keeps_trailers(scene: &Scene<'_>, route: Option<&Route<'_>>) -> bool {
    let manager = scene.gateway.manager;
    let http1_alone =
        manager.text("codec_type") == "HTTP1" && !manager.is_true("http_protocol_options.enable_trailers");
    !http1_alone && scene.request_body(route) == BodyMode::Streamed && !scene.buffers_http2()
}

fn unseen(place: &str, findings: &mut Findings) {
    let what = "the sidecar does not see answers: limits charge its estimates, failing servers are not noticed, and where it \
        asked for a usage event, clients get to see it";
    findings.add(&UNCOUNTED, place, what);
}

fn powers(scene: &Scene<'_>, findings: &mut Findings) {
    let (place, processor) = (&scene.gateway.place, scene.processor);
    if processor.is_true("observability_mode") {
        findings.add(&OBSERVING, place, "the filter only observes: nothing is routed, limited or refused");
    }
    if processor.is_true("disable_clear_route_cache") || processor.text("route_cache_action") == "RETAIN" {
        findings.add(&ROUTE_KEPT, place, "the route is not chosen anew: what the sidecar chooses has no effect");
    }
    if processor.is_true("disable_immediate_response") {
        findings.add(&REFUSALS_IGNORED, place, "the sidecar's refusals are ignored: keys and limits are not enforced");
    }
    let rules = processor.field("mutation_rules");
    if rules.is_true("disallow_all") || rules.field("disallow_expression").is_object() {
        let what = "Envoy does not let the sidecar set headers: no route of a model server will match";
        findings.add(&MUTATIONS, place, what);
    } else if rules.field("allow_expression").is_object() || rules.is_true("disallow_system") {
        let what = "Envoy lets the sidecar set some headers alone: refused ones fail requests or change them in part";
        findings.add(&MUTATIONS, place, what);
    }
    if processor.field("forward_rules").is_object() {
        findings.add(&WITHHELD, place, "some headers are kept from the sidecar");
    }
    if processor.is_true("allow_mode_override") {
        findings.add(
            &MODE_OVERRIDE,
            place,
            "the sidecar may change the processing mode (allow_mode_override); it never does",
        );
    }
    let sees_answers = scene.response_body(None) != BodyMode::None;
    let names = |path: &str, name: &str| processor.list(path).iter().filter_map(Value::as_str).any(|one| one == name);
    if sees_answers && !names("metadata_options.receiving_namespaces.untyped", COST_METADATA_NAMESPACE) {
        let what = "Envoy drops the costs that llmRequestCosts names: access logs do not have them";
        findings.add(&NO_COSTS, place, what);
    }
    if sees_answers && !names("response_attributes", "upstream.address") {
        let what =
            "the sidecar is not told which replica answered: it takes the one that it asked for, also after a retry";
        findings.add(&NO_REPLICA, place, what);
    }
}

fn times(scene: &Scene<'_>, findings: &mut Findings) {
    let timeout = scene.message_timeout();
    for route in scene.entries() {
        let what = match scene.request_body(Some(route)) {
            // It counts from one message to its answer, and the headers are answered when the body is complete.
            BodyMode::Streamed if timeout < LEAST_FOR_UPLOADS => {
                let (after, fate) = scene.stalled(route);
                format!("a client whose upload pauses for {} ms {}", after.as_millis(), fate.of_one())
            }
            BodyMode::Buffered if timeout < LEAST_FOR_OURSELVES => {
                let fate = scene.unanswered(route).of_one();
                format!("a request that waits {} ms for Redis or for a busy sidecar {fate}", timeout.as_millis())
            }
            _ => continue,
        };
        findings.add(&MESSAGE_TIMEOUT, &scene.at(route), what + " (message_timeout)");
    }
    let place = &scene.gateway.place;
    if scene.request_body(None) == BodyMode::Streamed && !scene.processor.is_true("allow_content_length_header") {
        let what = "Envoy takes content-length off requests: model servers get chunks, which some do not read";
        findings.add(&LENGTH_REMOVED, place, what);
    }
}
