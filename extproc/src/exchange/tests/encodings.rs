//! Encoded bodies: requests that are read all the same, answers that are counted, and those that have to be changed.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

const CONTENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

pub(super) fn gzip(text: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_ref()).unwrap();
    encoder.finish().unwrap()
}

/// Each part flushed, and what ends it.
fn gzip_flushed(parts: &[&str]) -> Vec<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let mut encoded = Vec::new();
    for part in parts {
        encoder.write_all(part.as_bytes()).unwrap();
        encoder.flush().unwrap();
        encoded.push(std::mem::take(encoder.get_mut()));
    }
    encoded.push(encoder.finish().unwrap());
    encoded
}

fn begin(table: &mut Table, extra: &[(&str, &str)]) -> Option<Action> {
    let mut head = vec![(":method", "POST"), (":path", "/v1/chat/completions"), ("authorization", "Bearer secret")];
    head.extend(extra);
    match table.exchange.request_headers(headers_of(&head), End::More, table.now).unwrap() {
        Action::Wait => None,
        action => Some(action),
    }
}

fn post_encoded(table: &mut Table, body: &Value, extra: &[(&str, &str)]) -> Action {
    let encoded = gzip(body.to_string());
    let length = encoded.len().to_string();
    let headers = [&[("content-encoding", "gzip"), ("content-length", &length)], extra].concat();
    assert!(begin(table, &headers).is_none());
    let (first, rest) = encoded.split_at(20);
    for (chunk, end) in [(first, End::More), (rest, End::More)] {
        let action = table.exchange.request_body(Bytes::copy_from_slice(chunk), end, table.now).unwrap();
        assert!(matches!(action, Action::Wait), "{action:?}");
    }
    table.exchange.request_body(Bytes::new(), End::Last, table.now).unwrap()
}

fn head(table: &mut Table, content_type: &str, encoding: &str) -> Mutations {
    let head = [(":status", "200"), ("content-type", content_type), ("content-encoding", encoding)];
    match table.exchange.response_headers(&headers_of(&head), End::More, Some("10.0.0.1:80"), table.now).unwrap() {
        Action::Answer(Reply::ResponseHeaders(mutations)) => mutations,
        other => panic!("{other:?}"),
    }
}

fn feed(table: &mut Table, chunk: &[u8], end: End) -> Body {
    match table.exchange.response_body(&Bytes::copy_from_slice(chunk), end, table.now).unwrap() {
        Action::Answer(Reply::ResponseBody(body, _)) => body,
        other => panic!("{other:?}"),
    }
}

fn replaced(text: &str) -> Body {
    Body::Replaced(Bytes::from(text.to_owned()))
}

fn usage(table: &mut Table) -> Counted {
    table.exchange.take_summary().unwrap().usage.unwrap()
}

/// A stream out of which the usage is to be taken.
fn streamed() -> Value {
    json!({"model": "assistant", "stream": true, "messages": [{"role": "user", "content": "Hello"}]})
}

/// One whose client asked for the usage itself.
fn streamed_with_usage() -> Value {
    let mut body = streamed();
    body["stream_options"] = json!({"include_usage": true});
    body
}

#[test]
fn an_encoded_request_that_has_to_be_changed_goes_on_unencoded() {
    let mut table = Table::set(Profile::Streamed);
    let (mutations, bodies) = released(post_encoded(&mut table, &chat("assistant"), &[]));
    let sent = chat("qwen").to_string();
    assert_eq!(bodies, [replaced(&sent), replaced(""), replaced("")]);
    assert_eq!(set(&mutations, "content-length"), Some(sent.len().to_string().as_str()));
    assert!(mutations.remove.contains(&"content-encoding"));
}

#[test]
fn an_encoded_request_that_says_all_already_goes_on_as_it_came() {
    let mut table = Table::set(Profile::Streamed);
    let body = chat("metered");
    let action = post_encoded(&mut table, &body, &[]);
    table.note(&action);
    let (mutations, bodies) = released(table.admit());
    assert_eq!(bodies, [Body::Unchanged, Body::Unchanged, Body::Unchanged]);
    assert_eq!(set(&mutations, "content-length"), None);
    assert!(!mutations.remove.contains(&"content-encoding"));
}

