//! The Responses API and Anthropic's messages.

use super::*;
use SegmentKind::{Conversation, PreviousResponse, System};

fn responses(body: &str) -> Vec<(SegmentKind, SegmentForm, String)> {
    segments(Operation::Responses, body)
}

fn messages(body: &str) -> Vec<(SegmentKind, SegmentForm, String)> {
    segments(Operation::Messages, body)
}

#[test]
fn the_items_of_a_responses_input_are_read_as_a_template_prints_them() {
    let body = r#"{"input":[
        {"role":"user","content":"hi"},
        {"type":"message","id":"msg_1","status":"completed","role":"assistant",
         "content":[{"type":"output_text","text":"hello","annotations":[]}]},
        {"content":[{"type":"input_text","text":"look"},{"type":"input_image","detail":"auto","image_url":"data:x"},
                    {"file_id":"f1","type":"input_file"}],"role":"user"},
        {"type":"reasoning","id":"rs_1","content":[{"type":"reasoning_text","text":"b"}],
         "summary":[{"type":"summary_text","text":"a"}],"encrypted_content":null},
        {"arguments":"{\"a\":1}","call_id":"c1","name":"get","type":"function_call","id":"fc_1","status":"completed"},
        {"output":"21","call_id":"c1","type":"function_call_output"},
        {"type":"item_reference","id":"x"}, "bare"],
        "metadata":{"a":1},"previous_response_id":"resp_1","conversation":{"id":"conv_1"},"text":{"format":{}},
        "tools":[{"type":"function"}],"instructions":"Be brief.","reasoning":{"effort":"low"},"cache_salt":"s","model":"m"}"#;
    let expected = [
        segment(Template, Raw, r#"{"effort":"low"}"#),
        segment(Tool, Raw, r#"{"type":"function"}"#),
        segment(System, Plain, ""),
        segment(Text, Plain, "Be brief."),
        segment(Role, Plain, "user"),
        segment(Text, Plain, "hi"),
        segment(Role, Plain, "assistant"),
        segment(Text, Plain, "hello"),
        segment(Role, Plain, "user"),
        segment(Text, Plain, "look"),
        segment(Media, Plain, "data:x"),
        segment(Media, Plain, "f1"),
        segment(Reasoning, Plain, "a"),
        segment(Reasoning, Plain, "b"),
        segment(Name, Plain, "get"),
        segment(ToolCallId, Plain, "c1"),
        segment(ToolCalls, Escaped, r#"{"a":1}"#),
        segment(ToolCallId, Plain, "c1"),
        segment(Text, Plain, "21"),
        segment(Text, Raw, r#"{"type":"item_reference","id":"x"}"#),
        segment(Text, Plain, "bare"),
        segment(Schema, Raw, r#"{"format":{}}"#),
        segment(CacheSalt, Plain, "s"),
        segment(Conversation, Plain, "conv_1"),
        segment(PreviousResponse, Plain, "resp_1"),
    ];
    assert_eq!(responses(body), expected);
}

#[test]
fn a_responses_input_of_text_is_one_text_and_not_several_prompts() {
    let body = r#"{"model":"m","input":"hi","instructions":null,"conversation":"c","previous_response_id":null}"#;
    assert_eq!(responses(body), [segment(Text, Plain, "hi"), segment(Conversation, Plain, "c")]);
    let list = scan(Operation::Responses, br#"{"model":"m","input":["a","b"],"max_output_tokens":7}"#).unwrap();
    assert_eq!((list.prompts, list.max_tokens), (1, Some(7)));
    for odd in [r#"{"id":5}"#, "{}", "null"] {
        assert_eq!(responses(&format!(r#"{{"model":"m","conversation":{odd}}}"#)), [], "{odd}");
    }
}

#[test]
fn the_blocks_of_anthropics_messages_are_read_as_a_template_prints_them() {
    let body = r#"{"messages":[
        {"role":"user","content":"hi"},
        {"content":[{"signature":"sig","thinking":"hm","type":"thinking"},{"type":"redacted_thinking","data":"xx"},
                    {"type":"text","text":"Let me see.","cache_control":{"type":"ephemeral"}},
                    {"input":{"a":1},"name":"get","id":"t1","type":"tool_use"}],"role":"assistant"},
        {"role":"user","content":[
            {"content":[{"type":"text","text":"21"},{"type":"image","source":{"data":"b64","type":"base64"}}],
             "is_error":false,"tool_use_id":"t1","type":"tool_result"},
            {"type":"tool_result","tool_use_id":"t2","content":"ok"},
            {"type":"document","title":"T","source":{"media_type":"text/plain","data":"words","type":"text"}},
            {"type":"document","source":{"type":"content","content":[{"type":"text","text":"more"}]}},
            {"type":"image","source":{"type":"url","url":"https://x"}},
            {"type":"odd","a":1},"bare"]}],
        "metadata":{"user_id":"u"},"thinking":{"type":"enabled"},"tools":[{"name":"get"}],"max_tokens":9,
        "system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}},{"type":"text","text":"Now."}],
        "model":"m"}"#;
    let expected = [
        segment(Template, Raw, r#"{"type":"enabled"}"#),
        segment(Tool, Raw, r#"{"name":"get"}"#),
        segment(System, Plain, ""),
        segment(Text, Plain, "Be brief."),
        segment(Text, Plain, "Now."),
        segment(Role, Plain, "user"),
        segment(Text, Plain, "hi"),
        segment(Role, Plain, "assistant"),
        segment(Reasoning, Plain, "hm"),
        segment(Reasoning, Plain, "xx"),
        segment(Text, Plain, "Let me see."),
        segment(Name, Plain, "get"),
        segment(ToolCallId, Plain, "t1"),
        segment(ToolCalls, Raw, r#"{"a":1}"#),
        segment(Role, Plain, "user"),
        segment(ToolCallId, Plain, "t1"),
        segment(Text, Plain, "21"),
        segment(Media, Plain, "b64"),
        segment(ToolCallId, Plain, "t2"),
        segment(Text, Plain, "ok"),
        segment(Name, Plain, "T"),
        segment(Text, Plain, "words"),
        segment(Text, Plain, "more"),
        segment(Media, Plain, "https://x"),
        segment(Text, Raw, r#"{"type":"odd","a":1}"#),
        segment(Text, Plain, "bare"),
    ];
    assert_eq!(messages(body), expected);
    assert_eq!(scan(Operation::Messages, body.as_bytes()).unwrap().max_tokens, Some(9));
}

#[test]
fn blocks_in_blocks_are_read_to_a_bounded_depth() {
    let nest = |depth: usize| {
        let (open, close) = (r#"{"type":"tool_result","content":["#.repeat(depth), "]}".repeat(depth));
        format!(r#"{{"model":"m","messages":[{{"content":[{open}{{"type":"text","text":"x"}}{close}]}}]}}"#)
    };
    assert_eq!(messages(&nest(2)), [segment(Text, Plain, "x")]);
    let deep = messages(&nest(50));
    assert_eq!((deep.len(), deep[0].1), (1, Raw));
    let error = scan(Operation::Messages, nest(100).as_bytes());
    assert_eq!(error, Err(ScanError::TooDeep));
}

#[test]
fn odd_shapes_of_the_other_dialects_are_raw_and_no_errors() {
    for odd in ["5", "\"x\"", "{}", "[1]", "[[]]", "[null]", "[{}]", r#"[{"type":7}]"#, r#"[{"content":{"a":[{}]}}]"#] {
        for operation in [Operation::Responses, Operation::Messages] {
            let body = format!(
                r#"{{"model":"m","input":{odd},"messages":{odd},"system":{odd},"tools":{odd},"instructions":{odd}}}"#
            );
            assert!(scan(operation, body.as_bytes()).is_ok(), "{body}");
        }
    }
}

#[test]
fn each_dialect_is_bounded_by_its_own_field() {
    let body = r#"{"model":"m"}"#;
    assert_eq!(lowered(Operation::Responses, body, 64), r#"{"model":"m","max_output_tokens":64}"#);
    assert_eq!(lowered(Operation::Messages, body, 64), r#"{"model":"m","max_tokens":64}"#);
    let both = r#"{"model":"m","max_output_tokens":900,"max_tokens":5}"#;
    let bounded = r#"{"model":"m","max_output_tokens":64,"max_tokens":5}"#;
    assert_eq!(lowered(Operation::Responses, both, 64), bounded);
    assert_eq!(lowered(Operation::Messages, both, 64), bounded);
    let bound = |operation| scan(operation, both.as_bytes()).unwrap().max_tokens;
    let of = [Operation::Responses, Operation::Messages, Operation::ChatCompletions].map(bound);
    assert_eq!(of, [Some(900), Some(5), Some(5)]);
}
