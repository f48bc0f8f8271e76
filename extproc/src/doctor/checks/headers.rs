//! Whether what clients send can pass for what the sidecar says.

use attache_proto::headers::{DESTINATION_ENDPOINT, OWNED, STRIPPED_EARLY};
use serde_json::Value;

use crate::doctor::finding::{Findings, Rule, Severity};
use crate::doctor::json::{Json, within};
use crate::doctor::matching::string_takes;
use crate::doctor::scene::Scene;

pub(in crate::doctor) static RULES: [&Rule; 3] = [&NOT_STRIPPED, &ENVOYS_OWN, &LEAKING];

static NOT_STRIPPED: Rule = Rule {
    id: "headers-not-stripped",
    severity: Severity::Error,
    envoy: "remove them in early_header_mutation_extensions, which act before any filter or route",
    envoy_gateway: "list them in ClientTrafficPolicy spec.headers.earlyRequestHeaders.remove",
};
static ENVOYS_OWN: Rule = Rule {
    id: "envoy-headers-not-stripped",
    severity: Severity::Note,
    envoy: "remove them early: {remove_on_match: {key_matcher: {prefix: x-envoy-}}}",
    envoy_gateway: "list x-envoy-upstream-rq-timeout-ms, x-envoy-max-retries and x-envoy-retry-on in ClientTrafficPolicy \
        spec.headers.earlyRequestHeaders.remove",
};
static LEAKING: Rule = Rule {
    id: "headers-go-upstream",
    severity: Severity::Note,
    envoy: "list them in request_headers_to_remove of the virtual host",
    envoy_gateway: "remove them with a RequestHeaderModifier in the rules of the targets",
};

pub(in crate::doctor) fn gateway(scene: &Scene<'_>, findings: &mut Findings) {
    let place = &scene.gateway.place;
    let mutations: Vec<&Value> = scene
        .gateway
        .manager
        .list("early_header_mutation_extensions")
        .iter()
        .filter_map(|extension| within(extension, "HeaderMutation"))
        .flat_map(|mutation| mutation.list("mutations"))
        .collect();
    let is_removed = |name: &str| {
        mutations.iter().any(|mutation| {
            mutation.text("remove").eq_ignore_ascii_case(name)
                || string_takes(mutation.field("remove_on_match.key_matcher"), name)
        })
    };
    let kept: Vec<&str> = STRIPPED_EARLY.into_iter().filter(|name| !is_removed(name)).collect();
    if !kept.is_empty() {
        let what =
            format!("clients can send {}, and so choose a route, a server or a caller themselves", kept.join(", "));
        findings.add(&NOT_STRIPPED, place, what);
    }
    if !is_removed("x-envoy-upstream-rq-timeout-ms") {
        let what = "clients whom Envoy takes for internal can set timeouts and retries with x-envoy-... headers";
        findings.add(&ENVOYS_OWN, place, what);
    }
    let mut leaking: Vec<&str> = Vec::new();
    for route in scene.targets() {
        // The load balancer reads it after such removals, and needs it.
        let names = OWNED.into_iter().filter(|name| *name != DESTINATION_ENDPOINT);
        for name in names.filter(|name| !route.removes_request_header(name)) {
            if !leaking.contains(&name) {
                leaking.push(name);
            }
        }
    }
    if !leaking.is_empty() {
        let what = format!("model servers are told {}", leaking.join(", "));
        findings.add(&LEAKING, place, what);
    }
}