#[test]
fn a_coding_that_nobody_knows_is_refused_with_those_that_are_known() {
    let mut table = Table::set(Profile::Streamed);
    let action = begin(&mut table, &[("content-encoding", "compress")]).unwrap();
    let Action::Respond(response) = action else { panic!("{action:?}") };
    assert_eq!((response.status, response.reason), (415, "encoded_body"));
    assert_eq!(response.headers, [("accept-encoding", "gzip, br, zstd, deflate".to_owned())]);
}

#[test]
fn a_coding_that_lies_is_refused_once_the_body_is_complete() {
    let mut table = Table::set(Profile::Streamed);
    assert!(begin(&mut table, &[("content-encoding", "gzip")]).is_none());
    let chunk = Bytes::from_static(b"{\"model\":");
    let (status, reason, body) = refused(table.exchange.request_body(chunk, End::Last, table.now).unwrap());
    assert_eq!((status, reason, body["error"]["type"].as_str()), (400, "encoded_body", Some("invalid_request_error")));
}

#[test]
fn an_answer_may_have_the_codings_that_the_client_knows_and_we_do_unless_it_may_have_to_be_changed() {
    let accepted = |body: &Value, accept: &[(&str, &str)]| {
        let mut table = Table::set(Profile::Streamed);
        let (mutations, _) = released(table.post(body, accept));
        set(&mutations, "accept-encoding").map(str::to_owned)
    };
    let browser = [("accept-encoding", "gzip, dcb"), ("accept-encoding", "br;q=0.5")];
    assert_eq!(accepted(&chat("assistant"), &browser).as_deref(), Some("gzip, br;q=0.5"));
    assert_eq!(accepted(&chat("assistant"), &[]), None);
    assert_eq!(accepted(&streamed_with_usage(), &browser).as_deref(), Some("gzip, br;q=0.5"));
    assert_eq!(accepted(&streamed(), &browser).as_deref(), Some("identity"));
    assert_eq!(accepted(&streamed(), &[]).as_deref(), Some("identity"));

    let mut table = Table::set_capped(1_000);
    let mut capped = streamed_with_usage();
    capped["model"] = json!("metered");
    table.post(&capped, &browser);
    let (mutations, _) = released(table.admit());
    assert_eq!(set(&mutations, "accept-encoding"), Some("identity"));
}

#[test]
fn an_encoded_answer_goes_on_as_it_came_and_is_counted() {
    let answer = r#"{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":9,"total_tokens":29}}"#;
    let stream = format!("{}{USAGE}{DONE}", CONTENT.repeat(2));
    for (body, content_type, text, total) in
        [(chat("assistant"), "application/json", answer, 29), (streamed_with_usage(), "text/event-stream", &stream, 7)]
    {
        let mut table = Table::set(Profile::Streamed);
        released(table.post(&body, &[]));
        let mutations = head(&mut table, content_type, "gzip");
        assert!(!mutations.remove.contains(&"content-encoding") && !mutations.remove.contains(&"content-length"));
        let encoded = gzip(text);
        let chunks: Vec<_> = encoded.chunks(7).collect();
        for (index, chunk) in chunks.iter().enumerate() {
            let end = if index + 1 == chunks.len() { End::Last } else { End::More };
            assert_eq!(feed(&mut table, chunk, end), Body::Unchanged);
        }
        assert!(matches!(usage(&mut table), Counted::Reported(usage) if usage.total == total));
    }
}

#[test]
fn an_encoded_answer_that_has_to_be_changed_goes_on_decoded_and_event_by_event() {
    let mut table = Table::set(Profile::Streamed);
    released(table.post(&streamed(), &[]));
    let mutations = head(&mut table, "text/event-stream", "x-gzip");
    assert!(mutations.remove.contains(&"content-encoding") && mutations.remove.contains(&"content-length"));
    let encoded = gzip_flushed(&[CONTENT, CONTENT, USAGE, DONE]);
    let [first, second, usage_event, done, end] = encoded.as_slice() else { panic!("{}", encoded.len()) };
    assert_eq!(feed(&mut table, first, End::More), replaced(CONTENT));
    assert_eq!(feed(&mut table, second, End::More), replaced(CONTENT));
    assert_eq!(feed(&mut table, usage_event, End::More), replaced(""));
    assert_eq!(feed(&mut table, done, End::More), replaced(DONE));
    assert_eq!(feed(&mut table, end, End::Last), replaced(""));
    let summary = table.exchange.take_summary().unwrap();
    assert_eq!((summary.outcome, summary.content_events), (Outcome::Answered(200), Some(2)));
    assert!(matches!(summary.usage, Some(Counted::Reported(usage)) if usage.total == 7));
}

