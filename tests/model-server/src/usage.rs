//! The tokens that an exchange used, and what faults make of the report of them.

use serde_json::{Map, Value};

use crate::faults::UsageReport;

/// Where answers and events report their usage, in all dialects.
const PLACES: [&str; 4] = ["usage", "response", "message", "meta"];

/// The tokens that an exchange used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) completion_tokens: u64,
    /// Of the completion.
    pub(crate) reasoning_tokens: u64,
}

impl Usage {
    pub(crate) fn total(self) -> u64 {
        self.prompt_tokens + self.completion_tokens
    }
}

impl UsageReport {
    /// What is sent in place of a body or an event: itself, changed, twice or not at all.
    pub(crate) fn applied(self, mut body: Value) -> Vec<Value> {
        if self == Self::Report {
            return vec![body];
        }
        let Some((holder, place)) = holder(&mut body) else {
            return vec![body];
        };
        match self {
            Self::Report => {}
            Self::Omit => {
                holder.remove(place);
                let is_bare = body.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty);
                if is_bare {
                    return Vec::new();
                }
            }
            Self::Nullify => {
                holder.insert(place.to_owned(), Value::Null);
            }
            Self::Negate => {
                change_figures(holder.get_mut(place), &|figure| Value::from(-i64::try_from(figure).unwrap_or(i64::MAX)))
            }
            Self::Inflate => change_figures(holder.get_mut(place), &|_| Value::from(u64::MAX)),
            Self::Repeat => {
                let right = body.clone();
                change_figures_of(&mut body);
                return vec![body, right];
            }
        }
        vec![body]
    }
}

fn change_figures_of(body: &mut Value) {
    if let Some((holder, place)) = holder(body) {
        change_figures(holder.get_mut(place), &|figure| Value::from(figure.saturating_mul(3)));
    }
}

/// The object with the usage, and its member's name. A `null` is no usage.
fn holder(body: &mut Value) -> Option<(&mut Map<String, Value>, &'static str)> {
    let place = PLACES.into_iter().find(|place| match body.get(place) {
        Some(value) if *place == "usage" || *place == "meta" => value.is_object(),
        Some(value) => value.get("usage").is_some_and(Value::is_object),
        None => false,
    })?;
    match place {
        "usage" | "meta" => Some((body.as_object_mut()?, place)),
        _ => Some((body.get_mut(place)?.as_object_mut()?, "usage")),
    }
}

fn change_figures(value: Option<&mut Value>, change: &impl Fn(u64) -> Value) {
    let Some(value) = value else { return };
    match value {
        Value::Number(number) => {
            if let Some(figure) = number.as_u64() {
                *value = change(figure);
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(|field| change_figures(Some(field), change)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_usage_of_every_dialect_is_found_and_changed() {
        for place in ["/usage", "/response/usage", "/message/usage", "/meta"] {
            let body = |usage: Value| match place {
                "/usage" => json!({"a": 1, "usage": usage}),
                "/response/usage" => json!({"a": 1, "response": {"b": 2, "usage": usage}}),
                "/message/usage" => json!({"a": 1, "message": {"b": 2, "usage": usage}}),
                _ => json!({"a": 1, "meta": usage}),
            };
            let usage = json!({"in": 2, "details": {"cached": 1}});
            let applied = |report: UsageReport| report.applied(body(usage.clone()));
            assert_eq!(applied(UsageReport::Report), [body(usage.clone())]);
            assert_eq!(applied(UsageReport::Nullify), [body(json!(null))]);
            assert_eq!(applied(UsageReport::Negate), [body(json!({"in": -2, "details": {"cached": -1}}))]);
            assert_eq!(applied(UsageReport::Inflate), [body(json!({"in": u64::MAX, "details": {"cached": u64::MAX}}))]);
            let tripled = body(json!({"in": 6, "details": {"cached": 3}}));
            assert_eq!(applied(UsageReport::Repeat), [tripled, body(usage.clone())]);
            assert_eq!(applied(UsageReport::Omit)[0].pointer(place), None);
        }
    }

    #[test]
    fn a_body_without_usage_stays_and_a_bare_usage_chunk_is_dropped() {
        for body in [json!({"choices": []}), json!({"usage": null}), json!({"message": {}}), json!("x")] {
            assert_eq!(UsageReport::Omit.applied(body.clone()), [body]);
        }
        assert!(UsageReport::Omit.applied(json!({"choices": [], "usage": {"a": 1}})).is_empty());
    }
}
