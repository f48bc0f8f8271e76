//! Dumps that are foreign, wrapped, cut or hostile.

use serde_json::{Map, Value, json};

use super::super::*;
use super::{Dump, ENVOY_GATEWAY, STATIC};

fn examined(dump: Value) -> Result<Vec<Examination>, NoDump> {
    examine(&Evidence { dump, ..Evidence::default() }, &Question::default())
}

/// As `egctl` prints names: lowerCamelCase, but for the keys of maps, which have signs in them.
fn in_camel_case(value: Value) -> Value {
    let name = |name: String| {
        let mut parts = name.split('_');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |name, part| {
            let mut letters = part.chars();
            name + &letters
                .next()
                .map(|first| first.to_ascii_uppercase())
                .into_iter()
                .chain(letters)
                .collect::<String>()
        })
    };
    let is_name = |key: &str| key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| {
                let key = if is_name(&key) { name(key) } else { key };
                (key, in_camel_case(value))
            });
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(in_camel_case).collect()),
        other => other,
    }
}

#[test]
fn what_egctl_wraps_and_renames_is_read_proxy_by_proxy() {
    for (text, findings) in [(STATIC, 0), (ENVOY_GATEWAY, 1)] {
        let dump = in_camel_case(Dump::new(text).0);
        for wrapped in
            [json!({"a-ns": {"pod-1": dump, "pod-2": dump}}), json!({"a-ns": {"pod-1": {"configDump": dump}}})]
        {
            let examinations = examined(wrapped).unwrap();
            assert_eq!(examinations[0].proxy, "a-ns/pod-1");
            for examination in examinations {
                assert_eq!((examination.findings.len(), examination.attachments.len()), (findings, 1));
            }
        }
    }
}

#[test]
fn json_that_is_no_dump_is_refused() {
    for foreign in
        [json!(null), json!([]), json!({}), json!({"configs": []}), json!({"configs": [1]}), json!("configs")]
    {
        assert_eq!(examined(foreign).unwrap_err(), NoDump);
    }
}

#[test]
fn a_dump_in_which_anything_is_missing_or_of_another_type_is_examined_all_the_same() {
    /// Calls `change` on every node there is, one at a time.
    fn paths(value: &Value, at: &str, all: &mut Vec<String>) {
        all.push(at.to_owned());
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, inner)| {
                let key = key.replace('~', "~0").replace('/', "~1");
                paths(inner, &format!("{at}/{key}"), all);
            }),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(index, inner)| paths(inner, &format!("{at}/{index}"), all));
            }
            _ => {}
        }
    }
    for text in [STATIC, ENVOY_GATEWAY] {
        let whole = Dump::new(text).0;
        let mut all = Vec::new();
        paths(&whole, "", &mut all);
        assert!(all.len() > 300);
        for (index, path) in all.iter().enumerate() {
            // Each sort at some of the places, all of them over the document.
            let instead = [json!(null), json!([]), json!({}), json!("\u{1b}[2J\n"), json!(-1), json!([[{"a": null}]])];
            let mut dump = whole.clone();
            *dump.pointer_mut(path).unwrap() = instead[index % instead.len()].clone();
            for examination in examined(dump).unwrap_or_default() {
                let drawn = draw(&examination);
                assert!(!drawn.contains('\u{1b}'), "{path}: {drawn}");
            }
        }
    }
}

#[test]
fn nothing_of_a_configuration_that_may_be_secret_is_printed() {
    let mut dump = Dump::new(STATIC);
    dump.plugin()["configuration"]["value"] = json!("sk-secret");
    dump.route(0)["request_headers_to_add"] =
        json!([{"header": {"key": "authorization", "value": "Bearer sk-secret"}}]);
    let examination = dump.examine();
    assert!(!draw(&examination).contains("sk-secret"));
    assert!(!serde_json::to_string(&examination).unwrap().contains("sk-secret"));
}
