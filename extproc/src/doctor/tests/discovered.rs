//! Filters and routes that are discovered by themselves: ECDS and SRDS, in the form in which a real Envoy 1.40 prints them.

use serde_json::{Value, json};

use super::{Dump, STATIC, remove};

const TYPES: &str = "type.googleapis.com/envoy.admin.v3.";

impl Dump {
    fn add(&mut self, kind: &str, mut part: Value) {
        part["@type"] = json!(format!("{TYPES}{kind}"));
        self.0["configs"].as_array_mut().unwrap().push(part);
    }
}

/// A processor that may be asked about every version of HTTP.
fn buffered(dump: &mut Dump) -> Value {
    let mut processor = dump.processor().clone();
    processor["processing_mode"]["request_body_mode"] = json!("BUFFERED");
    processor
}

/// The sidecar's filter comes by ECDS; `delivered` is whether it has come.
fn by_ecds(delivered: bool) -> Dump {
    let mut dump = Dump::new(STATIC);
    let processor = buffered(&mut dump);
    *dump.filter(1) = json!({
        "name": "attache",
        "config_discovery": {
            "config_source": {"ads": {}, "resource_api_version": "V3"},
            "type_urls": ["type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"],
        },
    });
    if delivered {
        let extension = json!({
            "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
            "name": "attache",
            "typed_config": processor,
        });
        dump.add("EcdsConfigDump", json!({"ecds_filters": [{"ecds_filter": extension}]}));
    }
    dump
}

/// The routes come by scopes. With `known`, the scopes and their table are in the dump.
fn by_scopes(known: &[&str]) -> Dump {
    let mut dump = Dump::new(STATIC);
    let mut table = dump.manager()["route_config"].clone();
    table["name"] = json!("scoped");
    remove(dump.manager(), "route_config");
    dump.manager()["scoped_routes"] = json!({"name": "scopes", "scoped_rds": {}, "rds_config_source": {"ads": {}}});
    if known.contains(&"scopes") {
        let scope = |name: &str| json!({"name": name, "route_configuration_name": "scoped"});
        let scopes = json!([{"name": "scopes", "scoped_route_configs": [scope("one"), scope("two")]}]);
        dump.add("ScopedRoutesConfigDump", json!({"dynamic_scoped_route_configs": scopes}));
    }
    if known.contains(&"table") {
        dump.add("RoutesConfigDump", json!({"dynamic_route_configs": [{"route_config": table}]}));
    }
    dump
}

fn unread(dump: Dump) -> Vec<String> {
    let findings = dump.examine().findings;
    let unread = findings.iter().filter(|finding| finding.id == "incomplete");
    unread.map(|finding| finding.what.rsplit(": ").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_filter_that_ecds_has_delivered_counts_as_there() {
    let examination = by_ecds(true).examine();
    assert_eq!(examination.findings, []);
    assert_eq!(examination.attachments[0].ext_proc, "attache");
}

#[test]
fn a_filter_that_is_not_in_the_dump_makes_the_verdict_incomplete() {
    assert_eq!(unread(by_ecds(false)), ["the filter attache (ECDS)"]);
    assert!(by_ecds(false).ids().contains("not-attached"));
    // Until it comes, its default holds.
    let mut dump = by_ecds(false);
    let default = buffered(&mut Dump::new(STATIC));
    dump.filter(1)["config_discovery"]["default_config"] = default;
    assert_eq!(dump.examine().findings, []);
}

#[test]
fn a_refused_delivery_is_named() {
    let mut dump = by_ecds(true);
    let part = dump.0["configs"].as_array_mut().unwrap().last_mut().unwrap();
    part["ecds_filters"][0]["error_state"] = json!({"details": "no such field"});
    let findings = dump.examine().findings;
    assert_eq!(
        (findings[0].id, findings[0].places.as_slice()),
        ("update-refused", ["filter attache".to_owned()].as_slice())
    );
}

#[test]
fn routes_of_scopes_are_examined_once_for_all_scopes_that_share_a_table() {
    let examination = by_scopes(&["scopes", "table"]).examine();
    assert_eq!(examination.findings, []);
    assert_eq!((examination.attachments[0].targets, examination.attachments[0].ways_in), (1, 1));

    let mut dump = by_scopes(&["scopes"]);
    let mut table = Dump::new(STATIC).manager()["route_config"].clone();
    table["name"] = json!("scoped");
    remove(&mut table["virtual_hosts"][0]["routes"][0]["route"], "timeout");
    dump.add("RoutesConfigDump", json!({"dynamic_route_configs": [{"route_config": table}]}));
    assert!(dump.ids().contains("answers-time-out"));
}

#[test]
fn scopes_and_tables_that_are_not_in_the_dump_make_the_verdict_incomplete() {
    assert_eq!(unread(by_scopes(&["scopes"])), ["the routes scoped"]);
    assert_eq!(unread(by_scopes(&[])), ["the scopes scopes (SRDS)"]);
}

#[test]
fn routes_that_are_not_read_make_the_verdict_incomplete() {
    let mut dump = Dump::new(STATIC);
    dump.virtual_host()["matcher"] = json!({"matcher_tree": {}});
    assert_eq!(unread(dump), ["the routes of attache, which stand in a matcher"]);
    let mut dump = Dump::new(STATIC);
    dump.manager()["route_config"]["vhds"] = json!({"config_source": {"ads": {}}});
    assert_eq!(unread(dump), ["virtual hosts of attache that were not asked for yet (VHDS)"]);
    let mut dump = Dump::new(STATIC);
    let matcher = &mut dump.filter(1)["typed_config"]["xds_matcher"]["matcher_list"]["matchers"][0];
    let discovered = json!({"name": "more", "config_discovery": {"config_source": {"ads": {}}}});
    matcher["on_match"]["action"]["typed_config"]["dynamic_config"] = discovered;
    assert_eq!(unread(dump), ["what the filter envoy.filters.http.ext_proc discovers by itself (ECDS)"]);
    let mut dump = Dump::new(STATIC);
    dump.listeners().as_array_mut().unwrap().clear();
    assert_eq!(unread(dump), ["the dump has no listener"]);
}
