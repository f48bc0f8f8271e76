use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::json::MAX_DEPTH;
use crate::splice::Splice;

fn edits(set: &[(&str, &str)], remove: &[&str]) -> FieldEdits {
    let mut edits = FieldEdits::default();
    remove.iter().for_each(|name| edits.remove(name));
    set.iter().for_each(|(name, value)| edits.set(name, value).unwrap());
    edits
}

fn applied(edits: &FieldEdits, body: &str) -> String {
    let splice = Splice::new(edits.edits(body.as_bytes()).unwrap(), body.len()).unwrap();
    String::from_utf8(splice.apply(&Bytes::from(body.to_owned())).to_vec()).unwrap()
}

#[test]
fn a_field_is_set_in_its_place_or_added_after_the_last() {
    let edits = edits(&[("tier", r#""scale""#), ("seed", "7")], &[]);
    assert_eq!(
        applied(&edits, "{\"tier\" : \"default\",\n \"model\": \"m\"\n}"),
        "{\"tier\" : \"scale\",\n \"model\": \"m\",\"seed\":7\n}"
    );
    assert_eq!(applied(&edits, "{ }"), r#"{"tier":"scale","seed":7 }"#);
}

#[test]
fn a_removed_field_takes_one_comma_with_it() {
    let edits = edits(&[], &["a", "b"]);
    for (body, left) in [
        (r#"{"a":1,"m":2}"#, r#"{"m":2}"#),
        (r#"{"m":2, "a":1}"#, r#"{"m":2}"#),
        (r#"{"m":2, "a":1, "n":3}"#, r#"{"m":2, "n":3}"#),
        (r#"{"a":1,"b":{"a":0},"m":2,"a":[1],"b":null}"#, r#"{"m":2}"#),
        (r#"{"a":1, "b":2 }"#, "{ }"),
        (r#"{"m":{"a":1}}"#, r#"{"m":{"a":1}}"#),
        ("{}", "{}"),
    ] {
        assert_eq!(applied(&edits, body), left, "{body}");
    }
}

#[test]
fn every_field_of_a_name_is_meant_however_it_is_written() {
    let set = edits(&[("max_tokens", "5")], &[]);
    assert_eq!(applied(&set, r#"{"max_tokens":9,"m":0,"max\u005ftokens":99}"#), r#"{"max_tokens":5,"m":0}"#);
    let removed = edits(&[], &["max_tokens"]);
    assert_eq!(applied(&removed, r#"{"max\u005ftokens":9,"m":0,"max_tokens":99}"#), r#"{"m":0}"#);
}

#[test]
fn a_field_goes_in_every_spelling_that_some_reader_takes_for_it() {
    let set = edits(&[("max_tokens", "5")], &[]);
    let body = "{\"Max_Tokens\":9,\"m\":0,\"MAX_TO\u{212a}ENS\":99,\"max_token\u{17f}\":7}";
    assert_eq!(applied(&set, body), r#"{"m":0,"max_tokens":5}"#);
    assert_eq!(applied(&set, r#"{"Max_Tokens":9,"max_tokens":99}"#), r#"{"max_tokens":5}"#);
    let removed = edits(&[], &["stream_options"]);
    assert_eq!(applied(&removed, r#"{"Stream_Options":{},"m":0,"\u0053tream_options":{}}"#), r#"{"m":0}"#);
    // An operator who writes a capital means it, and what else reads so goes.
    let capital = edits(&[("Tier", "1")], &[]);
    assert_eq!(applied(&capital, r#"{"tier":9}"#), r#"{"Tier":1}"#);
}

#[test]
fn what_is_so_already_is_not_touched() {
    let edits = edits(&[("a", "1")], &["b"]);
    assert_eq!(edits.edits(br#"{ "a" : 1 }"#).unwrap(), []);
}

#[test]
fn what_is_no_object_has_no_fields() {
    let edits = edits(&[("a", "1")], &[]);
    for body in ["", "[]", "1", "{", r#"{"a":1}{}"#, "--boundary\r\n", "a=1&b=2"] {
        assert_eq!(edits.edits(body.as_bytes()), None, "{body}");
    }
}

#[test]
fn a_value_is_one_json_text_that_a_body_has_room_for() {
    let mut edits = FieldEdits::default();
    for wrong in ["", "scale", "{", "1 2", "\"a\u{1}\"", "{\"a\":}"] {
        assert!(edits.set("a", wrong).is_err(), "{wrong}");
    }
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(edits.set("a", &nested(MAX_DEPTH)).is_err());
    edits.set("a", &nested(MAX_DEPTH - 1)).unwrap();
    let spliced = applied(&edits, "{}");
    let mut scanner = Scanner::new(spliced.as_bytes());
    assert_eq!(scanner.skip(), Ok(0..spliced.len()));
}

#[test]
fn the_closer_edit_of_a_field_overrules_the_other() {
    let far = edits(&[("a", "1"), ("b", "1")], &["c", "d"]);
    let near = edits(&[("a", "2"), ("c", "2")], &["b"]);
    assert_eq!(far.overruled_by(&near), edits(&[("a", "2"), ("c", "2")], &["d", "b"]));
    assert_eq!(far.overruled_by(&FieldEdits::default()), far);
}

/// The names from which both bodies and edits draw, so that they meet; one is written with an escape half of the time.
const NAMES: [&str; 5] = ["a", "b", "model", "max_tokens", "ü\"\\"];

fn value() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!(1),
        json!(null),
        json!("x,}\""),
        json!({"a": [1, {"b": 2}]}),
        json!([]),
        json!(-0.5),
    ])
}

/// The members of an object and the spaces between its tokens; names may be there several times.
fn object() -> impl Strategy<Value = (Vec<(String, Value)>, String)> {
    let space = prop::sample::select(vec!["", " ", "\n\t"]);
    let member = (prop::sample::select(NAMES.to_vec()), any::<bool>(), value(), prop::collection::vec(space, 4));
    prop::collection::vec(member, 0..8).prop_map(|members| {
        let mut text = String::from("{");
        let mut fields = Vec::new();
        for (index, (name, escaped, value, spaces)) in members.into_iter().enumerate() {
            let key = Value::from(name).to_string();
            let key = if escaped { key.replace('a', "\\u0061") } else { key };
            let comma = if index == 0 { "" } else { "," };
            let [before, colon, after, end] = [0, 1, 2, 3].map(|space| spaces[space]);
            text += &format!("{comma}{before}{key}{colon}:{after}{value}{end}");
            fields.push((name.to_owned(), value));
        }
        (fields, text + "}")
    })
}

fn any_edits() -> impl Strategy<Value = FieldEdits> {
    let set = prop::collection::vec((prop::sample::select(NAMES.to_vec()), value()), 0..4);
    let remove = prop::collection::vec(prop::sample::select(NAMES.to_vec()), 0..4);
    (set, remove).prop_map(|(set, remove)| {
        let mut edits = FieldEdits::default();
        remove.iter().for_each(|name| edits.remove(name));
        set.iter().for_each(|(name, value)| edits.set(name, &value.to_string()).unwrap());
        edits
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn splice_then_parse_equals_parse_then_edit((members, body) in object(), edits in any_edits()) {
        let mut expected: Map<String, Value> = members.into_iter().collect();
        for name in edits.names() {
            expected.remove(name);
        }
        for Field { name, value } in &edits.set {
            expected.insert(name.to_string(), serde_json::from_slice(value).unwrap());
        }
        let spliced = applied(&edits, &body);
        prop_assert_eq!(serde_json::from_str::<Map<String, Value>>(&spliced).unwrap(), expected, "{}", spliced);
        // Of the names that were edited, none is left twice.
        let mut scanner = Scanner::new(spliced.as_bytes());
        scanner.open().unwrap();
        let mut seen = Vec::new();
        while let Some(key) = scanner.next_key().unwrap() {
            scanner.skip().unwrap();
            seen.push(String::from_utf8(key.text(spliced.as_bytes()).to_vec()).unwrap());
        }
        for name in edits.names() {
            prop_assert!(seen.iter().filter(|other| *other == name).count() <= 1, "{}", spliced);
        }
        prop_assert_eq!(applied(&edits, &spliced), spliced.clone(), "a second time changes nothing");
    }
}
