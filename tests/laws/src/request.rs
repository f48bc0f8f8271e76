//! The request scanner, and the edits that come of a scan.

use std::collections::BTreeSet;
use std::fmt;

use attache_proto::Operation;
use attache_proto::request::{RequestScan, ScanError, UsageEvent, scan};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
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

/// Whoever takes the first of two members, or the last, or does not mind the case as Go's servers do not, reads what was scanned.
fn is_read_alike(operation: Operation, body: &[u8]) {
    /// Of each operation, or of chats alone: an object, by its way from the top, and what is read of it.
    const READ: [(&str, &[&str]); 2] = [
        (
            "",
            &[
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
            ],
        ),
        ("stream_options", &["include_usage"]),
    ];
    const READ_OF_CHATS: [(&str, &[&str]); 6] = [
        ("", &["cache_salt", "messages", "min_tokens", "thinking", "thinking_budget", "web_search_options"]),
        ("messages.*", &["role", "content", "name", "reasoning", "tool_calls"]),
        ("messages.*.content.*", &["type", "text", "image_url"]),
        ("tools.*", &["type"]),
        ("thinking", &["budget_tokens"]),
        ("reasoning", &["max_tokens"]),
    ];
    let Ok(tree) = serde_json::from_slice::<Tree>(body) else { return };
    if operation == Operation::PassThrough {
        return tree.is_clear_at("", &["model"]);
    }
    READ.into_iter().for_each(|(way, names)| tree.is_clear_at(way, names));
    if operation == Operation::ChatCompletions {
        READ_OF_CHATS.into_iter().for_each(|(way, names)| tree.is_clear_at(way, names));
    }
}

/// A document with each member of an object as often as it is there: a [`Value`] keeps but the last.
enum Tree {
    Object(Vec<(String, Tree)>),
    List(Vec<Tree>),
    Other,
}

impl Tree {
    /// No two of the names are taken for the same one of `read`, and none is in another spelling, in the objects at the end of this way.
    fn is_clear_at(&self, way: &str, read: &[&str]) {
        let (step, rest) = way.split_once('.').unwrap_or((way, ""));
        match self {
            Self::Object(members) if way.is_empty() => {
                let mut seen = BTreeSet::new();
                for (name, _) in members {
                    let folded = folded(name);
                    if read.contains(&folded.as_str()) {
                        assert_eq!(*name, folded, "some servers read it, and others do not");
                        assert!(seen.insert(folded), "some servers take the first {name}, and others the last");
                    }
                }
            }
            Self::Object(members) => {
                members.iter().filter(|(name, _)| name == step).for_each(|(_, value)| value.is_clear_at(rest, read));
            }
            Self::List(elements) if step == "*" => elements.iter().for_each(|element| element.is_clear_at(rest, read)),
            Self::List(_) | Self::Other => {}
        }
    }
}

fn folded(name: &str) -> String {
    let fold = |character: char| match character {
        '\u{212a}' => 'k',
        '\u{17f}' => 's',
        character => character.to_ascii_lowercase(),
    };
    name.chars().map(fold).collect()
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TreeVisitor;

        impl<'de> Visitor<'de> for TreeVisitor {
            type Value = Tree;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree, A::Error> {
                let mut object = Vec::new();
                while let Some(member) = members.next_entry()? {
                    object.push(member);
                }
                Ok(Tree::Object(object))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Tree, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = elements.next_element()? {
                    list.push(element);
                }
                Ok(Tree::List(list))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Tree, E> {
                Ok(Tree::Other)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Tree, E> {
                Ok(Tree::Other)
            }

            fn visit_u64<E>(self, _: u64) -> Result<Tree, E> {
                Ok(Tree::Other)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Tree, E> {
                Ok(Tree::Other)
            }

            fn visit_str<E>(self, _: &str) -> Result<Tree, E> {
                Ok(Tree::Other)
            }

            fn visit_unit<E>(self) -> Result<Tree, E> {
                Ok(Tree::Other)
            }
        }

        deserializer.deserialize_any(TreeVisitor)
    }
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
    thinks_within_the_bound(bounded, before);
}

/// What the body says of thoughts is never more than it was, and less than a bound that was lowered or added.
fn thinks_within_the_bound(bounded: &Value, before: &Value) {
    let bounds = ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"];
    let asked = bounds.iter().filter_map(|name| before.get(name).and_then(count).flatten()).max();
    for place in ["/thinking/budget_tokens", "/reasoning/max_tokens", "/thinking_budget"] {
        let budget = |body: &Value| body.pointer(place).filter(|it| !it.is_boolean()).and_then(count).flatten();
        let Some(wanted) = budget(before) else { continue };
        let left = budget(bounded);
        assert!(left.is_some_and(|left| left <= wanted), "{place}: {wanted} became {left:?}");
        let is_lower = asked.is_none_or(|asked| asked > TOKENS);
        assert!(!is_lower || left.is_some_and(|left| left < TOKENS), "{place}: {left:?} of {TOKENS}");
    }
}
