//! What comes of names that collide or are none, of YAML that is a bomb, and of files that are half written.

use super::*;

#[test]
fn two_documents_for_one_object_are_an_error_that_names_both_places() {
    let outcome = compile_text(&(backend("b", 80) + &backend("b", 81)), None);
    let twice: Vec<String> = outcome.diagnostics.iter().map(|finding| finding.plain().to_string()).collect();
    let of = |kind: &str| twice.iter().find(|text| text.contains(&format!("two {kind}s named default/b"))).unwrap();
    assert!(of("Backend").starts_with("test.yaml:13:18: error: "), "{twice:#?}");
    assert!(of("Backend").contains("the first is at test.yaml:3:18"), "{twice:#?}");
    assert!(of("AIServiceBackend").contains("the first is at test.yaml:8:18"), "{twice:#?}");
    // The first stays, so nobody is sent elsewhere by the second.
    assert_eq!(&*outcome.config.backends[0].endpoints[0].id, "10.0.0.1:80");
    assert_eq!(outcome.config.backends.len(), 1);
}

#[test]
fn names_and_namespaces_are_those_that_kubernetes_takes() {
    let named = |name: &str, namespace: &str| {
        let text = backend("b", 80)
            .replace("{name: b}\nspec: {schema", &format!("{{name: {name}, namespace: {namespace}}}\nspec: {{schema"));
        errors(&compile_text(&text, None)).iter().filter(|error| error.contains("Kubernetes takes")).count()
    };
    let (long, longest, label) = ("a".repeat(254), "a".repeat(253), "a".repeat(63));
    for (name, namespace, faults) in [
        ("b", "default", 0),
        (longest.as_str(), label.as_str(), 0),
        (long.as_str(), "default", 1),
        ("B", "default", 1),
        ("a_b", "default", 1),
        ("-a", "default", 1),
        ("\"a b\"", "default", 1),
        ("b", &"a".repeat(64), 1),
        ("b", "a.b", 1),
        ("b", "Team", 1),
        ("\"../b\"", "\"../etc\"", 2),
    ] {
        assert_eq!(named(name, namespace), faults, "{name} {namespace}");
    }
}

#[test]
fn a_bomb_costs_its_file_and_neither_time_nor_memory() {
    let aliases = (0..40).fold("a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, level| {
        let items = vec![format!("*a{level}"); 9].join(", ");
        text + &format!("a{}: &a{} [{items}]\n", level + 1, level + 1)
    });
    let deep = ["[", "{a: ", "- "].map(|open| open.repeat(100_000));
    let wide = format!("a: [{}]\n", "x, ".repeat(500_000));
    let sound = backend("b", 80) + &route("r", "m", "b");
    for bomb in deep.iter().chain([&aliases, &wide]) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.yaml"), &sound).unwrap();
        std::fs::write(directory.path().join("b.yaml"), bomb).unwrap();
        let outcome = compile(load(&[directory.path().to_owned()]), Settings::default(), 1, None).unwrap();
        assert_eq!(models(&outcome.config), ["m"], "{bomb:.20}");
        assert!(outcome.diagnostics.iter().any(|finding| finding.location.is_some()), "{bomb:.20}");
    }
}

#[test]
fn the_documents_of_a_text_share_what_aliases_may_add() {
    let levels =
        ["a: &a ['', '', '', '', '', '', '', '']", "b: &b [*a, *a, *a, *a]", "c: [*b, *b, *b, *b, *b, *b, *b, *b]"];
    // What aliases and anchors add to each document: 9 + 36 + 37 + 296.
    let text = format!("---\n{}\n", levels.join("\n")).repeat(10_000);
    let outcome = compile_text(&text, None);
    let told = outcome.diagnostics.iter().filter(|finding| finding.message.contains("stand for more than"));
    assert_eq!(told.map(|finding| finding.location.is_some()).collect::<Vec<_>>(), [true]);
    let read = outcome.diagnostics.iter().filter(|finding| finding.message.contains("no object of Kubernetes"));
    assert_eq!(read.count(), (1 << 20) / 378, "as many as it is enough for, and no more of the file");
}

#[test]
fn a_pipe_and_a_device_are_not_read_and_may_have_had_a_key_in_them() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.yaml"), backend("b", 80) + &route("r", "m", "b")).unwrap();
    let [pipe, device] = ["pipe.yaml", "zero.yaml"].map(|name| directory.path().join(name));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
    let outcome = compile(load(&[directory.path().to_owned()]), Settings::default(), 1, None).unwrap();
    let message = |path: &Path| format!("cannot read {}: it is not a regular file", path.display());
    assert_eq!(errors(&outcome), [message(&pipe), message(&device)]);
    assert_eq!(models(&outcome.config), ["m"]);
    assert_eq!(outcome.config.gate_config.access, Access::Keys(Vec::new()));
}

#[test]
fn a_mistake_that_aliases_repeat_is_not_told_a_million_times() {
    let headers = format!("headers: [&h {{}}{}]", ", *h".repeat(5_000));
    let text = route("r", "m", "b").replace("headers: [{name: x-ai-eg-model, value: m}]", &headers);
    let outcome = compile_text(&text, None);
    assert!(outcome.diagnostics.len() < 1_100, "{}", outcome.diagnostics.len());
    let last = outcome.diagnostics.iter().find(|finding| finding.message.contains("further findings")).unwrap();
    assert!(last.is_error() && last.location.is_some());
}

