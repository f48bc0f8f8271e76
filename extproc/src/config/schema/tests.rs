use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use jsonschema::Validator;

use super::*;
use crate::config::model::Settings;
use crate::config::{Documents, Outcome, compile};

/// What the documents below refer to.
const AROUND: &str = r#"
{"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "Backend", "metadata": {"name": "pool"},
 "spec": {"endpoints": [{"ip": {"address": "10.0.0.1", "port": 80}}, {"ip": {"address": "10.0.0.2", "port": 80}}]}}
---
{"apiVersion": "aigateway.envoyproxy.io/v1beta1", "kind": "AIServiceBackend", "metadata": {"name": "pool"},
 "spec": {"schema": {"name": "OpenAI"}, "backendRef": {"group": "gateway.envoyproxy.io", "kind": "Backend", "name": "pool"}}}
---
{"apiVersion": "aigateway.envoyproxy.io/v1beta1", "kind": "AIGatewayRoute", "metadata": {"name": "chat"},
 "spec": {"rules": [{"name": "rule", "matches": [{"headers": [{"name": "x-ai-eg-model", "value": "m"}]}], "backendRefs": [{"name": "pool"}]}]}}
---
{"apiVersion": "aigateway.envoyproxy.io/v1beta1", "kind": "AIGatewayRoute", "metadata": {"name": "other"},
 "spec": {"rules": [{"matches": [{"headers": [{"name": "x-ai-eg-model", "value": "n"}]}], "backendRefs": [{"name": "pool"}]}]}}
---
{"apiVersion": "attache.dev/v1alpha1", "kind": "ClientKey", "metadata": {"name": "other"},
 "spec": {"sha256": "a5cf05304332440228c28bdb3d48b3fe86e38923f6f3aa73d998fe2e5e9c5d66", "routes": ["*"]}}
---
"#;

/// Documents with every field of our kinds, sound.
const OURS: [&str; 4] = [
    r#"{"apiVersion": "attache.dev/v1alpha1", "kind": "ClientKey", "metadata": {"name": "app", "namespace": "default"}, "spec": {
        "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "tenant": "acme",
        "routes": ["chat", "default/chat", "*"], "labels": {"tier": "gold", "example.com/team": "red"}, "priority": "low",
        "notAfter": "9998-12-31T23:59:59.5+01:00", "disabled": false}}"#,
    r#"{"apiVersion": "attache.dev/v1alpha1", "kind": "ClientKey", "metadata": {"name": "app"}, "spec": {"routes": ["chat"], "sha256": [
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"]}}"#,
    r#"{"apiVersion": "attache.dev/v1alpha1", "kind": "TokenLimitPolicy", "metadata": {"name": "limits"}, "spec": {
        "targetRefs": [
            {"group": "aigateway.envoyproxy.io", "kind": "AIGatewayRoute", "name": "chat", "sectionName": "rule"},
            {"kind": "AIGatewayRoute", "name": "other"}],
        "prices": {"m": {"input": 2.5, "output": 10, "cachedInput": 0.125, "cacheCreationInput": 3}, "*": {"input": 5, "output": 15}},
        "shadow": false,
        "limits": [
            {"name": "sliding", "per": ["key", "tenant", "route", "model"], "limit": 1000, "window": "1m", "windowType": "sliding",
             "cost": "output", "mode": "strict", "cap": true, "shadow": true, "onStoreError": "deny", "lowPriorityPercent": 70},
            {"name": "fixed", "per": ["servedModel", "modelClass", "header:x-team", "label:tier"], "limit": 5, "window": "day",
             "windowType": "fixed", "timeZone": "Europe/Berlin", "cost": "requests"},
            {"name": "money", "limit": 0.5, "window": "month", "cost": "money"},
            {"name": "weighted", "limit": 1000, "window": "1h30m", "cost": {"cel": "input_tokens + output_tokens * 3u"}},
            {"name": "flight", "concurrency": 8, "mode": "soft", "when": [
                {"dimension": "tenant", "is": "acme"}, {"dimension": "header:x-team", "isNot": "red"},
                {"dimension": "label:tier", "present": true}]}]}}"#,
    r#"{"apiVersion": "attache.dev/v1alpha1", "kind": "CacheAffinityPolicy", "metadata": {"name": "affinity"}, "spec": {
        "targetRefs": [{"group": "gateway.envoyproxy.io", "kind": "Backend", "name": "pool"}],
        "mode": "endpoint", "basis": "prefix", "sessionHeader": "x-session", "isolateTenants": true, "volatile": ["date: .*"],
        "maxBlocks": 240, "indexBytes": "64Mi", "cacheTokens": 500000, "debugHeaders": true,
        "weights": {"uncached": 15, "prefillTokensPerSecond": 25000, "far": "1s", "tie": "100ms"},
        "metrics": {"engine": "sglang", "path": "/metrics", "port": 9000, "interval": "1s", "names": {
            "waiting": "waiting", "running": ["running", "busy{kind=\"all\"}"], "kvUsage": "usage", "capacity": "capacity"}}}}"#,
];

