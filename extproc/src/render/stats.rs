//! A listener for Prometheus: Envoy's counters and nothing else of its admin interface, which can then stay on loopback.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::address;

/// The cluster that is Envoy's own admin interface. It has no slash in its name, so no Backend can be taken for it.
const ADMIN: &str = "envoy-admin";
/// Where counters stand there.
const PATH: &str = "/stats/prometheus";

/// The listener at `stats`.
pub(super) fn listener(stats: SocketAddr) -> Value {
    json!({
        "# Counters for Prometheus. The rest of the admin interface is not reached by it.": null,
        "name": "stats",
        "address": address::socket(stats),
        "# Whoever scrapes is no client: it does not count with those that an overloaded Envoy turns away.": null,
        "ignore_global_conn_limit": true,
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": "stats",
                "normalize_path": true,
                "http_filters": [{
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
                }],
                "route_config": {
                    "name": "stats",
                    "virtual_hosts": [{
                        "name": "stats",
                        "domains": ["*"],
                        "routes": [{
                            "match": {
                                "path": PATH,
                                "headers": [{"name": ":method", "string_match": {"exact": "GET"}}],
                            },
                            "route": {"cluster": ADMIN},
                        }],
                    }],
                },
            },
        }]}],
    })
}

/// Envoy's admin interface, as a cluster.
pub(super) fn cluster(admin: SocketAddr) -> Value {
    json!({
        "name": ADMIN,
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": ADMIN,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address::socket(reachable(admin))}}]}],
        },
    })
}

/// An address that says "all of this machine" is where one listens, not where one connects.
fn reachable(mut admin: SocketAddr) -> SocketAddr {
    match admin {
        SocketAddr::V4(address) if address.ip().is_unspecified() => admin.set_ip(std::net::Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(address) if address.ip().is_unspecified() => admin.set_ip(std::net::Ipv6Addr::LOCALHOST.into()),
        SocketAddr::V4(_) | SocketAddr::V6(_) => {}
    }
    admin
}
