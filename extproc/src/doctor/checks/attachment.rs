//! Whether requests come to the sidecar, in the right order, and go where it says.

use std::collections::BTreeSet;

use crate::doctor::dump::Proxy;
use crate::doctor::finding::{Findings, Rule, Severity};
use crate::doctor::gateway::{Gateway, Kind};
use crate::doctor::json::Json;
use crate::doctor::route::Route;
use crate::doctor::scene::{BodyMode, Fate, Scene};

pub(in crate::doctor) static RULES: [&Rule; 12] = [
    &NOT_ATTACHED,
    &REFUSED,
    &INCOMPLETE,
    &NEVER_RUNS,
    &BYPASS,
    &FAILS_OPEN,
    &CLEAN_CLOSE,
    &NO_TARGET,
    &WASM_AFTER,
    &COMPRESSED,
    &ANOTHER,
    &PASSES_BY,
];

static NOT_ATTACHED: Rule = Rule {
    id: "not-attached",
    severity: Severity::Error,
    envoy: "add the ext_proc filter before the router (`attache render static` prints it), or say how it is called: --filter",
    envoy_gateway: "apply the EnvoyExtensionPolicy of `attache render envoy-gateway`, and look at its status: a policy whose \
        target does not exist, or that is older than a conflicting one, is not accepted",
};
static REFUSED: Rule = Rule {
    id: "update-refused",
    severity: Severity::Error,
    envoy: "mend what Envoy names; until then it runs on what it had before",
    envoy_gateway: "look at the status of the object that was changed last and at the log of Envoy Gateway",
};
static INCOMPLETE: Rule = Rule {
    id: "incomplete",
    severity: Severity::Error,
    envoy: "take the whole dump, /config_dump?include_eds without a mask or a name, when Envoy has all of its configuration; what \
        cannot be read then is to be examined by hand",
    envoy_gateway: "take the whole dump: egctl config envoy-proxy all",
};
static NEVER_RUNS: Rule = Rule {
    id: "never-runs",
    severity: Severity::Error,
    envoy: "enable the filter (typed_per_filter_config) on the route that matches first, the one without our headers: filters \
        that are disabled there never run, also not after the route was chosen anew",
    envoy_gateway: "target the Gateway with the EnvoyExtensionPolicy, or the HTTPRoute with the catch-all rule",
};
static BYPASS: Rule = Rule {
    id: "bypass",
    severity: Severity::Error,
    envoy: "enable the filter on that route, or have it end in a cluster without hosts",
    envoy_gateway: "target the Gateway with the EnvoyExtensionPolicy, or remove the HTTPRoute that leads to the model servers \
        directly",
};
static FAILS_OPEN: Rule = Rule {
    id: "fails-open",
    severity: Severity::Error,
    envoy: "have the route on which requests come in end in a cluster without hosts or in a direct_response of 503: then \
        only routes that match on x-attache-cluster lead to model servers",
    envoy_gateway: "give the catch-all rule no backendRefs but a direct response of 503 (HTTPRouteFilter), and put the model \
        servers behind rules that match on x-attache-cluster",
};
static CLEAN_CLOSE: Rule = Rule {
    id: "open-to-a-clean-close",
    severity: Severity::Warning,
    envoy: "have the route on which requests come in end in a cluster without hosts or in a direct_response of 503",
    envoy_gateway: "give the catch-all rule a direct response of 503 (HTTPRouteFilter) in place of its backendRefs",
};
static NO_TARGET: Rule = Rule {
    id: "no-target",
    severity: Severity::Error,
    envoy: "add a route for each cluster that matches on the header x-attache-cluster, or one with cluster_header",
    envoy_gateway: "apply the HTTPRoutes of `attache render envoy-gateway`: one rule for each target, matching on \
        x-attache-cluster",
};
static WASM_AFTER: Rule = Rule {
    id: "wasm-after-ext-proc",
    severity: Severity::Warning,
    envoy: "put the Wasm filter before the ext_proc filter",
    envoy_gateway: "set EnvoyProxy spec.filterOrder: [{name: envoy.filters.http.wasm, before: envoy.filters.http.ext_proc}]",
};
static COMPRESSED: Rule = Rule {
    id: "compressed-answers",
    severity: Severity::Warning,
    envoy: "put the compressor before the ext_proc filter: answers pass the filters from the last to the first",
    envoy_gateway: "set EnvoyProxy spec.filterOrder: [{name: envoy.filters.http.compressor, before: \
        envoy.filters.http.ext_proc}], or leave BackendTrafficPolicy spec.compression out on these routes",
};
static ANOTHER: Rule = Rule {
    id: "another-processor",
    severity: Severity::Note,
    envoy: "nothing, if it is meant to be there; a processor that changes the model or the path belongs before the sidecar",
    envoy_gateway: "nothing, if it is meant to be there; two gateways for models on one listener count tokens twice",
};
static PASSES_BY: Rule = Rule {
    id: "passes-by",
    severity: Severity::Note,
    envoy: "nothing, if these routes serve something else than models",
    envoy_gateway: "nothing, if these HTTPRoutes serve something else than models",
};

