//! The machine, driven by hand: no proxy, no ledger, no clock but the one we hold.

mod encodings;
mod endpoints;
mod failing;
mod growth;
mod memory;
mod refused_bounds;
mod trailers;
mod unfinished;
mod upstreams;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::config::{self, Documents};
use crate::limit::{Admission, Cap, CounterState, Growth, Judge, Keeper, Limit, Mode, ReserveRequest};

const YAML: &str = r#"
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: pool}
spec: {endpoints: [{ip: {address: 10.0.0.1, port: 80}}, {ip: {address: 10.0.0.2, port: 80}}]}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: spare}
spec: {endpoints: [{fqdn: {hostname: spare.example, port: 80}}]}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: pool}
spec: {schema: {name: OpenAI}, backendRef: {name: pool, kind: Backend, group: gateway.envoyproxy.io}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: spare}
spec: {schema: {name: OpenAI}, backendRef: {name: spare, kind: Backend, group: gateway.envoyproxy.io}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: unified}
spec:
  rules:
  - matches: [{headers: [{type: Exact, name: x-ai-eg-model, value: assistant}]}]
    backendRefs:
    - {name: pool, modelNameOverride: qwen, priority: 0}
    - {name: spare, modelNameOverride: small, priority: 1}
  llmRequestCosts: [{metadataKey: llm_total_token, type: TotalToken}]
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: limited}
spec:
  rules:
  - matches: [{headers: [{type: Exact, name: x-ai-eg-model, value: metered}]}]
    backendRefs: [{name: pool}]
---
apiVersion: attache.dev/v1alpha1
kind: TokenLimitPolicy
metadata: {name: per-key}
spec:
  targetRefs: [{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: limited}]
  limits: [{name: minute, per: [key], limit: 300, window: 1m}]
---
apiVersion: attache.dev/v1alpha1
kind: ClientKey
metadata: {name: app}
spec: {sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b, tenant: acme, routes: [unified, limited]}
---
apiVersion: attache.dev/v1alpha1
kind: ClientKey
metadata: {name: other}
spec: {sha256: 0a11dbb67cbabc45ea3edc0e8fe95a17d5f9af4cd1b3bd7cfbdf3ad2d3b7e1ce, tenant: acme, routes: [limited]}
"#;

/// One exchange and what it shares with others.
struct Table {
    exchange: Exchange,
    memory: Memory,
    config: Arc<Config>,
    /// The reservation that the last request asked for.
    asked: Option<Arc<ReserveRequest>>,
    now: Instant,
}

impl Table {
    fn set(profile: Profile) -> Self {
        let memory = Memory::default();
        let (config, now) = (Arc::new(compiled()), Instant::now());
        let exchange = Exchange::new(Arc::clone(&config), memory.clone(), profile, 7, now);
        Self { exchange, memory, config, asked: None, now }
    }

    /// The same with a limit on the model `metered` that must not be overdrawn.
    fn set_capped(amount: u64) -> Self {
        let mut config = compiled();
        let limits = &mut config.routes[1].limits;
        let limit = Limit::clone(&limits[0]);
        *limits = vec![Arc::new(Limit { amount, mode: Mode::Strict, cap: Cap::Capped, ..limit })];
        let mut table = Self::set(Profile::Streamed);
        table.config = Arc::new(config);
        table.again();
        table
    }

    fn again(&mut self) {
        self.exchange = Exchange::new(Arc::clone(&self.config), self.memory.clone(), Profile::Streamed, 7, self.now);
    }

    fn post(&mut self, body: &Value, extra: &[(&str, &str)]) -> Action {
        self.post_chunks(&[&body.to_string()], extra)
    }

    fn post_chunks(&mut self, chunks: &[&str], extra: &[(&str, &str)]) -> Action {
        let length = chunks.iter().map(|chunk| chunk.len()).sum::<usize>().to_string();
        let mut head = vec![
            (":method", "POST"),
            (":path", "/v1/chat/completions"),
            ("content-length", length.as_str()),
            ("authorization", "Bearer secret"),
        ];
        head.extend(extra);
        let mut action = self.exchange.request_headers(headers_of(&head), End::More, self.now).unwrap();
        for (index, chunk) in chunks.iter().enumerate() {
            if let Action::Respond(_) = action {
                break;
            }
            let end = if index + 1 == chunks.len() { End::Last } else { End::More };
            action = self.exchange.request_body(Bytes::from(chunk.to_string()), end, self.now).unwrap();
        }
        self.note(&action);
        action
    }

