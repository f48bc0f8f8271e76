//! From a model name to a target: which rule a request matches, and which of the rule's backends takes it ([`site`]).
//!
//! Pure but for the cool-down table, which is memory with one owner; nothing here waits.

pub mod cooldown;
pub mod models;
pub mod passage;
pub mod site;

pub use cooldown::{CoolDown, Witness};
pub use passage::Passage;

use attache_gate::Caller;
use attache_proto::Operation;

use crate::config::host::{self, HostRank};
use crate::config::model::{Backend, Config, Route, Rule, RuleId, RuleMatch, Target};
use crate::config::pattern::MAX_VALUE_BYTES;

/// What a search for a rule came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// This rule.
    Rule(RuleId),
    /// Rules serve the model, but none of them for this caller.
    NotAttached,
    /// No rule serves the model for a request with these headers.
    Unknown,
}

/// The rule that serves `model` for a request with these headers and that the caller may use (two routes may serve one name for
/// different keys): of the routes that name the host most closely, the first by the most specific match.
///
/// `header` answers with a request header's value by its lower-case name, `:authority` among them.
pub fn resolve<'a>(
    config: &Config,
    model: &str,
    caller: Option<&Caller>,
    header: impl Fn(&str) -> Option<&'a str>,
) -> Resolution {
    resolve_for(config, model, |route| config.gate.may_call(caller, route), header)
}

/// The same for whoever may call the routes that `may_call` says.
pub fn resolve_for<'a>(
    config: &Config,
    model: &str,
    may_call: impl Fn(&str) -> bool,
    header: impl Fn(&str) -> Option<&'a str>,
) -> Resolution {
    resolve_among(config, model, |_| true, may_call, header)
}

/// The same among the routes for which `is_candidate` holds: the others do not exist for the request.
fn resolve_among<'a>(
    config: &Config,
    model: &str,
    is_candidate: impl Fn(&Route) -> bool,
    may_call: impl Fn(&str) -> bool,
    header: impl Fn(&str) -> Option<&'a str>,
) -> Resolution {
    let authority = header(":authority");
    let mut best: Option<(HostRank, RuleId)> = None;
    let mut resolution = Resolution::Unknown;
    for (id, route, rule_match) in matches_of(config, model) {
        let Some(rank) = host::rank(&route.hosts, authority).filter(|_| is_candidate(route)) else { continue };
        if !rule_match.holds_for(&header) {
            continue;
        }
        if !may_call(&route.id) {
            resolution = Resolution::NotAttached;
        } else if best.is_none_or(|(of_best, _)| rank > of_best) {
            best = Some((rank, id));
        }
    }
    best.map_or(resolution, |(_, id)| Resolution::Rule(id))
}

/// The matches that are about a model, most specific first.
fn matches_of<'c>(config: &'c Config, model: &str) -> impl Iterator<Item = (RuleId, &'c Route, &'c RuleMatch)> {
    let (matches, is_named) = match config.rules_by_model.get(model) {
        // All of them are about it.
        Some(matches) => (&**matches, true),
        None if may_be_named(model) => (&*config.open_matches, false),
        None => (&[][..], false),
    };
    matches.iter().filter_map(move |id| {
        let (route, rule_match) = config.route(id.rule).zip(config.rule_match(*id))?;
        (is_named || rule_match.is_about(model)).then_some((id.rule, route, rule_match))
    })
}

/// Whether a name that is the client's alone can stand in a header as it is, which is where Envoy and filters read it.
fn may_be_named(model: &str) -> bool {
    !model.is_empty() && model.len() <= MAX_VALUE_BYTES && model.trim() == model && !model.chars().any(char::is_control)
}

/// Whether any of a rule's backends has the API that an operation is of.
pub fn serves(rule: &Rule, config: &Config, operation: Operation) -> bool {
    speaking(rule, config, operation).next().is_some()
}