/// What is said of what cannot be.
const UNKNOWN: &str = "the verdict is without what could not be read";

/// Pages that were asked for and did not come.
pub(in crate::doctor) fn unread(pages: &[String], findings: &mut Findings) {
    for page in pages {
        findings.add(&INCOMPLETE, "", format!("{UNKNOWN}: {page}"));
    }
}

/// What holds for the proxy as a whole.
pub(in crate::doctor) fn proxy(
    proxy: &Proxy<'_>,
    gateways: &[Gateway<'_>],
    scenes: &[Scene<'_>],
    findings: &mut Findings,
) {
    for (place, details) in &proxy.refused {
        findings.add(&REFUSED, place, format!("Envoy refused the last update: {details}"));
    }
    for (part, is_missing) in [("no listener", proxy.listeners.is_empty()), ("no cluster", proxy.clusters.is_empty())] {
        if is_missing {
            findings.add(&INCOMPLETE, "", format!("{UNKNOWN}: the dump has {part}"));
        }
    }
    for gateway in gateways {
        for unread in &gateway.unread {
            findings.add(&INCOMPLETE, &gateway.place, format!("{UNKNOWN}: {unread}"));
        }
    }
    if scenes.is_empty() {
        let what = match gateways.len() {
            0 => "there is no HTTP listener in the dump".to_owned(),
            count => format!("none of the {count} HTTP listeners asks the sidecar: no request comes to it"),
        };
        findings.add(&NOT_ATTACHED, "", what);
        return;
    }
    let models: BTreeSet<String> =
        scenes.iter().flat_map(|scene| hosts(proxy, &scene.gateway.model_clusters())).collect();
    for gateway in gateways {
        if scenes.iter().any(|scene| std::ptr::eq(scene.gateway, gateway)) {
            continue;
        }
        for route in gateway.routes().iter().filter(|route| leads_to(proxy, route, &models)) {
            let place = format!("{}, {}", gateway.place, route.place());
            findings.add(&BYPASS, &place, "requests reach model servers past the sidecar: no key, no limit, no count");
        }
    }
}

/// What holds for one connection manager.
pub(in crate::doctor) fn gateway(scene: &Scene<'_>, findings: &mut Findings) {
    order(scene, findings);
    let place = &scene.gateway.place;
    let cluster = scene.sidecar_cluster();
    if scene.proxy.clusters.contains_key(cluster) && scene.proxy.hosts(cluster).is_none() {
        findings.add(&INCOMPLETE, &format!("cluster {cluster}"), format!("{UNKNOWN}: its endpoints (include_eds)"));
    }
    if !scene.gateway.has_routes() {
        return;
    }
    if scene.entries().next().is_none() && (scene.ext_proc.is_disabled || scene.ways_in().next().is_some()) {
        let what = "the sidecar's filter is there, but no route on which requests come in enables it";
        findings.add(&NEVER_RUNS, place, what);
    }
    if scene.targets().next().is_none() {
        let what = "no route waits for a header that the sidecar sets: what it chooses has no effect";
        findings.add(&NO_TARGET, place, what);
    }
    let models = hosts(scene.proxy, &scene.gateway.model_clusters());
    for route in scene.ways_in() {
        if route.runs(&scene.ext_proc) {
            entry(scene, route, findings);
        } else if leads_to(scene.proxy, route, &models) {
            let what = "requests reach model servers past the sidecar: no key, no limit, no count";
            findings.add(&BYPASS, &scene.at(route), what);
        } else if !route.is_direct() && scene.entries().next().is_some() {
            findings.add(&PASSES_BY, &scene.at(route), "requests of this route do not come to the sidecar");
        }
    }
}

fn entry(scene: &Scene<'_>, route: &Route<'_>, findings: &mut Findings) {
    if scene.is_dead_end(route) {
        return;
    }
    let clusters = route.clusters().join(", ");
    if scene.fails_open(Some(route)) {
        let mut what = format!(
            "while the sidecar does not answer, requests go to {clusters} without a key, a limit or a count (failure_mode_allow)"
        );
        // With BUFFERED bodies no message waits for the client.
        if scene.request_body(Some(route)) == BodyMode::Streamed
            && let (after, Fate::LetThrough(_)) = scene.stalled(route)
        {
            what.push_str(&format!(
                "; and any client can have its request let through so, by pausing the upload for {} s (message_timeout)",
                after.as_secs_f64()
            ));
        }
        findings.add(&FAILS_OPEN, &scene.at(route), what);
    } else {
        let what = format!(
            "a stream that ends cleanly before the sidecar has answered lets its request on to {clusters}, whatever \
             failure_mode_allow says"
        );
        findings.add(&CLEAN_CLOSE, &scene.at(route), what);
    }
}

fn order(scene: &Scene<'_>, findings: &mut Findings) {
    let place = &scene.gateway.place;
    let position = |name: &str| scene.gateway.filters.iter().position(|filter| filter.name == name);
    let ours = position(scene.ext_proc.name);
    if let Some((wasm, _)) = scene.wasm
        && position(wasm.name) > ours
    {
        let what = "the Wasm filter runs after the sidecar: it refuses nothing before the sidecar has done its work";
        findings.add(&WASM_AFTER, place, what);
    }
    for (index, filter) in scene.gateway.filters.iter().enumerate() {
        match filter.kind {
            Kind::Other("Compressor") if Some(index) > ours && scene.response_body(None) != BodyMode::None => {
                let what = format!("{} compresses answers before the sidecar counts their tokens", filter.name);
                findings.add(&COMPRESSED, place, what);
            }
            Kind::ExtProc(processor) if Some(index) != ours && filter.name != scene.ext_proc.name => {
                let cluster = processor.text("grpc_service.envoy_grpc.cluster_name");
                let side = if Some(index) < ours { "before" } else { "after" };
                findings.add(&ANOTHER, place, format!("{} ({cluster}) runs {side} the sidecar", filter.name));
            }
            _ => {}
        }
    }
}

fn hosts(proxy: &Proxy<'_>, clusters: &BTreeSet<&str>) -> BTreeSet<String> {
    let of = |cluster: &&str| proxy.hosts(cluster).unwrap_or_default().into_iter().map(|host| host.address());
    clusters.iter().flat_map(of).chain(clusters.iter().map(|cluster| format!("cluster {cluster}"))).collect()
}

/// Whether a route leads to one of these hosts or clusters.
fn leads_to(proxy: &Proxy<'_>, route: &Route<'_>, models: &BTreeSet<String>) -> bool {
    let clusters = route.clusters().into_iter().collect();
    hosts(proxy, &clusters).iter().any(|host| models.contains(host))
}
