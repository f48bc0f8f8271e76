//! The whole way from text to configuration.

mod affinity;
mod bad_input;
mod client_keys;
mod cut_off;
mod grants;
mod limits;
mod migration;
mod tls;
mod upstreams;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use attache_gate::Access;
use proptest::prelude::*;

use super::model::{CostSource, EndpointAddress, LimitsKnown, RuleId, Settings, ValueMatch};
use super::report::{Style, Verdict};
use super::*;
use crate::affinity::{DebugHeaders, PlacementMode, Tenancy};
use crate::limit::{Cost, Dimension, Mode, Quantity};

const GATEWAY: &str = include_str!("../../testdata/config/good/gateway.yaml");
const SHA: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// Relative to the package, where tests run, so that reports are the same on every machine.
fn testdata(name: &str) -> PathBuf {
    Path::new("testdata/config").join(name)
}

fn report(path: &Path) -> (Verdict, String) {
    let mut out = Vec::new();
    let verdict = check(&[path.to_owned()], Settings::default(), Style::Plain, &mut out).unwrap();
    (verdict, String::from_utf8(out).unwrap())
}

fn compile_text(text: &str, previous: Option<&Resources>) -> Outcome {
    compile(Documents::from_text("test.yaml", text), Settings::default(), 1, previous).unwrap()
}

fn errors(outcome: &Outcome) -> Vec<&str> {
    outcome.diagnostics.iter().filter(|finding| finding.is_error()).map(|finding| finding.message.as_str()).collect()
}

fn backend(name: &str, port: u32) -> String {
    format!(
        "apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {{name: {name}}}
spec: {{endpoints: [{{ip: {{address: 10.0.0.1, port: {port}}}}}]}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {{name: {name}}}
spec: {{schema: {{name: OpenAI}}, backendRef: {{name: {name}}}}}
---
"
    )
}

fn route(name: &str, model: &str, backend: &str) -> String {
    format!(
        "apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {{name: {name}}}
spec:
  rules:
  - matches: [{{headers: [{{name: x-ai-eg-model, value: {model}}}]}}]
    backendRefs: [{{name: {backend}}}]
---
"
    )
}

fn client_key(spec: &str) -> String {
    format!("apiVersion: attache.dev/v1alpha1\nkind: ClientKey\nmetadata: {{name: app}}\nspec: {{{spec}}}\n---\n")
}

/// The rules of a model's matches, in their order.
fn rules_for(config: &Config, model: &str) -> Vec<RuleId> {
    config.rules_by_model[model].iter().map(|found| found.rule).collect()
}

fn models(config: &Config) -> Vec<&str> {
    let mut models: Vec<_> = config.rules_by_model.keys().map(|model| &**model).collect();
    models.sort_unstable();
    models
}

#[test]
fn every_bad_input_is_reported_with_its_line_and_a_way_out() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../testdata/config/bad");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let mut files: Vec<_> = std::fs::read_dir(testdata("bad")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let (_, report) = report(&file);
        let name = file.file_stem().unwrap().to_str().unwrap();
        settings.bind(|| insta::assert_snapshot!(name, report));
    }
}

#[test]
fn good_input_is_reported_as_one_line() {
    let (verdict, report) = report(&testdata("good"));
    assert_eq!((verdict, report.as_str()), (Verdict::Sound, "13 objects, 0 errors, 0 warnings\n"));
}

#[test]
fn a_person_at_a_terminal_sees_the_line_underlined() {
    let path = testdata("bad/duplicate-key.yaml");
    let mut out = Vec::new();
    let verdict = check(&[path], Settings::default(), Style::Graphical, &mut out).unwrap();
    let report = String::from_utf8(out).unwrap();
    assert_eq!(verdict, Verdict::Faulty);
    assert!(report.contains("duplicate-key.yaml:6:3"), "{report}");
    assert!(report.contains("endpoints: [{ip: {address: 10.0.0.2, port: 8000}}]"), "{report}");
}

#[test]
fn a_line_of_a_megabyte_is_reported_in_a_few() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("generated.yaml");
    let unknown =
        format!("kind: ClientKey, apiVersion: attache.dev/v1alpha1, metadata: {{name: a}}, {}: 1", "x".repeat(1 << 20));
    std::fs::write(&file, format!("# before\n{{{unknown}, spec: {{sha256: {}}}}}\n# after\n", "0".repeat(1 << 20)))
        .unwrap();
    for style in [Style::Plain, Style::Graphical] {
        let mut out = Vec::new();
        let verdict = check(std::slice::from_ref(&file), Settings::default(), style, &mut out).unwrap();
        let report = String::from_utf8(out).unwrap();
        assert_eq!(verdict, Verdict::Faulty);
        assert!(report.contains("generated.yaml:2:"), "{report}");
        assert!(report.len() < 10_000, "{} bytes", report.len());
    }
}