    fn note(&mut self, action: &Action) {
        if let Action::Reserve(request) = action {
            self.asked = Some(Arc::clone(request));
        }
    }

    fn answer_head(&mut self, status: &str, content_type: &str, upstream: &str) -> Mutations {
        let head = headers_of(&[(":status", status), ("content-type", content_type)]);
        let upstream = (!upstream.is_empty()).then_some(upstream);
        match self.exchange.response_headers(&head, End::More, upstream, self.now).unwrap() {
            Action::Answer(Reply::ResponseHeaders(mutations)) => mutations,
            other => panic!("{other:?}"),
        }
    }

    fn answer_body(&mut self, chunk: &str, end: End) -> (Body, Costs) {
        match self.exchange.response_body(&Bytes::from(chunk.to_owned()), end, self.now).unwrap() {
            Action::Answer(Reply::ResponseBody(body, costs)) => (body, costs),
            other => panic!("{other:?}"),
        }
    }

    fn admit(&mut self) -> Action {
        self.decide(|state| Admission::Granted { states: vec![CounterState { settled: 40, ..state }] })
    }

    /// The ledger answers what `answer` makes of a counter with nothing in it.
    fn decide(&mut self, answer: impl Fn(CounterState) -> Admission) -> Action {
        let Some(request) = self.asked.take() else {
            return self.exchange.admitted(Err(StoreError::Timeout(Duration::ZERO)), self.now);
        };
        let seconds = Duration::from_secs;
        let (left, length) = (seconds(18), seconds(60));
        let state = CounterState { bucket: 0, epoch: 0, settled: 0, previous: 0, held: 0, left, length };
        let decision = Decision::new(request, answer(state), Keeper::Store);
        self.exchange.admitted(Ok(decision), self.now)
    }

    fn charged(&mut self) -> Vec<u64> {
        let settlement = self.exchange.poll_settlement().expect("a settlement");
        assert!(self.exchange.poll_settlement().is_none(), "a settlement comes once");
        settlement.charges.iter().map(|charge| charge.actual).collect()
    }
}

fn compiled() -> Config {
    let documents = Documents::from_text("test.yaml", YAML);
    let outcome = config::compile(documents, config::model::Settings::default(), 1, None).unwrap();
    let errors: Vec<_> = outcome.diagnostics.iter().filter(|d| d.is_error()).map(|d| d.plain().to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    outcome.config
}

fn headers_of(pairs: &[(&str, &str)]) -> Headers {
    Headers(pairs.iter().map(|(name, value)| (name.to_string(), Bytes::from(value.to_string()))).collect())
}

fn released(action: Action) -> (Mutations, Vec<Body>) {
    let Action::Release(mut replies) = action else { panic!("{action:?}") };
    let Some(Reply::RequestHeaders(mutations)) = replies.next() else { panic!("headers first") };
    let bodies = replies
        .map(|reply| match reply {
            Reply::RequestBody(mutations, body) if mutations == Mutations::default() => body,
            other => panic!("{other:?}"),
        })
        .collect();
    (mutations, bodies)
}

fn refused(action: Action) -> (u16, &'static str, Value) {
    let Action::Respond(response) = action else { panic!("{action:?}") };
    (response.status, response.reason, serde_json::from_str(&response.body).unwrap())
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hello"}]})
}

fn set<'a>(mutations: &'a Mutations, name: &str) -> Option<&'a str> {
    mutations.set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
}

