//! Limits, from text to configuration.

use std::time::Duration;

use attache_gate::{Access, KeyPriority};
use attache_proto::Usage;

use super::*;
use crate::limit::{
    Calendar, Cap, Condition, CostContext, Enforcement, Expected, Limit, OnStoreError, Period, Price, Window,
};

const POLICIES: &str = include_str!("../../../../envoy-config/examples/envoy-gateway-policies.yaml");
const BUDGETS: &str = include_str!("../../../../envoy-config/examples/budgets.yaml");

fn policy(fields: &str) -> String {
    format!(
        "apiVersion: attache.dev/v1alpha1
kind: TokenLimitPolicy
metadata: {{name: p}}
spec: {{targetRefs: [{{kind: AIGatewayRoute, name: r}}], {fields}}}
---
"
    )
}

fn world() -> String {
    backend("a", 1) + &route("r", "m", "a")
}

/// The limit that these fields make, beside a name.
fn limit_of(fields: &str) -> Limit {
    let text = world() + &policy(&format!("limits: [{{name: l, {fields}}}]"));
    let outcome = compile_text(&text, None);
    assert_eq!(errors(&outcome), [""; 0], "{fields}");
    Limit::clone(&outcome.config.routes[0].limits[0])
}

fn calendar(period: Period, zone: &str) -> Window {
    Window::Calendar(Calendar { period, zone: jiff::tz::TimeZone::get(zone).unwrap() })
}

#[test]
fn a_limit_that_says_little_is_soft_refuses_and_counts_all_tokens_for_everyone() {
    let limit = limit_of("limit: 300, window: 1m");
    let expected = Limit {
        id: Arc::from("default/p/l"),
        per: vec![],
        when: vec![],
        quantity: Quantity::Tokens(Cost::Total),
        amount: 300,
        low_priority_percent: 80,
        window: Window::Sliding(Duration::from_secs(60)),
        mode: Mode::Soft,
        cap: Cap::Open,
        default_max_tokens: None,
        enforcement: Enforcement::Refuse,
        on_store_error: OnStoreError::Local,
    };
    assert_eq!(limit, expected);
}

#[test]
fn a_window_slides_up_to_an_hour_and_follows_the_calendar_of_its_place_above() {
    let of = |fields: &str| limit_of(&format!("limit: 1, {fields}")).window;
    let seconds = Duration::from_secs;
    for (fields, window) in [
        ("window: 90s", Window::Sliding(seconds(90))),
        ("window: minute", Window::Sliding(seconds(60))),
        ("window: 1h", Window::Sliding(seconds(3_600))),
        ("window: hour, windowType: fixed", Window::Fixed(seconds(3_600))),
        ("window: 1m, windowType: fixed", Window::Fixed(seconds(60))),
        ("window: 90m", Window::Fixed(seconds(5_400))),
        ("window: 30d", Window::Fixed(seconds(30 * 86_400))),
        ("window: hour, timeZone: Asia/Kolkata", calendar(Period::Hour, "Asia/Kolkata")),
        ("window: 1d", calendar(Period::Day, "UTC")),
        ("window: 24h", calendar(Period::Day, "UTC")),
        ("window: day, timeZone: Europe/Berlin", calendar(Period::Day, "Europe/Berlin")),
        ("window: 1w", calendar(Period::Week, "UTC")),
        ("window: week, windowType: fixed, timeZone: UTC", calendar(Period::Week, "UTC")),
        ("window: month, timeZone: America/New_York", calendar(Period::Month, "America/New_York")),
    ] {
        assert_eq!(of(fields), window, "{fields}");
    }
}

#[test]
fn whom_a_limit_counts_and_which_requests_it_is_about_are_written_in_the_same_words() {
    let limit = limit_of(
        "limit: 1, window: 1m, per: [key, tenant, route, model, servedModel, modelClass, 'header:X-Team', 'label:tier'],
         when: [{dimension: tenant, is: acme}, {dimension: 'header:X-Team', isNot: red}, {dimension: key, present: true}]",
    );
    let team = || Dimension::Header(Arc::from("x-team"));
    let per = [
        Dimension::Key,
        Dimension::Tenant,
        Dimension::Route,
        Dimension::Model,
        Dimension::ServedModel,
        Dimension::ModelClass,
        team(),
        Dimension::Label(Arc::from("tier")),
    ];
    assert_eq!(limit.per, per);
    let when = [
        (Dimension::Tenant, Expected::Is(Arc::from("acme"))),
        (team(), Expected::IsNot(Arc::from("red"))),
        (Dimension::Key, Expected::Present),
    ];
    assert_eq!(limit.when, when.map(|(dimension, expected)| Condition { dimension, expected }));
}

