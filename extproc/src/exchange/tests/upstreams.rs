//! What is changed of a request for its upstream.

use super::*;

/// One model, `metered`, with a limit, on one backend: with these fields of its `spec` and of the route's backendRef.
fn table(backend: &str, backend_ref: &str, further: &str, path_prefix: &str) -> Table {
    let yaml = format!(
        "
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {{name: pool}}
spec: {{endpoints: [{{ip: {{address: 10.0.0.1, port: 80}}}}]}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {{name: pool}}
spec:
  backendRef: {{name: pool}}
  {backend}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {{name: limited}}
spec:
  rules:
  - matches: [{{headers: [{{name: x-ai-eg-model, value: metered}}]}}]
    backendRefs:
    - name: pool
      modelNameOverride: served
      {backend_ref}
---
apiVersion: attache.dev/v1alpha1
kind: TokenLimitPolicy
metadata: {{name: per-key}}
spec:
  targetRefs: [{{kind: AIGatewayRoute, name: limited}}]
  limits: [{{name: minute, limit: 3000, window: 1m, mode: strict, cap: true}}]
---
{further}"
    );
    let settings = config::model::Settings { path_prefix: path_prefix.to_owned(), ..Default::default() };
    let outcome = config::compile(Documents::from_text("test.yaml", &yaml), settings, 1, None).unwrap();
    let errors: Vec<_> = outcome.diagnostics.iter().filter(|d| d.is_error()).map(|d| d.plain().to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    let mut table = Table::set(Profile::Streamed);
    table.config = Arc::new(outcome.config);
    table.again();
    table
}

const OPENAI: &str = "schema: {name: OpenAI}";

const KEY: &str = "
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: BackendSecurityPolicy
metadata: {name: key}
spec: {targetRefs: [{kind: AIServiceBackend, name: pool}], type: APIKey, apiKey: {secretRef: {name: key}}}
";

const SECRET: &str = "---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {apiKey: sk-upstream}
";

fn set<'a>(mutations: &'a Mutations, name: &str) -> Option<&'a str> {
    let ours = mutations.set.iter().rfind(|(other, _)| *other == name).map(|(_, value)| value.as_str());
    let upstream = mutations.upstream.set.iter().rfind(|(other, _)| &**other == name).map(|(_, value)| &**value);
    upstream.or(ours)
}

fn removes(mutations: &Mutations, name: &str) -> bool {
    mutations.remove.contains(&name) || mutations.upstream.remove.iter().any(|other| &**other == name)
}

