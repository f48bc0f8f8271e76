//! Backends and BackendTrafficPolicies into clusters.

use serde_json::{Map, Value, json};

use super::objects::{Objects, list, only, text};
use super::routes::cluster_name;
use super::{BUFFER_BYTES, Places, TYPE, address, filters, quantity, socket, tls};
use crate::error::{Error, Result};

/// A cluster for each rule that has backends.
pub(super) fn of_routes(objects: &Objects) -> Result<Vec<Value>> {
    let mut clusters = Vec::new();
    for route in objects.of_kind("HTTPRoute") {
        let policy = objects.policy_of("BackendTrafficPolicy", text(route, "/metadata/name"));
        let settings = policy.and_then(|policy| policy.get("spec")).unwrap_or(&Value::Null);
        let known = ["targetRefs", "loadBalancer", "retry", "circuitBreaker", "timeout", "tcpKeepalive", "connection"];
        only(settings, &known)?;
        for (index, rule) in list(route, "/spec/rules").iter().enumerate() {
            let refs = list(rule, "/backendRefs");
            if !refs.is_empty() {
                let (localities, discovery) = localities(objects, refs, &cluster_name(route, index))?;
                let protocol = json!({"http_protocol_options": {}});
                let mut cluster = cluster(&cluster_name(route, index), discovery, &localities, settings, &protocol)?;
                if let (Some(socket), Some(fields)) = (tls::transport_socket(objects, refs)?, cluster.as_object_mut()) {
                    fields.insert("transport_socket".to_owned(), socket);
                }
                clusters.push(cluster);
            }
        }
    }
    Ok(clusters)
}

/// A cluster for each processor, which is where this machine has it.
pub(super) fn of_extensions(objects: &Objects, places: &Places) -> Result<Vec<Value>> {
    let mut clusters = Vec::new();
    for policy in objects.of_kind("EnvoyExtensionPolicy") {
        for (index, filter) in list(policy, "/spec/extProc").iter().enumerate() {
            if let [one] = list(filter, "/backendRefs")
                && text(one, "/kind") == "Backend"
            {
                let backend = objects.named("Backend", text(one, "/name"))?;
                if text(backend, "/spec/endpoints/0/unix/path").is_empty() {
                    return Err(Error::unexpected("the sidecar's Backend is no socket", text(one, "/name")));
                }
            }
            let endpoint = json!({"endpoint": {"address": address(&places.extproc)?}});
            let localities = [json!({"lb_endpoints": [endpoint], "load_balancing_weight": 1})];
            let settings = filter.get("backendSettings").unwrap_or(&Value::Null);
            let protocol = json!({"http2_protocol_options": {
                "initial_connection_window_size": 1_048_576,
                "initial_stream_window_size": 65_536,
            }});
            clusters.push(cluster(&filters::cluster_name(policy, index), "STATIC", &localities, settings, &protocol)?);
        }
    }
    Ok(clusters)
}

/// One locality for each Backend, and how its endpoints are found.
fn localities(objects: &Objects, refs: &[Value], cluster: &str) -> Result<(Vec<Value>, &'static str)> {
    let mut localities = Vec::new();
    let mut discovery = "STATIC";
    for (index, one) in refs.iter().enumerate() {
        let backend = objects.named("Backend", text(one, "/name"))?;
        let mut endpoints = Vec::new();
        for endpoint in list(backend, "/spec/endpoints") {
            let (kind, host) = match text(endpoint, "/fqdn/hostname") {
                "" => ("/ip", text(endpoint, "/ip/address")),
                name => ("/fqdn", name),
            };
            if kind == "/fqdn" {
                discovery = "STRICT_DNS";
            }
            let port = endpoint
                .pointer(&format!("{kind}/port"))
                .and_then(Value::as_u64)
                .and_then(|port| u16::try_from(port).ok());
            let port =
                port.ok_or_else(|| Error::unexpected("an endpoint that is not translated", endpoint.to_string()))?;
            endpoints.push(json!({"endpoint": {"address": socket(host, port)}, "load_balancing_weight": 1}));
        }
        localities.push(json!({
            "locality": {"region": format!("{cluster}/backend/{index}")},
            "lb_endpoints": endpoints,
            "load_balancing_weight": one.get("weight").and_then(Value::as_u64).unwrap_or(1),
        }));
    }
    Ok((localities, discovery))
}

