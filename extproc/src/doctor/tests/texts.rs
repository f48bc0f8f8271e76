//! What a finding says: numbers from the configuration, and no status but the one that was measured.

use serde_json::json;

use super::super::*;
use super::{Dump, ENVOY_GATEWAY, STATIC, remove};

fn what(dump: Dump, id: &str) -> Vec<String> {
    let findings = dump.examine().findings;
    findings.iter().filter(|finding| finding.id == id).map(|finding| finding.what.clone()).collect()
}

/// A dump whose message timeout and idle timeout of the way in are these.
fn times(message_timeout: &str, idle_timeout: &str) -> Dump {
    let mut dump = Dump::new(STATIC);
    dump.processor()["message_timeout"] = json!(message_timeout);
    dump.route(1)["route"]["idle_timeout"] = json!(idle_timeout);
    dump
}

#[test]
fn a_gateway_that_fails_open_does_so_at_any_clients_will_unless_envoy_gives_the_client_up_before() {
    let open = |message_timeout, idle_timeout| {
        let mut dump = times(message_timeout, idle_timeout);
        dump.route(1)["route"]["cluster"] = json!("default/pool");
        what(dump, "fails-open").concat()
    };
    let any_client = "by pausing the upload for 12 s (message_timeout)";
    assert!(open("12s", "15s").ends_with(any_client), "{}", open("12s", "15s"));
    assert!(open("12s", "0s").ends_with(any_client), "an idle timeout of zero is none");
    let only = "while the sidecar does not answer, requests go to default/pool without a key, a limit or a count \
                (failure_mode_allow)";
    assert_eq!(open("20s", "15s"), only);

    let mut dump = Dump::new(ENVOY_GATEWAY);
    remove(dump.route(1), "direct_response");
    dump.route(1)["route"] = json!({"cluster": "httproute/default/attache/rule/0"});
    assert!(
        !what(dump, "fails-open").concat().contains("client"),
        "with BUFFERED bodies no message waits for a client"
    );
}

#[test]
fn a_body_that_stalls_ends_as_envoy_was_measured_to_end_it() {
    let small = |dump: &mut Dump| {
        dump.listener()["per_connection_buffer_limit_bytes"] = json!(65_536);
        remove(dump.virtual_host(), "request_body_buffer_limit");
    };
    let told = |mut dump: Dump, change: fn(&mut Dump)| {
        small(&mut dump);
        change(&mut dump);
        [what(dump, "buffer-too-small").concat()]
    };
    let http1 = "bodies of more than about 64 KiB over HTTP/1.1 stall; after";
    let cap = "; the sidecar takes up to 32 MiB";
    assert_eq!(told(times("10s", "15s"), |_| {}), [format!("{http1} 10 s the request gets 503{cap}")]);
    assert_eq!(told(times("20s", "15s"), |_| {}), [format!("{http1} 15 s the request gets 408{cap}")]);
    let closed = |dump: &mut Dump| remove(dump.processor(), "failure_mode_allow");
    assert_eq!(told(times("10s", "15s"), closed), [format!("{http1} 10 s the request gets 504{cap}")]);
    let open = |dump: &mut Dump| dump.route(1)["route"]["cluster"] = json!("default/pool");
    let passes = "goes to default/pool without a key, a limit or a count";
    assert_eq!(told(times("10s", "15s"), open), [format!("{http1} 10 s the request {passes}{cap}")]);
}

#[test]
fn the_larger_limit_holds_for_http1_and_the_larger_of_window_and_request_limit_for_http2() {
    let mut dump = times("10s", "15s");
    dump.virtual_host()["request_body_buffer_limit"] = json!("65536");
    dump.manager()["http2_protocol_options"] = json!({"initial_stream_window_size": 262_144});
    assert_eq!(what(dump, "buffer-below-cap").len(), 1, "the connection's 1 MiB");
    let mut dump = times("10s", "15s");
    dump.virtual_host()["request_body_buffer_limit"] = json!("524288");
    dump.listener()["per_connection_buffer_limit_bytes"] = json!(65_536);
    dump.manager()["http2_protocol_options"] = json!({"initial_stream_window_size": 65_536});
    let streamed = "bodies of more than about 512 KiB over HTTP/1.1 stall; after 10 s the request gets 503; the sidecar takes up to 32 MiB";
    let buffered =
        "bodies of more than about 512 KiB over HTTP/2 are refused by Envoy with 413; the sidecar takes up to 32 MiB";
    assert_eq!(what(dump, "buffer-too-small"), [streamed, buffered]);
    // Envoy does not apply the request's limit to a route that it answers by itself.
    let mut dump = Dump::new(ENVOY_GATEWAY);
    dump.virtual_host()["request_body_buffer_limit"] = json!("33554432");
    dump.manager()["http2_protocol_options"] = json!({"initial_stream_window_size": 65_536});
    let http2 =
        "bodies of more than about 64 KiB over HTTP/2 are refused by Envoy with 413; the sidecar takes up to 32 MiB";
    assert_eq!(what(dump, "buffer-too-small"), [http2]);
}

#[test]
fn a_pause_is_told_with_the_status_that_follows() {
    let told = |dump| what(dump, "message-timeout").concat();
    assert_eq!(told(times("0.200s", "15s")), "a client whose upload pauses for 200 ms gets 503 (message_timeout)");
    let mut dump = times("0.200s", "15s");
    remove(dump.processor(), "failure_mode_allow");
    assert_eq!(told(dump), "a client whose upload pauses for 200 ms gets 504 (message_timeout)");
}

