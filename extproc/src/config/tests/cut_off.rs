//! Files that end too early: a guard that is lost must close what it guards, wherever its text was cut.

use super::*;

const KEY: &str = "apiVersion: attache.dev/v1alpha1
kind: ClientKey
metadata:
  name: app
  namespace: team
spec:
  tenant: \"Bäckerei\"
  sha256: SHA
  routes: [\"*\"]
";

const POLICY: &str = "apiVersion: attache.dev/v1alpha1
kind: TokenLimitPolicy
metadata:
  name: budget
  namespace: team
spec:
  targetRefs:
  - kind: AIGatewayRoute
    name: route
  limits:
  - name: per-minute
    per: [key]
    limit: 300
    window: 1m
";

/// The same object in the ways in which people and programs write it.
fn written(object: &str) -> Vec<String> {
    let object = object.replace("SHA", SHA);
    let value: serde_json::Value = serde_saphyr::from_str(&object).unwrap();
    let items: String = object.lines().map(|line| format!("  {line}\n")).collect();
    let items = items.replacen("  apiVersion", "- apiVersion", 1);
    vec![
        format!("---\n{object}"),
        format!("--- !!map &all\n{object}...\n"),
        format!("apiVersion: v1\nkind: List\nitems:\n{items}"),
        format!("apiVersion: v1\nitems:\n{items}kind: List\n"),
        value.to_string(),
        serde_json::to_string_pretty(&value).unwrap(),
        object.replace('\n', "\r\n"),
        format!("\u{feff}{object}"),
        object,
    ]
}

fn routes() -> String {
    (backend("a", 1) + &route("route", "m", "a")).replace("metadata: {name", "metadata: {namespace: team, name")
}

/// What comes of each beginning of a text at a start, in a file of its own beside the routes.
fn at_every_cut(text: &str, mut check: impl FnMut(&str, &Outcome)) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.yaml"), routes()).unwrap();
    for cut in 0..=text.len() {
        let half = &text.as_bytes()[..cut];
        std::fs::write(directory.path().join("b.yaml"), half).unwrap();
        let outcome = compile(load(&[directory.path().to_owned()]), Settings::default(), 1, None).unwrap();
        assert_eq!(models(&outcome.config), ["m"]);
        check(&String::from_utf8_lossy(half), &outcome);
    }
}

#[test]
fn no_beginning_of_a_key_lets_anyone_call_but_its_owner() {
    for text in written(KEY) {
        let mut last = None;
        at_every_cut(&text, |half, outcome| {
            let Access::Keys(keys) = &outcome.config.gate_config.access else { panic!("open after {half:?}") };
            assert!(keys.iter().all(|key| key.sha256.to_string() == SHA), "{half:?}");
            last = Some(keys.len());
        });
        assert_eq!(last, Some(1), "{text}");
    }
}

#[test]
fn no_beginning_of_a_limit_leaves_its_route_served_without_one() {
    for text in written(POLICY) {
        let mut last = None;
        at_every_cut(&text, |half, outcome| {
            let route = &outcome.config.routes[0];
            let is_limited = route.limits.iter().any(|limit| limit.amount <= 300);
            assert!(is_limited || route.limits_known == LimitsKnown::NotAll, "open after {half:?}");
            last = Some((route.limits.len(), route.limits_known));
        });
        assert_eq!(last, Some((1, LimitsKnown::All)), "{text}");
    }
}

#[test]
fn no_beginning_of_a_document_after_others_lets_anyone_call() {
    for object in written(KEY) {
        let separated = format!("---\n{}", object.trim_start_matches('\u{feff}').trim_start_matches("---\n"));
        // From the first byte of the separator to its end, all that is cut off may be meant to be.
        let whole = routes().trim_end_matches("---\n").to_owned();
        for cut in (1..separated.len()).filter(|cut| separated.is_char_boundary(*cut)) {
            let half = &separated[..cut];
            let access = compile_text(&(whole.clone() + half), None).config.gate_config.access;
            let at_its_word = half.lines().all(|line| line.trim_end() == "---");
            assert_eq!(access == Access::Open, at_its_word, "{half:?}");
        }
    }
}

#[test]
fn a_document_that_says_nothing_keeps_the_gate_shut_and_a_comment_does_not() {
    let shut = Access::Keys(Vec::new());
    for text in [
        "-",
        "--",
        "---",
        "--- ",
        "...",
        "~",
        "7",
        "'a'",
        "\"\"",
        "!!map",
        "&a",
        "!a",
        "[]",
        "{",
        "|",
        ">",
        "%YAML 1.2",
    ] {
        for text in [text.to_owned(), format!("{text}\n"), format!("# keys\n{text}")] {
            assert_eq!(compile_text(&text, None).config.gate_config.access, shut, "{text:?}");
        }
    }
    for text in ["# keys", " # keys\n\n#", "\u{feff}# keys\n"] {
        assert_eq!(compile_text(text, None).config.gate_config.access, Access::Open, "{text:?}");
    }
}

#[test]
fn no_beginning_of_a_policy_of_envoy_gateway_is_somebody_elses() {
    for (group, kind) in [("gateway.envoyproxy.io", "BackendTrafficPolicy"), ("aigateway.envoyproxy.io", "QuotaPolicy")]
    {
        for text in [
            format!("apiVersion: {group}/v1alpha1\nkind: {kind}\nmetadata: {{name: p, namespace: team}}\n"),
            format!("kind: {kind}\napiVersion: {group}/v1alpha1\nmetadata: {{name: p, namespace: team}}\n"),
        ] {
            at_every_cut(&text, |half, outcome| {
                assert_eq!(outcome.config.routes[0].limits_known, LimitsKnown::NotAll, "open after {half:?}");
            });
        }
    }
}
