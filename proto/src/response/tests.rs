use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const CONTENT: &str = r#"data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"hi"}}],"usage":null}"#;
const USAGE: &str = concat!(
    r#"data: {"id":"c","model":"m","choices":[],"#,
    r#""usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}"#
);

fn counted_usage() -> Usage {
    Usage { input: 7, output: 3, total: 10, ..Usage::default() }
}

/// What comes out of a chat answer's stream that arrives in these chunks, and what was counted.
fn stream<'a>(chunks: impl IntoIterator<Item = &'a [u8]>, visibility: UsageVisibility) -> (Vec<u8>, Counted) {
    let mut scanner = ResponseScanner::new(Operation::ChatCompletions, BodyFormat::EventStream, visibility);
    let mut sent = Vec::new();
    let mut chunks = chunks.into_iter().peekable();
    while let Some(chunk) = chunks.next() {
        let end = if chunks.peek().is_some() { EndOfStream::More } else { EndOfStream::End };
        let chunk = Bytes::copy_from_slice(chunk);
        match scanner.feed(&chunk, end) {
            Output::Unchanged => sent.extend_from_slice(&chunk),
            Output::Replaced(bytes) => sent.extend_from_slice(&bytes),
            Output::Withheld { .. } => panic!("nothing bounds it"),
        }
    }
    (sent, scanner.counted())
}

fn removed(text: &str) -> (String, Counted) {
    let (sent, counted) = stream([text.as_bytes()], UsageVisibility::Remove);
    (String::from_utf8(sent).unwrap(), counted)
}

fn json_answer<'a>(operation: Operation, chunks: impl IntoIterator<Item = &'a [u8]>) -> Counted {
    let mut scanner = ResponseScanner::new(operation, BodyFormat::Json, UsageVisibility::Remove);
    for chunk in chunks {
        assert_eq!(scanner.feed(&Bytes::copy_from_slice(chunk), EndOfStream::More), Output::Unchanged);
    }
    assert_eq!(scanner.feed(&Bytes::new(), EndOfStream::End), Output::Unchanged);
    scanner.counted()
}

#[test]
fn the_format_is_the_content_types_without_its_parameters() {
    let format = BodyFormat::from_content_type;
    assert_eq!(format("application/json"), Some(BodyFormat::Json));
    assert_eq!(format("Application/JSON; charset=utf-8"), Some(BodyFormat::Json));
    assert_eq!(format(" text/event-stream ;charset=utf-8"), Some(BodyFormat::EventStream));
    assert_eq!(format("text/html"), None);
    assert_eq!(format(""), None);
}