#[test]
fn a_cap_holds_in_an_encoded_answer() {
    let mut table = Table::set_capped(300);
    let mut body = streamed_with_usage();
    body["model"] = json!("metered");
    table.post(&body, &[]);
    released(table.decide(|state| Admission::Granted { states: vec![state] }));
    head(&mut table, "text/event-stream", "gzip");
    // All in one chunk, and more than the limit has.
    let chunk = Bytes::from(gzip(CONTENT.repeat(4_000)));
    let action = table.exchange.response_body(&chunk, End::Last, table.now).unwrap();
    assert!(matches!(action, Action::Wait), "it waits for room");
    let full = |growth: &Growth, table: &mut Table| {
        let left = Duration::from_secs(60);
        let state = CounterState { bucket: 0, epoch: 0, settled: 300, previous: 0, held: 0, left, length: left };
        table.exchange.grown(growth, &Ok(Admission::Refused { by: 0, states: vec![state] }), table.now)
    };
    let mut action = Action::Wait;
    while let Some(growth) = table.exchange.poll_growth() {
        action = full(&growth, &mut table);
    }
    let Action::Answer(Reply::ResponseBody(Body::Replaced(sent), _)) = action else { panic!("{action:?}") };
    let sent = String::from_utf8(sent.to_vec()).unwrap();
    let tokens = sent.matches(CONTENT).count() as u64;
    assert!(tokens > 0 && tokens < 4_000, "{tokens}");
    assert!(sent[CONTENT.len() * tokens as usize..].starts_with("data: {\"error\":"), "{tokens}");
    assert!(table.charged()[0] >= tokens);
}

#[test]
fn the_rest_of_a_chunk_that_waited_for_room_goes_on_decoded() {
    let mut table = Table::set_capped(100_000);
    let mut body = streamed_with_usage();
    body["model"] = json!("metered");
    table.post(&body, &[]);
    released(table.decide(|state| Admission::Granted { states: vec![state] }));
    head(&mut table, "text/event-stream", "gzip");
    let text = format!("{}{DONE}", CONTENT.repeat(2_000));
    let mut action = table.exchange.response_body(&Bytes::from(gzip(&text)), End::Last, table.now).unwrap();
    while let Some(growth) = table.exchange.poll_growth() {
        let left = Duration::from_secs(60);
        let state = CounterState { bucket: 0, epoch: 0, settled: 0, previous: 0, held: 0, left, length: left };
        action = table.exchange.grown(&growth, &Ok(Admission::Granted { states: vec![state] }), table.now);
    }
    let Action::Answer(Reply::ResponseBody(Body::Replaced(sent), _)) = action else { panic!("{action:?}") };
    assert!(sent == text.as_bytes(), "{} bytes of {}", sent.len(), text.len());
}

#[test]
fn an_answer_in_a_coding_that_nobody_knows_passes_and_is_estimated() {
    let plain = format!("{}{USAGE}{DONE}", CONTENT.repeat(2));
    for encoding in ["compress", "gzip, gzip, gzip, gzip"] {
        // Where nobody can read it, nobody can take anything out.
        for body in [streamed(), streamed_with_usage()] {
            let mut table = Table::set(Profile::Streamed);
            released(table.post(&body, &[]));
            assert_eq!(head(&mut table, "text/event-stream", encoding).remove, Vec::<&str>::new());
            assert_eq!(feed(&mut table, plain.as_bytes(), End::More), Body::Unchanged);
            assert_eq!(feed(&mut table, b"", End::Last), Body::Unchanged);
            let Summary { outcome, usage: counted, .. } = table.exchange.take_summary().unwrap();
            let output = counted.unwrap().usage().output;
            assert!(matches!(counted, Some(Counted::Estimated(_))) && output > 2, "{output}, nobody saw that it was 2");
            assert_eq!(outcome, Outcome::Answered(200));
        }
    }
}

