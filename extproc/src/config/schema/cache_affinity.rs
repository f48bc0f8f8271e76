//! CacheAffinityPolicy.

use serde_json::{Value, json};

use super::{Kind, duration, fields, switch, target, text, whole_number, words};
use crate::affinity::blocks::MAX_BLOCKS;
use crate::config::resource::{
    AI_GATEWAY, Backend, CacheAffinityPolicy, ENVOY_GATEWAY, MAX_CACHE_TOKENS, MAX_TOKENS_PER_SECOND, MAX_UNCACHED,
    MIN_BLOCKS, MOST_MASKS, Route, ServiceBackend, Spec,
};

pub(super) fn kind() -> Kind {
    let targets = [(AI_GATEWAY, ServiceBackend::KIND), (ENVOY_GATEWAY, Backend::KIND), (AI_GATEWAY, Route::KIND)];
    let spec = fields(
        json!({
            "targetRefs": {
                "description": "AIServiceBackends, Backends or AIGatewayRoutes in the policy's namespace. The closest policy wins, in this order.",
                "type": "array",
                "minItems": 1,
                "items": target(&targets, None),
            },
            "mode": words(
                "endpoint names replicas within one Envoy cluster; cluster has one for each replica. Default: what suits the endpoints",
                &["endpoint", "cluster"],
            ),
            "basis": words("What decides: the prompt's prefix, or its session or first block alone. Default: prefix", &["prefix", "key"]),
            "sessionHeader": text("A request header that decides in place of the prompt, where it is sent.", "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"),
            "isolateTenants": switch("Equal prompts of two tenants are two: neither can tell by speed what the other has asked."),
            "volatile": {
                "description": "Regular expressions of what is no part of a system prompt: nonces, dates. [] switches the default off as well.",
                "type": "array",
                "maxItems": MOST_MASKS,
                "items": text("As in Rust's regex: no look-around, no back-references.", "."),
            },
            "maxBlocks": whole_number("How far a prompt is looked at. Default: 4096, 15.4 MiB", MIN_BLOCKS as u64, MAX_BLOCKS as u64),
            "weights": weights(),
            "indexBytes": {
                "description": "The index's memory, 1Mi to 4Gi. Default: 64Mi",
                "type": ["string", "integer"],
                "pattern": "^[0-9]+(k|M|G|Ki|Mi|Gi)?$",
            },
            "cacheTokens": whole_number("Tokens that one replica's KV cache has room for. Default: what its metrics page says", 1, MAX_CACHE_TOKENS),
            "metrics": metrics(),
            "debugHeaders": switch("Clients get x-attache-decision."),
        }),
        &["targetRefs"],
    );
    Kind {
        name: CacheAffinityPolicy::KIND,
        description: "How a replica is chosen, for the backends it is attached to.",
        spec,
    }
}

fn weights() -> Value {
    let figure = |description: &str, min: f64, max: f64| json!({"description": description, "type": "number", "minimum": min, "maximum": max});
    let weights = json!({
        "uncached": figure("What a token of this prompt that is not in cache counts, beside one that waits already. Default: 15", 0.0, MAX_UNCACHED),
        "prefillTokensPerSecond": figure("Prompt tokens that one replica computes in a second. Default: 10000", 1.0, MAX_TOKENS_PER_SECOND),
        "far": duration("What it costs to leave a conversation's home. Default: 1s"),
        "tie": duration("Costs no further apart are equal. Default: 100ms"),
    });
    fields(weights, &[])
}

fn metrics() -> Value {
    let series = || {
        text(
            "The metric's name, as the page has it: name or name{label=value}.",
            r"^[A-Za-z_:.-][A-Za-z0-9_:.-]*(\{[A-Za-z_:.-][A-Za-z0-9_:.-]*=.+\})?$",
        )
    };
    let one_or_several = || json!({"anyOf": [series(), {"type": "array", "minItems": 1, "items": series()}]});
    let names = json!({"waiting": one_or_several(), "running": one_or_several(), "kvUsage": one_or_several(), "capacity": series()});
    let mut metrics = fields(
        json!({
            "engine": words("Whose names the pages have. none: they are not read. Default: vllm", &["vllm", "sglang", "triton", "none"]),
            "path": text("Where the page is. Default: /metrics", "^/"),
            "port": whole_number("At which port. Default: the endpoint's own; of triton 8002", 1, u16::MAX.into()),
            "interval": duration("How often it is read, 100ms to 4s. Default: 1s"),
            "names": fields(names, &[]),
        }),
        &[],
    );
    if let Value::Object(metrics) = &mut metrics {
        let none_reads_none = json!({
            "if": {"properties": {"engine": {"const": "none"}}, "required": ["engine"]},
            "then": {"properties": {"path": false, "port": false, "interval": false, "names": false}},
        });
        metrics.insert("allOf".to_owned(), json!([none_reads_none]));
    }
    metrics
}