#[test]
fn every_answer_has_the_id_of_its_request_and_an_upstreams_own_goes_on_beside_it() {
    let id = ("x-request-id", "f83bf848-70f8-4a85-8dca-fa5de5a02d65");
    let mut table = Table::set(Profile::Streamed);
    let Action::Respond(refusal) = table.post(&chat("nobody"), &[id]) else { panic!() };
    assert!(refusal.headers.contains(&("x-request-id", id.1.to_owned())), "{refusal:?}");

    for (theirs, shown) in [(None, None), (Some(id.1), None), (Some("req_upstream"), Some("req_upstream"))] {
        let mut table = Table::set(Profile::Streamed);
        released(table.post(&chat("assistant"), &[id]));
        let mut answer = vec![(":status", "200")];
        answer.extend(theirs.map(|theirs| ("x-request-id", theirs)));
        let action = table.exchange.response_headers(&headers_of(&answer), End::More, None, table.now).unwrap();
        let Action::Answer(Reply::ResponseHeaders(mutations)) = action else { panic!("{action:?}") };
        assert_eq!((set(&mutations, "x-request-id"), set(&mutations, "x-upstream-request-id")), (Some(id.1), shown));
    }
    // What a client makes of it is neither repeated nor written to a log.
    for hostile in ["", "a b", "\u{e9}", &"a".repeat(129)] {
        let mut table = Table::set(Profile::Streamed);
        let Action::Respond(refusal) = table.post(&chat("nobody"), &[("x-request-id", hostile)]) else { panic!() };
        assert_eq!(refusal.headers.iter().find(|(name, _)| *name == "x-request-id"), None, "{hostile}");
    }
}

#[test]
fn a_request_is_released_with_its_route_its_replicas_and_the_models_name() {
    let mut table = Table::set(Profile::Streamed);
    let (mutations, bodies) = released(table.post(&chat("assistant"), &[]));
    let sent = json!({"model": "qwen", "messages": [{"role": "user", "content": "Hello"}]}).to_string();
    assert_eq!(bodies, vec![Body::Replaced(Bytes::from(sent.clone()))]);
    assert_eq!(set(&mutations, "content-length"), Some(sent.len().to_string().as_str()));
    assert_eq!(set(&mutations, "x-attache-cluster"), Some("default/pool"));
    assert_eq!(set(&mutations, "x-attache-route"), Some("default/unified"));
    assert_eq!(set(&mutations, "x-ai-eg-model"), Some("assistant"));
    assert_eq!(set(&mutations, "x-attache-key-id"), Some("default/app"));
    assert_eq!(set(&mutations, "x-attache-tenant"), Some("acme"));
    assert_eq!(mutations.routing, Routing::Again);
    let mut order: Vec<_> = set(&mutations, "x-gateway-destination-endpoint").unwrap().split(',').collect();
    order.sort_unstable();
    assert_eq!(order, ["10.0.0.1:80", "10.0.0.2:80"]);
    assert!(mutations.remove.contains(&"authorization"), "the client's key stays here");
    assert!(mutations.remove.contains(&"x-attache-reservation"));
}

