//! Trailers end bodies.

use super::*;

fn buffered_head(table: &mut Table) {
    let head = headers_of(&[
        (":method", "POST"),
        (":path", "/v1/messages"),
        ("authorization", "Bearer secret"),
        ("anthropic-version", "2023-06-01"),
    ]);
    match table.exchange.request_headers(head, End::More, table.now).unwrap() {
        Action::Answer(Reply::RequestHeaders(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_streamed_body_is_complete_with_its_trailers_which_are_answered_last() {
    let mut table = Table::set(Profile::Streamed);
    let head =
        headers_of(&[(":method", "POST"), (":path", "/v1/chat/completions"), ("authorization", "Bearer secret")]);
    table.exchange.request_headers(head, End::More, table.now).unwrap();
    let body = Bytes::from(chat("assistant").to_string());
    assert!(matches!(table.exchange.request_body(body, End::More, table.now), Ok(Action::Wait)));
    let Ok(Action::Release(replies)) = table.exchange.request_trailers(table.now) else { panic!("no release") };
    let replies: Vec<_> = replies.collect();
    let [Reply::RequestHeaders(_), Reply::RequestBody(_, Body::Replaced(_)), Reply::RequestTrailers] =
        replies.as_slice()
    else {
        panic!("{replies:?}")
    };
}

#[test]
fn a_buffered_body_is_complete_though_it_does_not_say_so_and_trailers_come_after_it() {
    let mut table = Table::set(Profile::Buffered);
    buffered_head(&mut table);
    let body = Bytes::from(json!({"model": "assistant", "max_tokens": 5, "messages": []}).to_string());
    let Ok(Action::Release(replies)) = table.exchange.request_body(body, End::More, table.now) else {
        panic!("no release")
    };
    assert_eq!(replies.count(), 1);
    match table.exchange.request_trailers(table.now).unwrap() {
        Action::Answer(Reply::RequestTrailers) => {}
        other => panic!("{other:?}"),
    }
    assert!(table.exchange.is_released());
}

#[test]
fn trailers_without_a_body_are_refused_in_the_callers_form() {
    let mut table = Table::set(Profile::Buffered);
    buffered_head(&mut table);
    let (status, reason, body) = refused(table.exchange.request_trailers(table.now).unwrap());
    assert_eq!((status, reason, &body["type"]), (400, "no_body", &json!("error")));
}

#[test]
fn an_answer_that_ends_in_trailers_is_counted_to_its_end() {
    let mut table = Table::set(Profile::Streamed);
    table.post(&chat("metered"), &[]);
    released(table.admit());
    table.answer_head("200", "application/json", "10.0.0.1:80");
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":9,"total_tokens":29}}"#;
    table.answer_body(usage, End::More);
    match table.exchange.response_trailers(table.now).unwrap() {
        Action::Answer(Reply::ResponseTrailers(_)) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(table.charged(), [29]);
    let summary = table.exchange.take_summary().unwrap();
    assert!(matches!(summary.usage, Some(Counted::Reported(usage)) if usage.total == 29));
}
