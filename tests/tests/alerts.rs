//! The alerts, as Prometheus itself reads and evaluates them, and what an operator is told to do about each.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use attache_tests::tools;
use serde_json::Value;

fn place(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn rules() -> Vec<Value> {
    let rules: Value =
        serde_saphyr::from_str(&fs::read_to_string(place("envoy-config/prometheus/rules.yaml")).unwrap()).unwrap();
    rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn promtool(arguments: &[&str], file: &str) {
    let Some(promtool) = tools::promtool().unwrap() else {
        eprintln!("skipped: there is no promtool");
        return;
    };
    let output = Command::new(promtool).args(arguments).arg(place(file)).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn prometheus_takes_the_rules_and_its_configuration() {
    promtool(&["check", "rules"], "envoy-config/prometheus/rules.yaml");
    // Alone: its rules are where the container has them.
    promtool(&["check", "config", "--syntax-only"], "envoy-config/prometheus/prometheus.yaml");
}

/// Over time, in the cases that `rules.test.yaml` tells; there is one for each alert.
#[test]
fn each_alert_fires_for_what_it_is_about_and_for_nothing_else() {
    promtool(&["test", "rules"], "tests/tests/alerts/rules.test.yaml");
    let cases = fs::read_to_string(place("tests/tests/alerts/rules.test.yaml")).unwrap();
    for rule in rules() {
        let alert = rule["alert"].as_str().unwrap();
        assert!(cases.contains(&format!("alertname=\"{alert}\"")), "{alert}");
    }
}

#[test]
fn each_alert_names_its_steps_and_each_of_those_has_an_alert() {
    let guide = fs::read_to_string(place("docs/operations.md")).unwrap();
    let headings = guide.lines().filter_map(|line| line.strip_prefix("### "));
    // As links name them: each of these is one word.
    let anchors: BTreeSet<_> = headings.map(str::to_lowercase).collect();
    let mut named = BTreeSet::new();
    for rule in rules() {
        let alert = rule["alert"].as_str().unwrap();
        let (file, anchor) = rule["annotations"]["runbook"].as_str().unwrap().split_once('#').unwrap();
        assert_eq!((file, anchor), ("docs/operations.md", &*alert.to_lowercase()));
        assert!(anchors.contains(anchor), "{anchor}");
        named.insert(anchor.to_owned());
    }
    let of_alerts = anchors.into_iter().filter(|anchor| anchor.starts_with("attache")).collect();
    assert_eq!(named, of_alerts);
}
