//! One breakage after the other, and what is found then.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::*;
use super::{Dump, ENVOY_GATEWAY, STATIC, remove, running, stale};

/// The rule, the dump that is sound without it, and how it is broken.
type Breakage = (&'static str, &'static str, fn(&mut Dump));

const MODEL: &str = "default/pool";
const MODEL_OF_GATEWAY: &str = "httproute/";
const SIDECAR: &str = "attache";

fn switched_off() -> Value {
    json!({"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true})
}

fn another_listener(dump: &mut Dump, cluster: &str) {
    let mut listener = dump.listener().clone();
    listener["name"] = json!("plain");
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    manager["http_filters"].as_array_mut().unwrap().drain(..2);
    manager["route_config"]["virtual_hosts"][0]["routes"] =
        json!([{"name": "direct", "match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "0s"}}]);
    dump.listeners().as_array_mut().unwrap().push(json!({"listener": listener}));
}

const BREAKAGES: &[Breakage] = &[
    ("not-attached", STATIC, |dump| {
        dump.manager()["http_filters"].as_array_mut().unwrap().remove(1);
    }),
    ("update-refused", STATIC, |dump| {
        let refused = json!({"name": "new", "error_state": {"details": "no such thing"}});
        dump.part("ListenersConfigDump")["dynamic_listeners"] = json!([refused]);
    }),
    ("incomplete", STATIC, |dump| {
        let mut other = dump.listener().clone();
        other["name"] = json!("other");
        let manager = &mut other["filter_chains"][0]["filters"][0]["typed_config"];
        remove(manager, "route_config");
        manager["rds"] = json!({"route_config_name": "nowhere"});
        manager["http_filters"].as_array_mut().unwrap().drain(..2);
        dump.listeners().as_array_mut().unwrap().push(json!({"listener": other}));
    }),
    ("never-runs", ENVOY_GATEWAY, |dump| remove(dump.route(1), "typed_per_filter_config")),
    ("never-runs", STATIC, |dump| {
        dump.route(1)["typed_per_filter_config"] = json!({"envoy.filters.http.ext_proc": switched_off()});
    }),
    ("bypass", STATIC, |dump| another_listener(dump, MODEL)),
    ("bypass", STATIC, |dump| {
        // Under another name, the same server.
        let mut twin = dump.cluster(MODEL).clone();
        twin["name"] = json!("twin");
        dump.clusters().push(json!({"cluster": twin}));
        another_listener(dump, "twin");
    }),
    ("bypass", ENVOY_GATEWAY, |dump| {
        let direct = json!({
            "name": "direct", "match": {"path": "/v1/chat/completions"},
            "route": {"cluster": "httproute/default/attache/rule/0"},
        });
        dump.virtual_host()["routes"].as_array_mut().unwrap().insert(0, direct);
    }),
    ("passes-by", ENVOY_GATEWAY, |dump| {
        let shop = json!({"name": "shop", "match": {"path_separated_prefix": "/shop"}, "route": {"cluster": "shop"}});
        dump.virtual_host()["routes"].as_array_mut().unwrap().insert(0, shop);
    }),
    ("fails-open", STATIC, |dump| dump.route(1)["route"]["cluster"] = json!(MODEL)),
    ("fails-open", ENVOY_GATEWAY, |dump| {
        remove(dump.route(1), "direct_response");
        dump.route(1)["route"] = json!({"cluster": "httproute/default/attache/rule/0"});
    }),
    ("open-to-a-clean-close answers-cut", STATIC, |dump| {
        dump.route(1)["route"]["cluster"] = json!(MODEL);
        remove(dump.processor(), "failure_mode_allow");
    }),
    ("no-target", STATIC, |dump| {
        dump.virtual_host()["routes"].as_array_mut().unwrap().remove(0);
    }),
    ("wasm-after-ext-proc", STATIC, |dump| dump.manager()["http_filters"].as_array_mut().unwrap().swap(0, 1)),
    ("compressed-answers", STATIC, |dump| {
        let compressor = json!({
            "name": "envoy.filters.http.compressor",
            "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor"},
        });
        dump.manager()["http_filters"].as_array_mut().unwrap().insert(2, compressor);
    }),
    ("another-processor", STATIC, |dump| {
        let other = json!({
            "name": "envoy.filters.http.ext_proc/aigateway",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
                "grpc_service": {"envoy_grpc": {"cluster_name": "ai-gateway-extproc-uds"}},
            },
        });
        dump.manager()["http_filters"].as_array_mut().unwrap().insert(1, other);
    }),
    ("headers-not-stripped envoy-headers-not-stripped", STATIC, |dump| {
        remove(dump.manager(), "early_header_mutation_extensions");
    }),
    ("headers-not-stripped", STATIC, |dump| {
        let mutations = &mut dump.manager()["early_header_mutation_extensions"][0]["typed_config"]["mutations"];
        mutations.as_array_mut().unwrap().remove(1);
    }),
    ("envoy-headers-not-stripped", STATIC, |dump| {
        let mutations = &mut dump.manager()["early_header_mutation_extensions"][0]["typed_config"]["mutations"];
        mutations.as_array_mut().unwrap().pop();
    }),
    ("headers-go-upstream", STATIC, |dump| remove(dump.virtual_host(), "request_headers_to_remove")),
    ("request-headers-not-sent", STATIC, |dump| {
        dump.processor()["processing_mode"]["request_header_mode"] = json!("SKIP");
    }),
    ("request-body-mode", STATIC, |dump| remove(dump.processor(), "send_body_without_waiting_for_header_response")),
    ("request-body-mode", STATIC, |dump| remove(&mut dump.processor()["processing_mode"], "request_body_mode")),
    ("request-body-mode", ENVOY_GATEWAY, |dump| {
        dump.processor()["processing_mode"]["request_body_mode"] = json!("BUFFERED_PARTIAL");
    }),
    ("response-body-mode", STATIC, |dump| {
        dump.processor()["processing_mode"]["response_body_mode"] = json!("BUFFERED")
    }),
    ("response-body-mode", ENVOY_GATEWAY, |dump| {
        dump.processor()["processing_mode"]["response_body_mode"] = json!("FULL_DUPLEX_STREAMED");
    }),
    ("trailers-hang", STATIC, |dump| drop(dump.matchers().pop())),
    ("trailers-hang", STATIC, |dump| {
        dump.matchers().pop();
        dump.processor()["processing_mode"]["request_trailer_mode"] = json!("SKIP");
    }),
    ("trailers-hang request-body-mode content-length-removed", ENVOY_GATEWAY, |dump| {
        dump.processor()["processing_mode"]["request_body_mode"] = json!("STREAMED");
    }),
    ("observability-mode", STATIC, |dump| dump.processor()["observability_mode"] = json!(true)),
    ("route-not-cleared", STATIC, |dump| dump.processor()["route_cache_action"] = json!("RETAIN")),
    ("route-not-cleared", STATIC, |dump| dump.processor()["disable_clear_route_cache"] = json!(true)),
    ("refusals-ignored", STATIC, |dump| dump.processor()["disable_immediate_response"] = json!(true)),
    ("mutations-forbidden", STATIC, |dump| dump.processor()["mutation_rules"]["disallow_all"] = json!(true)),
    ("mutations-forbidden", STATIC, |dump| {
        dump.processor()["mutation_rules"]["allow_expression"] = json!({"regex": "x-a.*"});
    }),
    ("headers-withheld", STATIC, |dump| {
        dump.processor()["forward_rules"] = json!({"disallowed_headers": {"patterns": [{"exact": "authorization"}]}});
    }),
    ("answers-unseen", STATIC, |dump| remove(&mut dump.processor()["processing_mode"], "response_body_mode")),
    ("answers-unseen", ENVOY_GATEWAY, |dump| {
        dump.processor()["processing_mode"]["response_header_mode"] = json!("SKIP");
    }),
    ("answers-cut", ENVOY_GATEWAY, |dump| remove(dump.processor(), "failure_mode_allow")),
    ("answers-cut", ENVOY_GATEWAY, |dump| {
        let name = dump.filter(1)["name"].as_str().unwrap().to_owned();
        dump.route(1)["typed_per_filter_config"][name]["config"] = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
            "overrides": {"failure_mode_allow": false},
        });
    }),
    ("message-timeout", STATIC, |dump| remove(dump.processor(), "message_timeout")),
    ("message-timeout", ENVOY_GATEWAY, |dump| dump.processor()["message_timeout"] = json!("0.200s")),
    ("content-length-removed", STATIC, |dump| remove(dump.processor(), "allow_content_length_header")),
    ("mode-override", STATIC, |dump| dump.processor()["allow_mode_override"] = json!(true)),
    ("costs-not-received", STATIC, |dump| remove(dump.processor(), "metadata_options")),
    ("replica-not-told", STATIC, |dump| remove(dump.processor(), "response_attributes")),
    ("buffer-too-small", ENVOY_GATEWAY, |dump| dump.listener()["per_connection_buffer_limit_bytes"] = json!(32_768)),
    ("buffer-too-small", ENVOY_GATEWAY, |dump| {
        dump.manager()["http2_protocol_options"] = json!({"initial_stream_window_size": 65_536});
    }),
    ("buffer-below-cap", ENVOY_GATEWAY, |dump| dump.listener()["per_connection_buffer_limit_bytes"] = json!(1 << 20)),
    ("buffer-below-cap", STATIC, |dump| dump.virtual_host()["request_body_buffer_limit"] = json!("33554432")),
    ("buffer-below-cap", STATIC, |dump| remove(dump.virtual_host(), "request_body_buffer_limit")),
    ("answers-time-out", STATIC, |dump| remove(&mut dump.route(0)["route"], "timeout")),
    ("long-answers-time-out", STATIC, |dump| dump.route(0)["route"]["timeout"] = json!("300s")),
    ("long-answers-time-out", ENVOY_GATEWAY, |dump| {
        dump.route(0)["route"]["retry_policy"]["per_try_timeout"] = json!("120s");
    }),
    ("long-answers-time-out", STATIC, |dump| {
        dump.manager()["common_http_protocol_options"] = json!({"max_stream_duration": "120s"});
    }),
    ("silent-answers-time-out", ENVOY_GATEWAY, |dump| remove(dump.manager(), "stream_idle_timeout")),
    ("silent-answers-time-out", STATIC, |dump| dump.route(0)["route"]["idle_timeout"] = json!("30s")),
    ("generations-repeated", STATIC, |dump| dump.route(0)["route"]["retry_policy"]["retry_on"] = json!("5xx,reset")),
    ("generations-repeated", STATIC, |dump| {
        dump.route(0)["route"]["retry_policy"]["retriable_status_codes"] = json!([500, 503]);
    }),
    ("no-retries", STATIC, |dump| remove(&mut dump.route(0)["route"], "retry_policy")),
    ("sidecar-cluster-missing", STATIC, |dump| {
        dump.clusters().retain(|entry| entry["cluster"]["name"] != SIDECAR);
    }),
    ("sidecar-without-http2", STATIC, |dump| remove(dump.cluster(SIDECAR), "typed_extension_protocol_options")),
    ("sidecar-without-host", STATIC, |dump| {
        remove(dump.cluster(SIDECAR), "load_assignment");
        remove(dump.endpoints(SIDECAR), "endpoints");
    }),
    ("sidecar-without-host", ENVOY_GATEWAY, |dump| {
        dump.endpoints("envoyextensionpolicy/")["endpoints"][0]["lb_endpoints"][0]["health_status"] =
            json!("UNHEALTHY");
    }),
    ("sidecar-breakers", STATIC, |dump| remove(dump.cluster(SIDECAR), "circuit_breakers")),
    ("sidecar-keepalive", ENVOY_GATEWAY, |dump| {
        let address =
            &mut dump.endpoints("envoyextensionpolicy/")["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"];
        address["socket_address"]["address"] = json!("10.1.2.3");
    }),
    ("sidecar-unchecked", STATIC, |dump| {
        let hosts = dump.endpoints(SIDECAR)["endpoints"][0]["lb_endpoints"].as_array_mut().unwrap();
        hosts.push(hosts[0].clone());
    }),
    ("target-without-cluster", STATIC, |dump| {
        dump.clusters().retain(|entry| entry["cluster"]["name"] != MODEL);
    }),
    ("replica-choice-ignored", ENVOY_GATEWAY, |dump| remove(dump.cluster(MODEL_OF_GATEWAY), "load_balancing_policy")),
    ("replica-choice-ignored", STATIC, |dump| {
        let policy = &mut dump.cluster(MODEL)["load_balancing_policy"]["policies"][0]["typed_extension_config"];
        policy["typed_config"]["override_host_sources"][0]["header"] = json!("x-other");
    }),
    ("model-breakers", STATIC, |dump| remove(dump.cluster(MODEL), "circuit_breakers")),
    ("keep-alive-race", ENVOY_GATEWAY, |dump| {
        let options = &mut dump.cluster(MODEL_OF_GATEWAY)["typed_extension_protocol_options"];
        remove(&mut options["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"], "common_http_protocol_options");
    }),
    ("wasm-missing", STATIC, |dump| {
        dump.manager()["http_filters"].as_array_mut().unwrap().remove(0);
    }),
    ("wasm-fail-open", STATIC, |dump| dump.plugin()["failure_policy"] = json!("FAIL_OPEN")),
    ("wasm-fail-closed", STATIC, |dump| remove(dump.plugin(), "failure_policy")),
    ("wasm-unconfigured", STATIC, |dump| remove(dump.plugin(), "configuration")),
    ("wasm-unconfigured", STATIC, |dump| dump.plugin()["configuration"]["value"] = json!("{\"version\":")),
    ("wasm-answers", STATIC, |dump| remove(dump.plugin(), "allow_on_headers_stop_iteration")),
    ("wasm-not-enabled", STATIC, |dump| {
        dump.route(1)["typed_per_filter_config"] = json!({"envoy.filters.http.wasm": switched_off()});
    }),
    ("envoy-too-old", STATIC, |dump| dump.node()["user_agent_build_version"]["version"]["minor_number"] = json!(32)),
    ("envoy-old", STATIC, |dump| dump.node()["user_agent_build_version"]["version"]["minor_number"] = json!(37)),
];

/// What is found without a breakage.
fn base(dump: &str) -> BTreeSet<&'static str> {
    if dump == ENVOY_GATEWAY { BTreeSet::from(["wasm-fail-closed"]) } else { BTreeSet::new() }
}

