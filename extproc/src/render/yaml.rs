//! A [`Value`] as YAML that people read: fields in their order, small parts on one line, comments where they belong.
//!
//! A key that starts with `#` is a comment on what follows it; its value is not looked at. No field of Envoy's starts so.
//! The same value always gives the same bytes, and any YAML 1.2 reader gives back the value without its comments.

use serde_json::{Map, Value};

/// What fits within this many columns goes on one line.
const WIDTH: usize = 120;

/// `value` as a YAML document.
pub(super) fn emit(value: &Value) -> String {
    let mut out = String::new();
    block(value, 0, &mut out);
    out
}

/// A value over several lines, at the column `indent`; the cursor is at the start of a line.
fn block(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(key, value)| field(key, value, indent, out));
        }
        Value::Array(items) if !items.is_empty() => items.iter().for_each(|item| element(item, indent, out)),
        small => line(&flow(small), indent, out),
    }
}

fn field(key: &str, value: &Value, indent: usize, out: &mut String) {
    if let Some(text) = key.strip_prefix('#') {
        return comment(text.trim(), indent, out);
    }
    let key = string(key);
    if let Some(text) = value.as_str().filter(|text| is_literal(text)) {
        return literal(&key, text, indent, out);
    }
    match one_line(value, indent + key.len() + 2) {
        Some(value) => line(&format!("{key}: {value}"), indent, out),
        None => {
            line(&format!("{key}:"), indent, out);
            // A list's dashes stand under its key's first letter, as Envoy's own examples have them.
            block(value, if value.is_array() { indent } else { indent + 2 }, out);
        }
    }
}

fn element(item: &Value, indent: usize, out: &mut String) {
    if let Some(item) = one_line(item, indent + 2) {
        return line(&format!("- {item}"), indent, out);
    }
    let mut lines = String::new();
    block(item, indent + 2, &mut lines);
    // The dash takes the place of the first line's indentation. A comment that comes first stays above the dash.
    let mut rest = lines.as_str();
    while let Some((first, after)) = rest.split_once('\n') {
        rest = after;
        if !first.trim_start().starts_with('#') {
            line(&format!("- {}", first.trim_start()), indent, out);
            break;
        }
        line(first.trim_start(), indent, out);
    }
    out.push_str(rest);
}

/// A text of several lines as it is (YAML 1.2.2, 8.1.2).
fn literal(key: &str, text: &str, indent: usize, out: &mut String) {
    // Without a number, the first line with something in it says how far all are indented.
    let indented = if text.trim_start_matches('\n').starts_with(' ') { "2" } else { "" };
    let (body, end) = match text.strip_suffix('\n') {
        None => (text, "-"),
        Some(body) if body.ends_with('\n') => (body, "+"),
        Some(body) => (body, ""),
    };
    line(&format!("{key}: |{indented}{end}"), indent, out);
    for text in body.split('\n') {
        line(text, if text.is_empty() { 0 } else { indent + 2 }, out);
    }
}

/// Whether a reader gives back every letter of this text if it stands there as it is.
fn is_literal(text: &str) -> bool {
    let printable = |letter: char| {
        matches!(letter, '\n' | '\t' | ' '..='~' | '\u{a0}'..)
            && !matches!(letter, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
    };
    let plain = |line: &str| line.is_empty() || !(line.starts_with('\t') || line.trim().is_empty());
    text.contains('\n') && !text.trim().is_empty() && text.chars().all(printable) && text.split('\n').all(plain)
}

fn comment(text: &str, indent: usize, out: &mut String) {
    let mut words = text.split_whitespace().peekable();
    while words.peek().is_some() {
        let mut comment = String::from("#");
        while let Some(word) = words.next_if(|word| comment.len() == 1 || indent + comment.len() + word.len() < WIDTH) {
            comment.push(' ');
            comment.push_str(word);
        }
        line(&comment, indent, out);
    }
}

fn line(text: &str, indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
    out.push_str(text);
    out.push('\n');
}

/// The value on one line, where it fits after `column` and has nothing that needs lines of its own; a scalar always fits.
fn one_line(value: &Value, column: usize) -> Option<String> {
    if needs_lines(value) {
        return None;
    }
    let text = flow(value);
    let fits = column + text.chars().count() <= WIDTH;
    (fits || !(value.is_object() || value.is_array())).then_some(text)
}

/// Comments do, and texts of several lines.
fn needs_lines(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(key, value)| key.starts_with('#') || needs_lines(value)),
        Value::Array(items) => items.iter().any(needs_lines),
        Value::String(text) => is_literal(text),
        _ => false,
    }
}

