//! Keys, mutations and schemas: what is taken, what is refused, and what is never shown.

use super::*;
use crate::config::upstream::{AnswerBound, ApiKey, Credentials, KeyScheme};

const KEY: &str = "sk-seen-by-nobody";

fn policy(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: BackendSecurityPolicy\nmetadata: {{name: {name}}}\n\
         spec: {{{spec}}}\n---\n"
    )
}

/// A policy that gives the backend the key of the Secret `key`.
fn policy_on(backend: &str) -> String {
    let spec = format!(
        "targetRefs: [{{group: aigateway.envoyproxy.io, kind: AIServiceBackend, name: {backend}}}], type: APIKey, \
         apiKey: {{secretRef: {{name: key}}}}"
    );
    policy(&format!("{backend}-key"), &spec)
}

fn secret(name: &str, data: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\ntype: Opaque\n{data}\n---\n")
}

fn with_key(name: &str, key: &str) -> String {
    secret(name, &format!("stringData: {{apiKey: {key}}}"))
}

/// As the sidecar compiles: every key is wanted.
fn compiled(text: &str, previous: Option<&Resources>) -> Outcome {
    let documents = Documents::from_text("test.yaml", text).with_secrets(None);
    compile(documents, Settings::default(), 1, previous).unwrap()
}

/// The header and its value for each backend, or what stands in its place.
fn keys(outcome: &Outcome) -> Vec<String> {
    let key = |credentials: &Credentials| match credentials {
        Credentials::NotNeeded => "none".to_owned(),
        Credentials::Unknown => "unknown".to_owned(),
        Credentials::Known(credential) => {
            let (name, value) = credential.header();
            format!("{name}: {value}")
        }
    };
    outcome.config.backends.iter().map(|backend| key(&backend.credentials)).collect()
}

fn backend_with(name: &str, fields: &str) -> String {
    backend(name, 1).replace("schema: {name: OpenAI}", fields)
}

#[test]
fn each_type_of_key_goes_in_a_header_of_its_own() {
    let of_type = |backend: &str, type_and_field: &str| {
        policy(backend, &format!("targetRefs: [{{kind: AIServiceBackend, name: {backend}}}], {type_and_field}"))
    };
    let text = backend("a", 1) + &backend("b", 2) + &backend("c", 3) + &backend("d", 4)
        + &of_type("a", "type: APIKey, apiKey: {secretRef: {name: plain}}")
        + &of_type("b", "type: AnthropicAPIKey, anthropicAPIKey: {secretRef: {name: encoded, kind: Secret, group: ''}}")
        + &of_type("c", "type: AzureAPIKey, azureAPIKey: {secretRef: {name: plain, namespace: other}}")
        + &with_key("plain", "one")
        // `two` and a line break.
        + &secret("encoded", "data: {apiKey: dHdvCg==}")
        + &with_key("plain", "three").replace("{name: plain}", "{name: plain, namespace: other}")
        + "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: other}\n"
        + "spec: {from: [{group: aigateway.envoyproxy.io, kind: BackendSecurityPolicy, namespace: default}], "
        + "to: [{group: '', kind: Secret}]}\n---\n";
    let outcome = compiled(&text, None);
    assert_eq!(errors(&outcome), [""; 0]);
    assert_eq!(keys(&outcome), ["authorization: Bearer one", "x-api-key: two", "api-key: three", "none"]);
}

#[test]
fn a_backend_may_name_its_policy_as_it_used_to() {
    let of_policy = policy("p", "type: APIKey, apiKey: {secretRef: {name: key}}");
    let text =
        backend_with("a", "schema: {name: OpenAI}, backendSecurityPolicyRef: {name: p, kind: BackendSecurityPolicy}");
    let outcome = compiled(&(text.clone() + &of_policy + &with_key("key", "one")), None);
    assert_eq!((errors(&outcome), keys(&outcome)), (vec![], vec!["authorization: Bearer one".to_owned()]));
    // A mistake in a reload leaves it as it was, one at the start leaves it closed.
    let mistaken = text.replace("{name: p,", "{name: q,") + &of_policy + &with_key("key", "two");
    let later = compiled(&mistaken, Some(&outcome.resources));
    assert_eq!(errors(&later), ["there is no BackendSecurityPolicy default/q"]);
    assert_eq!(keys(&later), ["authorization: Bearer two"]);
    assert_eq!(keys(&compiled(&mistaken, None)), ["unknown"]);
}

