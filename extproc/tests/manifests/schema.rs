//! Checks objects against `schema.yaml`, which says how it is to be read. It finds everything that is wrong, each with its path.

use std::collections::BTreeMap;

use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The table.
#[derive(Debug)]
pub(crate) struct Schema {
    scalars: BTreeMap<String, Scalar>,
    kinds: BTreeMap<String, Fields>,
    types: BTreeMap<String, Fields>,
}

type Fields = BTreeMap<String, Value>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scalar {
    is: Option<String>,
    #[serde(default)]
    pattern: Option<String>,
    #[serde(default)]
    length: Option<[usize; 2]>,
    #[serde(default)]
    range: Option<[i64; 2]>,
    #[serde(default, rename = "enum")]
    values: Option<Vec<String>>,
}

impl Schema {
    pub(crate) fn load() -> Self {
        let table: Value = serde_saphyr::from_str(include_str!("schema.yaml")).unwrap();
        let part = |name: &str| table[name].clone();
        Self {
            scalars: serde_json::from_value(part("scalars")).unwrap(),
            kinds: serde_json::from_value(part("kinds")).unwrap(),
            types: serde_json::from_value(part("types")).unwrap(),
        }
    }

    /// What is wrong with an object.
    pub(crate) fn faults(&self, object: &Value) -> Vec<String> {
        let mut faults = Faults { schema: self, found: Vec::new() };
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let kind = format!("{} {}", text("apiVersion"), text("kind"));
        let Some(fields) = self.kinds.get(&kind) else { return vec![format!("{kind} is no known kind")] };
        let Some(object) = object.as_object() else { return vec![format!("{kind} is no object")] };
        let mut fields = fields.clone();
        fields.insert("metadata*".to_owned(), Value::from("Metadata"));
        let mut object = object.clone();
        object.remove("apiVersion");
        object.remove("kind");
        faults.fields(&fields, &object, text("kind"));
        faults.found
    }
}

struct Faults<'s> {
    schema: &'s Schema,
    found: Vec<String>,
}

impl Faults<'_> {
    fn add(&mut self, path: &str, what: impl std::fmt::Display) {
        self.found.push(format!("{path}: {what}"));
    }

    fn fields(&mut self, fields: &Fields, object: &Map<String, Value>, path: &str) {
        for (name, value) in object {
            let declared = fields.get(name).or_else(|| fields.get(&format!("{name}*")));
            match declared.and_then(Value::as_str) {
                Some(expression) => self.value(expression, value, &format!("{path}.{name}")),
                None => self.add(path, format!("no field is called {name}")),
            }
        }
        for required in fields.keys().filter_map(|name| name.strip_suffix('*')) {
            if !object.contains_key(required) {
                self.add(path, format!("{required} is missing"));
            }
        }
        let strings = |rule: &Value| -> Vec<String> { serde_json::from_value(rule.clone()).unwrap() };
        if let Some(of) = fields.get("exactly-one").map(strings)
            && of.iter().filter(|name| object.contains_key(*name)).count() != 1
        {
            self.add(path, format!("one of {of:?} has to be there"));
        }
        if let Some([list, field]) = fields.get("all-or-none").map(strings).as_deref() {
            let items: Vec<&Value> = object.get(list).and_then(Value::as_array).into_iter().flatten().collect();
            let with = items.iter().filter(|item| item.get(field).is_some()).count();
            if with != 0 && with != items.len() {
                self.add(path, format!("some of {list} have {field}, and some have not"));
            }
        }
        if let Some(union) = fields.get("union").and_then(Value::as_object) {
            for (kind, field) in union {
                let field = field.as_str().unwrap();
                if (object.get("type") == Some(&Value::from(kind.as_str()))) != object.contains_key(field) {
                    self.add(path, format!("{field} is there for type {kind} alone"));
                }
            }
        }
    }

    fn value(&mut self, expression: &str, value: &Value, path: &str) {
        if let Some(list) = expression.strip_prefix('[') {
            let (of, bounds) = list.split_once("] ").unwrap();
            let (least, most) = bounds.split_once("..").unwrap();
            let Some(items) = value.as_array() else { return self.add(path, "it is no list") };
            if items.len() < least.parse().unwrap() || items.len() > most.parse().unwrap() {
                self.add(path, format!("{} items, not {bounds}", items.len()));
            }
            for (index, item) in items.iter().enumerate() {
                self.value(of, item, &format!("{path}[{index}]"));
            }
        } else if let Some(of) = expression.strip_prefix('{').and_then(|of| of.strip_suffix('}')) {
            let Some(entries) = value.as_object() else { return self.add(path, "it is no map") };
            for (name, entry) in entries {
                self.value(of, entry, &format!("{path}[{name}]"));
            }
        } else if let Some(scalar) = self.schema.scalars.get(expression) {
            if let Some(fault) = scalar.fault(value) {
                self.add(path, fault);
            }
        } else {
            let fields = self.schema.types.get(expression);
            let fields = fields.unwrap_or_else(|| panic!("schema.yaml has no {expression}"));
            match value.as_object() {
                Some(object) => self.fields(fields, object, path),
                None => self.add(path, "it is no object"),
            }
        }
    }
}

