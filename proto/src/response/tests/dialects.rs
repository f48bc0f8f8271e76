use super::*;

/// What is counted of a stream of these events, however it is cut.
fn counted_events(operation: Operation, events: &[&str]) -> Counted {
    let text: String = events.iter().map(|event| format!("event: x\ndata: {event}\n\n")).collect();
    let count = |at: usize| {
        let mut scanner = ResponseScanner::new(operation, BodyFormat::EventStream, UsageVisibility::Keep);
        let (left, right) = text.as_bytes().split_at(at);
        assert_eq!(scanner.feed(&Bytes::copy_from_slice(left), EndOfStream::More), Output::Unchanged);
        assert_eq!(scanner.feed(&Bytes::copy_from_slice(right), EndOfStream::End), Output::Unchanged);
        scanner.counted()
    };
    let whole = count(0);
    assert!((0..=text.len()).all(|at| count(at) == whole));
    whole
}

#[test]
fn a_responses_stream_counts_its_deltas_and_the_usage_at_its_end() {
    let counted = counted_events(Operation::Responses, &[
        r#"{"type":"response.created","response":{"id":"r","model":"m-1","usage":null,"output":[]}}"#,
        r#"{"type":"response.output_text.delta","item_id":"i","delta":"Hello"}"#,
        r#"{"type":"response.output_text.delta","delta":""}"#,
        r#"{"type":"response.output_text.done","text":"Hello"}"#,
        r#"{"type":"response.completed","response":{"model":"m-1","output":[{"usage":{"input_tokens":1}}],
            "usage":{"input_tokens":20,"input_tokens_details":{"cached_tokens":16},"output_tokens":5,"total_tokens":25}}}"#
            .replace('\n', "")
            .as_str(),
    ]);
    let usage = Usage { input: 20, output: 5, total: 25, cached_input: 16, ..Usage::default() };
    assert_eq!((counted.usage, counted.content_events, counted.malformed), (Some(usage), 1, false));
    assert_eq!(counted.model.as_deref(), Some("m-1"));
}

#[test]
fn anthropics_stream_has_its_input_at_the_start_and_its_output_at_the_end() {
    let counted = counted_events(
        Operation::Messages,
        &[
            r#"{"type":"message_start","message":{"model":"m-1","content":[],"usage":{"input_tokens":4,"cache_creation_input_tokens":100,"cache_read_input_tokens":2000,"output_tokens":1}}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}"#,
            r#"{"type":"message_stop"}"#,
        ],
    );
    let usage =
        Usage { input: 2104, output: 15, total: 2119, cached_input: 2000, cache_creation_input: 100, reasoning: 0 };
    assert_eq!((counted.usage, counted.content_events, counted.malformed), (Some(usage), 3, false));
    assert_eq!(counted.model.as_deref(), Some("m-1"));
}

#[test]
fn whole_answers_of_the_other_dialects_have_their_usage_at_the_root() {
    let text =
        r#"{"type":"message","model":"m","usage":{"input_tokens":4,"cache_read_input_tokens":6,"output_tokens":2}}"#;
    let usage = Usage { input: 10, output: 2, total: 12, cached_input: 6, ..Usage::default() };
    assert_eq!(json_answer(Operation::Messages, [text.as_bytes()]).usage, Some(usage));
    let text = r#"{"object":"response","model":"m","output":[],"usage":{"input_tokens":4,"output_tokens":2,"total_tokens":6}}"#;
    let usage = Usage { input: 4, output: 2, total: 6, ..Usage::default() };
    assert_eq!(json_answer(Operation::Responses, [text.as_bytes()]).usage, Some(usage));
}
