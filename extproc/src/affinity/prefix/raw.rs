//! Raw JSON as a cache sees it. A template prints what it means, so white space, escapes and where a client put its
//! `cache_control` make no difference, while the order of keys does.
//!
//! What comes in was scanned, so it is JSON, or a part of JSON where a body has more pieces than are told apart: of that the
//! outcome is any, but always the same. Time is linear in the length.

use attache_proto::json::unescape_each;
use memchr::memchr2;

/// Hands over the JSON without white space, escapes and members named `cache_control`, in pieces as long as can be.
pub(super) fn canonical(json: &[u8], mut take: impl FnMut(&[u8])) {
    // What is handed over next begins at `kept`; what was looked at ends at `at`.
    let (mut kept, mut at) = (0, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                let (end, form) = string_end(json, at + 1);
                if form == Form::Escaped {
                    take(json.get(kept..=at).unwrap_or_default());
                    unescape_each(json.get(at + 1..end).unwrap_or_default(), &mut take);
                    kept = end;
                }
                at = end + 1;
            }
            b' ' | b'\t' | b'\n' | b'\r' => {
                take(json.get(kept..at).unwrap_or_default());
                at = space_end(json, at);
                kept = at;
            }
            b',' => match dropped_member(json, at + 1) {
                Some(end) => {
                    take(json.get(kept..at).unwrap_or_default());
                    at = end;
                    kept = end;
                }
                None => at += 1,
            },
            b'{' => {
                let mut next = at + 1;
                while let Some(end) = dropped_member(json, next) {
                    // Its comma is the one behind it.
                    let end = space_end(json, end);
                    next = if json.get(end) == Some(&b',') { end + 1 } else { end };
                }
                if next > at + 1 {
                    take(json.get(kept..=at).unwrap_or_default());
                    kept = next;
                }
                at = next;
            }
            _ => at += 1,
        }
    }
    take(json.get(kept..).unwrap_or_default());
}

/// Hands over a JSON array of token ids as u32, little endian.
///
/// An id that is no u32 wraps: it is no token, and any value will do as long as it is always the same.
pub(super) fn token_ids(json: &[u8], mut take: impl FnMut(&[u8])) {
    const BUFFER_BYTES: usize = 1024;
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut id: Option<u32> = None;
    for byte in json {
        if byte.is_ascii_digit() {
            let digit = u32::from(byte.wrapping_sub(b'0'));
            id = Some(id.unwrap_or_default().wrapping_mul(10).wrapping_add(digit));
        } else if let Some(id) = id.take() {
            buffer.extend_from_slice(&id.to_le_bytes());
            if buffer.len() >= BUFFER_BYTES {
                take(&buffer);
                buffer.clear();
            }
        }
    }
    buffer.extend(id.into_iter().flat_map(u32::to_le_bytes));
    take(&buffer);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Escaped,
}

/// Where the string's closing quote is, which begins at `at` behind its opening one, and whether it has escapes.
fn string_end(json: &[u8], mut at: usize) -> (usize, Form) {
    let mut form = Form::Plain;
    loop {
        let rest = json.get(at..).unwrap_or_default();
        let Some(found) = memchr2(b'"', b'\\', rest) else { return (json.len(), form) };
        at += found;
        if rest.get(found) == Some(&b'"') {
            return (at, form);
        }
        form = Form::Escaped;
        at += 2;
    }
}

fn space_end(json: &[u8], at: usize) -> usize {
    let rest = json.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count()
}

/// Where the member ends that comes next, if it is one that makes no difference: it moves from turn to turn as a client
/// says how far a cache shall reach.
fn dropped_member(json: &[u8], at: usize) -> Option<usize> {
    const KEY: &[u8] = br#""cache_control""#;
    let start = space_end(json, at);
    let colon = space_end(json, start + json.get(start..)?.strip_prefix(KEY).map(|_| KEY.len())?);
    (json.get(colon) == Some(&b':')).then(|| value_end(json, space_end(json, colon + 1)))
}