#[test]
fn each_breakage_is_found_and_nothing_else_is() {
    let mut wrong = Vec::new();
    for (index, (rules, text, break_it)) in BREAKAGES.iter().enumerate() {
        let mut dump = Dump::new(text);
        break_it(&mut dump);
        let expected: BTreeSet<&str> = rules.split(' ').chain(base(text)).collect();
        // Where it is not attached, or runs nowhere, there is nothing more to be said of it.
        let expected = if *rules == "not-attached" { BTreeSet::from(["not-attached"]) } else { expected };
        let found = dump.ids();
        if found != expected {
            wrong.push(format!("breakage {index}: {expected:?} expected, {found:?} found"));
        }
    }
    assert_eq!(wrong, [""; 0], "{wrong:#?}");
}

#[test]
fn there_is_a_breakage_for_every_rule() {
    let elsewhere = ["target-unknown-to-envoy", "target-unknown-to-sidecar"].into_iter();
    let elsewhere = elsewhere.chain(running::RULES).chain(stale::RULES);
    let broken: BTreeSet<&str> = BREAKAGES.iter().flat_map(|(rules, ..)| rules.split(' ')).chain(elsewhere).collect();
    let rules: BTreeSet<&str> = rules().map(|rule| rule.id).collect();
    assert_eq!(broken, rules);
}

