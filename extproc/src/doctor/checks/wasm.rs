//! The Wasm filter: a first gate, and never the only one.

use serde_json::Value;

use crate::doctor::finding::{Findings, Rule, Severity};
use crate::doctor::json::Json;
use crate::doctor::scene::Scene;

pub(in crate::doctor) static RULES: [&Rule; 6] =
    [&UNCONFIGURED, &ANSWERS, &FAIL_OPEN, &NOT_ENABLED, &FAIL_CLOSED, &MISSING];

static UNCONFIGURED: Rule = Rule {
    id: "wasm-unconfigured",
    severity: Severity::Error,
    envoy: "render the filter's configuration anew: attache render static",
    envoy_gateway: "render the EnvoyExtensionPolicy anew: attache render envoy-gateway",
};
static ANSWERS: Rule = Rule {
    id: "wasm-answers",
    severity: Severity::Error,
    envoy: "render the filter anew: allow_on_headers_stop_iteration and `answers` in its configuration belong together",
    envoy_gateway: "render the EnvoyExtensionPolicy anew: Envoy Gateway cannot set allow_on_headers_stop_iteration",
};
static FAIL_OPEN: Rule = Rule {
    id: "wasm-fail-open",
    severity: Severity::Warning,
    envoy: "set failure_policy: FAIL_RELOAD",
    envoy_gateway: "remove EnvoyExtensionPolicy spec.wasm[].failOpen",
};
static NOT_ENABLED: Rule = Rule {
    id: "wasm-not-enabled",
    severity: Severity::Warning,
    envoy: "enable the filter on the route on which requests come in",
    envoy_gateway: "put `wasm` into the same EnvoyExtensionPolicy as `extProc`",
};
static FAIL_CLOSED: Rule = Rule {
    id: "wasm-fail-closed",
    severity: Severity::Note,
    envoy: "set failure_policy: FAIL_RELOAD",
    envoy_gateway: "nothing: Envoy Gateway knows no other",
};
static MISSING: Rule = Rule {
    id: "wasm-missing",
    severity: Severity::Note,
    envoy: "nothing, or render with --wasm FILE",
    envoy_gateway: "nothing, or render with --wasm-url and --wasm-sha256",
};

pub(in crate::doctor) fn gateway(scene: &Scene<'_>, findings: &mut Findings) {
    let place = &scene.gateway.place;
    let Some((filter, plugin)) = scene.wasm else {
        let what = "there is no Wasm filter of ours: the sidecar makes all checks, also for requests that headers alone refuse";
        findings.add(&MISSING, place, what);
        return;
    };
    if scene.entries().any(|route| !route.runs(&filter)) {
        findings.add(&NOT_ENABLED, place, "the Wasm filter is there, but does not run on every way in to the sidecar");
    }
    match (plugin.text("failure_policy"), plugin.is_true("fail_open")) {
        ("FAIL_OPEN", _) | (_, true) => {
            let what = "a Wasm filter that has failed lets everything pass; the sidecar still checks it";
            findings.add(&FAIL_OPEN, place, what);
        }
        ("FAIL_RELOAD", _) => {}
        _ => {
            let what = "a Wasm filter that has failed answers 503 for its worker until Envoy starts anew";
            findings.add(&FAIL_CLOSED, place, what);
        }
    }
    let configuration = plugin.text("configuration.value");
    match serde_json::from_str::<Value>(configuration) {
        Ok(gate) if gate.field("version").is_number() => {
            let reads_bodies = plugin.is_true("allow_on_headers_stop_iteration");
            if gate.text("answers") == "after_body" && !reads_bodies {
                let what = "the Wasm filter answers after the body, but Envoy does not give it bodies";
                findings.add(&ANSWERS, place, what);
            }
        }
        _ => {
            let what = "the Wasm filter's configuration cannot be read: it answers 503 to everything";
            findings.add(&UNCONFIGURED, place, what);
        }
    }
}