fn value_end(json: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at = string_end(json, at + 1).0,
            b'{' | b'[' => depth += 1,
            b'}' | b']' | b',' if depth == 0 => return at,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn canonical_of(json: &str) -> String {
        let mut text = Vec::new();
        canonical(json.as_bytes(), |piece| text.extend_from_slice(piece));
        String::from_utf8(text).unwrap()
    }

    fn ids(json: &str) -> Vec<u32> {
        let mut bytes = Vec::new();
        token_ids(json.as_bytes(), |piece| bytes.extend_from_slice(piece));
        bytes.chunks_exact(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect()
    }

    #[test]
    fn white_space_and_escapes_go_and_the_order_of_keys_stays() {
        assert_eq!(
            canonical_of("{ \"b\" : [ 1 , 2.5e3 ,\n null ] , \"a\\u00e9\" : \"x\\/ \\n y\" }"),
            "{\"b\":[1,2.5e3,null],\"aé\":\"x/ \n y\"}"
        );
        assert_eq!(canonical_of(r#""a\\""#), "\"a\\\"");
        assert_eq!(canonical_of("  7 "), "7");
    }

    #[test]
    fn cache_control_goes_with_one_comma_wherever_it_stands() {
        let control = r#""cache_control" : {"type":"ephemeral","ttl":[{"a":"}"}]}"#;
        for (with, without) in [
            (format!("{{{control}}}"), "{}"),
            (format!("{{{control},\"a\":1}}"), r#"{"a":1}"#),
            (format!("{{ {control} , {control} , \"a\":1}}"), r#"{"a":1}"#),
            (format!("{{\"a\":1 , {control}}}"), r#"{"a":1}"#),
            (format!("{{\"a\":1,{control},\"b\":{{{control}}}}}"), r#"{"a":1,"b":{}}"#),
            (r#"{"a":1,"cache_control":null,"b":2}"#.to_owned(), r#"{"a":1,"b":2}"#),
        ] {
            assert_eq!(canonical_of(&with), without, "{with}");
        }
        for kept in [r#"["a","cache_control"]"#, r#"{"a":"cache_control"}"#, r#"{"cache_controls":1}"#] {
            assert_eq!(canonical_of(kept), kept);
        }
    }

    #[test]
    fn token_ids_are_their_values() {
        assert_eq!(ids("[ 1,\n22 , 4294967295,4294967296 ]"), [1, 22, u32::MAX, 0]);
        let many: Vec<u32> = (0..10_000).collect();
        assert_eq!(ids(&serde_json::to_string(&many).unwrap()), many);
        assert!(ids("[]").is_empty());
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(Value::Null), any::<i32>().prop_map(Value::from), any::<String>().prop_map(Value::from)];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let key = prop_oneof![Just("cache_control".to_owned()), any::<String>()];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn without_control(value: Value) -> Value {
        match value {
            Value::Array(elements) => elements.into_iter().map(without_control).collect(),
            Value::Object(members) => Value::Object(
                members
                    .into_iter()
                    .filter(|(key, _)| key != "cache_control")
                    .map(|(key, value)| (key, without_control(value)))
                    .collect(),
            ),
            other => other,
        }
    }

    proptest! {
        #[test]
        fn printing_and_cache_control_make_no_difference(value in value()) {
            let plain = without_control(value.clone());
            prop_assert_eq!(canonical_of(&value.to_string()), canonical_of(&plain.to_string()));
            prop_assert_eq!(canonical_of(&serde_json::to_string_pretty(&value).unwrap()), canonical_of(&plain.to_string()));
        }

        #[test]
        fn no_bytes_make_it_panic(json in r#"[\[\]{}:,"\\ a1u]{0,40}|(\{|,)"cache_control" ?:?[\[\]{},"\\]{0,8}"#) {
            canonical(json.as_bytes(), |_| {});
            token_ids(json.as_bytes(), |_| {});
        }
    }
}
