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

/// Events with content, and the tokens of output that are seen in them.
fn floor(operation: Operation, event: &str) -> (u64, u64) {
    let counted = counted_events(operation, &[event]);
    assert!(!counted.malformed, "{event}");
    (counted.content_events, counted.output_tokens)
}

#[test]
fn every_kind_of_output_of_the_responses_api_counts_for_a_token() {
    for kind in [
        "output_text.delta",
        "refusal.delta",
        "reasoning_text.delta",
        "reasoning_summary_text.delta",
        "function_call_arguments.delta",
        "custom_tool_call_input.delta",
        "mcp_call_arguments.delta",
        "code_interpreter_call_code.delta",
        "audio.transcript.delta",
    ] {
        let event = |delta: &str| format!(r#"{{"type":"response.{kind}","sequence_number":4,"delta":{delta}}}"#);
        assert_eq!(floor(Operation::Responses, &event("\"a\"")), (1, 1), "{kind}");
        assert_eq!(floor(Operation::Responses, &event("\"\"")), (0, 0), "{kind}");
        let long = format!("\"{}\"", "x".repeat(399));
        assert_eq!(floor(Operation::Responses, &event(&long)), (1, 100), "{kind}");
    }
    let sound = "x".repeat(4000);
    for event in [
        format!(r#"{{"type":"response.audio.delta","delta":"{sound}"}}"#),
        format!(r#"{{"delta":"{sound}","type":"response.audio.delta"}}"#),
    ] {
        assert_eq!(floor(Operation::Responses, &event), (1, 1));
    }
    let of_a_tool = r#"{"type":"response.shell_call_output_content.delta","delta":{"stdout":"a","stderr":""}}"#;
    assert_eq!(floor(Operation::Responses, of_a_tool), (0, 0), "a model did not write it");
    let done = r#"{"type":"response.output_text.done","text":"again"}"#;
    assert_eq!(floor(Operation::Responses, done), (0, 0));
}

#[test]
fn every_kind_of_output_of_anthropics_counts_for_a_token() {
    for (event, tokens) in [
        (r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#, 1),
        (r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}"#, 1),
        (r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}"#, 1),
        (r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":""}}"#, 0),
        (r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"EqQBCg"}}"#, 0),
        (r#"{"type":"content_block_start","content_block":{"type":"text","text":""}}"#, 0),
        (r#"{"type":"content_block_start","content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#, 1),
        (
            r#"{"type":"content_block_start","content_block":{"type":"redacted_thinking","data":"EqQBCgAAAAAAAAAAAAAAAA"}}"#,
            1,
        ),
        (r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#, 0),
        (r#"{"type":"ping","text":"a"}"#, 0),
    ] {
        assert_eq!(floor(Operation::Messages, event), (tokens, tokens), "{event}");
    }
}

#[test]
fn each_choice_with_content_counts_for_a_token_and_for_more_where_it_obviously_has_more() {
    let chat = |choices: &str| floor(Operation::ChatCompletions, &format!(r#"{{"choices":{choices}}}"#));
    assert_eq!(chat(r#"[{"delta":{"content":"a"}},{"delta":{"content":"b"}},{"delta":{"content":""}}]"#), (1, 2));
    assert_eq!(chat(r#"[{"delta":{"content":"a","reasoning":"b"}}]"#), (1, 1));
    let words = r#"{"delta":{"content":"not so long"}}"#;
    assert_eq!(chat(&format!("[{}]", [words; 5].join(","))), (1, 5), "each is one, as short as it is");
    let long = format!(r#"{{"delta":{{"content":"{}"}}}}"#, "x".repeat(39));
    assert_eq!(chat(&format!("[{long},{words},{long}]")), (1, 21));
    assert_eq!(chat(&format!("[[{long}],5,null,{words}]")), (1, 1), "only an object is a choice");
    assert_eq!(floor(Operation::Completions, r#"{"choices":[{"text":"a"},{"text":"b"}]}"#), (1, 2));
}

#[test]
fn transcripts_and_speech_have_floors_in_openais_form_and_vllms() {
    assert_eq!(floor(Operation::Transcriptions, r#"{"type":"transcript.text.delta","delta":" Mary"}"#), (1, 1));
    assert_eq!(floor(Operation::Transcriptions, r#"{"choices":[{"delta":{"content":" Mary"}}]}"#), (1, 1));
    let sound = format!(r#"{{"type":"speech.audio.delta","audio":"{}"}}"#, "x".repeat(4000));
    assert_eq!(floor(Operation::Speech, &sound), (1, 1));
    assert_eq!(floor(Operation::Embeddings, r#"{"choices":[{"delta":{"content":"a"}}],"delta":"a"}"#), (0, 0));
}

#[test]
fn what_came_after_the_last_usage_leaves_it_open() {
    let usage = r#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#;
    let content = r#"{"choices":[{"delta":{"content":"b"}}]}"#;
    let counted = |events: &[&str]| {
        let counted = counted_events(Operation::ChatCompletions, events);
        (counted.usage.unwrap().output, counted.gap.output, counted.output_tokens)
    };
    assert_eq!(counted(&[usage]), (1, false, 1));
    assert_eq!(counted(&[usage, content, content]), (1, true, 3));
    assert_eq!(counted(&[content, content, usage]), (1, false, 3));
    assert_eq!(counted(&[content, usage, content, usage]), (1, false, 4));
}

#[test]
fn an_error_and_an_end_without_done_leave_what_was_seen() {
    let content = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let error = "data: {\"error\":{\"message\":\"no\",\"code\":500},\"choices\":[]}\n\n";
    let (sent, counted) = stream([[content, content, error].concat().as_bytes()], UsageVisibility::Remove);
    assert_eq!(sent, [content, content, error].concat().as_bytes());
    assert_eq!((counted.content_events, counted.output_tokens, counted.events), (2, 2, 3));
    assert_eq!((counted.usage, counted.done, counted.malformed), (None, false, false));
}