#[test]
fn an_answer_that_says_it_is_encoded_and_is_not_is_read_as_it_is() {
    let stream = format!("{}{USAGE}{DONE}", "data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\n\n".repeat(2));
    let whole = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#;
    for (request, content_type, text, taken_out) in [
        (streamed_with_usage(), "text/event-stream", stream.as_str(), ""),
        (streamed(), "text/event-stream", &stream, USAGE),
        (chat("assistant"), "application/json", whole, ""),
    ] {
        for encoding in ["gzip", "zstd", "br", "deflate", "gzip, br"] {
            for size in [1, 7, text.len()] {
                let mut table = Table::set(Profile::Streamed);
                released(table.post(&request, &[]));
                let removed = head(&mut table, content_type, encoding).remove.contains(&"content-encoding");
                assert_eq!(removed, !taken_out.is_empty(), "it goes on with its label, unless it has to be changed");
                let mut sent = Vec::new();
                for chunk in text.as_bytes().chunks(size) {
                    match feed(&mut table, chunk, End::More) {
                        Body::Unchanged => sent.extend_from_slice(chunk),
                        Body::Replaced(bytes) => sent.extend_from_slice(&bytes),
                    }
                }
                feed(&mut table, b"", End::Last);
                assert_eq!(String::from_utf8(sent).unwrap(), text.replace(taken_out, ""), "{encoding}, {size}");
                let summary = table.exchange.take_summary().unwrap();
                assert_eq!(summary.outcome, Outcome::Miscoded, "{encoding}, {size}");
                let counted = summary.usage;
                assert!(
                    matches!(counted, Some(Counted::Reported(usage)) if usage.total == 7),
                    "{encoding}: {counted:?}"
                );
            }
        }
    }
    // Without a usage, by what was seen.
    let mut table = Table::set(Profile::Streamed);
    released(table.post(&streamed_with_usage(), &[]));
    head(&mut table, "text/event-stream", "gzip");
    feed(&mut table, CONTENT.repeat(3).as_bytes(), End::Last);
    assert!(matches!(usage(&mut table), Counted::Estimated(usage) if usage.output == 3));
}

#[test]
fn an_answer_that_is_encoded_and_does_not_say_so_passes_as_it_is_and_is_estimated() {
    let text = format!("{}{USAGE}{DONE}", CONTENT.repeat(2));
    let encoded = [gzip(&text), zstd::encode_all(text.as_bytes(), 1).unwrap()];
    for (request, content_type) in [
        (streamed(), "text/event-stream"),
        (streamed_with_usage(), "text/event-stream"),
        (chat("assistant"), "application/json"),
    ] {
        for encoded in &encoded {
            for size in [1, 7, encoded.len()] {
                let mut table = Table::set(Profile::Streamed);
                released(table.post(&request, &[]));
                table.answer_head("200", content_type, "10.0.0.1:80");
                let mut sent = Vec::new();
                for (index, chunk) in encoded.chunks(size).enumerate() {
                    let end = if (index + 1) * size >= encoded.len() { End::Last } else { End::More };
                    match feed(&mut table, chunk, end) {
                        Body::Unchanged => sent.extend_from_slice(chunk),
                        Body::Replaced(bytes) => sent.extend_from_slice(&bytes),
                    }
                }
                assert_eq!(&sent, encoded, "{size}");
                let summary = table.exchange.take_summary().unwrap();
                assert_eq!(summary.outcome, Outcome::Miscoded);
                let counted = summary.usage.unwrap();
                let output = counted.usage().output;
                assert!(matches!(counted, Counted::Estimated(_)) && output > 2, "{output}, nobody saw that it was 2");
            }
        }
    }
}

