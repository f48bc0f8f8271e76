//! Documents as Envoy AI Gateway's users have them: read as they are, with warnings at most. Each file stands for examples of
//! that project, which it names.

use super::*;
use crate::config::upstream::Credentials;

/// The file, the models that are served, and those that are not.
const FILES: [(&str, &[&str], &[&str]); 7] = [
    ("providers.yaml", &["both", "gpt-4o-mini", "self-hosted"], &["us.meta.llama3", "gemini", "rerank"]),
    ("older-forms.yaml", &["llama", "mistral"], &["claude-.*", "aws", "yes"]),
    ("inference-pool.yaml", &["self-hosted"], &["llama", "mistral"]),
    ("token-limits.yaml", &["funky"], &[]),
    ("beside.yaml", &["model-a"], &["shadow"]),
    ("credentials.yaml", &["by-hand", "google-key", "own-credential"], &[]),
    ("no-objects.yaml", &[], &[]),
];

/// As `attache check` does.
fn read(file: &str) -> Outcome {
    compile(load(&[testdata("migration").join(file)]).with_secrets_if_named(None), Settings::default(), 1, None)
        .unwrap()
}

#[test]
fn documents_of_envoy_ai_gateway_are_read_with_warnings_at_most() {
    for (file, served, left_out) in FILES {
        let outcome = read(file);
        assert_eq!(errors(&outcome), [""; 0], "{file}");
        assert_eq!(models(&outcome.config), served, "{file}");
        for model in left_out {
            assert!(!outcome.config.rules_by_model.contains_key(*model), "{file}: {model}");
        }
        let texts: Vec<String> = outcome.diagnostics.iter().map(|finding| finding.plain().to_string()).collect();
        assert!(texts.iter().all(|text| text.contains("warning: ") && text.contains("help: ")), "{texts:#?}");
    }
    let files = std::fs::read_dir(testdata("migration")).unwrap().count();
    assert_eq!(files, FILES.len(), "a file that is not read here");
}

#[test]
fn a_rule_goes_on_with_the_backends_that_are_served() {
    let outcome = read("providers.yaml");
    let config = &outcome.config;
    let targets = |model: &str| -> Vec<String> {
        let rule = config.rule(config.rules_by_model[model][0].rule).unwrap();
        rule.targets.iter().map(|target| config.backends[target.backend].name.to_string()).collect()
    };
    assert_eq!(targets("both"), ["default/self-hosted"]);
}

#[test]
fn a_backend_whose_credential_is_not_served_gets_no_requests() {
    let outcome = read("credentials.yaml");
    let texts: Vec<String> = outcome.diagnostics.iter().map(|finding| finding.plain().to_string()).collect();
    for backend in &outcome.config.backends {
        assert_eq!(backend.credentials, Credentials::Unknown, "{}", backend.name);
        let told = format!("requests to the backend {} get 503", backend.name);
        assert!(texts.iter().any(|text| text.contains(&told)), "{texts:#?}");
    }
}

#[test]
fn the_help_beside_a_503_says_what_is_to_be_done_about_its_cause() {
    let world = backend("b", 80) + &route("r", "m", "b");
    let policy = |fields: &str| {
        format!(
            "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: BackendSecurityPolicy\nmetadata: {{name: p}}\n\
             spec: {{targetRefs: [{{group: aigateway.envoyproxy.io, kind: AIServiceBackend, name: b}}], {fields}}}\n"
        )
    };
    let key = |name: &str| policy(&format!("type: APIKey, apiKey: {{secretRef: {{{name}}}}}"));
    for (text, wanted) in [
        (key("name: k"), "nothing is wrong if its Secret is mounted"),
        (key("name: k, namespace: other"), "mend its errors"),
        (key("name: 7"), "mend its errors"),
        (policy("type: AWSCredentials, awsCredentials: {region: r}"), "leave these backends to Envoy AI Gateway"),
        ("kind: [".to_owned(), "mend what could not be read"),
    ] {
        let documents = Documents::from_text("test.yaml", &(world.clone() + &text)).with_secrets_if_named(None);
        let outcome = compile(documents, Settings::default(), 1, None).unwrap();
        let closed: Vec<_> =
            outcome.diagnostics.iter().filter(|finding| finding.message.contains("get 503: the key")).collect();
        let [closed] = &*closed else { panic!("{text}: {closed:?}") };
        assert!(closed.help.as_ref().unwrap().starts_with(wanted), "{text}: {closed:?}");
    }
}

#[test]
fn a_secret_that_is_nowhere_is_an_error_once_it_is_said_where_secrets_are() {
    let file = testdata("migration").join("credentials.yaml");
    let directory = tempfile::tempdir().unwrap();
    let documents = load(&[file]).with_secrets_if_named(Some(directory.path()));
    let outcome = compile(documents, Settings::default(), 1, None).unwrap();
    assert_eq!(errors(&outcome), ["there is no Secret default/made-by-hand"]);
}

#[test]
fn every_limit_and_cost_of_the_examples_is_in_force() {
    let outcome = read("token-limits.yaml");
    let route = &outcome.config.routes[0];
    assert_eq!((route.costs.len(), route.limits_known), (6, LimitsKnown::All));
    assert_eq!(route.costs[2].cost, CostSource::Tokens(Cost::CacheCreationInput));
    assert_eq!(route.limits.len(), 2);
    assert!(!outcome.config.backends[0].limits.is_empty());
}

#[test]
fn a_backend_that_changes_to_a_provider_that_is_not_served_is_left_out_and_not_kept_as_it_was() {
    let before = backend("b", 80) + &route("r", "m", "b");
    let first = compile_text(&before, None);
    assert_eq!(models(&first.config), ["m"]);
    let now = compile_text(&before.replace("OpenAI", "AWSBedrock"), Some(&first.resources));
    assert_eq!((errors(&now), models(&now.config)), (vec![], vec![]));
    let again = compile_text(&before, Some(&now.resources));
    assert_eq!(models(&again.config), ["m"]);
}

#[test]
fn a_backend_ref_that_the_gateway_api_takes_for_a_service_is_left_out_with_a_warning() {
    let text = backend("b", 80) + &route("r", "m", "b");
    for (fields, is_service) in [
        ("name: b", false),
        ("name: b, kind: Backend, group: gateway.envoyproxy.io, port: 80", false),
        ("name: b, group: gateway.envoyproxy.io, port: 80", false),
        ("name: b, port: 80", true),
        ("name: b, group: ''", true),
        ("name: b, group: '', kind: Service, port: 80", true),
        ("name: b, namespace: other, port: 80", true),
    ] {
        let outcome = compile_text(&text.replace("backendRef: {name: b}", &format!("backendRef: {{{fields}}}")), None);
        assert_eq!(errors(&outcome), [""; 0], "{fields}");
        assert_eq!(models(&outcome.config).is_empty(), is_service, "{fields}");
        let told = outcome.diagnostics.iter().any(|finding| finding.message.ends_with("this backend is left out"));
        assert_eq!(told, is_service, "{fields}");
    }
}

#[test]
fn text_that_is_no_object_leaves_the_gate_shut_only_where_it_may_have_held_a_key() {
    for (text, access) in [("values: {a: 1}\n", "open"), ("values: {note: our ClientKey moved}\n", "shut")] {
        let outcome = compile_text(text, None);
        let seen = if outcome.config.gate_config.access == Access::Open { "open" } else { "shut" };
        assert_eq!((errors(&outcome), seen), (vec![], access), "{text}");
    }
}
