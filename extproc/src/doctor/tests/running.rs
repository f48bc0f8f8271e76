//! What counters and the sidecar's own pages add to a dump in which nothing is wrong. The figures are those that a real Envoy 1.40
//! had in each case.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::*;
use super::{Dump, STATIC, remove};

/// The rules that are tested here.
pub(super) const RULES: [&str; 13] = [
    "sidecar-silent",
    "sidecar-not-connected",
    "has-failed-open",
    "has-failed",
    "has-timed-out",
    "has-overflowed",
    "never-asked",
    "no-traffic",
    "model-tls-failed",
    "sidecar-unreachable",
    "sidecar-never-answered",
    "another-sidecar",
    "streams-refused",
];

/// Envoy's counters; `ext_proc.` and `cluster.` are as they are in the dump.
fn stats(values: &[(&str, u64)]) -> Value {
    let name = |name: &str| if name.starts_with("cluster.") { name.to_owned() } else { format!("http.attache.{name}") };
    let stats = values.iter().map(|(short, value)| json!({"name": name(short), "value": value}));
    json!({"stats": stats.collect::<Vec<_>>()})
}

const STARTED: (&str, u64) = ("ext_proc.streams_started", 9);
const ANSWERED: (&str, u64) = ("ext_proc.stream_msgs_received", 30);

/// One host of the sidecar's cluster, as `/clusters?format=json` has it.
fn clusters(counters: &[(&str, u64)]) -> Value {
    let stats: Vec<Value> =
        counters.iter().map(|(name, value)| json!({"name": name, "value": value.to_string()})).collect();
    let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": 18001}});
    let host = json!({"address": address, "stats": stats, "health_status": {"eds_health_status": "HEALTHY"}});
    json!({"cluster_statuses": [{"name": "other"}, {"name": "attache", "host_statuses": [host]}]})
}

fn examined(dump: Dump, evidence: Evidence) -> Examination {
    examine(&Evidence { dump: dump.0, ..evidence }, &Question::default()).unwrap().remove(0)
}

fn ids(stats: Value) -> BTreeSet<&'static str> {
    let evidence = Evidence { stats, ..Evidence::default() };
    examined(Dump::new(STATIC), evidence).findings.iter().map(|finding| finding.id).collect()
}

fn what(examination: &Examination, id: &str) -> String {
    let found = examination.findings.iter().find(|finding| finding.id == id);
    found.map(|finding| finding.what.clone()).unwrap_or_else(|| panic!("{id}: {:?}", examination.findings))
}

#[test]
fn counters_tell_what_has_happened() {
    assert_eq!(ids(stats(&[STARTED, ANSWERED])), BTreeSet::new());
    assert_eq!(ids(stats(&[])), BTreeSet::from(["no-traffic"]));
    assert_eq!(ids(stats(&[("downstream_rq_2xx", 4)])), BTreeSet::from(["never-asked"]));
    let failed = [("ext_proc.failure_mode_allowed", 2), ("ext_proc.streams_failed", 2)];
    assert_eq!(ids(stats(&[STARTED, ANSWERED, failed[0], failed[1]])), BTreeSet::from(["has-failed-open"]));
    assert_eq!(ids(stats(&[STARTED, ANSWERED, failed[1]])), BTreeSet::from(["has-failed"]));
    let overflow = |cluster: &str| format!("cluster.{cluster}.upstream_rq_pending_overflow");
    assert_eq!(ids(stats(&[STARTED, ANSWERED, (&overflow("attache"), 1)])), BTreeSet::from(["has-overflowed"]));
    assert_eq!(ids(stats(&[STARTED, ANSWERED, (&overflow("other"), 1)])), BTreeSet::new());
}

#[test]
fn connections_that_failed_for_tls_are_told_with_what_envoy_counts_of_them() {
    let of = |name: &str| format!("cluster.default/pool.ssl.{name}");
    let told = |counts: &[(&str, u64)]| {
        let named: Vec<_> = counts.iter().map(|(name, count)| (of(name), *count)).collect();
        let counts: Vec<_> = named.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        let evidence = Evidence { stats: stats(&[&[STARTED, ANSWERED], &counts[..]].concat()), ..Evidence::default() };
        what(&examined(Dump::new(STATIC), evidence), "model-tls-failed")
    };
    let since = "failed for TLS since this Envoy's counters were reset or it started (ssl.connection_error)";
    assert_eq!(told(&[("connection_error", 1)]), format!("1 connection {since}"));
    assert_eq!(
        told(&[("connection_error", 3), ("fail_verify_san", 2)]),
        format!("3 connections {since}: a certificate for another name (fail_verify_san 2)")
    );
    assert_eq!(ids(stats(&[STARTED, ANSWERED, ("cluster.other.ssl.connection_error", 1)])), BTreeSet::new());
}

