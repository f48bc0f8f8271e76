use attache_proto::Operation;
use attache_proto::request::scan;
use serde_json::{Value, json};

use super::*;

mod laws;
mod shapes;

pub(super) fn prompt_of(operation: Operation, body: &str) -> Prompt {
    Canon::default().read(&scan(operation, body.as_bytes()).unwrap().segments, body.as_bytes())
}

pub(super) fn chain_of(operation: Operation, body: &str) -> PrefixChain {
    prompt_of(operation, body).chain
}

fn chat(body: &str) -> PrefixChain {
    chain_of(Operation::ChatCompletions, body)
}

fn chat_value(body: &Value) -> PrefixChain {
    chat(&body.to_string())
}

fn responses(body: &Value) -> PrefixChain {
    chain_of(Operation::Responses, &body.to_string())
}

fn messages(body: &Value) -> PrefixChain {
    chain_of(Operation::Messages, &body.to_string())
}

/// How many of their first blocks two chains share.
fn shared(one: &PrefixChain, other: &PrefixChain) -> usize {
    one.blocks.iter().zip(&other.blocks).take_while(|(one, other)| one == other).count()
}

fn user(content: Value) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": content}]})
}

#[test]
fn white_space_key_order_escapes_and_sampling_make_no_difference() {
    let plain = r#"{"model":"llama","reasoning_effort":"high","documents":[{"a":1}],"messages":[{"role":"user","name":"Zoë","content":"hi\nthere","tool_calls":[1]}]}"#;
    let other = r#"{ "temperature" : 0.5, "stream" : true, "response_format":{"type":"json_object"},
        "messages" : [ { "tool_calls":[1], "content" : "hi\u000athere" , "name" : "Zo\u00eb", "role" : "user" } ],
        "documents":[{"a":1}], "max_tokens": 5, "model" : "llama", "reasoning_effort":"high" }"#;
    assert_eq!(chat(plain), chat(other));
}

#[test]
fn another_stream_needs_another_version() {
    // Where this test fails because the stream was changed, CANON_VERSION must count up.
    let body = json!({
        "model": "m", "cache_salt": "s", "reasoning_effort": "low", "tools": [{"name": "t"}],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "u".repeat(300)}],
    });
    let chain = chat_value(&body);
    assert_eq!((CANON_VERSION, chain.bytes), (2, 366));
    assert_eq!(chain.seed, 8_139_571_457_004_014_537);
    assert_eq!(chain.blocks, [8_609_706_037_574_203_473]);
    assert_eq!(chain.tail, 17_530_450_266_488_283_437);
}

