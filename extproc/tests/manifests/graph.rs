//! Checks a set of objects against each other: each is there once, and what one names is there, granted where it has to be.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// What is wrong with the set. `gateway` is `namespace/name` of what is there already.
pub(crate) fn faults(objects: &[Value], gateway: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut there = BTreeSet::from([format!("Gateway {gateway}")]);
    for object in objects {
        let id = format!("{} {}/{}", text(object, "kind"), namespace(object), text(&object["metadata"], "name"));
        if !there.insert(id.clone()) {
            found.push(format!("{id} is there twice"));
        }
    }
    for object in objects {
        for reference in references(object) {
            let id = format!("{} {}/{}", reference.kind, reference.namespace, reference.name);
            let from = format!("{} {}", text(object, "kind"), text(&object["metadata"], "name"));
            if !there.contains(&id) {
                found.push(format!("{from} names {id}, which is not there"));
            }
            if reference.namespace != namespace(object) && !is_granted(objects, object, &reference) {
                found.push(format!("{from} names {id} without a grant"));
            }
        }
    }
    found
}

struct Reference {
    kind: String,
    namespace: String,
    name: String,
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn namespace(object: &Value) -> &str {
    text(&object["metadata"], "namespace")
}

/// Every reference to an object of a kind that may be among those printed.
fn references(object: &Value) -> Vec<Reference> {
    let mut found = Vec::new();
    collect(object, namespace(object), &mut found);
    found
}

fn collect(value: &Value, namespace: &str, found: &mut Vec<Reference>) {
    let mut add = |value: &Value, kind: &str| {
        let given = |field: &str, default: &str| value[field].as_str().unwrap_or(default).to_owned();
        found.push(Reference {
            kind: given("kind", kind),
            namespace: given("namespace", namespace),
            name: text(value, "name").to_owned(),
        });
    };
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, namespace, found)),
        Value::Object(fields) => {
            for (field, value) in fields {
                match field.as_str() {
                    "parentRefs" => value.as_array().unwrap().iter().for_each(|one| add(one, "Gateway")),
                    "targetRefs" => value.as_array().unwrap().iter().for_each(|one| add(one, "")),
                    "backendRefs" => value.as_array().unwrap().iter().for_each(|one| add(one, "Service")),
                    "caCertificateRefs" => value.as_array().unwrap().iter().for_each(|one| add(one, "ConfigMap")),
                    "extensionRef" => add(value, ""),
                    "configMap" => add(value, "ConfigMap"),
                    "serviceAccountName" => add(&json!({"name": value}), "ServiceAccount"),
                    _ => {}
                }
            }
            // The proxies' pods are not in the namespace of the object that describes them.
            let is_proxy = fields.contains_key("envoyDeployment");
            fields.iter().filter(|_| !is_proxy).for_each(|(_, value)| collect(value, namespace, found));
        }
        _ => {}
    }
}

fn is_granted(objects: &[Value], from: &Value, to: &Reference) -> bool {
    objects.iter().filter(|object| object["kind"] == "ReferenceGrant" && namespace(object) == to.namespace).any(
        |grant| {
            let list = |field: &str| grant["spec"][field].as_array().cloned().unwrap_or_default();
            list("from").iter().any(|one| one["kind"] == from["kind"] && text(one, "namespace") == namespace(from))
                && list("to")
                    .iter()
                    .any(|one| one["kind"] == *to.kind && (one["name"].is_null() || one["name"] == *to.name))
        },
    )
}

#[test]
fn what_is_named_has_to_be_there_once_and_granted() {
    let policy = |backend: Value| json!({"kind": "EnvoyExtensionPolicy", "metadata": {"name": "p", "namespace": "a"}, "spec": {"backendRefs": [backend]}});
    let service = json!({"kind": "Service", "metadata": {"name": "s", "namespace": "b"}});
    let grant = json!({
        "kind": "ReferenceGrant",
        "metadata": {"name": "g", "namespace": "b"},
        "spec": {"from": [{"kind": "EnvoyExtensionPolicy", "namespace": "a"}], "to": [{"kind": "Service", "name": "s"}]},
    });
    let there = policy(json!({"name": "s", "namespace": "b"}));
    assert_eq!(faults(&[there.clone(), service.clone(), grant], "a/g"), Vec::<String>::new());
    assert!(faults(&[there, service.clone()], "a/g")[0].contains("without a grant"));
    assert!(faults(&[policy(json!({"name": "s"}))], "a/g")[0].contains("which is not there"));
    assert!(faults(&[service.clone(), service], "a/g")[0].contains("twice"));
}
