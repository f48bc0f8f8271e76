//! Answers that end before they say what they used, or do not say all of it.

use super::*;

/// A request of another API for the model with a limit, whose streamed answer has begun.
fn streaming(mut table: Table, path: &str) -> Table {
    let head = headers_of(&[(":method", "POST"), (":path", path), ("x-api-key", "secret")]);
    table.exchange.request_headers(head, End::More, table.now).unwrap();
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let body = json!({"model": "metered", "stream": true, "max_tokens": 900, "input": "Hello", "messages": messages});
    let action = table.exchange.request_body(Bytes::from(body.to_string()), End::Last, table.now).unwrap();
    table.note(&action);
    released(table.decide(|state| Admission::Granted { states: vec![state] }));
    table.answer_head("200", "text/event-stream", "10.0.0.1:80");
    table
}

fn event(data: &Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap())
}

#[test]
fn anthropics_answer_that_breaks_off_costs_the_input_that_it_told_and_the_events_that_came() {
    let mut table = streaming(Table::set(Profile::Streamed), "/v1/messages");
    let usage = json!({"input_tokens": 25, "cache_read_input_tokens": 100, "output_tokens": 1});
    table.answer_body(&event(&json!({"type": "message_start", "message": {"usage": usage}})), End::More);
    for _ in 0..6 {
        let delta = json!({"type": "thinking_delta", "thinking": "hm"});
        table.answer_body(&event(&json!({"type": "content_block_delta", "delta": delta})), End::More);
    }
    table.exchange.gone(table.now);
    assert_eq!(table.charged(), [125 + 1 + 6]);
    let summary = table.exchange.take_summary().unwrap();
    assert!(matches!(summary.usage, Some(Counted::Estimated(usage)) if usage.cached_input == 100));
}

#[test]
fn figures_that_are_none_are_estimated_and_the_others_hold() {
    for (usage, charged) in [
        (json!({"prompt_tokens": 30, "completion_tokens": -5, "total_tokens": -5}), 30 + 100),
        (json!({"prompt_tokens": 30, "completion_tokens": 1.5, "total_tokens": 20}), 30 + 100),
        (json!({"prompt_tokens": "x", "completion_tokens": 50}), 2 + 50),
        (json!({"prompt_tokens": 30, "completion_tokens": 0, "total_tokens": 30}), 30),
        (json!({"prompt_tokens": 30, "completion_tokens": 50, "total_tokens": 1}), 80),
    ] {
        let mut table = Table::set(Profile::Streamed);
        let body = json!({"model": "metered", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]});
        table.post(&body, &[]);
        released(table.admit());
        table.answer_head("200", "application/json", "10.0.0.1:80");
        table.answer_body(&json!({"choices": [], "usage": usage}).to_string(), End::Last);
        assert_eq!(table.charged(), [charged], "{usage}");
    }
}

#[test]
fn a_stream_whose_server_counts_no_output_costs_the_events_that_came() {
    let mut table = streaming(Table::set(Profile::Streamed), "/v1/chat/completions");
    let usage = json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0});
    for _ in 0..3 {
        let chunk = json!({"choices": [{"delta": {"content": "x"}}], "usage": usage});
        table.answer_body(&format!("data: {chunk}\n\n"), End::More);
    }
    table.answer_body("data: [DONE]\n\n", End::Last);
    assert_eq!(table.charged(), [3]);
}

#[test]
fn a_responses_stream_that_is_cut_ends_in_its_own_error_event() {
    let mut table = streaming(Table::set_capped(554), "/v1/responses");
    let mut events = vec![json!({"type": "response.created", "response": {"usage": null}})];
    events.extend((0..600).map(|_| json!({"type": "response.output_text.delta", "delta": "x"})));
    let text: String = events.iter().map(event).collect();
    let chunk = Bytes::from(text.clone());
    let mut action = table.exchange.response_body(&chunk, End::More, table.now).unwrap();
    while let Some(growth) = table.exchange.poll_growth() {
        let state = CounterState {
            bucket: 0,
            epoch: 0,
            settled: 0,
            previous: 0,
            held: 0,
            left: Duration::from_secs(60),
            length: Duration::from_secs(60),
        };
        action = table.exchange.grown(&growth, &Ok(Admission::Refused { by: 0, states: vec![state] }), table.now);
    }
    let Action::Answer(Reply::ResponseBody(Body::Replaced(bytes), _)) = action else { panic!("{action:?}") };
    let sent = String::from_utf8(bytes.to_vec()).unwrap();
    let (passed, error) = sent.split_once("event: error\ndata: ").unwrap();
    assert!(text.starts_with(passed));
    let error: Value = serde_json::from_str(error.strip_suffix("\n\n").unwrap()).unwrap();
    assert_eq!((&error["type"], &error["param"]), (&json!("error"), &Value::Null));
    assert_eq!(error["sequence_number"], json!(passed.matches("\n\n").count()));
    assert_eq!(
        (&error["code"], &error["error"]["code"]),
        (&json!("rate_limit_exceeded"), &json!("rate_limit_exceeded"))
    );
    assert_eq!(error["message"], error["error"]["message"]);
}