/// What is put into every place, right or wrong there.
fn anything() -> Vec<Value> {
    let mut values = vec![
        json!(true),
        json!(false),
        json!([]),
        json!({}),
        json!({"name": "x"}),
        json!(["key", "key"]),
        json!(["chat"]),
        json!(0),
        json!(1),
        json!(100),
        json!(101),
        json!(2.5),
        json!(-1),
        json!(65_536),
        json!(1_000_000_001_u64),
        json!(1_000_000_000_000_001_u64),
    ];
    let texts = [
        "",
        " ",
        "x",
        "X",
        "x y",
        " x",
        "-",
        "x/y",
        "*",
        "1",
        "1s",
        "1m",
        "2h",
        "1d",
        "400d",
        "1ms",
        "1mo",
        "month",
        "64Mi",
        "8Gi",
        "64MiB",
        "/",
        "key",
        "label:x",
        "label:x y",
        "header:x-y",
        "header:x y",
        "header:",
        "money",
        "total",
        "requests",
        "soft",
        "check",
        "sliding",
        "fixed",
        "low",
        "local",
        "none",
        "triton",
        "cluster",
        "Backend",
        "AIGatewayRoute",
        "AIServiceBackend",
        "gateway.envoyproxy.io",
        "name{label=value}",
        "0name",
        "chat",
        "pool",
        "ä",
        "\u{7}",
    ];
    values.extend(texts.map(|text| json!(text)));
    values.push(json!("x".repeat(300)));
    values
}

/// Places of which the readers know more than the form: whether there is such an object, zone, expression or price, how long a
/// time may be, whether a name is taken. A number stands for any of a list's items.
const ONLY_THE_READERS_KNOW: [&str; 16] = [
    "/spec",
    "/spec/indexBytes",
    "/spec/limits/0/cost/cel",
    "/spec/limits/0/name",
    "/spec/limits/0/timeZone",
    "/spec/limits/0/window",
    "/spec/limits/0/windowType",
    "/spec/metrics/interval",
    "/spec/prices",
    "/spec/routes",
    "/spec/routes/0",
    "/spec/targetRefs/0/name",
    "/spec/targetRefs/0/sectionName",
    "/spec/volatile/0",
    "/spec/weights/far",
    "/spec/weights/tie",
];

#[test]
fn the_schema_takes_what_the_readers_take_in_silence_and_hardly_more() {
    let validator = validator();
    let mut too_strict = Vec::new();
    let mut too_lax = BTreeSet::new();
    for document in OURS {
        let document: Value = serde_json::from_str(document).unwrap();
        assert_eq!((findings(&document), errors(&validator, &document)), (Vec::new(), Vec::new()));
        for (place, mutant) in mutants(&document) {
            let (findings, errors) = (findings(&mutant), errors(&validator, &mutant));
            match (findings.first(), errors.first()) {
                (None, Some(error)) => too_strict.push(format!("{place}: {error}")),
                (Some(_), None) => drop(too_lax.insert(of_any_item(&place))),
                _ => {}
            }
        }
    }
    assert_eq!(too_strict, Vec::<String>::new());
    assert_eq!(too_lax, ONLY_THE_READERS_KNOW.map(str::to_owned).into());
}

#[test]
fn the_examples_are_as_the_schema_has_them() {
    let validator = validator();
    let mut ours = 0;
    for directory in
        ["../envoy-config/examples", "../envoy-config/demo", "testdata/config/good", "testdata/config/migration"]
    {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "yaml")
                || path.to_str().unwrap().ends_with(".gateway.yaml")
            {
                continue;
            }
            let documents: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(&path).unwrap()).unwrap();
            for document in documents {
                ours +=
                    usize::from(document["apiVersion"].as_str().is_some_and(|version| version.starts_with(ATTACHE)));
                assert_eq!(errors(&validator, &document), Vec::<String>::new(), "{}: {document}", path.display());
            }
        }
    }
    assert!(ours > 20, "{ours}");
}

fn validator() -> Validator {
    jsonschema::validator_for(&schema()).unwrap()
}

fn of_any_item(place: &str) -> String {
    let part = |part: &str| if part.parse::<usize>().is_ok() { "0".to_owned() } else { part.to_owned() };
    place.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// The document with one of its places changed, for every place and in every way.
fn mutants(document: &Value) -> Vec<(String, Value)> {
    let mut mutants = Vec::new();
    for place in places(document, String::new()) {
        let change = |change: &dyn Fn(&mut Value)| {
            let mut mutant = document.clone();
            change(mutant.pointer_mut(&place).unwrap());
            (place.clone(), mutant)
        };
        mutants.extend(anything().into_iter().map(|value| change(&|at| *at = value.clone())));
        if let Some(Value::Object(fields)) = document.pointer(&place) {
            let without = fields.keys().map(|name| {
                change(&|at| {
                    at.as_object_mut().unwrap().shift_remove(name);
                })
            });
            mutants.extend(without);
            mutants.push(change(&|at| {
                at.as_object_mut().unwrap().insert("unknown".to_owned(), json!("x"));
            }));
        }
    }
    mutants
}

/// Pointers to all that is in the specification.
fn places(value: &Value, here: String) -> Vec<String> {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.replace('~', "~0").replace('/', "~1"), value)).collect()
        }
        Value::Array(items) => items.iter().enumerate().map(|(number, value)| (number.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    let below = inner.into_iter().flat_map(|(name, value)| places(value, format!("{here}/{name}")));
    std::iter::once(here.clone()).filter(|here| here.starts_with("/spec")).chain(below).collect()
}

fn findings(document: &Value) -> Vec<String> {
    let documents = Documents::from_text("test.yaml", &format!("{AROUND}{document}"));
    let Outcome { diagnostics, .. } = compile(documents, Settings::default(), 1, None).unwrap();
    diagnostics.iter().map(|diagnostic| diagnostic.message.clone()).collect()
}

fn errors(validator: &Validator, document: &Value) -> Vec<String> {
    validator.iter_errors(document).map(|error| error.to_string()).collect()
}