#[test]
fn a_key_pasted_in_place_of_its_digest_is_shown_to_nobody() {
    for style in [Style::Plain, Style::Graphical] {
        let mut out = Vec::new();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys.yaml");
        std::fs::write(&file, client_key("sha256: sk-this-is-the-key, routes: [\"*\"]")).unwrap();
        check(&[file], Settings::default(), style, &mut out).unwrap();
        let report = String::from_utf8(out).unwrap();
        assert!(!report.contains("sk-this"), "{report}");
        assert!(report.contains("keys.yaml:4:16: error: `sha256`"), "{report}");
    }
}

#[test]
fn rules_of_two_routes_for_one_model_are_both_kept_and_the_second_is_warned_of() {
    let outcome = compile_text(&(backend("a", 1) + &route("first", "m", "a") + &route("second", "m", "a")), None);
    let ids = [0, 1].map(|route| RuleId { route, rule: 0 });
    assert_eq!(rules_for(&outcome.config, "m"), ids);
    assert_eq!(errors(&outcome), [""; 0]);
    assert!(outcome.diagnostics.iter().any(|finding| finding.message.contains("is shadowed")));
}

#[test]
fn what_is_served_in_part_is_not_lost_in_a_reload() {
    let text = backend("a", 1) + &route("r", "m", "a}, {name: missing");
    let first = compile_text(&text, None);
    let second = compile_text(&(text.replace("value: m", "value: 5")), Some(&first.resources));
    assert_eq!(models(&second.config), ["m"]);
}

#[test]
fn documents_become_the_configuration_they_describe() {
    let outcome = compile(load(&[testdata("good")]), Settings::default(), 7, None).unwrap();
    let config = &outcome.config;
    assert_eq!(config.generation, 7);

    let [vllm, ollama] = &*config.backends else { panic!("{:?}", config.backends) };
    assert_eq!((vllm.name.to_string(), &*vllm.cluster), ("default/vllm".to_owned(), "default/vllm"));
    assert_eq!(
        vllm.endpoints.iter().map(|endpoint| &*endpoint.id).collect::<Vec<_>>(),
        ["10.0.0.1:8000", "[fd00::1]:8000"]
    );
    assert_eq!((ollama.name.to_string(), &*ollama.cluster), ("default/ollama".to_owned(), "edge/ollama"));
    assert_eq!(&*ollama.endpoints[0].cluster, "edge/ollama/ollama.example.com:11434");
    assert_eq!(ollama.endpoints[1].address, EndpointAddress::Unix(Arc::from("/run/ollama.sock")));

    let [route] = &*config.routes else { panic!("{:?}", config.routes) };
    assert_eq!(&*route.id, "default/unified");
    assert_eq!(
        route.costs.iter().map(|cost| (&*cost.key, cost.cost.clone())).collect::<Vec<_>>(),
        [("llm_input_token", CostSource::Tokens(Cost::Input)), ("llm_total_token", CostSource::Tokens(Cost::Total))]
    );
    let [chat, gold] = &*route.rules else { panic!("{:?}", route.rules) };
    assert_eq!((&*chat.models_owned_by, chat.models_created_at), ("acme", 1_716_285_600));
    assert_eq!((chat.request_timeout, gold.request_timeout), (Some(Duration::from_secs(120)), None));
    let targets: Vec<_> = chat.targets.iter().map(|target| (target.backend, target.weight, target.priority)).collect();
    assert_eq!(targets, [(0, 3, 0), (1, 1, 1)]);
    assert_eq!(chat.targets[0].model_override.as_deref(), Some("meta-llama/Llama-3.1-8B-Instruct"));
    assert_eq!(gold.matches[0].headers, [(Arc::from("x-tier"), ValueMatch::Exact("gold".into()))]);

    let limits: Vec<_> =
        route.limits.iter().map(|limit| (&*limit.id, limit.amount, limit.window.longest().as_secs())).collect();
    assert_eq!(
        limits,
        [("default/per-key/key-minute", 300, 60), ("default/per-key/tenant-day", 2_000_000, 25 * 3_600)]
    );
    assert_eq!(route.limits[1].per, [Dimension::Tenant, Dimension::Model]);
    let [in_flight, requests] = &*gold.limits else { panic!("{:?}", gold.limits) };
    assert_eq!((in_flight.quantity.clone(), in_flight.amount), (Quantity::Concurrency, 8));
    assert_eq!(in_flight.per, [Dimension::Header(Arc::from("x-team")), Dimension::Route]);
    assert_eq!(
        (requests.quantity.clone(), requests.mode, requests.window.longest().as_secs()),
        (Quantity::Requests, Mode::Strict, 5_400)
    );

    let Access::Keys(keys) = &config.gate_config.access else { panic!("open") };
    assert_eq!(
        keys.iter().map(|key| (&*key.id, &*key.tenant)).collect::<Vec<_>>(),
        [("default/app-a", "acme"), ("ops/admin", "ops/admin")]
    );
    assert!(keys.iter().all(|key| key.routes == ["default/unified"]));
    assert_eq!(config.gate_config.models["chat"], ["default/unified"]);
}