#[test]
fn a_filter_of_another_name_is_found_by_being_alone_or_by_what_it_is_called() {
    let renamed = |mark: &str, other: bool| {
        let mut dump = Dump::new(STATIC);
        dump.processor()["grpc_service"]["envoy_grpc"]["cluster_name"] = json!("sidecar");
        dump.cluster(SIDECAR)["name"] = json!("sidecar");
        dump.endpoints(SIDECAR)["cluster_name"] = json!("sidecar");
        if other {
            let mut second = dump.filter(1).clone();
            second["name"] = json!("second");
            dump.manager()["http_filters"].as_array_mut().unwrap().insert(2, second);
        }
        let question = Question { mark: mark.to_owned(), ..Question::default() };
        let examined = examine(&Evidence { dump: dump.0, ..Evidence::default() }, &question).unwrap().remove(0);
        examined.attachments.iter().map(|attachment| attachment.ext_proc.clone()).collect::<Vec<_>>()
    };
    assert_eq!(renamed("attache", false), ["envoy.filters.http.ext_proc"]);
    assert_eq!(renamed("attache", true), [""; 0]);
    assert_eq!(renamed("Second", true), ["second"]);
}

#[test]
fn what_the_sidecar_may_choose_is_held_against_what_envoy_can_reach() {
    let ids = |text: &str, clusters: &[&str]| {
        let backends: Vec<Value> = clusters.iter().map(|cluster| json!({"cluster": cluster})).collect();
        let evidence =
            Evidence { dump: Dump::new(text).0, sidecar: json!({"backends": backends}), ..Evidence::default() };
        let examination = examine(&evidence, &Question::default()).unwrap().remove(0);
        let found = examination.findings.iter().map(|finding| finding.id).filter(|id| *id != "wasm-fail-closed");
        found.collect::<Vec<_>>()
    };
    for text in [STATIC, ENVOY_GATEWAY] {
        assert_eq!(ids(text, &[MODEL]), [""; 0]);
        assert_eq!(ids(text, &[MODEL, "default/new"]), ["target-unknown-to-envoy"]);
        assert_eq!(ids(text, &["default/new"]), ["target-unknown-to-envoy", "target-unknown-to-sidecar"]);
    }
}