/// The targets with a weight whose backends have the API that an operation is of.
fn speaking<'a>(rule: &'a Rule, config: &Config, operation: Operation) -> impl Iterator<Item = &'a Target> {
    let speaks = move |target: &&Target| {
        config.backends.get(target.backend).is_some_and(|backend| backend.api.serves(operation))
    };
    rule.targets.iter().filter(|target| target.weight > 0).filter(speaks)
}

/// The targets among which one is chosen: of those with a weight and the operation's API, the lowest priority number that has
/// one which `serves`, without those that do not. When none does, the lowest priority is tried all the same: somebody has to
/// find out that it is back.
pub fn candidates<'a>(
    rule: &'a Rule,
    config: &Config,
    operation: Operation,
    serves: impl Fn(&Backend) -> bool,
) -> Vec<&'a Target> {
    let is_usable = |target: &&Target| config.backends.get(target.backend).is_some_and(&serves);
    let serving: Vec<&Target> = speaking(rule, config, operation).collect();
    let mut usable: Vec<&Target> = serving.iter().copied().filter(is_usable).collect();
    if usable.is_empty() {
        usable = serving;
    }
    let first = usable.iter().map(|target| target.priority).min();
    usable.retain(|target| Some(target.priority) == first);
    usable
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use attache_gate::{RequestHead, Verdict};

    use super::*;
    use crate::config::model::Settings;
    use crate::config::{self, Documents};

    const BACKENDS: &str = r#"
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: NAME}
spec: {endpoints: [{ip: {address: 10.0.0.1, port: PORT}}]}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: NAME}
spec: {schema: {name: OpenAI}, backendRef: {name: NAME, kind: Backend, group: gateway.envoyproxy.io}}
---
"#;

    fn config(routes: &str) -> Config {
        let backends: String = ["a", "b", "c"]
            .iter()
            .zip(["81", "82", "83"])
            .map(|(name, port)| BACKENDS.replace("NAME", name).replace("PORT", port))
            .collect();
        let documents = Documents::from_text("test.yaml", &(backends + routes));
        let outcome = config::compile(documents, Settings::default(), 1, None).unwrap();
        let errors: Vec<_> = outcome.diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).collect();
        assert!(errors.is_empty(), "{errors:?}");
        outcome.config
    }

    fn route(name: &str, matches: &str, backends: &str) -> String {
        format!(
            "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIGatewayRoute\nmetadata: {{name: {name}}}\n\
             spec: {{rules: [{{matches: [{matches}], backendRefs: [{backends}]}}]}}\n---\n"
        )
    }

    const M: &str = "{headers: [{name: x-ai-eg-model, value: m}]}";
    const M_GOLD: &str = "{headers: [{name: x-ai-eg-model, value: m}, {name: X-Tier, value: gold}]}";

    fn resolved(config: &Config, caller: Option<&Caller>, headers: &[(&str, &'static str)]) -> String {
        let header = |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        match resolve(config, "m", caller, header) {
            Resolution::Rule(id) => config.route(id).unwrap().name.name.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_most_specific_match_wins_whatever_its_place() {
        let config = config(&(route("plain", M, "{name: a}") + &route("gold", M_GOLD, "{name: b}")));
        assert_eq!(resolved(&config, None, &[("x-tier", "gold")]), "gold");
        assert_eq!(resolved(&config, None, &[("x-tier", "silver")]), "plain");
        assert_eq!(resolved(&config, None, &[]), "plain");
        assert_eq!(resolve(&config, "n", None, |_| None), Resolution::Unknown);
    }

    #[test]
    fn of_two_routes_with_one_model_a_key_gets_the_one_it_is_attached_to() {
        let key = |name: &str, digest: char, routes: &str| {
            let digest = digest.to_string().repeat(64);
            format!(
                "apiVersion: attache.dev/v1alpha1\nkind: ClientKey\nmetadata: {{name: {name}}}\n\
                 spec: {{sha256: {digest}, tenant: t, routes: [{routes}]}}\n---\n"
            )
        };
        // The digest of `secret`, as in the gate's own tests: a caller comes from a request, never from thin air.
        let secret = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        let second = key("second", 'a', "two").replace(&"a".repeat(64), secret);
        let config = config(
            &(route("one", M, "{name: a}") + &route("two", M, "{name: b}") + &key("first", 'b', "one") + &second),
        );
        let head = [(":method", "POST"), (":path", "/v1/completions"), ("api-key", "secret")];
        let head = RequestHead::read(head.iter().map(|(name, value)| (*name, value.as_bytes())));
        let Verdict::Pass(passed) = config.gate.check(&head, std::time::Duration::ZERO) else {
            panic!("the key is known")
        };
        assert_eq!(resolved(&config, passed.caller.as_ref(), &[]), "two");
        assert_eq!(resolved(&config, None, &[]), "NotAttached");
    }

    fn by_rule(config: &Config, model: &str, headers: &[(&str, &'static str)]) -> Option<String> {
        let header = |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        match resolve(config, model, None, header) {
            Resolution::Rule(id) => Some(config.route(id).unwrap().name.name.to_string()),
            _ => None,
        }
    }

    fn model(kind: &str, value: &str) -> String {
        format!("{{name: x-ai-eg-model, type: {kind}, value: '{value}'}}")
    }

    #[test]
    fn more_conditions_win_then_more_exact_ones_then_the_first() {
        let matching = |conditions: &[String]| format!("{{headers: [{}]}}", conditions.join(", "));
        let exact = |value| model("Exact", value);
        let pattern = |value| model("RegularExpression", value);
        let gold = || "{name: x-tier, value: gold}".to_owned();
        let metal = || "{name: x-tier, type: RegularExpression, value: gold|silver}".to_owned();
        let config = config(
            &[
                ("any", matching(&[])),
                ("like", matching(&[pattern("gpt-.*")])),
                ("like-too", matching(&[pattern("gpt-4.*")])),
                ("exact", matching(&[exact("gpt-4")])),
                ("any-of-gold", matching(&[gold()])),
                ("like-of-metal", matching(&[pattern("gpt-.*"), metal()])),
                ("like-of-gold", matching(&[pattern("gpt-.*"), gold()])),
                ("exact-of-gold", matching(&[exact("gpt-4"), gold()])),
            ]
            .map(|(name, matches)| route(name, &matches, "{name: a}"))
            .concat(),
        );
        let gold: &[_] = &[("x-tier", "gold")];
        let silver: &[_] = &[("x-tier", "silver")];
        for (model, headers, wanted) in [
            ("gpt-4", &[][..], "exact"),
            ("gpt-4o", &[], "like"),
            ("my-gpt-4", &[], "any"),
            ("claude", &[], "any"),
            ("gpt-4", gold, "exact-of-gold"),
            ("gpt-4o", gold, "like-of-gold"),
            ("claude", gold, "any-of-gold"),
            ("gpt-4", silver, "like-of-metal"),
            ("claude", silver, "any"),
        ] {
            assert_eq!(by_rule(&config, model, headers).as_deref(), Some(wanted), "{model} {headers:?}");
        }
    }

    #[test]
    fn a_rule_stands_where_the_match_stands_that_the_request_meets() {
        let both = "{headers: [{name: x-ai-eg-model, value: m}, {name: x-tier, value: gold}]}, {}";
        let config = config(&(route("both", both, "{name: a}") + &route("plain", M, "{name: b}")));
        assert_eq!(by_rule(&config, "m", &[("x-tier", "gold")]).as_deref(), Some("both"));
        assert_eq!(by_rule(&config, "m", &[]).as_deref(), Some("plain"), "its other match is about every model");
        assert_eq!(by_rule(&config, "other", &[]).as_deref(), Some("both"));
    }

    #[test]
    fn a_rule_without_matches_is_about_every_model_that_a_header_can_name() {
        for rule in ["{backendRefs: [{name: a}]}", "{matches: [], backendRefs: [{name: a}]}"] {
            let config = config(&format!(
                "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIGatewayRoute\nmetadata: {{name: all}}\n\
                 spec: {{rules: [{rule}]}}\n"
            ));
            for model in ["gpt-4", "org/name:7b", "é", &"a".repeat(512)] {
                assert_eq!(by_rule(&config, model, &[]).as_deref(), Some("all"), "{model}");
            }
            for model in ["", " m", "m\n", "a\r\nx-tenant: b", "a\0b", "a\u{85}b", &"a".repeat(513)] {
                assert_eq!(by_rule(&config, model, &[]), None, "{model:?}");
            }
        }
    }

    #[test]
    fn the_route_that_names_the_host_most_closely_wins_and_others_do_not_exist_for_it() {
        let on = |name: &str, hosts: &str| {
            route(name, M, "{name: a}").replace("spec: {", &format!("spec: {{hostnames: [{hosts}], "))
        };
        let config = config(
            &(route("anywhere", M_GOLD, "{name: a}")
                + &on("below", "'*.example.com'")
                + &on("precise", "api.example.com, other.example.org")),
        );
        let at = |host: &'static str| by_rule(&config, "m", &[(":authority", host)]);
        assert_eq!(at("api.example.com:443").as_deref(), Some("precise"));
        assert_eq!(at("b.example.com").as_deref(), Some("below"));
        assert_eq!(at("example.com"), None);
        let gold_at = |host: &'static str| by_rule(&config, "m", &[(":authority", host), ("x-tier", "gold")]);
        assert_eq!(gold_at("api.example.com").as_deref(), Some("precise"));
        assert_eq!(gold_at("example.com").as_deref(), Some("anywhere"));
        assert_eq!(by_rule(&config, "m", &[]), None);
    }

    fn chosen(config: &Config, cooldown: &CoolDown, now: Instant) -> Vec<usize> {
        let rule = config.rule(RuleId { route: 0, rule: 0 }).unwrap();
        let serves =
            |backend: &Backend| backend.endpoints.iter().any(|endpoint| cooldown.admits(&endpoint.cluster, now));
        let targets = candidates(rule, config, Operation::ChatCompletions, serves);
        let site = |target: &&Target| site::Site {
            id: target.backend.to_string(),
            weight: target.weight,
            cost: 0.0,
            patience: None,
        };
        let sites: Vec<_> = targets.iter().map(site).collect();
        let choose = |entropy| targets[site::choose(&sites, None, entropy).unwrap().site].backend;
        (0..1000).map(choose).collect()
    }

    fn share(choices: &[usize], backend: usize) -> usize {
        choices.iter().filter(|choice| **choice == backend).count()
    }

    #[test]
    fn targets_of_one_priority_share_by_weight_and_weight_0_takes_nothing() {
        let config = config(&route("r", M, "{name: a, weight: 3}, {name: b, weight: 1}, {name: c, weight: 0}"));
        let choices = chosen(&config, &CoolDown::default(), Instant::now());
        assert_eq!((share(&choices, 0), share(&choices, 1), share(&choices, 2)), (750, 250, 0));
    }

    #[test]
    fn the_lowest_priority_number_that_is_not_cooling_down_takes_everything() {
        let config = config(&route("r", M, "{name: a, priority: 1}, {name: b}, {name: c, priority: 2}"));
        let (cooldown, now) = (CoolDown::default(), Instant::now());
        assert_eq!(share(&chosen(&config, &cooldown, now), 1), 1000);
        let fail = |backend: usize| {
            let endpoint = Arc::clone(&config.backends[backend].endpoints[0].cluster);
            cooldown.failed(&endpoint, now);
            cooldown.failed(&endpoint, now);
        };
        fail(1);
        assert_eq!(share(&chosen(&config, &cooldown, now), 0), 1000);
        fail(0);
        assert_eq!(share(&chosen(&config, &cooldown, now), 2), 1000);
        fail(2);
        assert_eq!(share(&chosen(&config, &cooldown, now), 1), 1000, "all are out: the first is tried all the same");
    }
}