#[test]
fn the_closest_affinity_policy_wins_and_each_backend_gets_a_mode_that_suits_it() {
    let outcome = compile(load(&[testdata("good")]), Settings::default(), 1, None).unwrap();
    let [vllm, ollama] = &*outcome.config.backends else { panic!() };
    let policy = &vllm.affinity;
    assert_eq!(
        (&*policy.id, policy.mode, policy.debug_headers),
        ("default/watched", PlacementMode::Cluster, DebugHeaders::Shown)
    );
    let policy = &ollama.affinity;
    assert_eq!(
        (&*policy.id, policy.mode, policy.tenancy),
        ("default/sticky", PlacementMode::Cluster, Tenancy::Isolated)
    );
    assert_eq!(policy.session_header.as_deref(), Some("x-session"));

    let outcome = compile_text(GATEWAY, None);
    let defaults: Vec<_> =
        outcome.config.backends.iter().map(|backend| (&*backend.affinity.id, backend.affinity.mode)).collect();
    assert_eq!(defaults, [("default", PlacementMode::Endpoint), ("default", PlacementMode::Cluster)]);
}

#[test]
fn the_rule_with_most_header_conditions_comes_first() {
    let outcome = compile_text(GATEWAY, None);
    let rule = |rule| RuleId { route: 0, rule };
    assert_eq!(rules_for(&outcome.config, "chat"), [rule(1), rule(0)]);
    assert_eq!(rules_for(&outcome.config, "4.5"), [rule(0)]);
}

#[test]
fn one_bad_object_leaves_the_others_served() {
    let text = backend("a", 1) + &backend("b", 70_000) + &route("good", "m", "a") + &route("bad", "n", "b");
    let outcome = compile_text(&text, None);
    assert_eq!(models(&outcome.config), ["m"]);
    assert_eq!(errors(&outcome), ["`port`: expected a whole number from 1 to 65535, found `70000`"]);
}

#[test]
fn a_missing_backend_costs_a_rule_only_that_target() {
    let text = backend("a", 1) + &route("good", "m", "a, weight: 1}, {name: missing");
    let outcome = compile_text(&text, None);
    assert_eq!(errors(&outcome), ["there is no AIServiceBackend default/missing"]);
    assert_eq!(outcome.config.routes[0].rules[0].targets.len(), 1);
}

#[test]
fn a_syntax_error_leaves_the_documents_before_it_and_the_other_files_served() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(directory.path().join(name), text).unwrap();
    write("a.yaml", backend("a", 1) + &route("first", "m", "a") + "kind: AIGatewayRoute\nspec: [");
    write("b.yaml", route("second", "n", "a"));
    let outcome = compile(load(&[directory.path().to_owned()]), Settings::default(), 1, None).unwrap();
    assert_eq!(models(&outcome.config), ["m", "n"]);
    assert_eq!(errors(&outcome).len(), 1);
    assert_eq!(outcome.config.gate_config.access, Access::Open);
}

#[test]
fn a_reload_keeps_the_last_good_state_of_what_is_wrong_now() {
    let first =
        compile_text(&(backend("a", 1) + &backend("b", 2) + &route("r", "m", "a") + &route("s", "n", "b")), None);
    assert_eq!(errors(&first), [""; 0]);

    // Wrong in itself (a), wrong in a reference (r), changed rightly (s), gone (b's route moves to a).
    let text = backend("a", 0) + &route("r", "renamed", "missing") + &route("s", "changed", "a");
    let second = compile_text(&text, Some(&first.resources));
    assert_eq!(models(&second.config), ["changed", "m"]);
    assert_eq!(&*second.config.backends[0].endpoints[0].id, "10.0.0.1:1");
    assert_eq!(second.config.backends.len(), 1);
    assert_eq!(errors(&second).len(), 2);

    // And it is remembered for as long as it takes.
    let third = compile_text(&text, Some(&second.resources));
    assert_eq!(models(&third.config), ["changed", "m"]);
    let mended = compile_text(&(backend("a", 3) + &route("r", "renamed", "a")), Some(&third.resources));
    assert_eq!(models(&mended.config), ["renamed"]);
    assert_eq!(errors(&mended), [""; 0]);
}

