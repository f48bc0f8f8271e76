//! One HTTP connection manager with its filters and its route tables, wherever in the dump these are: inline, or discovered by
//! RDS, SRDS and ECDS.

use std::collections::BTreeSet;

use serde_json::Value;

use super::dump::Proxy;
use super::json::{Json, has_member, within};
use super::route::Route;

/// One connection manager.
#[derive(Debug)]
pub(super) struct Gateway<'a> {
    /// `listener NAME`, and the filter chain where there are several.
    pub(super) place: String,
    pub(super) listener: &'a Value,
    pub(super) manager: &'a Value,
    pub(super) filters: Vec<Filter<'a>>,
    /// Several where they are by scopes.
    tables: Vec<&'a Value>,
    /// What of it the dump does not have, in words.
    pub(super) unread: Vec<String>,
}

/// One HTTP filter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filter<'a> {
    pub(super) name: &'a str,
    pub(super) is_disabled: bool,
    /// As it is configured, with whatever is wrapped around it.
    pub(super) config: &'a Value,
    pub(super) kind: Kind<'a>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind<'a> {
    /// With its `ExternalProcessor`.
    ExtProc(&'a Value),
    /// With its `PluginConfig`.
    Wasm(&'a Value),
    /// By its type, which is empty where the dump does not have its configuration.
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
            let managers = chain.list("filters").iter().filter_map(|filter| proxy.configuration(filter));
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
        let mut gateway =
            Self { place, listener, manager, filters: Vec::new(), tables: Vec::new(), unread: Vec::new() };
        for filter in manager.list("http_filters") {
            gateway.filters.push(Filter::read(filter, proxy));
            match proxy.configuration(filter) {
                None => gateway.unread.push(format!("the filter {} (ECDS)", filter.text("name"))),
                // An action of a composite filter may be discovered, too.
                Some(config) if has_member(config, "config_discovery") => {
                    gateway.unread.push(format!("what the filter {} discovers by itself (ECDS)", filter.text("name")));
                }
                Some(_) => {}
            }
        }
        gateway.find_tables(proxy);
        gateway
    }

    fn find_tables(&mut self, proxy: &Proxy<'a>) {
        let inline = self.manager.field("route_config");
        let mut names: Vec<&str> = vec![self.manager.text("rds.route_config_name")];
        if self.manager.field("scoped_routes").is_object() {
            let scopes = self.manager.text("scoped_routes.name");
            match proxy.scopes.get(scopes) {
                Some(found) => names.extend(found.iter().map(|scope| scope.text("route_configuration_name"))),
                None => self.unread.push(format!("the scopes {scopes} (SRDS)")),
            }
            let found = proxy.scopes.get(scopes).into_iter().flatten();
            let inline = found.map(|scope| scope.field("route_configuration"));
            self.tables.extend(inline.filter(|table| table.is_object()));
        }
        self.tables.extend(inline.is_object().then_some(inline));
        // Several scopes may share one.
        names.sort_unstable();
        names.dedup();
        for name in names.into_iter().filter(|name| !name.is_empty()) {
            match proxy.route_tables.get(name) {
                Some(table) => self.tables.push(table),
                None => self.unread.push(format!("the routes {name}")),
            }
        }
        for table in &self.tables {
            if table.field("vhds").is_object() {
                self.unread.push(format!("virtual hosts of {} that were not asked for yet (VHDS)", table.text("name")));
            }
            for host in table.list("virtual_hosts").iter().filter(|host| host.field("matcher").is_object()) {
                self.unread.push(format!("the routes of {}, which stand in a matcher", host.text("name")));
            }
        }
    }

    /// Whether there is a route table to be examined.
    pub(super) fn has_routes(&self) -> bool {
        !self.tables.is_empty()
    }

    /// Every route, table by table.
    pub(super) fn routes(&self) -> Vec<Route<'a>> {
        self.tables.iter().flat_map(|table| Route::all_of(table)).collect()
    }

    /// The clusters to which only the sidecar's word leads.
    pub(super) fn model_clusters(&self) -> BTreeSet<&'a str> {
        self.routes().iter().filter(|route| route.is_target()).flat_map(Route::clusters).collect()
    }
}

impl<'a> Filter<'a> {
    fn read(filter: &'a Value, proxy: &Proxy<'a>) -> Self {
        let config = proxy.configuration(filter).unwrap_or(&Value::Null);
        let kind = if let Some(processor) = within(config, "ExternalProcessor") {
            Kind::ExtProc(processor)
        } else if config.type_name() == "Wasm" {
            Kind::Wasm(config.field("config"))
        } else {
            Kind::Other(config.type_name())
        };
        Self { name: filter.text("name"), is_disabled: filter.is_true("disabled"), config, kind }
    }
}
