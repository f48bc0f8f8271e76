//! Addresses in Envoy's form.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::{ExtprocAddress, RenderError};
use crate::config::model::EndpointAddress;

/// An IP address and port.
pub(super) fn socket(address: SocketAddr) -> Value {
    host_and_port(&address.ip().to_string(), address.port())
}

/// Where a replica listens.
pub(super) fn endpoint(address: &EndpointAddress) -> Value {
    match address {
        EndpointAddress::Ip(address) => socket(*address),
        EndpointAddress::Fqdn { hostname, port } => host_and_port(hostname, *port),
        EndpointAddress::Unix(path) => pipe(path),
    }
}

/// Where the sidecar listens.
pub(super) fn extproc(address: &ExtprocAddress) -> Result<Value, RenderError> {
    Ok(match address {
        ExtprocAddress::Unix(path) => pipe(path_text(path)?),
        ExtprocAddress::Tcp { host, port } => host_and_port(host, *port),
    })
}

/// A path as YAML can hold it.
pub(super) fn path_text(path: &Path) -> Result<&str, RenderError> {
    path.to_str().ok_or_else(|| RenderError::PathNotUtf8 { path: path.to_owned() })
}

fn host_and_port(host: &str, port: u16) -> Value {
    json!({"socket_address": {"address": host, "port_value": port}})
}

fn pipe(path: &str) -> Value {
    json!({"pipe": {"path": path}})
}