#[test]
fn a_reload_keeps_what_a_syntax_error_hides_and_drops_what_is_gone() {
    let first = compile_text(&(backend("a", 1) + &route("r", "m", "a") + &route("s", "n", "a")), None);
    let hidden = compile_text(&(backend("a", 1) + &route("r", "m", "a") + "]"), Some(&first.resources));
    assert_eq!(models(&hidden.config), ["m", "n"]);
    let gone = compile_text(&(backend("a", 1) + &route("r", "m", "a")), Some(&hidden.resources));
    assert_eq!(models(&gone.config), ["m"]);
}

#[test]
fn a_reload_keeps_what_an_unreadable_file_held() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.yaml");
    std::fs::write(&file, backend("a", 1) + &route("r", "m", "a")).unwrap();
    let first = compile(load(std::slice::from_ref(&file)), Settings::default(), 1, None).unwrap();
    std::fs::write(&file, b"\xff").unwrap();
    let second = compile(load(&[file]), Settings::default(), 2, Some(&first.resources)).unwrap();
    assert_eq!(models(&second.config), ["m"]);
    assert_eq!(errors(&second).len(), 1);
}

#[test]
fn a_gate_that_stood_open_is_shut_by_words_of_a_key_alone() {
    let routes = backend("a", 1) + &route("r", "m", "a");
    let open = compile_text(&routes, None);
    for broken in ["{", "\t- [", "foo", "- a", "a: b: c\n---\n&x [*x, *y]"] {
        let now = compile_text(&(routes.clone() + "---\n" + broken), Some(&open.resources));
        assert_eq!(now.config.gate_config.access, Access::Open, "{broken}");
        let at_start = compile_text(&(routes.clone() + "---\n" + broken), None);
        assert_eq!(at_start.config.gate_config.access, Access::Keys(Vec::new()), "{broken}");
        // What was shut at the start is not opened by another mistake.
        let later = compile_text(&(routes.clone() + "---\n["), Some(&at_start.resources));
        assert_eq!(later.config.gate_config.access, Access::Keys(Vec::new()), "{broken}");
    }
    for broken in
        ["kind: ClientKey\nspec: [", "apiVersion: attache.dev/v1al", "apiVersion: attache.dev/v1alpha1\nkind: ["]
    {
        let now = compile_text(&(routes.clone() + "---\n" + broken), Some(&open.resources));
        let is_shut = now.config.gate_config.access == Access::Keys(Vec::new());
        assert_eq!(is_shut, !broken.ends_with("kind: ["), "{broken}");
    }
}

#[test]
fn the_gate_is_open_only_where_no_client_key_can_have_been_meant() {
    let access = |text: &str| compile_text(text, None).config.gate_config.access;
    let shut = Access::Keys(Vec::new());
    let routes = backend("a", 1) + &route("r", "m", "a");
    assert_eq!(access(&routes), Access::Open);
    assert_eq!(access(&(routes.clone() + "kind: AIGatewayRoute\nspec: [")), Access::Open);
    assert_eq!(access(&(routes.clone() + "kind: [")), shut);
    assert_eq!(access(&(routes.clone() + &client_key("sha256: wrong"))), shut);
    assert_eq!(access(&(routes.clone() + &client_key("sha256: {").replace("---", ""))), shut);
    assert_eq!(access(&(routes.clone() + "---\n" + &client_key("").replace("ClientKey", "ClientKeys"))), shut);
    let unreadable = compile(load(&[PathBuf::from("/nonexistent")]), Settings::default(), 1, None).unwrap();
    assert_eq!(unreadable.config.gate_config.access, shut);
    assert!(
        matches!(access(&(routes + &client_key(&format!("sha256: {SHA}")))), Access::Keys(keys) if keys.len() == 1)
    );
}

#[test]
fn a_gate_that_asked_for_keys_does_not_open_because_they_are_gone() {
    let shut = Access::Keys(Vec::new());
    let routes = backend("a", 1) + &route("r", "m", "a");
    let guarded = compile_text(&(routes.clone() + &client_key(&format!("sha256: {SHA}"))), None);
    let gone = compile_text(&routes, Some(&guarded.resources));
    assert_eq!(gone.config.gate_config.access, shut);
    assert_eq!(errors(&gone), ["nobody can call: the ClientKeys that there were are gone"]);
    let still = compile_text(&routes, Some(&gone.resources));
    assert_eq!(still.config.gate_config.access, shut, "not by the next reload either");
    let back = compile_text(&(routes.clone() + &client_key(&format!("sha256: {SHA}"))), Some(&still.resources));
    assert!(matches!(back.config.gate_config.access, Access::Keys(keys) if keys.len() == 1));
}

