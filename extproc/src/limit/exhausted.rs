//! What the Wasm filter is told with a refusal, so that it refuses the key's next requests by itself: only what is true of
//! every request that the key could make, whatever its model, route or headers.

use std::sync::Arc;
use std::time::Duration;

use attache_gate::{Caller, Exhausted, LONGEST_REFUSAL, Wanting};

use super::headers::{come_back, headers};
use super::refusal::longest;
use super::{Cost, CounterState, Dimension, Enforcement, Hold, Limit, Quantity, Refused};
use crate::config::model::Config;

impl Refused {
    /// That `caller` has nothing left, if a limit of all its requests says so by settled use alone. What is only held may be
    /// given back at any moment, and what another request would hold is not known.
    pub fn exhausted(&self, config: &Config, caller: &Caller) -> Option<Exhausted> {
        let common: Vec<_> =
            self.standings().filter(|(hold, _)| concerns_every_request(&hold.limit, config, caller)).collect();
        let used_up = || common.iter().copied().filter(|(hold, state)| has_nothing_left(hold, state));
        let refuse_for = used_up().map(|(hold, state)| until_something_is_left(hold, state)).max()?;
        let refusal = longest(used_up())?;
        let shown = headers(common.iter().copied()).into_iter().chain(come_back(refusal.retry_after));
        Some(Exhausted {
            refuse_for: refuse_for.min(LONGEST_REFUSAL),
            kind: Wanting::of(refusal.kind())?,
            message: refusal.reason(),
            retry_after: refusal.retry_after,
            headers: shown.map(|(name, value)| (name.to_owned(), value)).collect(),
        })
    }
}

/// Whether each request of `caller` that uses any tokens counts for `limit`, and all of them on the same counter: of others the
/// filter knows by itself. Limits of output are left out, since not every such request has any, and those of requests in
/// flight, since these leave no settled use.
fn concerns_every_request(limit: &Limit, config: &Config, caller: &Caller) -> bool {
    let is_here = |limits: &[Arc<Limit>]| limits.iter().any(|other| other.id == limit.id);
    let mut routes = config.routes.iter().filter(|route| caller.may_call(&route.id));
    limit.enforcement == Enforcement::Refuse
        && !matches!(limit.quantity, Quantity::Concurrency | Quantity::Tokens(Cost::Output | Cost::Reasoning))
        && limit.per.iter().all(is_the_callers)
        && limit.when.iter().all(|condition| is_the_callers(&condition.dimension))
        && routes.all(|route| is_here(&route.limits) || route.rules.iter().all(|rule| is_here(&rule.limits)))
}

/// Whether it is the same for all requests of one key.
fn is_the_callers(dimension: &Dimension) -> bool {
    match dimension {
        Dimension::Key | Dimension::Tenant | Dimension::Label(_) => true,
        Dimension::Route | Dimension::Model | Dimension::ServedModel | Dimension::ModelClass | Dimension::Header(_) => {
            false
        }
    }
}

/// In every mode: a strict limit with something left may still have room for a small request.
fn has_nothing_left(hold: &Hold, state: &CounterState) -> bool {
    state.used() >= hold.ceiling && hold.is_refused(state)
}

fn until_something_is_left(hold: &Hold, state: &CounterState) -> Duration {
    state.until_used(hold.ceiling.saturating_sub(1), hold.limit.window.slides())
}

#[cfg(test)]
mod tests {
    use attache_gate::{HeaderValue, RequestHead, Verdict};

    use super::super::tests::{hold, limit, request};
    use super::super::{Condition, Expected, Mode, Window};
    use super::*;
    use crate::config::{self, Documents, model::Settings};

    /// The key `one` may call the route of that name, which has two rules; the key `both` another one as well.
    const YAML: &str = r#"
{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {name: pool}, spec: {endpoints: [{ip: {address: 10.0.0.1, port: 80}}]}}
---
{apiVersion: aigateway.envoyproxy.io/v1beta1, kind: AIServiceBackend, metadata: {name: pool},
 spec: {schema: {name: OpenAI}, backendRef: {name: pool, kind: Backend, group: gateway.envoyproxy.io}}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: one}
spec:
  rules:
  - {matches: [{headers: [{name: x-ai-eg-model, value: small}]}], backendRefs: [{name: pool}]}
  - {matches: [{headers: [{name: x-ai-eg-model, value: large}]}], backendRefs: [{name: pool}]}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: two}
