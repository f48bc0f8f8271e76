//! The answers to `GET /v1/models` and `GET /v1/models/{model}`: the models that this caller may ask for, as OpenAI's API
//! describes them or Anthropic's.

use std::collections::HashSet;
use std::sync::Arc;

use attache_gate::Caller;
use attache_proto::Dialect;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::config::model::{Route, Rule};
use crate::config::{Config, host};

/// The list, as JSON text: of the names that rules give. A model that several rules serve is listed once, as the first of them
/// describes it. Anthropic's API lists in pages; this is one of all.
pub fn list(config: &Config, caller: Option<&Caller>, authority: Option<&str>, dialect: Dialect) -> String {
    let mut seen = HashSet::new();
    let models: Vec<_> = served(config, caller, authority)
        .filter(|(_, model)| seen.insert(*model))
        .map(|(rule, model)| description(rule, model, dialect))
        .collect();
    let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
    match dialect {
        Dialect::OpenAi => json!({"object": "list", "data": models}),
        Dialect::Anthropic => {
            let (first, last) = (id(models.first()), id(models.last()));
            json!({"data": models, "has_more": false, "first_id": first, "last_id": last})
        }
    }
    .to_string()
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

/// One item of the list, or a model that only a pattern names. `name` is as a path has it: what is not there as it stands is looked
/// for without its percent-escapes.
pub fn item(config: &Config, caller: Option<&Caller>, authority: Option<&str>, name: &str, dialect: Dialect) -> Item {
    let unescaped = unescaped(name);
    let names = || [Some(name), unescaped.as_deref()].into_iter().flatten();
    let listed = names().find_map(|name| served(config, caller, authority).find(|(_, model)| ***model == *name));
    if let Some((rule, model)) = listed {
        return Item::Listed(description(rule, model, dialect).to_string());
    }
    // Of the two readings of a name that nobody wrote down, the unescaped is the one that was meant.
    let name = names().find(|name| config.rules_by_model.contains_key(*name)).or(unescaped.as_deref()).unwrap_or(name);
    let mut item = Item::Unknown;
    for (id, route, _) in super::matches_of(config, name) {
        let Some(rule) = config.rule(id).filter(|rule| rule.is_listed && is_of_host(route, authority)) else {
            continue;
        };
        if config.gate.may_call(caller, &route.id) {
            return Item::Listed(description(rule, name, dialect).to_string());
        }
        item = Item::NotAttached;
    }
    item
}

/// The model that this caller may have meant by a name that nobody knows. Only short names are compared, and few: whoever sends wrong
/// ones without end gets no work done by it.
pub fn similar<'c>(
    config: &'c Config,
    caller: Option<&Caller>,
    authority: Option<&str>,
    name: &str,
) -> Option<&'c str> {
    const LONGEST: usize = 64;
    const COMPARED: usize = 256;
    const MOST_EDITS: usize = 3;
    if name.len() > LONGEST {
        return None;
    }
    let wanted = name.to_lowercase();
    served(config, caller, authority)
        .map(|(_, model)| &**model)
        .filter(|model| model.len() <= LONGEST && model.len().abs_diff(wanted.len()) <= MOST_EDITS)
        .take(COMPARED)
        .map(|model| (strsim::osa_distance(&wanted, &model.to_lowercase()), model))
        // A short name is another one after few edits.
        .filter(|(edits, model)| *edits <= MOST_EDITS.min(model.len() / 3))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, model)| model)
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

/// What this caller may ask for at this host by a name that is written down: rules, and the models that they match, in document
/// order.
fn served<'c>(
    config: &'c Config,
    caller: Option<&Caller>,
    authority: Option<&str>,
) -> impl Iterator<Item = (&'c Rule, &'c Arc<str>)> {
    config
        .routes
        .iter()
        .filter(move |route| config.gate.may_call(caller, &route.id) && is_of_host(route, authority))
        .flat_map(|route| &route.rules)
        .filter(|rule| rule.is_listed)
        .flat_map(|rule| rule.matches.iter().filter_map(move |found| Some((rule, found.model_name()?))))
}

fn is_of_host(route: &Route, authority: Option<&str>) -> bool {
    host::rank(&route.hosts, authority).is_some()
}

fn description(rule: &Rule, model: &str, dialect: Dialect) -> Value {
    match dialect {
        Dialect::OpenAi => json!({
            "id": model,
            "object": "model",
            "created": rule.models_created_at,
            "owned_by": *rule.models_owned_by,
        }),
        Dialect::Anthropic => {
            let created = i64::try_from(rule.models_created_at).ok().and_then(|it| Timestamp::from_second(it).ok());
            let created = created.unwrap_or(Timestamp::UNIX_EPOCH);
            json!({"type": "model", "id": model, "display_name": model, "created_at": created.to_string()})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::Settings;
    use crate::config::{Documents, compile};

    const WORLD: &str = r#"
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: a}
spec: {endpoints: [{ip: {address: 10.0.0.1, port: 80}}]}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: a}
spec: {schema: {name: OpenAI}, backendRef: {name: a}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: one}
spec:
  hostnames: [one.example.com]
  rules:
  - {matches: [{headers: [{name: x-ai-eg-model, value: a/b}]}], backendRefs: [{name: a}]}
  - {matches: [{headers: [{name: x-ai-eg-model, value: alias}]}], backendRefs: [{name: a}], excludeFromModelsEndpoint: true}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: two}
spec:
  rules:
  - {matches: [{headers: [{name: x-ai-eg-model, type: RegularExpression, value: "gpt-.*"}]}], backendRefs: [{name: a}]}
  - {matches: [{headers: [{name: x-ai-eg-model, value: named}]}], backendRefs: [{name: a}]}
"#;

    #[test]
    fn the_list_has_the_names_that_are_written_down_and_an_item_whatever_may_be_asked_for() {
        let outcome = compile(Documents::from_text("t.yaml", WORLD), Settings::default(), 1, None).unwrap();
        assert!(!outcome.diagnostics.iter().any(crate::config::Diagnostic::is_error), "{:?}", outcome.diagnostics);
        let config = outcome.config;
        let listed = |host| {
            let list: Value = serde_json::from_str(&list(&config, None, Some(host), Dialect::OpenAi)).unwrap();
            let names = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(listed("one.example.com"), ["a/b", "named"]);
        assert_eq!(listed("two.example.com"), ["named"]);
        let id = |name| match item(&config, None, Some("one.example.com"), name, Dialect::OpenAi) {
            Item::Listed(text) => serde_json::from_str::<Value>(&text).unwrap()["id"].as_str().unwrap().to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!([id("a%2Fb"), id("gpt-4o"), id("gpt-%34"), id("named")], ["a/b", "gpt-4o", "gpt-4", "named"]);
        assert_eq!([id("alias"), id("claude"), id("gpt-%0A")], ["Unknown"; 3]);
        assert_eq!(item(&config, None, Some("two.example.com"), "a/b", Dialect::OpenAi), Item::Unknown);
    }

    #[test]
    fn percent_escapes_are_undone_or_the_name_has_none() {
        assert_eq!(unescaped("org%2Fname%20x"), Some("org/name x".to_owned()));
        assert_eq!(unescaped("%C3%A9%c3%a9"), Some("éé".to_owned()));
        for name in ["org/name", "", "%", "a%2", "%zz", "%+1", "%ff", "100%"] {
            assert_eq!(unescaped(name), None, "{name}");
        }
    }
}
