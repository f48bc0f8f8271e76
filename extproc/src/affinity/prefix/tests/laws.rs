//! What holds for every conversation, in every dialect.

use proptest::prelude::*;

use super::*;

const DIALECTS: [Operation; 3] = [Operation::ChatCompletions, Operation::Responses, Operation::Messages];

/// One exchange of a conversation, as no dialect writes it.
#[derive(Debug, Clone)]
enum Turn {
    User(String),
    Image(String, String),
    Assistant { thought: Option<String>, text: String },
    Call { id: String, arguments: String, result: String },
}

fn turn() -> impl Strategy<Value = Turn> {
    let text = || "[a-zé\"\\\\\n😀 ]{0,700}";
    prop_oneof![
        text().prop_map(Turn::User),
        (text(), "[a-z]{1,9}").prop_map(|(text, image)| Turn::Image(text, image)),
        (prop::option::of(text()), text()).prop_map(|(thought, text)| Turn::Assistant { thought, text }),
        ("[a-z]{4}", text(), text()).prop_map(|(id, arguments, result)| Turn::Call { id, arguments, result }),
    ]
}

/// The messages, items or turns that a dialect makes of one.
fn written(dialect: Operation, turn: &Turn) -> Vec<Value> {
    match (dialect, turn) {
        (Operation::Messages, Turn::User(text)) => {
            vec![json!({"role": "user", "content": [{"type": "text", "text": text}]})]
        }
        (_, Turn::User(text)) => vec![json!({"role": "user", "content": text})],
        (Operation::ChatCompletions, Turn::Image(text, image)) => vec![json!({"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": image, "detail": "low"}}, {"type": "text", "text": text}]})],
        (Operation::Responses, Turn::Image(text, image)) => {
            vec![json!({"role": "user", "type": "message", "content": [
            {"type": "input_image", "image_url": image}, {"type": "input_text", "text": text}]})]
        }
        (_, Turn::Image(text, image)) => vec![json!({"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}},
            {"type": "text", "text": text}]})],
        (Operation::ChatCompletions, Turn::Assistant { thought, text }) => {
            vec![json!({"role": "assistant", "content": text, "reasoning_content": thought})]
        }
        (Operation::Responses, Turn::Assistant { thought, text }) => {
            let thought = thought.iter().map(|thought| {
                json!({"type": "reasoning", "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "short"}],
                "content": [{"type": "reasoning_text", "text": thought}]})
            });
            let said = json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}]});
            thought.chain([said]).collect()
        }
        (_, Turn::Assistant { thought, text }) => {
            let thought =
                thought.iter().map(|thought| json!({"type": "thinking", "thinking": thought, "signature": "s"}));
            let blocks: Vec<_> = thought.chain([json!({"type": "text", "text": text})]).collect();
            vec![json!({"role": "assistant", "content": blocks})]
        }
        (Operation::ChatCompletions, Turn::Call { id, arguments, result }) => vec![
            json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"arguments": arguments}}]}),
            json!({"role": "tool", "tool_call_id": id, "name": "get", "content": result}),
        ],
        (Operation::Responses, Turn::Call { id, arguments, result }) => vec![
            json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "get", "arguments": arguments}),
            json!({"type": "function_call_output", "call_id": id, "output": result}),
        ],
        (_, Turn::Call { id, arguments, result }) => vec![
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "get", "input": {"a": arguments}}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "is_error": false,
                "content": [{"type": "text", "text": result}]}]}),
        ],
    }
}

fn body(dialect: Operation, turns: &[Turn]) -> Value {
    let turns: Vec<Value> = turns.iter().flat_map(|turn| written(dialect, turn)).collect();
    let tools = json!([{"name": "get"}, {"name": "put"}]);
    match dialect {
        Operation::ChatCompletions => {
            let system = json!({"role": "system", "content": "Be \"brief\"."});
            let messages: Vec<Value> = [system].into_iter().chain(turns).collect();
            json!({"model": "m", "tools": tools, "reasoning_effort": "low", "documents": [{"a": 1}], "stream": true,
                "messages": messages})
        }
        Operation::Responses => json!({"model": "m", "tools": tools, "instructions": "Be \"brief\".", "stream": true,
            "reasoning": {"effort": "low"}, "conversation": {"id": "c"}, "input": turns}),
        _ => json!({"model": "m", "tools": tools, "max_tokens": 5, "thinking": {"type": "enabled"},
            "system": [{"type": "text", "text": "Be \"brief\"."}], "messages": turns}),
    }
}

/// Prints JSON in any way that means the same: keys in any order, white space, escapes, and `cache_control` anywhere.
struct Printer {
    state: u64,
}

