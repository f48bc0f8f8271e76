use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// One operation of each form that answers have.
const OPERATIONS: [Operation; 7] = [
    Operation::ChatCompletions,
    Operation::Completions,
    Operation::Responses,
    Operation::Messages,
    Operation::Rerank,
    Operation::Transcriptions,
    Operation::Tokenize,
];

/// JSON of some depth, with the names that matter strewn in.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z\"\\\\\\n{}\\[\\]:, é漢😀]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let known = prop::sample::select(vec![
            "usage",
            "choices",
            "delta",
            "content",
            "text",
            "model",
            "prompt_tokens",
            "output_tokens",
            "response",
            "message",
            "meta",
            "tokens",
            "timings",
            "x_groq",
            "prompt_n",
        ]);
        let key = prop_oneof![2 => known.prop_map(str::to_owned), 1 => "[a-z\"\\\\]{0,4}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// A count, or what stands in the place of one.
fn figure() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => (0..300_u64).prop_map(Value::from),
        1 => prop::sample::select(vec![
            Value::Null,
            json!(-1),
            json!(1.5),
            json!(12.0),
            json!(1e300),
            json!(u64::MAX),
            json!(1_u64 << 53),
            json!("7"),
            json!(true),
            json!({"a": [1]}),
        ]),
    ]
}

/// An object of some of these members, in any order.
fn members(known: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop::collection::vec((prop::sample::select(known), figure()), 0..5).prop_map(object)
}

fn object<K: Into<String>>(members: Vec<(K, Value)>) -> Value {
    // Some keys come twice: the first place and the last value are theirs.
    Value::Object(members.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

fn usage() -> impl Strategy<Value = Value> {
    let figures = prop::sample::select(vec![
        "prompt_tokens",
        "completion_tokens",
        "input_tokens",
        "output_tokens",
        "total_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
        "reasoning_tokens",
        "prompt_audio_seconds",
        "cost",
    ]);
    let details = prop::sample::select(vec![
        "prompt_tokens_details",
        "input_tokens_details",
        "completion_tokens_details",
        "output_tokens_details",
        "input_token_details",
        "output_token_details",
        "cache_creation",
        "iterations",
    ]);
    let detail = members(&[
        "cached_tokens",
        "cache_write_tokens",
        "cache_creation_tokens",
        "cache_creation_input_tokens",
        "created_cache_tokens",
        "reasoning_tokens",
        "ephemeral_5m_input_tokens",
        "ephemeral_1h_input_tokens",
        "input_tokens",
    ]);
    let parts = members(&["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"]);
    let nested = named(&["cache_creation", "cache_creation_token_details", "cached_tokens"], parts);
    let member = prop_oneof![
        3 => (figures, figure()),
        1 => (details, prop_oneof![4 => detail, 1 => nested, 1 => value()]),
    ];
    prop_oneof![8 => prop::collection::vec(member, 0..8).prop_map(object), 1 => value()]
}

/// What may be output, or nearly.
fn content() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec!["", " ", "a", "\n", "漢字", "a longer piece of text than most", "\\", "\""]);
    prop_oneof![
        4 => text.prop_map(Value::from),
        1 => Just(json!([])),
        1 => Just(json!([{"index": 0, "function": {"arguments": "{\"a\":"}}])),
        1 => Just(json!({"data": "aGk="})),
        1 => value(),
    ]
}

fn named(known: &'static [&'static str], of: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::vec((prop::sample::select(known), of), 0..3).prop_map(object)
}

