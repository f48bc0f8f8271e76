//! What all objects have in common: kinds, names, labels, references.

use serde_json::{Map, Value, json};

use super::options::GatewayOptions;

/// Gateway API's group.
pub(super) const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// Envoy Gateway's group.
pub(super) const ENVOY_GATEWAY: &str = "gateway.envoyproxy.io";

/// `apiVersion` and `kind` of what is printed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind(&'static str, &'static str);

pub(super) const HTTP_ROUTE: Kind = Kind("gateway.networking.k8s.io/v1", "HTTPRoute");
pub(super) const REFERENCE_GRANT: Kind = Kind("gateway.networking.k8s.io/v1beta1", "ReferenceGrant");
pub(super) const BACKEND_TLS_POLICY: Kind = Kind("gateway.networking.k8s.io/v1", "BackendTLSPolicy");
pub(super) const BACKEND: Kind = Kind("gateway.envoyproxy.io/v1alpha1", "Backend");
pub(super) const HTTP_ROUTE_FILTER: Kind = Kind("gateway.envoyproxy.io/v1alpha1", "HTTPRouteFilter");
pub(super) const BACKEND_TRAFFIC_POLICY: Kind = Kind("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy");
pub(super) const CLIENT_TRAFFIC_POLICY: Kind = Kind("gateway.envoyproxy.io/v1alpha1", "ClientTrafficPolicy");
pub(super) const ENVOY_EXTENSION_POLICY: Kind = Kind("gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy");
pub(super) const ENVOY_PROXY: Kind = Kind("gateway.envoyproxy.io/v1alpha1", "EnvoyProxy");
pub(super) const CONFIG_MAP: Kind = Kind("v1", "ConfigMap");
pub(super) const SERVICE_ACCOUNT: Kind = Kind("v1", "ServiceAccount");
pub(super) const SERVICE: Kind = Kind("v1", "Service");
pub(super) const DEPLOYMENT: Kind = Kind("apps/v1", "Deployment");
pub(super) const POD_DISRUPTION_BUDGET: Kind = Kind("policy/v1", "PodDisruptionBudget");
pub(super) const NETWORK_POLICY: Kind = Kind("networking.k8s.io/v1", "NetworkPolicy");

/// An object with these further fields, a `spec` mostly. `comment` stands above it.
pub(super) fn object(
    kind: Kind,
    namespace: &str,
    name: &str,
    options: &GatewayOptions,
    comment: &str,
    fields: Value,
) -> Value {
    let Kind(api_version, kind) = kind;
    let mut object = Map::new();
    if !comment.is_empty() {
        object.insert(format!("# {comment}"), Value::Null);
    }
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    let metadata = json!({"name": name, "namespace": namespace, "labels": labels(options)});
    object.insert("metadata".to_owned(), metadata);
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    Value::Object(object)
}

/// By which everything of one rendering is found, and pruned.
pub(super) fn labels(options: &GatewayOptions) -> Value {
    json!({
        "app.kubernetes.io/name": "attache",
        "app.kubernetes.io/instance": options.instance(),
        "app.kubernetes.io/managed-by": "attache-render",
    })
}

/// By which the sidecar's own pods are found.
pub(super) fn pod_labels(options: &GatewayOptions) -> Value {
    json!({"app.kubernetes.io/name": "attache", "app.kubernetes.io/instance": options.instance()})
}

/// References of a policy to HTTPRoutes.
pub(super) fn route_refs<'n>(names: impl IntoIterator<Item = &'n str>) -> Vec<Value> {
    let reference = |name| json!({"group": GATEWAY_API, "kind": "HTTPRoute", "name": name});
    names.into_iter().map(reference).collect()
}

/// A reference to the Gateway.
pub(super) fn gateway_ref(options: &GatewayOptions) -> Value {
    json!({"group": GATEWAY_API, "kind": "Gateway", "name": &*options.gateway.name})
}
