//! The operator's YAML, as the tests need it.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// A Backend and the AIServiceBackend of its name, with these `endpoints`.
pub(crate) fn backend(name: &str, endpoints: &str) -> String {
    format!(
        "{{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {{name: {name}}}, \
         spec: {{endpoints: {endpoints}}}}}\n---\n\
         apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIServiceBackend\nmetadata: {{name: {name}}}\n\
         spec: {{schema: {{name: OpenAI}}, backendRef: {{group: gateway.envoyproxy.io, kind: Backend, name: {name}}}}}\n\
         ---\n"
    )
}

/// The backend `pool`: all model servers as replicas.
pub(crate) fn pool() -> String {
    backend("pool", "${MODELS}")
}

/// A backend of the one model server with this index.
pub(crate) fn replica(name: &str, index: usize) -> String {
    backend(name, &format!("[{{ip: {{address: 127.0.0.1, port: ${{MODEL_{index}}}}}}}]"))
}

/// A route with one rule, for `model`, to these `backendRefs`.
pub(crate) fn route(name: &str, model: &str, backend_refs: &str) -> String {
    route_with(name, model, backend_refs, "")
}

/// The same with further fields of the route's `spec`, such as `llmRequestCosts: [...]`.
pub(crate) fn route_with(name: &str, model: &str, backend_refs: &str, fields: &str) -> String {
    format!(
        "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIGatewayRoute\nmetadata: {{name: {name}}}\nspec:\n  rules:\n  \
         - matches: [{{headers: [{{name: x-ai-eg-model, value: \"{model}\"}}]}}]\n    backendRefs: [{backend_refs}]\n  \
         {fields}\n---\n"
    )
}

/// A key whose secret is `sk-<name>`.
pub(crate) fn key(name: &str, tenant: &str, routes: &str) -> String {
    key_with(name, &format!("tenant: {tenant}"), routes)
}

/// The same with further fields of its `spec`.
pub(crate) fn key_with(name: &str, fields: &str, routes: &str) -> String {
    format!(
        "apiVersion: attache.dev/v1alpha1\nkind: ClientKey\nmetadata: {{name: {name}}}\n\
         spec: {{sha256: {}, {fields}, routes: [{routes}]}}\n---\n",
        digest(name)
    )
}

/// What stands in a ClientKey for the secret `sk-<name>`.
pub(crate) fn digest(name: &str) -> String {
    let mut digest = String::new();
    for byte in Sha256::digest(format!("sk-{name}")) {
        // Writing to a string does not fail.
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}

/// A policy of these limits on a route.
pub(crate) fn limits(route: &str, limits: &str) -> String {
    format!(
        "apiVersion: attache.dev/v1alpha1\nkind: TokenLimitPolicy\nmetadata: {{name: {route}-limits}}\n\
         spec: {{targetRefs: [{{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: {route}}}], limits: [{limits}]}}\n\
         ---\n"
    )
}

/// How a backend's replicas are chosen.
pub(crate) fn affinity(backend: &str, fields: &str) -> String {
    format!(
        "apiVersion: attache.dev/v1alpha1\nkind: CacheAffinityPolicy\nmetadata: {{name: {backend}-affinity}}\n\
         spec: {{targetRefs: [{{group: aigateway.envoyproxy.io, kind: AIServiceBackend, name: {backend}}}], {fields}}}\n---\n"
    )
}

/// One model, `m`, on all model servers, open to everybody.
pub(crate) fn open() -> String {
    pool() + &route("open", "m", "{name: pool}")
}