#[test]
fn another_processors_counters_are_not_ours() {
    let mut dump = Dump::new(STATIC);
    dump.processor()["stat_prefix"] = json!("ours");
    let counters = [
        ("ext_proc.ours.streams_started", 9),
        ("ext_proc.ours.stream_msgs_received", 9),
        ("ext_proc.streams_failed", 5),
        ("ext_proc.theirs.streams_failed", 5),
    ];
    let examination = examined(dump, Evidence { stats: stats(&counters), ..Evidence::default() });
    assert_eq!(examination.findings, []);
}

#[test]
fn a_message_that_had_no_answer_in_time_is_not_taken_for_a_sidecar_that_failed() {
    let timeouts =
        || stats(&[STARTED, ANSWERED, ("ext_proc.failure_mode_allowed", 2), ("ext_proc.message_timeouts", 2)]);
    // STREAMED, and a client may pause for longer than that.
    let mut dump = Dump::new(STATIC);
    dump.processor()["message_timeout"] = json!("10s");
    let examination = examined(dump, Evidence { stats: timeouts(), ..Evidence::default() });
    assert_eq!(examination.findings.len(), 1, "{:?}", examination.findings);
    assert!(what(&examination, "has-timed-out").contains("by a client that paused its upload, "));
    // Envoy gives such a client up before.
    let mut dump = Dump::new(STATIC);
    dump.processor()["message_timeout"] = json!("20s");
    let examination = examined(dump, Evidence { stats: timeouts(), ..Evidence::default() });
    assert!(what(&examination, "has-timed-out").ends_with("by a slow sidecar: no pause of a client ends so here"));
    // It was let through.
    let mut dump = Dump::new(STATIC);
    dump.processor()["message_timeout"] = json!("10s");
    dump.route(1)["route"]["cluster"] = json!("default/pool");
    let examination = examined(dump, Evidence { stats: timeouts(), ..Evidence::default() });
    let expected = "2 messages had no answer in time since this Envoy's counters were reset or it started (message_timeouts); \
                    such a request goes to default/pool without a key, a limit or a count";
    assert_eq!(what(&examination, "has-failed-open"), expected);
}

#[test]
fn a_sidecar_that_envoy_does_not_reach_is_an_error_with_its_address() {
    let look = |counters: &[(&str, u64)], host: Value| {
        let evidence = Evidence { stats: stats(counters), clusters: host, ..Evidence::default() };
        examined(Dump::new(STATIC), evidence)
    };
    let failed = [STARTED, ("ext_proc.failure_mode_allowed", 9), ("ext_proc.streams_failed", 9)];
    let examination = look(&failed, clusters(&[("cx_connect_fail", 2), ("cx_total", 2), ("rq_error", 2)]));
    let expected =
        "Envoy does not reach the sidecar at 127.0.0.1:18001: 2 of 2 connections failed, and none is open".to_owned();
    assert_eq!(what(&examination, "sidecar-unreachable"), expected);
    assert!(draw(&examination).contains("\nconfigured, and not attached: 2 errors, 0 warnings, 0 notes\n"));

    // It was gone, and is back.
    let back = clusters(&[("cx_connect_fail", 2), ("cx_total", 3), ("cx_active", 1)]);
    assert_eq!(look(&[STARTED, ANSWERED], back).findings, []);

    let mut unhealthy = clusters(&[]);
    unhealthy["cluster_statuses"][1]["host_statuses"][0]["health_status"] = json!({"failed_active_health_check": true});
    let examination = look(&[STARTED, ANSWERED], unhealthy);
    assert!(what(&examination, "sidecar-unreachable").ends_with("127.0.0.1:18001: a health check fails"));

    // Something else listens there.
    let examination = look(&failed, clusters(&[("cx_total", 1), ("cx_active", 1), ("rq_error", 1)]));
    assert!(
        what(&examination, "sidecar-never-answered")
            .starts_with("9 streams failed and none was answered: what listens at 127")
    );
}

