//! The sidecar's cluster, and the clusters of the model servers.

use std::time::Duration;

use attache_proto::headers::DESTINATION_ENDPOINT;
use serde_json::Value;

use crate::doctor::finding::{Findings, Rule, Severity};
use crate::doctor::json::{Json, within};
use crate::doctor::scene::Scene;

pub(in crate::doctor) static RULES: [&Rule; 10] = [
    &SIDECAR_MISSING,
    &SIDECAR_HTTP1,
    &SIDECAR_NO_HOST,
    &SIDECAR_BREAKERS,
    &SIDECAR_KEEPALIVE,
    &SIDECAR_UNCHECKED,
    &TARGET_MISSING,
    &REPLICA_IGNORED,
    &BREAKERS,
    &KEEPALIVE_RACE,
];

static SIDECAR_MISSING: Rule = Rule {
    id: "sidecar-cluster-missing",
    severity: Severity::Error,
    envoy: "add the cluster that grpc_service.envoy_grpc.cluster_name names",
    envoy_gateway: "look at the status of the EnvoyExtensionPolicy: its backendRefs may name what is not there, or is in another \
        namespace without a ReferenceGrant",
};
static SIDECAR_HTTP1: Rule = Rule {
    id: "sidecar-without-http2",
    severity: Severity::Error,
    envoy: "give the sidecar's cluster explicit_http_config.http2_protocol_options",
    envoy_gateway: "remove the EnvoyPatchPolicy that changes the sidecar's cluster: Envoy Gateway sets HTTP/2",
};
static SIDECAR_NO_HOST: Rule = Rule {
    id: "sidecar-without-host",
    severity: Severity::Error,
    envoy: "look at the cluster's load_assignment and its health checks, and whether the sidecar runs",
    envoy_gateway: "look whether the sidecar's pods are ready, and whether its Service selects them",
};
static SIDECAR_BREAKERS: Rule = Rule {
    id: "sidecar-breakers",
    severity: Severity::Warning,
    envoy: "set circuit_breakers.thresholds of the sidecar's cluster to 1000000 each",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].backendSettings.circuitBreaker: {maxConnections, \
        maxPendingRequests, maxParallelRequests, maxParallelRetries} to 1000000 each",
};
static SIDECAR_KEEPALIVE: Rule = Rule {
    id: "sidecar-keepalive",
    severity: Severity::Note,
    envoy: "set http2_protocol_options.connection_keepalive: {interval: 30s, timeout: 20s}",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].backendSettings.tcpKeepalive, or run the sidecar in the proxy's pod",
};
static SIDECAR_UNCHECKED: Rule = Rule {
    id: "sidecar-unchecked",
    severity: Severity::Warning,
    envoy: "give the sidecar's cluster a gRPC health check (health_checks: grpc_health_check, service_name: \
        envoy.service.ext_proc.v3.ExternalProcessor), as `attache render static` does for a name",
    envoy_gateway: "set EnvoyExtensionPolicy spec.extProc[].backendSettings.healthCheck.active: {type: GRPC, ...}, as `attache render \
        envoy-gateway` does",
};
static TARGET_MISSING: Rule = Rule {
    id: "target-without-cluster",
    severity: Severity::Error,
    envoy: "add the cluster, or remove the route",
    envoy_gateway: "look at the status of the HTTPRoute: a Backend that it refers to is not there",
};
static REPLICA_IGNORED: Rule = Rule {
    id: "replica-choice-ignored",
    severity: Severity::Warning,
    envoy: "give the cluster the load balancing policy override_host with override_host_sources: [{header: \
        x-gateway-destination-endpoint}], or place in `mode: cluster`",
    envoy_gateway: "set BackendTrafficPolicy spec.loadBalancer.endpointOverride.extractFrom: [{header: \
        x-gateway-destination-endpoint}] on the HTTPRoute",
};
static BREAKERS: Rule = Rule {
    id: "model-breakers",
    severity: Severity::Warning,
    envoy: "set circuit_breakers.thresholds of the cluster to 1000000 each: how much goes to a server is the sidecar's business",
    envoy_gateway: "set BackendTrafficPolicy spec.circuitBreaker: {maxConnections, maxPendingRequests, maxParallelRequests, \
        maxParallelRetries} to 1000000 each",
};
static KEEPALIVE_RACE: Rule = Rule {
    id: "keep-alive-race",
    severity: Severity::Note,
    envoy: "set common_http_protocol_options.idle_timeout: 4s on the cluster",
    envoy_gateway: "set BackendTrafficPolicy spec.timeout.http.connectionIdleTimeout: 4s",
};

/// Envoy's defaults; Envoy Gateway leaves them as they are but for retries.
const DEFAULT_BREAKER: u64 = 1024;
const DEFAULT_RETRIES: u64 = 3;

/// After which uvicorn, and so vLLM and SGLang, closes an idle connection.
const UVICORN_KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(in crate::doctor) fn gateway(scene: &Scene<'_>, findings: &mut Findings) {
    sidecar(scene, findings);
    for route in scene.targets() {
        for name in route.clusters() {
            match scene.proxy.clusters.get(name) {
                Some(cluster) => model_servers(scene, name, cluster, findings),
                None if scene.proxy.clusters.is_empty() => {}
                None => {
                    let what = "there is no cluster of that name: requests get 503";
                    findings.add(&TARGET_MISSING, &format!("cluster {name}"), what);
                }
            }
        }
    }
}