#[test]
fn what_breaks_in_an_encoded_answer_that_passes_is_charged_by_what_was_seen_before() {
    let encoded = gzip_flushed(&[CONTENT, CONTENT, USAGE, DONE]);
    let [first, second, usage_event, done, end] = encoded.as_slice() else { panic!("{}", encoded.len()) };
    let whole = encoded.concat();
    let before: &[u8] = &[&first[..], second].concat();
    let told: &[u8] = &[before, usage_event, done].concat();
    for (body, outcome, output) in [
        // It breaks off: what came is all there is.
        (before.to_vec(), Outcome::Miscoded, Some(2)),
        // What comes after the break is not seen, and it may be anything.
        ([before, b"\xff\xff\xff garbage"].concat(), Outcome::Miscoded, None),
        // The usage was told before.
        (told.to_vec(), Outcome::Miscoded, Some(2)),
        ([told, &end[..end.len() - 4], b"abcd"].concat(), Outcome::Miscoded, Some(2)),
        ([&whole[..], b"garbage"].concat(), Outcome::Miscoded, Some(2)),
        // Members one behind the other are one body.
        ([gzip(CONTENT), gzip(format!("{CONTENT}{USAGE}{DONE}"))].concat(), Outcome::Answered(200), Some(2)),
    ] {
        for size in [5, body.len()] {
            let mut table = Table::set(Profile::Streamed);
            released(table.post(&streamed_with_usage(), &[]));
            head(&mut table, "text/event-stream", "gzip");
            for chunk in body.chunks(size) {
                assert_eq!(feed(&mut table, chunk, End::More), Body::Unchanged);
            }
            assert_eq!(feed(&mut table, b"", End::Last), Body::Unchanged);
            let summary = table.exchange.take_summary().unwrap();
            let found = summary.usage.unwrap().usage().output;
            assert_eq!(summary.outcome, outcome, "{body:?}");
            assert!(output.map_or(found > 2, |output| found == output), "{found} of {output:?}");
        }
    }
}

#[test]
fn an_answer_that_expands_without_measure_passes_and_is_scanned_no_further() {
    let mut table = Table::set(Profile::Streamed);
    released(table.post(&streamed_with_usage(), &[]));
    head(&mut table, "text/event-stream", "zstd");
    let bomb = zstd::encode_all(std::io::repeat(b'x').take(64 << 20), 3).unwrap();
    let [before, after] = [CONTENT, USAGE].map(|text| zstd::encode_all(text.as_bytes(), 3).unwrap());
    assert_eq!(feed(&mut table, &[before, bomb, after].concat(), End::Last), Body::Unchanged);
    assert!(matches!(usage(&mut table), Counted::Estimated(usage) if usage.output > 1));
}

