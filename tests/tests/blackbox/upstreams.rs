//! What a model server is sent that is not the client's: its key, headers, fields of the body, and the path.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use attache_model_server::Record;
use attache_tests::{Answer, Client, Directory, Envoy, Stack, StackBuilder, tools, until};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    documents::{key, limits, route},
    profiles::AS_ENVOY_GATEWAY,
    residue,
    second_envoy::envoy_with,
    verdict::{error, is, served},
};

/// The backend `pool` of all model servers, with these fields in its `spec`.
fn pool(fields: &str) -> String {
    crate::documents::pool().replace("schema: {name: OpenAI}", fields)
}

fn policy(kind: &str, field: &str) -> String {
    format!(
        "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: BackendSecurityPolicy\nmetadata: {{name: pool}}\n\
         spec: {{targetRefs: [{{group: aigateway.envoyproxy.io, kind: AIServiceBackend, name: pool}}], type: {kind}, \
         {field}: {{secretRef: {{name: upstream}}}}}}\n---\n"
    )
}

fn secret(key: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: upstream}}\nstringData: {{apiKey: {key}}}\n---\n")
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
}

/// The gateway as it is rendered, and as Envoy Gateway would have it.
async fn both(stack: &Stack) -> (Envoy, [Client; 2]) {
    let other = envoy_with(stack, &AS_ENVOY_GATEWAY).await;
    let clients = [stack.client(), other.client().unwrap()];
    (other, clients)
}

fn last(stack: &Stack) -> Record {
    stack.models[0].requests().pop().unwrap()
}

fn seen<'a>(headers: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    headers.get(name).map(String::as_str)
}