#[test]
fn the_summary_says_what_becomes_of_requests_and_of_answers_without_the_sidecar() {
    let told = |change: fn(&mut Dump)| {
        let mut dump = Dump::new(STATIC);
        change(&mut dump);
        dump.examine().attachments.remove(0).without_sidecar
    };
    assert_eq!(told(|_| {}), "requests get 503; answers under way go on, uncounted");
    assert_eq!(
        told(|dump| remove(dump.processor(), "failure_mode_allow")),
        "requests get 500; answers under way are cut"
    );
    let open = told(|dump| dump.route(1)["route"]["cluster"] = json!("default/pool"));
    let expected = "requests go to default/pool without a key, a limit or a count; answers under way go on, uncounted";
    assert_eq!(open, expected);
}

#[test]
fn a_fix_is_told_once_for_all_that_it_mends() {
    let mut dump = Dump::new(ENVOY_GATEWAY);
    dump.listener()["per_connection_buffer_limit_bytes"] = json!(32_768);
    dump.manager()["http2_protocol_options"] = json!({"initial_stream_window_size": 65_536});
    let examination = dump.examine();
    assert_eq!(examination.findings.iter().filter(|finding| finding.id == "buffer-too-small").count(), 2);
    let text = draw(&examination);
    assert_eq!(text.matches("spec.http2.initialStreamWindowSize").count(), 1, "{text}");
    assert!(text.ends_with(": 2 errors, 0 warnings, 1 note\n"), "{text}");
}

#[test]
fn every_form_in_which_a_route_waits_for_our_header_makes_it_a_target() {
    for matcher in [
        json!({"present_match": true}),
        json!({}),
        json!({"present_match": false, "invert_match": true}),
        json!({"string_match": {"prefix": "default/"}}),
        json!({"string_match": {"suffix": "/pool"}}),
        json!({"string_match": {"contains": "pool"}}),
        json!({"string_match": {"safe_regex": {"regex": "default/.*"}}}),
        json!({"string_match": {"exact": "Default/Pool", "ignore_case": true}}),
        json!({"string_match": {"exact": "default/other"}, "invert_match": true}),
    ] {
        let mut dump = Dump::new(STATIC);
        let mut header = matcher.clone();
        header["name"] = json!("X-Attache-Cluster");
        dump.route(0)["match"]["headers"] = json!([header]);
        let sidecar = json!({"backends": [{"cluster": "default/pool"}]});
        let evidence = Evidence { dump: dump.0, sidecar, ..Evidence::default() };
        let examination = examine(&evidence, &Question::default()).unwrap().remove(0);
        assert_eq!(
            (examination.findings.as_slice(), examination.attachments[0].targets),
            ([].as_slice(), 1),
            "{matcher}"
        );
    }
    // Another of our headers that no client can send.
    let mut dump = Dump::new(STATIC);
    dump.route(0)["match"]["headers"] = json!([{"name": "x-attache-route", "present_match": true}]);
    assert_eq!(dump.examine().attachments[0].targets, 1);
}

#[test]
fn a_route_that_matches_without_our_header_is_a_way_in() {
    for matcher in [
        json!({"present_match": false}),
        json!({"invert_match": true}),
        json!({"present_match": true, "treat_missing_header_as_empty": true}),
        json!({"string_match": {"exact": "x"}, "invert_match": true, "treat_missing_header_as_empty": true}),
    ] {
        let mut dump = Dump::new(STATIC);
        let mut header = matcher.clone();
        header["name"] = json!("x-attache-cluster");
        dump.route(0)["match"]["headers"] = json!([header]);
        assert!(dump.ids().is_superset(&["fails-open", "no-target"].into()), "{matcher}");
    }
}

#[test]
fn a_route_that_only_answers_those_that_no_target_took_is_no_target() {
    let mut dump = Dump::new(STATIC);
    let rest = json!({
        "name": "rest",
        "match": {"prefix": "/", "headers": [{"name": "x-attache-cluster", "present_match": true}]},
        "direct_response": {"status": 503},
    });
    dump.virtual_host()["routes"].as_array_mut().unwrap().insert(1, rest);
    let examination = dump.examine();
    assert_eq!((examination.findings.as_slice(), examination.attachments[0].targets), ([].as_slice(), 1));
}

#[test]
fn headers_may_be_removed_by_any_form_of_matcher() {
    let stripped = |matcher: serde_json::Value| {
        let mut dump = Dump::new(STATIC);
        let mutations =
            json!([{"remove_on_match": {"key_matcher": matcher}}, {"remove": "x-envoy-upstream-rq-timeout-ms"}]);
        dump.manager()["early_header_mutation_extensions"][0]["typed_config"]["mutations"] = mutations;
        !dump.ids().contains("headers-not-stripped")
    };
    assert!(stripped(json!({"safe_regex": {"regex": "x-(attache|gateway)-.*"}})));
    assert!(stripped(json!({"prefix": "X-", "ignore_case": true})));
    assert!(!stripped(json!({"contains": "attache"})), "one of them has another name");
    assert!(!stripped(json!({"custom": {}})), "what cannot be told is not taken for granted");
}
