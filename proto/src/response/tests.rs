mod allowance;
mod dialects;
mod properties;
mod reference;
mod shapes;

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
    assert_eq!(format("application/vnd.x+JSON;v=1"), Some(BodyFormat::Json));
    assert_eq!(format("text/html"), None);
    assert_eq!(format("application/json-seq"), None);
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
    let long = format!(r#"{{"usage":{{"x":"{}","prompt_tokens":8}}}}"#, "x".repeat(5000));
    assert_eq!(usage(&long), Some(expected), "a usage may have any length");
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
        uncorrected_tokens: 1,
        has_reasoning: false,
        events: 3,
        done: true,
        model: Some("m".to_owned()),
        malformed: false,
        fault: None,
        gap: Gap::default(),
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

/// Cuts `bytes` at these places, modulo its length.
fn cut<'a>(bytes: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<_> = places.iter().map(|place| place % (bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

#[test]
fn a_usage_event_with_something_that_its_client_would_miss_stays() {
    let usage = r#""choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}"#;
    for (more, stays) in [
        (r#""error":{"message":"no","code":429}"#, true),
        (r#""error":"no""#, true),
        (r#""prompt_filter_results":[{"prompt_index":0}]"#, true),
        (r#""error":null"#, false),
        (r#""timings":{"predicted_n":3}"#, false),
        (r#""x_groq":{"id":"r"},"service_tier":"default","obfuscation":"x","system_fingerprint":null"#, false),
        (r#""metadata":{"weight_version":"default"}"#, false),
    ] {
        for event in [format!("{{{usage},{more}}}"), format!("{{{more},{usage}}}")] {
            let text = format!("data: {event}\n\n");
            for at in 0..=text.len() {
                let (left, right) = text.as_bytes().split_at(at);
                let (sent, counted) = stream([left, right], UsageVisibility::Remove);
                assert_eq!(String::from_utf8(sent).unwrap(), if stays { text.as_str() } else { "" }, "{event}");
                assert_eq!(counted.usage, Some(counted_usage()));
            }
        }
    }
}

#[test]
fn the_usage_event_of_legacy_completions_is_taken_out_as_well() {
    let content = "data: {\"choices\":[{\"text\":\"a\"}],\"usage\":null}\n\n";
    let text =
        format!("{content}data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":3}}}}\n\n");
    for at in 0..=text.len() {
        let mut scanner =
            ResponseScanner::new(Operation::Completions, BodyFormat::EventStream, UsageVisibility::Remove);
        let mut sent = Vec::new();
        for part in [&text[..at], &text[at..]] {
            match scanner.feed(&Bytes::copy_from_slice(part.as_bytes()), EndOfStream::More) {
                Output::Unchanged => sent.extend_from_slice(part.as_bytes()),
                Output::Replaced(bytes) => sent.extend_from_slice(&bytes),
                Output::Withheld { .. } => panic!("nothing bounds it"),
            }
        }
        assert_eq!(String::from_utf8(sent).unwrap(), content, "cut at {at}");
        assert_eq!(scanner.counted().usage, Some(counted_usage()));
    }
}

#[test]
fn of_answers_that_are_no_json_what_is_certain_counts() {
    let usage = r#""usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}"#;
    let nested = |depth: usize| format!(r#"{{"a":{}{},{usage}}}"#, "[".repeat(depth), "]".repeat(depth));
    for (text, is_found, malformed) in [
        (format!("{{{usage}}}"), true, false),
        (format!("{{{usage}}}{{{}}}", usage.replace('7', "9")), true, true),
        (format!("{{{usage}}}\n{{}}"), true, true),
        (format!(r#"{{"a":"\ud800","b":"\udc00\ud800x",{usage}}}"#), true, false),
        (format!("{{\"a\":\"\0\u{1}\",{usage}}}"), true, false),
        (format!("{{\"a\\u0000\":1,{usage}}}"), true, false),
        (format!("\0{{{usage}}}"), false, true),
        (format!("\u{feff}{{{usage}}}"), true, false),
        (format!("\u{feff}\u{feff}{{{usage}}}"), false, true),
        (nested(127), true, false),
        (nested(128), false, true),
        (nested(100_000), false, true),
        (format!("{{{usage}"), true, true),
        (format!("{{{}", &usage[..usage.len() - 1]), false, true),
        (format!("{{{}", &usage[..usage.len() - 2]), false, true),
        (format!("[{{{usage}}}]"), false, true),
        (format!(r#"{{"n":{},{usage}}}"#, "9".repeat(1 << 20)), true, false),
        (format!(r#"{{"{}":1,{usage}}}"#, "k".repeat(1 << 20)), true, false),
    ] {
        for size in [1 << 14, 2] {
            let counted = json_answer(Operation::ChatCompletions, text.as_bytes().chunks(size));
            let expected = is_found.then(counted_usage);
            assert_eq!((counted.usage, counted.malformed), (expected, malformed), "{:.80}", text);
        }
    }
}

#[test]
fn half_a_byte_order_mark_is_none() {
    let text = b"\xef\xbb{\"usage\":{\"prompt_tokens\":7}}";
    for at in 0..=text.len() {
        let (left, right) = text.split_at(at);
        let counted = json_answer(Operation::ChatCompletions, [left, right]);
        assert_eq!((counted.usage, counted.malformed), (None, true));
    }
}

#[test]
fn an_event_of_64_mb_passes_as_it_comes_and_is_counted() {
    let filler = Bytes::from(vec![b'x'; 1 << 20]);
    let start = format!("{CONTENT}\n\ndata: {{\"choices\":[],\"filler\":\"");
    let end = r#"","usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}"#;
    for visibility in [UsageVisibility::Keep, UsageVisibility::Remove] {
        let mut scanner = ResponseScanner::new(Operation::ChatCompletions, BodyFormat::EventStream, visibility);
        scanner.allow(Allowance::Likely(1));
        let went = |output: Output, chunk: &Bytes| match output {
            Output::Unchanged => chunk.len(),
            Output::Replaced(bytes) => bytes.len(),
            Output::Withheld { .. } => panic!("it is no more than was allowed"),
        };
        let chunk = Bytes::from(start.clone());
        let mut sent = went(scanner.feed(&chunk, EndOfStream::More), &chunk);
        for at in 1..=64 {
            sent += went(scanner.feed(&filler, EndOfStream::More), &filler);
            assert_eq!(sent, start.len() + at * filler.len(), "nothing of it is held");
        }
        let chunk = Bytes::from(format!("{end}\n\n"));
        sent += went(scanner.feed(&chunk, EndOfStream::End), &chunk);
        assert_eq!(sent, start.len() + 64 * filler.len() + chunk.len());
        let counted = scanner.counted();
        assert_eq!((counted.usage, counted.events, counted.malformed), (Some(counted_usage()), 2, false));
    }
}
