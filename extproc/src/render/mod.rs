//! Envoy's own configuration, made from ours.
//!
//! [`bootstrap`] gives the `static` profile: one complete file for an Envoy that nobody else configures. [`envoy_gateway`] gives
//! objects for an Envoy Gateway, which configures its Envoys by them. Both are pure: the same input gives the same bytes.

mod address;
mod clusters;
mod cors;
pub mod envoy_gateway;
mod filters;
mod listen_tls;
mod listener;
mod local_replies;
mod options;
mod routes;
mod stats;
mod timeouts;
mod tls;
mod yaml;

use serde_json::{Map, Value, json};

use crate::config::Config;

pub use cors::{Cors, CorsOrigin, InvalidCorsOrigin};
pub use listen_tls::ListenTls;
pub use options::{ExtprocAddress, InvalidExtprocAddress, StaticOptions};

const HEADER: &str = "\
# Envoy's bootstrap, rendered by `attache render static`. Change the documents it was rendered from, not this file.
# It needs Envoy 1.38 or later.
#
# The way of a request: our headers are stripped, the sidecar (ext_proc) reads the body and names a cluster, and only
# then does a route to a model server match. What the sidecar has not seen gets a 503, so nothing here fails open.
";

/// One complete Envoy bootstrap, as YAML.
///
/// # Errors
/// [`RenderError`] where the configuration asks for something that Envoy has no words for.
pub fn bootstrap(config: &Config, options: &StaticOptions) -> Result<String, RenderError> {
    let mut fields = Map::new();
    if let Some(admin) = options.admin {
        fields
            .insert("# Whoever reaches this address can stop Envoy: keep it on a private one.".to_owned(), Value::Null);
        fields.insert("admin".to_owned(), json!({"address": address::socket(admin)}));
    }
    if options.tls.is_some() {
        fields.insert("# SDS wants to know whom it serves.".to_owned(), Value::Null);
        fields.insert("node".to_owned(), json!({"id": "attache", "cluster": "attache"}));
    }
    let mut listeners = vec![listener::listener(config, options)?];
    let mut clusters = clusters::clusters(config, &options.extproc)?;
    if let (Some(admin), Some(address)) = (options.admin, options.stats) {
        listeners.push(stats::listener(address));
        clusters.push(stats::cluster(admin));
    }
    fields.insert("static_resources".to_owned(), json!({"listeners": listeners, "clusters": clusters}));
    Ok(format!("{HEADER}\n{}", yaml::emit(&Value::Object(fields))))
}

/// Why there is no bootstrap for a configuration.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// Envoy's cluster types know either sockets or names, not both.
    #[error(
        "backend {cluster} has Unix sockets and DNS names among its endpoints, which one Envoy cluster cannot hold; \
         split it into two Backends"
    )]
    MixedEndpoints {
        /// The Backend's cluster.
        cluster: String,
    },
    /// A path that is no UTF-8 cannot be written into YAML.
    #[error("the path {path:?} is not UTF-8; Envoy's configuration cannot name it")]
    PathNotUtf8 {
        /// The path.
        path: std::path::PathBuf,
    },
    /// The filter's configuration could not be written as JSON.
    #[error("the Wasm filter's configuration cannot be written as JSON")]
    GateConfig(#[from] serde_json::Error),
}

#[cfg(test)]
mod tests;