#[test]
fn a_backend_whose_key_is_missing_is_closed_at_the_start_and_keeps_its_key_later() {
    let text = backend("a", 1) + &backend("b", 2) + &route("r", "m", "a") + &policy_on("a");
    let outcome = compiled(&text, None);
    assert_eq!(errors(&outcome), ["there is no Secret default/key"]);
    assert_eq!(keys(&outcome), ["unknown", "none"]);
    let told = outcome.diagnostics.iter().any(|finding| {
        finding.message
            == "requests to the backend default/a get 503: the key that the BackendSecurityPolicy default/a-key asks for is not known"
    });
    assert!(told, "{:?}", outcome.diagnostics);

    let with = compiled(&(text.clone() + &with_key("key", "one")), Some(&outcome.resources));
    assert_eq!(keys(&with), ["authorization: Bearer one", "none"]);
    for broken in [
        text.clone(),
        text.clone() + &with_key("key", "''"),
        text.clone() + &secret("key", "stringData: {token: x}"),
        text.clone() + &secret("key", "data: {apiKey: one}"),
        text.clone() + &with_key("key", "one") + &with_key("key", "two"),
    ] {
        let without = compiled(&broken, Some(&with.resources));
        assert_eq!((errors(&without).len(), keys(&without)), (1, keys(&with)), "{broken}");
        let again = compiled(&broken, Some(&without.resources));
        assert_eq!(keys(&again), keys(&with));
    }
    // Who needs no keys, as who renders does not, is not told of those that are elsewhere.
    assert_eq!(errors(&compile_text(&text, None)), [""; 0]);
}

#[test]
fn credentials_that_are_not_supported_close_their_backends() {
    let text = backend("a", 1) + &backend("b", 2);
    let aws = policy(
        "aws",
        "targetRefs: [{kind: AIServiceBackend, name: a}], type: AWSCredentials, awsCredentials: {region: eu-west-1}",
    );
    let outcome = compiled(&(text.clone() + &aws), None);
    let told = |message: &str| outcome.diagnostics.iter().any(|finding| finding.message.contains(message));
    assert_eq!(errors(&outcome), [""; 0]);
    assert!(told("credentials of the type `AWSCredentials` are not supported: its backends get no requests"));
    assert!(told("requests to the backend default/a get 503"));
    assert_eq!(keys(&outcome), ["unknown", "none"]);
    // What was in force is not: the operator wants something else now.
    let keyed = compiled(&(text.clone() + &policy_on("a").replace("a-key", "aws") + &with_key("key", "one")), None);
    assert_eq!(keys(&keyed), ["authorization: Bearer one", "none"]);
    assert_eq!(keys(&compiled(&(text.clone() + &aws), Some(&keyed.resources))), ["unknown", "none"]);
    // The older form, by which backends name their policies.
    let older =
        backend_with("a", "schema: {name: OpenAI}, backendSecurityPolicyRef: {name: aws, kind: BackendSecurityPolicy}")
            + &backend("b", 2);
    let aws = policy("aws", "type: AWSCredentials, awsCredentials: {region: eu-west-1}");
    assert_eq!(keys(&compiled(&(older + &aws), None)), ["unknown", "none"]);
    // Where nobody can tell what it is about, whatever is new in its namespace is closed.
    let pool = policy("pool", "targetRefs: [{kind: Service, name: a}], type: APIKey, apiKey: {secretRef: {name: k}}");
    assert_eq!(keys(&compiled(&(text.clone() + &pool), None)), ["unknown", "unknown"]);
    let before = compiled(&text, None);
    let later = compiled(&(text.clone() + &backend("c", 3) + &pool), Some(&before.resources));
    assert_eq!(keys(&later), ["none", "none", "unknown"]);
    let again = compiled(&(text.clone() + &backend("c", 3) + &pool), Some(&later.resources));
    assert_eq!(keys(&again), ["none", "none", "unknown"]);
    // A name that nobody has may be that of any of them.
    let mistaken = text.clone() + &policy_on("aa") + &with_key("key", "one");
    assert_eq!(keys(&compiled(&mistaken, None)), ["unknown", "unknown"]);
    let misnamed = text + &policy_on("a").replace("BackendSecurityPolicy", "BackendSecurityPolcy");
    assert_eq!(keys(&compiled(&misnamed, None)), ["unknown", "unknown"]);
}

#[test]
fn a_backend_has_one_policy() {
    let text = backend("a", 1) + &policy_on("a") + &policy_on("a").replace("a-key", "second") + &with_key("key", "one");
    let outcome = compiled(&text, None);
    let message = "the AIServiceBackend default/a has its key from the BackendSecurityPolicy default/a-key already";
    assert_eq!((errors(&outcome), keys(&outcome)), (vec![message], vec!["authorization: Bearer one".to_owned()]));
}

