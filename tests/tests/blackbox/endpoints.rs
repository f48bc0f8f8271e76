//! Operations besides chats, forms, and what a route passes through: with the Wasm filter and without it.

use attache_tests::{Answer, Client, Stack, until};
use reqwest::Method;
use serde_json::json;

use crate::{
    documents::{key, limits, replica, route},
    raw::{Connection, post},
    residue,
    verdict::{asked, counted, error, error_in, is, served},
};

const INVALID: &str = "invalid_request_error";

/// `route`, with what it passes through.
fn naming(name: &str, model: &str, backend: &str, paths: &str) -> String {
    let metadata = format!("metadata: {{name: {name}, annotations: {{attache.dev/pass-through: \"{paths}\"}}}}");
    route(name, model, backend).replace(&format!("metadata: {{name: {name}}}"), &metadata)
}

/// `model/one` on the first server for the key `one`, `two` on the second for the key `two`. Both pass things through.
fn documents() -> String {
    [
        replica("first", 0),
        replica("second", 1),
        naming("one", "model/one", "{name: first, modelNameOverride: inner}", "/classify, POST /v1/custom/*"),
        naming("two", "two", "{name: second}", "GET /version, POST /v1/custom/*"),
        key("one", "acme", "one"),
        key("two", "umbrella", "two"),
    ]
    .concat()
}

async fn stacks(documents: &str) -> [Stack; 2] {
    let builder = || Stack::builder(documents).models(2);
    [builder().start().await.unwrap(), builder().without_wasm().start().await.unwrap()]
}

/// Sends any body.
async fn send(client: &Client, method: Method, path: &str, content_type: &str, body: impl Into<Vec<u8>>) -> Answer {
    let request = client.request(method, path).header("content-type", content_type).body(body.into());
    Answer::to(request).await.unwrap()
}