#[test]
fn a_limit_says_how_strict_it_is() {
    let limit = limit_of(
        "limit: 1, window: 1m, mode: strict, cap: true, shadow: true, onStoreError: deny, lowPriorityPercent: 5, \
         defaultMaxTokens: 8192",
    );
    assert_eq!((limit.mode, limit.cap, limit.enforcement), (Mode::Strict, Cap::Capped, Enforcement::Shadow));
    assert_eq!(limit.default_max_tokens, Some(8_192));
    assert_eq!((limit.on_store_error, limit.low_priority_percent), (OnStoreError::Deny, 5));
    let fields = "shadow: true, limits: [{name: a, limit: 1, window: 1m}, {name: b, concurrency: 2, shadow: false}]";
    let outcome = compile_text(&(world() + &policy(fields)), None);
    let enforcements: Vec<_> = outcome.config.routes[0].limits.iter().map(|limit| limit.enforcement).collect();
    assert_eq!(enforcements, [Enforcement::Shadow, Enforcement::Refuse]);
}

fn context() -> CostContext {
    let [model, served_model, backend, route] =
        ["assistant", "qwen2.5-7b-instruct", "default/small", "default/chat"].map(Arc::from);
    CostContext { model, served_model, backend, route }
}

#[test]
fn budgets_in_money_and_by_expression_are_counted_in_parts_of_their_unit() {
    let outcome = compile_text(BUDGETS, None);
    assert_eq!(outcome.diagnostics.len(), 0);
    let [month, weighted, ..] = &*outcome.config.routes[0].limits else { panic!() };
    let usage = Usage { input: 1_000, output: 100, total: 1_100, cached_input: 600, ..Usage::default() };
    assert_eq!((month.amount, month.quantity.scale()), (500_000_000, 1_000_000));
    // 400 at 0.15, 600 at 0.075 and 100 at 0.60 a million.
    assert_eq!(month.quantity.actual(&usage, &context()), 60 + 45 + 60);
    assert_eq!((weighted.amount, weighted.quantity.scale()), (3_000_000_000, 1_000));
    assert_eq!(weighted.quantity.actual(&usage, &context()), (400 + 60 + 600) * 1_000);
}

#[test]
fn a_model_without_a_price_costs_as_much_as_the_dearest_and_is_named() {
    let text = world()
        + &policy(
            "prices: {x: {input: 2, output: 1}, y: {input: 1, output: 3, cachedInput: 0.5}},
             limits: [{name: l, limit: 0.50, window: 1d, cost: money}]",
        );
    let outcome = compile_text(&text, None);
    let Quantity::Money(prices) = &outcome.config.routes[0].limits[0].quantity else { panic!() };
    let dearest =
        Price { input: 2_000_000, output: 3_000_000, cached_input: 2_000_000, cache_creation_input: 2_000_000 };
    assert_eq!(prices.of("m"), &dearest);
    let warnings: Vec<_> = outcome.diagnostics.iter().map(|finding| &*finding.message).collect();
    assert!(warnings.contains(&"`m` has no price and costs as much as the dearest of the table"), "{warnings:?}");
}

#[test]
fn labels_and_priorities_of_keys_and_classes_of_models_are_read() {
    let outcome = compile_text(BUDGETS, None);
    let Access::Keys(keys) = &outcome.config.gate_config.access else { panic!("open") };
    let keys: Vec<_> = keys.iter().map(|key| (&*key.labels["tier"], key.priority)).collect();
    assert_eq!(keys, [("gold", KeyPriority::Normal), ("free", KeyPriority::Low)]);
    let classes: Vec<_> = outcome.config.backends.iter().map(|backend| backend.model_class.as_deref()).collect();
    assert_eq!(classes, [Some("small"), Some("large")]);
    let text = world().replace("metadata: {name: r}", "metadata: {name: r, labels: {attache.dev/model-class: big}}");
    assert_eq!(compile_text(&text, None).config.routes[0].model_class.as_deref(), Some("big"));
}