#[test]
fn what_is_lost_of_a_text_is_looked_for_once() {
    let lost = |text: &str| resource::read(Documents::from_text("test.yaml", text)).lost.len();
    assert_eq!(lost(&"--- a\n".repeat(10_000)), 1);
    let nameless = "apiVersion: attache.dev/v1alpha1\nkind: ClientKey\n---\n";
    assert_eq!(lost(&(nameless.repeat(10) + &"--- a\n".repeat(10))), 2);
    let route = "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIGatewayRoute\n---\n";
    assert_eq!(lost(&(route.repeat(10) + &"--- a\n".repeat(10))), 2);
}

#[test]
fn a_finding_shows_the_beginning_of_a_long_line_alone() {
    let keys: String = (0..5_000).map(|key| format!("é{key}: , é{key}: , ")).collect();
    let outcome = compile_text(&format!("{{{keys}}}"), None);
    let twice: Vec<String> = outcome.diagnostics.iter().map(|finding| finding.plain().to_string()).collect();
    assert!(twice.len() > 4_000);
    assert!(twice.iter().all(|text| text.len() < 600), "{}", twice[0]);
    let mut shown = Vec::new();
    report::write(&outcome.diagnostics, report::Style::Graphical, &mut shown).unwrap();
    assert!(shown.len() < 600 * twice.len());
}

#[test]
fn a_text_that_is_half_written_never_opens_the_gate_nor_moves_a_route() {
    let text = client_key(&format!("sha256: {SHA}, tenant: acme, routes: ['*']")) + GATEWAY;
    let whole = compile_text(&text, None);
    assert_ne!(whole.config.gate_config.access, Access::Open);
    let cuts = (0..text.len()).filter(|cut| text.is_char_boundary(*cut));
    for cut in cuts.step_by(7) {
        let half = compile_text(&text[..cut], Some(&whole.resources));
        assert_ne!(half.config.gate_config.access, Access::Open, "cut at {cut}");
        for route in &half.config.routes {
            let before = whole.config.routes.iter().find(|before| before.name == route.name).unwrap();
            let targets = |config: &Config, route: &model::Route| -> Vec<String> {
                let targets = route.rules.iter().flat_map(|rule| &rule.targets);
                targets.map(|target| config.backends[target.backend].name.to_string()).collect()
            };
            let (now, then) = (targets(&half.config, route), targets(&whole.config, before));
            assert!(now.iter().all(|target| then.contains(target)), "cut at {cut}: {now:?}");
        }
    }
}

#[test]
fn a_comma_in_a_number_is_no_smaller_number() {
    for limit in ["1,000", "2,500,000"] {
        let policy = format!(
            "apiVersion: attache.dev/v1alpha1\nkind: TokenLimitPolicy\nmetadata: {{name: p}}\nspec:\n  targetRefs: [{{group: \
             aigateway.envoyproxy.io, kind: AIGatewayRoute, name: r}}]\n  limits: [{{name: m, per: [key], limit: {limit}, window: 1m}}]\n"
        );
        let outcome = compile_text(&policy, None);
        assert!(
            errors(&outcome).iter().any(|error| error.contains("a comma ends a value here")),
            "{:?}",
            errors(&outcome)
        );
    }
}

#[test]
fn a_directory_is_read_whatever_the_case_of_its_endings_and_what_is_below_it_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir(path("keys")).unwrap();
    std::fs::create_dir(path("..2026_12_01")).unwrap();
    let secret = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {}}"#;
    for name in ["a.json", "b.YAML", "c.Yml", "keys/d.yaml", "..2026_12_01/e.yaml", "notes.txt"] {
        std::fs::write(path(name), secret).unwrap();
    }
    let documents = load(&[directory.path().to_owned()]);
    assert_eq!(documents.documents.len(), 3);
    let (_, report) = report(directory.path());
    let below = format!("the files in {} are not read", path("keys").display());
    assert!(report.contains(&below) && !report.contains("2026_12_01 are"), "{report}");
}

#[test]
fn where_nothing_was_found_nothing_is_well() {
    let directory = tempfile::tempdir().unwrap();
    for text in [None, Some("# Nothing but a comment.\n")] {
        text.into_iter().for_each(|text| std::fs::write(directory.path().join("a.yaml"), text).unwrap());
        let (verdict, report) = report(directory.path());
        assert_eq!(verdict, Verdict::Faulty, "{report}");
        assert!(report.contains("nothing was checked"), "{report}");
    }
}

#[test]
fn what_people_call_a_tenant_is_told_its_name_here() {
    let policy = "apiVersion: attache.dev/v1alpha1\nkind: TokenLimitPolicy\nmetadata: {name: p}\nspec:\n  targetRefs: [{group: \
                  aigateway.envoyproxy.io, kind: AIGatewayRoute, name: r}]\n  limits: [{name: m, per: [team], limit: 10, window: 1m}]\n";
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.yaml"), policy).unwrap();
    assert!(report(directory.path()).1.contains("did you mean `tenant`?"));
}
