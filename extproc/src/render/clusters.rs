//! The clusters: the sidecar, and the model servers.

use attache_proto::headers::DESTINATION_ENDPOINT;
use serde_json::{Map, Value, json};

use super::listener::CONNECTION_BUFFER_BYTES;
use super::{ExtprocAddress, RenderError, address, tls};
use crate::affinity::PlacementMode;
use crate::config::Config;
use crate::config::model::{Backend, Endpoint, EndpointAddress};
use crate::config::tls::UpstreamTls;
use crate::server::HEALTH_SERVICE;

/// The sidecar's cluster. A Backend's cluster has a slash in its name, so none can be taken for it.
pub(super) const SIDECAR: &str = "attache";

/// The cluster without a host, where requests end that the sidecar did not see.
pub(super) const UNPROCESSED: &str = "unprocessed";

/// The sidecar and the dead end, then each Backend in document order, each followed by its replicas' own clusters if it has any.
pub(super) fn clusters(config: &Config, extproc: &ExtprocAddress) -> Result<Vec<Value>, RenderError> {
    let mut clusters = vec![sidecar(extproc)?, unprocessed()];
    for pool in pools(&config.backends) {
        clusters.push(backend_cluster(&pool)?);
        if pool.has(PlacementMode::Cluster) {
            clusters.extend(
                pool.first.endpoints.iter().map(|endpoint| replica_cluster(endpoint, pool.first.tls.as_deref())),
            );
        }
    }
    Ok(clusters)
}

/// One Backend. Several AIServiceBackends may share it, and each may have a placement mode of its own.
pub(super) struct Pool<'c> {
    /// The first AIServiceBackend of it; the others have the same endpoints.
    pub(super) first: &'c Backend,
    modes: Vec<PlacementMode>,
}

impl Pool<'_> {
    /// Whether requests are placed in this mode.
    pub(super) fn has(&self, mode: PlacementMode) -> bool {
        self.modes.contains(&mode)
    }
}

/// The Backends, each once, in document order.
pub(super) fn pools(backends: &[Backend]) -> Vec<Pool<'_>> {
    let mut pools: Vec<Pool<'_>> = Vec::new();
    for backend in backends {
        match pools.iter_mut().find(|pool| pool.first.cluster == backend.cluster) {
            Some(pool) => pool.modes.push(backend.affinity.mode),
            None => pools.push(Pool { first: backend, modes: vec![backend.affinity.mode] }),
        }
    }
    pools
}

/// Envoy's default takes an IPv6 address wherever a name has one, even where the network has no IPv6.
const DNS_LOOKUP_FAMILY: &str = "V4_PREFERRED";

fn sidecar(address: &ExtprocAddress) -> Result<Value, RenderError> {
    let discovery = match address {
        ExtprocAddress::Tcp { host, .. } if host.parse::<std::net::IpAddr>().is_err() => Discovery::Dns,
        _ => Discovery::Static,
    };
    let mut cluster = json!({
        "name": SIDECAR,
        "type": discovery.cluster_type(),
        "dns_lookup_family": DNS_LOOKUP_FAMILY,
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "# Every request is a stream for as long as its answer lasts: the default of 1024 would be the gateway's limit.": null,
        "circuit_breakers": breakers(),
        "typed_extension_protocol_options": protocol_options(json!({
            "explicit_http_config": {"http2_protocol_options": {
                "# Finds a connection that is dead without a sign; a busy sidecar has time to answer.": null,
                "connection_keepalive": {"interval": "30s", "timeout": "20s"},
                "# Envoy ends the connection, and with it everybody's requests, where more than 10000 wait to be written: one client \
                    that sends its body byte by byte. The sidecar's windows bound what waits.": null,
                "max_outbound_frames": MAX_OUTBOUND_FRAMES,
            }},
        })),
    });
    if let Some(fields) = cluster.as_object_mut() {
        if discovery == Discovery::Dns {
            let comment = "# The name may stand for several: one that drains, hangs or is gone gets no new requests. Where none is well, all are \
                           tried.";
            fields.insert(comment.to_owned(), Value::Null);
            fields.insert("health_checks".to_owned(), json!([health_check()]));
            fields.insert("common_lb_config".to_owned(), json!({"healthy_panic_threshold": {"value": 1}}));
        }
        fields.insert("load_assignment".to_owned(), load_assignment(SIDECAR, vec![address::extproc(address)?]));
    }
    Ok(cluster)
}

/// A sidecar that hangs is found after two seconds or three, one that says that it drains within one.
fn health_check() -> Value {
    json!({
        "timeout": "1s",
        "interval": "0.5s",
        "no_traffic_interval": "0.5s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": HEALTH_SERVICE},
    })
}

/// So high that it does not act.
const MAX_OUTBOUND_FRAMES: u32 = 1_000_000_000;

