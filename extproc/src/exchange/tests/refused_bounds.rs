//! Servers that do not take the bound that we add.

use super::*;
use crate::config::upstream::AnswerBound;
use crate::limit::ServedAt;
use attache_proto::objection::Objection;
use attache_proto::request::BoundName;

const UNSUPPORTED: &str = r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}"#;

const OF_THE_CLIENT: &str = r#"{"error":{"message":"Invalid value: 'x'. Supported values are: 'user'.","type":"invalid_request_error","param":"messages[0].role","code":"invalid_value"}}"#;

/// Sends a request that is granted, and says what its server gets.
fn sent(table: &mut Table, body: &Value) -> Value {
    table.post(body, &[]);
    let (_, bodies) = released(table.decide(|state| Admission::Granted { states: vec![state] }));
    match bodies.as_slice() {
        [Body::Replaced(bytes)] => serde_json::from_slice(bytes).unwrap(),
        [Body::Unchanged] => body.clone(),
        other => panic!("{other:?}"),
    }
}

/// The server refuses, in two pieces.
fn refuses(table: &mut Table, status: &str, body: &str) -> Action {
    let head = headers_of(&[(":status", status), ("content-type", "application/json")]);
    let action = table.exchange.response_headers(&head, End::More, Some("10.0.0.1:80"), table.now).unwrap();
    assert!(matches!(action, Action::Wait), "{action:?}");
    let (first, second) = body.split_at(body.len() / 2);
    for (piece, end) in [(first, End::More), (second, End::More), ("", End::Last)] {
        let action = table.exchange.response_body(&Bytes::from(piece.to_owned()), end, table.now).unwrap();
        if end == End::Last {
            return action;
        }
        assert!(matches!(action, Action::Wait), "{action:?}");
    }
    unreachable!()
}

fn bounds(body: &Value) -> (Option<u64>, Option<u64>) {
    (body["max_tokens"].as_u64(), body["max_completion_tokens"].as_u64())
}

