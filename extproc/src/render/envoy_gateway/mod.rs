//! Manifests for an Envoy Gateway that is there already: standard objects alone.
//!
//! [`manifests`] says in Envoy Gateway's words what [`bootstrap`](super::bootstrap) says in Envoy's. What each field becomes
//! in Envoy's configuration is told in `docs/envoy-gateway.md`. It is pure: the same input gives the same bytes.

mod backends;
mod config_map;
mod deployment;
mod error;
mod extension;
mod names;
mod network;
mod object;
mod options;
mod plan;
mod pod;
mod proxy;
mod routes;
mod size;
mod tls;
mod traffic;
mod wasm;

use std::net::IpAddr;

use serde_json::Value;

use config_map::ConfigFiles;
use plan::Plan;

use super::yaml;
use crate::config::{Config, DocumentText};

pub use error::GatewayError;
pub use options::{
    GatewayName, GatewayOptions, GatewayRedis, InvalidGatewayName, InvalidServiceName, Ledgers, ServiceName,
    SidecarForm, is_dns_label, is_dns_subdomain,
};
pub use wasm::{InvalidWasm, WasmSource};

/// The objects, as YAML documents in the order in which they are best applied. `texts` are the documents of which `config` was
/// compiled.
///
/// # Errors
/// Everything for which Envoy Gateway or Kubernetes would refuse an object, or what an object must not show.
pub fn manifests(
    config: &Config,
    texts: &[DocumentText],
    options: &GatewayOptions,
) -> Result<String, Vec<GatewayError>> {
    let mut errors = Vec::new();
    let plan = keep(Plan::new(config, options), &mut errors);
    // Whoever runs the sidecar elsewhere gives it its documents there.
    let texts = if options.runs_sidecar() { texts } else { &[] };
    let files = keep(ConfigFiles::new(texts, config, options), &mut errors);
    let client_traffic =
        keep(traffic::client_traffic_policy(config, options).map_err(|error| vec![error]), &mut errors);
    errors.extend(redis_faults(options));
    errors.extend(ledger_fault(options));
    errors.extend(hostname_faults(options));
    let (Some(plan), Some(files), Some(client_traffic)) = (plan, files, client_traffic) else { return Err(errors) };
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut objects = Vec::new();
    if options.runs_sidecar() {
        objects.push(files.config_map(options));
    }
    if let SidecarForm::Deployment { replicas } = options.sidecar {
        objects.extend(deployment::deployment(replicas, config, &files, options));
        objects.push(network::network_policy(config, options));
    }
    objects.extend(network::reference_grant(options));
    objects.extend(proxy::envoy_proxy(config, &files, options));
    objects.push(client_traffic);
    objects.extend(backends::backends(&plan, options));
    objects.extend(tls::policies(&plan, options));
    objects.extend(routes::routes(config, &plan, options));
    objects.extend(traffic::backend_traffic_policies(&plan, options));
    objects.extend(extension::extension(config, &plan, options).map_err(|error| vec![error])?);
    let too_large: Vec<GatewayError> = objects.iter().filter_map(size::fault).collect();
    if too_large.is_empty() { Ok(documents(&header(options), &objects)) } else { Err(too_large) }
}

fn keep<T>(result: Result<T, Vec<GatewayError>>, errors: &mut Vec<GatewayError>) -> Option<T> {
    result.map_err(|found| errors.extend(found)).ok()
}

fn redis_faults(options: &GatewayOptions) -> Vec<GatewayError> {
    let Some(redis) = options.redis.as_ref().filter(|_| options.runs_sidecar()) else { return Vec::new() };
    let mut faults = Vec::new();
    if redis.target.has_password() {
        faults.push(GatewayError::RedisPassword);
    }
    let addresses = redis.target.tcp_addresses();
    if addresses.is_empty() {
        faults.push(GatewayError::RedisSocket);
    }
    let near = addresses.into_iter().filter(|(host, _)| is_loopback(host));
    faults.extend(near.map(|(host, _)| GatewayError::RedisLoopback { host: host.to_owned() }));
    faults
}

/// Two pods that know nothing of each other let everybody use every limit twice: nobody asks for that by leaving an option out.
fn ledger_fault(options: &GatewayOptions) -> Option<GatewayError> {
    let SidecarForm::Deployment { replicas } = options.sidecar else { return None };
    let are_separate = options.redis.is_none() && replicas.get() > 1;
    (are_separate && options.ledgers == Ledgers::Shared).then_some(GatewayError::SeparateLedgers { replicas })
}

/// RFC 6761, 6.3, and what connects to the machine itself.
fn is_loopback(host: &str) -> bool {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback() || address.is_unspecified(),
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    }
}

fn hostname_faults(options: &GatewayOptions) -> Option<GatewayError> {
    /// Gateway API: host names of an HTTPRoute.
    const MOST: usize = 16;
    let count = options.hostnames.len();
    (count > MOST).then_some(GatewayError::TooManyHostnames { count, most: MOST })
}

fn header(options: &GatewayOptions) -> String {
    format!(
        "\
# Manifests for Envoy Gateway v1.8 and v1.9, rendered by `attache render envoy-gateway` for the Gateway
# {gateway}, which has to be there. Change the documents they were rendered from, not this file, and apply it with
# `kubectl apply --server-side -f FILE`. All of it has the label app.kubernetes.io/instance={instance},
# by which to find what a later rendering has no more.
#
# Before: Envoy Gateway's own configuration needs `extensionApis: {{enableBackend: true}}`. What you have to decide stands at
# each object after `Decide`. What each field becomes in Envoy is told in docs/envoy-gateway.md.
",
        gateway = options.gateway,
        instance = options.instance(),
    )
}

fn documents(header: &str, objects: &[Value]) -> String {
    let mut text = header.to_owned();
    for object in objects {
        text.push_str("---\n");
        text.push_str(&yaml::emit(object));
    }
    text
}

#[cfg(test)]
mod tests;
