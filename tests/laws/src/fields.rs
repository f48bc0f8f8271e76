//! The fields that an operator sets and removes in a client's body.

use attache_proto::fields::FieldEdits;
use attache_proto::splice::Splice;
use bytes::Bytes;
use serde_json::Value;

use crate::edited::edited;
use crate::head::Head;
use crate::json::is_liberty;

/// Setting and removing then parsing is parsing then setting and removing, and doing it again changes nothing.
///
/// The lines of an input up to one that is neither are edits, `+NAME=JSON` and `-NAME`; the rest is the body.
pub fn fields(input: &[u8]) {
    let Some((head, input)) = Head::split(input) else { return };
    let mut edits = FieldEdits::default();
    let mut wanted: Vec<(&str, Option<Value>)> = Vec::new();
    let mut body = input;
    while let Some((name, value, rest)) = edit(body) {
        match value {
            Some(value) if edits.set(name, value).is_ok() => match serde_json::from_str(value) {
                Ok(value) => wanted.push((name, Some(value))),
                Err(error) => return assert!(is_liberty(&error), "serde_json refuses what is set: {error}"),
            },
            Some(value) => assert!(serde_json::from_str::<Value>(value).is_err() || value.len() > 120, "{value}"),
            None => {
                edits.remove(name);
                wanted.push((name, None));
            }
        }
        body = rest;
    }
    let parsed = serde_json::from_slice::<Value>(body);
    let Some(made) = edits.edits(body) else {
        return assert!(parsed.is_err() || parsed.is_ok_and(|parsed| !parsed.is_object()), "an object has fields");
    };
    if edits.is_empty() {
        assert_eq!(made, [], "there is nothing to do");
    }
    let left = edited(made.clone(), body, head.cuts());
    let again = edits.edits(&left).unwrap_or_default();
    assert_eq!(edited(again, &left, head.cuts()), left, "it is done");
    one_after_another(Splice::new(made, body.len()).ok(), body, &left);
    match parsed {
        Ok(parsed) => assert_eq!(serde_json::from_slice(&left).ok(), Some(expected(parsed, wanted))),
        Err(error) => assert!(is_liberty(&error), "serde_json refuses what was edited: {error}"),
    }
}

/// An edit, by its name and what it sets, and what is behind its line.
fn edit(input: &[u8]) -> Option<(&str, Option<&str>, &[u8])> {
    let end = input.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = input.split_at(end);
    let line = str::from_utf8(line).ok()?;
    let rest = rest.get(1..)?;
    match (line.strip_prefix('+').and_then(|line| line.split_once('=')), line.strip_prefix('-')) {
        (Some((name, value)), _) => Some((name, Some(value), rest)),
        (None, Some(name)) => Some((name, None, rest)),
        (None, None) => None,
    }
}

fn expected(mut parsed: Value, wanted: Vec<(&str, Option<Value>)>) -> Value {
    if let Some(fields) = parsed.as_object_mut() {
        // What some readers take for one of them goes with it.
        let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
        let is_another = |key: &str| !names.contains(&key) && names.iter().any(|name| folded(name) == folded(key));
        fields.retain(|key, _| !is_another(key));
        for (name, value) in wanted {
            match value {
                Some(value) => drop(fields.insert(name.to_owned(), value)),
                None => drop(fields.remove(name)),
            }
        }
    }
    parsed
}

/// An edit of what the first edits leave, as one splice with them.
fn one_after_another(first: Option<Splice>, body: &[u8], left: &[u8]) {
    assert!(first.is_some(), "the edits of fields are a splice");
    let Some(first) = first else { return };
    let mut later = FieldEdits::default();
    if later.set("model", "\"later\"").is_err() {
        return;
    }
    let later = later.edits(left).unwrap_or_default();
    let at_once = first.then(later.clone()).map(|both| both.apply(&Bytes::copy_from_slice(body)));
    let in_turn = Splice::new(later, left.len()).map(|later| later.apply(&Bytes::copy_from_slice(left)));
    assert_eq!(at_once, in_turn);
}

/// As Go compares names.
fn folded(name: &str) -> String {
    name.to_ascii_lowercase().replace('\u{212a}', "k").replace('\u{17f}', "s")
}