fn form(fields: &[(&str, &str)]) -> String {
    let field = |(name, value): &(&str, &str)| {
        format!("--sep\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    fields.iter().map(field).collect::<String>() + "--sep--\r\n"
}

const FORM: &str = "multipart/form-data; boundary=sep";
const JSON: &str = "application/json";

#[tokio::test]
async fn a_form_reaches_the_model_server_with_the_targets_name_and_every_other_byte() {
    for stack in stacks(&documents()).await {
        let client = stack.client().with_key("sk-one");
        let sound = "\u{1}RIFF--sep\r\n--se".repeat(1_000);
        let body = form(&[("file", &sound), ("model", "model/one"), ("language", "en")]);
        for path in ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations"]
        {
            stack.forget_requests();
            send(&client, Method::POST, path, FORM, body.clone()).await;
            let [record] = <[_; 1]>::try_from(stack.models[0].requests()).unwrap();
            assert_eq!((record.method.as_str(), record.path.as_str()), ("POST", path));
            assert_eq!(record.body, body.replace("model/one", "inner"), "{path}");
            assert_eq!(record.headers["content-type"], FORM);
            assert_eq!(record.headers["content-length"], record.body_bytes.to_string());
        }
        stack.forget_requests();
        for (body, path, status, param) in [
            (form(&[("file", "x")]), "/v1/audio/transcriptions", 400, Some("model")),
            (form(&[("model", "model/one"), ("model", "two")]), "/v1/audio/transcriptions", 400, Some("model")),
            (body.trim_end_matches("--\r\n").to_owned(), "/v1/audio/transcriptions", 400, None),
            (String::new(), "/v1/audio/transcriptions", 400, None),
            (body.clone(), "/v1/audio/speech", 415, None),
            (body.clone(), "/v1/chat/completions", 415, None),
        ] {
            let answer = send(&client, Method::POST, path, FORM, body).await;
            assert_eq!((answer.status, answer.json().unwrap()["error"]["param"].as_str()), (status, param), "{path}");
        }
        let nameless = send(&client, Method::POST, "/v1/audio/transcriptions", "multipart/form-data", body).await;
        assert_eq!(error(&nameless), is(400, INVALID, None));
        assert!(nameless.text().contains("boundary"), "{}", nameless.text());
        assert_eq!(served(&stack), 4);
        residue::none(&stack).await;
    }
}

#[tokio::test]
async fn every_operation_arrives_at_the_path_that_was_called_but_for_the_mount_of_anthropics() {
    let [stack, _] = stacks(&documents()).await;
    let client = stack.client().with_key("sk-one");
    for (path, sent) in [
        ("/v1/rerank", "/v1/rerank"),
        ("/v2/rerank", "/v2/rerank"),
        ("/rerank", "/rerank"),
        ("/score", "/score"),
        ("/v1/score", "/v1/score"),
        ("/v1/images/generations", "/v1/images/generations"),
        ("/v1/audio/speech", "/v1/audio/speech"),
        ("/tokenize", "/tokenize"),
        ("/detokenize?x=1", "/detokenize"),
        ("/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/anthropic/v1/messages/count_tokens?beta=true", "/v1/messages/count_tokens"),
    ] {
        stack.forget_requests();
        send(&client, Method::POST, path, JSON, json!({"model": "model/one"}).to_string()).await;
        let record = stack.models[0].requests().pop().unwrap_or_else(|| panic!("{path} did not arrive"));
        assert_eq!(record.path.split('?').next(), Some(sent));
        assert_eq!(record.body, r#"{"model":"inner"}"#);
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn what_a_route_names_passes_for_its_keys_and_nothing_that_resembles_it() {
    for stack in stacks(&documents()).await {
        let (one, two) = (stack.client().with_key("sk-one"), stack.client().with_key("sk-two"));
        // Any body, or none; to the first model of the route unless the body names one.
        send(&one, Method::GET, "/classify?a=b", "", "").await;
        send(&one, Method::PUT, "/classify", "application/octet-stream", b"\x00\xff{".to_vec()).await;
        send(&one, Method::POST, "/v1/custom/a/b", JSON, r#"{"model":"model/one", "x":1}"#).await;
        send(&one, Method::POST, "/v1/custom/a/b", JSON, r#"{"x": {"model":"two"}}"#).await;
        let records = stack.models[0].requests();
        let arrived: Vec<_> = records.iter().map(|r| (r.method.as_str(), r.path.as_str(), r.body_bytes)).collect();
        assert_eq!(
            arrived,
            [
                ("GET", "/classify?a=b", 0),
                ("PUT", "/classify", 3),
                ("POST", "/v1/custom/a/b", 24),
                ("POST", "/v1/custom/a/b", 22)
            ]
        );
        assert_eq!(records[2].body, r#"{"model":"inner", "x":1}"#);
        assert_eq!(stack.models[1].requests_total(), 0);
        // Of two routes that name a path, each key has its own.
        send(&two, Method::POST, "/v1/custom/a", JSON, "{}").await;
        send(&two, Method::GET, "/version", "", "").await;
        assert_eq!((served(&stack), stack.models[1].requests_total()), (6, 2));

        let unattached = is(401, INVALID, "key_not_attached");
        assert_eq!(error(&send(&two, Method::GET, "/classify", "", "").await), unattached);
        assert_eq!(error(&send(&one, Method::GET, "/version", "", "").await), unattached);
        let body = r#"{"model":"two"}"#;
        assert_eq!(error(&send(&one, Method::POST, "/v1/custom/a", JSON, body).await), unattached);
        assert_eq!(error(&send(&one, Method::POST, "/classify", JSON, body).await), unattached);
        let body = r#"{"model":"nobody"}"#;
        let unknown = is(404, INVALID, "model_not_found");
        assert_eq!(error(&send(&one, Method::POST, "/classify", JSON, body).await), unknown);
        let nobody = send(&stack.client(), Method::GET, "/classify", "", "").await;
        assert_eq!(error(&nobody), is(401, INVALID, "invalid_api_key"));
        let other_method = send(&one, Method::GET, "/v1/custom/a", "", "").await;
        assert_eq!((other_method.status, other_method.header("allow")), (405, Some("POST")));

        let mut connection = Connection::open(&stack.gateway.envoy).await;
        // Envoy reads `.` and `..` and undoes needless escapes before anybody looks at the path, and sends on what it read.
        for path in [
            "/classify/",
            "/classify%2f",
            "/v1/custom",
            "/v1/custom/",
            "/v1/custom/a%2fb",
            "/v1/custom/a;b",
            "/v1/custom/%2e%2e/chat",
            "/v1/custom/../classified",
        ] {
            connection.send(post(path, "authorization: Bearer sk-one\r\n", b"{}")).await;
            let answer = connection.read_answer().await;
            assert_eq!(error_in(answer.status, &answer.body), is(404, INVALID, "unknown_url"), "{path}");
        }
        assert_eq!(served(&stack), 6);
        residue::none(&stack).await;
    }
}

#[tokio::test]
async fn what_passes_through_counts_as_a_request_and_costs_no_tokens() {
    let of_limits = "{name: requests, per: [key], limit: 3, window: 300d, cost: requests}";
    let documents = documents() + &limits("one", of_limits);
    let [stack, _] = stacks(&documents).await;
    let client = stack.client().with_key("sk-one");
    for path in ["/classify", "/tokenize", "/v1/custom/a"] {
        let answer = send(&client, Method::POST, path, JSON, r#"{"model":"model/one"}"#).await;
        assert_ne!(answer.status, 429, "{path}");
    }
    assert_eq!(served(&stack), 3);
    for path in ["/classify", "/tokenize", "/v1/custom/a"] {
        let answer = send(&client, Method::POST, path, JSON, r#"{"model":"model/one"}"#).await;
        assert_eq!(answer.status, 429, "{path}: {}", answer.text());
    }
    assert_eq!(served(&stack), 3);
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_used_up_limit_refuses_what_can_cost_of_it_and_nothing_else() {
    let of_limits = "{name: output, per: [key], limit: 1, window: 300d, cost: output}, \
                     {name: total, per: [key], limit: 100, window: 300d}, \
                     {name: requests, per: [key], limit: 1000, window: 300d, cost: requests}";
    let documents = documents() + &limits("one", of_limits);
    for stack in stacks(&documents).await {
        let client = stack.client().with_key("sk-one");
        let json = json!({"model": "model/one", "input": "Hi", "prompt": "Hi", "messages": [], "tokens": [1],
                          "query": "Hi", "documents": ["x"], "text_1": "a", "text_2": "b"});
        let body = json.to_string();
        let status = async |path: &str| {
            let answer = match path {
                "/v1/audio/transcriptions" | "/v1/images/variations" => {
                    send(&client, Method::POST, path, FORM, form(&[("model", "model/one"), ("file", "x")])).await
                }
                _ => send(&client, Method::POST, path, JSON, body.clone()).await,
            };
            answer.status
        };
        let free = ["/tokenize", "/detokenize", "/v1/messages/count_tokens", "/classify", "/v1/custom/a"];
        let reading = ["/v1/embeddings", "/v1/rerank", "/score"];
        let writing = [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
            "/v1/images/generations",
            "/v1/images/variations",
            "/v1/audio/speech",
            "/v1/audio/transcriptions",
        ];
        // The output is used up, and of all tokens something is left.
        let answer = client.clone().with_header("x-sim-answer-tokens", "3").chat(&json).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        residue::none(&stack).await;
        for path in writing {
            assert_eq!(status(path).await, 429, "{path}");
        }
        for path in reading.iter().chain(&free) {
            assert_ne!(status(path).await, 429, "{path}");
        }
        // Now all of them are.
        let long = json!({"model": "model/one", "input": "word ".repeat(200)});
        assert_eq!(send(&client, Method::POST, "/v1/embeddings", JSON, long.to_string()).await.status, 200);
        residue::none(&stack).await;
        for path in writing.iter().chain(&reading) {
            assert_eq!(status(path).await, 429, "{path}");
        }
        for path in free {
            assert_ne!(status(path).await, 429, "{path}");
        }
        assert_eq!(client.get("/v1/models").await.unwrap().status, 200);
        residue::none(&stack).await;
    }
}

#[tokio::test]
async fn images_and_sound_are_charged_what_they_report_and_else_as_a_request() {
    let [stack, _] = stacks(&documents()).await;
    let client = stack.client().with_key("sk-one").with_header("x-sim-answer-tokens", "6");
    let mut charged = 0.0;
    let with = |fields: &str| {
        let json: serde_json::Value = serde_json::from_str(&format!("{{{fields}}}")).unwrap();
        json.to_string()
    };
    let forms = |fields: &[(&str, &str)]| {
        let form = form(&[&[("model", "model/one"), ("file", "sound")], fields].concat());
        form.replace("name=\"file\"", "name=\"file\"; filename=\"a.wav\"")
    };
    let (images, speech, transcripts) = ("/v1/images/generations", "/v1/audio/speech", "/v1/audio/transcriptions");
    let picture = |more: &str| with(&format!(r#""model":"model/one","prompt":"A cat and a dog"{more}"#));
    let spoken = |more: &str| with(&format!(r#""model":"model/one","input":"A cat and a dog"{more}"#));
    for (path, content_type, body, reports) in [
        (images, JSON, picture(""), true),
        (images, JSON, picture(r#","stream":true,"partial_images":2"#), true),
        (images, JSON, picture(r#","response_format":"url""#), false),
        (speech, JSON, spoken(""), false),
        (speech, JSON, spoken(r#","stream_format":"sse""#), true),
        (transcripts, FORM, forms(&[]), true),
        (transcripts, FORM, forms(&[("stream", "true")]), true),
        (transcripts, FORM, forms(&[("response_format", "verbose_json")]), false),
        (transcripts, FORM, forms(&[("response_format", "text")]), false),
    ] {
        let what = format!("{path} {body}");
        let answer = send(&client, Method::POST, path, content_type, body).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        residue::none(&stack).await;
        let record = stack.models[0].requests().pop().unwrap();
        let metrics = stack.sidecar_metrics().await.unwrap();
        let of = |kind| metrics.sum("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", kind)]);
        let all = of("input") + of("output");
        let used = (record.prompt_tokens + record.completion_tokens) as f64;
        let expected = if reports { used } else { 0.0 };
        assert!(used >= 6.0 && all - std::mem::replace(&mut charged, all) == expected, "{what}");
    }
}

#[tokio::test]
async fn one_model_is_described_for_the_keys_that_may_call_it() {
    for stack in stacks(&documents()).await {
        let client = stack.client().with_key("sk-one");
        for name in ["model/one", "model%2Fone", "model%2fone?x=y"] {
            let answer = client.get(&format!("/v1/models/{name}")).await.unwrap();
            assert_eq!((answer.status, &answer.json().unwrap()["id"]), (200, &json!("model/one")), "{name}");
        }
        let unattached = client.get("/v1/models/two").await.unwrap();
        assert_eq!(error(&unattached), is(401, INVALID, "key_not_attached"));
        for name in ["model", "model/one/x", "nobody"] {
            let answer = client.get(&format!("/v1/models/{name}")).await.unwrap();
            assert_eq!(error(&answer), is(404, INVALID, "model_not_found"), "{name}");
        }
        assert_eq!(stack.client().get("/v1/models/two").await.unwrap().status, 401);
        assert_eq!(served(&stack), 0);
    }
}

#[tokio::test]
async fn a_key_that_is_not_attached_is_forbidden_where_the_operator_wants_that() {
    let builder = || Stack::builder(documents()).models(2).environment("ATTACHE_UNATTACHED_STATUS", "403");
    for stack in [builder().start().await.unwrap(), builder().without_wasm().start().await.unwrap()] {
        let client = stack.client().with_key("sk-one");
        let forbidden = is(403, INVALID, "key_not_attached");
        let chat = json!({"model": "two", "messages": []});
        let answer = client.chat(&chat).await.unwrap();
        assert_eq!((error(&answer), answer.header("www-authenticate")), (forbidden.clone(), None));
        // Where headers say it, the same is said. The filter leaves that to the sidecar, whose documents may be newer.
        let before = asked(&stack).await;
        assert_eq!(error(&client.clone().with_header("x-ai-eg-model", "two").chat(&chat).await.unwrap()), forbidden);
        assert_eq!(error(&send(&client, Method::GET, "/version", "", "").await), forbidden);
        assert_eq!(asked(&stack).await - before, 2.0);
        let answer = send(&client, Method::POST, "/v1/messages", JSON, chat.to_string()).await;
        let body = answer.json().unwrap();
        assert_eq!(
            (answer.status, &body["type"], &body["error"]["type"]),
            (403, &json!("error"), &json!("permission_error"))
        );
        assert_eq!(stack.client().with_key("sk-x").chat(&chat).await.unwrap().status, 401);
        assert_eq!(served(&stack), 0);
    }
}

#[tokio::test]
async fn bodies_that_lie_about_themselves_are_refused_or_pass_as_they_are() {
    let [stack, _] = stacks(&documents()).await;
    let client = stack.client().with_key("sk-one");
    let chat = "/v1/chat/completions";
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"model":"model/one","messages":[{{"role":"user","content":"Hi"}}],"x":{open}{close}}}"#)
    };
    let sound = r#"{"model":"model/one","messages":[{"role":"user","content":"Hi"}]}"#;
    let refused: [Vec<u8>; 8] = [
        nested(128).into(),
        sound.repeat(2).into(),
        sound[..sound.len() - 1].into(),
        sound.replace("one", "one\u{0}").into(),
        [b"\xef\xbb\xbf", sound.as_bytes()].concat(),
        sound.replace("Hi", "\\ud8").into(),
        [sound.as_bytes(), b"\0"].concat(),
        br#"{"model":"model/one","mod\u0065l":"model/one"}"#.to_vec(),
    ];
    for body in &refused {
        let answer = send(&client, Method::POST, chat, JSON, body.clone()).await;
        assert_eq!(error(&answer), is(400, INVALID, None), "{}", String::from_utf8_lossy(body));
    }
    counted(&stack, "invalid_request", refused.len()).await;
    assert_eq!(served(&stack), 0);

    // 128 levels, a lone surrogate, a number of megabytes and a content-type that is not JSON's are the server's to judge.
    let digits = "9".repeat(10 << 20);
    let passing = [
        (nested(127), JSON),
        (sound.replace("Hi", "\\ud800"), JSON),
        (sound.replace("}]}", &format!("}}],\"seed\":{digits}}}")), JSON),
        (sound.to_owned(), "text/plain"),
        (sound.to_owned(), "application/x-www-form-urlencoded"),
    ];
    for (body, content_type) in &passing {
        stack.forget_requests();
        send(&client, Method::POST, chat, content_type, body.clone()).await;
        let record = stack.models[0].requests().pop().unwrap();
        assert_eq!(record.body_bytes, body.len() - "model/one".len() + "inner".len());
        assert_eq!(record.headers["content-type"], *content_type);
    }

    // More than was declared belongs to the next request; less is waited for, and then forgotten.
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    let whole = post(chat, "authorization: Bearer sk-one\r\n", sound.as_bytes());
    connection.send(&whole).await;
    assert_eq!(connection.read_answer().await.status, 200);
    // Not before that: Envoy may close at once on what is no request, with an answer under way.
    connection.send(b"more\r\n\r\n").await;
    assert_eq!(connection.read_answer().await.status, 400);
    let before = stack.models[0].requests_total();
    let mut connection = Connection::open(&stack.gateway.envoy).await;
    connection.send(&whole[..whole.len() - 1]).await;
    until("the sidecar had seen it", async || {
        stack.sidecar_metrics().await.unwrap().sum("attache_in_flight", &[]) == 1.0
    })
    .await
    .unwrap();
    drop(connection);
    counted(&stack, "cancelled", 1).await;
    assert_eq!(stack.models[0].requests_total(), before);
    residue::none(&stack).await;
}