#[test]
fn a_field_that_a_server_does_not_take_is_no_fault_of_the_caller_and_the_next_request_has_another() {
    let mut table = Table::set_capped(100_000);
    assert_eq!(bounds(&sent(&mut table, &chat("metered"))), (Some(12_494), None));
    let Action::Respond(response) = refuses(&mut table, "400", UNSUPPORTED) else { panic!() };
    assert_eq!((response.status, response.reason), (503, "bound_refused"));
    for (name, value) in [("x-should-retry", "true"), ("retry-after", "1")] {
        assert!(response.headers.contains(&(name, value.to_owned())), "{response:?}");
    }
    assert!(!response.body.contains("max_tokens"), "the caller has none: {}", response.body);
    assert_eq!(table.charged(), [0]);
    assert_eq!(table.exchange.take_summary().unwrap().outcome, Outcome::Local { status: 503, reason: "bound_refused" });

    table.again();
    assert_eq!(bounds(&sent(&mut table, &chat("metered"))), (None, Some(12_494)));
    table.answer_head("200", "application/json", "10.0.0.1:80");
    table.answer_body(r#"{"usage":{"prompt_tokens":3,"completion_tokens":4}}"#, End::Last);
    assert_eq!(table.charged(), [7]);
}

#[test]
fn a_refusal_of_the_callers_own_fields_passes_as_it_came_and_teaches_nothing() {
    for (status, text) in [
        ("400", OF_THE_CLIENT.to_owned()),
        ("422", OF_THE_CLIENT.to_owned()),
        ("400", "<html>".to_owned()),
        ("400", format!("{UNSUPPORTED}{}", " ".repeat(20_000))),
    ] {
        let mut table = Table::set_capped(100_000);
        sent(&mut table, &chat("metered"));
        let head = headers_of(&[(":status", status), ("content-type", "application/json")]);
        let action = table.exchange.response_headers(&head, End::More, Some("10.0.0.1:80"), table.now).unwrap();
        assert!(matches!(action, Action::Wait));
        let chunk = Bytes::from(text);
        let action = table.exchange.response_body(&chunk, End::Last, table.now).unwrap();
        let Action::AnswerAll(replies) = action else { panic!("{action:?}") };
        let [Reply::ResponseHeaders(mutations), Reply::ResponseBody(Body::Unchanged, _)] = replies.as_slice() else {
            panic!("{replies:?}")
        };
        assert_eq!(set(mutations, "x-should-retry"), None);
        assert_eq!(table.charged(), [0]);
        table.again();
        assert_eq!(bounds(&sent(&mut table, &chat("metered"))), (Some(12_494), None));
    }
}

#[test]
fn each_chunk_of_a_refusal_that_passes_gets_its_reply_in_order_and_so_do_trailers() {
    let mut table = Table::set_capped(100_000);
    sent(&mut table, &chat("metered"));
    let Action::AnswerAll(replies) = refuses(&mut table, "400", OF_THE_CLIENT) else { panic!() };
    assert!(matches!(
        replies.as_slice(),
        [Reply::ResponseHeaders(_), Reply::ResponseBody(..), Reply::ResponseBody(..), Reply::ResponseBody(..)]
    ));
    assert!(table.exchange.is_over());

    for (text, is_ours) in [(OF_THE_CLIENT, false), (UNSUPPORTED, true)] {
        table.again();
        sent(&mut table, &chat("metered"));
        let head = headers_of(&[(":status", "400")]);
        table.exchange.response_headers(&head, End::More, None, table.now).unwrap();
        table.exchange.response_body(&Bytes::from(text.to_owned()), End::More, table.now).unwrap();
        match table.exchange.response_trailers(table.now).unwrap() {
            Action::Respond(response) => assert!(is_ours && response.status == 503),
            Action::AnswerAll(replies) => {
                assert!(!is_ours);
                assert!(matches!(
                    replies.as_slice(),
                    [Reply::ResponseHeaders(_), Reply::ResponseBody(..), Reply::ResponseTrailers(_)]
                ));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_the_caller_set_is_the_callers_and_an_error_without_a_body_or_an_encoded_one_passes() {
    for body in [
        json!({"model": "metered", "messages": [], "max_tokens": 20_000}),
        json!({"model": "metered", "messages": [], "max_tokens": null}),
    ] {
        let mut table = Table::set_capped(100_000);
        sent(&mut table, &body);
        table.answer_head("400", "application/json", "10.0.0.1:80");
        assert_eq!(table.answer_body(UNSUPPORTED, End::Last).0, Body::Unchanged);
    }
    let mut table = Table::set_capped(100_000);
    sent(&mut table, &chat("metered"));
    let head = headers_of(&[(":status", "400")]);
    let action = table.exchange.response_headers(&head, End::Last, None, table.now).unwrap();
    assert!(matches!(action, Action::Answer(_)));
    table.again();
    sent(&mut table, &chat("metered"));
    let head = headers_of(&[(":status", "400"), ("content-encoding", "gzip")]);
    let action = table.exchange.response_headers(&head, End::More, None, table.now).unwrap();
    assert!(matches!(action, Action::Answer(_)));
}

#[test]
fn a_server_that_takes_neither_field_gets_none_and_one_that_took_it_before_is_not_doubted_for_one_refusal() {
    let mut table = Table::set_capped(100_000);
    for text in [UNSUPPORTED.to_owned(), UNSUPPORTED.replace("max_tokens", "max_completion_tokens")] {
        sent(&mut table, &chat("metered"));
        assert!(matches!(refuses(&mut table, "400", &text), Action::Respond(_)));
        table.again();
    }
    assert_eq!(bounds(&sent(&mut table, &chat("metered"))), (None, None));

    let mut table = Table::set_capped(100_000);
    sent(&mut table, &chat("metered"));
    table.answer_head("200", "application/json", "10.0.0.1:80");
    table.again();
    sent(&mut table, &chat("metered"));
    assert!(matches!(refuses(&mut table, "400", UNSUPPORTED), Action::Respond(_)));
    table.again();
    assert_eq!(bounds(&sent(&mut table, &chat("metered"))), (Some(12_494), None));
}

#[test]
fn a_bound_that_is_too_high_for_the_model_is_lower_the_next_time_and_held_for_no_longer() {
    for (message, bound) in [
        (
            "max_tokens is too large: 12494. This model supports at most 2048 completion tokens, whereas you provided 12494.",
            2_048,
        ),
        // The prompt may have 42 tokens.
        (
            "This model's maximum context length is 8192 tokens. However, you requested 12503 tokens (9 in the messages, 12494 in the completion).",
            8_150,
        ),
    ] {
        let mut table = Table::set_capped(100_000);
        sent(&mut table, &chat("metered"));
        let text = json!({"error": {"message": message}}).to_string();
        assert!(matches!(refuses(&mut table, "400", &text), Action::Respond(_)), "{message}");
        table.again();
        assert_eq!(bounds(&sent(&mut table, &chat("metered"))), (Some(bound), None), "{message}");
    }
}

#[test]
fn where_the_headers_have_gone_the_body_says_whose_fault_it_is_and_sdks_try_again_while_nothing_is_known() {
    let mut table = Table::set_capped(100_000);
    let buffered = |table: &mut Table| {
        table.exchange =
            Exchange::new(Arc::clone(&table.config), table.memory.clone(), Profile::Buffered, 7, table.now);
        let body = chat("metered");
        let head = [(":method", "POST"), (":path", "/v1/chat/completions"), ("api-key", "secret")];
        table.exchange.request_headers(headers_of(&head), End::More, table.now).unwrap();
        let action = table.exchange.request_body(Bytes::from(body.to_string()), End::Last, table.now).unwrap();
        table.note(&action);
        match table.decide(|state| Admission::Granted { states: vec![state] }) {
            Action::Release(mut replies) => match replies.next() {
                Some(Reply::RequestBody(mutations, Body::Replaced(bytes))) => {
                    assert_eq!(set(&mutations, "accept-encoding"), Some("identity"));
                    bounds(&serde_json::from_slice(&bytes).unwrap())
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let length = ("content-length", "9");
    let refusal = |table: &mut Table, text: &str| {
        let head = headers_of(&[(":status", "400"), ("content-type", "application/json"), length]);
        let action = table.exchange.response_headers(&head, End::More, None, table.now).unwrap();
        let Action::Answer(Reply::ResponseHeaders(mutations)) = action else { panic!("{action:?}") };
        assert!(mutations.remove.contains(&length.0));
        let tries_again = set(&mutations, "x-should-retry") == Some("true");
        assert_eq!(table.answer_body(text, End::More).0, Body::Replaced(Bytes::new()));
        let Body::Replaced(body) = table.answer_body("", End::Last).0 else { panic!() };
        assert_eq!(table.charged(), [0]);
        (tries_again, String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(buffered(&mut table), (Some(12_494), None));
    assert_eq!(refusal(&mut table, OF_THE_CLIENT), (true, OF_THE_CLIENT.to_owned()));
    assert_eq!(buffered(&mut table), (Some(12_494), None));
    let (tries_again, body) = refusal(&mut table, UNSUPPORTED);
    assert!(tries_again && body.contains("send the request again") && !body.contains("max_tokens"), "{body}");
    assert_eq!(buffered(&mut table), (None, Some(12_494)));
    table.answer_head("200", "application/json", "");
    assert_eq!(buffered(&mut table), (None, Some(12_494)));
    assert_eq!(refusal(&mut table, OF_THE_CLIENT), (false, OF_THE_CLIENT.to_owned()), "by now it is known");
}

#[test]
fn the_operator_may_say_by_which_field_and_by_how_much() {
    let capped = |answer_bound: AnswerBound, default: Option<u64>| {
        let mut table = Table::set_capped(100_000);
        let mut config = compiled();
        config.backends.iter_mut().for_each(|backend| backend.answer_bound = answer_bound);
        let limit = Limit::clone(&table.config.routes[1].limits[0]);
        config.routes[1].limits = vec![Arc::new(Limit { default_max_tokens: default, ..limit })];
        table.config = Arc::new(config);
        table.again();
        table
    };
    let whole = |bound, default| {
        let mut table = capped(bound, default);
        let sent = bounds(&sent(&mut table, &chat("metered")));
        (sent, table.exchange.lease.as_ref().unwrap().reservation().request().estimate.output_at_most)
    };
    assert_eq!(whole(AnswerBound::MaxCompletionTokens, None), ((None, Some(12_494)), 12_494));
    assert_eq!(whole(AnswerBound::None, None), ((None, None), 12_494));
    assert_eq!(whole(AnswerBound::Fitting, Some(700)), ((Some(700), None), 700));
    assert_eq!(whole(AnswerBound::Fitting, Some(60_000)), ((Some(60_000), None), 60_000));
    // A stream has no more than what is left.
    for (default, bound) in [(None, None), (Some(60_000), Some(60_000)), (Some(200_000), Some(99_958))] {
        let mut table = capped(AnswerBound::Fitting, default);
        let stream = json!({"model": "metered", "stream": true, "messages": [{"role": "user", "content": "Hello"}]});
        assert_eq!(bounds(&sent(&mut table, &stream)).0, bound, "{default:?}");
    }
}

#[test]
fn what_the_operator_takes_out_of_bodies_is_not_added_to_them() {
    let removed = |names: &[&str]| {
        let mut table = Table::set_capped(100_000);
        let mut config = compiled();
        config.routes[1].limits = table.config.routes[1].limits.clone();
        let mutation = Arc::make_mut(&mut config.routes[1].rules[0].targets[0].mutation);
        names.iter().for_each(|name| mutation.body.remove(name));
        table.config = Arc::new(config);
        table.again();
        bounds(&sent(&mut table, &chat("metered")))
    };
    assert_eq!(removed(&["max_tokens"]), (None, Some(12_494)));
    assert_eq!(removed(&["max_completion_tokens"]), (Some(12_494), None));
    assert_eq!(removed(&["max_tokens", "max_completion_tokens"]), (None, None));
}

#[test]
fn a_prompt_that_is_too_long_by_itself_is_the_callers() {
    let mut table = Table::set_capped(100_000);
    let refusal = |tokens: u64| {
        let message = format!(
            "This model's maximum context length is 8192 tokens. However, you requested {} tokens (9000 in the messages, \
             {tokens} in the completion).",
            9_000 + tokens
        );
        json!({"error": {"message": message}}).to_string()
    };
    let first = bounds(&sent(&mut table, &chat("metered"))).0.unwrap();
    assert!(matches!(refuses(&mut table, "400", &refusal(first)), Action::Respond(_)));
    table.again();
    let second = bounds(&sent(&mut table, &chat("metered"))).0.unwrap();
    assert!(second < first);
    // It was asked for no more than the context has room for, and the caller is to hear that it has none.
    assert!(matches!(refuses(&mut table, "400", &refusal(second)), Action::AnswerAll(_)));
}

#[test]
fn a_context_that_is_small_takes_nothing_from_streams_under_a_wide_limit() {
    let mut table = Table::set_capped(100_000);
    let stream = json!({"model": "metered", "stream": true, "messages": []});
    let server = ServedAt::new("default/pool", "metered");
    table.memory.experience.bounds().refused(
        server,
        BoundName::MaxTokens,
        Objection::MoreThanContext(8_192),
        table.now,
    );
    assert_eq!(bounds(&sent(&mut table, &stream)), (None, None));
}

#[test]
fn a_stream_is_given_no_bound_that_its_server_does_not_take() {
    let held = |fields: Value| {
        let mut table = Table::set_capped(1_000);
        // What is usual for the key are five tokens.
        for _ in 0..8 {
            sent(&mut table, &chat("metered"));
            table.answer_head("200", "application/json", "10.0.0.1:80");
            table.answer_body(r#"{"usage":{"prompt_tokens":3,"completion_tokens":5}}"#, End::Last);
            table.again();
        }
        let mut body = json!({"model": "metered", "stream": true, "messages": []});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        table.post(&body, &[]);
        table.asked.as_ref().unwrap().estimate.output_at_most
    };
    assert_eq!(held(json!({})), 16);
    assert_eq!(held(json!({"n": 2})), 32);
    assert_eq!(held(json!({"max_tokens": 9})), 9);
    assert_eq!(held(json!({"min_tokens": 300})), 300);
    assert_eq!(held(json!({"thinking_budget": 500})), 516);
}

#[test]
fn an_answer_that_the_client_wants_longer_than_what_is_left_is_our_429() {
    let mut table = Table::set_capped(200);
    let body = json!({"model": "metered", "messages": [], "min_tokens": 300});
    table.post(&body, &[]);
    let action = table.decide(|state| Admission::Refused { by: 0, states: vec![state] });
    assert_eq!(refused(action).0, 429);
}

#[test]
fn a_model_that_thinks_gets_more_room_and_one_whose_answer_was_kept_short_more_the_next_time() {
    let mut table = Table::set_capped(40_000);
    let thinking = json!({"model": "metered", "messages": [], "thinking_budget": 2_000});
    assert_eq!(bounds(&sent(&mut table, &thinking)).0, Some(19_984));
    table.again();
    assert_eq!(bounds(&sent(&mut table, &chat("metered"))).0, Some(4_994));
    table.answer_head("200", "application/json", "10.0.0.1:80");
    table.answer_body(r#"{"usage":{"prompt_tokens":3,"completion_tokens":4994}}"#, End::Last);
    table.again();
    assert_eq!(bounds(&sent(&mut table, &chat("metered"))).0, Some(9_988));
}

#[test]
fn less_than_a_server_takes_is_our_429_and_no_bound_of_less_goes_out() {
    let responses = |left: u64| {
        let mut table = Table::set_capped(1_000);
        let body = json!({"model": "metered", "input": "Hello", "max_output_tokens": 900}).to_string();
        let path = [(":method", "POST"), (":path", "/v1/responses"), ("authorization", "Bearer secret")];
        table.exchange.request_headers(headers_of(&path), End::More, table.now).unwrap();
        let action = table.exchange.request_body(Bytes::from(body), End::Last, table.now).unwrap();
        table.note(&action);
        let prompt = table.asked.as_ref().unwrap().estimate.input_at_most;
        let used = move |state: CounterState| CounterState { settled: 1_000 - prompt - left, ..state };
        let action = table.decide(|state| Admission::Refused { by: 0, states: vec![used(state)] });
        match action {
            Action::Respond(response) => Err(response.status),
            Action::Reserve(request) => {
                table.asked = Some(request);
                let (_, bodies) = released(table.decide(|state| Admission::Granted { states: vec![used(state)] }));
                let [Body::Replaced(bytes)] = bodies.as_slice() else { panic!("{bodies:?}") };
                Ok(serde_json::from_slice::<Value>(bytes).unwrap()["max_output_tokens"].as_u64().unwrap())
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((responses(15), responses(16), responses(700)), (Err(429), Ok(16), Ok(700)));
}
