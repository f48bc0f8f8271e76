use proptest::prelude::*;
use serde_json::{Map, Value, json};

mod dialects;
mod nested;
mod whole;

use super::*;
use crate::splice::Splice;
use SegmentForm::{Escaped, Plain, Raw};
use SegmentKind::{
    CacheSalt, Media, Name, Reasoning, Role, Schema, Template, Text, Tokens, Tool, ToolCallId, ToolCalls,
};

fn chat(body: &str) -> Result<RequestScan, ScanError> {
    scan(Operation::ChatCompletions, body.as_bytes())
}

/// The segments of a body, as kind, form and text.
fn segments(operation: Operation, body: &str) -> Vec<(SegmentKind, SegmentForm, String)> {
    let scan = scan(operation, body.as_bytes()).unwrap();
    let read = |segment: &Segment| {
        let text = String::from_utf8(segment.text(body.as_bytes()).into_owned()).unwrap();
        (segment.kind, segment.form, text)
    };
    scan.segments.iter().map(read).collect()
}

fn chat_segments(body: &str) -> Vec<(SegmentKind, SegmentForm, String)> {
    segments(Operation::ChatCompletions, body)
}

fn segment(kind: SegmentKind, form: SegmentForm, text: &str) -> (SegmentKind, SegmentForm, String) {
    (kind, form, text.to_owned())
}

fn edited(body: &str, model: &str) -> String {
    let edits = chat(body).unwrap().edits(model, UsageEvent::Ask);
    let spliced = Splice::new(edits, body.len()).unwrap().apply(&Bytes::copy_from_slice(body.as_bytes()));
    String::from_utf8(spliced.to_vec()).unwrap()
}

#[test]
fn the_fields_are_found_in_any_order_at_the_top_level_only() {
    let body = r#" { "messages" : [{"model":"no","stream":true,"n":9}], "n": 3, "metadata":{"model":"no"},
        "max_tokens": 10, "model" : "mod\u0065l", "max_completion_tokens":20, "stream" : true } "#;
    let scan = chat(body).unwrap();
    assert_eq!(scan.model, "model");
    assert_eq!(&body[scan.model_span.clone()], r#""mod\u0065l""#);
    assert!(scan.stream);
    assert_eq!((scan.max_tokens, scan.choices), (Some(20), 3));
    assert_eq!(scan.include_usage, IncludeUsage::Absent { insert_at: body.len() - 2 });
    assert_eq!(scan.segments, []);
}

#[test]
fn escaped_keys_are_the_keys_they_spell() {
    let body = r#"{"mod\u0065l":"m","\u0073tream":true,"m\u0065ssages":[{"r\u006fle":"user","c\u006fntent":"x"}]}"#;
    let scan = chat(body).unwrap();
    assert_eq!((scan.model.as_str(), scan.stream), ("m", true));
    assert_eq!(chat_segments(body), [segment(Role, Plain, "user"), segment(Text, Plain, "x")]);
}

