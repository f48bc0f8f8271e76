//! The request scanner, and the edits that come of a scan.

use std::collections::BTreeSet;
use std::fmt;

use attache_proto::Operation;
use attache_proto::request::{RequestScan, ScanError, UsageEvent, scan};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

use crate::edited::edited;
use crate::head::Head;
use crate::json::is_liberty;

/// The name that bodies are made to ask for; it has to be escaped.
const TARGET: &str = "team/\"the\" model\n";

/// What answers are bounded by.
const TOKENS: u64 = 100;

/// A scan says what a full parser says; splice then parse is parse then edit, whatever the chunks.
pub fn request(input: &[u8]) {
    let Some((head, body)) = Head::split(input) else { return };
    let operation = head.operation();
    let parsed = serde_json::from_slice::<Value>(body);
    let scan = match (scan(operation, body), &parsed) {
        (Ok(scan), _) => scan,
        (Err(ScanError::NotJson { reason, offset }), parsed) => {
            assert!(parsed.is_err(), "serde_json takes what is refused for {reason} at {offset}");
            return;
        }
        (Err(ScanError::NoModel), Ok(parsed)) => return assert_eq!(parsed.get("model"), None),
        (Err(ScanError::NotACount(name)), Ok(parsed)) => {
            return assert_eq!(parsed.get(name).map(count), Some(None), "{name} is a count");
        }
        (Err(ScanError::NotASwitch(name)), Ok(parsed)) => {
            return assert_eq!(parsed.get(name).map(switch), Some(None), "{name} is a boolean");
        }
        (Err(_), _) => return,
    };
    for segment in &scan.segments {
        assert!(body.get(segment.span.clone()).is_some(), "{segment:?} is not within the body");
        let _ = segment.text(body);
    }

    let usage = if head.chooses(0) { UsageEvent::Ask } else { UsageEvent::Leave };
    let asked = edited(scan.edits(TARGET, usage), body, head.cuts());
    let bounded = edited(scan.bounds.lowered_to(TOKENS), body, head.cuts());
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return assert!(is_liberty(&error), "serde_json refuses what was scanned: {error}"),
    };
    if operation != Operation::PassThrough {
        says_the_same(operation, &scan, &parsed);
    }
    is_read_alike(operation, body);
    assert_eq!(reparsed(&asked), edit(operation, parsed.clone(), usage));
    is_bounded(operation, &reparsed(&bounded), &parsed);
}

