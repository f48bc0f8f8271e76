//! Two dumps of a real Envoy 1.40, in which nothing is wrong, and every way to break them: each breakage is found, and nothing
//! else is.

mod breakages;
mod discovered;
mod input;
mod running;
mod stale;
mod texts;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;

/// What `attache render static` makes, with the Wasm filter, as Envoy prints it.
pub(super) const STATIC: &str = include_str!("../../testdata/doctor/static.json");
/// The same as Envoy Gateway would configure it: see `tests/tests/blackbox/doctor`.
pub(super) const ENVOY_GATEWAY: &str = include_str!("../../testdata/doctor/envoy-gateway.json");

/// A dump that is about to be changed.
pub(super) struct Dump(pub(super) Value);

impl Dump {
    pub(super) fn new(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap())
    }

    fn part(&mut self, kind: &str) -> &mut Value {
        let configs = self.0["configs"].as_array_mut().unwrap();
        configs.iter_mut().find(|config| config["@type"].as_str().unwrap().rsplit('.').next() == Some(kind)).unwrap()
    }

    pub(super) fn node(&mut self) -> &mut Value {
        &mut self.part("BootstrapConfigDump")["bootstrap"]["node"]
    }

    pub(super) fn listeners(&mut self) -> &mut Value {
        &mut self.part("ListenersConfigDump")["static_listeners"]
    }

    pub(super) fn listener(&mut self) -> &mut Value {
        &mut self.listeners()[0]["listener"]
    }

    pub(super) fn manager(&mut self) -> &mut Value {
        let listener = self.listener();
        if listener["filter_chains"].is_null() {
            return &mut listener["default_filter_chain"]["filters"][0]["typed_config"];
        }
        &mut listener["filter_chains"][0]["filters"][0]["typed_config"]
    }

    /// The nth HTTP filter: ours are 0, Wasm, and 1, ext_proc.
    pub(super) fn filter(&mut self, index: usize) -> &mut Value {
        &mut self.manager()["http_filters"][index]
    }

    pub(super) fn plugin(&mut self) -> &mut Value {
        &mut self.filter(0)["typed_config"]["config"]
    }

    pub(super) fn processor(&mut self) -> &mut Value {
        let config = &mut self.filter(1)["typed_config"];
        if config["xds_matcher"].is_null() {
            return config;
        }
        let action = &mut config["xds_matcher"]["matcher_list"]["matchers"][0]["on_match"]["action"];
        &mut action["typed_config"]["typed_config"]["typed_config"]
    }

    /// By which a request's processor is chosen.
    pub(super) fn matchers(&mut self) -> &mut Vec<Value> {
        self.filter(1)["typed_config"]["xds_matcher"]["matcher_list"]["matchers"].as_array_mut().unwrap()
    }

    pub(super) fn virtual_host(&mut self) -> &mut Value {
        if self.manager()["route_config"].is_null() {
            return &mut self.part("RoutesConfigDump")["dynamic_route_configs"][0]["route_config"]["virtual_hosts"][0];
        }
        &mut self.manager()["route_config"]["virtual_hosts"][0]
    }

    /// The nth route: 0 is the target, 1 is the way in.
    pub(super) fn route(&mut self, index: usize) -> &mut Value {
        &mut self.virtual_host()["routes"][index]
    }

    pub(super) fn clusters(&mut self) -> &mut Vec<Value> {
        self.part("ClustersConfigDump")["static_clusters"].as_array_mut().unwrap()
    }

    /// The cluster whose name has this in it.
    pub(super) fn cluster(&mut self, name: &str) -> &mut Value {
        let cluster =
            self.clusters().iter_mut().find(|entry| entry["cluster"]["name"].as_str().unwrap().contains(name));
        &mut cluster.unwrap()["cluster"]
    }

    /// What is known of the hosts of that cluster.
    pub(super) fn endpoints(&mut self, name: &str) -> &mut Value {
        let list = self.part("EndpointsConfigDump")["static_endpoint_configs"].as_array_mut().unwrap();
        let found =
            list.iter_mut().find(|entry| entry["endpoint_config"]["cluster_name"].as_str().unwrap().contains(name));
        &mut found.unwrap()["endpoint_config"]
    }

    pub(super) fn examine(self) -> Examination {
        examine(&Evidence { dump: self.0, ..Evidence::default() }, &Question::default()).unwrap().remove(0)
    }

    pub(super) fn ids(self) -> BTreeSet<&'static str> {
        self.examine().findings.iter().map(|finding| finding.id).collect()
    }
}

/// Takes a field away.
pub(super) fn remove(value: &mut Value, field: &str) {
    assert!(value.as_object_mut().unwrap().remove(field).is_some(), "{field} is not there to remove");
}

#[test]
fn nothing_is_wrong_with_what_we_render() {
    let examination = Dump::new(STATIC).examine();
    assert_eq!(examination.findings, []);
    assert_eq!((examination.envoy.as_str(), examination.attachments.len()), ("1.40", 1));
    let Attachment { ext_proc, wasm, ways_in, ways_in_attached, targets, request_body, buffer_limit_bytes, .. } =
        &examination.attachments[0];
    assert_eq!((ext_proc.as_str(), wasm.as_deref()), ("envoy.filters.http.ext_proc", Some("envoy.filters.http.wasm")));
    assert_eq!((*ways_in, *ways_in_attached, *targets), (1, 1, 1));
    assert_eq!((request_body.as_str(), *buffer_limit_bytes), ("STREAMED", Some(33_619_968)));
}

#[test]
fn of_envoy_gateways_profile_only_what_it_cannot_do_is_noted() {
    let examination = Dump::new(ENVOY_GATEWAY).examine();
    let ids: Vec<_> = examination.findings.iter().map(|finding| finding.id).collect();
    assert_eq!(ids, ["wasm-fail-closed"]);
    assert_eq!(examination.findings[0].severity, Severity::Note);
    assert_eq!(examination.attachments[0].request_body, "BUFFERED");
}

#[test]
fn every_rule_is_documented_under_its_severity() {
    let page = include_str!("../../../docs/doctor.md");
    for rule in rules() {
        let severity = match rule.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        let row = format!("| `{}` | {severity} |", rule.id);
        assert!(page.contains(&row), "docs/doctor.md has no row {row}");
    }
    let is_row = |line: &&str| ["error", "warning", "note"].iter().any(|word| line.contains(&format!("` | {word} | ")));
    let rows = page.lines().filter(is_row).count();
    assert_eq!(rows, rules().count(), "docs/doctor.md has rows of rules that are no more");
}

#[test]
fn a_report_says_where_and_shows_no_more_than_a_few_places() {
    let mut dump = Dump::new(STATIC);
    let target = dump.route(0).clone();
    let routes = dump.virtual_host()["routes"].as_array_mut().unwrap();
    for index in 0..2_000 {
        let mut route = target.clone();
        route["name"] = json!(format!("r{index}"));
        remove(&mut route["route"], "timeout");
        routes.insert(0, route);
    }
    let examination = dump.examine();
    assert_eq!(examination.findings.len(), 1);
    assert_eq!(examination.findings[0].places.len(), 2_000);
    let text = draw(&examination);
    assert!(
        text.contains("\nerror answers-time-out: answers that take longer than 15 s are cut (the route's timeout)\n")
    );
    assert!(text.contains("  at listener attache, route r1999\n") && text.contains("  and 1997 more\n"), "{text}");
    assert!(text.ends_with("\nattached by its configuration: 1 error, 0 warnings, 0 notes\n"), "{text}");
}
