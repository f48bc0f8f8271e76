//! Who served and who failed: what an answer says of the endpoints that were tried.

use super::*;

#[test]
fn a_backend_whose_replicas_fail_gives_way_to_the_next_priority_and_comes_back() {
    let mut table = Table::set(Profile::Streamed);
    for _ in 0..2 {
        for upstream in ["10.0.0.1:80", "10.0.0.2:80"] {
            table.again();
            released(table.post(&chat("assistant"), &[]));
            table.answer_head("503", "application/json", upstream);
        }
    }
    table.again();
    let (mutations, _) = released(table.post(&chat("assistant"), &[]));
    assert_eq!(set(&mutations, "x-attache-cluster"), Some("default/spare"));
    assert!(mutations.remove.contains(&"x-gateway-destination-endpoint"), "its name is not resolved: there is no list");
    table.now += Duration::from_secs(60);
    table.again();
    let (mutations, _) = released(table.post(&chat("assistant"), &[]));
    assert_eq!(set(&mutations, "x-attache-cluster"), Some("default/pool"));
}

#[test]
fn where_one_served_that_was_not_in_the_list_nobody_of_the_list_has_failed() {
    let mut table = Table::set(Profile::Streamed);
    for _ in 0..3 {
        table.again();
        released(table.post(&chat("assistant"), &[]));
        table.answer_head("503", "text/plain", "10.0.0.9:80");
    }
    assert_eq!(table.memory.cooldown.cooling(table.now), 0);
}

#[test]
fn a_backend_of_a_name_that_is_not_resolved_can_fail_too() {
    let mut table = Table::set(Profile::Streamed);
    let ask = |table: &mut Table| {
        table.again();
        let (mutations, _) = released(table.post(&chat("assistant"), &[]));
        set(&mutations, "x-attache-cluster").map(str::to_owned)
    };
    let fail = |table: &mut Table, upstreams: &[&str]| {
        for upstream in upstreams {
            ask(table);
            table.answer_head("503", "text/plain", upstream);
        }
    };
    fail(&mut table, &["", ""]);
    assert_eq!(ask(&mut table).as_deref(), Some("default/spare"));
    fail(&mut table, &["", ""]);
    assert_eq!(ask(&mut table).as_deref(), Some("default/pool"), "all are out: the first is tried all the same");
}

#[test]
fn where_no_endpoint_served_all_that_were_tried_have_failed() {
    let mut table = Table::set(Profile::Streamed);
    for _ in 0..2 {
        table.again();
        released(table.post(&chat("assistant"), &[]));
        table.answer_head("503", "text/plain", "");
    }
    assert_eq!(table.memory.cooldown.cooling(table.now), 2);
}

#[test]
fn the_endpoint_that_served_is_well_and_those_before_it_have_failed() {
    let mut table = Table::set(Profile::Streamed);
    let (mutations, _) = released(table.post(&chat("assistant"), &[]));
    let order: Vec<_> =
        set(&mutations, "x-gateway-destination-endpoint").unwrap().split(',').map(String::from).collect();
    for _ in 0..2 {
        table.again();
        released(table.post(&chat("assistant"), &[]));
        table.answer_head("200", "application/json", &order[1]);
    }
    table.again();
    let (mutations, _) = released(table.post(&chat("assistant"), &[]));
    assert_eq!(set(&mutations, "x-gateway-destination-endpoint"), Some(order[1].as_str()));
}

#[test]
fn an_error_in_the_place_of_an_answer_costs_nothing_and_counts_as_what_it_is() {
    let stream = "text/event-stream";
    for (content_type, body, status, cools) in [
        (stream, "data: {\"error\":{\"message\":\"engine died\",\"code\":500}}\n\ndata: [DONE]\n\n", 500, true),
        (stream, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n", 500, true),
        (stream, "data: {\"object\":\"error\",\"message\":\"too long\",\"code\":400}\n\n", 400, false),
        (stream, "data: {\"error\":{\"message\":\"x\",\"type\":\"BadRequestError\"}}\n\n", 400, false),
        ("application/json", r#"{"error":{"message":"x","type":"server_error","code":null}}"#, 500, true),
        ("application/json", r#"{"error":{"message":"x","code":"429"}}"#, 429, false),
    ] {
        let mut table = Table::set(Profile::Streamed);
        for _ in 0..2 {
            table.again();
            let asked = json!({"model": "metered", "stream": content_type == stream, "messages": []});
            table.post(&asked, &[]);
            table.admit();
            table.answer_head("200", content_type, "10.0.0.1:80");
            table.answer_body(body, End::Last);
            assert_eq!(table.charged(), [0], "{body}");
            assert_eq!(table.exchange.take_summary().unwrap().outcome, Outcome::Answered(status), "{body}");
        }
        assert_eq!(table.memory.cooldown.cooling(table.now), usize::from(cools), "{body}");
    }
}

#[test]
fn a_clients_own_errors_take_no_replica_from_others() {
    for status in ["500", "501", "502", "503", "504", "505", "529"] {
        let mut table = Table::set(Profile::Streamed);
        for _ in 0..2 {
            for upstream in ["10.0.0.1:80", "10.0.0.2:80"] {
                table.again();
                released(table.post(&chat("assistant"), &[]));
                table.answer_head(status, "application/json", upstream);
            }
        }
        assert_eq!(table.memory.cooldown.failing(), 0, "{status}");
        let admits = |caller| table.memory.cooldown.admits_for("default/pool/10.0.0.1:80", caller, table.now);
        assert!(admits(Witness { key: 1, tenant: 2 }), "{status}");
        // What the server does not know how to do it does not do anywhere.
        table.again();
        let (mutations, _) = released(table.post(&chat("assistant"), &[]));
        let cluster = if matches!(status, "501" | "505") { "default/pool" } else { "default/spare" };
        assert_eq!(set(&mutations, "x-attache-cluster"), Some(cluster), "{status}");
    }
}

#[test]
fn requests_that_are_refused_do_not_bring_back_a_replica_that_fails() {
    let mut table = Table::set(Profile::Streamed);
    for status in ["500", "400", "500"] {
        for upstream in ["10.0.0.1:80", "10.0.0.2:80"] {
            table.again();
            released(table.post(&chat("assistant"), &[]));
            table.answer_head(status, "application/json", upstream);
        }
    }
    table.again();
    let (mutations, _) = released(table.post(&chat("assistant"), &[]));
    assert_eq!(set(&mutations, "x-attache-cluster"), Some("default/spare"));
}