#[test]
fn a_cost_of_a_route_may_be_an_expression() {
    let outcome = compile_text(POLICIES, None);
    let usage = Usage { input: 10, output: 2, total: 12, ..Usage::default() };
    let costs: Vec<_> =
        outcome.config.routes[0].costs.iter().map(|cost| (&*cost.key, cost.cost.of(&usage, &context()))).collect();
    assert_eq!(costs, [("llm_total_token", 12), ("llm_weighted", 16)]);
}

#[test]
fn a_backend_traffic_policy_becomes_limits_that_check_what_is_charged() {
    let outcome = compile_text(POLICIES, None);
    assert_eq!(outcome.diagnostics.len(), 0);
    let [tokens, weighted] = &*outcome.config.routes[0].limits else { panic!() };
    assert_eq!((&*tokens.id, tokens.amount, tokens.mode), ("default/team-tokens/rules[0]", 100_000, Mode::Check));
    assert_eq!(tokens.window, Window::Fixed(Duration::from_secs(3_600)));
    assert_eq!(tokens.quantity, Quantity::Tokens(Cost::Total));
    let team = || Dimension::Header(Arc::from("x-team-id"));
    assert_eq!(tokens.per, [team(), Dimension::Model, Dimension::Route]);
    let present = |dimension| Condition { dimension, expected: Expected::Present };
    assert_eq!(tokens.when, [present(team()), present(Dimension::Model)]);
    assert_eq!((weighted.amount, &*weighted.per), (5_000_000_000, &[Dimension::Route][..]));
    assert_eq!(weighted.when, [Condition { dimension: team(), expected: Expected::Is(Arc::from("research")) }]);
}

/// A BackendTrafficPolicy for tokens, with further fields of its `spec` and its one rule.
fn traffic_policy(spec: &str, rule: &str, cost: &str) -> String {
    format!(
        "apiVersion: gateway.envoyproxy.io/v1alpha1
kind: BackendTrafficPolicy
metadata: {{name: t}}
spec:
  {spec}
  rateLimit:
    global:
      rules:
      - limit: {{requests: 10, unit: Minute}}
        cost: {{{cost} response: {{from: Metadata, metadata: {{namespace: io.envoy.ai_gateway, key: total}}}}}}
        {rule}
---
"
    )
}

fn counted_route(name: &str, model: &str, cost: &str, metadata: &str) -> String {
    let costs = format!("spec:\n  llmRequestCosts: [{{metadataKey: total, {cost}}}]");
    route(name, model, "a")
        .replace("spec:", &costs)
        .replace("metadata: {name: ", &format!("metadata: {{{metadata}name: "))
}

#[test]
fn a_request_costs_one_more_than_its_tokens_where_the_policy_does_not_say_otherwise() {
    let usage = Usage { output: 5, total: 7, ..Usage::default() };
    let actual = |cost: &str, request: &str| {
        let targets = "targetRef: {group: gateway.networking.k8s.io, kind: HTTPRoute, name: r}";
        let text = backend("a", 1) + &counted_route("r", "m", cost, "") + &traffic_policy(targets, "", request);
        let outcome = compile_text(&text, None);
        assert_eq!(errors(&outcome), [""; 0]);
        let limit = &outcome.config.routes[0].limits[0];
        (limit.quantity.actual(&usage, &context()), limit.amount)
    };
    assert_eq!(actual("type: TotalToken", ""), (8_000, 10_000));
    assert_eq!(actual("type: TotalToken", "request: {from: Number, number: 0},"), (7, 10));
    assert_eq!(actual("type: CEL, cel: output_tokens * 2u", "request: {from: Number, number: 3},"), (13_000, 10_000));
}

