//! One route: what it matches, where it leads, and which filters run on it.

use attache_proto::headers::{CLUSTER, STRIPPED_EARLY};
use serde_json::Value;

use super::gateway::Filter;
use super::json::{Json, within};
use super::matching::HeaderMatch;

/// One route and what it stands in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route<'a> {
    table: &'a Value,
    host: &'a Value,
    pub(super) route: &'a Value,
    index: usize,
}

impl<'a> Route<'a> {
    /// Every route of a table, virtual host by virtual host.
    pub(super) fn all_of(table: &'a Value) -> impl Iterator<Item = Self> {
        table.list("virtual_hosts").iter().flat_map(move |host| {
            host.list("routes").iter().enumerate().map(move |(index, route)| Self { table, host, route, index })
        })
    }

    /// `route NAME`, or its place in its virtual host.
    pub(super) fn place(&self) -> String {
        match self.route.text("name") {
            "" => format!("route #{} of {}", self.index, self.host.text("name")),
            name => format!("route {name}"),
        }
    }

    fn header_matches(&self) -> impl Iterator<Item = HeaderMatch<'a>> {
        self.route.list("match.headers").iter().map(HeaderMatch)
    }

    /// Its matchers of the header in which the sidecar names a cluster.
    fn choices(&self) -> impl Iterator<Item = HeaderMatch<'a>> {
        self.header_matches().filter(|one| one.name().eq_ignore_ascii_case(CLUSTER))
    }

    /// Whether it matches only what the sidecar has processed. (Clients cannot send these headers, if they are stripped.)
    pub(super) fn is_behind(&self) -> bool {
        self.header_matches().any(|one| is_ours(one.name()) && !one.takes_absence())
    }

    /// Whether the sidecar's choice leads here, and from here to a server.
    pub(super) fn is_target(&self) -> bool {
        is_ours(self.cluster_header()) || (self.is_behind() && !self.is_direct())
    }

    /// Whether it looks at the cluster that the sidecar names.
    pub(super) fn reads_choice(&self) -> bool {
        self.choices().next().is_some()
    }

    /// Whether a request for which the sidecar has named this cluster matches here, as far as that header goes.
    pub(super) fn takes(&self, cluster: &str) -> bool {
        self.choices().all(|one| one.takes(cluster))
    }

    /// Whether it is for names that begin so.
    pub(super) fn is_for_names_under(&self, beginning: &str) -> bool {
        self.choices().any(|one| one.beginning().starts_with(beginning))
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

    /// How much of a body Envoy is told to hold for a request that comes in here, whatever the connection holds. Envoy 1.40 does
    /// not apply it to routes that it answers by itself.
    pub(super) fn request_limit(&self) -> Option<u64> {
        let limit = [self.route, self.host].into_iter().find_map(|level| {
            let names = ["request_body_buffer_limit", "per_request_buffer_limit_bytes"];
            names.into_iter().find_map(|name| level.number(name))
        });
        limit.filter(|_| !self.is_direct())
    }

    /// Whether this header is taken off what goes upstream, at any level.
    pub(super) fn removes_request_header(&self, name: &str) -> bool {
        [self.route, self.host, self.table].into_iter().any(|level| {
            let removed = level.list("request_headers_to_remove").iter();
            removed.filter_map(Value::as_str).any(|removed| removed.eq_ignore_ascii_case(name))
        })
    }
}

fn is_ours(header: &str) -> bool {
    STRIPPED_EARLY.iter().any(|ours| ours.eq_ignore_ascii_case(header))
}