#[test]
fn a_sidecar_that_contradicts_envoy_is_another_one() {
    let look = |counters: &[(&str, u64)], attached: Value| {
        let evidence = Evidence { stats: stats(counters), attached, ..Evidence::default() };
        examined(Dump::new(STATIC), evidence).findings.iter().map(|finding| finding.id).collect::<Vec<_>>()
    };
    let page =
        |ago: Option<u64>| json!({"attached": ago.is_some(), "last_stream_seconds_ago": ago, "last_refusal": null});
    assert_eq!(look(&[STARTED, ANSWERED], page(Some(3))), [""; 0]);
    assert_eq!(look(&[STARTED, ANSWERED], page(None)), ["another-sidecar"]);
    assert_eq!(look(&[], page(Some(3))), ["another-sidecar", "no-traffic"]);
    assert_eq!(look(&[], page(None)), ["no-traffic"]);
    let refused = json!({"attached": false, "last_stream_seconds_ago": 2, "last_refusal": "request_body_mode must be"});
    assert_eq!(look(&[STARTED, ANSWERED], refused), ["streams-refused"]);

    // Of several sidecars it may not have been its turn yet.
    let mut dump = Dump::new(STATIC);
    let hosts = dump.endpoints("attache")["endpoints"][0]["lb_endpoints"].as_array_mut().unwrap();
    hosts.push(hosts[0].clone());
    dump.cluster("attache")["health_checks"] = json!([{"grpc_health_check": {}}]);
    let evidence = Evidence { stats: stats(&[STARTED, ANSWERED]), attached: page(None), ..Evidence::default() };
    assert_eq!(examined(dump, evidence).findings, []);
}

/// The ages of Envoy and of the sidecar, in seconds, and how long ago the sidecar saw its last stream.
fn ages(envoy: u64, sidecar: u64, last_stream: Option<u64>) -> Evidence {
    Evidence {
        server_info: json!({"uptime_current_epoch": format!("{envoy}s"), "uptime_all_epochs": format!("{envoy}s")}),
        attached: json!({
            "started_seconds_ago": sidecar,
            "attached": last_stream.is_some(),
            "last_stream_seconds_ago": last_stream,
            "last_refusal": null,
        }),
        ..Evidence::default()
    }
}

#[test]
fn a_sidecar_that_was_restarted_is_neither_another_nor_out_of_reach() {
    let gone = [
        STARTED,
        ("ext_proc.stream_msgs_received", 12),
        ("ext_proc.failure_mode_allowed", 2),
        ("ext_proc.streams_failed", 2),
    ];
    let look = |ages: Evidence, host: &[(&str, u64)]| {
        examined(Dump::new(STATIC), Evidence { stats: stats(&gone), clusters: clusters(host), ..ages })
    };
    let ids = |found: &Examination| found.findings.iter().map(|finding| finding.id).collect::<Vec<_>>().join(" ");
    let failing = [("cx_connect_fail", 2), ("cx_total", 3)];
    let found = look(ages(60, 4, None), &failing);
    assert_eq!(ids(&found), "has-failed-open sidecar-not-connected");
    let expected = "the sidecar that was asked is up and started 4 s ago, and Envoy has not connected since; what failed may be \
                    from before: 127.0.0.1:18001: 2 of 3 connections failed, and none is open";
    assert_eq!(what(&found, "sidecar-not-connected"), expected);
    assert!(
        draw(&found).ends_with("\nconfigured, and not connected: 1 error, 1 warning, 0 notes\n"),
        "{}",
        draw(&found)
    );
    // They failed while the sidecar was there; and it has seen none of what Envoy counts.
    assert_eq!(ids(&look(ages(60, 90, None), &failing)), "sidecar-unreachable has-failed-open another-sidecar");
    // Envoy has a connection, and this sidecar no stream.
    let open = [("cx_connect_fail", 2), ("cx_total", 3), ("cx_active", 1)];
    assert_eq!(ids(&look(ages(60, 4, None), &open)), "has-failed-open another-sidecar");
    // A health check is of now.
    let mut unhealthy = clusters(&[]);
    unhealthy["cluster_statuses"][1]["host_statuses"][0]["health_status"] = json!({"failed_active_health_check": true});
    let evidence = Evidence { stats: stats(&gone), clusters: unhealthy, ..ages(60, 4, None) };
    assert_eq!(ids(&examined(Dump::new(STATIC), evidence)), "sidecar-unreachable has-failed-open");
    // Nobody asked the sidecar.
    assert_eq!(ids(&look(Evidence::default(), &failing)), "sidecar-unreachable has-failed-open");
}