/// What the laxest server makes of a count; `None` where there is none that reads it, or they do not agree.
fn count(value: &Value) -> Option<Option<u64>> {
    let number = |number: f64| match number {
        number if number < 0.0 => Some(None),
        number if number.is_infinite() || number.fract() == 0.0 => Some(Some(number as u64)),
        _ => None,
    };
    match value {
        Value::Null => Some(None),
        Value::Bool(value) => Some(Some(u64::from(*value))),
        Value::Number(written) => written.as_u64().map_or_else(|| number(written.as_f64()?), |whole| Some(Some(whole))),
        Value::String(text) => {
            let text = text.trim();
            let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
            let whole = match unsigned.trim_end_matches('0').strip_suffix('.') {
                Some(whole) if !unsigned.ends_with('.') => whole,
                _ => unsigned,
            };
            let (first, last) = (whole.chars().next()?, whole.chars().last()?);
            let is_number = whole.chars().all(|digit| digit.is_ascii_digit() || digit == '_');
            if !is_number || first == '_' || last == '_' {
                return None;
            }
            let digits: String = whole.chars().filter(char::is_ascii_digit).collect();
            let read = digits.parse().unwrap_or(u64::MAX);
            Some(Some(read).filter(|read| *read == 0 || !text.starts_with('-')))
        }
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// What the laxest server makes of a boolean; `None` as for [`count`].
fn switch(value: &Value) -> Option<bool> {
    match value {
        Value::Null => Some(false),
        Value::Bool(value) => Some(*value),
        Value::Number(number) if number.as_f64() == Some(1.0) => Some(true),
        Value::Number(number) if number.as_f64() == Some(0.0) => Some(false),
        Value::String(word) => match word.to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
            "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
            _ => None,
        },
        Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn says_the_same(operation: Operation, scan: &RequestScan, parsed: &Value) {
    assert_eq!(parsed.get("model").and_then(Value::as_str), Some(scan.model.as_str()));
    assert_eq!(parsed.get("stream").is_some_and(|stream| switch(stream) == Some(true)), scan.stream);
    let number = |name: &str| parsed.get(name).and_then(count).flatten();
    let choices = number("n").max(number("best_of")).max(number("n_cmpl"));
    assert_eq!(choices.unwrap_or(1).clamp(1, 16_384), scan.choices);
    let bounds: &[&str] = match operation {
        Operation::Responses => &["max_output_tokens"],
        Operation::Messages => &["max_tokens"],
        // Its API has no bound.
        Operation::CompactResponse => &[],
        _ => &["max_tokens", "max_completion_tokens", "n_predict"],
    };
    assert_eq!(bounds.iter().filter_map(|name| number(name)).max(), scan.max_tokens);
}

/// Whoever takes the first of two fields, or the last, or does not mind the case as Go's servers do not, reads what was scanned.
fn is_read_alike(operation: Operation, body: &[u8]) {
    const READ: [&str; 11] = [
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n_predict",
        "n",
        "n_cmpl",
        "best_of",
        "cache_salt",
    ];
    let read = match operation {
        Operation::PassThrough => &READ[..1],
        Operation::ChatCompletions => &READ[..],
        _ => &READ[..10],
    };
    let mut seen = BTreeSet::new();
    for name in names_in(body) {
        let folded: String = name
            .chars()
            .map(|character| match character {
                '\u{212a}' => 'k',
                '\u{17f}' => 's',
                character => character.to_ascii_lowercase(),
            })
            .collect();
        if read.contains(&folded.as_str()) {
            assert_eq!(name, folded, "some servers read it, and others do not");
            assert!(seen.insert(folded), "some servers take the first {name}, and others the last");
        }
    }
}

/// The names of the top-level fields, each as often as it is there: a [`Value`] keeps but the last.
fn names_in(body: &[u8]) -> Vec<String> {
    struct Names(Vec<String>);

    impl<'de> Deserialize<'de> for Names {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(NamesVisitor).map(Self)
        }
    }

    struct NamesVisitor;

    impl<'de> Visitor<'de> for NamesVisitor {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Vec<String>, A::Error> {
            let mut names = Vec::new();
            while let Some((name, IgnoredAny)) = fields.next_entry()? {
                names.push(name);
            }
            Ok(names)
        }
    }

    serde_json::from_slice(body).map_or_else(|_| Vec::new(), |Names(names)| names)
}

/// What [`RequestScan::edits`] is to do.
fn edit(operation: Operation, mut parsed: Value, usage: UsageEvent) -> Value {
    let streams = operation != Operation::PassThrough && parsed.get("stream").and_then(switch) == Some(true);
    let Some(fields) = parsed.as_object_mut() else { return parsed };
    fields.insert("model".to_owned(), TARGET.into());
    if usage == UsageEvent::Ask && streams {
        let asked = json!({"include_usage": true});
        match fields.get_mut("stream_options") {
            Some(Value::Object(options)) => drop(options.insert("include_usage".to_owned(), true.into())),
            Some(Value::Null) | None => drop(fields.insert("stream_options".to_owned(), asked)),
            Some(_) => {}
        }
    }
    parsed
}

fn reparsed(body: &[u8]) -> Value {
    let parsed = serde_json::from_slice(body);
    assert!(parsed.is_ok(), "an edited body is JSON: {}", String::from_utf8_lossy(body));
    parsed.unwrap_or_default()
}

/// Every bound that any server may read is a plain number of at most [`TOKENS`], and of no more than the client's own as the laxest server
/// reads it; and there is one that it will read.
fn is_bounded(operation: Operation, bounded: &Value, before: &Value) {
    if operation == Operation::PassThrough {
        return;
    }
    let bound = |name: &str| bounded.get(name).map(|bound| bound.as_u64());
    for name in ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"] {
        let bound = bound(name);
        assert!(bound.is_none_or(|bound| bound.is_some_and(|bound| bound <= TOKENS)), "{name} is {bound:?}");
        let asked = before.get(name).and_then(count).flatten();
        assert!(asked.is_none_or(|asked| bound == Some(Some(asked.min(TOKENS)))), "{name}: {asked:?} became {bound:?}");
    }
    let read: &[&str] = match operation {
        Operation::ChatCompletions => &["max_tokens", "max_completion_tokens"],
        Operation::Completions | Operation::Messages => &["max_tokens"],
        Operation::Responses => &["max_output_tokens"],
        _ => return,
    };
    assert!(read.iter().any(|name| bound(name).is_some()), "nothing bounds the answer");
}
