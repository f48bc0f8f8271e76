//! A Wasm filter that goes by other documents than the sidecar.

use attache_gate::{Access, ConfigDigest, GateConfig, KeyDigest, KeyEntry, UnknownKeys};
use serde_json::{Value, json};

use super::super::*;
use super::{Dump, ENVOY_GATEWAY, STATIC};

/// The rules that are tested here.
pub(super) const RULES: [&str; 4] = ["wasm-refuses-new-keys", "wasm-refuses-new-paths", "wasm-stale", "wasm-differs"];

/// With these keys.
fn config(keys: &[&str]) -> GateConfig {
    let entry = |name: &&str| {
        let (id, digest) = (format!("default/{name}"), KeyDigest::of(name.as_bytes()));
        KeyEntry::new(id, digest, "acme".to_owned(), Vec::new())
    };
    GateConfig::new(Access::Keys(keys.iter().map(entry).collect()))
}

/// What the sidecar's page says that has these keys in force, and had those of `earlier` before.
fn sidecar(keys: &[&str], earlier: &[&[&str]]) -> Value {
    let digest = |keys: &[&str]| ConfigDigest::of(&config(keys)).to_string();
    let earlier: Vec<String> = earlier.iter().map(|keys| digest(keys)).collect();
    let names: Vec<String> = keys.iter().map(|name| format!("default/{name}")).collect();
    // The backend is that of the dump.
    let backends = json!([{"cluster": "default/pool"}]);
    json!({"filter": {"digest": digest(keys), "earlier": earlier}, "keys": names, "backends": backends})
}

/// What is found of a filter with this configuration, of the rules that are tested here.
fn found(dump: &str, filter: &GateConfig, sidecar: Value) -> Vec<(&'static str, String)> {
    let mut dump = Dump::new(dump);
    dump.plugin()["configuration"]["value"] = json!(serde_json::to_string(filter).unwrap());
    let evidence = Evidence { dump: dump.0, sidecar, ..Evidence::default() };
    let findings = examine(&evidence, &Question::default()).unwrap().remove(0).findings;
    findings.into_iter().filter(|found| RULES.contains(&found.id)).map(|found| (found.id, found.what)).collect()
}

#[test]
fn a_filter_that_runs_on_what_is_in_force_is_nothing_to_tell_of() {
    for dump in [STATIC, ENVOY_GATEWAY] {
        assert_eq!(found(dump, &config(&["a", "b"]), sidecar(&["b", "a"], &[&["a"]])), []);
    }
}

#[test]
fn a_filter_that_runs_on_what_was_in_force_before_is_stale() {
    for dump in [STATIC, ENVOY_GATEWAY] {
        let [(id, what)] = found(dump, &config(&["a"]), sidecar(&["a", "b"], &[&["a"]])).try_into().unwrap();
        assert_eq!(id, "wasm-stale");
        assert_eq!(
            what,
            "the Wasm filter is stale: its configuration was in force in the sidecar before, and is older; they differ in: \
             keys; the filter does not know default/b; new keys work, as the sidecar is asked about them"
        );
    }
}

#[test]
fn a_filter_that_runs_on_what_the_sidecar_never_had_may_be_the_newer_one() {
    let sidecar = sidecar(&["a"], &[]);
    let [(id, what)] = found(STATIC, &config(&["b", "c", "d", "e", "f"]), sidecar).try_into().unwrap();
    assert_eq!(id, "wasm-differs");
    assert!(what.contains("the filter does not know default/a"), "{what}");
    assert!(what.contains("does not know default/b, default/c, default/d and 2 further keys"), "{what}");
}

#[test]
fn a_filter_that_refuses_what_the_sidecar_would_let_in_is_an_error() {
    let refusing = GateConfig { unknown_keys: UnknownKeys::Refuse, ..config(&["a"]) };
    let told = found(STATIC, &refusing, sidecar(&["a", "b"], &[&["a"]]));
    let ids: Vec<_> = told.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, ["wasm-refuses-new-keys", "wasm-stale"]);
    assert!(told[0].1.starts_with("the Wasm filter refuses 1 key that the sidecar would let in; "), "{}", told[0].1);
    // One that knows too much refuses nothing.
    let refusing = GateConfig { unknown_keys: UnknownKeys::Refuse, ..config(&["a", "b"]) };
    let told = found(STATIC, &refusing, sidecar(&["a"], &[&["a", "b"]]));
    assert_eq!(told.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ["wasm-stale"]);
}

#[test]
fn a_path_that_the_filter_does_not_know_is_an_error_as_nobody_is_asked_about_it() {
    let with = |paths: &[&str]| {
        let mut config = config(&["a"]);
        config.pass_through.extend(paths.iter().map(|path| ((*path).to_owned(), vec!["default/r".to_owned()])));
        config
    };
    let page = |paths: &[&str], earlier: &[&str]| {
        let digest = |config: &GateConfig| ConfigDigest::of(config).to_string();
        let mut page = sidecar(&["a"], &[]);
        page["filter"] = json!({"digest": digest(&with(paths)), "earlier": [digest(&with(earlier))]});
        page["pass_through"] = json!(paths);
        page
    };
    let [(first, what), (second, _)] =
        found(STATIC, &with(&["/a"]), page(&["/a", "POST /b"], &["/a"])).try_into().unwrap();
    assert_eq!((first, second), ("wasm-refuses-new-paths", "wasm-stale"));
    assert_eq!(what, "the Wasm filter answers 404, and the sidecar would serve them: POST /b");
    // One that it should know no more is the sidecar's to refuse.
    let told = found(STATIC, &with(&["/a", "/b"]), page(&["/a"], &["/a", "/b"]));
    assert_eq!(told.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ["wasm-stale"]);
}

#[test]
fn what_an_older_sidecar_does_not_say_is_not_held_against_the_filter() {
    for page in [json!({"backends": []}), json!({"filter": {"digest": "x"}}), json!({"filter": 7, "keys": {}})] {
        assert_eq!(found(STATIC, &config(&["a"]), page), []);
    }
}
