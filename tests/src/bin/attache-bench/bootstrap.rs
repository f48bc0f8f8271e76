//! One Envoy with a listener for each variant, made of what `attache render static` writes for real gateways.
//!
//! Listeners share the clusters of the upstream, as the same names mean the same; a second sidecar gets a cluster of its own.

use std::net::SocketAddr;

use attache_tests::{Error, Result};
use serde::Serialize;
use serde_json::{Value, json};

/// A way through Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Variant {
    /// A route to the upstream and nothing else.
    Plain,
    /// The same route behind the Wasm filter.
    Filter,
    /// What is rendered without the filter.
    Sidecar,
    /// What is rendered with it.
    Both,
    /// The sidecar alone, with its ledger in Redis.
    Redis,
}

impl Variant {
    /// What it is called in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain Envoy",
            Self::Filter => "+ Wasm filter",
            Self::Sidecar => "+ sidecar",
            Self::Both => "+ both",
            Self::Redis => "+ sidecar on Redis",
        }
    }
}

/// What the variants are made of, as YAML.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) without_filter: String,
    pub(crate) with_filter: String,
    /// Rendered for the sidecar that has its ledger in Redis.
    pub(crate) on_redis: Option<String>,
}

/// The cluster of the sidecar in every rendered bootstrap, and of the second sidecar here.
const SIDECAR: &str = "attache";
const SECOND_SIDECAR: &str = "attache-on-redis";

const ROUTER: &str = "envoy.filters.http.router";
const EXT_PROC: &str = "envoy.filters.http.ext_proc";

/// The bootstrap, as JSON: these variants at these addresses, with the plain route to this cluster.
pub(crate) fn merge(rendered: &Rendered, listeners: &[(Variant, SocketAddr)], cluster: &str) -> Result<String> {
    let parse =
        |yaml: &str| serde_saphyr::from_str::<Value>(yaml).map_err(|error| unlike("is no YAML", &error.to_string()));
    let without_filter = parse(&rendered.without_filter)?;
    let with_filter = parse(&rendered.with_filter)?;
    let on_redis = rendered.on_redis.as_deref().map(parse).transpose()?;

    let mut bootstrap = without_filter.clone();
    let listeners = listeners.iter().map(|&(variant, address)| {
        let source = match variant {
            Variant::Filter | Variant::Both => &with_filter,
            Variant::Plain | Variant::Sidecar => &without_filter,
            Variant::Redis => on_redis.as_ref().ok_or_else(|| unlike("is missing", "no Redis"))?,
        };
        listener(source, variant, address, cluster)
    });
    let listeners = listeners.collect::<Result<Vec<_>>>()?;
    *at(&mut bootstrap, "/static_resources/listeners")? = Value::Array(listeners);
    if let Some(mut on_redis) = on_redis {
        let clusters = at(&mut on_redis, "/static_resources/clusters")?.as_array_mut().into_iter().flatten();
        let mut second = clusters.filter(|cluster| cluster.get("name").is_some_and(|name| name == SIDECAR));
        let second = second.next().ok_or_else(|| unlike("has no cluster of this name", SIDECAR))?;
        *at(second, "/name")? = SECOND_SIDECAR.into();
        *at(second, "/load_assignment/cluster_name")? = SECOND_SIDECAR.into();
        let second = second.take();
        if let Some(clusters) = at(&mut bootstrap, "/static_resources/clusters")?.as_array_mut() {
            clusters.push(second);
        }
    }
    Ok(bootstrap.to_string())
}

/// The source's listener, made into the variant's.
fn listener(source: &Value, variant: Variant, address: SocketAddr, cluster: &str) -> Result<Value> {
    let mut listener = source.pointer("/static_resources/listeners/0").cloned().unwrap_or_default();
    *at(&mut listener, "/name")? = variant.name().into();
    *at(&mut listener, "/address/socket_address")? =
        json!({"address": address.ip().to_string(), "port_value": address.port()});
    let manager = at(&mut listener, "/filter_chains/0/filters/0/typed_config")?;
    *at(manager, "/stat_prefix")? = variant.name().into();
    match variant {
        Variant::Sidecar | Variant::Both => {}
        Variant::Redis => {
            let ext_proc = filters(manager)?.iter_mut().find(|filter| is_named(filter, EXT_PROC));
            let ext_proc = ext_proc.ok_or_else(|| unlike("has no filter of this name", EXT_PROC))?;
            *at(ext_proc, SIDECAR_OF_EXT_PROC)? = SECOND_SIDECAR.into();
        }
        Variant::Filter => {
            filters(manager)?.retain(|filter| !is_named(filter, EXT_PROC));
            *at(manager, "/route_config")? = plain_route(cluster);
        }
        Variant::Plain => {
            filters(manager)?.retain(|filter| is_named(filter, ROUTER));
            *at(manager, "/route_config")? = plain_route(cluster);
            if let Some(manager) = manager.as_object_mut() {
                manager.retain(|name, _| PLAIN_SETTINGS.contains(&name.as_str()));
            }
        }
    }
    Ok(listener)
}

/// Where the rendered ext_proc, behind its matcher, names the sidecar's cluster.
const SIDECAR_OF_EXT_PROC: &str = "/typed_config/xds_matcher/matcher_list/matchers/0/on_match/action/typed_config\
    /typed_config/typed_config/grpc_service/envoy_grpc/cluster_name";

/// What a plain Envoy needs of the connection manager's settings.
const PLAIN_SETTINGS: [&str; 5] = ["@type", "stat_prefix", "codec_type", "http_filters", "route_config"];

fn plain_route(cluster: &str) -> Value {
    json!({
        "name": "plain",
        "virtual_hosts": [{
            "name": "plain",
            "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "0s"}}],
        }],
    })
}

fn filters(manager: &mut Value) -> Result<&mut Vec<Value>> {
    at(manager, "/http_filters")?.as_array_mut().ok_or_else(|| unlike("is no list", "http_filters"))
}

fn is_named(filter: &Value, name: &str) -> bool {
    filter.get("name").is_some_and(|other| other == name)
}

fn at<'a>(value: &'a mut Value, pointer: &str) -> Result<&'a mut Value> {
    value.pointer_mut(pointer).ok_or_else(|| unlike("has nothing there", pointer))
}

fn unlike(how: &str, text: &str) -> Error {
    Error::unexpected(format!("the rendered bootstrap {how}"), text)
}
