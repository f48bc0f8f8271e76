//! One HTTP connection manager with its filters and its routes: the view that the checks have.

use std::collections::BTreeSet;

use attache_proto::headers::{CLUSTER, STRIPPED_EARLY};
use serde_json::Value;

use super::dump::Proxy;
use super::json::{Json, within};

/// One connection manager.
#[derive(Debug)]
pub(super) struct Gateway<'a> {
    /// `listener NAME`, and the filter chain where there are several.
    pub(super) place: String,
    pub(super) listener: &'a Value,
    pub(super) manager: &'a Value,
    pub(super) filters: Vec<Filter<'a>>,
    pub(super) table: Table<'a>,
}

/// Where its routes are.
#[derive(Debug)]
pub(super) enum Table<'a> {
    Known(&'a Value),
    /// It names one that the dump does not have.
    Missing(&'a str),
    /// By scopes, or not at all.
    Elsewhere,
}

/// One HTTP filter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filter<'a> {
    pub(super) name: &'a str,
    pub(super) is_disabled: bool,
    pub(super) kind: Kind<'a>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind<'a> {
    /// With its `ExternalProcessor`.
    ExtProc(&'a Value),
    /// With its `PluginConfig`.
    Wasm(&'a Value),
    Other(&'a str),
}

/// Every connection manager of a proxy, in the order of the dump.
pub(super) fn gateways<'a>(proxy: &Proxy<'a>) -> Vec<Gateway<'a>> {
    let mut gateways = Vec::new();
    for listener in &proxy.listeners {
        let default = listener.field("default_filter_chain");
        let chains: Vec<&Value> =
            listener.list("filter_chains").iter().chain(default.is_object().then_some(default)).collect();
        for (index, chain) in chains.iter().enumerate() {
            let managers = chain.list("filters").iter().map(|filter| filter.field("typed_config"));
            for manager in managers.filter(|config| config.type_name() == "HttpConnectionManager") {
                let mut place = format!("listener {}", listener.text("name"));
                if chains.len() > 1 {
                    let name = Some(chain.text("name")).filter(|name| !name.is_empty());
                    let number = format!("#{index}");
                    place.push_str(&format!(", filter chain {}", name.unwrap_or(&number)));
                }
                gateways.push(Gateway::new(place, listener, manager, proxy));
            }
        }
    }
    gateways
}

impl<'a> Gateway<'a> {
    fn new(place: String, listener: &'a Value, manager: &'a Value, proxy: &Proxy<'a>) -> Self {
        let inline = manager.field("route_config");
        let discovered = manager.text("rds.route_config_name");
        let table = match proxy.route_tables.get(discovered) {
            _ if inline.is_object() => Table::Known(inline),
            Some(table) => Table::Known(table),
            None if discovered.is_empty() => Table::Elsewhere,
            None => Table::Missing(discovered),
        };
        let filters = manager.list("http_filters").iter().map(Filter::read).collect();
        Self { place, listener, manager, filters, table }
    }

    /// Every route, virtual host by virtual host.
    pub(super) fn routes(&self) -> Vec<Route<'a>> {
        let Table::Known(table) = self.table else { return Vec::new() };
        let hosts = table.list("virtual_hosts").iter();
        hosts
            .flat_map(|host| {
                host.list("routes").iter().enumerate().map(move |(index, route)| Route { table, host, route, index })
            })
            .collect()
    }

    /// The clusters to which only the sidecar's word leads.
    pub(super) fn model_clusters(&self) -> BTreeSet<&'a str> {
        self.routes().iter().filter(|route| route.is_target()).flat_map(Route::clusters).collect()
    }
}

impl<'a> Filter<'a> {
    fn read(filter: &'a Value) -> Self {
        let config = filter.field("typed_config");
        let kind = if let Some(processor) = within(config, "ExternalProcessor") {
            Kind::ExtProc(processor)
        } else if config.type_name() == "Wasm" {
            Kind::Wasm(config.field("config"))
        } else {
            Kind::Other(config.type_name())
        };
        Self { name: filter.text("name"), is_disabled: filter.is_true("disabled"), kind }
    }
}

/// One route and what it stands in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route<'a> {
    table: &'a Value,
    host: &'a Value,
    pub(super) route: &'a Value,
    index: usize,
}

impl<'a> Route<'a> {
    /// `route NAME`, or its place in its virtual host.
    pub(super) fn place(&self) -> String {
        match self.route.text("name") {
            "" => format!("route #{} of {}", self.index, self.host.text("name")),
            name => format!("route {name}"),
        }
    }

