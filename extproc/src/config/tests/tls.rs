//! TLS to model servers: what a Backend and a BackendTLSPolicy say together, and that a mistake is no way to clear text.

use super::*;
use crate::config::tls::{ServerName, Subject, Trust, UpstreamTls};

const IP: &str = "ip: {address: 10.0.0.1, port: 443}";
const NAME: &str = "fqdn: {hostname: A.example, port: 443}";

fn server(endpoint: &str, fields: &str) -> String {
    backend("x", 1).replace("ip: {address: 10.0.0.1, port: 1}", endpoint).replace("}}]}", &format!("}}}}]{fields}}}"))
        + &route("r", "m", "x")
}

fn policy(validation: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {{name: p}}\n\
         spec: {{targetRefs: [{{group: gateway.envoyproxy.io, kind: Backend, name: x}}], validation: {{{validation}}}}}\n---\n"
    )
}

fn authority(name: &str) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    let pem = pem.replace("\r\n", "\n");
    let indented = pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let document =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  ca.crt: |\n{indented}---\n");
    (document, pem)
}

fn tls(text: &str) -> UpstreamTls {
    let outcome = compile_text(text, None);
    assert_eq!(errors(&outcome), [""; 0], "{text}");
    outcome.config.backends[0].tls.as_deref().cloned().unwrap()
}

fn dns(name: &str) -> Subject {
    Subject::Dns(Arc::from(name))
}

#[test]
fn a_certificate_has_to_be_for_the_name_or_the_address_that_is_called() {
    let system = ", tls: {wellKnownCACertificates: System}";
    let found = tls(&server(NAME, system));
    assert_eq!(found, UpstreamTls { trust: Trust::System, server_name: ServerName::OfEndpoint, subjects: vec![] });
    let found = tls(&server(IP, system));
    let address = Subject::Ip("10.0.0.1".parse().unwrap());
    assert_eq!((found.server_name, found.subjects), (ServerName::Unsaid, vec![address]));
    for endpoint in [NAME, IP] {
        let found = tls(&server(endpoint, ", tls: {wellKnownCACertificates: System, sni: b.example}"));
        assert_eq!(
            (found.server_name, found.subjects),
            (ServerName::Fixed(Arc::from("b.example")), vec![dns("b.example")])
        );
    }
}

#[test]
fn a_policy_counts_before_the_backend_and_checks_certificates_whatever_that_says() {
    let validation = "wellKnownCACertificates: System, hostname: p.example";
    for fields in ["", ", tls: {sni: b.example}", ", tls: {insecureSkipVerify: true}"] {
        let found = tls(&(server(IP, fields) + &policy(validation)));
        let server_name = ServerName::Fixed(Arc::from("p.example"));
        assert_eq!(found, UpstreamTls { trust: Trust::System, server_name, subjects: vec![dns("p.example")] });
    }
    let names = "subjectAltNames: [{type: Hostname, hostname: q.example}, {type: URI, uri: 'spiffe://q'}]";
    let found = tls(&(server(IP, "") + &policy(&format!("{validation}, {names}"))));
    assert_eq!(found.subjects, [dns("q.example"), Subject::Uri(Arc::from("spiffe://q"))]);
}

#[test]
fn authorities_are_those_of_all_config_maps_that_are_named() {
    let ((one, first), (two, second)) = (authority("one"), authority("two"));
    let references = "caCertificateRefs: [{group: '', kind: ConfigMap, name: one}, {kind: ConfigMap, name: two}]";
    let found = tls(&(server(NAME, &format!(", tls: {{{references}}}")) + &one + &two));
    assert_eq!(found.trust, Trust::Authorities(Arc::from(first + &second)));
    let by_policy = tls(&(server(NAME, "") + &policy(&format!("{references}, hostname: h.example")) + &one + &two));
    assert_eq!(by_policy.trust, found.trust);
}

#[test]
fn authorities_that_cannot_be_read_any_more_stay() {
    let (one, first) = authority("one");
    let references = "caCertificateRefs: [{group: '', kind: ConfigMap, name: one}]";
    let of_backend = server(NAME, &format!(", tls: {{{references}}}"));
    let of_policy = server(NAME, "") + &policy(&format!("{references}, hostname: h.example"));
    for text in [of_backend, of_policy] {
        let mut last = compile_text(&(text.clone() + &one), None);
        // Gone, wrong, twice, and gone again.
        for config_map in ["", &one.replace("BEGIN", "BEGUN"), &(one.clone() + &one), ""] {
            last = compile_text(&(text.clone() + config_map), Some(&last.resources));
            assert_eq!(errors(&last).len(), 1, "{:?}", errors(&last));
            assert!(errors(&last)[0].contains("stay"), "{:?}", errors(&last));
            let trust = last.config.backends[0].tls.as_ref().unwrap().trust.clone();
            assert_eq!(trust, Trust::Authorities(Arc::from(first.as_str())));
        }
        // Nobody refers to it, so it is forgotten.
        let without = compile_text(&server(NAME, ""), Some(&last.resources));
        let again = compile_text(&text, Some(&without.resources));
        assert!(errors(&again).iter().any(|error| error.contains("there is no ConfigMap")), "{:?}", errors(&again));
        assert!(!errors(&again).iter().any(|error| error.contains("stay")), "{:?}", errors(&again));
    }
}

