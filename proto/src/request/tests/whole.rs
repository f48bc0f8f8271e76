//! The scanner against a full parser: any document, its fields in any order, with any white space and any escapes.

use std::fmt::Write as _;

use super::*;

/// How a document is written.
#[derive(Debug, Clone)]
struct Style {
    /// White space, taken in turn.
    spaces: Vec<&'static str>,
    /// Whether the next character of a string is escaped, taken in turn.
    escapes: Vec<bool>,
}

fn style() -> impl Strategy<Value = Style> {
    let space = prop::sample::select(vec!["", "", " ", "\n", "\t\r\n  "]);
    (prop::collection::vec(space, 1..8), prop::collection::vec(any::<bool>(), 1..8))
        .prop_map(|(spaces, escapes)| Style { spaces, escapes })
}

struct Writer<'s> {
    style: &'s Style,
    written: String,
    turn: usize,
}

impl Writer<'_> {
    fn space(&mut self) {
        self.turn += 1;
        self.written.push_str(self.style.spaces[self.turn % self.style.spaces.len()]);
    }

    fn string(&mut self, text: &str) {
        self.written.push('"');
        for character in text.chars() {
            self.turn += 1;
            if self.style.escapes[self.turn % self.style.escapes.len()] {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(self.written, "\\u{unit:04X}");
                }
            } else {
                let quoted = Value::from(character.to_string()).to_string();
                self.written.push_str(&quoted[1..quoted.len() - 1]);
            }
        }
        self.written.push('"');
    }

    fn value(&mut self, value: &Value) {
        self.space();
        match value {
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                self.written.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.written.push_str(if index > 0 { "," } else { "" });
                    self.value(item);
                }
                self.space();
                self.written.push(']');
            }
            Value::Object(fields) => {
                self.written.push('{');
                for (index, (key, value)) in fields.iter().enumerate() {
                    self.written.push_str(if index > 0 { "," } else { "" });
                    self.space();
                    self.string(key);
                    self.space();
                    self.written.push(':');
                    self.value(value);
                }
                self.space();
                self.written.push('}');
            }
            other => self.written.push_str(&other.to_string()),
        }
        self.space();
    }
}

fn written(value: &Value, style: &Style) -> String {
    let mut writer = Writer { style, written: String::new(), turn: 0 };
    writer.value(value);
    writer.written
}

/// `messages` as the scanner should read them, from the parsed document: roles and texts, in order.
fn texts_of(messages: &Value) -> Vec<(SegmentKind, String)> {
    let mut texts = Vec::new();
    for message in messages.as_array().into_iter().flatten() {
        texts.push((Role, message["role"].as_str().unwrap().to_owned()));
        match &message["content"] {
            Value::Array(parts) => {
                texts.extend(parts.iter().map(|part| (Text, part["text"].as_str().unwrap().to_owned())));
            }
            content => texts.push((Text, content.as_str().unwrap().to_owned())),
        }
    }
    texts
}

/// Messages of which every text can be told.
fn messages() -> impl Strategy<Value = Value> {
    let role = prop::sample::select(vec!["user", "assistant", "system"]);
    let content = prop_oneof![
        any::<String>().prop_map(Value::from),
        prop::collection::vec(any::<String>(), 0..3).prop_map(|texts| {
            texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect::<Vec<_>>().into()
        }),
    ];
    let message = (role, content, any::<bool>()).prop_map(|(role, content, role_first)| {
        let mut fields = vec![("role".to_owned(), Value::from(role)), ("content".to_owned(), content)];
        if !role_first {
            fields.reverse();
        }
        Value::Object(fields.into_iter().collect())
    });
    prop::collection::vec(message, 0..4).prop_map(Value::from)
}

