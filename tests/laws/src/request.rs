//! The request scanner, and the edits that come of a scan.

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
        (Err(_), _) => return,
    };
    for segment in &scan.segments {
        assert!(body.get(segment.span.clone()).is_some(), "{segment:?} is not within the body");
        let _ = segment.text(body);
    }

    let usage = if head.chooses(0) { UsageEvent::Ask } else { UsageEvent::Leave };
    let asked = edited(scan.edits(TARGET, usage), body, head.cuts());
    let bounded = scan.bounds.lowered_to(TOKENS).map(|edits| edited(edits, body, head.cuts()));
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return assert!(is_liberty(&error), "serde_json refuses what was scanned: {error}"),
    };
    says_the_same(&scan, &parsed);
    assert_eq!(models_in(body), 1, "a parser that takes the first of two models asks for another one");
    assert_eq!(reparsed(&asked), edit(parsed.clone(), usage));
    if let Ok(bounded) = bounded {
        is_bounded(operation, &reparsed(&bounded), &parsed);
    }
}

fn says_the_same(scan: &RequestScan, parsed: &Value) {
    assert_eq!(parsed.get("model").and_then(Value::as_str), Some(scan.model.as_str()));
    assert_eq!(parsed.get("stream") == Some(&Value::Bool(true)), scan.stream);
    let number = |name: &str| parsed.get(name).and_then(Value::as_u64);
    assert_eq!(number("n").max(number("best_of")).unwrap_or(1).clamp(1, 16_384), scan.choices);
}

/// How many top-level fields of that name there are: a [`Value`] keeps but the last.
fn models_in(body: &[u8]) -> usize {
    struct Models(usize);

    impl<'de> Deserialize<'de> for Models {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(ModelsVisitor).map(Self)
        }
    }

    struct ModelsVisitor;

    impl<'de> Visitor<'de> for ModelsVisitor {
        type Value = usize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<usize, A::Error> {
            let mut models = 0;
            while let Some((name, IgnoredAny)) = fields.next_entry::<String, _>()? {
                models += usize::from(name == "model");
            }
            Ok(models)
        }
    }

    serde_json::from_slice(body).map_or(0, |Models(models)| models)
}

/// What [`RequestScan::edits`] is to do.
fn edit(mut parsed: Value, usage: UsageEvent) -> Value {
    let streams = parsed.get("stream") == Some(&Value::Bool(true));
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

/// Every bound that any server may read is at most [`TOKENS`], and there is one that it will read.
fn is_bounded(operation: Operation, bounded: &Value, before: &Value) {
    let bound = |name: &str| bounded.get(name).map(|bound| bound.as_u64());
    for name in ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"] {
        let bound = bound(name);
        assert!(bound.is_none_or(|bound| bound.is_some_and(|bound| bound <= TOKENS)), "{name} is {bound:?}");
        let asked = before.get(name).and_then(Value::as_u64);
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