/// A document of any API: an answer, or one event of it.
fn document() -> impl Strategy<Value = Value> {
    let delta = || {
        named(
            &["content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "audio", "role"],
            content(),
        )
    };
    let choice = prop_oneof![
        3 => delta().prop_map(|delta| json!({"index": 0, "delta": delta})),
        2 => content().prop_map(|text| json!({"text": text, "finish_reason": null})),
        1 => value(),
    ];
    let choices = prop_oneof![
        2 => Just(json!([])),
        3 => prop::collection::vec(choice, 1..3).prop_map(Value::from),
        1 => value(),
    ];
    let block = named(&["text", "thinking", "partial_json", "name", "data", "signature"], content());
    let answer =
        || prop::option::of(usage()).prop_map(|usage| json!({"id": "r", "usage": usage, "output": [{"usage": 1}]}));
    let timings = members(&["prompt_n", "cache_n", "predicted_n", "prompt_ms"]);
    let meta = (members(&["input_tokens", "output_tokens"]), members(&["search_units", "input_tokens"])).prop_map(
        |(tokens, billed)| json!({"api_version": {"version": "2"}, "tokens": tokens, "billed_units": billed}),
    );
    let member = prop_oneof![
        4 => usage().prop_map(|usage| ("usage", usage)),
        3 => choices.prop_map(|choices| ("choices", choices)),
        1 => prop_oneof![delta().boxed(), block.boxed(), content().boxed()].prop_map(|delta| ("delta", delta)),
        1 => named(&["text", "name", "data"], content()).prop_map(|block| ("content_block", block)),
        2 => answer().prop_map(|answer| ("response", answer)),
        2 => answer().prop_map(|answer| ("message", answer)),
        1 => usage().prop_map(|usage| ("x_groq", json!({"id": "r", "usage": usage}))),
        1 => timings.prop_map(|timings| ("timings", timings)),
        1 => meta.prop_map(|meta| ("meta", meta)),
        1 => value().prop_map(|error| ("error", error)),
        1 => value().prop_map(|other| ("other", other)),
        1 => value().prop_map(|other| ("prompt_filter_results", other)),
    ];
    prop::collection::vec(member, 0..5).prop_map(object)
}

/// How one event is written.
#[derive(Debug, Clone)]
struct Written {
    document: Value,
    /// In lines, each of them a field.
    is_pretty: bool,
    has_space: bool,
    line_end: &'static str,
    comment_before: bool,
    comment_amid: bool,
    other_field: Option<&'static str>,
}

fn written() -> impl Strategy<Value = Written> {
    let line_end = prop::sample::select(vec!["\n", "\r\n", "\r"]);
    let other_field = prop::option::of(prop::sample::select(vec!["event: x", "id: \0", "id", "retry: 1", "datax: {}"]));
    (document(), any::<[bool; 4]>(), line_end, other_field).prop_map(
        |(document, [is_pretty, has_space, comment_before, comment_amid], line_end, other_field)| Written {
            document,
            is_pretty,
            has_space,
            line_end,
            comment_before,
            comment_amid,
            other_field,
        },
    )
}

impl Written {
    /// What comes before the event, and the event.
    fn text(&self) -> (String, String) {
        let end = self.line_end;
        let before = if self.comment_before { format!(": OPENROUTER PROCESSING{end}{end}") } else { String::new() };
        let json = if self.is_pretty {
            serde_json::to_string_pretty(&self.document).unwrap()
        } else {
            self.document.to_string()
        };
        let space = if self.has_space { " " } else { "" };
        let mut event = self.other_field.map_or(String::new(), |field| format!("{field}{end}"));
        for line in json.lines() {
            event.push_str(&format!("data:{space}{line}{end}"));
            if self.comment_amid {
                event.push_str(&format!(":{end}"));
            }
        }
        (before, format!("{event}{end}"))
    }
}

/// What comes out of a stream that arrives in these chunks, and what was counted.
fn pass<'a>(
    operation: Operation,
    visibility: UsageVisibility,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<u8>, Counted) {
    let mut scanner = ResponseScanner::new(operation, BodyFormat::EventStream, visibility);
    let mut sent = Vec::new();
    for chunk in chunks {
        let chunk = Bytes::copy_from_slice(chunk);
        match scanner.feed(&chunk, EndOfStream::More) {
            Output::Unchanged => sent.extend_from_slice(&chunk),
            Output::Replaced(bytes) => sent.extend_from_slice(&bytes),
            Output::Withheld { .. } => panic!("nothing bounds it"),
        }
    }
    match scanner.feed(&Bytes::new(), EndOfStream::End) {
        Output::Unchanged => {}
        Output::Replaced(bytes) => sent.extend_from_slice(&bytes),
        Output::Withheld { .. } => panic!("nothing bounds it"),
    }
    (sent, scanner.counted())
}