#[test]
fn a_backend_whose_tls_is_wrong_is_called_by_nobody() {
    for text in [
        server(IP, ", tls: {}"),
        server(IP, ", tls: {wellKnownCACertificates: system}"),
        server(NAME, ", tls: {caCertificateRefs: [{kind: ConfigMap, name: nowhere}]}"),
        server(NAME, "") + &policy("hostname: a.example"),
        server(NAME, "") + &policy("wellKnownCACertificates: System"),
        server(NAME, "")
            + &policy("wellKnownCACertificates: System, hostname: a.example")
                .replace("kind: Backend,", "kind: Backends,"),
    ] {
        let outcome = compile_text(&text, None);
        assert_eq!((errors(&outcome).len(), outcome.config.backends.len()), (1, 0), "{text}\n{:?}", errors(&outcome));
    }
}

#[test]
fn https_in_clear_text_is_warned_of() {
    let warned = |text: &str| {
        let outcome = compile_text(text, None);
        assert_eq!(outcome.config.backends.len(), 1);
        outcome.diagnostics.iter().any(|finding| finding.message.contains("go there in clear text"))
    };
    assert!(warned(&server(NAME, "")));
    assert!(!warned(&server(&NAME.replace("443", "8443"), "")) && !warned(&server(IP, "")));
    assert!(!warned(&server(NAME, ", tls: {wellKnownCACertificates: System}")));
}

#[test]
fn no_page_is_asked_for_by_default_where_requests_go_by_tls_or_with_a_key() {
    let pages = |text: &str| {
        let outcome = compile_text(text, None);
        assert_eq!(errors(&outcome), [""; 0], "{text}");
        outcome.config.backends.iter().map(|backend| backend.affinity.scraping.is_some()).collect::<Vec<_>>()
    };
    let policy = |metrics: &str| {
        format!(
            "---\napiVersion: attache.dev/v1alpha1\nkind: CacheAffinityPolicy\nmetadata: {{name: p}}\n\
             spec: {{targetRefs: [{{kind: Backend, name: x}}], indexBytes: 1048576{metrics}}}\n"
        )
    };
    let key = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {apiKey: k}\n\
               ---\napiVersion: aigateway.envoyproxy.io/v1beta1\nkind: BackendSecurityPolicy\nmetadata: {name: b}\n\
               spec: {type: APIKey, apiKey: {secretRef: {name: s}}, \
               targetRefs: [{group: aigateway.envoyproxy.io, kind: AIServiceBackend, name: x}]}\n";
    let plain = server(IP, "");
    let secure = server(NAME, ", tls: {wellKnownCACertificates: System}");
    let keyed = plain.clone() + key;
    assert_eq!(pages(&plain), [true]);
    assert_eq!((pages(&secure), pages(&keyed)), (vec![false], vec![false]));
    for guarded in [secure, keyed] {
        assert_eq!(pages(&(guarded.clone() + &policy(""))), [false]);
        assert_eq!(pages(&(guarded.clone() + &policy(", metrics: {engine: vllm}"))), [true]);
        assert_eq!(pages(&(guarded + &policy(", metrics: {engine: none}"))), [false]);
    }
}

#[test]
fn metrics_in_clear_text_beside_tls_are_read_where_a_policy_says_so_and_warned_of() {
    let secure = server(NAME, ", tls: {wellKnownCACertificates: System}");
    let warned = |text: &str| -> Vec<String> {
        let outcome = compile_text(text, None);
        assert_eq!(errors(&outcome), [""; 0], "{text}");
        let about = outcome.diagnostics.iter().filter(|finding| finding.message.starts_with("metrics pages"));
        about.map(|finding| finding.plain().to_string()).collect()
    };
    let affinity = |metrics: &str| {
        format!(
            "---\napiVersion: attache.dev/v1alpha1\nkind: CacheAffinityPolicy\nmetadata: {{name: p}}\n\
             spec: {{targetRefs: [{{kind: Backend, name: x}}]{metrics}}}\n"
        )
    };
    assert_eq!(warned(&secure), [""; 0], "none is asked for");
    assert_eq!(warned(&(secure.clone() + &affinity(""))), [""; 0]);
    let [told] = &*warned(&(secure.clone() + &affinity(", metrics: {engine: sglang}"))) else { panic!() };
    assert!(told.contains("the Backend default/x") && told.contains("leave `metrics` out"), "{told}");
    for said in ["{engine: none}", "{port: 9100}", "{engine: triton}"] {
        assert_eq!(warned(&(secure.clone() + &affinity(&format!(", metrics: {said}")))), [""; 0], "{said}");
    }
    assert_eq!(warned(&server(NAME, "")), [""; 0]);
}
