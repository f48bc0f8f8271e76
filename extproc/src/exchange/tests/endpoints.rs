//! Operations besides chats: what of them is read, what they cost, and where they go.

use attache_gate::UnattachedStatus;

use super::*;
use crate::config::model::Settings;

/// The routes of [`super::YAML`], of which `limited` passes through two paths, under these limits.
fn passing(limits: &str) -> Table {
    passing_to("{name: pool}", limits)
}

/// The same, to this backendRef.
fn passing_to(backend_ref: &str, limits: &str) -> Table {
    let yaml = YAML
        .replace(
            "metadata: {name: limited}",
            "metadata: {name: limited, annotations: {attache.dev/pass-through: \"/classify, POST /v1/custom/*\"}}",
        )
        .replace("limits: [{name: minute, per: [key], limit: 300, window: 1m}]", limits)
        .replace("backendRefs: [{name: pool}]", &format!("backendRefs: [{backend_ref}]"));
    let outcome = config::compile(Documents::from_text("test.yaml", &yaml), Default::default(), 1, None).unwrap();
    let mut table = Table::set(Profile::Streamed);
    table.config = Arc::new(outcome.config);
    table.again();
    table
}

const REQUESTS: &str = "limits: [{name: requests, per: [key], limit: 300, window: 1m, cost: requests}]";

/// One limit of each kind.
const ALL_KINDS: &str = r#"
  limits:
  - {name: total, limit: 300, window: 1m}
  - {name: input, limit: 300, window: 1m, cost: input}
  - {name: output, limit: 300, window: 1m, cost: output}
  - {name: weighted, limit: 300, window: 1m, cost: {cel: "output_tokens * 2u"}}
  - {name: each, limit: 300, window: 1m, cost: {cel: "total_tokens + 1u"}}
  - {name: requests, limit: 300, window: 1m, cost: requests}
  - {name: in-flight, concurrency: 8}"#;

impl Table {
    /// Sends a request of any kind, whole.
    fn send(&mut self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Action {
        match content_type {
            "" => self.ask(method, path, &[], body),
            content_type => self.ask(method, path, &[("content-type", content_type)], body),
        }
    }

    /// The same with other headers.
    fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Action {
        self.again();
        let length = body.len().to_string();
        let mut head = vec![(":method", method), (":path", path), ("x-api-key", "secret")];
        head.extend(headers);
        if !body.is_empty() {
            head.push(("content-length", &length));
        }
        let end = if body.is_empty() { End::Last } else { End::More };
        let mut action = self.exchange.request_headers(headers_of(&head), end, self.now).unwrap();
        if let (Action::Wait, End::More) = (&action, end) {
            action = self.exchange.request_body(Bytes::copy_from_slice(body), End::Last, self.now).unwrap();
        }
        self.note(&action);
        action
    }

    /// The same, which is let pass. Tells what of the body goes on.
    fn forward(&mut self, method: &str, path: &str, content_type: &str, body: &[u8]) -> (Mutations, Vec<Body>) {
        let action = match self.send(method, path, content_type, body) {
            Action::Reserve(_) => self.admit(),
            action => action,
        };
        released(action)
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    let field = |(name, value): &(&str, &str)| {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    fields.iter().map(field).collect::<String>() + "--b--\r\n"
}

const FORM: &str = "multipart/form-data; boundary=b";
const JSON: &str = "application/json";

#[test]
fn a_forms_model_becomes_the_targets_and_nothing_else_changes() {
    let mut table = Table::set(Profile::Streamed);
    let body = form(&[("file", "\u{0}\u{1}"), ("model", "assistant"), ("language", "en")]);
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations"] {
        let (mutations, bodies) = table.forward("POST", path, FORM, body.as_bytes());
        let expected = body.replace("assistant", "qwen");
        assert_eq!(set(&mutations, "content-length"), Some(expected.len().to_string().as_str()));
        assert_eq!(bodies, [Body::Replaced(Bytes::from(expected))], "{path}");
    }
}

#[test]
fn a_form_where_none_is_taken_is_415_and_what_is_neither_form_nor_json_says_both() {
    let mut table = Table::set(Profile::Streamed);
    let body = form(&[("model", "assistant")]);
    let (status, _, answer) = refused(table.send("POST", "/v1/chat/completions", FORM, body.as_bytes()));
    assert_eq!((status, &answer["error"]["code"]), (415, &json!("unsupported_media_type")));
    for (content_type, body) in [("text/plain", "assistant"), ("", "x"), (FORM, ""), ("text/plain", body.as_str())] {
        let (status, _, answer) =
            refused(table.send("POST", "/v1/audio/transcriptions", content_type, body.as_bytes()));
        assert_eq!(status, 400);
        assert!(answer["error"]["message"].as_str().unwrap().contains("form"), "{answer}");
    }
    let twice = form(&[("model", "assistant"), ("model", "metered")]);
    let (status, _, answer) = refused(table.send("POST", "/v1/audio/transcriptions", FORM, twice.as_bytes()));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("model")));
    // JSON is JSON, whatever it is called, and vLLM takes it for sound as well.
    let json = json!({"model": "assistant", "messages": []}).to_string();
    for (path, content_type) in [("/v1/audio/transcriptions", JSON), ("/v1/chat/completions", "text/plain")] {
        table.forward("POST", path, content_type, json.as_bytes());
    }
}

