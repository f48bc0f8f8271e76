//! TokenLimitPolicy.

use serde_json::{Value, json};

use super::{Kind, fields, header_value, switch, target, text, whole_number, words};
use crate::config::resource::{
    AI_GATEWAY, FEWEST_DEFAULT_TOKENS, MAX_AMOUNT, MAX_CONDITION_BYTES, MAX_PRICED_MODELS, MAX_UNITS,
    MOST_DEFAULT_TOKENS, Route, Spec, TokenLimitPolicy,
};

/// What can be counted apart, and what conditions are about.
const DIMENSION: &str =
    r"^(key|tenant|route|endpoint|model|servedModel|modelClass|header:[!#$%&'*+.^_`|~0-9A-Za-z-]+|label:\S+)$";

pub(super) fn kind() -> Kind {
    let section = "One rule of the route, by the rule's `name`.";
    let spec = fields(
        json!({
            "targetRefs": {
                "description": "AIGatewayRoutes in the policy's own namespace. Every policy that reaches a request holds.",
                "type": "array",
                "minItems": 1,
                "items": target(&[(AI_GATEWAY, Route::KIND)], Some(section)),
            },
            "limits": {"description": "A request must be admitted by every one that it falls under.", "type": "array", "minItems": 1, "items": limit()},
            "prices": {
                "description": "What a million tokens cost, by the name that the backend knows the model by; `*` is every other. For `cost: money`.",
                "type": "object",
                "minProperties": 1,
                "maxProperties": MAX_PRICED_MODELS,
                "additionalProperties": price(),
            },
            "shadow": switch("The default of `shadow` for all limits of the policy."),
        }),
        &["targetRefs", "limits"],
    );
    Kind { name: TokenLimitPolicy::KIND, description: "How much may be used, by whom together, in which time.", spec }
}

fn limit() -> Value {
    let mut limit = fields(
        json!({
            "name": text("Unique in the policy. NAMESPACE/POLICY/NAME is the limit's id; another name is another budget.", "^[A-Za-z0-9._-]{1,63}$"),
            "per": {
                "description": "What is counted apart; without it, there is one counter for everybody.",
                "type": "array",
                "uniqueItems": true,
                "items": dimension("key, tenant, route, model, servedModel, modelClass, header:NAME or label:NAME"),
            },
            "when": {"description": "Which requests it is about: all of these must hold.", "type": "array", "items": condition()},
            "limit": {"description": "How much, in what `cost` counts.", "type": "number", "exclusiveMinimum": 0, "maximum": MAX_AMOUNT},
            "window": text(
                "In which time: 90s, 1m, 1h30m, 1d (1s to 366d), or minute, hour, day, week, month.",
                "^(minute|hour|day|week|month|([0-9]+(ms|s|m|h|d|w))+)$",
            ),
            "windowType": words("`sliding` up to 1 h, `fixed`. Default: sliding up to 1 h, fixed above", &["sliding", "fixed"]),
            "timeZone": text("Where an hour, a day, a week or a month begins: a name of the IANA database. Default: UTC", "."),
            "cost": cost(),
            "concurrency": whole_number("Requests in flight at once, in place of limit, window and cost.", 1, MAX_AMOUNT),
            "mode": words("How exactly: soft may overdraw once, strict holds an estimate, check holds nothing. Default: soft", &["soft", "strict", "check"]),
            "cap": switch("Answers stay within what is held for them; with `mode: strict`."),
            "defaultMaxTokens": whole_number(
                "Tokens of each choice that an answer is bounded by whose client sets no bound; with `cap: true`. Default: what the limit has room for",
                FEWEST_DEFAULT_TOKENS,
                MOST_DEFAULT_TOKENS,
            ),
            "shadow": switch("It counts, and refuses nobody."),
            "onStoreError": words("While Redis does not answer. Default: local", &["local", "allow", "deny"]),
            "lowPriorityPercent": whole_number("How much of it keys of `priority: low` may use. Default: 80", 1, 100),
        }),
        &["name"],
    );
    if let Value::Object(limit) = &mut limit {
        limit.insert(
            "allOf".to_owned(),
            json!([in_flight_or_budget(), money_or_whole_number(), cap_is_strict(), default_is_capped()]),
        );
    }
    limit
}

fn in_flight_or_budget() -> Value {
    json!({
        "if": {"required": ["concurrency"]},
        "then": {
            "properties": {
                "limit": false, "cost": false, "windowType": false, "timeZone": false, "cap": false, "defaultMaxTokens": false,
                "mode": {"enum": ["soft", "strict"]},
            },
        },
        "else": {"required": ["limit", "window"]},
    })
}

fn money_or_whole_number() -> Value {
    json!({
        "if": {"properties": {"cost": {"const": "money"}}, "required": ["cost"]},
        "then": {"properties": {"limit": {"maximum": MAX_UNITS}}},
        "else": {"properties": {"limit": {"type": "integer"}}},
    })
}

fn default_is_capped() -> Value {
    json!({
        "if": {"required": ["defaultMaxTokens"]},
        "then": {"properties": {"cap": {"const": true}}, "required": ["cap"]},
    })
}

fn cap_is_strict() -> Value {
    json!({
        "if": {"properties": {"cap": {"const": true}}, "required": ["cap"]},
        "then": {"properties": {"mode": {"const": "strict"}, "cost": {"not": {"const": "requests"}}}, "required": ["mode"]},
    })
}

fn dimension(description: &str) -> Value {
    text(description, DIMENSION)
}

fn condition() -> Value {
    let mut condition = fields(
        json!({
            "dimension": dimension("What it is about, in the words of `per`."),
            "is": header_value("The one value that it has.", MAX_CONDITION_BYTES),
            "isNot": header_value("A value that it has not, or nothing at all.", MAX_CONDITION_BYTES),
            "present": {"description": "It is there, whatever its value.", "const": true},
        }),
        &["dimension"],
    );
    if let Value::Object(condition) = &mut condition {
        let forms = ["is", "isNot", "present"].map(|form| json!({"required": [form]}));
        condition.insert("oneOf".to_owned(), json!(forms));
    }
    condition
}

fn cost() -> Value {
    let kinds = ["total", "input", "output", "cachedInput", "cacheCreationInput", "reasoning", "requests", "money"];
    let expression =
        fields(json!({"cel": text("An expression over the usage: input_tokens + output_tokens * 3u", ".")}), &["cel"]);
    json!({"description": "What is counted. Default: total (tokens)", "anyOf": [{"enum": kinds}, expression]})
}

fn price() -> Value {
    let price =
        |description: &str| json!({"description": description, "type": "number", "minimum": 0, "maximum": MAX_UNITS});
    fields(
        json!({
            "input": price("A million tokens of input."),
            "output": price("A million tokens of output."),
            "cachedInput": price("Of input that came from a cache. Default: as input"),
            "cacheCreationInput": price("Of input that was written to a cache. Default: as input"),
        }),
        &["input", "output"],
    )
}
