use proptest::prelude::*;

use super::*;

fn check(text: impl AsRef<[u8]>) -> Result<(), JsonError> {
    let mut scanner = Scanner::new(text.as_ref());
    scanner.skip()?;
    scanner.finish()
}

fn syntax(reason: &'static str, offset: usize) -> Result<(), JsonError> {
    Err(JsonError::Syntax { reason, offset })
}

#[test]
fn every_kind_of_value_is_read_to_its_end() {
    for text in [
        "{}",
        "[]",
        "\"\"",
        "0",
        "-0",
        "-1.5e+10",
        "1E3",
        "true",
        "false",
        "null",
        " [ ] ",
        "{ \"a\" : [ 1 , { } ] }",
        "\"\\u0000\\ud800\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\u{7f}é漢😀\"",
        "[[[]],{\"\":{}},\"\"]",
    ] {
        assert_eq!(check(text), Ok(()), "{text}");
    }
}

#[test]
fn broken_grammar_is_refused_at_the_byte_where_it_breaks() {
    assert_eq!(check(""), syntax("unexpected end", 0));
    assert_eq!(check("[1,]"), syntax("expected a value", 3));
    assert_eq!(check("[,1]"), syntax("expected a value", 1));
    assert_eq!(check("[1 2]"), syntax("expected a comma or a closing bracket", 3));
    assert_eq!(check("{\"a\":1,}"), syntax("expected a string", 7));
    assert_eq!(check("{\"a\" 1}"), syntax("expected a colon", 5));
    assert_eq!(check("{a:1}"), syntax("expected a string", 1));
    assert_eq!(check("{\"a\":1]"), syntax("expected a comma or a closing bracket", 6));
    assert_eq!(check("[1}"), syntax("expected a comma or a closing bracket", 2));
    assert_eq!(check("{} x"), syntax("unexpected bytes after the value", 3));
    assert_eq!(check("{}{}"), syntax("unexpected bytes after the value", 2));
    assert_eq!(check("01"), syntax("unexpected bytes after the value", 1));
    assert_eq!(check("1."), syntax("expected a digit", 2));
    assert_eq!(check("-"), syntax("expected a digit", 1));
    assert_eq!(check("+1"), syntax("expected a value", 0));
    assert_eq!(check(".5"), syntax("expected a value", 0));
    assert_eq!(check("1e"), syntax("expected a digit", 2));
    assert_eq!(check("nul"), syntax("expected a value", 0));
    assert_eq!(check("[truex]"), syntax("expected a comma or a closing bracket", 5));
    assert_eq!(check("NaN"), syntax("expected a value", 0));
    assert_eq!(check("\u{feff}{}"), syntax("expected a value", 0));
    assert_eq!(check("\"abc"), syntax("unterminated string", 4));
    assert_eq!(check("\"\\"), syntax("invalid escape", 1));
    assert_eq!(check("\"\\x\""), syntax("invalid escape", 1));
    assert_eq!(check("\"\\u12g4\""), syntax("invalid escape", 1));
    assert_eq!(check("\"a\nb\""), syntax("unescaped control character in a string", 2));
    assert_eq!(check("\"a\0\""), syntax("unescaped control character in a string", 2));
    assert_eq!(check("{}\0"), syntax("unexpected bytes after the value", 2));
    assert_eq!(check(b"\"ab\xff\""), syntax("invalid UTF-8 in a string", 3));
    assert_eq!(check(b"\"\xed\xa0\x80\""), syntax("invalid UTF-8 in a string", 1));
}

#[test]
fn the_depth_bound_is_exact() {
    let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
    assert_eq!(check(nested(MAX_DEPTH)), Ok(()));
    assert_eq!(check(nested(MAX_DEPTH + 1)), Err(JsonError::TooDeep));
    let objects = |depth| "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth);
    assert_eq!(check(objects(MAX_DEPTH)), Ok(()));
    assert_eq!(check(objects(MAX_DEPTH + 1)), Err(JsonError::TooDeep));
    assert_eq!(check("[".repeat(10_000_000)), Err(JsonError::TooDeep));
}

