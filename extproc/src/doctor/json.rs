//! Fields of JSON that Envoy printed, read without trust: whatever is missing or of another type is as if it were not there.
//!
//! Envoy's admin interface prints names as its protobuf files have them (`route_config`), `egctl` prints the same as
//! lowerCamelCase (`routeConfig`): a name is looked for in both forms. Zero values are left out of either.

use std::time::Duration;

use serde_json::Value;

static NULL: Value = Value::Null;

/// How the checks read.
pub(super) trait Json {
    /// The field at a path such as `route.retry_policy`; null where there is none.
    fn field(&self, path: &str) -> &Value;

    /// A text; empty where there is none.
    fn text(&self, path: &str) -> &str;

    /// A list; empty where there is none.
    fn list(&self, path: &str) -> &[Value];

    /// A number, which may be printed as text.
    fn number(&self, path: &str) -> Option<u64>;

    /// A duration as protobuf prints it: `0.200s`.
    fn duration(&self, path: &str) -> Option<Duration>;

    /// Whether it is there and true.
    fn is_true(&self, path: &str) -> bool;

    /// The last part of `@type`: `ExternalProcessor`.
    fn type_name(&self) -> &str;
}

impl Json for Value {
    fn field(&self, path: &str) -> &Value {
        path.split('.').fold(self, |value, name| {
            let Value::Object(fields) = value else { return &NULL };
            let other_form = || if name.contains('_') { fields.get(&camel(name)) } else { None };
            fields.get(name).or_else(other_form).unwrap_or(&NULL)
        })
    }

    fn text(&self, path: &str) -> &str {
        self.field(path).as_str().unwrap_or_default()
    }

    fn list(&self, path: &str) -> &[Value] {
        self.field(path).as_array().map_or(&[], Vec::as_slice)
    }

    fn number(&self, path: &str) -> Option<u64> {
        match self.field(path) {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        }
    }

    fn duration(&self, path: &str) -> Option<Duration> {
        let seconds: f64 = self.field(path).as_str()?.strip_suffix('s')?.parse().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    fn is_true(&self, path: &str) -> bool {
        self.field(path).as_bool() == Some(true)
    }

    fn type_name(&self) -> &str {
        let url = self.text("@type");
        url.rsplit(['.', '/']).next().unwrap_or_default()
    }
}

/// The first value of that type within this one, itself included: matchers and composites wrap filters.
pub(super) fn within<'a>(value: &'a Value, type_name: &str) -> Option<&'a Value> {
    if value.type_name() == type_name {
        return Some(value);
    }
    // As deep as `serde_json` reads, which is 128 levels.
    match value {
        Value::Object(fields) => fields.values().find_map(|inner| within(inner, type_name)),
        Value::Array(items) => items.iter().find_map(|inner| within(inner, type_name)),
        _ => None,
    }
}

/// Every value of that type within this one, in the order of the document; none within another of them.
pub(super) fn all_within<'a>(value: &'a Value, type_name: &str, found: &mut Vec<&'a Value>) {
    if value.type_name() == type_name {
        found.push(value);
        return;
    }
    match value {
        Value::Object(fields) => fields.values().for_each(|inner| all_within(inner, type_name, found)),
        Value::Array(items) => items.iter().for_each(|inner| all_within(inner, type_name, found)),
        _ => {}
    }
}

/// Whether there is a member of this name anywhere within this value.
pub(super) fn has_member(value: &Value, name: &str) -> bool {
    match value {
        Value::Object(_) if !value.field(name).is_null() => true,
        Value::Object(fields) => fields.values().any(|inner| has_member(inner, name)),
        Value::Array(items) => items.iter().any(|inner| has_member(inner, name)),
        _ => false,
    }
}

fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let mut camel = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut letters = part.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_found_under_both_forms_of_its_name_and_a_missing_one_is_null() {
        let value = json!({"route_config": {"retryPolicy": {"numRetries": "5"}}, "a": 1});
        assert_eq!(value.number("route_config.retry_policy.num_retries"), Some(5));
        assert_eq!((value.field("a.b.c"), value.text("a"), value.list("a").len()), (&Value::Null, "", 0));
    }

    #[test]
    fn durations_are_read_as_protobuf_prints_them() {
        let value = json!({"a": "0.200s", "b": "0s", "c": "1", "d": "-1s", "e": "1e400s", "f": "NaNs"});
        let read = ["a", "b", "c", "d", "e", "f"].map(|name| value.duration(name));
        assert_eq!(read, [Some(Duration::from_millis(200)), Some(Duration::ZERO), None, None, None, None]);
    }

    #[test]
    fn a_wrapped_filter_is_found_by_its_type() {
        let value = json!({"@type": "a/x.Outer", "list": [{"inner": {"@type": "a/x.y.Inner", "n": 1}}]});
        assert_eq!(within(&value, "Inner").and_then(|inner| inner.number("n")), Some(1));
        assert_eq!(within(&value, "Other"), None);
        let mut found = Vec::new();
        let two = json!([value, {"other": value}]);
        all_within(&two, "Inner", &mut found);
        assert_eq!(found.len(), 2);
    }
}
