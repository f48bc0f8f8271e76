//! Every rendering beside the examples is what the cluster would take.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::graph;
use crate::schema::Schema;

/// What `tests/examples.rs` renders for.
const GATEWAY: &str = "gateways/llm";

fn renderings() -> Vec<(String, Vec<Value>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config/examples");
    let mut renderings: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".gateway.yaml"))
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path.file_name().unwrap().to_string_lossy().into_owned(), serde_saphyr::from_multiple(&text).unwrap())
        })
        .collect();
    renderings.sort_by(|one, other| one.0.cmp(&other.0));
    renderings
}

#[test]
fn every_object_keeps_to_its_schema() {
    let (schema, renderings) = (Schema::load(), renderings());
    assert!(renderings.len() >= 5, "{}", renderings.len());
    for (name, objects) in renderings {
        for object in objects {
            let faults = schema.faults(&object);
            assert!(faults.is_empty(), "{name}: {}: {faults:#?}", object["metadata"]["name"]);
        }
    }
}

#[test]
fn every_object_is_there_once_and_what_it_names_is_there() {
    for (name, mut objects) in renderings() {
        if objects.iter().all(|object| object["kind"] != "ConfigMap") {
            objects.push(json!({"kind": "Service", "metadata": {"name": "attache", "namespace": "attache"}}));
        }
        let faults = graph::faults(&objects, GATEWAY);
        assert!(faults.is_empty(), "{name}: {faults:#?}");
    }
}

#[test]
fn every_form_of_the_sidecar_is_among_the_examples() {
    let renderings = renderings();
    for kind in ["Deployment", "EnvoyProxy", "ReferenceGrant", "NetworkPolicy"] {
        let has = |objects: &[Value]| objects.iter().any(|object| object["kind"] == kind);
        assert!(renderings.iter().any(|(_, objects)| has(objects)), "no {kind}");
        assert!(renderings.iter().any(|(_, objects)| !has(objects)), "{kind} everywhere");
    }
    let names_only = |objects: &[Value]| objects.iter().all(|object| object["kind"] != "ConfigMap");
    assert!(renderings.iter().any(|(_, objects)| names_only(objects)), "none for a sidecar that runs already");
}
