//! What Envoy Gateway v1.9 makes of our manifests: objects of Kubernetes into the configuration of an Envoy.
//!
//! It knows the kinds and fields that `attache render envoy-gateway` prints, and stops at any other: what it would pass over
//! would be tested without it. Names, defaults and the order of filters and routes are those of Envoy Gateway's translator.
//! Where that has an Envoy ask it for clusters, routes and code (xDS), they stand in the bootstrap here.

mod clusters;
mod filters;
mod listener;
mod objects;
mod render;
mod routes;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::error::{Error, Result};

pub use objects::Objects;
pub use render::render;

/// Where things are on this machine that are elsewhere in a cluster.
#[derive(Clone, Debug)]
pub struct Places {
    /// Where the Gateway's listener is.
    pub listen: SocketAddr,
    /// Where Envoy's admin interface is.
    pub admin: SocketAddr,
    /// Where the sidecar is: `unix:/path` or `HOST:PORT`.
    pub extproc: String,
    /// The Wasm filter's file, which Envoy Gateway fetches from its URL and serves.
    pub wasm: Option<PathBuf>,
}

/// The bootstrap of an Envoy that Envoy Gateway runs for the Gateway of these manifests, as JSON, which is YAML.
///
/// # Errors
/// When the manifests have something in them that this does not translate.
pub fn bootstrap(manifests: &str, places: &Places) -> Result<String> {
    let objects = Objects::read(manifests)?;
    let mut clusters = clusters::of_routes(&objects)?;
    clusters.extend(clusters::of_extensions(&objects, places)?);
    let admin = address(&places.admin.to_string())?;
    let bootstrap = json!({
        "admin": {"address": admin},
        "static_resources": {"listeners": [listener::listener(&objects, places)?], "clusters": clusters},
    });
    serde_json::to_string_pretty(&bootstrap).map_err(|error| Error::unexpected("no JSON", error.to_string()))
}

/// `unix:/path` or `HOST:PORT` in Envoy's form.
fn address(text: &str) -> Result<Value> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(json!({"pipe": {"path": path}}));
    }
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let (host, port) = parts.ok_or_else(|| Error::unexpected("no address", text))?;
    Ok(socket(host.trim_matches(['[', ']']), port))
}

fn socket(host: &str, port: u16) -> Value {
    json!({"socket_address": {"address": host, "port_value": port}})
}

/// `16448Ki`, `1Mi` or a number, in bytes.
fn quantity(text: &str) -> Result<u64> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let (digits, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift))).unwrap_or((text, 0));
    digits.parse::<u64>().map(|number| number << shift).map_err(|_| Error::unexpected("no quantity", text))
}

const TYPE: &str = "type.googleapis.com";
/// `per_connection_buffer_limit_bytes` where no policy says otherwise.
const BUFFER_BYTES: u64 = 32768;