spec: {rules: [{matches: [{headers: [{name: x-ai-eg-model, value: other}]}], backendRefs: [{name: pool}]}]}
---
apiVersion: attache.dev/v1alpha1
kind: ClientKey
metadata: {name: one}
spec: {sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b, routes: [one]}
---
apiVersion: attache.dev/v1alpha1
kind: ClientKey
metadata: {name: both}
spec: {sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, routes: [one, two]}
"#;

    #[derive(Clone, Copy)]
    enum At {
        Route(usize),
        Rule(usize, usize),
    }

    const EVERYWHERE_IN_ONE: At = At::Route(0);

    /// A configuration with these limits, and the callers whose keys are `secret` and `test`.
    fn config(limits: &[(&Arc<Limit>, &[At])]) -> (Config, Caller, Caller) {
        let mut config =
            config::compile(Documents::from_text("test.yaml", YAML), Settings::default(), 1, None).unwrap().config;
        for (limit, places) in limits {
            for place in *places {
                match *place {
                    At::Route(route) => config.routes[route].limits.push(Arc::clone(limit)),
                    At::Rule(route, rule) => config.routes[route].rules[rule].limits.push(Arc::clone(limit)),
                }
            }
        }
        let caller = |key: &[u8]| {
            let head: [(&str, &[u8]); 3] =
                [(":method", b"POST"), (":path", b"/v1/chat/completions"), ("x-api-key", key)];
            match config.gate.check(&RequestHead::read(head), Duration::ZERO) {
                Verdict::Pass(passed) => passed.caller.unwrap(),
                Verdict::Refuse(refusal) => panic!("{refusal:?}"),
            }
        };
        let (one, both) = (caller(b"secret"), caller(b"test"));
        (config, one, both)
    }

    /// 300 tokens in a fixed minute for the key.
    fn per_key() -> Limit {
        Limit { per: vec![Dimension::Key], ..limit("ns/policy/key", 300, Mode::Soft) }
    }

    fn used(settled: u64, left_ms: u64) -> CounterState {
        CounterState { settled, left: Duration::from_millis(left_ms), ..CounterState::empty() }
    }

    fn refused<const N: usize>(limits: [(&Arc<Limit>, CounterState); N]) -> Refused {
        let holds = limits.iter().map(|(limit, _)| hold(limit, "acme", 40)).collect();
        Refused { request: Arc::new(request(holds)), by: 0, states: limits.map(|(_, state)| Some(state)).into() }
    }

    /// What is said of a limit that has used 320, 17.1 s before it is refilled, attached to `places`, to the caller `one`.
    fn said(limit: Limit, places: &[At]) -> Option<Exhausted> {
        said_at(limit, places, used(320, 17_100))
    }

    fn said_at(limit: Limit, places: &[At], state: CounterState) -> Option<Exhausted> {
        let limit = Arc::new(limit);
        let (config, one, _) = config(&[(&limit, places)]);
        refused([(&limit, state)]).exhausted(&config, &one)
    }

    #[test]
    fn a_key_that_has_nothing_left_is_told_of_with_the_words_of_the_refusal() {
        let limit = Arc::new(per_key());
        let (config, one, _) = config(&[(&limit, &[EVERYWHERE_IN_ONE])]);
        let refused = refused([(&limit, used(320, 17_100))]);
        let told = refused.exhausted(&config, &one).unwrap();
        assert_eq!((told.refuse_for, told.retry_after), (LONGEST_REFUSAL, Duration::from_millis(17_100)));
        assert_eq!(told.kind, Wanting::Tokens);
        let error = refused.error();
        assert_eq!(format!("{} Please try again in 18s.", told.message), error.message);
        let now = |(name, value): &(String, HeaderValue)| (name.clone(), value.after(Duration::ZERO));
        let headers: Vec<_> = refused.headers().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(told.headers.iter().map(now).collect::<Vec<_>>(), headers);
        assert_eq!(Exhausted::from_header(told.to_header().unwrap().as_bytes()), Some(told));
    }

    #[test]
    fn it_holds_until_something_is_left_and_five_seconds_at_most() {
        let refuse_for = |state| said_at(per_key(), &[EVERYWHERE_IN_ONE], state).unwrap().refuse_for;
        assert_eq!(refuse_for(used(300, 1_700)), Duration::from_millis(1_700));
        assert_eq!(refuse_for(used(300, 17_100)), LONGEST_REFUSAL);
        let sliding = Limit { window: Window::Sliding(Duration::from_secs(60)), ..per_key() };
        let state = CounterState { previous: 299, ..used(2, 60_000) };
        let told = said_at(sliding, &[EVERYWHERE_IN_ONE], state).unwrap();
        assert!(told.refuse_for < Duration::from_secs(1), "{told:?}");
    }

    #[test]
    fn a_limit_must_count_all_requests_of_the_key_together() {
        for per in [vec![], vec![Dimension::Tenant], vec![Dimension::Key, Dimension::Label("tier".into())]] {
            assert!(said(Limit { per, ..per_key() }, &[EVERYWHERE_IN_ONE]).is_some());
        }
        for dimension in [
            Dimension::Route,
            Dimension::Model,
            Dimension::ServedModel,
            Dimension::ModelClass,
            Dimension::Header("x-team".into()),
        ] {
            let per = vec![Dimension::Key, dimension.clone()];
            assert_eq!(said(Limit { per, ..per_key() }, &[EVERYWHERE_IN_ONE]), None);
            let when = vec![Condition { dimension, expected: Expected::IsNot("x".into()) }];
            assert_eq!(said(Limit { when, ..per_key() }, &[EVERYWHERE_IN_ONE]), None);
        }
        let when = vec![Condition { dimension: Dimension::Label("tier".into()), expected: Expected::Present }];
        assert!(said(Limit { when, ..per_key() }, &[EVERYWHERE_IN_ONE]).is_some());
    }

    #[test]
    fn a_limit_must_be_attached_to_all_that_the_key_may_call() {
        assert!(said(per_key(), &[At::Rule(0, 0), At::Rule(0, 1)]).is_some());
        assert_eq!(said(per_key(), &[At::Rule(0, 0)]), None);
        let limit = Arc::new(per_key());
        let refused = refused([(&limit, used(320, 17_100))]);
        for (places, is_said) in [
            (&[At::Route(0)][..], false),
            (&[At::Route(0), At::Route(1)], true),
            (&[At::Route(0), At::Rule(1, 0)], true),
            (&[At::Rule(0, 0), At::Route(1)], false),
        ] {
            let (config, _, both) = config(&[(&limit, places)]);
            assert_eq!(refused.exhausted(&config, &both).is_some(), is_said);
        }
    }

    #[test]
    fn only_settled_use_says_so_and_only_when_nothing_is_left() {
        let held = CounterState { held: 20, ..used(299, 17_100) };
        assert_eq!(said_at(per_key(), &[EVERYWHERE_IN_ONE], held), None);
        let with = |mode| Limit { mode, ..per_key() };
        assert_eq!(said_at(with(Mode::Strict), &[EVERYWHERE_IN_ONE], used(299, 17_100)), None);
        for mode in [Mode::Soft, Mode::Strict, Mode::Check] {
            assert!(said_at(with(mode), &[EVERYWHERE_IN_ONE], used(300, 17_100)).is_some());
        }
    }

    #[test]
    fn limits_in_shadow_of_requests_in_flight_and_of_output_are_no_reason() {
        for cost in [Cost::Output, Cost::Reasoning] {
            let of_output = Limit { quantity: Quantity::Tokens(cost), ..per_key() };
            assert_eq!(said(of_output, &[EVERYWHERE_IN_ONE]), None, "an embedding has none");
        }
        assert_eq!(said(Limit { enforcement: Enforcement::Shadow, ..per_key() }, &[EVERYWHERE_IN_ONE]), None);
        assert_eq!(said(Limit { quantity: Quantity::Concurrency, ..per_key() }, &[EVERYWHERE_IN_ONE]), None);
    }

    #[test]
    fn a_limit_of_some_requests_is_not_spoken_of_even_if_it_refuses_longer() {
        let key = Arc::new(per_key());
        let per = vec![Dimension::Key, Dimension::Model];
        let model = Arc::new(Limit { per, ..limit("ns/policy/model", 100, Mode::Soft) });
        let requests = Arc::new(Limit { quantity: Quantity::Requests, ..limit("ns/policy/requests", 50, Mode::Soft) });
        let here: &[At] = &[EVERYWHERE_IN_ONE];
        let (config, one, _) = config(&[(&key, here), (&model, here), (&requests, here)]);
        let states = [(&model, used(100, 50_000)), (&key, used(300, 2_000)), (&requests, used(10, 2_000))];
        let told = refused(states).exhausted(&config, &one).unwrap();
        assert_eq!(told.retry_after, Duration::from_secs(2));
        assert!(told.message.starts_with("Rate limit reached for this key on tokens per minute: Limit 300, "));
        let shown = |wanted: &str| {
            let found = told.headers.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.after(Duration::ZERO))
        };
        assert_eq!(shown("x-ratelimit-limit-tokens").as_deref(), Some("300"));
        assert_eq!(shown("x-ratelimit-remaining-requests").as_deref(), Some("40"));
        assert_eq!(shown("x-ratelimit-limit").as_deref(), Some("300, 300;w=60, 50;w=60"));
    }

    #[test]
    fn a_counter_whose_state_is_not_known_is_no_reason() {
        let limit = Arc::new(per_key());
        let (config, one, _) = config(&[(&limit, &[EVERYWHERE_IN_ONE])]);
        let refused = Refused { states: vec![None], ..refused([(&limit, used(320, 17_100))]) };
        assert_eq!(refused.exhausted(&config, &one), None);
    }
}
