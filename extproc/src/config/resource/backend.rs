//! Backend of Envoy Gateway: where the replicas of one model server listen.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::{Spec, TlsSettings};
use crate::config::diagnostic::{Diagnostic, Location};
use crate::config::fields::{Fields, FromNode, Log, quote};
use crate::config::model::EndpointAddress;
use crate::config::node::Node;
use crate::config::value::{Located, Port, is_dns_name, one_of};

#[derive(Debug)]
pub(in crate::config) struct Backend {
    /// Never empty, no two alike.
    pub(in crate::config) endpoints: Vec<EndpointAddress>,
    /// Of the first of them.
    pub(in crate::config) location: Option<Location>,
    /// What is said here of TLS to them.
    pub(in crate::config) tls: Option<TlsSettings>,
}

impl Spec for Backend {
    const KIND: &'static str = "Backend";
}

impl FromNode for Backend {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.take_with("type", |node, log| one_of(node, log, &[("Endpoints", ())]));
            let tls = fields.take("tls");
            fields.unsupported("appProtocols", "requests go upstream over HTTP/1.1");
            fields.unsupported("fallback", "give the route's backendRefs a priority instead");
            let endpoints: Vec<Located<Address>> = fields.require_list("endpoints")?;
            let mut seen = HashSet::new();
            for Located { value, location } in &endpoints {
                let id = endpoint_id(&value.0);
                if !seen.insert(id.clone()) {
                    let twice = Diagnostic::error(location, format!("the endpoint {} is here twice", quote(&id)));
                    fields.push(twice.with_help("remove one of them"));
                }
            }
            let location = endpoints.first().map(|first| first.location.clone());
            Some(Self { endpoints: endpoints.into_iter().map(|endpoint| endpoint.value.0).collect(), location, tls })
        })
    }
}

/// `host:port` (IPv6 in brackets) or `unix:/path`.
pub(in crate::config) fn endpoint_id(address: &EndpointAddress) -> String {
    match address {
        EndpointAddress::Ip(address) => address.to_string(),
        EndpointAddress::Fqdn { hostname, port } => format!("{hostname}:{port}"),
        EndpointAddress::Unix(path) => format!("unix:{path}"),
    }
}

struct Address(EndpointAddress);

impl FromNode for Address {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("hostname", "the host header stays as it is");
            fields.unsupported("zone", "replicas are chosen without regard to it");
            let forms = ["ip", "fqdn", "unix"].map(|form| fields.has(form));
            if forms.into_iter().filter(|is_there| *is_there).count() != 1 {
                let message = "an endpoint is exactly one of `ip`, `fqdn` and `unix`";
                return fields.fail(message, "write `ip: {address: 10.0.0.1, port: 8000}`");
            }
            let ip = fields.take_with("ip", read_ip);
            let fqdn = fields.take_with("fqdn", read_fqdn);
            let unix = fields.take_with("unix", read_unix);
            ip.or(fqdn).or(unix).map(Self)
        })
    }
}

fn read_ip(node: &Node, log: &mut Log) -> Option<EndpointAddress> {
    Fields::read(node, log, |fields| {
        let address = fields.require_with("address", |node, log| {
            let text = Arc::<str>::from_node(node, log)?;
            let help = "write an IPv4 or IPv6 address here, or a name under `fqdn: {hostname, port}`";
            text.parse::<IpAddr>()
                .ok()
                .or_else(|| log.fail(node, format!("{} is not an IP address", quote(&text)), help))
        });
        let port: Option<Port> = fields.require("port");
        Some(EndpointAddress::Ip(SocketAddr::new(address?, port?.0)))
    })
}

fn read_fqdn(node: &Node, log: &mut Log) -> Option<EndpointAddress> {
    Fields::read(node, log, |fields| {
        let hostname = fields.require_with("hostname", |node, log| {
            let text = Arc::<str>::from_node(node, log)?;
            if text.parse::<IpAddr>().is_ok() {
                return log.fail(
                    node,
                    format!("{} is an IP address", quote(&text)),
                    "write it under `ip: {address, port}`",
                );
            }
            // Underscores are no part of DNS names, but Docker Compose resolves service names that have them.
            let hostname = text.to_lowercase();
            if is_dns_name(&hostname.replace('_', "-")) {
                return Some(Arc::from(hostname));
            }
            log.fail(node, format!("{} is not a host name", quote(&text)), "write a name without scheme, port or path")
        });
        let port: Option<Port> = fields.require("port");
        Some(EndpointAddress::Fqdn { hostname: hostname?, port: port?.0 })
    })
}

fn read_unix(node: &Node, log: &mut Log) -> Option<EndpointAddress> {
    /// `sun_path` has 108 bytes, the last of them zero.
    const MAX_BYTES: usize = 107;
    Fields::read(node, log, |fields| {
        let path = fields.require_with("path", |node, log| {
            let path = Arc::<str>::from_node(node, log)?;
            if path.starts_with('/') && path.len() <= MAX_BYTES {
                return Some(path);
            }
            let help = format!("write an absolute path of at most {MAX_BYTES} bytes");
            log.fail(node, format!("{} is not the path of a socket", quote(&path)), help)
        });
        Some(EndpointAddress::Unix(path?))
    })
}
