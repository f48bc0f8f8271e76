//! How large an object is for the API servers.

use serde_json::Value;

use super::error::GatewayError;

/// etcd takes requests of 1.5 MiB; the rest is for `metadata.managedFields`, which a server-side apply adds. A ConfigMap, whose
/// data may have 1 MiB, has some for its own fields.
const MOST_BYTES: usize = 1024 * 1024 + 16 * 1024;

/// Why the object would be refused.
pub(super) fn fault(object: &Value) -> Option<GatewayError> {
    let bytes = bytes(object);
    if bytes <= MOST_BYTES {
        return None;
    }
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let kind = text("/kind").to_owned();
    let way_out = match kind.as_str() {
        "EnvoyExtensionPolicy" => {
            "the Wasm filter's configuration has every key and model: leave --wasm-url out (the sidecar makes all its checks), or \
             split the documents among several Gateways"
        }
        _ => "split the documents among several Gateways",
    };
    let name = format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"));
    Some(GatewayError::ObjectTooLarge { kind, name, bytes, most: MOST_BYTES, way_out })
}

/// About those of its JSON: what stands in quotes, and the quotes, braces, colons and commas. Comments are not sent.
fn bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 6,
        Value::Number(number) => number.to_string().len() + 1,
        Value::String(text) => text.len() + 3,
        Value::Array(items) => 2 + items.iter().map(bytes).sum::<usize>(),
        Value::Object(fields) => {
            let sent = fields.iter().filter(|(key, _)| !key.starts_with("# "));
            2 + sent.map(|(key, value)| key.len() + 3 + bytes(value)).sum::<usize>()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_as_large_as_what_is_sent_of_it() {
        let object = json!({"kind": "A", "list": [{"a": "b", "n": 12}], "none": null, "yes": true});
        let length = object.to_string().len();
        assert!((length..length + 8).contains(&bytes(&object)), "{length} {}", bytes(&object));
        let mut with_comment = object.clone();
        with_comment["# why"] = Value::Null;
        assert_eq!(bytes(&with_comment), bytes(&object));
    }

    #[test]
    fn what_etcd_would_not_take_is_named() {
        let object =
            |bytes: usize| json!({"kind": "K", "metadata": {"namespace": "a", "name": "b"}, "x": "y".repeat(bytes)});
        assert_eq!(fault(&object(1024 * 1024)), None);
        let error = fault(&object(MOST_BYTES)).unwrap().to_string();
        assert!(error.starts_with("K a/b would have 1065020 bytes, and at most 1064960"), "{error}");
    }
}