#[test]
fn a_walk_yields_the_spans_of_keys_and_values() {
    let text = br#" { "mod\u0065l" : "x" , "list" : [ 1 , "\n" ] } "#;
    let mut scanner = Scanner::new(text);
    assert_eq!(scanner.peek(), Ok(ValueKind::Object));
    scanner.open().unwrap();
    let key = scanner.next_key().unwrap().unwrap();
    assert_eq!(key.text(text).as_ref(), b"model");
    let value = scanner.string().unwrap();
    assert_eq!(&text[value.quoted()], b"\"x\"");
    let key = scanner.next_key().unwrap().unwrap();
    assert_eq!(key.text(text).as_ref(), b"list");
    scanner.open().unwrap();
    assert_eq!(scanner.next_element(), Ok(true));
    let number = scanner.skip().unwrap();
    assert_eq!(&text[number], b"1");
    assert_eq!(scanner.next_element(), Ok(true));
    let string = scanner.string().unwrap();
    assert_eq!(string.form, StringForm::Escaped);
    assert_eq!(string.text(text).as_ref(), b"\n");
    assert_eq!(scanner.next_element(), Ok(false));
    assert_eq!(scanner.next_key(), Ok(None));
    assert_eq!(scanner.offset(), text.len() - 1);
    assert_eq!(scanner.finish(), Ok(()));
}

#[test]
fn escapes_are_undone_and_lone_surrogates_become_replacement_characters() {
    let cases: [(&str, &str); 9] = [
        ("plain", "plain"),
        (r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{c}\n\r\t"),
        (r"\u00e9\u6F22", "é漢"),
        (r"a\ud83d\ude00b", "a😀b"),
        (r"\ud83d", "\u{fffd}"),
        (r"\ude00x", "\u{fffd}x"),
        (r"\ud83d\ud83d\ude00", "\u{fffd}😀"),
        (r"\ud83d\n", "\u{fffd}\n"),
        (r"a\\nb", r"a\nb"),
    ];
    for (raw, text) in cases {
        assert_eq!(unescape(raw.as_bytes()).as_ref(), text.as_bytes(), "{raw}");
    }
}

#[test]
fn what_is_no_escape_stays_as_it_is() {
    for raw in [r"\", r"a\", r"\x", r"\u12", r"\u"] {
        assert_eq!(unescape(raw.as_bytes()).as_ref(), raw.as_bytes(), "{raw}");
    }
}

/// Pieces that make JSON, or nearly.
fn nearly_json() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        &b"{"[..],
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"\"a\"",
        b"\"\\u0061\"",
        b"\\",
        b"1",
        b"-0.5e3",
        b"true",
        b"null",
        b" ",
        b"\n",
        b"\xc3\xa9",
        b"\xff",
        b"\0",
        b"\"\xc3\xa9\"",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn the_same_texts_are_json_as_for_serde_json(text in nearly_json()) {
        let parsed = serde_json::from_slice::<serde_json::Value>(&text);
        // The grammar has no bound for numbers, but serde_json has.
        let is_out_of_range = parsed.as_ref().is_err_and(|error| error.to_string().contains("out of range"));
        prop_assume!(!is_out_of_range);
        prop_assert_eq!(check(&text).is_ok(), parsed.is_ok());
    }

    #[test]
    fn unescape_undoes_what_serde_json_escapes(text in any::<String>()) {
        let quoted = serde_json::to_string(&text).unwrap();
        let mut scanner = Scanner::new(quoted.as_bytes());
        let string = scanner.string().unwrap();
        let unescaped = string.text(quoted.as_bytes()).into_owned();
        prop_assert_eq!(unescaped, text.as_bytes());
    }

    #[test]
    fn no_bytes_make_the_scanner_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = check(&bytes);
        let _ = unescape(&bytes);
    }
}
