//! Who may reach the sidecar, whom it may reach, and which references over namespaces are granted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::extension::sidecar_name;
use super::object::{ENVOY_GATEWAY, NETWORK_POLICY, REFERENCE_GRANT, object, pod_labels};
use super::options::{GatewayOptions, GatewayRedis, SidecarForm};
use super::pod::{EXTPROC_PORT, METRICS_PORT};
use crate::config::Config;
use crate::config::model::EndpointAddress;

/// For pods of the sidecar's own. Those of the proxies are not ours to close.
pub(super) fn network_policy(config: &Config, options: &GatewayOptions) -> Value {
    let in_namespace = |name: &str| json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
    let proxies = json!({
        "namespaceSelector": in_namespace(&options.proxy_namespace),
        "podSelector": {"matchLabels": {
            "gateway.envoyproxy.io/owning-gateway-namespace": &*options.gateway.namespace,
            "gateway.envoyproxy.io/owning-gateway-name": &*options.gateway.name,
        }},
    });
    let mut egress = vec![json!({
        "# DNS.": null,
        "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
    })];
    egress.extend(options.redis.iter().flat_map(redis));
    egress.extend(model_servers(config));
    let spec = json!({
        "podSelector": {"matchLabels": pod_labels(options)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "# The proxies of this Gateway, and nobody else, ask.": null,
                "from": [proxies],
                "ports": [{"protocol": "TCP", "port": EXTPROC_PORT}],
            },
            {
                "# Decide: who scrapes metrics. Probes come from the node, which is always let in; the admin port is the pod's own.": null,
                "from": [{"namespaceSelector": in_namespace(&options.monitoring_namespace)}],
                "ports": [{"protocol": "TCP", "port": METRICS_PORT}],
            },
        ],
        "egress": egress,
    });
    let comment = "Decide: where the proxies run (--proxy-namespace); Envoy Gateway has them in its own namespace, or in the \
                   Gateway's where its `deploy.type` is GatewayNamespace.";
    object(NETWORK_POLICY, options.sidecar_namespace(), &sidecar_name(options), options, comment, json!({"spec": spec}))
}

/// What its URL names.
fn redis(redis: &GatewayRedis) -> Vec<Value> {
    let mut places = Places::default();
    for (host, port) in redis.target.tcp_addresses() {
        places.add(host.parse().ok(), port);
    }
    places.rules("# Redis. Sentinels and clusters name further servers, on ports of theirs: add those.")
}

/// Their metrics pages, where a policy has them read.
fn model_servers(config: &Config) -> Vec<Value> {
    let mut places = Places::default();
    for backend in &config.backends {
        let Some(scraping) = &backend.affinity.scraping else { continue };
        // Where the policy names no port, or the engine none, the page is at the endpoint's own.
        let page = |port: u16| scraping.port.unwrap_or(port);
        for endpoint in &backend.endpoints {
            match &endpoint.address {
                EndpointAddress::Ip(address) => places.add(Some(address.ip()), page(address.port())),
                EndpointAddress::Fqdn { port, .. } => places.add(None, page(*port)),
                EndpointAddress::Unix(_) => {}
            }
        }
    }
    places.rules("# Metrics pages of model servers.")
}

/// Where connections go. Names can be anywhere.
#[derive(Default)]
struct Places {
    by_ip: BTreeMap<IpAddr, BTreeSet<u16>>,
    anywhere: BTreeSet<u16>,
}

impl Places {
    fn add(&mut self, ip: Option<IpAddr>, port: u16) {
        let ports = match ip {
            Some(ip) => self.by_ip.entry(ip).or_default(),
            None => &mut self.anywhere,
        };
        ports.insert(port);
    }

    fn rules(self, comment: &str) -> Vec<Value> {
        let ports = |ports: BTreeSet<u16>| -> Vec<Value> {
            ports.into_iter().map(|port| json!({"protocol": "TCP", "port": port})).collect()
        };
        let by_ip = self.by_ip.into_iter().map(|(ip, at)| {
            let bits = if ip.is_ipv4() { 32 } else { 128 };
            json!({"to": [{"ipBlock": {"cidr": format!("{ip}/{bits}")}}], "ports": ports(at)})
        });
        let mut rules: Vec<Value> = by_ip.collect();
        if !self.anywhere.is_empty() {
            rules.push(json!({"ports": ports(self.anywhere)}));
        }
        if let Some(first) = rules.first_mut()
            && let Some(fields) = first.as_object_mut()
        {
            fields.shift_insert(0, comment.to_owned(), Value::Null);
        }
        rules
    }
}

/// What lets the policy in the Gateway's namespace name the Service in another.
pub(super) fn reference_grant(options: &GatewayOptions) -> Option<Value> {
    let name = sidecar_name(options);
    let service = match &options.sidecar {
        SidecarForm::Container => return None,
        SidecarForm::Deployment { .. } => &*name,
        SidecarForm::External(service) => &*service.name.name,
    };
    if options.sidecar_namespace() == &*options.gateway.namespace {
        return None;
    }
    let spec = json!({
        "from": [{"group": ENVOY_GATEWAY, "kind": "EnvoyExtensionPolicy", "namespace": &*options.gateway.namespace}],
        "to": [{"group": "", "kind": "Service", "name": service}],
    });
    let comment = "Lets the Gateway's namespace name the sidecar's Service.";
    Some(object(REFERENCE_GRANT, options.sidecar_namespace(), &name, options, comment, json!({"spec": spec})))
}
