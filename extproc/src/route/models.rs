//! The answer to `GET /v1/models`: the models that this caller may ask for, in OpenAI's list form.

use attache_gate::Caller;
use serde_json::json;

use crate::config::Config;

/// The list, as JSON text. A model that several rules serve is listed once, as the first of them describes it.
pub fn list(config: &Config, caller: Option<&Caller>) -> String {
    let mut seen = std::collections::HashSet::new();
    let models: Vec<_> = config
        .routes
        .iter()
        .filter(|route| config.gate.may_call(caller, &route.id))
        .flat_map(|route| &route.rules)
        .flat_map(|rule| rule.matches.iter().map(move |rule_match| (rule, &rule_match.model)))
        .filter(|(_, model)| seen.insert(*model))
        .map(|(rule, model)| {
            json!({
                "id": **model,
                "object": "model",
                "created": rule.models_created_at,
                "owned_by": *rule.models_owned_by,
            })
        })
        .collect();
    json!({"object": "list", "data": models}).to_string()
}