#[test]
fn limits_are_asked_only_about_what_an_operation_can_cost() {
    let mut table = passing(ALL_KINDS);
    let form = form(&[("model", "metered"), ("file", "x")]);
    let json = json!({"model": "metered"}).to_string();
    let (none, input) =
        (["each", "requests", "in-flight"], ["total", "input", "weighted", "each", "requests", "in-flight"]);
    let all = ["total", "input", "output", "weighted", "each", "requests", "in-flight"];
    for (path, asked) in [
        ("/tokenize", &none[..]),
        ("/detokenize", &none),
        ("/v1/messages/count_tokens", &none),
        ("/classify", &none),
        ("/v1/embeddings", &input),
        ("/v1/rerank", &input),
        ("/score", &input),
        ("/v1/images/generations", &all),
        ("/v1/images/variations", &all),
        ("/v1/audio/speech", &all),
        ("/v1/audio/transcriptions", &all),
        ("/v1/chat/completions", &all),
        ("/v1/messages", &all),
    ] {
        let is_form = path.ends_with("variations") || path.ends_with("transcriptions");
        let (content_type, body) = if is_form { (FORM, &form) } else { (JSON, &json) };
        let Action::Reserve(request) = table.send("POST", path, content_type, body.as_bytes()) else {
            panic!("{path}")
        };
        let name = |id: &str| id.rsplit('/').next().unwrap().to_owned();
        assert_eq!(request.holds.iter().map(|hold| name(&hold.limit.id)).collect::<Vec<_>>(), asked, "{path}");
    }
}