#[tokio::test]
async fn headers_and_fields_are_as_the_operator_wants_them_in_both_profiles() {
    let backend = "schema: {name: OpenAI}, headerMutation: {set: [{name: X-Team, value: backend}, {name: x-org, value: o}]}, \
                   bodyMutation: {set: [{path: temperature, value: '0'}, {path: seed, value: '7'}]}";
    let of_route = "{name: pool, headerMutation: {set: [{name: x-team, value: route}], remove: [X-Secret, x-org]}, \
                    bodyMutation: {set: [{path: temperature, value: '0.5'}, {path: tier, value: scale}], remove: [user]}}";
    let stack = Stack::builder(pool(backend) + &route("r", "m", of_route)).models(1).without_wasm();
    let stack = stack.start().await.unwrap();
    let (_other, clients) = both(&stack).await;
    for client in clients {
        let client = client.with_header("x-secret", "1").with_header("x-org", "mine").with_header("x-kept", "yes");
        // Two of one name, one of them in disguise, and a body of many chunks.
        let long = "x".repeat(300_000);
        let body = format!(
            r#"{{ "user": "u", "model": "m", "us\u0065r": "v", "messages": [{{"role": "user", "content": "{long}"}}], "max_tokens": 5 }}"#
        );
        let post = client.request(Method::POST, "/v1/chat/completions").header("content-type", "application/json");
        let answer = Answer::to(post.body(body.clone())).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let Record { headers, body_bytes, body: received, .. } = last(&stack);
        let names = ["x-team", "x-org", "x-secret", "x-kept"];
        assert_eq!(names.map(|name| seen(&headers, name)), [Some("route"), None, None, Some("yes")]);
        let added = r#","seed":7,"temperature":0.5,"tier":"scale""#;
        let removed = r#""user": "u", "us\u0065r": "v", "#;
        assert_eq!(body_bytes, body.len() - removed.len() + added.len());
        assert!(received.starts_with(r#"{ "model": "m", "messages": "#), "{}", received.get(..100).unwrap());
        // The record has the beginning of a long body: a short one shows the end.
        let body = r#"{"model":"m","messages":[],"temperature" : 1,"max_tokens":5}"#;
        let post = client.request(Method::POST, "/v1/chat/completions").header("content-type", "application/json");
        Answer::to(post.body(body)).await.unwrap();
        let expected = r#"{"model":"m","messages":[],"temperature" : 0.5,"max_tokens":5,"seed":7,"tier":"scale"}"#;
        assert_eq!(last(&stack).body, expected);
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn an_answer_is_bounded_and_charged_by_what_the_operator_sets() {
    let mutation = "{name: pool, bodyMutation: {set: [{path: max_tokens, value: '200'}]}}";
    let limit = "{name: n, per: [key], limit: 100, window: 300d, mode: strict, cap: true}";
    let documents =
        [crate::documents::pool(), route("r", "m", mutation), key("a", "acme", "r"), limits("r", limit)].concat();
    let stack = Stack::builder(documents).models(1).without_wasm().start().await.unwrap();
    let answer = stack.client().with_key("sk-a").chat(&chat()).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let used = answer.json().unwrap()["usage"]["total_tokens"].as_u64().unwrap();
    let sent: Value = serde_json::from_str(&last(&stack).body).unwrap();
    let asked = sent["max_tokens"].as_u64().unwrap();
    assert!(
        asked > 5 && asked < 100,
        "the client asked for 5, the operator for 200, and there is room for 100: {asked}"
    );
    assert!(used <= 100, "{used}");
    residue::none(&stack).await;
    let next = stack.client().with_key("sk-a").chat(&chat()).await.unwrap();
    assert_eq!(next.status, 429, "{}", next.text());
}

#[tokio::test]
async fn the_key_to_a_server_takes_the_place_of_the_clients_in_both_profiles() {
    for (kind, field, header, value) in [
        ("APIKey", "apiKey", "authorization", "Bearer sk-upstream"),
        ("AnthropicAPIKey", "anthropicAPIKey", "x-api-key", "sk-upstream"),
        ("AzureAPIKey", "azureAPIKey", "api-key", "sk-upstream"),
    ] {
        for keys in [String::new(), key("a", "acme", "r")] {
            let documents = [
                crate::documents::pool(),
                route("r", "m", "{name: pool}"),
                policy(kind, field),
                secret("sk-upstream"),
                keys,
            ];
            let stack = Stack::builder(documents.concat()).models(1).without_wasm().start().await.unwrap();
            let (_other, clients) = both(&stack).await;
            for client in clients {
                for credential in ["authorization", "x-api-key", "api-key"] {
                    let own = if credential == "authorization" { "Bearer sk-a" } else { "sk-a" };
                    let answer = client.clone().with_header(credential, own).chat(&chat()).await.unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    let Record { headers, .. } = last(&stack);
                    for name in ["authorization", "x-api-key", "api-key"] {
                        let expected = (name == header).then_some(value);
                        assert_eq!(seen(&headers, name), expected, "{kind}: {name} for a client's {credential}");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_server_is_asked_under_its_own_prefix_and_ours_is_taken_off_in_both_profiles() {
    for (path_prefix, schema, called, received) in [
        (
            "",
            "{name: OpenAI, prefix: /v1beta/openai}",
            "/v1/chat/completions?a=b",
            "/v1beta/openai/chat/completions?a=b",
        ),
        ("/gw", "{name: OpenAI, prefix: v1beta/openai}", "/gw/v1/chat/completions", "/v1beta/openai/chat/completions"),
        ("/gw", "{name: OpenAI, version: v2}", "/gw/v1/completions", "/v2/completions"),
        ("/gw", "{name: OpenAI, prefix: /}", "/gw/v1/embeddings", "/embeddings"),
        (
            "/gw",
            "{name: Anthropic, prefix: /claude}",
            "/gw/anthropic/v1/messages?beta=true",
            "/claude/messages?beta=true",
        ),
        ("/gw", "{name: OpenAI}", "/gw/v1/chat/completions", "/v1/chat/completions"),
    ] {
        let documents = pool(&format!("schema: {schema}")) + &route("r", "m", "{name: pool}");
        let stack = Stack::builder(documents).models(1).without_wasm().environment("ATTACHE_PATH_PREFIX", path_prefix);
        let stack = stack.start().await.unwrap();
        let (_other, clients) = both(&stack).await;
        for client in clients {
            Answer::to(client.post(called, &json!({"model": "m", "input": "x", "prompt": "x", "messages": []})))
                .await
                .unwrap();
            assert_eq!(last(&stack).path, received, "{schema}");
        }
    }
}

#[tokio::test]
async fn of_two_apis_each_gets_the_requests_that_it_serves() {
    let backend = |name: &str, index: usize, schema: &str| {
        crate::documents::replica(name, index).replace("name: OpenAI", &format!("name: {schema}"))
    };
    let documents = backend("openai", 0, "OpenAI")
        + &backend("claude", 1, "Anthropic")
        + &route("both", "m", "{name: claude}, {name: openai, priority: 1}")
        + &route("one", "n", "{name: claude}");
    let stack = Stack::builder(documents).models(2).without_wasm().start().await.unwrap();
    let post = async |path: &str, model: &str| {
        let body = json!({"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
        Answer::to(stack.client().post(path, &body)).await.unwrap()
    };
    assert_eq!(post("/v1/chat/completions", "m").await.status, 200);
    post("/v1/messages", "m").await;
    assert_eq!((stack.models[0].requests_total(), stack.models[1].requests_total()), (1, 1));
    let answer = post("/v1/chat/completions", "n").await;
    assert_eq!(answer.status, 404, "{}", answer.text());
    assert_eq!(stack.models[1].requests_total(), 1);
}

/// A directory of Secrets as Kubernetes mounts them.
struct Mounted {
    directory: PathBuf,
}

impl Mounted {
    fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// As the kubelet does it for a volume of one Secret: `..data` is a link to a directory that has the time for a name.
    fn swap(&self, version: &str, key: &str) {
        let volume = self.directory.join("default/upstream");
        let data = volume.join(format!("..{version}"));
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("apiKey"), format!("{key}\n")).unwrap();
        symlink(format!("..{version}"), volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        if !volume.join("apiKey").exists() {
            symlink("..data/apiKey", volume.join("apiKey")).unwrap();
        }
    }

    /// The same for a projected volume of all Secrets.
    fn swap_all(&self, version: &str, key: &str) {
        let data = self.directory.join(format!("..{version}"));
        fs::create_dir_all(data.join("default/upstream")).unwrap();
        fs::write(data.join("default/upstream/apiKey"), key).unwrap();
        let before = fs::read_link(self.directory.join("..data")).ok();
        symlink(format!("..{version}"), self.directory.join("..data_tmp")).unwrap();
        fs::rename(self.directory.join("..data_tmp"), self.directory.join("..data")).unwrap();
        if !self.directory.join("default").exists() {
            symlink("..data/default", self.directory.join("default")).unwrap();
        }
        // The kubelet takes the old one away.
        if let Some(before) = before {
            fs::remove_dir_all(self.directory.join(before)).unwrap();
        }
    }
}

fn with_secrets(mounted: &Mounted) -> StackBuilder {
    let documents = crate::documents::pool() + &route("r", "m", "{name: pool}") + &policy("APIKey", "apiKey");
    let directory = mounted.directory.to_str().unwrap();
    Stack::builder(documents).models(1).without_wasm().arguments(&["--secrets-dir", directory])
}

async fn key_is(stack: &Stack, key: &str) {
    let expected = format!("Bearer {key}");
    until("the new key was sent", async || {
        let answer = stack.client().chat(&chat()).await.unwrap();
        answer.status == 200 && seen(&last(stack).headers, "authorization") == Some(&expected)
    })
    .await
    .unwrap();
}

/// A header by which a test knows its own requests.
const MARK: &str = "x-mark";

#[tokio::test]
async fn a_new_key_is_sent_without_a_restart_and_without_a_failed_request() {
    for swap in [Mounted::swap, Mounted::swap_all] {
        let here = Directory::temporary().unwrap();
        let mounted = Mounted::new(here.path());
        swap(&mounted, "2026_01", "sk-first");
        let stack = with_secrets(&mounted).start().await.unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let asking = tokio::spawn({
            let (client, over) = (stack.client().with_header(MARK, "rotation"), Arc::clone(&over));
            async move {
                let mut statuses = BTreeMap::new();
                while !over.load(Ordering::Relaxed) {
                    *statuses.entry(client.chat(&chat()).await.unwrap().status).or_insert(0) += 1;
                }
                statuses
            }
        });
        key_is(&stack, "sk-first").await;
        for (version, key) in [("2026_02", "sk-second"), ("2026_03", "sk-third"), ("2026_04", "sk-fourth")] {
            swap(&mounted, version, key);
            key_is(&stack, key).await;
        }
        over.store(true, Ordering::Relaxed);
        let statuses = asking.await.unwrap();
        assert!(statuses.keys().eq(&[200]), "{statuses:?}");
        // Another test's Envoy may still ask for a server that had this port before.
        let requests = stack.models[0].requests();
        let ours: Vec<_> = requests.iter().filter(|request| request.headers.contains_key(MARK)).collect();
        assert_eq!(ours.len(), statuses.values().sum::<usize>());
        let without: Vec<_> = ours.iter().filter(|request| !request.headers.contains_key("authorization")).collect();
        assert!(without.is_empty(), "{} of {} went without a key: {without:?}", without.len(), ours.len());
    }
}

#[tokio::test]
async fn a_key_that_goes_stays_in_force_and_one_that_was_never_there_closes_the_backend() {
    let here = Directory::temporary().unwrap();
    let mounted = Mounted::new(here.path());
    let stack = with_secrets(&mounted).start().await.unwrap();
    let refused = stack.client().chat(&chat()).await.unwrap();
    assert_eq!(error(&refused), is(503, "server_error", None), "{}", refused.text());
    let log = stack.gateway.sidecar.log();
    assert!(
        log.contains("there is no Secret default/upstream")
            && log.contains("requests to the backend default/pool get 503"),
        "{log}"
    );
    assert_eq!(served(&stack), 0);
    // It comes into a directory that was not there.
    mounted.swap("2026_01", "sk-first");
    until("the key was seen", async || stack.client().chat(&chat()).await.unwrap().status == 200).await.unwrap();
    key_is(&stack, "sk-first").await;
    let errors = async || stack.sidecar_metrics().await.unwrap().sum("attache_config_objects_in_error", &[]);
    assert_eq!(errors().await, 0.0);
    mounted.swap("2026_02", "");
    until("the empty file was seen", async || errors().await == 1.0).await.unwrap();
    key_is(&stack, "sk-first").await;
    fs::remove_dir_all(mounted.directory.join("default")).unwrap();
    until("it was seen to go", async || stack.gateway.sidecar.log().contains("stays in force")).await.unwrap();
    key_is(&stack, "sk-first").await;
    // Another directory in the place of all of them.
    for (version, key) in [("2026_03", "sk-third"), ("2026_04", "sk-fourth")] {
        fs::remove_dir_all(&mounted.directory).unwrap();
        fs::create_dir(&mounted.directory).unwrap();
        mounted.swap(version, key);
        key_is(&stack, key).await;
    }
}

#[tokio::test]
async fn a_key_is_in_no_log_and_on_no_page() {
    const KEY: &str = "sk-seen-by-nobody";
    let mutation = format!("{{name: pool, headerMutation: {{set: [{{name: x-token, value: {KEY}}}]}}}}");
    let documents = |further: &str| {
        [
            crate::documents::pool(),
            route("r", "m", &mutation),
            policy("APIKey", "apiKey"),
            secret(KEY),
            further.to_owned(),
        ]
        .concat()
    };
    let builder = Stack::builder(documents("")).models(1).environment("RUST_LOG", "trace");
    let stack = builder.start().await.unwrap();
    assert_eq!(stack.client().chat(&chat()).await.unwrap().status, 200);
    assert_eq!(seen(&last(&stack).headers, "authorization"), Some(format!("Bearer {KEY}").as_str()));
    // One with errors, beside the key and of the policy itself.
    stack
        .reconfigure(&documents("{kind: Oops, apiVersion: v1}\n---\n{").replace("type: APIKey", "type: Oops"))
        .await
        .unwrap();
    assert_eq!(stack.client().chat(&chat()).await.unwrap().status, 200);
    for page in ["/config", "/metrics", "/limits", "/affinity"] {
        let page = stack.gateway.sidecar.page(page).await.unwrap();
        assert!(!page.contains(KEY), "{page}");
    }
    assert!(stack.gateway.sidecar.page("/config").await.unwrap().contains("x-token"));
    let log = stack.gateway.sidecar.log();
    assert!(log.contains("Oops") && !log.contains(KEY), "{}", lines_with(&log, KEY));
    let bootstrap = fs::read_to_string(stack.directory().join("envoy-0.yaml")).unwrap();
    assert!(!bootstrap.contains(KEY));
}

fn lines_with(text: &str, what: &str) -> String {
    text.lines().filter(|line| line.contains(what)).take(3).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_check_wants_the_keys_that_run_would_have() {
    let here = Directory::temporary().unwrap();
    let file = here.path().join("attache.yaml");
    let documents = crate::documents::pool() + &route("r", "m", "{name: pool}") + &policy("APIKey", "apiKey");
    fs::write(&file, documents.replace("${MODELS}", "[{ip: {address: 127.0.0.1, port: 1}}]")).unwrap();
    let secrets = here.path().join("secrets");
    fs::create_dir(&secrets).unwrap();
    let check = || {
        let mut check = tools::attache().unwrap();
        let output = check.arg("check").arg(&file).arg("--secrets-dir").arg(&secrets).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (sound, report) = check();
    assert!(!sound && report.contains("error: there is no Secret default/upstream"), "{report}");
    Mounted::new(&secrets).swap("2026_01", "sk-first");
    let (sound, report) = check();
    assert!(sound, "{report}");
}
