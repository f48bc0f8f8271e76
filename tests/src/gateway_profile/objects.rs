//! The manifests as they are looked up.

use serde_json::Value;

use crate::error::{Error, Result};

/// All objects, in their order.
#[derive(Debug)]
pub struct Objects(Vec<Value>);

/// What becomes something in Envoy, and what is Kubernetes's alone.
const TRANSLATED: [&str; 8] = [
    "HTTPRoute",
    "HTTPRouteFilter",
    "Backend",
    "BackendTLSPolicy",
    "BackendTrafficPolicy",
    "ClientTrafficPolicy",
    "EnvoyExtensionPolicy",
    "EnvoyProxy",
];
const NOT_ENVOYS: [&str; 7] =
    ["ConfigMap", "ServiceAccount", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ReferenceGrant"];

impl Objects {
    /// Reads YAML documents.
    ///
    /// # Errors
    /// When that is no YAML, or has other kinds in it.
    pub fn read(manifests: &str) -> Result<Self> {
        let objects: Vec<Value> = serde_saphyr::from_multiple(manifests)
            .map_err(|error| Error::unexpected("the manifests are no YAML", error.to_string()))?;
        for object in &objects {
            let kind = text(object, "/kind");
            if !TRANSLATED.contains(&kind) && !NOT_ENVOYS.contains(&kind) {
                return Err(Error::unexpected("a kind that is not translated", kind));
            }
        }
        Ok(Self(objects))
    }

    /// The objects of a kind.
    pub fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| text(object, "/kind") == kind)
    }

    /// An object by its name.
    pub(super) fn named(&self, kind: &'static str, name: &str) -> Result<&Value> {
        let mut found = self.of_kind(kind).filter(|object| text(object, "/metadata/name") == name);
        found.next().ok_or_else(|| Error::unexpected(format!("no {kind} of this name"), name))
    }

    /// The policy of a kind that targets an HTTPRoute.
    pub(super) fn policy_of(&self, kind: &'static str, route: &str) -> Option<&Value> {
        self.of_kind(kind).find(|policy| targets(policy, "HTTPRoute", route))
    }

    /// The BackendTLSPolicy of a Backend.
    pub(super) fn tls_of(&self, backend: &str) -> Option<&Value> {
        self.of_kind("BackendTLSPolicy").find(|policy| targets(policy, "Backend", backend))
    }
}

/// Whether a policy targets an object.
pub(super) fn targets(policy: &Value, kind: &str, name: &str) -> bool {
    list(policy, "/spec/targetRefs").iter().any(|target| text(target, "/kind") == kind && text(target, "/name") == name)
}

/// The text at a place; empty where there is none.
pub(super) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a place; empty where there is none.
pub(super) fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// That an object has no other fields than these.
pub(super) fn only(value: &Value, fields: &[&str]) -> Result<()> {
    let unknown =
        value.as_object().into_iter().flatten().map(|(name, _)| name).find(|name| !fields.contains(&name.as_str()));
    unknown.map_or(Ok(()), |name| Err(Error::unexpected("a field that is not translated", name.clone())))
}