fn flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => format!("{{{}}}", flow_fields(fields)),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::String(text) => string(text),
        // `null`, booleans and numbers are written alike in JSON and YAML.
        other => other.to_string(),
    }
}

fn flow_fields(fields: &Map<String, Value>) -> String {
    let fields = fields.iter().map(|(key, value)| format!("{}: {}", string(key), flow(value)));
    fields.collect::<Vec<_>>().join(", ")
}

/// A string, quoted where YAML could take it for something else.
fn string(text: &str) -> String {
    if is_plain(text) {
        return text.to_owned();
    }
    if text.contains('"') && !text.chars().any(char::is_control) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    // YAML 1.2 reads every JSON string.
    Value::from(text).to_string()
}

/// Whether the bare text can only be this string: a word, a path, or a duration such as `10s`.
fn is_plain(text: &str) -> bool {
    // What YAML 1.1 readers, such as Envoy's, take for a boolean or for null.
    const RESERVED: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-./".contains(letter))
        && !RESERVED.contains(&text.to_ascii_lowercase().as_str());
    let is_duration =
        text.strip_suffix('s').is_some_and(|n| !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit()));
    is_word || is_duration
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn small_parts_stand_on_one_line_and_large_ones_over_several() {
        let text = emit(&json!({
            "name": "a",
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 80}},
            "long": {"first": "x".repeat(60), "second": "y".repeat(60)},
            "list": [{"first": "x".repeat(60), "second": "y".repeat(60)}, 2],
        }));
        let (x, y) = ("x".repeat(60), "y".repeat(60));
        assert_eq!(
            text,
            format!(
                "name: a\n\
                 address: {{socket_address: {{address: \"127.0.0.1\", port_value: 80}}}}\n\
                 long:\n  first: {x}\n  second: {y}\n\
                 list:\n- first: {x}\n  second: {y}\n- 2\n"
            )
        );
    }

    #[test]
    fn comments_stand_above_what_they_explain() {
        let text = emit(&json!({"list": [{"# why": null, "a": 1, "# and why not": null, "b": {}}]}));
        assert_eq!(text, "list:\n# why\n- a: 1\n  # and why not\n  b: {}\n");
    }

    #[test]
    fn long_comments_are_wrapped() {
        let text = emit(&json!({ format!("# {}", "word ".repeat(50)): null, "a": 1 }));
        assert_eq!(text.lines().filter(|line| line.starts_with("# word")).count(), 3);
        assert!(text.lines().all(|line| line.len() <= WIDTH));
    }

    #[test]
    fn texts_of_several_lines_stand_as_they_are() {
        let text = emit(&json!({"a": "x: 1\n\n  y\n", "b": {"c": " x\ny", "d": "x\n\n"}, "e": "x\r\n"}));
        assert_eq!(text, "a: |\n  x: 1\n\n    y\nb:\n  c: |2-\n     x\n    y\n  d: |+\n    x\n\ne: \"x\\r\\n\"\n");
    }

    #[test]
    fn strings_that_look_like_something_else_are_quoted() {
        let shown =
            ["true", "No", "12", "1e3", "10s", "", "a: b", "a #b", "@type", "- a", "ns/name", "a\nb", "{\"a\":'1'}"]
                .map(string);
        let expected = [
            "\"true\"",
            "\"No\"",
            "\"12\"",
            "\"1e3\"",
            "10s",
            "\"\"",
            "\"a: b\"",
            "\"a #b\"",
            "\"@type\"",
            "\"- a\"",
            "ns/name",
            "\"a\\nb\"",
            "'{\"a\":''1''}'",
        ];
        assert_eq!(shown, expected);
    }

    fn values() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            "[a-z0-9 :'\"\\n\\t{}#,-]{0,80}".prop_map(Value::from),
            "([a-z #:-]{0,6}\\n){1,4}[ a-z]{0,3}".prop_map(Value::from),
        ];
        scalar.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[a-z@:' ]{1,40}", inner, 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(value in values()) {
            let text = emit(&value);
            prop_assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value, "{}", text);
        }
    }
}