#[test]
fn selectors_of_envoy_gateway_are_conditions_and_dimensions() {
    let rule = "clientSelectors:
        - headers: [{name: X-A, value: a, invert: true}, {name: x-attache-tenant, type: Distinct}]
        - {methods: [{value: POST}], path: {value: /}, headers: [{name: x-ai-eg-model, value: m}]}
        shared: true
        shadowMode: true";
    let targets = "targetRefs: [{kind: HTTPRoute, name: r}]";
    let text = backend("a", 1) + &counted_route("r", "m", "type: TotalToken", "") + &traffic_policy(targets, rule, "");
    let outcome = compile_text(&text, None);
    assert_eq!(errors(&outcome), [""; 0]);
    let limit = &outcome.config.routes[0].limits[0];
    assert_eq!((&*limit.per, limit.enforcement), (&[Dimension::Tenant][..], Enforcement::Shadow));
    let when = [
        (Dimension::Header(Arc::from("x-a")), Expected::IsNot(Arc::from("a"))),
        (Dimension::Tenant, Expected::Present),
        (Dimension::Model, Expected::Is(Arc::from("m"))),
    ];
    assert_eq!(limit.when, when.map(|(dimension, expected)| Condition { dimension, expected }));
}

#[test]
fn a_policy_of_a_gateway_or_of_labels_holds_for_the_routes_that_are_meant() {
    let routes = [
        counted_route("on-a", "m1", "type: TotalToken", "labels: {team: red}, ")
            .replace("spec:", "spec:\n  parentRefs: [{name: gw-a}]"),
        counted_route("on-b", "m2", "type: TotalToken", "").replace("spec:", "spec:\n  parentRefs: [{name: gw-b}]"),
        counted_route("anywhere", "m3", "type: TotalToken", "labels: {team: blue}, "),
    ]
    .concat();
    let limited = |spec: &str| {
        let outcome = compile_text(&(backend("a", 1) + &routes + &traffic_policy(spec, "", "")), None);
        assert_eq!(errors(&outcome), [""; 0]);
        let routes = outcome.config.routes.iter().filter(|route| !route.limits.is_empty());
        routes.map(|route| route.name.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(limited("targetRefs: [{kind: Gateway, name: gw-a}]"), ["on-a", "anywhere"]);
    assert_eq!(limited("targetSelectors: [{kind: HTTPRoute, matchLabels: {team: red}}]"), ["on-a"]);
    assert_eq!(limited("targetSelectors: [{kind: HTTPRoute}]"), ["on-a", "on-b", "anywhere"]);
    assert_eq!(limited("targetRefs: [{kind: AIGatewayRoute, name: on-b}]"), ["on-b"]);
}

#[test]
fn a_quota_policy_becomes_limits_of_its_backends() {
    let outcome = compile_text(POLICIES, None);
    let [everyone, team] = &*outcome.config.backends[0].limits else { panic!() };
    assert_eq!(&*everyone.id, "default/server-quota/servers:perModelQuotas[0].defaultBucket");
    assert_eq!((everyone.amount, everyone.mode, everyone.per.len()), (2_000_000_000, Mode::Check, 0));
    let served =
        Condition { dimension: Dimension::ServedModel, expected: Expected::Is(Arc::from("qwen2.5-7b-instruct")) };
    assert_eq!(everyone.when, [served]);
    assert_eq!(&*team.id, "default/server-quota/servers:perModelQuotas[0].bucketRules[0]");
    assert_eq!((team.enforcement, team.when.len()), (Enforcement::Shadow, 2));
    assert_eq!(team.per, [Dimension::Header(Arc::from("x-team-id"))]);
}

/// Routes, rules (`route/rule`) and backends (`@backend`) that are not served since their limits are not known.
fn closed(config: &Config) -> Vec<String> {
    let mut closed = Vec::new();
    for route in &config.routes {
        if route.limits_known == LimitsKnown::NotAll {
            closed.push(route.name.name.to_string());
        }
        let rules = route.rules.iter().enumerate().filter(|(_, rule)| rule.limits_known == LimitsKnown::NotAll);
        closed.extend(rules.map(|(index, _)| format!("{}/{index}", route.name.name)));
    }
    let backends = config.backends.iter().filter(|backend| backend.limits_known == LimitsKnown::NotAll);
    closed.extend(backends.map(|backend| format!("@{}", backend.name.name)));
    closed
}

fn closed_at_start(text: &str) -> Vec<String> {
    closed(&compile_text(text, None).config)
}

const NOTHING: [&str; 0] = [];

fn two_routes() -> String {
    let other = route("other", "o", "a").replace("{name: other}", "{name: other, namespace: elsewhere}");
    backend("a", 1)
        + &route("r", "m", "a")
        + &route("s", "n", "a")
        + &other.replace("{name: a}", "{name: a, namespace: default}")
}

#[test]
fn a_policy_with_an_error_closes_what_it_names() {
    let broken = policy("limits: [{name: l, limit: 0, window: 1m}]");
    assert_eq!(closed_at_start(&(two_routes() + &broken)), ["r"]);
    let of_rule = broken.replace("name: r}", "name: r, sectionName: only}");
    let named = two_routes().replacen("  - matches", "  - name: only\n    matches", 1);
    assert_eq!(closed_at_start(&(named.clone() + &of_rule)), ["r/0"]);
    assert_eq!(closed_at_start(&(named + &of_rule.replace("only", "none"))), ["r"]);
    assert_eq!(closed_at_start(&(two_routes() + &policy("limits: [{name: l, limit: 1, window: 1m}]"))), NOTHING);
}

#[test]
fn a_policy_that_does_not_say_what_it_is_about_closes_its_namespace() {
    let sound = policy("limits: [{name: l, limit: 1, window: 1m}]");
    for (from, to) in [
        ("targetRefs: [{kind: AIGatewayRoute, name: r}]", "targetRefs: []"),
        ("targetRefs: [{kind: AIGatewayRoute, name: r}], ", ""),
        ("kind: AIGatewayRoute, name: r", "kind: AIGatewayRoute"),
        ("kind: AIGatewayRoute, name: r", "kind: HTTPRoute, name: r"),
        ("kind: AIGatewayRoute, name: r", "kind: AIGatewayRoute, name: renamed"),
        ("spec: {", "spec: {limits: [], "),
    ] {
        assert!(sound.contains(from));
        assert_eq!(closed_at_start(&(two_routes() + &sound.replace(from, to))), ["r", "s"], "{to}");
    }
    let second = sound.replace("name: r}", "name: s}");
    assert_eq!(closed_at_start(&(two_routes() + &sound + &second)), ["s"], "two of one name");
}

#[test]
fn a_text_that_may_have_had_a_policy_and_cannot_be_read_closes_everything() {
    let everything = ["r", "s", "other"];
    let kept = two_routes();
    for lost in [
        "kind: TokenLimitPolicy\nspec: [",
        "apiVersion: attache.dev/v1alpha1\nkind: TokenLimitPolicies\nmetadata: {name: p}\n",
        "apiVersion: attache.dev/v1alpha1\nkind: Limits\nmetadata: {name: p}\n",
        "apiVersion: attache.dev/v1alpha1\nkind: TokenLimitPolicy\nmetadata: {name: _}\nspec: {}\n",
        "kind: QuotaPolicy\nspec: [",
        "kind: [",
    ] {
        assert_eq!(closed_at_start(&(kept.clone() + lost)), everything, "{lost}");
    }
    assert_eq!(closed_at_start(&(kept.clone() + "kind: AIGatewayRoute\nspec: [")), NOTHING, "nothing speaks of limits");
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.yaml"), kept).unwrap();
    std::fs::write(directory.path().join("b.yaml"), "").unwrap();
    let outcome = compile(load(&[directory.path().to_owned()]), Settings::default(), 1, None).unwrap();
    assert_eq!(closed(&outcome.config), everything);
}

#[test]
fn a_reload_with_a_mistake_leaves_what_was_served_as_it_was() {
    let sound = policy("limits: [{name: l, limit: 1, window: 1m}]");
    let first = compile_text(&(two_routes() + &sound), None);
    assert_eq!(closed(&first.config), NOTHING);
    for mistake in [
        sound.replace("limit: 1", "limit: 0"),
        sound.replace("name: r}", "name: rr}"),
        "kind: AIGatewayRoute\nspec: [".to_owned(),
    ] {
        let text = two_routes() + &mistake;
        let second = compile_text(&text, Some(&first.resources));
        assert_eq!(closed(&second.config), NOTHING, "{mistake}");
        assert_eq!(second.config.routes[0].limits.len(), 1, "{mistake}");
        assert_eq!(closed_at_start(&text).is_empty(), mistake.starts_with("kind: AIGatewayRoute"), "{mistake}");
    }
}

#[test]
fn a_route_that_is_renamed_without_its_policy_is_closed_and_the_others_are_served() {
    let sound = policy("limits: [{name: l, limit: 1, window: 1m}]");
    let first = compile_text(&(two_routes() + &sound), None);
    let renamed = two_routes().replace("{name: r}", "{name: q}") + &sound;
    let second = compile_text(&renamed, Some(&first.resources));
    assert_eq!(closed(&second.config), ["q"]);
    let third = compile_text(&renamed, Some(&second.resources));
    assert_eq!(closed(&third.config), ["q"], "not by the next reload either");
    let mended = compile_text(&renamed.replace("name: r}]", "name: q}]"), Some(&third.resources));
    assert_eq!(closed(&mended.config), NOTHING);
    assert_eq!(mended.config.routes[0].limits.len(), 1);
}

#[test]
fn a_route_that_is_left_out_closes_nothing() {
    let text = backend("a", 1) + &route("r", "m", "missing") + &route("s", "n", "a");
    let sound = policy("limits: [{name: l, limit: 1, window: 1m}]");
    let outcome = compile_text(&(text + &sound), None);
    assert_eq!((models(&outcome.config), closed(&outcome.config)), (vec!["n"], vec![]));
}

#[test]
fn policies_of_envoy_gateway_close_what_they_are_about_as_well() {
    let chat = |text: &str| closed_at_start(text);
    assert_eq!(chat(POLICIES), NOTHING);
    assert_eq!(chat(&POLICIES.replace("requests: 100000", "requests: -1")), ["chat"]);
    assert_eq!(chat(&POLICIES.replace("key: llm_weighted}", "key: llm_other}")), ["chat"]);
    assert_eq!(chat(&POLICIES.replace("kind: HTTPRoute, name: chat", "kind: HTTPRoute, name: old")), ["chat"]);
    assert_eq!(chat(&POLICIES.replace("limit: 2000000", "limit: 0")), ["@servers"]);
    assert_eq!(
        chat(&POLICIES.replace(
            "kind: AIServiceBackend, name: servers}\n  perModel",
            "kind: AIServiceBackend, name: old}\n  perModel"
        )),
        ["@servers"]
    );
}

/// Documents with one of their scalars replaced by another.
fn with_another_value() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        "[-+0-9.eE_xXsmhdw]{1,24}",
        "\\PC{0,12}",
        prop::sample::select(vec![
            "null",
            "~",
            "true",
            "[]",
            "{}",
            "[[]]",
            "{a: b}",
            "''",
            "18446744073709551616",
            "-0",
            ".inf",
            ".nan",
            "1e309",
            "9223372036854775808",
            "0.0000001",
            "*",
            "UTC",
            "month",
            "header:",
            "label:",
            "input_tokens / output_tokens",
        ])
        .prop_map(str::to_owned),
    ];
    (prop::sample::select(vec![POLICIES, BUDGETS]), any::<prop::sample::Index>(), value).prop_map(
        |(text, at, value)| {
            let places: Vec<_> = text.match_indices(": ").map(|(at, separator)| at + separator.len()).collect();
            let start = places[at.index(places.len())];
            let end = start + text[start..].find([',', '}', ']', '\n']).unwrap();
            format!("{}{value}{}", &text[..start], &text[end..])
        },
    )
}

proptest! {
    #[test]
    fn no_value_of_a_field_makes_it_panic_or_a_limit_that_cannot_be(text in with_another_value()) {
        let config = compile_text(&text, None).config;
        let limits = config.routes.iter().flat_map(|route| &route.limits).chain(config.backends.iter().flat_map(|it| &it.limits));
        for limit in limits {
            prop_assert!((1..=1_000_000_000_000_000).contains(&limit.amount));
            prop_assert!((1..=100).contains(&limit.low_priority_percent));
            prop_assert!((1..=366 * 86_400).contains(&limit.window.longest().as_secs()));
            prop_assert!(!(limit.window.slides() && limit.window.longest().as_secs() > 3_600));
            prop_assert!(limit.cap == Cap::Open || limit.mode == Mode::Strict);
        }
    }
}