impl Scalar {
    fn fault(&self, value: &Value) -> Option<String> {
        if let Some(values) = &self.values {
            let is_one = value.as_str().is_some_and(|text| values.iter().any(|value| value == text));
            return (!is_one).then(|| format!("{value} is none of {values:?}"));
        }
        match self.is.as_deref().unwrap() {
            "any" => None,
            "boolean" => (!value.is_boolean()).then(|| format!("{value} is no boolean")),
            "integer" => {
                let number = value.as_i64();
                let is_in = number
                    .is_some_and(|number| self.range.is_none_or(|[least, most]| (least..=most).contains(&number)));
                (!is_in).then(|| format!("{value} is no integer of {:?}", self.range))
            }
            "string" => {
                let Some(text) = value.as_str() else { return Some(format!("{value} is no string")) };
                let long_enough = self.length.is_none_or(|[least, most]| (least..=most).contains(&text.len()));
                let matches = self.pattern.as_ref().is_none_or(|pattern| Regex::new(pattern).unwrap().is_match(text));
                (!long_enough || !matches).then(|| format!("{value} is not of {:?}, {:?}", self.length, self.pattern))
            }
            other => panic!("schema.yaml: {other} is no type"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An HTTPRoute without faults, with something put into it.
    fn route(pointer: &str, key: &str, value: Value) -> Vec<String> {
        let mut route = json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": "a", "namespace": "b"},
            "spec": {"rules": [{
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}, "headers": [{"name": "x", "value": "y"}]}],
                "filters": [{"type": "URLRewrite", "urlRewrite": {"hostname": "a.example"}}],
                "backendRefs": [{"name": "c", "port": 80}],
            }]},
        });
        if !key.is_empty() {
            route.pointer_mut(pointer).unwrap().as_object_mut().unwrap().insert(key.to_owned(), value);
        }
        Schema::load().faults(&route)
    }

    #[test]
    fn what_is_right_has_no_faults() {
        assert_eq!(route("", "", Value::Null), Vec::<String>::new());
    }

    #[test]
    fn every_kind_of_fault_is_found_and_named() {
        let rule = "/spec/rules/0";
        let cases = [
            (rule, "backendRef", json!([]), "no field is called backendRef"),
            (rule, "backendRefs", json!([{"port": 80}]), "name is missing"),
            (rule, "backendRefs", json!({}), "it is no list"),
            (rule, "backendRefs", json!([{"name": "c", "port": 0}]), "no integer"),
            (rule, "backendRefs", json!([{"name": "c", "port": "80"}]), "no integer"),
            (rule, "backendRefs", json!(vec![json!({"name": "c"}); 17]), "17 items"),
            (rule, "timeouts", json!({"request": "1 s"}), "is not of"),
            (rule, "timeouts", json!("1s"), "it is no object"),
            (rule, "matches", json!([{"path": {"type": "Prefix"}}]), "none of"),
            (rule, "matches", json!([{"headers": [{"name": "x", "value": "y".repeat(4097)}]}]), "is not of"),
            (rule, "filters", json!([{"type": "URLRewrite"}]), "for type URLRewrite alone"),
            (rule, "filters", json!([{"type": "ExtensionRef", "urlRewrite": {}}]), "for type"),
            ("/spec", "rules", json!([]), "0 items"),
            ("/spec", "hostnames", json!(["a.*.example"]), "is not of"),
            ("/metadata", "name", json!("A_b"), "is not of"),
            ("/metadata", "namespace", json!("x".repeat(64)), "is not of"),
            ("", "kind", json!("TCPRoute"), "no known kind"),
            ("", "status", json!({}), "no field is called status"),
        ];
        for (pointer, key, value, expected) in cases {
            let found = route(pointer, key, value.clone());
            assert!(found.iter().any(|fault| fault.contains(expected)), "{key}: {value}: {found:?}");
        }
    }

    #[test]
    fn what_the_schemas_say_in_cel_is_checked() {
        let backend = |endpoints: Value| {
            let object = json!({
                "apiVersion": "gateway.envoyproxy.io/v1alpha1",
                "kind": "Backend",
                "metadata": {"name": "a", "namespace": "b"},
                "spec": {"endpoints": endpoints},
            });
            Schema::load().faults(&object)
        };
        let (ip, fqdn) = (json!({"address": "10.0.0.1", "port": 1}), json!({"hostname": "a.example", "port": 1}));
        assert!(backend(json!([{"ip": ip}, {"ip": ip}])).is_empty());
        assert!(backend(json!([{"ip": ip, "fqdn": fqdn}]))[0].contains("one of"));
        assert!(backend(json!([{"ip": ip}, {"fqdn": fqdn}]))[0].contains("some of endpoints have fqdn"));
        assert!(!backend(json!([{"fqdn": {"hostname": "single", "port": 1}}])).is_empty());
    }

    #[test]
    fn every_type_that_the_table_names_is_in_it() {
        let schema = Schema::load();
        let fields = schema.types.values().chain(schema.kinds.values()).flatten();
        for (name, expression) in fields {
            let Some(expression) = expression.as_str() else { continue };
            let of = expression.trim_start_matches(['[', '{']);
            let of = of.split(['}', ']']).next().unwrap();
            let is_known = schema.scalars.contains_key(of) || schema.types.contains_key(of);
            assert!(is_known, "{name}: {expression}");
        }
        for (name, scalar) in &schema.scalars {
            assert!(scalar.is.is_some() != scalar.values.is_some(), "{name}");
            scalar.pattern.iter().for_each(|pattern| drop(Regex::new(pattern).unwrap()));
        }
    }
}
