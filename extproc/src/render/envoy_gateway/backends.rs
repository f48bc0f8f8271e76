//! Backends: where model servers listen.
//!
//! They are ours, under names of our own: the operator's Backends of the same endpoints may be there as well, with settings
//! that we know nothing of.

use serde_json::{Map, Value, json};

use super::object::{BACKEND, ENVOY_GATEWAY, object};
use super::options::GatewayOptions;
use super::plan::{Plan, Target, TargetBackend};
use super::tls;
use crate::config::model::EndpointAddress;

/// One Backend for each target, in order.
pub(super) fn backends(plan: &Plan<'_>, options: &GatewayOptions) -> Vec<Value> {
    let of_target = plan.targets().flat_map(|target| target.backends.iter().map(move |backend| (target, backend)));
    of_target.map(|(target, backend)| one(target, backend, options)).collect()
}

fn one(target: &Target<'_>, backend: &TargetBackend<'_>, options: &GatewayOptions) -> Value {
    let endpoints: Vec<Value> = backend.endpoints.iter().filter_map(|endpoint| address(&endpoint.address)).collect();
    let namespace = &options.gateway.namespace;
    let mut spec = Map::new();
    spec.insert("endpoints".to_owned(), json!(endpoints));
    if let Some(tls) = target.tls.and_then(tls::of_backend) {
        spec.insert("tls".to_owned(), tls);
    }
    object(BACKEND, namespace, &backend.name, options, &format!("{}.", target.cluster), json!({"spec": spec}))
}

/// `None` for sockets, which the plan has refused.
fn address(address: &EndpointAddress) -> Option<Value> {
    match address {
        EndpointAddress::Ip(address) => {
            Some(json!({"ip": {"address": address.ip().to_string(), "port": address.port()}}))
        }
        EndpointAddress::Fqdn { hostname, port } => Some(json!({"fqdn": {"hostname": &**hostname, "port": port}})),
        EndpointAddress::Unix(_) => None,
    }
}

/// A rule's references to a target's Backends. Envoy makes one cluster of them; each has the weight of its endpoints.
pub(super) fn refs(backends: &[TargetBackend<'_>]) -> Vec<Value> {
    let reference = |backend: &TargetBackend<'_>| {
        let mut reference = json!({"group": ENVOY_GATEWAY, "kind": "Backend", "name": backend.name});
        if backends.len() > 1
            && let Some(fields) = reference.as_object_mut()
        {
            fields.insert("weight".to_owned(), json!(backend.endpoints.len()));
        }
        reference
    };
    backends.iter().map(reference).collect()
}
