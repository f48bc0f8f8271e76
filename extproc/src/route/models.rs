//! The answers to `GET /v1/models` and `GET /v1/models/{model}`: the models that this caller may ask for, as OpenAI's API
//! describes them.

use std::collections::HashSet;
use std::sync::Arc;

use attache_gate::Caller;
use serde_json::{Value, json};

use crate::config::Config;
use crate::config::model::Rule;

/// The list, as JSON text. A model that several rules serve is listed once, as the first of them describes it.
pub fn list(config: &Config, caller: Option<&Caller>) -> String {
    let mut seen = HashSet::new();
    let models: Vec<_> = served(config, caller)
        .filter(|(_, model)| seen.insert(*model))
        .map(|(rule, model)| description(rule, model))
        .collect();
    json!({"object": "list", "data": models}).to_string()
}

/// What there is of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Its item of the list, as JSON text.
    Listed(String),
    /// It is there, and the caller may not ask for it.
    NotAttached,
    /// Nobody may: it is not there.
    Unknown,
}

/// One item of the list. `name` is as a path has it: what is not there as it stands is looked for without its percent-escapes.
pub fn item(config: &Config, caller: Option<&Caller>, name: &str) -> Item {
    let unescaped = unescaped(name);
    let names = || [Some(name), unescaped.as_deref()].into_iter().flatten();
    if let Some((rule, model)) = names().find_map(|name| served(config, caller).find(|(_, model)| ***model == *name)) {
        return Item::Listed(description(rule, model).to_string());
    }
    if names().any(|name| config.rules_by_model.contains_key(name)) { Item::NotAttached } else { Item::Unknown }
}

/// A name without its percent-escapes (RFC 3986, section 2.1); `None` if there are none, or if they are wrong.
pub fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    let mut is_escaped = false;
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
        is_escaped = true;
    }
    String::from_utf8(bytes).ok().filter(|_| is_escaped)
}

/// What this caller may ask for: rules, and the models that they match, in document order.
fn served<'c>(config: &'c Config, caller: Option<&Caller>) -> impl Iterator<Item = (&'c Rule, &'c Arc<str>)> {
    config
        .routes
        .iter()
        .filter(move |route| config.gate.may_call(caller, &route.id))
        .flat_map(|route| &route.rules)
        .flat_map(|rule| rule.matches.iter().map(move |rule_match| (rule, &rule_match.model)))
}

fn description(rule: &Rule, model: &str) -> Value {
    json!({
        "id": model,
        "object": "model",
        "created": rule.models_created_at,
        "owned_by": *rule.models_owned_by,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_escapes_are_undone_or_the_name_has_none() {
        assert_eq!(unescaped("org%2Fname%20x"), Some("org/name x".to_owned()));
        assert_eq!(unescaped("%C3%A9%c3%a9"), Some("éé".to_owned()));
        for name in ["org/name", "", "%", "a%2", "%zz", "%+1", "%ff", "100%"] {
            assert_eq!(unescaped(name), None, "{name}");
        }
    }
}