#[test]
fn each_fault_of_the_model_has_its_own_error() {
    assert_eq!(chat("{}"), Err(ScanError::NoModel));
    assert_eq!(chat(r#"{"a":{"model":"m"}}"#), Err(ScanError::NoModel));
    for body in [r#"{"model":null}"#, r#"{"model":5}"#, r#"{"model":["m"]}"#, r#"{"model":""}"#] {
        assert_eq!(chat(body), Err(ScanError::ModelNotAString), "{body}");
    }
    for body in [r#"{"model":"a","model":"a"}"#, r#"{"model":"a","mod\u0065l":"b"}"#, r#"{"model":"a","model":1}"#] {
        assert_eq!(chat(body), Err(ScanError::Duplicate("model")), "{body}");
    }
}

#[test]
fn each_fault_of_the_body_has_its_own_error() {
    assert_eq!(chat(""), Err(ScanError::Empty));
    assert_eq!(chat(" \r\n\t"), Err(ScanError::Empty));
    assert_eq!(chat("[]"), Err(ScanError::NotAnObject));
    assert_eq!(chat("\"model\""), Err(ScanError::NotAnObject));
    let not_json = |reason, offset| Err(ScanError::NotJson { reason, offset });
    assert_eq!(chat("model=m"), not_json("expected a value", 0));
    assert_eq!(chat(r#"{"model":"m"}x"#), not_json("unexpected bytes after the value", 13));
    assert_eq!(chat(r#"{"model":"m""#), not_json("unexpected end", 12));
    assert_eq!(chat(&format!(r#"{{"model":"m","a":{}"#, "[".repeat(200))), Err(ScanError::TooDeep));
    let error = chat(r#"{"model":"m",}"#).unwrap_err().to_string();
    assert_eq!(error, "the request body is not valid JSON: expected a string at byte 13");
}

#[test]
fn a_bound_and_the_choices_are_what_the_laxest_server_reads() {
    let max_tokens =
        |value: &str| chat(&format!(r#"{{"model":"m","max_tokens":{value}}}"#)).map(|scan| scan.max_tokens);
    assert_eq!(max_tokens("0"), Ok(Some(0)));
    assert_eq!(max_tokens("18446744073709551615"), Ok(Some(u64::MAX)));
    for (value, tokens) in [
        ("50.0", 50),
        ("1e3", 1000),
        ("\"5\"", 5),
        ("\" +1_000 \"", 1000),
        ("18446744073709551616", u64::MAX),
        ("-0", 0),
    ] {
        assert_eq!(max_tokens(value), Ok(Some(tokens)), "{value}");
    }
    for value in ["-1", "null", "-1.0", "\"-1\""] {
        assert_eq!(max_tokens(value), Ok(None), "{value}");
    }
    for value in ["1.5", "{}", "[1]", "\"\"", "\"many\""] {
        assert_eq!(max_tokens(value), Err(ScanError::NotACount("max_tokens")), "{value}");
    }
    let choices = |value: &str| chat(&format!(r#"{{"model":"m",{value}}}"#)).map(|scan| scan.choices);
    for (fields, asked) in [
        (r#""n":0"#, 1),
        (r#""n":-4"#, 1),
        (r#""n":null"#, 1),
        (r#""n":2"#, 2),
        (r#""n":"64""#, 64),
        (r#""n":64.0"#, 64),
        (r#""n":true"#, 1),
        (r#""n":2,"best_of":"5""#, 5),
        (r#""n":2,"n_cmpl":7.0"#, 7),
        (r#""n":999999999999"#, MAX_CHOICES),
    ] {
        assert_eq!(choices(fields), Ok(asked), "{fields}");
    }
    assert_eq!(choices(r#""n":2.5"#), Err(ScanError::NotACount("n")));
}

#[test]
fn a_stream_is_what_the_laxest_server_reads() {
    let stream = |value: &str| chat(&format!(r#"{{"model":"m","stream":{value}}}"#)).map(|scan| scan.stream);
    for value in ["true", "1", "1.0", "\"true\"", "\"True\"", "\"yes\"", "\"on\""] {
        assert_eq!(stream(value), Ok(true), "{value}");
    }
    for value in ["false", "null", "0", "\"false\"", "\"off\""] {
        assert_eq!(stream(value), Ok(false), "{value}");
    }
    for value in ["2", "{}", "[true]", "\"\"", "\"si\""] {
        assert_eq!(stream(value), Err(ScanError::NotASwitch("stream")), "{value}");
    }
}

/// Each field that is acted on, in a body that an operation takes.
const ACTED_ON: [(Operation, &str, &str); 12] = [
    (Operation::ChatCompletions, "model", "\"m\""),
    (Operation::ChatCompletions, "stream", "true"),
    (Operation::ChatCompletions, "stream_options", "{}"),
    (Operation::ChatCompletions, "max_tokens", "5"),
    (Operation::ChatCompletions, "max_completion_tokens", "5"),
    (Operation::ChatCompletions, "n", "1"),
    (Operation::ChatCompletions, "messages", "[]"),
    (Operation::Completions, "best_of", "1"),
    (Operation::Completions, "n_predict", "5"),
    (Operation::Completions, "prompt", "\"p\""),
    (Operation::Responses, "max_output_tokens", "5"),
    (Operation::Responses, "conversation", "\"c\""),
];

#[test]
fn a_field_that_is_acted_on_is_there_once() {
    for (operation, name, value) in ACTED_ON {
        for again in [name.to_owned(), format!("\\u{:04x}{}", name.as_bytes()[0], &name[1..])] {
            let model = if name == "model" { "" } else { r#","model":"m""# };
            let body = format!(r#"{{"{name}":{value},"{again}":{value}{model}}}"#);
            assert_eq!(scan(operation, body.as_bytes()), Err(ScanError::Duplicate(name)), "{body}");
        }
    }
    let options = r#"{"model":"m","stream_options":{"include_usage":true,"include_usage":true}}"#;
    assert_eq!(chat(options), Err(ScanError::Duplicate("stream_options.include_usage")));
    // What nobody acts on is the client's.
    assert!(chat(r#"{"model":"m","seed":1,"seed":2,"Seed":3,"metadata":{"Model":1,"model":2}}"#).is_ok());
    // As is what this operation does not know.
    assert!(chat(r#"{"model":"m","input":1,"input":2,"Input":3}"#).is_ok());
}

#[test]
fn a_field_that_is_acted_on_is_spelt_as_all_servers_read_it() {
    for (operation, name, value) in ACTED_ON {
        let capital = name[..1].to_uppercase() + &name[1..];
        let mut spellings =
            vec![name.to_uppercase(), capital.clone(), format!("\\u{:04x}{}", capital.as_bytes()[0], &name[1..])];
        // The two characters beyond ASCII that fold to one of it, as such and escaped.
        for (letter, like, escaped) in [('s', "\u{17f}", r"\u017f"), ('k', "\u{212a}", r"\u212A")] {
            if name.contains(letter) {
                spellings.extend([name.replace(letter, like), name.replacen(letter, escaped, 1)]);
            }
        }
        for spelling in spellings {
            let alone = format!(r#"{{"model":"m","{spelling}":{value}}}"#);
            assert_eq!(scan(operation, alone.as_bytes()), Err(ScanError::Misspelt(name)), "{alone}");
            for twins in [
                format!(r#"{{"model":"m","{spelling}":{value},"x":0}}"#),
                format!(r#"{{"{spelling}":{value},"model":"m"}}"#),
            ] {
                assert_eq!(scan(operation, twins.as_bytes()), Err(ScanError::Misspelt(name)), "{twins}");
            }
        }
    }
    let options = r#"{"model":"m","stream_options":{"Include_Usage":true}}"#;
    assert_eq!(chat(options), Err(ScanError::Misspelt("stream_options.include_usage")));
    let passing = |body: &str| scan(Operation::PassThrough, body.as_bytes());
    assert_eq!(passing(r#"{"model":"m","MODEL":"x"}"#), Err(ScanError::Misspelt("model")));
    assert!(passing(r#"{"model":"m","Stream":1,"stream":[],"stream":2}"#).is_ok());
}

#[test]
fn a_chats_prompt_is_cut_into_segments_in_the_order_of_a_template() {
    let body = r#"{"model":"m","temperature":0.5,"seed":1,"user":"u","tools":[{"type": "function"},{"a":1}],"messages":[
        {"role":"system","content":"Say \"hi\"\n"},
        {"content":[{"type":"text","text":"look","cache_control":{"type":"ephemeral"}},
                    {"text":"\u00e9","type":"text"},
                    {"type":"image_url","image_url":{"url":"data:x"},"cache_control":{}},
                    {"input_audio":{"data":"x"},"type":"input_audio"},
                    {"type":"refusal","refusal":"no"}, "bare", 7],
         "role":"user","name":"ann"},
        {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"1"}]},
        {"role":"tool","tool_call_id":"1","content":"ok"}],
        "cache_salt":"s","response_format":{"type":"json"},"reasoning_effort":"low","documents":null,
        "chat_template_kwargs":{"a":1}}"#;
    let expected = [
        segment(Template, Raw, r#"{"a":1}"#),
        segment(Template, Raw, r#""low""#),
        segment(Tool, Raw, r#"{"type": "function"}"#),
        segment(Tool, Raw, r#"{"a":1}"#),
        segment(Role, Plain, "system"),
        segment(Text, Escaped, "Say \"hi\"\n"),
        segment(Role, Plain, "user"),
        segment(Name, Plain, "ann"),
        segment(Text, Plain, "look"),
        segment(Text, Escaped, "é"),
        segment(Media, Plain, "data:x"),
        segment(Media, Plain, "x"),
        segment(Text, Raw, r#"{"type":"refusal","refusal":"no"}"#),
        segment(Text, Plain, "bare"),
        segment(Text, Raw, "7"),
        segment(Role, Plain, "assistant"),
        segment(Reasoning, Plain, "hm"),
        segment(ToolCalls, Raw, r#"[{"id":"1"}]"#),
        segment(Role, Plain, "tool"),
        segment(ToolCallId, Plain, "1"),
        segment(Text, Plain, "ok"),
        segment(Schema, Raw, r#"{"type":"json"}"#),
        segment(CacheSalt, Plain, "s"),
    ];
    assert_eq!(chat_segments(body), expected);
}

#[test]
fn unexpected_shapes_are_raw_segments_and_no_errors() {
    let messages = |value: &str| chat_segments(&format!(r#"{{"model":"m","messages":{value}}}"#));
    assert_eq!(messages("\"hi\""), [segment(Text, Raw, "\"hi\"")]);
    assert_eq!(messages("null"), []);
    assert_eq!(messages("[1,\"x\",null]"), [segment(Text, Raw, "1"), segment(Text, Raw, "\"x\"")]);
    assert_eq!(
        messages(r#"[{"role":{"a":1},"content":{"b":2},"name":3}]"#),
        [segment(Role, Raw, r#"{"a":1}"#), segment(Name, Raw, "3"), segment(Text, Raw, r#"{"b":2}"#)]
    );
    let part = |part: &str| messages(&format!(r#"[{{"content":[{part}]}}]"#));
    assert_eq!(part(r#"{"text":"x"}"#), [segment(Text, Plain, "x")]);
    assert_eq!(part(r#"{"image_url":"x"}"#), [segment(Media, Plain, "x")]);
    assert_eq!(part(r#"{"image_embeds":[1]}"#), [segment(Media, Raw, "[1]")]);
    for raw in [
        r#"{"type":"text","text":5}"#,
        r#"{"type":"text"}"#,
        r#"{"type":"x","text":"y"}"#,
        r#"{"type":"image_url"}"#,
        "{}",
    ] {
        assert_eq!(part(raw), [segment(Text, Raw, raw)]);
    }
    assert_eq!(chat_segments(r#"{"model":"m","tools":{"a":1}}"#), [segment(Tool, Raw, r#"{"a":1}"#)]);
}

#[test]
fn the_prompts_of_completions_and_embeddings_are_texts_or_tokens() {
    let prompt = |value: &str| segments(Operation::Completions, &format!(r#"{{"model":"m","prompt":{value}}}"#));
    assert_eq!(prompt("\"a\""), [segment(Text, Plain, "a")]);
    assert_eq!(prompt(r#"["a","\n"]"#), [segment(Text, Plain, "a"), segment(Text, Escaped, "\n")]);
    assert_eq!(prompt("[1, 2,3]"), [segment(Tokens, Raw, "[1, 2,3]")]);
    assert_eq!(prompt("[[1,2],[3]]"), [segment(Tokens, Raw, "[1,2]"), segment(Tokens, Raw, "[3]")]);
    assert_eq!(prompt("[]"), []);
    assert_eq!(prompt("{\"a\":1}"), [segment(Text, Raw, "{\"a\":1}")]);
    let input = r#"{"input":["a"],"model":"m","prompt":"no","messages":[{"role":"user","content":"b"}]}"#;
    let expected = [segment(Role, Plain, "user"), segment(Text, Plain, "b"), segment(Text, Plain, "a")];
    assert_eq!(segments(Operation::Embeddings, input), expected);
}

#[test]
fn a_model_is_replaced_and_every_other_byte_kept() {
    let body = "{ \"a\" : [1 , 2],\n \"model\"\t: \"alias\" , \"stream\":false }";
    assert_eq!(edited(body, "org/model"), body.replace("alias", "org/model"));
    assert_eq!(edited(body, "a\"\\\né"), body.replace("alias", r#"a\"\\\né"#));
    let scan = chat(body).unwrap();
    assert_eq!(scan.edits("alias", UsageEvent::Ask), []);
    assert_eq!(chat(r#"{"model":"\u0061"}"#).unwrap().edits("a", UsageEvent::Ask), []);
}

#[test]
fn usage_is_asked_for_in_every_state_of_the_stream_options() {
    let asked = |options: &str| edited(&format!(r#"{{"stream":true{options},"model":"m" }}"#), "m");
    let absent = r#"{"stream":true,"model":"m" ,"stream_options":{"include_usage":true}}"#;
    assert_eq!(asked(""), absent);
    let with = |options: &str| format!(r#"{{"stream":true,"stream_options": {options} ,"model":"m" }}"#);
    let cases = [
        ("{ }", r#"{"include_usage":true }"#),
        (r#"{ "a" : 1 }"#, r#"{"include_usage":true, "a" : 1 }"#),
        ("null", r#"{"include_usage":true}"#),
        (r#"{"a":1, "include_usage" : false }"#, r#"{"a":1, "include_usage" : true }"#),
        (r#"{"include_usag\u0065":null}"#, r#"{"include_usag\u0065":true}"#),
        (r#"{"include_usage":"yes"}"#, r#"{"include_usage":true}"#),
        (r#"{"include_usage":{"a":[]}}"#, r#"{"include_usage":true}"#),
        (r#"{"include_usage": true}"#, r#"{"include_usage": true}"#),
        (r#"{"x":{"include_usage":true}}"#, r#"{"include_usage":true,"x":{"include_usage":true}}"#),
        ("[]", "[]"),
    ];
    for (before, after) in cases {
        assert_eq!(edited(&with(before), "m"), with(after));
    }
}

#[test]
fn usage_is_not_asked_for_where_nothing_streams_or_the_caller_leaves_it() {
    let scan = |body| chat(body).unwrap();
    assert_eq!(scan(r#"{"model":"m"}"#).edits("m", UsageEvent::Ask), []);
    assert_eq!(scan(r#"{"model":"m","stream":"false"}"#).edits("m", UsageEvent::Ask), []);
    assert_eq!(scan(r#"{"model":"m","stream":true}"#).edits("m", UsageEvent::Leave), []);
}

#[test]
fn many_duplicates_of_a_field_cost_no_more_than_their_bytes() {
    let messages = format!(r#""messages":[{}{{}}]"#, r#"{"role":"user"},"#.repeat(50_000));
    let others = r#""seed":[1],"SEED":0,"#.repeat(50_000);
    let body = format!(r#"{{{messages},{others}"model":"m"}}"#);
    assert_eq!(chat(&body).unwrap().segments.len(), 50_000);
    let roles = r#""role":"user","content":"x","#.repeat(50_000);
    let body = format!(r#"{{"messages":[{{{roles}"a":1}}],"model":"m"}}"#);
    assert_eq!(chat(&body), Err(ScanError::Duplicate("messages.role")));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let key = prop_oneof![Just("model".to_owned()), Just("include_usage".to_owned()), any::<String>()];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn message() -> impl Strategy<Value = Value> {
    let text = any::<String>();
    prop_oneof![
        text.prop_map(|text| json!({"role": "user", "content": text})),
        any::<String>().prop_map(|text| json!({"content": [{"type": "text", "text": text}], "role": "user"})),
        value(),
    ]
}

/// A request's fields in any order.
fn request() -> impl Strategy<Value = Map<String, Value>> {
    let known = (
        any::<String>().prop_filter("a model has a name", |name| !name.is_empty()).prop_map(Value::from),
        prop::option::of(prop_oneof![any::<bool>().prop_map(Value::from), Just(Value::Null)]),
        prop::option::of(prop_oneof![
            any::<bool>().prop_map(|asked| json!({"include_usage": asked, "x": 1})),
            Just(json!({})),
            Just(Value::Null),
        ]),
        prop::option::of(prop_oneof![
            any::<u64>().prop_map(Value::from),
            (i64::MIN..0).prop_map(Value::from),
            Just(Value::Null),
        ]),
        prop::option::of(prop::collection::vec(message(), 0..4).prop_map(Value::from)),
        prop::option::of(value()),
    );
    known.prop_flat_map(|(model, stream, options, max_tokens, messages, other)| {
        let fields = [
            ("model", Some(model)),
            ("stream", stream),
            ("stream_options", options),
            ("max_tokens", max_tokens),
            ("messages", messages),
            ("other", other),
        ];
        let fields: Vec<_> = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        Just(fields).prop_shuffle().prop_map(|fields| fields.into_iter().collect())
    })
}

#[test]
fn a_body_of_tiny_pieces_takes_a_bounded_number_of_segments_and_loses_no_byte() {
    let ones = vec!["1"; 200_000].join(",");
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{ones}]}}]}}"#);
    let scan = scan(Operation::ChatCompletions, body.as_bytes()).unwrap();
    assert!(scan.segments.len() <= 65_536, "{}", scan.segments.len());
    let last = scan.segments.last().unwrap();
    assert_eq!((last.span.end, last.form), (body.len() - "]}]}".len(), SegmentForm::Raw));
}

/// The body with each choice bounded by `tokens`.
fn lowered(operation: Operation, body: &str, tokens: u64) -> String {
    let edits = scan(operation, body.as_bytes()).unwrap().bounds.lowered_to(tokens);
    let body = Bytes::copy_from_slice(body.as_bytes());
    String::from_utf8(Splice::new(edits, body.len()).unwrap().apply(&body).to_vec()).unwrap()
}

#[test]
fn a_body_is_bounded_by_all_fields_that_a_server_may_look_at_and_never_by_more_than_before() {
    for (body, bounded) in [
        (r#"{"model":"m"}"#, r#"{"model":"m","max_tokens":64}"#),
        (r#"{"max_tokens":65,"model":"m"}"#, r#"{"max_tokens":64,"model":"m"}"#),
        (r#"{"max_tokens": 64 ,"model":"m"}"#, r#"{"max_tokens": 64 ,"model":"m"}"#),
        (r#"{"max_completion_tokens":100,"model":"m"}"#, r#"{"max_completion_tokens":64,"model":"m"}"#),
        (r#"{"model":"m","max_tokens":50.0}"#, r#"{"model":"m","max_tokens":50}"#),
        (r#"{"model":"m","max_tokens":"50"}"#, r#"{"model":"m","max_tokens":50}"#),
        (r#"{"model":"m","max_tokens":true}"#, r#"{"model":"m","max_tokens":1}"#),
        (
            r#"{"model":"m","max_tokens":7,"max_completion_tokens":null}"#,
            r#"{"model":"m","max_tokens":7,"max_completion_tokens":64}"#,
        ),
        (r#"{"model":"m","max_tokens":-1}"#, r#"{"model":"m","max_tokens":64}"#),
        (r#"{"model":"m","max_tokens":1e9}"#, r#"{"model":"m","max_tokens":64}"#),
        (r#"{"model":"m","max_tokens":"900"}"#, r#"{"model":"m","max_tokens":64}"#),
        (r#"{"model":"m","max_tokens":99999999999999999999}"#, r#"{"model":"m","max_tokens":64}"#),
        (r#"{"model":"m","max\u005ftokens":900}"#, r#"{"model":"m","max\u005ftokens":64}"#),
        (r#"{"model":"m","n_predict":900}"#, r#"{"model":"m","n_predict":64,"max_tokens":64}"#),
    ] {
        assert_eq!(lowered(Operation::ChatCompletions, body, 64), bounded);
    }
    let completion = r#"{"model":"m","max_completion_tokens":100}"#;
    let bounded = r#"{"model":"m","max_completion_tokens":64,"max_tokens":64}"#;
    assert_eq!(lowered(Operation::Completions, completion, 64), bounded);
    assert_eq!(lowered(Operation::Embeddings, r#"{"model":"m"}"#, 64), r#"{"model":"m"}"#);
}

#[test]
fn a_legacy_completion_has_choices_for_each_of_its_prompts() {
    let answers = |body: &str| {
        let scan = scan(Operation::Completions, body.as_bytes()).unwrap();
        scan.prompts * scan.choices
    };
    assert_eq!(answers(r#"{"model":"m"}"#), 1);
    assert_eq!(answers(r#"{"model":"m","prompt":"x","n":3}"#), 3);
    assert_eq!(answers(r#"{"model":"m","prompt":["x","y"],"n":3}"#), 6);
    assert_eq!(answers(r#"{"model":"m","prompt":[1,2,3]}"#), 1);
    assert_eq!(answers(r#"{"model":"m","prompt":[[1,2],[3]],"best_of":4,"n":2}"#), 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_scan_says_the_same_as_serde_json_whatever_the_order_of_fields(fields in request(), pretty in any::<bool>()) {
        let value = Value::Object(fields.clone());
        let body = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
        let scan = chat(&body).unwrap();
        prop_assert_eq!(Some(scan.model.as_str()), fields["model"].as_str());
        let model: Value = serde_json::from_str(&body[scan.model_span.clone()]).unwrap();
        prop_assert_eq!(&model, &fields["model"]);
        prop_assert_eq!(scan.stream, fields.get("stream") == Some(&json!(true)));
        prop_assert_eq!(scan.max_tokens, fields.get("max_tokens").and_then(Value::as_u64));
        let requested = fields.get("stream_options").and_then(|options| options.get("include_usage"));
        prop_assert_eq!(scan.include_usage == IncludeUsage::Requested, requested == Some(&json!(true)));
        let texts: Vec<_> = fields.get("messages").and_then(Value::as_array).into_iter().flatten()
            .filter(|message| message["role"] == "user")
            .filter_map(|message| message["content"].as_str().or(message["content"][0]["text"].as_str()))
            .collect();
        let found: Vec<_> = scan.segments.iter().filter(|segment| segment.kind == Text && segment.form != Raw)
            .map(|segment| String::from_utf8(segment.text(body.as_bytes()).into_owned()).unwrap())
            .collect();
        prop_assert!(texts.iter().all(|text| found.iter().any(|found| found == text)));
    }

    #[test]
    fn splicing_then_parsing_equals_parsing_then_editing(fields in request(), model in any::<String>(), pretty in any::<bool>()) {
        let value = Value::Object(fields.clone());
        let body = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
        let spliced: Value = serde_json::from_str(&edited(&body, &model)).unwrap();

        let mut fields = fields;
        fields.insert("model".to_owned(), Value::from(model));
        if fields.get("stream") == Some(&json!(true)) {
            let options = fields.entry("stream_options").or_insert(Value::Null);
            if options.is_null() {
                *options = json!({});
            }
            options["include_usage"] = Value::from(true);
        }
        // Numbers go through text once more, so both sides must.
        let expected: Value = serde_json::from_str(&Value::Object(fields).to_string()).unwrap();
        prop_assert_eq!(spliced, expected);
    }

    #[test]
    fn bounding_then_parsing_equals_parsing_then_bounding(
        fields in request(), tokens in 1u64..1000, pretty in any::<bool>(),
    ) {
        let value = Value::Object(fields.clone());
        let body = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
        let bounded: Value = serde_json::from_str(&lowered(Operation::ChatCompletions, &body, tokens)).unwrap();

        let mut fields = fields;
        let bound = fields.entry("max_tokens").or_insert(Value::Null);
        *bound = Value::from(bound.as_u64().map_or(tokens, |bound| bound.min(tokens)));
        let expected: Value = serde_json::from_str(&Value::Object(fields).to_string()).unwrap();
        prop_assert_eq!(bounded, expected);
    }

    #[test]
    fn mutated_bodies_never_panic_and_pass_only_if_they_are_json(
        fields in request(), flips in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let mut body = Value::Object(fields).to_string().into_bytes();
        for (place, byte) in flips {
            let place = place % body.len();
            body[place] ^= byte;
        }
        let parsed = serde_json::from_slice::<Value>(&body);
        match scan(Operation::ChatCompletions, &body) {
            Ok(scan) => {
                // Lone surrogates and numbers beyond f64 are the two things that serde_json alone refuses.
                let text = String::from_utf8_lossy(&body);
                let refused = parsed.as_ref().err().map(ToString::to_string).unwrap_or_default();
                prop_assert!(parsed.is_ok() || text.contains(r"\u") || refused.contains("out of range"), "{}", refused);
                prop_assert!(Splice::new(scan.edits("x", UsageEvent::Ask), body.len()).is_ok());
            }
            Err(ScanError::NotJson { .. } | ScanError::TooDeep) => prop_assert!(parsed.is_err()),
            Err(_) => {}
        }
    }
}
