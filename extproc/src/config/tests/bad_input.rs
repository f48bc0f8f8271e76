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