    /// The headers that must be there for it to match.
    fn demanded_headers(&self) -> impl Iterator<Item = &'a Value> {
        let is_demand = |header: &&Value| {
            let is_absence = header.field("present_match").as_bool() == Some(false);
            header.is_true("invert_match") == is_absence
        };
        self.route.list("match.headers").iter().filter(is_demand)
    }

    /// Whether it matches only what the sidecar has processed. (Clients cannot send these headers, if they are stripped.)
    pub(super) fn is_behind(&self) -> bool {
        self.demanded_headers().any(|header| is_ours(header.text("name")))
    }

    /// Whether the sidecar's choice leads here.
    pub(super) fn is_target(&self) -> bool {
        let by_match = self.demanded_headers().any(|header| header.text("name").eq_ignore_ascii_case(CLUSTER));
        by_match || is_ours(self.cluster_header())
    }

    /// The value of our cluster header that it matches, and how; `None` where any will do.
    pub(super) fn named_cluster(&self) -> Option<Named<'a>> {
        let header = self.demanded_headers().find(|header| header.text("name").eq_ignore_ascii_case(CLUSTER))?;
        let text = |forms: [&str; 2]| forms.map(|form| header.text(form)).into_iter().find(|text| !text.is_empty());
        if let Some(exact) = text(["string_match.exact", "exact_match"]) {
            return Some(Named::Exactly(exact));
        }
        text(["string_match.prefix", "prefix_match"]).map(Named::ByPrefix)
    }

    /// The header that names the cluster, if one does.
    pub(super) fn cluster_header(&self) -> &'a str {
        self.route.text("route.cluster_header")
    }

    /// The clusters that it names.
    pub(super) fn clusters(&self) -> Vec<&'a str> {
        let action = self.route.field("route");
        let single = Some(action.text("cluster")).filter(|name| !name.is_empty());
        let weighted = action.list("weighted_clusters.clusters").iter().map(|cluster| cluster.text("name"));
        single.into_iter().chain(weighted).collect()
    }

    /// Whether Envoy answers by itself, whatever the filters say.
    pub(super) fn is_direct(&self) -> bool {
        ["direct_response", "redirect"].iter().any(|action| self.route.field(action).is_object())
    }

    /// What the route says of a filter, or else what its virtual host or table says.
    pub(super) fn filter_config(&self, filter: &Filter<'_>) -> Option<&'a Value> {
        [self.route, self.host, self.table].into_iter().find_map(|level| {
            let configs = level.field("typed_per_filter_config");
            configs.get(filter.name)
        })
    }

    /// Whether the filter runs for a request that matches this route first.
    pub(super) fn runs(&self, filter: &Filter<'_>) -> bool {
        match self.filter_config(filter) {
            // Of a FilterConfig, of an ExtProcPerRoute, or of one in the other.
            Some(config) => !config.is_true("disabled") && !config.field("config").is_true("disabled"),
            None => !filter.is_disabled,
        }
    }

    /// What the filter's own settings are replaced with here.
    pub(super) fn overrides(&self, filter: &Filter<'_>) -> Option<&'a Value> {
        within(self.filter_config(filter)?, "ExtProcPerRoute").map(|config| config.field("overrides"))
    }

    /// How much of a body Envoy holds for a request that comes in here. (Envoy 1.40 does not apply the first to routes that
    /// it answers by itself.)
    pub(super) fn buffer_limit(&self, listener: &Value) -> u64 {
        const ENVOYS_DEFAULT: u64 = 1024 * 1024;
        let of_connection = listener.number("per_connection_buffer_limit_bytes").unwrap_or(ENVOYS_DEFAULT);
        let of_request = [self.route, self.host].into_iter().find_map(|level| {
            let names = ["request_body_buffer_limit", "per_request_buffer_limit_bytes"];
            names.into_iter().find_map(|name| level.number(name))
        });
        of_request.filter(|_| !self.is_direct()).unwrap_or(of_connection)
    }

    /// Whether this header is taken off what goes upstream, at any level.
    pub(super) fn removes_request_header(&self, name: &str) -> bool {
        [self.route, self.host, self.table].into_iter().any(|level| {
            let removed = level.list("request_headers_to_remove").iter();
            removed.filter_map(Value::as_str).any(|removed| removed.eq_ignore_ascii_case(name))
        })
    }
}

/// Which values of our cluster header a route takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named<'a> {
    Exactly(&'a str),
    ByPrefix(&'a str),
}

impl Named<'_> {
    pub(super) fn takes(self, cluster: &str) -> bool {
        match self {
            Self::Exactly(name) => name == cluster,
            Self::ByPrefix(prefix) => cluster.starts_with(prefix),
        }
    }
}

fn is_ours(header: &str) -> bool {
    STRIPPED_EARLY.iter().any(|ours| ours.eq_ignore_ascii_case(header))
}
