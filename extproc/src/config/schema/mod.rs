//! JSON Schema (draft 7, which editors know best) of the kinds that are our own: an editor completes their fields, says what
//! each is for and marks what cannot be.
//!
//! It knows one document at a time and knows values by their form. What refers to another object, and whether an expression, a
//! time zone or a pattern is one, only `attache check` says. The tests hold it to the readers: what they take in silence, it takes.

mod cache_affinity;
mod client_key;
mod token_limit;

use serde_json::{Value, json};

use super::resource::ATTACHE;

/// The version of our kinds.
const VERSION: &str = "v1alpha1";

/// A schema of one document of the operator's: of a kind of ours, or of any other, which passes.
pub fn schema() -> Value {
    let kinds = [client_key::kind(), token_limit::kind(), cache_affinity::kind()];
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    let ours = json!({"properties": {"apiVersion": {"pattern": format!("^{ATTACHE}/")}}, "required": ["apiVersion"]});
    let of_group = json!({
        "if": ours,
        "then": {
            "properties": {
                "apiVersion": {"const": format!("{ATTACHE}/{VERSION}")},
                "kind": {"enum": names},
            },
            "required": ["kind", "metadata", "spec"],
        },
    });
    let rules: Vec<Value> = std::iter::once(of_group).chain(kinds.into_iter().map(Kind::rule)).collect();
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Documents of Attaché",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
        },
        "allOf": rules,
    })
}

/// One kind of ours.
struct Kind {
    name: &'static str,
    description: &'static str,
    spec: Value,
}

impl Kind {
    /// What holds for documents of this kind, and for them alone.
    fn rule(self) -> Value {
        json!({
            "if": {
                "properties": {
                    "apiVersion": {"pattern": format!("^{ATTACHE}/")},
                    "kind": {"const": self.name},
                },
                "required": ["apiVersion", "kind"],
            },
            "then": {
                "description": self.description,
                "properties": {"apiVersion": {}, "kind": {}, "metadata": metadata(), "spec": self.spec, "status": {}},
                "additionalProperties": false,
            },
        })
    }
}

fn metadata() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": name("The object's name."),
            "namespace": name("`default` where it is not said."),
        },
        "required": ["name"],
    })
}

/// The name of an object.
fn name(description: &str) -> Value {
    json!({"description": description, "type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "maxLength": 253})
}

/// A mapping with these fields, of which some must be there.
fn fields(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn words(description: &str, words: &[&str]) -> Value {
    json!({"description": description, "enum": words})
}

fn switch(description: &str) -> Value {
    json!({"description": description, "type": "boolean"})
}

/// Text in a form, never empty.
fn text(description: &str, pattern: &str) -> Value {
    json!({"description": description, "type": "string", "minLength": 1, "pattern": pattern})
}

/// A Gateway API duration, and days and weeks.
fn duration(description: &str) -> Value {
    text(description, "^([0-9]+(ms|s|m|h|d|w))+$")
}

fn whole_number(description: &str, min: u64, max: u64) -> Value {
    json!({"description": description, "type": "integer", "minimum": min, "maximum": max})
}

/// What a header's value can be as it is.
fn header_value(description: &str, max_length: usize) -> Value {
    let mut value = text(description, r"^[^\u0000-\u0020\u007f]([^\u0000-\u001f\u007f]*[^\u0000-\u0020\u007f])?$");
    if let Value::Object(value) = &mut value {
        value.insert("maxLength".to_owned(), json!(max_length));
    }
    value
}

/// A reference to an object in the same namespace.
fn target(kinds: &[(&str, &str)], section: Option<&str>) -> Value {
    let forms: Vec<Value> = kinds
        .iter()
        .map(|(group, kind)| {
            let mut properties = json!({
                "group": {"const": group},
                "kind": {"const": kind},
                "name": name("Its name, in the policy's own namespace."),
            });
            if let (Value::Object(properties), Some(section)) = (&mut properties, section) {
                properties.insert("sectionName".to_owned(), text(section, "."));
            }
            fields(properties, &["kind", "name"])
        })
        .collect();
    json!({"anyOf": forms})
}

#[cfg(test)]
mod tests;
