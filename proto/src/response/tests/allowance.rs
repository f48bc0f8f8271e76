use serde_json::{Value, json};

use super::*;

/// The event of one token, of which no two are alike.
fn token(number: u64) -> String {
    format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"t{number}\"}}}}]}}\n\n")
}

/// What goes on of a stream that comes in these chunks while so many tokens are allowed, and whether it was withheld from.
fn within(allowance: u64, visibility: UsageVisibility, text: &str, size: usize) -> (String, Option<String>, Counted) {
    let mut scanner = ResponseScanner::new(Operation::ChatCompletions, BodyFormat::EventStream, visibility);
    scanner.allow(Allowance::Likely(allowance));
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
        scanner.allow(Allowance::Likely(allowed));
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
                        scanner.allow(Allowance::Likely(allowed));
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
    assert_eq!(stream([zeros.as_bytes()], UsageVisibility::Keep).1.output_tokens, 18);
}
