//! The parts of a config dump, wherever they stand in it: static and dynamic listeners, routes, clusters and endpoints,
//! and the filters and scopes that are discovered by themselves.
//!
//! Read are what Envoy's `/config_dump` prints, and what `egctl config envoy-proxy` wraps around it: an object of namespaces
//! of objects of pods. What is not known is passed over.

use std::collections::BTreeMap;

use serde_json::Value;

use super::json::Json;

/// What one Envoy runs on.
#[derive(Debug, Default)]
pub(super) struct Proxy<'a> {
    /// `namespace/pod` where the dump says so, else empty.
    pub(super) name: String,
    pub(super) node: Option<&'a Value>,
    pub(super) listeners: Vec<&'a Value>,
    pub(super) route_tables: BTreeMap<&'a str, &'a Value>,
    pub(super) clusters: BTreeMap<&'a str, &'a Value>,
    /// The configurations of filters that are discovered by themselves (ECDS).
    extensions: BTreeMap<&'a str, &'a Value>,
    /// The scopes of connection managers whose routes are by scopes (SRDS), by the name of the whole.
    pub(super) scopes: BTreeMap<&'a str, Vec<&'a Value>>,
    /// Empty if the dump was taken without `include_eds`.
    pub(super) endpoints: BTreeMap<&'a str, &'a Value>,
    /// Names of what Envoy was sent and refused, with its reason.
    pub(super) refused: Vec<(String, String)>,
}

/// Every Envoy that the dump is about.
pub(super) fn proxies(dump: &Value) -> Vec<Proxy<'_>> {
    let mut found = Vec::new();
    collect(dump, &mut Vec::new(), &mut found);
    found
}

fn collect<'a>(value: &'a Value, path: &mut Vec<&'a str>, found: &mut Vec<Proxy<'a>>) {
    /// `{namespace: {pod: {configDump: {configs}}}}`, and one to spare.
    const MAX_DEPTH: usize = 4;
    if let Some(configs) = value.get("configs").and_then(Value::as_array)
        && configs.iter().any(|config| config.type_name().ends_with("ConfigDump"))
    {
        let names: Vec<&str> = path.iter().filter(|name| **name != "configDump").copied().collect();
        found.push(Proxy::read(names.join("/"), configs));
        return;
    }
    if let Value::Object(fields) = value
        && path.len() < MAX_DEPTH
    {
        for (name, inner) in fields {
            path.push(name);
            collect(inner, path, found);
            path.pop();
        }
    }
}

impl<'a> Proxy<'a> {
    fn read(name: String, configs: &'a [Value]) -> Self {
        let mut proxy = Self { name, ..Self::default() };
        for config in configs {
            proxy.add(config);
        }
        proxy
    }

    fn add(&mut self, config: &'a Value) {
        if let Some(node) = config.field("bootstrap").get("node") {
            self.node = Some(node);
        }
        for listener in config.list("static_listeners") {
            self.listeners.push(listener.field("listener"));
        }
        for listener in config.list("dynamic_listeners") {
            self.note_refusal("listener", listener.text("name"), listener);
            let states = ["active_state", "warming_state"].map(|state| listener.field(state).field("listener"));
            self.listeners.extend(states.into_iter().find(|state| state.is_object()));
        }
        for list in ["static_route_configs", "dynamic_route_configs"] {
            for route in config.list(list) {
                let table = route.field("route_config");
                self.note_refusal("routes", table.text("name"), route);
                self.route_tables.insert(table.text("name"), table);
            }
        }
        for entry in config.list("ecds_filters") {
            let extension = entry.field("ecds_filter");
            self.note_refusal("filter", extension.text("name"), entry);
            if extension.field("typed_config").is_object() {
                self.extensions.insert(extension.text("name"), extension.field("typed_config"));
            }
        }
        for list in ["inline_scoped_route_configs", "dynamic_scoped_route_configs"] {
            for entry in config.list(list) {
                self.note_refusal("scopes", entry.text("name"), entry);
                let scopes = self.scopes.entry(entry.text("name")).or_default();
                scopes.extend(entry.list("scoped_route_configs"));
            }
        }
        for list in ["static_clusters", "dynamic_active_clusters"] {
            for entry in config.list(list) {
                let cluster = entry.field("cluster");
                self.note_refusal("cluster", cluster.text("name"), entry);
                self.clusters.insert(cluster.text("name"), cluster);
            }
        }
        for list in ["static_endpoint_configs", "dynamic_endpoint_configs"] {
            for entry in config.list(list) {
                let endpoints = entry.field("endpoint_config");
                self.endpoints.insert(endpoints.text("cluster_name"), endpoints);
            }
        }
    }

    fn note_refusal(&mut self, kind: &str, name: &str, entry: &Value) {
        let details = entry.text("error_state.details");
        if !details.is_empty() {
            self.refused.push((format!("{kind} {name}"), details.to_owned()));
        }
    }

    /// What a filter of a chain or of a connection manager runs on: its own configuration, or the one that was discovered, or
    /// until then its default. `None` where the dump does not have it.
    pub(super) fn configuration(&self, filter: &'a Value) -> Option<&'a Value> {
        let own = filter.field("typed_config");
        if own.is_object() || !filter.field("config_discovery").is_object() {
            return Some(own);
        }
        let default = filter.field("config_discovery.default_config");
        self.extensions.get(filter.text("name")).copied().or_else(|| Some(default).filter(|config| config.is_object()))
    }

    /// The addresses of a cluster's hosts: `host:port` or a path. `None` where the dump does not say.
    pub(super) fn hosts(&self, cluster: &str) -> Option<Vec<Host<'a>>> {
        let of = |assignment: &'a Value| -> Vec<Host<'a>> {
            let localities = assignment.list("endpoints").iter();
            localities.flat_map(|locality| locality.list("lb_endpoints")).map(Host).collect()
        };
        // By the name under which endpoints are discovered, which may be another than the cluster's.
        let service = self.clusters.get(cluster).map_or("", |cluster| cluster.text("eds_cluster_config.service_name"));
        let discovered =
            [cluster, service].into_iter().find_map(|name| self.endpoints.get(name)).map(|found| of(found));
        let configured = self.clusters.get(cluster)?;
        if configured.text("type") == "EDS" {
            return discovered;
        }
        // A name that does not resolve yet has no discovered host, but is meant to have.
        Some(discovered.filter(|hosts| !hosts.is_empty()).unwrap_or_else(|| of(configured.field("load_assignment"))))
    }
}

/// One host of a cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Host<'a>(&'a Value);

impl Host<'_> {
    /// `address:port`, or the path of a socket.
    pub(super) fn address(self) -> String {
        Self::address_of(self.0.field("endpoint.address"))
    }

    /// The same of an address by itself.
    pub(super) fn address_of(address: &Value) -> String {
        match address.text("pipe.path") {
            "" => {
                let socket = address.field("socket_address");
                format!("{}:{}", socket.text("address"), socket.number("port_value").unwrap_or_default())
            }
            path => path.to_owned(),
        }
    }

    /// Whether nothing can be lost between Envoy and it without a sign.
    pub(super) fn is_local(self) -> bool {
        let address = self.0.field("endpoint.address");
        let ip = address.text("socket_address.address");
        address.field("pipe").is_object() || ip == "::1" || ip.starts_with("127.")
    }

    /// Whether Envoy would choose it.
    pub(super) fn is_usable(self) -> bool {
        !matches!(self.0.text("health_status"), "UNHEALTHY" | "DRAINING" | "TIMEOUT")
    }
}