impl Printer {
    fn any(&mut self, choices: u64) -> u64 {
        self.state = xxh3_64_with_seed(&self.state.to_le_bytes(), 1);
        self.state % choices
    }

    fn print(&mut self, value: &Value, out: &mut String) {
        self.space(out);
        match value {
            Value::Object(members) => {
                let mut members: Vec<(&str, &Value)> =
                    members.iter().map(|(key, value)| (key.as_str(), value)).collect();
                let control = json!({"type": "ephemeral"});
                if self.any(3) == 0 && !members.is_empty() {
                    members.push(("cache_control", &control));
                }
                for index in (1..members.len()).rev() {
                    members.swap(index, self.any(index as u64 + 1) as usize);
                }
                out.push('{');
                for (index, (key, value)) in members.into_iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    self.space(out);
                    // An escaped `cache_control` is not looked for: no client writes one.
                    if key == "cache_control" {
                        out.push_str("\"cache_control\"")
                    } else {
                        self.string(key, out)
                    }
                    self.space(out);
                    out.push(':');
                    self.print(value, out);
                }
                self.space(out);
                out.push('}');
            }
            Value::Array(elements) => {
                out.push('[');
                for (index, element) in elements.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    self.print(element, out);
                }
                self.space(out);
                out.push(']');
            }
            Value::String(text) => self.string(text, out),
            other => out.push_str(&other.to_string()),
        }
        self.space(out);
    }

    fn string(&mut self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            let must = matches!(character, '"' | '\\') || character < ' ';
            match self.any(8) {
                0 => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ if must => out.push_str(
                    Value::from(character.to_string()).to_string().trim_matches('"').trim_end_matches("\\\""),
                ),
                _ => out.push(character),
            }
            if must && character == '"' && out.ends_with('\\') {
                out.push('"');
            }
        }
        out.push('"');
    }

    fn space(&mut self, out: &mut String) {
        out.push_str(["", "", "", "", " ", "\n\t", "\r\n "][self.any(7) as usize]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn however_a_body_is_printed_its_prompt_is_the_same(turns in prop::collection::vec(turn(), 0..6), state in any::<u64>()) {
        for dialect in DIALECTS {
            let body = body(dialect, &turns);
            let mut printed = String::new();
            Printer { state }.print(&body, &mut printed);
            let parsed: Value = serde_json::from_str(&printed).unwrap();
            prop_assert_eq!(&parsed["model"], "m");
            prop_assert_eq!(prompt_of(dialect, &printed), prompt_of(dialect, &body.to_string()), "{}", printed);
        }
    }

    #[test]
    fn a_conversation_that_grows_keeps_its_blocks(turns in prop::collection::vec(turn(), 1..10), cut in 0_usize..10) {
        for dialect in DIALECTS {
            let whole = chain_of(dialect, &body(dialect, &turns).to_string());
            let earlier = chain_of(dialect, &body(dialect, &turns[..cut.min(turns.len())]).to_string());
            prop_assert!(whole.blocks.starts_with(&earlier.blocks));
        }
    }

    #[test]
    fn a_completion_that_grows_keeps_its_blocks(text in "\\PC{0,2000}", more in "\\PC{0,500}", ids in prop::collection::vec(any::<u32>(), 0..400)) {
        let chain = |prompt: Value| chain_of(Operation::Completions, &json!({"model": "m", "prompt": prompt}).to_string());
        let (short, long) = (chain(text.clone().into()), chain(format!("{text}{more}").into()));
        let whole = (text.len() + 1) / 256;
        prop_assert!(shared(&short, &long) >= whole);
        let (short, long) = (chain(ids.clone().into()), chain([ids.clone(), vec![1; 200]].concat().into()));
        prop_assert!(shared(&short, &long) >= (ids.len() * 4 + 1) / 256);
    }

    #[test]
    fn bodies_that_are_broken_anywhere_never_panic(
        turns in prop::collection::vec(turn(), 0..4), flips in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        for dialect in DIALECTS {
            let mut body = body(dialect, &turns).to_string().into_bytes();
            for (place, byte) in &flips {
                let place = place % body.len();
                body[place] ^= byte;
            }
            if let Ok(scan) = scan(dialect, &body) {
                let prompt = Canon::default().read(&scan.segments, &body);
                prop_assert_eq!(Canon::default().read(&scan.segments, &body), prompt);
            }
            // Segments of another body, too.
            let other = b"{}";
            if let Ok(scan) = scan(dialect, &body) {
                prop_assert!(Canon::default().read(&scan.segments, other).chain.blocks.len() <= MAX_BLOCKS);
            }
        }
    }
}