#[test]
fn a_file_that_is_empty_for_a_moment_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (keys, routes) = (directory.path().join("keys.yaml"), directory.path().join("routes.yaml"));
    std::fs::write(&keys, client_key(&format!("sha256: {SHA}"))).unwrap();
    std::fs::write(&routes, backend("a", 1) + &route("r", "m", "a")).unwrap();
    let paths = [directory.path().to_owned()];
    let first = compile(load(&paths), Settings::default(), 1, None).unwrap();
    for text in ["", "\n \n"] {
        std::fs::write(&keys, text).unwrap();
        std::fs::write(&routes, text).unwrap();
        let emptied = compile(load(&paths), Settings::default(), 2, Some(&first.resources)).unwrap();
        assert_eq!(emptied.config.gate_config, first.config.gate_config);
        assert_eq!(models(&emptied.config), ["m"]);
        assert_eq!(errors(&emptied).len(), 2);
    }
    let at_start = compile(load(&paths), Settings::default(), 1, None).unwrap();
    assert_eq!(at_start.config.gate_config.access, Access::Keys(Vec::new()));
}

#[test]
fn a_mounted_config_map_is_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let version = directory.path().join("..2026_01_01");
    std::fs::create_dir(&version).unwrap();
    std::fs::write(version.join("routes.yaml"), GATEWAY).unwrap();
    std::fs::write(version.join("notes.txt"), "not: [yaml").unwrap();
    std::os::unix::fs::symlink("..2026_01_01", directory.path().join("..data")).unwrap();
    for file in ["routes.yaml", "notes.txt"] {
        std::os::unix::fs::symlink(format!("..data/{file}"), directory.path().join(file)).unwrap();
    }
    let outcome = compile(load(&[directory.path().to_owned()]), Settings::default(), 1, None).unwrap();
    assert_eq!((errors(&outcome).len(), outcome.objects), (0, 7));
}

#[test]
fn settings_that_cannot_be_are_an_error() {
    let settings = Settings { path_prefix: "no-slash".to_owned(), ..Settings::default() };
    assert!(compile(Documents::from_text("test.yaml", GATEWAY), settings, 1, None).is_err());
}

/// Some text with parts of it cut out, doubled or replaced.
fn mutated_yaml() -> impl Strategy<Value = String> {
    let policies = include_str!("../../testdata/config/good/policies.yml");
    let edits = prop::collection::vec(
        (any::<prop::sample::Index>(), 0..40usize, "[\\PC\\n]{0,8}|[\\[\\]{}:,&*!|>\"'#-]{1,3}"),
        1..6,
    );
    (prop::sample::select(vec![GATEWAY, policies]), edits).prop_map(|(text, edits)| {
        edits.into_iter().fold(text.to_owned(), |text, (at, cut, insert)| {
            let characters: Vec<char> = text.chars().collect();
            let at = at.index(characters.len() + 1);
            let rest = characters.get(at + cut..).unwrap_or_default();
            characters[..at].iter().copied().chain(insert.chars()).chain(rest.iter().copied()).collect()
        })
    })
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,200}|[a-z:\\-\\[\\]{},&*!|>'\"#%@?~ \\n\\t\\r\u{feff}\u{85}é]{0,200}") {
        for finding in compile_text(&text, None).diagnostics {
            let _ = finding.plain().to_string();
        }
    }

    #[test]
    fn no_mutation_of_good_documents_makes_it_panic_or_leaves_a_dangling_index(text in mutated_yaml()) {
        let good = compile_text(GATEWAY, None);
        let outcome = compile_text(&text, Some(&good.resources));
        let mut report = String::new();
        for finding in &outcome.diagnostics {
            report.push_str(&finding.plain().to_string());
            prop_assert!(miette::GraphicalReportHandler::new().render_report(&mut report, finding).is_ok());
        }
        let config = &outcome.config;
        for target in config.routes.iter().flat_map(|route| &route.rules).flat_map(|rule| &rule.targets) {
            prop_assert!(target.backend < config.backends.len());
        }
        for id in config.rules_by_model.values().flatten() {
            prop_assert!(config.rule_match(*id).is_some());
        }
        prop_assert!(config.backends.iter().all(|backend| !backend.endpoints.is_empty()));
    }
}