#[test]
fn what_counts_or_cuts_tokens_costs_none_and_asks_no_limit_of_tokens() {
    let text = "word ".repeat(100);
    for (limits, charged) in [(REQUESTS, Some(vec![1])), ("limits: [{name: t, limit: 300, window: 1m}]", None)] {
        let mut table = passing(limits);
        for (path, body) in [
            ("/tokenize", json!({"model": "metered", "prompt": text})),
            ("/detokenize", json!({"model": "metered", "tokens": [1, 2, 3]})),
            ("/v1/messages/count_tokens", json!({"model": "metered", "messages": [{"role": "user", "content": text}]})),
        ] {
            table.forward("POST", path, JSON, body.to_string().as_bytes());
            table.answer_head("200", "application/json", "10.0.0.1:80");
            table.answer_body(r#"{"count":5,"input_tokens":9,"usage":{"total_tokens":12}}"#, End::Last);
            match &charged {
                Some(charged) => assert_eq!(&table.charged(), charged, "{path}"),
                None => assert!(table.exchange.poll_settlement().is_none(), "{path}"),
            }
            assert_eq!(table.exchange.take_summary().unwrap().usage, None, "{path}: it is in no figure of tokens");
        }
    }
}

/// A request for an image or sound, and what its answer costs of a limit of tokens and of one of requests; `None`: its client leaves
/// in the middle.
fn charged_for_media(path: &str, answer: Option<(&str, &[&str])>) -> (Vec<u64>, Option<Counted>) {
    let mut table =
        passing("limits: [{name: t, limit: 300000, window: 1m}, {name: r, limit: 300, window: 1m, cost: requests}]");
    let is_json = path.ends_with("generations") || path.ends_with("speech");
    let (content_type, body) = if is_json {
        (JSON, json!({"model": "metered", "prompt": "p".repeat(40), "input": "i".repeat(40)}).to_string())
    } else {
        (FORM, form(&[("model", "metered"), ("file", "x")]))
    };
    table.forward("POST", path, content_type, body.as_bytes());
    match answer {
        Some((content_type, chunks)) => {
            table.answer_head("200", content_type, "10.0.0.1:80");
            for chunk in chunks {
                table.answer_body(chunk, End::More);
            }
            table.answer_body("", End::Last);
        }
        None => table.exchange.gone(table.now),
    }
    (table.charged(), table.exchange.take_summary().unwrap().usage)
}

#[test]
fn images_and_sound_cost_what_their_answers_report_and_else_a_request() {
    const PATHS: [&str; 5] = [
        "/v1/images/generations",
        "/v1/images/variations",
        "/v1/audio/speech",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    ];
    let usage =
        r#"{"usage":{"input_tokens":7,"output_tokens":90,"total_tokens":97,"input_tokens_details":{"text_tokens":7}}}"#;
    let events = ["event: x.delta\ndata: {\"delta\":\"a\"}\n\n", "event: x.done\ndata: {\"text\":\"a\"}\n\n"];
    let silent: [(&str, &[&str]); 6] = [
        ("application/json", &[r#"{"created":1,"data":[{"url":"https://x"}]}"#]),
        ("application/json", &[r#"{"text":"a","usage":{"type":"duration","seconds":12}}"#]),
        ("application/json", &[r#"{"data":[],"usage":null}"#]),
        ("audio/mpeg", &["\u{1}\u{2}"]),
        ("text/plain", &["what was said\n"]),
        ("text/event-stream", &events),
    ];
    for path in PATHS {
        let (charged, counted) = charged_for_media(path, Some(("application/json", &[usage])));
        assert_eq!(charged, [97, 1], "{path}");
        assert!(matches!(counted, Some(Counted::Reported(usage)) if usage.output == 90), "{path}: {counted:?}");
        let done = format!("data: {usage}\n\n");
        assert_eq!(charged_for_media(path, Some(("text/event-stream", &[events[0], &done]))).0, [97, 1], "{path}");
        for answer in silent {
            assert_eq!(charged_for_media(path, Some(answer)), (vec![0, 1], None), "{path}: {answer:?}");
        }
    }
    // Who leaves before the end may have left before the usage.
    for path in ["/v1/images/generations", "/v1/audio/speech"] {
        let (charged, counted) = charged_for_media(path, None);
        assert_eq!((charged, matches!(counted, Some(Counted::Estimated(_)))), (vec![10, 1], true), "{path}");
    }
}

#[test]
fn a_rerank_costs_what_its_answer_says_and_else_the_query_once_for_each_document() {
    let mut table = Table::set(Profile::Streamed);
    let body = json!({"model": "metered", "query": "q".repeat(40), "documents": ["d".repeat(40), "e".repeat(40)]});
    for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        table.forward("POST", path, JSON, body.to_string().as_bytes());
        table.answer_head("200", "application/json", "10.0.0.1:80");
        table.answer_body(r#"{"results":[]}"#, End::Last);
        assert_eq!(table.charged(), [40], "four texts of ten tokens each, at {path}");
    }
}

#[test]
fn what_a_route_names_passes_with_any_body_and_without_one() {
    let mut table = passing(REQUESTS);
    for (method, path, content_type, body) in [
        ("GET", "/classify?x=1", "", &b""[..]),
        ("POST", "/classify", "application/octet-stream", b"\x00\xff{{{"),
        ("PUT", "/classify", JSON, b"{\"text\":[[[["),
        ("POST", "/v1/custom/a/b", JSON, b"{\"model\":5}"),
        ("POST", "/v1/custom/a/b", FORM, b"--x"),
    ] {
        let (mutations, bodies) = table.forward(method, path, content_type, body);
        assert!(bodies.iter().all(|body| *body == Body::Unchanged), "{method} {path}");
        assert_eq!(set(&mutations, headers::MODEL), Some("metered"), "the first that its route serves");
        assert_eq!(set(&mutations, headers::CLUSTER), Some("default/pool"));
        assert_eq!(set(&mutations, ":path"), None);
        table.answer_head("200", "application/json", "10.0.0.1:80");
        table.answer_body(r#"{"usage":{"total_tokens":99}}"#, End::Last);
        assert_eq!(table.charged(), [1], "a request, whatever its answer says");
    }
}

#[test]
fn a_body_mutation_changes_json_objects_at_every_path() {
    let backend_ref = "{name: pool, bodyMutation: {set: [{path: priority, value: '3'}]}}";
    let mut table = passing_to(backend_ref, REQUESTS);
    let form = form(&[("model", "metered")]);
    let json = r#"{"model":"metered","query":"q","documents":["d"]}"#;
    for (path, content_type, body, is_changed) in [
        ("/v1/rerank", JSON, json, true),
        ("/v1/audio/transcriptions", JSON, json, true),
        ("/tokenize", JSON, json, true),
        ("/classify", JSON, json, true),
        ("/classify", JSON, "{\"a\":1}", true),
        ("/classify", JSON, "[1]", false),
        ("/classify", "text/plain", "text", false),
        ("/v1/audio/transcriptions", FORM, &form, false),
    ] {
        let (_, bodies) = table.forward("POST", path, content_type, body.as_bytes());
        let [body] = bodies.as_slice() else { panic!("{bodies:?}") };
        match body {
            Body::Replaced(bytes) if is_changed => {
                assert_eq!(serde_json::from_slice::<Value>(bytes).unwrap()["priority"], 3, "{path}");
            }
            body => assert!(*body == Body::Unchanged && !is_changed, "{path}: {body:?}"),
        }
    }
}

#[test]
fn a_request_without_a_body_is_answered_at_its_headers_in_both_profiles() {
    for profile in [Profile::Streamed, Profile::Buffered] {
        let mut table = passing(REQUESTS);
        table.exchange = Exchange::new(Arc::clone(&table.config), table.memory.clone(), profile, 7, table.now);
        let head = headers_of(&[(":method", "GET"), (":path", "/classify"), ("x-api-key", "secret")]);
        let action = table.exchange.request_headers(head, End::Last, table.now).unwrap();
        table.note(&action);
        let (mutations, bodies) = released(table.admit());
        assert_eq!((set(&mutations, headers::CLUSTER), bodies.len()), (Some("default/pool"), 0), "{profile:?}");
    }
}

#[test]
fn a_model_in_a_body_that_passes_through_is_one_of_the_routes_that_name_the_path() {
    let mut table = passing(REQUESTS);
    let send = |table: &mut Table, body: &str| table.send("POST", "/classify", JSON, body.as_bytes());
    let action = send(&mut table, r#"{"model":"metered"}"#);
    assert!(matches!(action, Action::Reserve(_)), "{action:?}");
    // Another route of the key's serves it, which does not name the path.
    let (status, reason, answer) = refused(send(&mut table, r#"{"model":"assistant"}"#));
    assert_eq!((status, reason, &answer["error"]["code"]), (404, "not_served", &json!("unknown_url")));
    let (status, _, answer) = refused(send(&mut table, r#"{"model":"nobody"}"#));
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")));
    for two in [r#"{"model":"metered","model":"metered"}"#, r#"{"model":"metered","Model":"x"}"#, r#"{"MODEL":"x"}"#] {
        let (status, _, answer) = refused(send(&mut table, two));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("model")), "{two}");
    }
}

#[test]
fn a_key_that_is_not_attached_to_a_model_is_told_so_whatever_it_asks() {
    for (setting, told) in [(UnattachedStatus::Unauthorized, 401), (UnattachedStatus::Forbidden, 403)] {
        // `other` may call `limited` alone, which names the path.
        let yaml = YAML
            .replace(
                "metadata: {name: limited}",
                "metadata: {name: limited, annotations: {attache.dev/pass-through: /classify}}",
            )
            .replace("routes: [unified, limited]", "routes: [limited]");
        let settings = Settings { unattached_status: setting, ..Settings::default() };
        let outcome = config::compile(Documents::from_text("test.yaml", &yaml), settings, 1, None).unwrap();
        let mut table = Table::set(Profile::Streamed);
        table.config = Arc::new(outcome.config);
        let body = br#"{"model":"assistant","input":"a"}"#;
        let asked = [
            ("POST", "/v1/chat/completions", JSON, &body[..]),
            ("POST", "/v1/embeddings", JSON, body),
            ("POST", "/v1/messages", JSON, body),
            ("POST", "/tokenize", JSON, body),
            ("POST", "/classify", JSON, body),
            ("GET", "/v1/models/assistant", "", b""),
            ("GET", "/v1/models/%61ssistant", "", b""),
        ];
        for (method, path, content_type, body) in asked {
            let (status, reason, answer) = refused(table.send(method, path, content_type, body));
            assert_eq!((status, reason), (told, "key_not_attached"), "{path}: {answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains("`assistant`"), "{path}: {answer}");
        }
    }
}

#[test]
fn one_model_is_described_where_the_list_has_it() {
    let mut table = Table::set(Profile::Streamed);
    let (status, _, model) = refused(table.send("GET", "/v1/models/assistant", "", b""));
    assert_eq!((status, &model["id"], &model["object"]), (200, &json!("assistant"), &json!("model")));
    for (name, shown) in [("nobody", "`nobody`"), ("assistant/", "`assistant/`"), ("no%22body", "`no\"body`")] {
        let (status, _, answer) = refused(table.send("GET", &format!("/v1/models/{name}"), "", b""));
        assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")), "{name}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(shown), "{answer}");
    }
}

#[test]
fn models_are_described_in_the_form_of_the_api_that_asks() {
    let ask = |path: &str, headers: &[(&str, &str)]| {
        let mut table = Table::set(Profile::Streamed);
        refused(table.ask("GET", path, headers, b""))
    };
    for (path, headers) in [
        ("/v1/models", &[("anthropic-version", "2023-06-01")][..]),
        ("/anthropic/v1/models", &[]),
        ("/anthropic/v1/models?limit=1000", &[]),
    ] {
        let (status, _, list) = ask(path, headers);
        let model = json!({"type": "model", "id": "assistant", "display_name": "assistant",
                           "created_at": "1970-01-01T00:00:00Z"});
        assert_eq!((status, &list["data"][0], &list["has_more"]), (200, &model, &json!(false)), "{path}: {list}");
        assert_eq!((&list["first_id"], &list["last_id"]), (&json!("assistant"), &json!("metered")), "{path}: {list}");
    }
    let (_, _, list) = ask("/v1/models", &[]);
    let model = json!({"id": "assistant", "object": "model", "created": 0, "owned_by": "attache"});
    assert_eq!((&list["object"], &list["data"][0]), (&json!("list"), &model));
    let (status, _, model) = ask("/anthropic/v1/models/assistant", &[]);
    assert_eq!((status, &model["type"]), (200, &json!("model")));
    let (status, _, error) = ask("/anthropic/v1/models/nobody", &[]);
    assert_eq!((status, &error["error"]["type"]), (404, &json!("not_found_error")));
}

#[test]
fn a_mistyped_model_is_told_which_one_may_have_been_meant_if_the_key_may_call_it() {
    let told = |yaml: &str, model: &str| {
        let outcome = config::compile(Documents::from_text("test.yaml", yaml), Default::default(), 1, None).unwrap();
        let mut table = Table::set(Profile::Streamed);
        table.config = Arc::new(outcome.config);
        let body = json!({"model": model, "messages": []}).to_string();
        let (status, _, answer) = refused(table.send("POST", "/v1/chat/completions", JSON, body.as_bytes()));
        assert_eq!(status, 404, "{answer}");
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    for mistyped in ["asistant", "Assistant", "assistnat"] {
        assert!(told(YAML, mistyped).contains("did you mean `assistant`?"), "{}", told(YAML, mistyped));
    }
    for other in ["gpt-4o", "a", &"assistant".repeat(100)] {
        assert!(told(YAML, other).contains("GET /v1/models"), "{}", told(YAML, other));
    }
    let without = YAML.replace("routes: [unified, limited]", "routes: [limited]");
    assert!(!told(&without, "asistant").contains("`assistant`"));
}

#[test]
fn an_answer_in_the_background_is_refused_where_its_tokens_would_be_counted() {
    for (switch, status) in [("true", 400), ("1", 400), ("\"true\"", 400), ("false", 0), ("null", 0)] {
        let mut table = Table::set(Profile::Streamed);
        let body = format!(r#"{{"model":"metered","input":"a","background":{switch},"max_output_tokens":90000}}"#);
        let action = table.send("POST", "/v1/responses", JSON, body.as_bytes());
        if status == 0 {
            assert!(matches!(action, Action::Reserve(_)), "{switch}: {action:?}");
            continue;
        }
        let (refused, _, answer) = refused(action);
        assert_eq!((refused, &answer["error"]["param"]), (status, &json!("background")), "{switch}");
    }
    let mut table = Table::set(Profile::Streamed);
    let body = br#"{"model":"assistant","input":"a","background":true}"#;
    assert!(matches!(table.send("POST", "/v1/responses", JSON, body), Action::Release(_)), "nothing is counted");
}

#[test]
fn what_codex_calls_beside_responses_is_served_and_counted_as_what_it_uses() {
    let body =
        br#"{"model":"metered","input":[{"role":"user","content":"a long conversation"}],"instructions":"short"}"#;
    let mut table = Table::set(Profile::Streamed);
    let Action::Reserve(request) = table.send("POST", "/v1/responses/compact", JSON, body) else { panic!() };
    assert!(request.estimate.input > 0 && request.estimate.output > 0, "{request:?}");
    let mut table = Table::set(Profile::Streamed);
    let action = table.send("POST", "/v1/responses/input_tokens", JSON, body);
    assert!(matches!(action, Action::Release(_)), "no tokens, so no limit on tokens: {action:?}");
}