fn joined(bodies: Vec<Body>, chunks: &[&str]) -> Value {
    let bytes: Vec<u8> = bodies
        .into_iter()
        .zip(chunks)
        .flat_map(|(body, chunk)| match body {
            Body::Unchanged => chunk.as_bytes().to_vec(),
            Body::Replaced(bytes) => bytes.to_vec(),
        })
        .collect();
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn headers_are_set_and_removed_and_the_routes_word_counts_before_the_backends() {
    let backend = format!(
        "{OPENAI}\n  headerMutation: {{set: [{{name: X-Team, value: backend}}, {{name: x-b, value: b}}], remove: [x-c]}}"
    );
    let mut table = table(
        &backend,
        "headerMutation: {set: [{name: x-team, value: route}, {name: x-c, value: c}], remove: [X-B]}",
        "",
        "",
    );
    table.post(&json!({"model": "metered", "messages": []}), &[]);
    let (mutations, _) = released(table.admit());
    assert_eq!(["x-team", "x-c", "x-b"].map(|name| set(&mutations, name)), [Some("route"), Some("c"), None]);
    assert!(removes(&mutations, "x-b") && !removes(&mutations, "x-c"));
}

#[test]
fn what_is_estimated_and_bounded_is_what_the_upstream_is_asked_for() {
    let mut table =
        table(OPENAI, "bodyMutation: {set: [{path: max_tokens, value: '2000'}, {path: n, value: '2'}]}", "", "");
    let chunks = [r#"{"model": "metered", "max_to"#, r#"kens": 5, "messages": [{"role": "user", "content": "Hi"}]}"#];
    let action = table.post_chunks(&chunks, &[]);
    let Action::Reserve(asked) = &action else { panic!("{action:?}") };
    assert_eq!(asked.estimate.output_at_most, 4000);
    // There is room for 3,000 tokens, and the prompt is a few of them: the answer is bounded in the field that was set.
    let refused = |state: CounterState| Admission::Refused { states: vec![state], by: 0 };
    let shorter = table.decide(refused);
    let Action::Reserve(asked) = &shorter else { panic!("{shorter:?}") };
    let most = asked.estimate.output_at_most;
    assert!((2000..3000).contains(&most), "{most}");
    table.note(&shorter);
    let (mutations, bodies) = released(table.admit());
    let body = joined(bodies, &chunks);
    assert_eq!((&body["model"], &body["max_tokens"], &body["n"]), (&json!("served"), &json!(most / 2), &json!(2)));
    assert!(set(&mutations, "content-length").is_some());
}

#[test]
fn a_stream_that_the_operator_asks_for_is_counted_as_one() {
    let mut table = table(
        OPENAI,
        "bodyMutation: {set: [{path: stream, value: 'true'}, {path: stream_options, value: '{\"include_usage\": false}'}], \
         remove: [logit_bias]}",
        "",
        "",
    );
    let body = r#"{"model":"metered","logit_bias":{"1":2},"messages":[]}"#;
    table.post_chunks(&[body], &[]);
    let (_, bodies) = released(table.admit());
    // What its limit has left bounds it, but for what the prompt may have.
    let expected = json!({
        "model": "served", "messages": [], "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 2928,
    });
    assert_eq!(joined(bodies, &[body]), expected);
    table.answer_head("200", "text/event-stream", "10.0.0.1:80");
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":7}}\n\n";
    let (passed, _) = table.answer_body(&format!("{usage}data: [DONE]\n\n"), End::Last);
    assert_eq!(passed, Body::Replaced(Bytes::from_static(b"data: [DONE]\n\n")));
    assert_eq!(table.charged(), [7]);
}

#[test]
fn stream_options_that_the_operator_removes_stay_away_and_the_stream_is_estimated() {
    let mut table = table(OPENAI, "bodyMutation: {remove: [stream_options]}", "", "");
    for own in ["", r#""stream_options":{"include_usage":true},"#, r#""stream_options":{"include_usage":false},"#] {
        table.again();
        let body = format!(r#"{{"model":"metered",{own}"stream":true,"messages":[]}}"#);
        table.post_chunks(&[&body], &[]);
        let (_, bodies) = released(table.admit());
        let expected = json!({"model": "served", "messages": [], "stream": true, "max_tokens": 2928});
        assert_eq!(joined(bodies, &[&body]), expected, "{own}");
        table.answer_head("200", "text/event-stream", "10.0.0.1:80");
        let word = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
        // What the server sends unasked is the client's, as it would be without us.
        let usage = "data: {\"choices\":[],\"usage\":null}\n\n";
        let (passed, _) = table.answer_body(&format!("{word}{word}{usage}data: [DONE]\n\n"), End::Last);
        assert_eq!(passed, Body::Unchanged);
        assert_eq!(table.charged(), [2], "a token for each event with content");
    }
}

#[test]
fn a_key_goes_upstream_in_the_place_of_the_clients() {
    let mutation = "headerMutation: {set: [{name: Authorization, value: wrong}], remove: [x-api-key]}";
    let mut table = table(OPENAI, mutation, &(KEY.to_owned() + SECRET), "");
    table.post(&json!({"model": "metered", "messages": []}), &[("x-api-key", "mine"), ("api-key", "mine")]);
    let (mutations, _) = released(table.admit());
    assert_eq!(set(&mutations, "authorization"), Some("Bearer sk-upstream"));
    assert_eq!(["authorization", "x-api-key", "api-key"].map(|name| removes(&mutations, name)), [false, true, true]);
    assert!(!format!("{mutations:?}").contains("sk-upstream"));
}

#[test]
fn an_upstream_that_refuses_the_operators_key_is_no_fault_of_the_callers() {
    let refusal = r#"{"error":{"message":"Incorrect API key provided: sk-upst****","code":"invalid_api_key"}}"#;
    let own = "headerMutation: {set: [{name: x-api-key, value: sk-operator}]}";
    for (mutation, further) in [("", KEY.to_owned() + SECRET), (own, String::new())] {
        let mut table = table(OPENAI, mutation, &further, "");
        for status in ["401", "403"] {
            table.again();
            table.post(&json!({"model": "metered", "messages": []}), &[]);
            table.admit();
            let head = headers_of(&[(":status", status), ("content-type", "application/json")]);
            let action = table.exchange.response_headers(&head, End::More, Some("10.0.0.1:80"), table.now).unwrap();
            let (status, reason, answer) = refused(action);
            assert_eq!((status, reason), (502, "upstream_key_refused"));
            assert_eq!(answer["error"]["type"], "server_error");
            assert!(!answer.to_string().contains("key"), "{answer}");
            assert_eq!(table.charged(), [0]);
            assert!(table.memory.cooldown.admits("default/pool", table.now));
        }
    }
    // Where the key is nobody's but the client's, or none, the upstream's word passes.
    let mut table = table(OPENAI, "", "", "");
    table.post(&json!({"model": "metered", "messages": []}), &[]);
    table.admit();
    table.answer_head("401", "application/json", "10.0.0.1:80");
    assert_eq!(table.answer_body(refusal, End::Last).0, Body::Unchanged);
    assert_eq!(table.exchange.take_summary().unwrap().outcome, Outcome::Answered(401));
}

#[test]
fn without_the_key_that_is_wanted_nothing_is_sent() {
    let mut table = table(OPENAI, "", KEY, "");
    let action = table.post(&json!({"model": "metered", "messages": []}), &[]);
    let Action::Respond(response) = action else { panic!("{action:?}") };
    assert_eq!((response.status, response.reason), (503, "key_unknown"));
    // What the operator has to mend is in the log, and no caller's business.
    assert!(response.body.contains("this model cannot be served at the moment; try again later"), "{}", response.body);
}

#[test]
fn the_path_has_the_prefix_of_the_backend_behind_our_own() {
    for (schema, path) in [
        ("schema: {name: OpenAI, prefix: v1beta/openai/}", Some("/gw/v1beta/openai/chat/completions?a=b")),
        ("schema: {name: OpenAI, version: v2}", Some("/gw/v2/chat/completions?a=b")),
        ("schema: {name: OpenAI, prefix: /, version: v2}", Some("/gw/chat/completions?a=b")),
        ("schema: {name: OpenAI, version: v1}", None),
        (OPENAI, None),
    ] {
        let mut table = table(schema, "", "", "/gw");
        let body = json!({"model": "metered", "messages": []}).to_string();
        let head = [(":method", "POST"), (":path", "/gw/v1/chat/completions?a=b")];
        table.exchange.request_headers(headers_of(&head), End::More, table.now).unwrap();
        let action = table.exchange.request_body(Bytes::from(body), End::Last, table.now).unwrap();
        table.note(&action);
        let (mutations, _) = released(table.admit());
        assert_eq!(set(&mutations, ":path"), path, "{schema}");
    }
}

#[test]
fn a_backend_of_anthropics_gets_messages_and_nothing_else() {
    let mut table = table("schema: {name: Anthropic}", "", "", "");
    let action = table.post(&json!({"model": "metered", "messages": []}), &[]);
    let Action::Respond(response) = action else { panic!("{action:?}") };
    assert_eq!((response.status, response.reason), (404, "not_served"));
    assert!(response.body.contains("is not served at /v1/chat/completions"), "{}", response.body);
}