fn sidecar(scene: &Scene<'_>, findings: &mut Findings) {
    let name = scene.sidecar_cluster();
    let place = format!("cluster {name}");
    if scene.proxy.clusters.is_empty() || name.is_empty() {
        return;
    }
    let Some(cluster) = scene.proxy.clusters.get(name) else {
        findings.add(&SIDECAR_MISSING, &place, "the sidecar's cluster is not there: no request can be processed");
        return;
    };
    let options = protocol_options(cluster);
    let explicit = options.field("explicit_http_config").get("http2_protocol_options");
    let explicit = explicit.or_else(|| options.field("explicit_http_config").get("http2ProtocolOptions"));
    if explicit.is_none() && !cluster.field("http2_protocol_options").is_object() {
        findings.add(&SIDECAR_HTTP1, &place, "the sidecar is asked over HTTP/1.1, and gRPC is HTTP/2 only");
    }
    match scene.proxy.hosts(name) {
        Some(hosts) if hosts.is_empty() => {
            findings.add(&SIDECAR_NO_HOST, &place, "the sidecar's cluster has no host: no request can be processed");
        }
        Some(hosts) if !hosts.iter().any(|host| host.is_usable()) => {
            findings.add(
                &SIDECAR_NO_HOST,
                &place,
                "no host of the sidecar's cluster is healthy: no request can be processed",
            );
        }
        Some(hosts) if hosts.iter().all(|host| host.is_local()) => {}
        _ if is_watched(cluster, options) => {}
        _ => {
            let what =
                "a connection to the sidecar that is dead without a sign is used until TCP gives up, minutes later";
            findings.add(&SIDECAR_KEEPALIVE, &place, what);
        }
    }
    let several = scene.proxy.hosts(name).map_or(0, |hosts| hosts.len()) > 1;
    if several && cluster.list("health_checks").is_empty() {
        let what = "there are several sidecars, and one that drains or hangs goes on getting its share of requests, which fail";
        findings.add(&SIDECAR_UNCHECKED, &place, what);
    }
    let low = low_breakers(cluster, &["max_connections", "max_pending_requests", "max_requests"]);
    if !low.is_empty() {
        let what = format!(
            "every request is a stream for as long as its answer lasts, and beyond {low} further ones are not processed"
        );
        findings.add(&SIDECAR_BREAKERS, &place, what);
    }
}

fn is_watched(cluster: &Value, options: &Value) -> bool {
    let http2 = options.field("explicit_http_config.http2_protocol_options.connection_keepalive").is_object();
    http2
        || cluster.field("http2_protocol_options.connection_keepalive").is_object()
        || cluster.field("upstream_connection_options.tcp_keepalive").is_object()
        || !cluster.list("health_checks").is_empty()
}

fn model_servers(scene: &Scene<'_>, name: &str, cluster: &Value, findings: &mut Findings) {
    let place = format!("cluster {name}");
    let low = low_breakers(cluster, &["max_connections", "max_pending_requests", "max_requests", "max_retries"]);
    if !low.is_empty() {
        findings.add(&BREAKERS, &place, format!("requests beyond {low} get 503, whatever the servers could do"));
    }
    let several = scene.proxy.hosts(name).is_none_or(|hosts| hosts.len() > 1);
    if several && !follows_choice(cluster) && !has_routes_of_replicas(scene, name) {
        let what =
            "the sidecar's choice of a replica has no effect: the cluster balances by itself, and caches are not found";
        findings.add(&REPLICA_IGNORED, &place, what);
    }
    let options = protocol_options(cluster);
    let is_http2 = options.field("explicit_http_config.http2_protocol_options").is_object();
    let idle = options.duration("common_http_protocol_options.idle_timeout");
    if !is_http2 && idle.is_none_or(|idle| idle.is_zero() || idle >= UVICORN_KEEP_ALIVE) {
        let what =
            "idle connections are kept longer than vLLM and SGLang keep them (5 s): requests race with their close";
        findings.add(&KEEPALIVE_RACE, &place, what);
    }
}

/// Whether the header with the chosen endpoints is read.
fn follows_choice(cluster: &Value) -> bool {
    within(cluster.field("load_balancing_policy"), "OverrideHost").is_some_and(|policy| {
        let sources = policy.list("override_host_sources").iter();
        sources.into_iter().any(|source| source.text("header").eq_ignore_ascii_case(DESTINATION_ENDPOINT))
    })
}

/// Whether its replicas are clusters of their own, which the sidecar names in `cluster` mode.
fn has_routes_of_replicas(scene: &Scene<'_>, cluster: &str) -> bool {
    let replicas = format!("{cluster}/");
    scene.targets().any(|route| route.is_for_names_under(&replicas))
}

fn protocol_options(cluster: &Value) -> &Value {
    let options = cluster.field("typed_extension_protocol_options");
    options.get("envoy.extensions.upstreams.http.v3.HttpProtocolOptions").unwrap_or(&Value::Null)
}

/// The breakers of ordinary requests that are no higher than Envoy's defaults, as `max_requests 1024`.
fn low_breakers(cluster: &Value, names: &[&str]) -> String {
    let thresholds = cluster.list("circuit_breakers.thresholds").iter();
    // The default priority is left out of the dump.
    let ordinary = thresholds.into_iter().find(|threshold| matches!(threshold.text("priority"), "" | "DEFAULT"));
    let low = names.iter().filter_map(|name| {
        let default = if *name == "max_retries" { DEFAULT_RETRIES } else { DEFAULT_BREAKER };
        let bound = ordinary.and_then(|threshold| threshold.number(name)).unwrap_or(default);
        (bound <= default).then(|| format!("{name} {bound}"))
    });
    low.collect::<Vec<_>>().join(", ")
}