#[test]
fn a_json_answers_usage_is_found_wherever_it_stands_and_however_it_is_cut() {
    let usage = r#""usage": {"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}"#;
    let decoys = r#""choices":[{"usage":{"prompt_tokens":1},"message":{"content":"\"usage\":{\"prompt_tokens\":1}"}}],
        "x":{"usage":{"prompt_tokens":2}},"y":["usage",{"prompt_tokens":3}],"z":"usage""#;
    for text in [
        format!(r#"{{{usage},{decoys},"model":"m\u00e9"}}"#),
        format!(r#" {{ {decoys} , {usage},"model":"m\u00e9"}} "#),
        format!(r#"{{"model":"mé",{decoys},{usage}}}"#),
        format!(r#"{{"model":"mé",{decoys},{}}}"#, usage.replace("usage", r"us\u0061ge")),
    ] {
        for at in 0..=text.len() {
            let (left, right) = text.as_bytes().split_at(at);
            let counted = json_answer(Operation::ChatCompletions, [left, right]);
            let expected =
                Counted { usage: Some(counted_usage()), model: Some("mé".to_owned()), ..Counted::default() };
            assert_eq!(counted, expected, "{text} cut at {at}");
        }
    }
}

#[test]
fn of_two_usages_the_last_one_counts_and_null_is_none() {
    let usage = |text: &str| json_answer(Operation::Embeddings, [text.as_bytes()]).usage;
    let expected = Usage { input: 8, total: 8, ..Usage::default() };
    assert_eq!(usage(r#"{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":8}}"#), Some(expected));
    assert_eq!(usage(r#"{"usage":null}"#), None);
    assert_eq!(usage(r#"{"usage":[{"prompt_tokens":1}]}"#), None);
    assert_eq!(usage(r#"[{"usage":{"prompt_tokens":1}}]"#), None);
    assert_eq!(usage(&format!(r#"{{"usage":{{"x":"{}","prompt_tokens":1}}}}"#, "x".repeat(5000))), None);
}

#[test]
fn a_json_answer_that_is_broken_says_so_and_keeps_what_was_found() {
    let answer = |text: &str| json_answer(Operation::Completions, [text.as_bytes()]);
    for text in [
        "",
        "null",
        "[]",
        "x",
        "{",
        "{}}",
        "{} x",
        r#"{"a":}"#,
        r#"{"a" 1}"#,
        r#"{"a":1,}"#,
        r#"{"a":[1}}"#,
        r#"{"a":"#,
        r#"{"a":1 2}"#,
        r#"{,}"#,
        "\"\"",
        "5",
    ] {
        assert_eq!(answer(text), Counted { malformed: true, ..Counted::default() }, "{text}");
    }
    let cut = answer(r#"{"usage":{"prompt_tokens":7,"completion_tokens":3},"choices":[{"#);
    assert_eq!(cut, Counted { usage: Some(counted_usage()), malformed: true, ..Counted::default() });
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    assert!(answer(&deep).malformed);
    assert!(!answer(" {} \n").malformed);
}

#[test]
fn a_streams_usage_event_is_removed_with_its_empty_line_and_nothing_else_is() {
    let text = format!(": hello\n\n{CONTENT}\n\n: before\n{USAGE}\n\ndata: [DONE]\n\n");
    let (sent, counted) = removed(&text);
    assert_eq!(sent, format!(": hello\n\n{CONTENT}\n\n: before\ndata: [DONE]\n\n"));
    let expected = Counted {
        usage: Some(counted_usage()),
        content_events: 1,
        output_tokens: 3,
        events: 3,
        done: true,
        model: Some("m".to_owned()),
        malformed: false,
    };
    assert_eq!(counted, expected);

    let (sent, kept) = stream([text.as_bytes()], UsageVisibility::Keep);
    assert_eq!(sent, text.as_bytes());
    assert_eq!(kept, expected);
}

#[test]
fn the_same_bytes_come_out_wherever_the_stream_is_cut() {
    for line_end in ["\n", "\r", "\r\n"] {
        let event = |text: &str| format!("{text}\n\n").replace('\n', line_end);
        let (before, usage, after) = (event(CONTENT), event(&format!("id: 5\n{USAGE}")), event("data: [DONE]"));
        let text = format!(": é漢😀{line_end}{before}{usage}{after}");
        let kept = format!(": é漢😀{line_end}{before}{after}");
        let (_, expected) = stream([text.as_bytes()], UsageVisibility::Keep);
        assert_eq!((expected.usage, expected.events), (Some(counted_usage()), 3));
        for at in 0..=text.len() {
            let (left, right) = text.as_bytes().split_at(at);
            let (sent, counted) = stream([left, right], UsageVisibility::Remove);
            assert_eq!(String::from_utf8(sent).unwrap(), kept, "cut at {at}");
            assert_eq!(counted, expected, "cut at {at}");
            let (sent, counted) = stream([left, right], UsageVisibility::Keep);
            assert_eq!((sent.as_slice(), counted), (text.as_bytes(), expected.clone()), "cut at {at}");
        }
        let (sent, counted) = stream(text.as_bytes().chunks(1), UsageVisibility::Remove);
        assert_eq!((sent.as_slice(), counted), (kept.as_bytes(), expected));
    }
}

#[test]
fn an_event_with_choices_or_without_a_usage_object_stays() {
    for event in [
        r#"{"choices":[{"delta":{}}],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#,
        r#"{"usage":{"prompt_tokens":7,"completion_tokens":3}}"#,
        r#"{"choices":null,"usage":{"prompt_tokens":7,"completion_tokens":3}}"#,
        r#"{"choices":[],"prompt_filter_results":[],"usage":null}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":7"#,
    ] {
        let text = format!("data: {event}\n\n");
        assert_eq!(removed(&text).0, text);
    }
    let removed_too = r#"data: {"usage":{},"object":"x","choices": [ ]}"#;
    assert_eq!(removed(&format!("{removed_too}\n\n")).0, "");
}

#[test]
fn the_last_usage_of_a_stream_counts() {
    let first = CONTENT.replace("null", r#"{"prompt_tokens":7,"completion_tokens":1}"#);
    let (sent, counted) = removed(&format!("{first}\n\n{CONTENT}\n\n{USAGE}\n\n{CONTENT}\n\n"));
    assert_eq!(sent, format!("{first}\n\n{CONTENT}\n\n{CONTENT}\n\n"));
    assert_eq!((counted.usage, counted.content_events), (Some(counted_usage()), 3));
}

#[test]
fn content_events_are_those_with_content() {
    let count = |operation, choices: &str| {
        let mut scanner = ResponseScanner::new(operation, BodyFormat::EventStream, UsageVisibility::Keep);
        let event = format!("data: {{\"choices\":{choices}}}\n\n");
        scanner.feed(&Bytes::from(event), EndOfStream::End);
        let counted = scanner.counted();
        assert!(!counted.malformed, "{choices}");
        counted.content_events
    };
    for choices in [
        r#"[{"delta":{"content":"a"}}]"#,
        r#"[{"delta":{"role":"assistant","content":" "}}]"#,
        r#"[{"delta":{"content":"\n"}}]"#,
        r#"[{"delta":{}},{"delta":{"reasoning_content":"a"}}]"#,
        r#"[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]"#,
        r#"[{"delta":{"content":{"a":1}}}]"#,
    ] {
        assert_eq!(count(Operation::ChatCompletions, choices), 1, "{choices}");
    }
    for choices in [
        "[]",
        "null",
        "{}",
        r#"[{"delta":{"role":"assistant","content":""}}]"#,
        r#"[{"delta":{"content":null,"tool_calls":[ ]},"finish_reason":"stop"}]"#,
        r#"[{"content":"a","text":"a"}]"#,
        r#"[[{"delta":{"content":"a"}}]]"#,
        r#"[{"x":{"content":"a"}}]"#,
    ] {
        assert_eq!(count(Operation::ChatCompletions, choices), 0, "{choices}");
    }
    assert_eq!(count(Operation::Completions, r#"[{"text":"a"}]"#), 1);
    assert_eq!(count(Operation::Completions, r#"[{"text":""}]"#), 0);
}

#[test]
fn a_chunk_without_a_cut_event_is_unchanged() {
    let mut scanner =
        ResponseScanner::new(Operation::ChatCompletions, BodyFormat::EventStream, UsageVisibility::Remove);
    let mut feed = |text: String| scanner.feed(&Bytes::from(text), EndOfStream::More);
    assert_eq!(feed(format!("{CONTENT}\n\n{CONTENT}\n\n")), Output::Unchanged);
    assert_eq!(feed(String::new()), Output::Unchanged);
    assert_eq!(feed(": comment".to_owned()), Output::Unchanged);
    assert_eq!(feed(format!(" goes on\n{CONTENT}\n\n")), Output::Unchanged);
    assert_eq!(feed(format!("{CONTENT}\n\ndata: {{")), Output::Replaced(Bytes::from(format!("{CONTENT}\n\n"))));
    assert_eq!(feed("}".to_owned()), Output::Replaced(Bytes::new()));
    assert_eq!(feed("\n\n".to_owned()), Output::Replaced(Bytes::from_static(b"data: {}\n\n")));
}

#[test]
fn an_event_too_long_to_be_the_usage_event_is_not_held_back() {
    let long = USAGE.replace("\"id\":\"c\"", &format!("\"id\":\"{}\"", "c".repeat(1 << 20)));
    let text = format!("{long}\n\n{USAGE}\n\n");
    for size in [1000, 5000, text.len()] {
        let mut scanner =
            ResponseScanner::new(Operation::ChatCompletions, BodyFormat::EventStream, UsageVisibility::Remove);
        let (mut came, mut went) = (0, 0);
        for chunk in text.as_bytes().chunks(size) {
            came += chunk.len();
            went += match scanner.feed(&Bytes::copy_from_slice(chunk), EndOfStream::More) {
                Output::Unchanged => chunk.len(),
                Output::Replaced(bytes) => bytes.len(),
                Output::Withheld { .. } => panic!("nothing bounds it"),
            };
            assert!(came - went <= 16 * 1024, "{} bytes are held back", came - went);
        }
        assert_eq!(went, long.len() + 2);
        assert_eq!(scanner.counted().usage, Some(counted_usage()));
        assert!(!scanner.counted().malformed);
    }
}

#[test]
fn an_event_that_breaks_off_is_passed_on_as_it_came_and_its_usage_counts() {
    for (cut, malformed) in
        [(USAGE.to_owned(), false), (format!("{USAGE}\n"), false), (USAGE[..USAGE.len() - 1].to_owned(), true)]
    {
        let (start, rest) = cut.as_bytes().split_at(9);
        let chunks = [start, rest];
        let (sent, counted) = stream(chunks, UsageVisibility::Remove);
        assert_eq!(sent, cut.as_bytes());
        assert_eq!((counted.usage, counted.malformed), (Some(counted_usage()), malformed), "{cut}");
    }
    let (sent, counted) = removed("data: [DONE]\n");
    assert_eq!((sent.as_str(), counted.done, counted.malformed), ("data: [DONE]\n", true, false));
    let (sent, counted) = removed("data: {\"choices\":[{\"de");
    assert_eq!((sent.as_str(), counted.events, counted.malformed), ("data: {\"choices\":[{\"de", 0, true));
}

#[test]
fn garbage_passes_through_and_is_counted() {
    for garbage in ["data: <html>\n\n", "data: {]\n\n", "data: 5\n\n", "data: {}{}\n\n", "data: [DONE!]\n\n"] {
        let text = format!("{garbage}{CONTENT}\n\n");
        let (sent, counted) = removed(&text);
        assert_eq!(sent, text);
        assert_eq!((counted.malformed, counted.content_events, counted.done), (true, 1, false), "{garbage}");
    }
    let (_, counted) = removed("data:\n\nevent: ping\n\ndata: [DONE] \n\n");
    assert_eq!((counted.malformed, counted.events, counted.done), (false, 2, true));
}

/// JSON of some depth, with the names that matter strewn in.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z\"\\\\\\n{}\\[\\]:, é漢😀]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof![
            Just("usage".to_owned()),
            Just("choices".to_owned()),
            Just("delta".to_owned()),
            Just("content".to_owned()),
            Just("model".to_owned()),
            Just("prompt_tokens".to_owned()),
            "[a-z\"\\\\]{0,4}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// The members of an answer in any order, some of them missing.
fn answer() -> impl Strategy<Value = Value> {
    let usage = (0..1000_u64, 0..1000_u64)
        .prop_map(|(input, output)| json!({"prompt_tokens": input, "completion_tokens": output, "x": [{"y": "}"}]}));
    let choices = prop_oneof![
        Just(json!([])),
        Just(json!([{"delta": {"content": "a"}}])),
        Just(json!([{"delta": {"content": ""}}])),
        value(),
    ];
    let members = (prop::option::of(prop_oneof![usage, value()]), prop::option::of(choices), prop::option::of(value()));
    members.prop_flat_map(|(usage, choices, other)| {
        let members = [("usage", usage), ("choices", choices), ("other", other)];
        let members: Vec<_> = members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        Just(members).prop_shuffle().prop_map(|members| Value::Object(members.into_iter().collect()))
    })
}

fn expected_usage(answer: &Value) -> Option<Usage> {
    Usage::from_json(answer.get("usage")?.to_string().as_bytes())
}

/// Cuts `bytes` at these places, modulo its length.
fn cut<'a>(bytes: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<_> = places.iter().map(|place| place % (bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

/// The event of one token, of which no two are alike.
fn token(number: u64) -> String {
    format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"t{number}\"}}}}]}}\n\n")
}

/// What goes on of a stream that comes in these chunks while so many tokens are allowed, and whether it was withheld from.
fn within(allowance: u64, visibility: UsageVisibility, text: &str, size: usize) -> (String, Option<String>, Counted) {
    let mut scanner = ResponseScanner::new(Operation::ChatCompletions, BodyFormat::EventStream, visibility);
    scanner.allow(allowance);
    let mut sent = Vec::new();
    let mut chunks = text.as_bytes().chunks(size).peekable();
    while let Some(chunk) = chunks.next() {
        let end = if chunks.peek().is_some() { EndOfStream::More } else { EndOfStream::End };
        match scanner.feed(&Bytes::copy_from_slice(chunk), end) {
            Output::Unchanged => sent.extend_from_slice(chunk),
            Output::Replaced(bytes) => sent.extend_from_slice(&bytes),
            Output::Withheld { passed, rest } => {
                sent.extend_from_slice(&passed);
                let rest = [rest.as_ref(), &chunks.flatten().copied().collect::<Vec<_>>()].concat();
                let (sent, rest) = (String::from_utf8(sent).unwrap(), String::from_utf8(rest).unwrap());
                return (sent, Some(rest), scanner.counted());
            }
        }
    }
    (String::from_utf8(sent).unwrap(), None, scanner.counted())
}

#[test]
fn what_is_more_than_was_allowed_is_withheld_wherever_the_stream_is_cut() {
    let opening = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    let text = format!("{opening}{}{}{}{USAGE}\n\ndata: [DONE]\n\n", token(1), token(2), token(3));
    for visibility in [UsageVisibility::Keep, UsageVisibility::Remove] {
        for size in 1..text.len() {
            let (sent, rest, counted) = within(2, visibility, &text, size);
            assert_eq!(sent, format!("{opening}{}{}", token(1), token(2)), "in chunks of {size}");
            assert_eq!(rest.unwrap().trim_start(), format!("{USAGE}\n\ndata: [DONE]\n\n").trim_start());
            assert_eq!((counted.output_tokens, counted.content_events, counted.usage), (2, 2, None));
        }
    }
    assert_eq!(within(3, UsageVisibility::Keep, &text, 7).0, text);
    assert_eq!(within(0, UsageVisibility::Keep, &text, text.len()).0, opening);
}

#[test]
fn what_was_withheld_goes_on_once_more_is_allowed() {
    let text = format!("{}{}{}", token(1), token(2), token(3));
    for size in 1..=text.len() {
        let mut scanner =
            ResponseScanner::new(Operation::ChatCompletions, BodyFormat::EventStream, UsageVisibility::Keep);
        let mut allowed = 0;
        scanner.allow(allowed);
        let mut sent = Vec::new();
        for chunk in text.as_bytes().chunks(size) {
            let mut chunk = Bytes::copy_from_slice(chunk);
            loop {
                match scanner.feed(&chunk, EndOfStream::More) {
                    Output::Unchanged => sent.extend_from_slice(&chunk),
                    Output::Replaced(bytes) => sent.extend_from_slice(&bytes),
                    Output::Withheld { passed, rest } => {
                        sent.extend_from_slice(&passed);
                        assert_eq!(
                            scanner.feed(&rest, EndOfStream::More),
                            Output::Withheld { passed: Bytes::new(), rest: rest.clone() }
                        );
                        allowed += 1;
                        scanner.allow(allowed);
                        chunk = rest;
                        continue;
                    }
                }
                break;
            }
        }
        assert_eq!(String::from_utf8(sent).unwrap(), text, "in chunks of {size}");
        assert_eq!((allowed, scanner.counted().output_tokens), (3, 3));
    }
}

#[test]
fn a_last_event_that_breaks_off_is_withheld_as_well() {
    let text = format!("{}{}", token(1), token(2));
    let (sent, rest, _) = within(1, UsageVisibility::Keep, text.trim_end(), 11);
    assert_eq!((sent, rest), (token(1), Some(String::new())));
}

#[test]
fn an_event_that_obviously_has_more_than_one_token_counts_for_more() {
    let count = |delta: Value| {
        let text = format!("data: {}\n\n", json!({"choices": [{"delta": delta}]}));
        stream([text.as_bytes()], UsageVisibility::Keep).1.output_tokens
    };
    assert_eq!(count(json!({"content": "congratulations"})), 1);
    assert_eq!(count(json!({"content": "x".repeat(399)})), 100);
    assert_eq!(count(json!({"content": "x".repeat(199), "reasoning": "x".repeat(199)})), 100);
    assert_eq!(
        count(json!({"tool_calls": [{"id": "call_0123456789", "function": {"name": "weather", "arguments": ""}}]})),
        1
    );
    let arguments = "x".repeat(1000 - json!([{"function": {"arguments": ""}}]).to_string().len());
    assert_eq!(count(json!({"tool_calls": [{"function": {"arguments": arguments}}]})), 250);
    assert_eq!(count(json!({"audio": {"data": "x".repeat(4000)}})), 1);
    let escaped = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "\\u4f60".repeat(5));
    assert_eq!(stream([escaped.as_bytes()], UsageVisibility::Keep).1.output_tokens, 1);
}

#[test]
fn usage_that_is_reported_as_it_comes_says_how_much_output_there_is() {
    let event = |tokens: u64| {
        format!(
            "data: {}\n\n",
            json!({"choices": [{"delta": {"content": "some words at a time"}}], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})
        )
    };
    let text = format!("{}{}{}", event(5), event(10), event(15));
    let (sent, rest, counted) = within(12, UsageVisibility::Keep, &text, 9);
    assert_eq!((sent, rest.is_some()), (format!("{}{}", event(5), event(10)), true));
    assert_eq!((counted.output_tokens, counted.usage.unwrap().output), (10, 10));
    let zeros = event(0).repeat(3);
    assert_eq!(stream([zeros.as_bytes()], UsageVisibility::Keep).1.output_tokens, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_json_answer_says_the_same_as_for_serde_json(
        answer in answer(), pretty in any::<bool>(), places in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let text = if pretty { serde_json::to_string_pretty(&answer).unwrap() } else { answer.to_string() };
        let counted = json_answer(Operation::ChatCompletions, cut(text.as_bytes(), &places));
        prop_assert_eq!(counted, Counted { usage: expected_usage(&answer), ..Counted::default() });
    }

    #[test]
    fn a_stream_loses_its_usage_events_and_nothing_else_however_it_is_cut(
        answers in prop::collection::vec(answer(), 0..5),
        line_end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        comments in any::<bool>(),
        places in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let (mut text, mut kept, mut usage) = (String::new(), String::new(), None);
        for answer in &answers {
            if comments {
                text.push_str(&format!(": c{line_end}"));
                kept.push_str(&format!(": c{line_end}"));
            }
            let event = format!("data: {answer}{line_end}{line_end}");
            text.push_str(&event);
            let has_no_choices = answer.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty);
            if !(has_no_choices && answer.get("usage").is_some_and(Value::is_object)) {
                kept.push_str(&event);
            }
            usage = expected_usage(answer).or(usage);
        }
        let (sent, counted) = stream(cut(text.as_bytes(), &places), UsageVisibility::Remove);
        prop_assert_eq!(String::from_utf8(sent).unwrap(), kept);
        prop_assert_eq!(counted.usage, usage);
        prop_assert_eq!(counted.events, answers.len() as u64);
        prop_assert!(!counted.malformed);
    }

    #[test]
    fn mutated_streams_never_panic_and_come_out_the_same_however_they_are_cut(
        flips in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        places in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let mut text = format!("\u{feff}{CONTENT}\r\n\r\n: c\n{USAGE}\n\ndata: [DONE]\n\n").into_bytes();
        for (place, byte) in flips {
            let place = place % text.len();
            text[place] ^= byte;
        }
        let whole = stream([&text[..]], UsageVisibility::Remove);
        prop_assert_eq!(stream(cut(&text, &places), UsageVisibility::Remove), whole);
        let kept = stream(cut(&text, &places), UsageVisibility::Keep);
        prop_assert_eq!(kept.0, text.clone());
        let _ = json_answer(Operation::ChatCompletions, [&text[..]]);
    }
}

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