#[test]
fn streams_from_before_envoy_started_or_its_counters_were_reset_are_no_contradiction() {
    let look = |ages: Evidence, host: &[(&str, u64)]| {
        let found = examined(Dump::new(STATIC), Evidence { stats: stats(&[]), clusters: clusters(host), ..ages });
        found.findings.iter().map(|finding| finding.id).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(look(ages(60, 90, Some(70)), &[]), "no-traffic");
    assert_eq!(look(ages(60, 90, Some(50)), &[]), "another-sidecar no-traffic");
    assert_eq!(look(ages(60, 90, Some(50)), &[("cx_total", 1)]), "no-traffic");
}

#[test]
fn a_sidecar_that_is_silent_is_one_error_and_envoy_is_examined() {
    let silence = Some("at 127.0.0.1:10002, /config: it does not answer within 5 s".to_owned());
    let evidence = Evidence { silence, stats: stats(&[STARTED, ANSWERED]), ..Evidence::default() };
    let examination = examined(Dump::new(STATIC), evidence);
    assert_eq!((examination.findings.len(), examination.attachments.len()), (1, 1));
    assert_eq!(examination.findings[0].severity, Severity::Error);
    let expected =
        "the sidecar's admin page does not answer: at 127.0.0.1:10002, /config: it does not answer within 5 s";
    assert_eq!(what(&examination, "sidecar-silent"), expected);
    let text = draw(&examination);
    assert!(text.ends_with("\nconfigured, and the sidecar does not answer: 1 error, 0 warnings, 0 notes\n"), "{text}");
}

#[test]
fn the_summary_says_whose_word_it_rests_on() {
    let last = |evidence: Evidence| {
        let text = draw(&examined(Dump::new(STATIC), evidence));
        text.split("\n\n").last().unwrap().to_owned()
    };
    let sound = ": 0 errors, 0 warnings, 0 notes\n";
    assert_eq!(last(Evidence::default()), format!("attached by its configuration{sound}"));
    let counted = || stats(&[STARTED, ANSWERED]);
    assert_eq!(
        last(Evidence { stats: counted(), ..Evidence::default() }),
        format!(
            "attached, by what Envoy has seen so far{sound}Whether the sidecar is there now, it says itself: --sidecar-admin \
             HOST:PORT\n"
        )
    );
    assert_eq!(last(Evidence { stats: counted(), ..ages(60, 90, Some(3)) }), format!("attached{sound}"));
    let text = draw(&examined(Dump::new(STATIC), Evidence { stats: stats(&[]), ..Evidence::default() }));
    assert!(text.contains(
        "\nnote no-traffic: no request has come to the sidecar since this Envoy's counters were reset or it started\n"
    ));
    assert!(text.contains("\nattached by its configuration; no request has been counted yet: 0 errors"), "{text}");
}

#[test]
fn of_streams_that_failed_it_is_said_what_became_of_their_requests() {
    let failed = || stats(&[STARTED, ANSWERED, ("ext_proc.failure_mode_allowed", 2), ("ext_proc.streams_failed", 2)]);
    let said = |dump| what(&examined(dump, Evidence { stats: failed(), ..Evidence::default() }), "has-failed-open");
    let (start, end) = (
        "2 streams failed since this Envoy's counters were reset or it started (streams_failed, failure_mode_allowed): of these, ",
        "; answers under way went on, uncounted",
    );
    assert_eq!(said(Dump::new(STATIC)), format!("{start}requests got 503{end}"));
    let mut dump = Dump::new(STATIC);
    dump.route(1)["route"]["cluster"] = json!("default/pool");
    let passed = "requests went to default/pool without a key, a limit or a count";
    assert_eq!(said(dump), format!("{start}{passed}{end}"));
}

#[test]
fn a_page_that_did_not_come_makes_the_verdict_incomplete() {
    let unread = vec!["/stats?format=json of 127.0.0.1:9901".to_owned()];
    let examination = examined(Dump::new(STATIC), Evidence { unread, ..Evidence::default() });
    assert_eq!(examination.findings[0].severity, Severity::Error);
    let expected = "the verdict is without what could not be read: /stats?format=json of 127.0.0.1:9901";
    assert_eq!(what(&examination, "incomplete"), expected);
    assert!(
        draw(&examination)
            .ends_with("\nattached by its configuration, as far as could be read: 1 error, 0 warnings, 0 notes\n")
    );
}

#[test]
fn a_dump_without_endpoints_is_incomplete_where_they_are_discovered() {
    let mut dump = Dump::new(STATIC);
    let cluster = dump.cluster("attache");
    cluster["type"] = json!("EDS");
    remove(cluster, "load_assignment");
    dump.endpoints("attache")["cluster_name"] = json!("gone");
    let examination = examined(dump, Evidence::default());
    assert!(what(&examination, "incomplete").ends_with("its endpoints (include_eds)"));
}