#[test]
fn the_order_of_a_tools_keys_matters_and_its_white_space_and_cache_control_do_not() {
    let with_tool = |tool: &str| chat(&format!(r#"{{"model":"m","tools":[{tool}],"messages":[]}}"#));
    assert_eq!(with_tool(r#"{"a":1}"#), with_tool(r#"{"a": 1, "cache_control":{"type":"ephemeral"}}"#));
    assert_ne!(with_tool(r#"{"a":1}"#), with_tool(r#"{"a":2}"#));
    assert_ne!(with_tool(r#"{"a":1,"b":2}"#), with_tool(r#"{"b":2,"a":1}"#));
}

#[test]
fn tools_come_before_messages_wherever_they_are_in_the_document() {
    let tool = "t".repeat(1000);
    let early = format!(r#"{{"model":"m","tools":["{tool}"],"messages":[{{"role":"user","content":"a"}}]}}"#);
    let late = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"b"}}],"tools":["{tool}"]}}"#);
    assert_eq!(shared(&chat(&early), &chat(&late)), 3);
}

#[test]
fn the_order_of_a_contents_parts_matters() {
    let (one, two) = (json!({"type": "text", "text": "one"}), json!({"type": "image_url", "image_url": {"url": "x"}}));
    assert_ne!(chat_value(&user(json!([&one, &two]))), chat_value(&user(json!([&two, &one]))));
}

#[test]
fn where_one_segment_ends_and_the_next_begins_matters() {
    let body = |texts: [&str; 2]| user(texts.map(|text| json!({"type": "text", "text": text})).into_iter().collect());
    assert_ne!(chat_value(&body(["ab", "c"])), chat_value(&body(["a", "bc"])));
}

#[test]
fn a_longer_text_keeps_the_blocks_of_what_it_starts_with() {
    let document = "d".repeat(10_000);
    let asked = |question: &str| chat_value(&user(format!("{document}{question}").into()));
    let (short, long) = (asked("Who?"), asked("Who was it, and why did nobody see it coming?"));
    assert_eq!(shared(&short, &long), 10_000 / 256);
    let prompt = |text: &str| chain_of(Operation::Completions, &json!({"model": "m", "prompt": text}).to_string());
    assert_eq!(shared(&prompt(&document), &prompt(&document.repeat(2))), 10_000 / 256);
}

#[test]
fn an_image_weighs_what_it_weighs_in_a_cache_whatever_its_data_and_its_dialect() {
    let url = |data: &str| format!("data:image/png;base64,{data}");
    let image =
        |url: &str| chat_value(&user(json!([{"type": "image_url", "image_url": {"url": url, "detail": "low"}}])));
    let (one, other) = (image(&url(&"a".repeat(100_000))), image(&url(&"b".repeat(100_000))));
    assert_eq!(one.bytes, 4 + 5 + 5 + MEDIA_BYTES as u64);
    assert_eq!((one.bytes, shared(&one, &other)), (other.bytes, 0));
    assert_eq!(one.blocks.len(), 17);
    let bytes = one.bytes;
    assert_eq!(image("https://x/y.png").bytes, bytes);
    let part = json!({"type": "input_image", "image_url": url("aaaa")});
    let item = json!({"model": "m", "input": [{"role": "user", "content": [part]}]});
    assert_eq!(responses(&item), image(&url("aaaa")));
    let source = json!({"type": "base64", "media_type": "image/png", "data": "a".repeat(5000)});
    assert_eq!(messages(&user(json!([{"type": "image", "source": source}]))).bytes, bytes);
    let sound = json!([{"type": "input_audio", "input_audio": {"format": "wav", "data": "abc"}}]);
    assert_eq!(chat_value(&user(sound)).bytes, bytes);
}

#[test]
fn an_image_in_a_history_keeps_what_comes_before_and_after_it() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:x"}});
    let asked = |question: &str| {
        chat_value(&json!({"model": "m", "messages": [
            {"role": "user", "content": [{"type": "text", "text": "t".repeat(600)}, image]},
            {"role": "assistant", "content": "a".repeat(600)},
            {"role": "user", "content": question},
        ]}))
    };
    let (one, other) = (asked("Who?"), asked("When was that?"));
    assert_eq!(shared(&one, &other), one.blocks.len());
}

#[test]
fn token_ids_count_by_their_values() {
    let body = |prompt: &str| chain_of(Operation::Completions, &format!(r#"{{"model":"m","prompt":{prompt}}}"#));
    assert_eq!(body("[1,22,333]"), body("[ 1,\n22 , 333 ]"));
    assert_ne!(body("[1,22,333]"), body("[1,2,2333]"));
    assert_eq!(body("[1,22,333]").bytes, 3 * 4 + 5);
}

#[test]
fn a_nonce_at_the_head_of_a_systems_text_makes_no_difference() {
    let line = |nonce: &str| format!("x-anthropic-billing-header: cc_version=2.1; cch={nonce};\nYou are an agent.");
    let said = |role: &str, nonce: &str| {
        chat_value(&json!({"model": "m", "messages": [{"role": role, "content": line(nonce)}]}))
    };
    assert_eq!(said("system", "1"), said("system", "22"));
    assert_eq!(said("developer", "1"), said("developer", "22"));
    assert_ne!(said("user", "1"), said("user", "22"));
    let instructed = |nonce: &str| responses(&json!({"model": "m", "instructions": line(nonce), "input": "x"}));
    assert_eq!(instructed("1"), instructed("22"));
    let system = |system: Value| messages(&json!({"model": "m", "system": system, "messages": []}));
    assert_eq!(system(line("1").into()), system(line("22").into()));
    let head = |nonce: &str| format!("x-anthropic-billing-header: cch={nonce};");
    let blocks = |nonce: &str| {
        json!([{"type": "text", "text": head(nonce)},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}])
    };
    assert_eq!(system(blocks("1")), system(blocks("22")));
    let prompt =
        |nonce: &str| chain_of(Operation::Completions, &json!({"model": "m", "prompt": head(nonce)}).to_string());
    assert_ne!(prompt("1"), prompt("22"));
}

#[test]
fn masks_are_the_operators() {
    let canon = Canon::new(&[r"Session [0-9]+"]).unwrap();
    let said = |nonce: u32| {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"system","content":"Session {nonce}. Hi"}}]}}"#);
        canon.read(&scan(Operation::ChatCompletions, body.as_bytes()).unwrap().segments, body.as_bytes())
    };
    assert_eq!(said(1), said(22));
    assert_eq!(Canon::new(&["("]).unwrap_err().pattern, "(");
}

