//! Bodies that are large, deep or odd.

use super::*;

#[test]
fn ten_thousand_messages_make_one_chain() {
    let message = |number: usize| json!({"role": if number.is_multiple_of(2) { "user" } else { "assistant" }, "content": "Hello!"});
    let body = |count: usize| json!({"model": "m", "messages": (0..count).map(message).collect::<Vec<_>>()});
    let (whole, earlier) = (chat_value(&body(10_000)), chat_value(&body(9_999)));
    assert_eq!(whole.bytes, 5_000 * (4 + 9 + 2 * (2 * 5 + 6)));
    assert!(whole.blocks.starts_with(&earlier.blocks));
}

#[test]
fn a_message_of_megabytes_is_hashed_up_to_the_cap_and_counted_to_its_end() {
    let text = "All work and no play.\\n".repeat(800_000);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    let chain = chat(&body);
    assert_eq!(chain.bytes, 9 + 5 + 800_000 * 22);
    assert_eq!(chain.blocks.len(), MAX_BLOCKS);
    let capped = Canon { max_blocks: 100, ..Canon::default() };
    let segments = scan(Operation::ChatCompletions, body.as_bytes()).unwrap().segments;
    assert_eq!(capped.read(&segments, body.as_bytes()).chain.blocks, chain.blocks[..100]);
}

#[test]
fn lone_surrogates_are_one_character_whatever_they_were() {
    let said = |text: &str| chat(&format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#));
    assert_eq!(said(r"\ud800"), said("\u{fffd}"));
    assert_eq!(said(r"\udc00x\ud83d"), said("\u{fffd}x\u{fffd}"));
    assert_eq!(said(r"\ud83d\ude00"), said("😀"));
}

#[test]
fn invalid_utf_8_never_comes_to_a_chain() {
    let body = [&br#"{"model":"m","messages":[{"role":"user","content":""#[..], &[0xff, 0xfe], br#""}]}"#].concat();
    assert!(scan(Operation::ChatCompletions, &body).is_err());
}

#[test]
fn a_deep_tool_is_read_to_its_end() {
    let deep = |leaf: &str| {
        let tool = format!("{}{leaf}{}", "[".repeat(120), "]".repeat(120));
        chat(&format!(r#"{{"model":"m","tools":[{tool}],"messages":[]}}"#))
    };
    assert_ne!(deep("1"), deep("2"));
    assert_eq!(deep("1"), deep(" 1\n"));
}

#[test]
fn more_pieces_than_are_told_apart_still_count() {
    let body = |last: &str| {
        let ones = "1,".repeat(100_000);
        chat(&format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{ones}{last}]}}]}}"#))
    };
    assert_ne!(body("1"), body("2"));
    assert!(shared(&body("1"), &body("2")) > 200);
}