#[test]
fn every_chunk_gets_one_answer_and_those_without_the_model_are_left_alone() {
    let mut table = Table::set(Profile::Streamed);
    let action = table.post_chunks(&[r#"{"messages":[],"#, r#""model":"assi"#, r#"stant","x":1"#, "}", ""], &[]);
    let (_, bodies) = released(action);
    assert_eq!(
        bodies,
        vec![
            Body::Unchanged,
            Body::Replaced(Bytes::from_static(br#""model":"qwen""#)),
            Body::Replaced(Bytes::from_static(br#","x":1"#)),
            Body::Unchanged,
            Body::Unchanged,
        ]
    );
}

#[test]
fn in_the_buffered_profile_the_headers_are_answered_at_once_and_the_body_carries_the_decision() {
    let mut table = Table::set(Profile::Buffered);
    let head = headers_of(&[
        (":method", "POST"),
        (":path", "/v1/chat/completions"),
        ("api-key", "secret"),
        ("content-length", "1"),
    ]);
    match table.exchange.request_headers(head, End::More, table.now).unwrap() {
        Action::Answer(Reply::RequestHeaders(mutations)) => assert_eq!(mutations, Mutations::default()),
        other => panic!("{other:?}"),
    }
    assert!(!table.exchange.is_released());
    let body = Bytes::from(chat("assistant").to_string());
    match table.exchange.request_body(body, End::Last, table.now).unwrap() {
        Action::Release(replies) => match replies.collect::<Vec<_>>().as_slice() {
            [Reply::RequestBody(mutations, Body::Replaced(_))] => {
                assert_eq!(set(mutations, "x-attache-cluster"), Some("default/pool"));
                assert_eq!(mutations.routing, Routing::Again);
                assert!(set(mutations, "content-length").is_some(), "Envoy compares it with the body");
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    assert!(table.exchange.is_released());
}

#[test]
fn a_stream_without_usage_is_asked_for_it_and_the_client_does_not_see_it() {
    let mut table = Table::set(Profile::Streamed);
    let body = json!({"model": "assistant", "stream": true, "messages": []});
    let (_, bodies) = released(table.post(&body, &[]));
    let [Body::Replaced(sent)] = bodies.as_slice() else { panic!("{bodies:?}") };
    let sent: Value = serde_json::from_slice(sent).unwrap();
    assert_eq!(sent["stream_options"], json!({"include_usage": true}));
    let mutations = table.answer_head("200", "text/event-stream", "10.0.0.1:80");
    assert!(mutations.remove.contains(&"content-length"));
    let content = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}}\n\n";
    let done = "data: [DONE]\n\n";
    let mut seen = String::new();
    let mut costs = Costs::new();
    for (chunk, end) in [(content, End::More), (usage, End::More), (done, End::Last)] {
        let (body, last) = table.answer_body(chunk, end);
        match body {
            Body::Unchanged => seen.push_str(chunk),
            Body::Replaced(bytes) => seen.push_str(std::str::from_utf8(&bytes).unwrap()),
        }
        costs = last;
    }
    assert_eq!(seen, format!("{content}{done}"));
    assert_eq!(costs, vec![(Arc::from("llm_total_token"), 7)]);
    let summary = table.exchange.take_summary().unwrap();
    assert_eq!(summary.outcome, Outcome::Answered(200));
    assert!(matches!(summary.usage, Some(Counted::Reported(usage)) if usage.total == 7));
    assert_eq!(summary.content_events, Some(1));
}

#[test]
fn a_limited_request_waits_for_the_ledger_and_settles_what_the_answer_says() {
    let mut table = Table::set(Profile::Streamed);
    let action = table.post(&chat("metered"), &[]);
    let Action::Reserve(request) = action else { panic!("{action:?}") };
    assert!(!table.exchange.is_released());
    assert_eq!(request.holds.len(), 1);
    let (mutations, bodies) = released(table.admit());
    assert_eq!(bodies, vec![Body::Unchanged], "the model's name is the same: nothing to change");
    assert_eq!(set(&mutations, "x-attache-reservation"), Some(&*request.id.0));
    let mutations = table.answer_head("200", "application/json", "10.0.0.1:80");
    assert_eq!(set(&mutations, "x-ratelimit-remaining-tokens"), Some("260"));
    assert!(table.exchange.poll_settlement().is_none());
    table.answer_body(
        r#"{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":9,"total_tokens":29}}"#,
        End::Last,
    );
    assert_eq!(table.charged(), [29]);
    assert!(table.exchange.is_over() && table.exchange.lease.is_none());
    table.exchange.gone(table.now);
    assert!(table.exchange.poll_settlement().is_none());
}

#[test]
fn over_the_limit_the_answer_is_429_and_nothing_is_settled() {
    let mut table = Table::set(Profile::Streamed);
    table.post(&chat("metered"), &[]);
    let action =
        table.decide(|state| Admission::Refused { by: 0, states: vec![CounterState { settled: 320, ..state }] });
    let Action::Respond(response) = &action else { panic!("{action:?}") };
    let header = |name: &str| response.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
    // A sliding minute: 18 s to the end of this one, and 4 more until 299 of 320 are left in sight.
    assert_eq!(header("retry-after").as_deref(), Some("22"));
    assert_eq!(header("x-ratelimit-remaining-tokens").as_deref(), Some("0"));
    let (status, reason, body) = refused(action);
    assert_eq!((status, reason, &body["error"]["code"]), (429, "limited", &json!("rate_limit_exceeded")));
    assert!(table.exchange.poll_settlement().is_none());
}

#[test]
fn without_an_answer_of_the_ledger_nobody_gets_through() {
    let mut table = Table::set(Profile::Streamed);
    table.post(&chat("metered"), &[]);
    let action = table.exchange.admitted(Err(StoreError::Timeout(Duration::from_millis(25))), table.now);
    assert_eq!(refused(action).0, 503);
    assert!(table.exchange.poll_settlement().is_none());
}

#[test]
fn a_client_that_leaves_pays_for_what_it_got_at_whatever_point() {
    // Before an answer that is not streamed: what was reserved, for the model may well have done all of the work.
    let mut table = Table::set(Profile::Streamed);
    table.post(&chat("metered"), &[]);
    released(table.admit());
    table.exchange.gone(table.now);
    let prompt = table.charged();
    assert_eq!(prompt, [2 + 512], "`user` and `Hello` are nine bytes");
    // Before a stream: the prompt. In the middle of it: the prompt and the events that came.
    let stream = json!({"model": "metered", "stream": true, "messages": [{"role": "user", "content": "Hello"}]});
    table.again();
    table.post(&stream, &[]);
    released(table.admit());
    table.exchange.gone(table.now);
    assert_eq!(table.charged(), [2]);
    table.again();
    table.post(&stream, &[]);
    released(table.admit());
    table.answer_head("200", "text/event-stream", "10.0.0.1:80");
    for _ in 0..3 {
        table.answer_body("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n", End::More);
    }
    table.exchange.gone(table.now);
    assert_eq!(table.charged(), [2 + 3]);
    let summary = table.exchange.take_summary().unwrap();
    assert!(matches!(summary.usage, Some(Counted::Estimated(_))));
    assert_eq!(summary.outcome, Outcome::Cancelled);
    // While the ledger thinks: nothing that the exchange knows of.
    table.again();
    table.post(&chat("metered"), &[]);
    table.exchange.gone(table.now);
    assert!(table.exchange.poll_settlement().is_none());
}

#[test]
fn an_answer_whose_usage_nobody_says_costs_what_was_reserved_and_an_embedding_its_input() {
    let mut table = Table::set(Profile::Streamed);
    let body = json!({"model": "metered", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]});
    table.post(&body, &[]);
    released(table.admit());
    table.answer_head("200", "application/json", "10.0.0.1:80");
    table.answer_body(r#"{"choices":[{}]}"#, End::Last);
    assert_eq!(table.charged(), [2 + 100]);
    table.again();
    let embedding = json!({"model": "metered", "input": "Hello there"}).to_string();
    let head = headers_of(&[(":method", "POST"), (":path", "/v1/embeddings"), ("api-key", "secret")]);
    table.exchange.request_headers(head, End::More, table.now).unwrap();
    let action = table.exchange.request_body(Bytes::from(embedding), End::Last, table.now).unwrap();
    table.note(&action);
    released(table.admit());
    table.answer_head("200", "application/json", "10.0.0.1:80");
    table.answer_body("{}", End::Last);
    assert_eq!(table.charged(), [2]);
}

#[test]
fn an_upstreams_error_costs_nothing_and_passes_untouched() {
    let mut table = Table::set(Profile::Streamed);
    table.post(&chat("metered"), &[]);
    released(table.admit());
    table.answer_head("500", "application/json", "10.0.0.1:80");
    let (body, _) = table.answer_body(r#"{"error":"broken","usage":{"total_tokens":99}}"#, End::Last);
    assert_eq!(body, Body::Unchanged);
    assert_eq!(table.charged(), [0]);
    assert_eq!(table.exchange.take_summary().unwrap().outcome, Outcome::Answered(500));
}

#[test]
fn bad_bodies_are_refused_each_with_its_own_reason() {
    let cases = [
        ("", 400, "empty"),
        ("not json", 400, "not valid JSON"),
        (r#"{"model":"assistant""#, 400, "not valid JSON"),
        ("[]", 400, "must be a JSON object"),
        (r#"{"messages":[]}"#, 400, "`model`"),
        (r#"{"model":7}"#, 400, "must be a non-empty string"),
        (r#"{"model":"assistant","model":"qwen"}"#, 400, "more than once"),
        (r#"{"model":"assistant","Model":"qwen"}"#, 400, "has `model` in another spelling"),
        (r#"{"MODEL":"assistant"}"#, 400, "spell it `model`"),
        (r#"{"model":"assistant","max_tokens":5,"Max_Tokens":100000}"#, 400, "spell it `max_tokens`"),
        (r#"{"model":"assistant","n":1,"n":64}"#, 400, "`n` appears more than once"),
        (r#"{"model":"assistant","n":1.5}"#, 400, "`n` must be a whole number"),
        (r#"{"model":"assistant","stream":2}"#, 400, "`stream` must be true or false"),
        (r#"{"model":"nobody"}"#, 404, "`nobody`"),
    ];
    for (body, status, words) in cases {
        let mut table = Table::set(Profile::Streamed);
        let (got, _, answer) = refused(table.post_chunks(&[body], &[]));
        assert_eq!(got, status, "{body}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{body}: {message}");
        assert!(table.exchange.is_over());
        assert!(table.exchange.poll_settlement().is_none());
        assert!(matches!(table.exchange.take_summary().unwrap().outcome, Outcome::Local { .. }));
    }
}

#[test]
fn what_a_lax_server_reads_is_what_is_held_asked_for_and_counted() {
    let asked = |body: &Value| {
        let mut table = Table::set(Profile::Streamed);
        let Action::Reserve(asked) = table.post(body, &[]) else { panic!("{body}") };
        asked.estimate.output_at_most
    };
    for n in [json!(64), json!("64"), json!(64.0), json!(" 6_4 ")] {
        let body = json!({"model": "metered", "messages": [], "max_tokens": "50", "n": n});
        assert_eq!(asked(&body), 3200, "{body}");
    }
    for stream in [json!(true), json!(1), json!("true"), json!("on")] {
        let mut table = Table::set(Profile::Streamed);
        let body = json!({"model": "metered", "messages": [], "stream": stream}).to_string();
        table.post_chunks(&[&body], &[]);
        let (_, bodies) = released(table.admit());
        let [Body::Replaced(sent)] = bodies.as_slice() else { panic!("{bodies:?}") };
        let sent: Value = serde_json::from_slice(sent).unwrap();
        assert_eq!((&sent["stream"], &sent["stream_options"]["include_usage"]), (&stream, &json!(true)));
    }
}

#[test]
fn a_body_above_the_cap_is_refused_as_soon_as_it_is() {
    let mut table = Table::set(Profile::Streamed);
    let head = headers_of(&[(":method", "POST"), (":path", "/v1/completions"), ("x-api-key", "secret")]);
    table.exchange.request_headers(head, End::More, table.now).unwrap();
    let chunk = Bytes::from(vec![b'x'; 20 << 20]);
    assert!(matches!(table.exchange.request_body(chunk.clone(), End::More, table.now), Ok(Action::Wait)));
    let action = table.exchange.request_body(chunk, End::More, table.now).unwrap();
    assert_eq!(refused(action).0, 413);
}

#[test]
fn keys_decide_who_may_call_what() {
    let mut table = Table::set(Profile::Streamed);
    // What else is there is somebody else's, and goes no further.
    let (mutations, _) = released(table.post(&chat("assistant"), &[("x-api-key", "another one")]));
    assert_eq!(set(&mutations, headers::KEY_ID), Some("default/app"));
    assert!(attache_gate::CREDENTIAL_HEADERS.iter().all(|name| mutations.remove.contains(name)));
    table.again();
    let head = headers_of(&[(":method", "POST"), (":path", "/v1/chat/completions"), ("api-key", "unknown")]);
    let action = table.exchange.request_headers(head, End::More, table.now).unwrap();
    assert_eq!(refused(action).2["error"]["code"], json!("invalid_api_key"));
}

#[test]
fn the_filter_is_told_why_the_gate_refuses_and_nobody_else_is() {
    for (with_filter, path, expected) in [
        (true, "/v1/chat/completions", Some("key_unknown")),
        (false, "/v1/chat/completions", None),
        // Nothing that its documents could be at fault for.
        (true, "/v1/nothing", None),
    ] {
        let mut table = Table::set(Profile::Streamed);
        let mut head = vec![(":method", "POST"), (":path", path), ("api-key", "unknown")];
        head.extend(with_filter.then_some((headers::FILTER_CONFIG, "0")));
        let action = table.exchange.request_headers(headers_of(&head), End::More, table.now).unwrap();
        let Action::Respond(response) = action else { panic!("{action:?}") };
        let said = response.headers.iter().find(|(name, _)| *name == headers::VERDICT).map(|(_, value)| value);
        let details = format!("{}{}", headers::DETAILS_PREFIX, response.reason);
        let learned = said.map(|value| attache_gate::Learned::from_header(value.as_bytes(), details.as_bytes()));
        assert_eq!(learned.map(|learned| learned.is_some()), expected.map(|reason| reason == response.reason));
    }
}

#[test]
fn models_are_listed_for_the_key_that_asks() {
    let mut table = Table::set(Profile::Streamed);
    let head = headers_of(&[(":method", "GET"), (":path", "/v1/models"), ("authorization", "Bearer secret")]);
    let action = table.exchange.request_headers(head, End::Last, table.now).unwrap();
    let (status, _, body) = refused(action);
    assert_eq!(status, 200);
    let ids: Vec<_> = body["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["assistant", "metered"]);
}

#[test]
fn messages_out_of_order_are_errors_not_panics() {
    let mut table = Table::set(Profile::Streamed);
    assert!(table.exchange.request_body(Bytes::new(), End::Last, table.now).is_err());
    assert!(table.exchange.response_body(&Bytes::new(), End::Last, table.now).is_err());
    assert!(matches!(table.admit(), Action::Wait));
    assert!(!table.exchange.is_released(), "the stream must not end cleanly now");
    table.post(&chat("metered"), &[]);
    assert!(table.exchange.response_headers(&Headers::default(), End::Last, None, table.now).is_err());
    assert!(!table.exchange.is_released());
}

#[test]
fn an_answer_of_another_filter_to_a_request_we_never_saw_passes_untouched_and_is_not_counted() {
    let mut table = Table::set(Profile::Streamed);
    assert_eq!(table.answer_head("401", "application/json", ""), Mutations::default());
    assert_eq!(table.answer_body("{}", End::Last), (Body::Unchanged, Costs::new()));
    assert!(table.exchange.is_over() && table.exchange.take_summary().is_none());
}

#[test]
fn where_the_proxy_ends_a_request_amid_its_body_its_answer_passes_and_is_counted_as_its_own() {
    for profile in [Profile::Buffered, Profile::Streamed] {
        let mut table = Table::set(profile);
        let head =
            headers_of(&[(":method", "POST"), (":path", "/v1/chat/completions"), ("authorization", "Bearer secret")]);
        table.exchange.request_headers(head, End::More, table.now).unwrap();
        assert_eq!(table.answer_head("413", "text/plain", ""), Mutations::default());
        assert_eq!(table.answer_body("Payload Too Large", End::Last), (Body::Unchanged, Costs::new()));
        assert!(table.exchange.is_released() && table.exchange.poll_settlement().is_none());
        let outcome = table.exchange.take_summary().unwrap().outcome;
        assert_eq!(outcome, Outcome::Local { status: 413, reason: "proxy" });
    }
}

#[test]
fn a_model_whose_limits_are_not_known_gets_503_and_the_others_are_served() {
    let mut table = Table::set(Profile::Streamed);
    let broken = Documents::from_text("test.yaml", &YAML.replace("limit: 300", "limit: 0"));
    table.config =
        Arc::new(config::compile(broken, config::model::Settings::default(), 1, None).map(|it| it.config).unwrap());
    table.again();
    let (status, reason, body) = refused(table.post(&chat("metered"), &[]));
    assert_eq!((status, reason), (503, "limits_unknown"));
    assert!(body["error"]["message"].as_str().unwrap().contains("cannot be served at the moment"), "{body}");
    table.again();
    released(table.post(&chat("assistant"), &[]));
}

#[test]
fn the_other_dialects_are_served_at_the_servers_own_path_and_charged_by_their_usage() {
    let messages = r#"{"input_tokens":4,"cache_read_input_tokens":6,"output_tokens":2}"#;
    let responses = r#"{"input_tokens":10,"output_tokens":2,"total_tokens":12}"#;
    for (path, sent_to, usage) in [
        ("/v1/responses", None, responses),
        ("/v1/messages?beta=true", None, messages),
        ("/anthropic/v1/messages?beta=true", Some("/v1/messages?beta=true"), messages),
    ] {
        let mut table = Table::set(Profile::Streamed);
        let head = headers_of(&[(":method", "POST"), (":path", path), ("x-api-key", "secret")]);
        table.exchange.request_headers(head, End::More, table.now).unwrap();
        let body = json!({"model": "metered", "stream": true, "input": "Hi", "messages": []}).to_string();
        let action = table.exchange.request_body(Bytes::from(body), End::Last, table.now).unwrap();
        table.note(&action);
        let (mutations, bodies) = released(table.admit());
        let sent = mutations.set.iter().find(|(name, _)| *name == ":path").map(|(_, path)| path.as_str());
        assert_eq!(sent, sent_to, "{path}");
        assert!(!format!("{bodies:?}").contains("stream_options"), "{path}");
        table.answer_head("200", "application/json", "10.0.0.1:80");
        table.answer_body(&format!(r#"{{"usage":{usage}}}"#), End::Last);
        assert_eq!(table.charged(), [12], "{path}");
    }
}