#[test]
fn equal_prompts_of_the_three_apis_are_one_prompt() {
    let chat = chat_value(&json!({"model": "m", "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}));
    let input = json!([{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]);
    assert_eq!(responses(&json!({"model": "m", "instructions": "Be brief.", "input": input})), chat);
    let turn = json!([{"role": "user", "content": "Hi"}]);
    assert_eq!(messages(&json!({"model": "m", "max_tokens": 5, "system": "Be brief.", "messages": turn})), chat);
}

#[test]
fn what_the_server_keeps_is_an_explicit_key() {
    let key =
        |fields: &str| prompt_of(Operation::Responses, &format!(r#"{{"model":"m","input":"x"{fields}}}"#)).explicit;
    assert_eq!(key(""), None);
    let conversation = key(r#","conversation":"c1""#);
    assert!(conversation.is_some());
    assert_eq!(key(r#","conversation":{"id":"c\u0031"}"#), conversation);
    assert_eq!(key(r#","previous_response_id":"r","conversation":"c1""#), conversation);
    assert_ne!(key(r#","previous_response_id":"c1""#), conversation);
    assert_ne!(key(r#","previous_response_id":"r1""#), key(r#","previous_response_id":"r2""#));
}

#[test]
fn the_salt_is_told_and_no_part_of_the_chain() {
    let salted = |salt: &str| {
        prompt_of(Operation::ChatCompletions, &format!(r#"{{"model":"m","cache_salt":{salt},"messages":[]}}"#))
    };
    assert_eq!(salted("\"a\"").cache_salt, salted("\"\\u0061\"").cache_salt);
    assert_ne!(salted("\"a\"").cache_salt, salted("\"b\"").cache_salt);
    assert_eq!(salted("null").cache_salt, None);
    assert_eq!((salted("\"a\"").chain.bytes, &salted("\"a\"").chain), (0, &salted("\"b\"").chain));
}

#[test]
fn a_secret_keys_every_hash() {
    let body = user("x".repeat(300).into()).to_string();
    let segments = scan(Operation::ChatCompletions, body.as_bytes()).unwrap().segments;
    let chain = |secret_seed| {
        Canon { secret_seed: SecretSeed(secret_seed), ..Canon::default() }.read(&segments, body.as_bytes()).chain
    };
    assert_ne!((chain(0).seed, chain(0).blocks[0], chain(0).tail), (chain(1).seed, chain(1).blocks[0], chain(1).tail));
    assert_eq!(shared(&chain(0), &chain(1)), 0);
}

#[test]
fn what_was_measured_sums_up_to_the_stream() {
    let body = r#"{"model":"m","cache_salt":"s","messages":[{"role":"user","content":"a\nb"}]}"#;
    let segments = scan(Operation::ChatCompletions, body.as_bytes()).unwrap().segments;
    let (prompt, measured) = Canon::default().measure(&segments, body.as_bytes());
    let told: Vec<_> =
        measured.iter().map(|segment| (segment.kind, segment.sent_bytes, segment.stream_bytes)).collect();
    assert_eq!(told, [(SegmentKind::Role, 4, 9), (SegmentKind::Text, 4, 8), (SegmentKind::CacheSalt, 1, 0)]);
    assert_eq!(prompt.chain.bytes, 17);
    assert_eq!(prompt, Canon::default().read(&segments, body.as_bytes()));
}
