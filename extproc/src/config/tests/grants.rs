//! References over namespaces: followed where the other namespace allows them, and nowhere else.

use super::*;
use crate::config::upstream::Credentials;

const ROUTE_TO_BACKEND: (&str, &str) =
    ("group: aigateway.envoyproxy.io, kind: AIGatewayRoute", "group: aigateway.envoyproxy.io, kind: AIServiceBackend");
const BACKEND_TO_ENDPOINTS: (&str, &str) =
    ("group: aigateway.envoyproxy.io, kind: AIServiceBackend", "group: gateway.envoyproxy.io, kind: Backend");
const POLICY_TO_SECRET: (&str, &str) =
    ("group: aigateway.envoyproxy.io, kind: BackendSecurityPolicy", "group: '', kind: Secret");

fn grant((from, to): (&str, &str), from_namespace: &str, to_namespace: &str, name: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {{name: g, namespace: {to_namespace}}}\n\
         spec: {{from: [{{{from}, namespace: {from_namespace}}}], to: [{{{to}{name}}}]}}\n---\n"
    )
}

fn compiled(text: &str, previous: Option<&Resources>) -> Outcome {
    let documents = Documents::from_text("test.yaml", text).with_secrets(None);
    compile(documents, Settings::default(), 1, previous).unwrap()
}

/// A backend in the namespace `b`.
fn backend_in_b() -> String {
    backend("x", 1).replace("{name: x}", "{name: x, namespace: b}")
}

/// A route in the namespace `a` to it.
fn route_in_a() -> String {
    route("r", "m", "x, namespace: b").replace("{name: r}", "{name: r, namespace: a}")
}

#[test]
fn a_route_reaches_a_backend_of_another_namespace_by_a_grant_alone() {
    let text = backend_in_b() + &route_in_a();
    let allowed = compiled(&(text.clone() + &grant(ROUTE_TO_BACKEND, "a", "b", "")), None);
    assert_eq!((errors(&allowed), models(&allowed.config)), (vec![], vec!["m"]));
    let named = compiled(&(text.clone() + &grant(ROUTE_TO_BACKEND, "a", "b", ", name: x")), None);
    assert_eq!((errors(&named), models(&named.config)), (vec![], vec!["m"]));
    let refusal = "the AIGatewayRoute a/r refers to the AIServiceBackend b/x in another namespace, and no ReferenceGrant \
                   there allows it";
    for other in [
        String::new(),
        grant(ROUTE_TO_BACKEND, "a", "b", ", name: y"),
        grant(ROUTE_TO_BACKEND, "c", "b", ""),
        grant(ROUTE_TO_BACKEND, "a", "a", ""),
        grant(BACKEND_TO_ENDPOINTS, "a", "b", ""),
        grant((ROUTE_TO_BACKEND.1, ROUTE_TO_BACKEND.0), "a", "b", ""),
    ] {
        let outcome = compiled(&(text.clone() + &other), None);
        assert_eq!((errors(&outcome), models(&outcome.config)), (vec![refusal], vec![]), "{other}");
    }
}

#[test]
fn the_error_prints_the_grant_that_would_do() {
    let text = backend_in_b() + &route_in_a();
    let refused = compiled(&text, None);
    let help = refused.diagnostics.iter().find(|finding| finding.is_error()).unwrap().help.clone().unwrap();
    let document = help.split_once("allow it: ").unwrap().1;
    let allowed = compiled(&format!("{text}\n---\n{document}\n"), None);
    assert_eq!((errors(&allowed), models(&allowed.config)), (vec![], vec!["m"]));
}

#[test]
fn a_grant_with_an_error_grants_nothing() {
    let text = backend_in_b() + &route_in_a();
    for wrong in [", name: X_", ", name: ''", ", name: [x]"] {
        let outcome = compiled(&(text.clone() + &grant(ROUTE_TO_BACKEND, "a", "b", wrong)), None);
        assert_eq!((errors(&outcome).len(), models(&outcome.config)), (2, vec![]), "{wrong}");
    }
}

#[test]
fn a_grant_that_is_taken_back_ends_what_it_allowed() {
    let text = backend_in_b() + &route_in_a();
    let allowed = compiled(&(text.clone() + &grant(ROUTE_TO_BACKEND, "a", "b", "")), None);
    let taken_back = compiled(&text, Some(&allowed.resources));
    assert_eq!((errors(&taken_back).len(), models(&taken_back.config)), (1, vec![]));
}

#[test]
fn endpoints_of_another_namespace_are_reached_by_a_grant_alone() {
    let text = backend("x", 1).replacen("{name: x}", "{name: x, namespace: b}", 1) + &route("r", "m", "x");
    let text = text.replace("backendRef: {name: x}", "backendRef: {name: x, namespace: b}");
    let refused = compiled(&text, None);
    assert_eq!(errors(&refused).len(), 1, "{:?}", errors(&refused));
    assert!(errors(&refused)[0].starts_with("the AIServiceBackend default/x refers to the Backend b/x"));
    assert!(refused.config.backends.is_empty());
    let allowed = compiled(&(text + &grant(BACKEND_TO_ENDPOINTS, "default", "b", ", name: x")), None);
    assert_eq!((errors(&allowed), models(&allowed.config)), (vec![], vec!["m"]));
}

#[test]
fn a_key_of_another_namespace_is_sent_by_a_grant_alone_wherever_it_is_kept() {
    let policy = "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: BackendSecurityPolicy\nmetadata: {name: p}\n\
                  spec: {targetRefs: [{kind: AIServiceBackend, name: x}], type: APIKey, \
                  apiKey: {secretRef: {name: key, namespace: b}}}\n---\n";
    let text = backend("x", 1) + &route("r", "m", "x") + policy;
    let mounted = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(mounted.path().join("b/key")).unwrap();
    std::fs::write(mounted.path().join("b/key/apiKey"), "sk-mounted").unwrap();
    let compiled = |text: &str, previous: Option<&Resources>| {
        let documents = Documents::from_text("test.yaml", text).with_secrets(Some(mounted.path()));
        compile(documents, Settings::default(), 1, previous).unwrap()
    };
    let sent = |outcome: &Outcome| match &outcome.config.backends[0].credentials {
        Credentials::Known(credential) => credential.key.as_str().to_owned(),
        other => format!("{other:?}"),
    };
    let document =
        "apiVersion: v1\nkind: Secret\nmetadata: {name: key, namespace: b}\nstringData: {apiKey: sk-document}\n---\n";
    for (text, key) in [(text.clone(), "sk-mounted"), (text + document, "sk-document")] {
        let refused = compiled(&text, None);
        assert_eq!((errors(&refused).len(), sent(&refused)), (1, "Unknown".to_owned()));
        let allowed = compiled(&(text.clone() + &grant(POLICY_TO_SECRET, "default", "b", "")), None);
        assert_eq!((errors(&allowed), sent(&allowed)), (vec![], key.to_owned()));
        // The key that was in force does not stay.
        assert_eq!(sent(&compiled(&text, Some(&allowed.resources))), "Unknown");
    }
}