#[test]
fn an_answer_that_must_be_decoded_and_cannot_be_ends_in_an_error_behind_what_was() {
    let encoded = gzip_flushed(&[CONTENT, USAGE]);
    let cut = |table: &mut Table, chunks: &[(&[u8], End)]| {
        let mut sent = Vec::new();
        for (chunk, end) in chunks {
            let Body::Replaced(bytes) = feed(table, chunk, *end) else { panic!("it is changed") };
            sent.extend_from_slice(&bytes);
        }
        String::from_utf8(sent).unwrap()
    };
    let begun = || {
        let mut table = Table::set(Profile::Streamed);
        released(table.post(&streamed(), &[]));
        head(&mut table, "text/event-stream", "gzip");
        table
    };
    let error = |text: &str| -> Value {
        let rest = text.strip_prefix(CONTENT).unwrap_or_else(|| panic!("{text}")).trim_start();
        serde_json::from_str(rest.strip_prefix("data: ").unwrap().strip_suffix("\n\ndata: [DONE]\n\n").unwrap())
            .unwrap()
    };

    // In the middle: the proxy resets both sides a little later.
    let mut table = begun();
    let sent = cut(&mut table, &[(&encoded[0], End::More), (b"not deflated \xff\xff\xff", End::More)]);
    assert_eq!(error(&sent)["error"]["type"], "server_error");
    let reset_at = table.exchange.poll_timeout().unwrap();
    assert!(matches!(table.exchange.handle_timeout(reset_at), Action::Respond(_)));
    let Summary { outcome, usage: counted, .. } = table.exchange.take_summary().unwrap();
    assert_eq!(outcome, Outcome::Miscoded);
    assert!(matches!(counted, Some(Counted::Estimated(usage)) if usage.output == 1), "what was delivered");

    // At the end, where the upstream takes it for complete.
    let mut table = begun();
    let half = &encoded[1][..encoded[1].len() / 2];
    let sent = cut(&mut table, &[(&encoded[0], End::More), (half, End::Last)]);
    let message = error(&sent)["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with("it ends in the middle of its gzip data"), "{message}");
    assert!(table.exchange.is_over());

    // Only a check sum is missing.
    let mut table = begun();
    let encoded = gzip_flushed(&[CONTENT, DONE]);
    let sent = cut(&mut table, &[(&encoded[0], End::More), (&encoded[1], End::Last)]);
    assert_eq!(sent, format!("{CONTENT}{DONE}"));
    assert_eq!(table.exchange.take_summary().unwrap().outcome, Outcome::Answered(200));

    // Something follows the end that the stream has said.
    for format in
        [gzip(format!("{CONTENT}{DONE}")), zstd::encode_all(format!("{CONTENT}{DONE}").as_bytes(), 1).unwrap()]
    {
        let mut table = Table::set(Profile::Streamed);
        released(table.post(&streamed(), &[]));
        head(&mut table, "text/event-stream", if format[0] == 0x1f { "gzip" } else { "zstd" });
        let sent = cut(&mut table, &[(&format, End::More), (b"garbage", End::More), (b"more", End::Last)]);
        assert_eq!(sent, format!("{CONTENT}{DONE}"));
        assert_eq!(table.exchange.take_summary().unwrap().outcome, Outcome::Answered(200));
    }
}

#[test]
fn an_answer_without_a_body_may_say_that_it_is_encoded() {
    let mut table = Table::set(Profile::Streamed);
    released(table.post(&streamed(), &[]));
    let head = headers_of(&[(":status", "204"), ("content-type", "text/event-stream"), ("content-encoding", "gzip")]);
    table.exchange.response_headers(&head, End::Last, None, table.now).unwrap();
    assert_eq!(table.exchange.take_summary().unwrap().outcome, Outcome::Answered(204));
    // Or an empty one.
    let mut table = Table::set(Profile::Streamed);
    released(table.post(&streamed(), &[]));
    self::head(&mut table, "text/event-stream", "gzip");
    assert_eq!(feed(&mut table, b"", End::Last), replaced(""));
    assert_eq!(table.exchange.take_summary().unwrap().outcome, Outcome::Answered(200));
}

#[test]
fn a_stream_without_events_is_estimated_unless_it_breaks_off_early() {
    let answer = r#"{"choices":[{"message":{"content":"a b c"}}],"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}"#;
    let comments = ": thinking\n\n".repeat(1_000);
    let endless = "data: ".to_owned() + &"x".repeat(20_000);
    // What came, whether it was all, and whether an event of content has to be taken for granted.
    let cases = [
        (answer, End::Last, true),
        (answer, End::More, false),
        (&comments, End::More, false),
        (&endless, End::More, true),
    ];
    for (body, end, is_estimated_whole) in cases {
        let mut table = Table::set(Profile::Streamed);
        assert!(matches!(table.post(&streamed(), &[]), Action::Release(_)));
        head(&mut table, "text/event-stream", "identity");
        feed(&mut table, body.as_bytes(), end);
        table.exchange.gone(table.now);
        let Counted::Estimated(usage) = usage(&mut table) else { panic!("{body}") };
        assert_eq!(usage.output > 0, is_estimated_whole, "{}", &body[..20]);
    }
}

#[test]
fn no_header_is_added_to_an_answer_that_has_no_room_for_it() {
    let limited = json!({"model": "metered", "messages": [{"role": "user", "content": "Hi"}]});
    for (headers, is_told) in [(90, true), (99, false), (100, false)] {
        let mut table = Table::set(Profile::Streamed);
        table.post(&limited, &[]);
        assert!(matches!(table.admit(), Action::Release(_)));
        let names: Vec<String> = (2..headers).map(|number| format!("x-{number}")).collect();
        let mut answer = vec![(":status", "200"), ("content-type", "application/json")];
        answer.extend(names.iter().map(|name| (name.as_str(), "1")));
        let told = table.exchange.response_headers(&headers_of(&answer), End::More, None, table.now).unwrap();
        let Action::Answer(Reply::ResponseHeaders(mutations)) = told else { panic!("{told:?}") };
        assert_eq!(!mutations.set.is_empty(), is_told, "{headers}: {:?}", mutations.set);
    }
}