/// What goes on of a stream under bounds that are raised by so much whenever something is withheld, until they are used up.
/// Asserts that no more events with content go on than tokens are allowed at the time.
fn bounded(operation: Operation, visibility: UsageVisibility, chunks: Vec<&[u8]>, raises: &[u64]) -> (Vec<u8>, bool) {
    let mut scanner = ResponseScanner::new(operation, BodyFormat::EventStream, visibility);
    let (mut allowed, mut raises) = (0, raises.iter());
    scanner.allow(Allowance::Likely(allowed));
    let mut sent = Vec::new();
    let ends = chunks.iter().map(|_| EndOfStream::More).chain([EndOfStream::End]);
    for (chunk, end) in chunks.iter().copied().chain([&b""[..]]).zip(ends) {
        let mut chunk = Bytes::copy_from_slice(chunk);
        loop {
            match scanner.feed(&chunk, end) {
                Output::Unchanged => sent.extend_from_slice(&chunk),
                Output::Replaced(bytes) => sent.extend_from_slice(&bytes),
                Output::Withheld { passed, rest } => {
                    sent.extend_from_slice(&passed);
                    // Each has a token at least.
                    let content_events = pass(operation, UsageVisibility::Keep, [&sent[..]]).1.content_events;
                    assert!(content_events <= allowed, "{content_events} of {allowed}");
                    let Some(raise) = raises.next() else { return (sent, false) };
                    allowed += raise;
                    scanner.allow(Allowance::Likely(allowed));
                    chunk = rest;
                    continue;
                }
            }
            break;
        }
    }
    (sent, true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_json_answer_says_the_same_as_for_serde_json(
        operation in prop::sample::select(&OPERATIONS[..]),
        answer in document(),
        is_pretty in any::<bool>(),
        places in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let text = if is_pretty { serde_json::to_string_pretty(&answer).unwrap() } else { answer.to_string() };
        let counted = json_answer(operation, cut(text.as_bytes(), &places));
        let expected = if operation == Operation::Tokenize { None } else { reference::usage(operation, &answer) };
        prop_assert_eq!((counted.usage, counted.malformed), (expected, false), "{}", text);
    }

    #[test]
    fn a_stream_means_the_same_and_comes_out_the_same_wherever_it_is_cut(
        operation in prop::sample::select(&OPERATIONS[..]),
        visibility in prop::sample::select(vec![UsageVisibility::Keep, UsageVisibility::Remove]),
        events in prop::collection::vec(written(), 0..6),
        has_mark in any::<bool>(),
        is_done in any::<bool>(),
        places in prop::collection::vec(any::<usize>(), 0..10),
    ) {
        let mut text = if has_mark { "\u{feff}".to_owned() } else { String::new() };
        let (mut kept, mut usage, mut content_events) = (text.clone(), None, 0);
        for event in &events {
            let (before, event_text) = event.text();
            text.push_str(&before);
            kept.push_str(&before);
            text.push_str(&event_text);
            if visibility == UsageVisibility::Keep || !reference::is_usage_event(operation, &event.document) {
                kept.push_str(&event_text);
            }
            let reported = reference::usage(operation, &event.document);
            usage = match operation {
                Operation::Messages => reference::together(usage, reported),
                Operation::Tokenize => None,
                _ => reported.or(usage),
            };
            content_events += u64::from(reference::has_content(operation, &event.document));
        }
        if is_done {
            text.push_str("data: [DONE]\n\n");
            kept.push_str("data: [DONE]\n\n");
        }
        let (sent, counted) = pass(operation, visibility, [text.as_bytes()]);
        prop_assert_eq!(String::from_utf8(sent).unwrap(), kept.clone());
        prop_assert_eq!(counted.usage, usage);
        prop_assert_eq!(counted.content_events, content_events);
        prop_assert_eq!(counted.events, events.len() as u64 + u64::from(is_done));
        prop_assert_eq!((counted.done, counted.malformed), (is_done, false));
        for chunks in [cut(text.as_bytes(), &places), text.as_bytes().chunks(1).collect()] {
            let (sent, cut) = pass(operation, visibility, chunks);
            prop_assert_eq!(String::from_utf8(sent).unwrap(), kept.clone());
            prop_assert_eq!(cut, counted.clone());
        }
    }

    #[test]
    fn a_stream_that_breaks_off_anywhere_passes_and_is_counted_the_same_however_it_is_cut(
        operation in prop::sample::select(&OPERATIONS[..]),
        events in prop::collection::vec(written(), 1..4),
        end in any::<prop::sample::Index>(),
        places in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let text: String = events.iter().map(|event| { let (before, event) = event.text(); before + &event }).collect();
        let text = &text.as_bytes()[..end.index(text.len() + 1)];
        let (sent, counted) = pass(operation, UsageVisibility::Keep, [text]);
        prop_assert_eq!(sent.as_slice(), text);
        prop_assert_eq!(pass(operation, UsageVisibility::Keep, cut(text, &places)), (sent, counted));
        let removed = pass(operation, UsageVisibility::Remove, [text]);
        prop_assert_eq!(pass(operation, UsageVisibility::Remove, cut(text, &places)), removed);
    }

    #[test]
    fn never_more_goes_on_than_is_allowed_and_all_of_it_once_enough_is(
        operation in prop::sample::select(&OPERATIONS[..4]),
        visibility in prop::sample::select(vec![UsageVisibility::Keep, UsageVisibility::Remove]),
        events in prop::collection::vec(written(), 0..6),
        raises in prop::collection::vec(0..4_u64, 0..6),
        places in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let text: String = events.iter().map(|event| { let (before, event) = event.text(); before + &event }).collect();
        let (kept, counted) = pass(operation, visibility, [text.as_bytes()]);
        let bounded = |chunks: Vec<&[u8]>, raises: &[u64]| bounded(operation, visibility, chunks, raises);
        let (sent, is_whole) = bounded(cut(text.as_bytes(), &places), &raises);
        prop_assert!(kept.starts_with(&sent));
        prop_assert!(!is_whole || sent.len() == kept.len());
        prop_assert!(counted.content_events > 0 || is_whole);
        let (uncut, _) = bounded(vec![text.as_bytes()], &raises);
        // The line feed of a last line end may have gone on, or not.
        prop_assert_eq!(sent.trim_ascii_end(), uncut.trim_ascii_end());
        let (all, is_whole) = bounded(cut(text.as_bytes(), &places), &[&raises[..], &[u64::MAX / 2]].concat());
        prop_assert!(is_whole);
        prop_assert_eq!(String::from_utf8(all).unwrap(), String::from_utf8(kept).unwrap());
    }

    #[test]
    fn mutated_streams_never_panic_and_come_out_the_same_however_they_are_cut(
        operation in prop::sample::select(&OPERATIONS[..]),
        flips in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        places in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let mut text = format!("\u{feff}{CONTENT}\r\n\r\n: c\n{USAGE}\n\ndata: [DONE]\n\n").into_bytes();
        for (place, byte) in flips {
            let place = place % text.len();
            text[place] ^= byte;
        }
        let whole = pass(operation, UsageVisibility::Remove, [&text[..]]);
        prop_assert_eq!(pass(operation, UsageVisibility::Remove, cut(&text, &places)), whole);
        let kept = pass(operation, UsageVisibility::Keep, cut(&text, &places));
        prop_assert_eq!(kept.0, text.clone());
        let _ = json_answer(operation, [&text[..]]);
    }
}