/// A chat whose every field means something, in any order, among fields that mean nothing.
fn document() -> impl Strategy<Value = Map<String, Value>> {
    let name = any::<String>().prop_filter("a model has a name", |name| !name.is_empty()).prop_map(Value::from);
    let options =
        prop::option::of(any::<bool>()).prop_map(|asked| asked.map_or(json!({}), |on| json!({"include_usage": on})));
    let others = prop::collection::vec(("[a-z_]{9,12}", value()), 0..3);
    let known = (
        name,
        prop::option::of(any::<bool>()),
        prop::option::of(options),
        prop::option::of(any::<u64>()),
        prop::option::of(1u64..100),
        prop::option::of(messages()),
        others,
    );
    known.prop_flat_map(|(model, stream, options, max_tokens, choices, messages, others)| {
        let known = [
            ("model", Some(model)),
            ("stream", stream.map(Value::from)),
            ("stream_options", options),
            ("max_tokens", max_tokens.map(Value::from)),
            ("n", choices.map(Value::from)),
            ("messages", messages),
        ];
        let known = known.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Just(known.chain(others).collect::<Vec<_>>()).prop_shuffle().prop_map(|fields| fields.into_iter().collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_way_of_writing_a_document_gives_the_scan_of_a_full_parser(fields in document(), style in style()) {
        let body = written(&Value::Object(fields.clone()), &style);
        let parsed: Value = serde_json::from_str(&body).unwrap();
        let scan = chat(&body).unwrap();
        prop_assert_eq!(Some(scan.model.as_str()), parsed["model"].as_str());
        prop_assert_eq!(scan.stream, parsed["stream"].as_bool().unwrap_or(false));
        let asks = parsed["stream_options"]["include_usage"].as_bool();
        prop_assert_eq!(scan.include_usage == IncludeUsage::Requested, asks == Some(true));
        prop_assert_eq!(scan.max_tokens, parsed["max_tokens"].as_u64());
        prop_assert_eq!(scan.choices, parsed["n"].as_u64().unwrap_or(1));
        let found: Vec<_> = scan.segments.iter()
            .map(|segment| (segment.kind, String::from_utf8(segment.text(body.as_bytes()).into_owned()).unwrap()))
            .collect();
        prop_assert_eq!(found, texts_of(&parsed["messages"]));
    }

    #[test]
    fn splicing_any_way_of_writing_a_document_is_editing_it(
        fields in document(), style in style(), model in any::<String>(), tokens in 1u64..1000,
    ) {
        let body = written(&Value::Object(fields), &style);
        let mut expected: Value = serde_json::from_str(&body).unwrap();
        let scan = chat(&body).unwrap();
        let splice = Splice::new(scan.edits(&model, UsageEvent::Ask), body.len()).unwrap();
        let splice = splice.and(scan.bounds.lowered_to(tokens)).unwrap();
        let spliced = splice.apply(&Bytes::copy_from_slice(body.as_bytes()));
        prop_assert_eq!(spliced.len(), splice.spliced_len());

        expected["model"] = Value::from(model);
        if expected["stream"] == json!(true) {
            expected["stream_options"]["include_usage"] = json!(true);
        }
        let bound = expected["max_tokens"].as_u64().map_or(tokens, |bound| bound.min(tokens));
        expected["max_tokens"] = json!(bound);
        prop_assert_eq!(serde_json::from_slice::<Value>(&spliced).unwrap(), expected);
    }
}

#[test]
fn the_deepest_document_passes_and_one_level_more_does_not() {
    let nested = |levels: usize| format!(r#"{{"model":"m","x":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    // The document itself is a level.
    assert_eq!(chat(&nested(crate::json::MAX_DEPTH - 1)).map(|scan| scan.model), Ok("m".to_owned()));
    assert_eq!(chat(&nested(crate::json::MAX_DEPTH)), Err(ScanError::TooDeep));
    let objects = format!(r#"{{"model":"m","messages":{}1{}}}"#, r#"{"a":"#.repeat(127), "}".repeat(127));
    assert!(chat(&objects).is_ok());
}

#[test]
fn a_number_of_megabytes_is_read_once_and_is_the_largest() {
    let digits = "9".repeat(4 << 20);
    let scan = chat(&format!(r#"{{"max_tokens":{digits},"model":"m","n":{digits},"x":-{digits}.{digits}e{digits}}}"#))
        .unwrap();
    assert_eq!((scan.max_tokens, scan.choices), (Some(u64::MAX), MAX_CHOICES));
}

#[test]
fn what_is_cut_off_concatenated_or_no_text_is_refused_and_lone_surrogates_pass() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a\u00e9"}],"n":12}"#;
    for cut in 0..body.len() {
        assert!(chat(&body[..cut]).is_err(), "{cut}");
    }
    assert!(matches!(chat(&body.repeat(2)), Err(ScanError::NotJson { offset, .. }) if offset == body.len()));
    assert!(matches!(chat(&format!("{body}\n{body}")), Err(ScanError::NotJson { .. })));
    for broken in [
        "{\"model\":\"m\u{0}\"}",
        "{\"model\":\"m\",\u{0}\"x\":1}",
        "{\"model\":\"m\"}\u{0}",
        "\u{feff}{\"model\":\"m\"}",
    ] {
        assert!(matches!(chat(broken), Err(ScanError::NotJson { .. })), "{broken:?}");
    }
    assert!(matches!(scan(Operation::ChatCompletions, b"{\"model\":\"m\xff\"}"), Err(ScanError::NotJson { .. })));
    let surrogate = r#"{"model":"m","messages":[{"role":"user","content":"\ud800x"}]}"#;
    assert_eq!(chat_segments(surrogate)[1].2, "\u{fffd}x");
    assert_eq!(edited(surrogate, "n"), surrogate.replacen("\"m\"", "\"n\"", 1), "it goes on as it came");
}

#[test]
fn the_prompts_of_the_other_operations_are_read() {
    let read =
        |operation, body: &str| segments(operation, body).into_iter().map(|(_, _, text)| text).collect::<Vec<_>>();
    let rerank = r#"{"documents":["a",{"text":"b"}],"query":"q","model":"m","top_n":1}"#;
    assert_eq!(read(Operation::Rerank, rerank), ["q", "q", "a", "b"], "the query is read with each document");
    assert_eq!(read(Operation::Score, r#"{"model":"m","text_2":["a","b"],"text_1":"q"}"#), ["q", "q", "a", "b"]);
    assert_eq!(read(Operation::Score, r#"{"model":"m","text_1":["p","q"],"text_2":["a","b"]}"#), ["p", "q", "a", "b"]);
    assert_eq!(read(Operation::Score, r#"{"model":"m","query":"q","items":["a"]}"#), ["q", "a"]);
    assert_eq!(read(Operation::Rerank, r#"{"model":"m","query":"q"}"#), ["q"]);
    assert_eq!(read(Operation::Speech, r#"{"model":"m","input":"say","voice":"x"}"#), ["say"]);
    assert_eq!(read(Operation::ImageGenerations, r#"{"model":"m","prompt":"a cat","n":2}"#), ["a cat"]);
    assert_eq!(read(Operation::Tokenize, r#"{"model":"m","prompt":"text"}"#), ["text"]);
    assert_eq!(read(Operation::Detokenize, r#"{"model":"m","tokens":[1,2]}"#), [""; 0]);
    let turns = r#"{"model":"m","system":"s","messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(segments(Operation::CountTokens, turns), segments(Operation::Messages, turns));
    let many = format!(r#"{{"model":"m","query":"q","documents":[{}"d"]}}"#, r#""d","#.repeat(100_000));
    assert!(scan(Operation::Rerank, many.as_bytes()).unwrap().segments.len() <= 2 * 65_536);
}

#[test]
fn a_body_is_read_as_what_its_content_type_says_it_is_and_json_as_json_in_any_case() {
    let json = br#"{"model":"m"}"#;
    let form = b"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--";
    let multipart = Some("multipart/form-data; boundary=b");
    for operation in [Operation::ChatCompletions, Operation::Transcriptions] {
        for content_type in
            [None, Some("application/json"), Some("text/plain"), Some("application/x-www-form-urlencoded")]
        {
            assert_eq!(scan_as(operation, content_type, json).map(|scan| scan.model), Ok("m".to_owned()));
        }
    }
    assert_eq!(scan_as(Operation::Transcriptions, multipart, form).map(|scan| scan.model), Ok("m".to_owned()));
    assert_eq!(scan_as(Operation::ChatCompletions, multipart, form), Err(ScanError::FormNotTaken));
    assert_eq!(scan_as(Operation::Speech, multipart, form), Err(ScanError::FormNotTaken));
    for content_type in [None, Some("text/plain"), Some("multipart/mixed; boundary=b")] {
        assert_eq!(scan_as(Operation::ImageEdits, content_type, form), Err(ScanError::NeitherFormNorJson));
    }
    assert_eq!(scan_as(Operation::Translations, Some("application/json"), b"{}"), Err(ScanError::NoModel));
    assert_eq!(scan_as(Operation::Translations, multipart, json), Err(FormError::NoDelimiter.into()));
}
