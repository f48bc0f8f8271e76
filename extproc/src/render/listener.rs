//! The listener and its connection manager: what holds for a request before and after the filters.

use attache_proto::headers::{PROTOCOL, STRIPPED_EARLY};
use serde_json::{Map, Value, json};

use super::local_replies::local_replies;
use super::timeouts::{seconds, stream_idle};
use super::{RenderError, StaticOptions, address, filters, routes};
use crate::config::Config;

/// The one listener.
pub(super) fn listener(config: &Config, options: &StaticOptions) -> Result<Value, RenderError> {
    Ok(json!({
        "name": "attache",
        "address": address::socket(options.listen),
        "# What Envoy holds for a slow connection. Request bodies may be larger: see request_body_buffer_limit.": null,
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "filter_chains": [filter_chain(config, options)?],
    }))
}

fn filter_chain(config: &Config, options: &StaticOptions) -> Result<Value, RenderError> {
    let mut chain = Map::new();
    if let Some(tls) = &options.tls {
        chain.insert("transport_socket".to_owned(), tls.transport_socket()?);
    }
    let filters = json!([{
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": connection_manager(config, options)?,
    }]);
    chain.insert("filters".to_owned(), filters);
    Ok(Value::Object(chain))
}

/// Envoy's own default, written down because the memory of every slow stream depends on it.
pub(super) const CONNECTION_BUFFER_BYTES: u32 = 1024 * 1024;

fn connection_manager(config: &Config, options: &StaticOptions) -> Result<Value, RenderError> {
    Ok(json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "attache",
        "# HTTP/1.1 and HTTP/2, by what the client begins with, or by ALPN where there is TLS.": null,
        "codec_type": "AUTO",
        "# The peer is the client: it cannot say who it is.": null,
        "use_remote_address": true,
        "# By which callers, logs and model servers speak of the same request; in the sidecar's answers too.": null,
        "always_set_request_id_in_response": true,
        "normalize_path": true,
        "merge_slashes": true,
        "max_request_headers_kb": max_request_headers_kb(config),
        "request_headers_timeout": "10s",
        "# The longest silence. An answer that is not streamed is silent until the model has finished.": null,
        "stream_idle_timeout": seconds(stream_idle(config)),
        "# Nobody but the sidecar sets these. They go before any filter or route looks at the request.": null,
        "early_header_mutation_extensions": [early_mutations()],
        "http_filters": filters::http_filters(config, options)?,
        "# Envoy's own errors, in the form in which clients read errors. Those of model servers pass as they are.": null,
        "local_reply_config": local_replies(&config.settings.path_prefix),
        "route_config": routes::routes(config, options.cors.as_ref()),
    }))
}

/// Room above the gate's own bound, so that its 431, which says what to do, comes before Envoy's.
fn max_request_headers_kb(config: &Config) -> u64 {
    // Envoy's default and its maximum.
    const RANGE: std::ops::RangeInclusive<u64> = 60..=8192;
    (config.gate_config.max_header_bytes / 1024 + 16).clamp(*RANGE.start(), *RANGE.end())
}

/// Takes off ours, and Envoy's own, with which a client could set timeouts and retries; then says by which version of HTTP the
/// request came.
fn early_mutations() -> Value {
    let ours = STRIPPED_EARLY.iter().map(|name| json!({"remove": name}));
    let envoys = json!({"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}});
    // In the place of what a client may have said: see `filters::ext_proc`.
    let protocol = json!({"append": {
        "header": {"key": PROTOCOL, "value": "%PROTOCOL%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }});
    let mutations: Vec<Value> = std::iter::once(protocol).chain(ours).chain([envoys]).collect();
    json!({
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": mutations,
        },
    })
}