fn cluster(name: &str, discovery: &str, localities: &[Value], settings: &Value, protocol: &Value) -> Result<Value> {
    let buffer = text(settings, "/connection/bufferLimit");
    let buffer = if buffer.is_empty() { BUFFER_BYTES } else { quantity(buffer)? };
    let connect_timeout =
        Some(text(settings, "/timeout/tcp/connectTimeout")).filter(|text| !text.is_empty()).unwrap_or("10s");
    let mut options = Map::new();
    options.insert("@type".to_owned(), json!(format!("{TYPE}/envoy.extensions.upstreams.http.v3.HttpProtocolOptions")));
    let idle = text(settings, "/timeout/http/connectionIdleTimeout");
    if !idle.is_empty() {
        options.insert("common_http_protocol_options".to_owned(), json!({"idle_timeout": idle}));
    }
    options.insert("explicit_http_config".to_owned(), protocol.clone());
    let mut cluster = Map::new();
    let fixed = json!({
        "name": name,
        "type": discovery,
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": connect_timeout,
        "per_connection_buffer_limit_bytes": buffer,
        "ignore_health_on_host_removal": true,
        "common_lb_config": {},
        "circuit_breakers": {"thresholds": [breakers(settings.get("circuitBreaker"))]},
        "load_balancing_policy": {"policies": [balancer(settings)?]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "load_assignment": {"cluster_name": name, "endpoints": localities},
    });
    cluster.extend(fixed.as_object().cloned().unwrap_or_default());
    if let Some(keepalive) = settings.get("tcpKeepalive") {
        let seconds = |field: &str| text(keepalive, field).trim_end_matches('s').parse::<u32>().ok();
        let keepalive = json!({
            "keepalive_probes": keepalive.get("probes"),
            "keepalive_time": seconds("/idleTime"),
            "keepalive_interval": seconds("/interval"),
        });
        cluster.insert("upstream_connection_options".to_owned(), json!({"tcp_keepalive": keepalive}));
    }
    Ok(Value::Object(cluster))
}

fn breakers(breaker: Option<&Value>) -> Value {
    let names = [
        ("maxConnections", "max_connections"),
        ("maxPendingRequests", "max_pending_requests"),
        ("maxParallelRequests", "max_requests"),
        ("maxParallelRetries", "max_retries"),
    ];
    let mut thresholds = Map::new();
    thresholds.insert("max_retries".to_owned(), json!(1024));
    for (theirs, envoys) in names {
        if let Some(value) = breaker.and_then(|breaker| breaker.get(theirs)) {
            thresholds.insert(envoys.to_owned(), value.clone());
        }
    }
    Value::Object(thresholds)
}

fn balancer(settings: &Value) -> Result<Value> {
    let least_request = json!({"typed_extension_config": {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {
            "@type": format!("{TYPE}/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest"),
            "locality_lb_config": {"locality_weighted_lb_config": {}},
        },
    }});
    let Some(balancer) = settings.get("loadBalancer") else { return Ok(least_request) };
    only(balancer, &["type", "endpointOverride"])?;
    if text(balancer, "/type") != "LeastRequest" {
        return Err(Error::unexpected("a balancer that is not translated", text(balancer, "/type")));
    }
    let sources = list(balancer, "/endpointOverride/extractFrom");
    if sources.is_empty() {
        return Ok(least_request);
    }
    Ok(json!({"typed_extension_config": {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": format!("{TYPE}/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost"),
            "override_host_sources": sources,
            "fallback_policy": {"policies": [least_request]},
        },
    }}))
}
