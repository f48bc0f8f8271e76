//! Placement, from text to configuration.

use super::*;
use crate::affinity::{AffinityPolicy, Basis, Capacity, MetricNames, SecretSeed, Weights};

fn policy(name: &str, target: &str, fields: &str) -> String {
    format!(
        "apiVersion: attache.dev/v1alpha1
kind: CacheAffinityPolicy
metadata: {{name: {name}}}
spec: {{targetRefs: [{target}], {fields}}}
---
"
    )
}

/// The policy that these fields make.
fn policy_of(fields: &str) -> AffinityPolicy {
    let text = backend("a", 1) + &policy("p", "{kind: AIServiceBackend, name: a}", fields);
    let outcome = compile_text(&text, None);
    let only_open = |finding: &&Diagnostic| !finding.message.starts_with("anyone can call");
    let findings: Vec<_> = outcome.diagnostics.iter().filter(only_open).collect();
    assert!(findings.is_empty(), "{fields}: {findings:?}");
    AffinityPolicy::clone(&outcome.config.backends[0].affinity)
}

#[test]
fn a_policy_that_says_nothing_is_the_default() {
    let expected = AffinityPolicy { id: Arc::from("default/p"), ..AffinityPolicy::default() };
    assert_eq!(policy_of(""), expected);
    assert_eq!(policy_of("weights: {}, metrics: {}, basis: prefix"), expected);
}

#[test]
fn every_field_gets_where_it_belongs() {
    let policy = policy_of(
        "basis: key, indexBytes: 16Mi, cacheTokens: 500000, \
         weights: {uncached: 2.5, prefillTokensPerSecond: 25000, far: 500ms, tie: 0s}",
    );
    assert_eq!((policy.basis, policy.index_bytes, policy.cache_tokens), (Basis::KeyOnly, 16 << 20, Some(500_000)));
    let weights = Weights {
        uncached: 2.5,
        prefill_tokens_per_second: 25_000.0,
        far: Duration::from_millis(500),
        tie: Duration::ZERO,
    };
    assert_eq!(policy.weights, weights);
    assert_eq!(policy_of("weights: {uncached: 1}").weights, Weights { uncached: 1.0, ..Weights::default() });
}

#[test]
fn volatile_patterns_come_on_top_of_the_default_and_an_empty_list_is_none_at_all() {
    let patterns =
        |fields: &str| -> Vec<String> { policy_of(fields).canon.masks.patterns().map(str::to_owned).collect() };
    let default = patterns("");
    assert_eq!(default.len(), 1);
    assert_eq!(patterns("volatile: ['Today is [^.]*']"), [default[0].as_str(), "Today is [^.]*"]);
    assert_eq!(patterns("volatile: []"), [""; 0]);
    assert_eq!(policy_of("maxBlocks: 64").canon.max_blocks, 64);
}

#[test]
fn metrics_pages_are_those_of_the_engine_but_for_what_is_named() {
    let scraping = |fields: &str| policy_of(&format!("metrics: {{{fields}}}")).scraping;
    assert_eq!(scraping("engine: none"), None);
    let sglang = scraping("engine: sglang, path: /stats, interval: 250ms, port: 9000").unwrap();
    assert_eq!((&*sglang.path, sglang.port, sglang.names), ("/stats", Some(9_000), MetricNames::sglang()));
    assert_eq!((sglang.interval, sglang.timeout), (Duration::from_millis(250), Duration::from_millis(250)));
    let triton = scraping("engine: triton").unwrap();
    assert_eq!((triton.port, triton.names), (Some(8_002), MetricNames::triton_tensorrt_llm()));
    let own = "names: {waiting: [a, \"b{kind=w}\"], running: c, kvUsage: d, capacity: e}";
    let names = scraping(own).unwrap().names;
    let series = |text: &str| text.parse().unwrap();
    assert_eq!((names.waiting, names.running), (vec![series("a"), series("b{kind=w}")], vec![series("c")]));
    assert_eq!((names.kv_usage, names.capacity), (vec![series("d")], Some(Capacity::Tokens(series("e")))));
    assert_eq!(names.counter, MetricNames::vllm().counter);
}

#[test]
fn two_service_backends_of_one_backend_with_different_policies_are_warned_of_by_name() {
    let second = "apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: twin}
spec: {schema: {name: OpenAI}, backendRef: {name: a}}
---
";
    let shared = |fields: &str| {
        let text = backend("a", 1) + second + &policy("p", "{kind: AIServiceBackend, name: twin}", fields);
        let outcome = compile_text(&text, None);
        let mut messages = outcome.diagnostics.iter().map(|finding| finding.message.clone());
        messages.find(|message| message.contains("share the Backend"))
    };
    assert_eq!(
        shared("weights: {uncached: 1}").as_deref(),
        Some(
            "the AIServiceBackends default/a and default/twin share the Backend default/a, but have different policies \
             (default and default/p): for how its replicas are chosen, that of default/a holds for both"
        )
    );
    // What is each request's own makes no pool of its own.
    assert_eq!(shared("sessionHeader: x-session, debugHeaders: true"), None);
}

#[test]
fn hashes_begin_with_the_secret_with_and_without_a_policy() {
    let text = backend("a", 1) + &backend("b", 1) + &policy("p", "{kind: AIServiceBackend, name: a}", "");
    let settings = Settings { affinity_secret: SecretSeed(7), ..Settings::default() };
    let outcome = compile(Documents::from_text("test.yaml", &text), settings, 1, None).unwrap();
    let seeds: Vec<_> = outcome.config.backends.iter().map(|backend| backend.affinity.canon.secret_seed).collect();
    assert_eq!(seeds, [SecretSeed(7), SecretSeed(7)]);
}
