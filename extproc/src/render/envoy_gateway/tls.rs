//! BackendTLSPolicies: how model servers are called by TLS.
//!
//! Like the Backends they are ours, under names of our own: a policy of the operator's names the operator's Backend, and
//! Envoy Gateway would call ours in clear text.

use serde_json::{Map, Value, json};

use super::object::{BACKEND_TLS_POLICY, CONFIG_MAP, ENVOY_GATEWAY, object};
use super::options::GatewayOptions;
use super::plan::{Plan, Target};
use crate::config::model::{Endpoint, EndpointAddress};
use crate::config::tls::{ServerName, Subject, Trust, UpstreamTls};

/// The one name that all of these endpoints are asked for; a BackendTLSPolicy has to have it.
pub(super) fn hostname<'c>(tls: &'c UpstreamTls, endpoints: &[&'c Endpoint]) -> Option<&'c str> {
    match &tls.server_name {
        ServerName::Fixed(name) => Some(name),
        ServerName::Unsaid => None,
        ServerName::OfEndpoint => {
            let name = |endpoint: &&'c Endpoint| match &endpoint.address {
                EndpointAddress::Fqdn { hostname, .. } => Some(&**hostname),
                EndpointAddress::Ip(_) | EndpointAddress::Unix(_) => None,
            };
            let first = endpoints.first().and_then(name)?;
            endpoints.iter().all(|endpoint| name(endpoint) == Some(first)).then_some(first)
        }
    }
}

/// `tls` of a Backend. What a policy says better is left to the policy.
pub(super) fn of_backend(tls: &UpstreamTls) -> Option<Value> {
    let mut fields = Map::new();
    match (&tls.trust, &tls.server_name) {
        (Trust::System | Trust::Authorities(_), _) => return None,
        (Trust::Anyone, ServerName::Fixed(name)) => {
            fields.insert("sni".to_owned(), json!(&**name));
        }
        (Trust::Anyone, ServerName::OfEndpoint | ServerName::Unsaid) => {}
    }
    fields.insert("insecureSkipVerify".to_owned(), json!(true));
    Some(Value::Object(fields))
}

/// The authorities, then a policy for each target that is to be trusted by somebody.
pub(super) fn policies(plan: &Plan<'_>, options: &GatewayOptions) -> Vec<Value> {
    let mut authorities: Vec<&str> = Vec::new();
    let mut policies = Vec::new();
    for target in plan.targets() {
        let Some(tls) = target.tls else { continue };
        let trust = match &tls.trust {
            Trust::Anyone => continue,
            Trust::System => ("wellKnownCACertificates", json!("System")),
            Trust::Authorities(text) => {
                let known = authorities.iter().position(|other| *other == &**text);
                let index = known.unwrap_or_else(|| {
                    authorities.push(text);
                    authorities.len() - 1
                });
                let reference = json!({"group": "", "kind": "ConfigMap", "name": authorities_name(index, options)});
                ("caCertificateRefs", json!([reference]))
            }
        };
        policies.extend(policy(target, tls, trust, options));
    }
    let config_map = |(index, text): (usize, &&str)| {
        let comment = "By whom model servers are trusted.";
        let name = authorities_name(index, options);
        object(CONFIG_MAP, &options.gateway.namespace, &name, options, comment, json!({"data": {"ca.crt": text}}))
    };
    authorities.iter().enumerate().map(config_map).chain(policies).collect()
}

fn authorities_name(index: usize, options: &GatewayOptions) -> String {
    options.named(&format!("authorities-{}", index + 1))
}

fn policy(target: &Target<'_>, tls: &UpstreamTls, trust: (&str, Value), options: &GatewayOptions) -> Option<Value> {
    let endpoints: Vec<&Endpoint> =
        target.backends.iter().flat_map(|backend| backend.endpoints.iter().copied()).collect();
    // The plan has refused what has none.
    let hostname = hostname(tls, &endpoints)?;
    let name = &target.backends.first()?.name;
    let refs: Vec<Value> = target
        .backends
        .iter()
        .map(|backend| json!({"group": ENVOY_GATEWAY, "kind": "Backend", "name": backend.name}))
        .collect();
    let mut validation = Map::new();
    validation.insert(trust.0.to_owned(), trust.1);
    validation.insert("hostname".to_owned(), json!(hostname));
    let names = alternative_names(tls, hostname);
    if !names.is_empty() {
        validation.insert("subjectAltNames".to_owned(), json!(names));
    }
    let spec = json!({"targetRefs": refs, "validation": validation});
    let comment = format!("{}.", target.cluster);
    Some(object(BACKEND_TLS_POLICY, &options.gateway.namespace, name, options, &comment, json!({"spec": spec})))
}

/// Whom the certificate may name besides; none where that is the host name alone.
pub(super) fn alternative_names(tls: &UpstreamTls, hostname: &str) -> Vec<Value> {
    let is_hostname = |subject: &Subject| matches!(subject, Subject::Dns(name) if **name == *hostname);
    if tls.subjects.iter().all(is_hostname) {
        return Vec::new();
    }
    tls.subjects.iter().filter_map(alternative_name).collect()
}

/// `None` for an address, which only stands where there is no name.
fn alternative_name(subject: &Subject) -> Option<Value> {
    match subject {
        Subject::Dns(name) => Some(json!({"type": "Hostname", "hostname": &**name})),
        Subject::Uri(uri) => Some(json!({"type": "URI", "uri": &**uri})),
        Subject::Ip(_) => None,
    }
}