#[test]
fn a_key_is_taken_from_a_file_where_no_document_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("default/key/apiKey");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "from-file\n").unwrap();
    let load = |text: &str| Documents::from_text("test.yaml", text).with_secrets(Some(directory.path()));
    let compiled = |text: &str| compile(load(text), Settings::default(), 1, None).unwrap();
    let text = backend("a", 1) + &policy_on("a");
    assert_eq!(keys(&compiled(&text)), ["authorization: Bearer from-file"]);
    assert_eq!(keys(&compiled(&(text.clone() + &with_key("key", "document")))), ["authorization: Bearer document"]);
    let before = load(&text).fingerprint();
    std::fs::write(&file, "another").unwrap();
    assert_ne!(load(&text).fingerprint(), before);
    std::fs::write(&file, "two words").unwrap();
    let expected = "the Secret default/key cannot be used: its `apiKey` is no key: it has a character that cannot stand in a \
                    header, or a space within";
    assert_eq!(errors(&compiled(&text)), [expected]);
}

#[test]
fn no_report_has_a_key_in_it_whatever_is_wrong_beside_it() {
    let flow =
        format!("{{apiVersion: v1, kind: Secret, metadata: {{name: key}}, stringData: {{apiKey: {KEY}}}}}\n---\n");
    let encoded = "c2stc2Vlbi1ieS1ub2JvZHk=";
    let sound = backend("a", 1) + &policy_on("a");
    for text in [
        sound.clone() + &flow,
        sound.clone() + &flow.replace("apiKey:", "apiKey: x, apiKey:"),
        sound.clone() + &flow.replace("}}\n", ", \"unclosed\n"),
        sound.clone() + &flow.replace(KEY, &format!("\"{KEY} and more\"")),
        sound.clone() + &flow.replace("stringData: {apiKey:", "data: {apiKey:"),
        sound.clone() + &flow.replace("stringData: {apiKey: ", "stringData: [").replace("}}\n", "]}\n"),
        sound.clone() + &flow.replace("kind: Secret", "\"kind\" : 'Secret'").replace("v1,", "v1/x,"),
        sound.clone() + &secret("key", &format!("data: {{apiKey: {encoded}}}")) + "kind: Oops\n",
        sound.clone() + "kind: Oops\n---\n" + &with_key("key", KEY).replace("type: Opaque\n", ""),
    ] {
        for style in [Style::Plain, Style::Graphical] {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("a.yaml");
            std::fs::write(&file, &text).unwrap();
            let mut out = Vec::new();
            check(&[file], Settings::default(), style, &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            assert!(!out.contains("by-nobody") && !out.contains("c2st"), "{text}\n{out}");
        }
        let documents = Documents::from_text("test.yaml", &text).with_secrets(None);
        let shown = format!("{documents:?}");
        let outcome = compile(documents, Settings::default(), 1, None).unwrap();
        let shown = format!("{shown} {outcome:?}");
        assert!(!shown.contains("by-nobody") && !shown.contains("c2st"), "{shown}");
    }
}

#[test]
fn a_routes_mutation_overrules_its_backends() {
    let fields = "schema: {name: OpenAI}, bodyMutation: {set: [{path: a, value: '1'}, {path: b, value: text}]}";
    let text =
        backend_with("a", fields) + &route("r", "m", "a, bodyMutation: {set: [{path: a, value: '[2]'}], remove: [c]}");
    let outcome = compiled(&text, None);
    assert_eq!(errors(&outcome), [""; 0]);
    let mutation = &outcome.config.routes[0].rules[0].targets[0].mutation;
    let body = br#"{"model":"m","a":0,"c":1}"#;
    let splice = attache_proto::splice::Splice::new(mutation.body.edits(body).unwrap(), body.len()).unwrap();
    assert_eq!(splice.apply(&bytes::Bytes::from_static(body)), r#"{"model":"m","a":[2],"b":"text"}"#);
}

#[test]
fn a_backend_says_by_which_field_its_answers_are_bounded() {
    for (annotations, expected) in [
        ("", AnswerBound::Fitting),
        ("attache.dev/answer-bound: max_tokens", AnswerBound::MaxTokens),
        ("attache.dev/answer-bound: max_completion_tokens", AnswerBound::MaxCompletionTokens),
        ("attache.dev/answer-bound: none", AnswerBound::None),
        ("other.dev/answer-bound: none", AnswerBound::Fitting),
    ] {
        let named = "kind: AIServiceBackend\nmetadata: {name: a";
        let text = backend("a", 1) + &route("r", "m", "a");
        assert!(text.contains(named), "{text}");
        let outcome = compiled(&text.replace(named, &format!("{named}, annotations: {{{annotations}}}")), None);
        assert_eq!(errors(&outcome), [""; 0], "{annotations}");
        assert_eq!(outcome.config.backends[0].answer_bound, expected, "{annotations}");
    }
}

#[test]
fn a_key_that_is_asked_for_by_itself_is_shown_as_nothing() {
    let key = ApiKey::parse(KEY.as_bytes()).unwrap();
    assert_eq!(format!("{key:?} {:?}", KeyScheme::Bearer), "ApiKey(..) Bearer");
}