fn unprocessed() -> Value {
    json!({
        "# No host, and never one: see the route of this name.": null,
        "name": UNPROCESSED,
        "type": "STATIC",
    })
}

fn backend_cluster(pool: &Pool<'_>) -> Result<Value, RenderError> {
    let backend = pool.first;
    let endpoints: Vec<&Endpoint> = backend.endpoints.iter().collect();
    let discovery = Discovery::of(&endpoints)
        .ok_or_else(|| RenderError::MixedEndpoints { cluster: backend.cluster.as_ref().to_owned() })?;
    let policy = if pool.has(PlacementMode::Endpoint) { override_host() } else { least_request() };
    Ok(model_servers(&backend.cluster, discovery, &endpoints, policy, backend.tls.as_deref()))
}

fn replica_cluster(endpoint: &Endpoint, tls: Option<&UpstreamTls>) -> Value {
    let discovery = Discovery::of_one(&endpoint.address);
    model_servers(&endpoint.cluster, discovery, &[endpoint], least_request(), tls)
}

fn model_servers(
    name: &str,
    discovery: Discovery,
    endpoints: &[&Endpoint],
    policy: Value,
    tls: Option<&UpstreamTls>,
) -> Value {
    let addresses = endpoints.iter().map(|endpoint| address::endpoint(&endpoint.address)).collect();
    let mut cluster = json!({
        "name": name,
        "type": discovery.cluster_type(),
        "dns_lookup_family": DNS_LOOKUP_FAMILY,
        "connect_timeout": "2s",
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "load_balancing_policy": {"policies": [policy]},
        "# How much goes to a model server is the sidecar's business.": null,
        "circuit_breakers": breakers(),
        "typed_extension_protocol_options": protocol_options(json!({
            "# Below the 5 s after which uvicorn, so vLLM, closes an idle connection: else requests race with the close.": null,
            "common_http_protocol_options": {"idle_timeout": "4s"},
            "explicit_http_config": {"http_protocol_options": {}},
        })),
        "# A model may be silent for minutes; this tells a silent one from a dead one.": null,
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3},
        },
        "load_assignment": load_assignment(name, addresses),
    });
    if let (Some(tls), Some(fields)) = (tls, cluster.as_object_mut()) {
        fields.insert("transport_socket".to_owned(), tls::transport_socket(tls));
    }
    cluster
}

/// How Envoy learns the addresses of a cluster's hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Discovery {
    /// IP addresses and sockets, as they are.
    Static,
    /// Names (and IP addresses among them), resolved.
    Dns,
}

impl Discovery {
    /// `None` where names and sockets are mixed: no cluster type takes both.
    fn of(endpoints: &[&Endpoint]) -> Option<Self> {
        let any = |wanted: fn(&EndpointAddress) -> bool| endpoints.iter().any(|endpoint| wanted(&endpoint.address));
        let names = any(|address| matches!(address, EndpointAddress::Fqdn { .. }));
        let sockets = any(|address| matches!(address, EndpointAddress::Unix(_)));
        match (names, sockets) {
            (true, true) => None,
            (true, false) => Some(Self::Dns),
            (false, _) => Some(Self::Static),
        }
    }

    fn of_one(address: &EndpointAddress) -> Self {
        match address {
            EndpointAddress::Fqdn { .. } => Self::Dns,
            EndpointAddress::Ip(_) | EndpointAddress::Unix(_) => Self::Static,
        }
    }

    fn cluster_type(self) -> &'static str {
        match self {
            Self::Static => "STATIC",
            Self::Dns => "STRICT_DNS",
        }
    }
}

fn override_host() -> Value {
    json!({
        "# The sidecar's list first, in its order also for retries; where there is none, the host with least to do.": null,
        "typed_extension_config": {
            "name": "envoy.load_balancing_policies.override_host",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
                "override_host_sources": [{"header": DESTINATION_ENDPOINT}],
                "fallback_policy": {"policies": [least_request()]},
            },
        },
    })
}

fn least_request() -> Value {
    json!({"typed_extension_config": {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
        },
    }})
}

/// So high that they do not act.
fn breakers() -> Value {
    const UNBOUNDED: u32 = 1_000_000;
    json!({"thresholds": [{
        "max_connections": UNBOUNDED,
        "max_pending_requests": UNBOUNDED,
        "max_requests": UNBOUNDED,
        "max_retries": UNBOUNDED,
    }]})
}

fn protocol_options(options: Value) -> Value {
    let mut fields = Map::new();
    fields.insert(
        "@type".to_owned(),
        json!("type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"),
    );
    fields.extend(options.as_object().cloned().unwrap_or_default());
    json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": fields})
}

fn load_assignment(name: &str, addresses: Vec<Value>) -> Value {
    let endpoints: Vec<Value> =
        addresses.into_iter().map(|address| json!({"endpoint": {"address": address}})).collect();
    json!({"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]})
}
