//! The listener and its connection manager: what holds for a request before and after the filters.

use attache_proto::headers::STRIPPED_EARLY;
use serde_json::{Value, json};

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
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": connection_manager(config, options)?,
        }]}],
    }))
}

/// Envoy's own default, written down because the memory of every slow stream depends on it.
pub(super) const CONNECTION_BUFFER_BYTES: u32 = 1024 * 1024;

fn connection_manager(config: &Config, options: &StaticOptions) -> Result<Value, RenderError> {
    Ok(json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "attache",
        "# HTTP/1.1 and HTTP/2 without TLS.": null,
        "codec_type": "AUTO",
        "# The peer is the client: it cannot say who it is.": null,
        "use_remote_address": true,
        "normalize_path": true,
        "merge_slashes": true,
        "max_request_headers_kb": max_request_headers_kb(config),
        "request_headers_timeout": "10s",
        "# The longest silence. An answer that is not streamed is silent until the model has finished.": null,
        "stream_idle_timeout": seconds(stream_idle(config)),
        "# Nobody but the sidecar sets these. They go before any filter or route looks at the request.": null,
        "early_header_mutation_extensions": [strip_headers()],
        "http_filters": filters::http_filters(config, options)?,
        "# Envoy's own errors, in the form in which clients read errors. Those of model servers pass as they are.": null,
        "local_reply_config": local_replies(),
        "route_config": routes::routes(config),
    }))
}

/// Room above the gate's own bound, so that its 431, which says what to do, comes before Envoy's.
fn max_request_headers_kb(config: &Config) -> u64 {
    // Envoy's default and its maximum.
    const RANGE: std::ops::RangeInclusive<u64> = 60..=8192;
    (config.gate_config.max_header_bytes / 1024 + 16).clamp(*RANGE.start(), *RANGE.end())
}

/// Ours, and Envoy's own, with which a client could set timeouts and retries.
fn strip_headers() -> Value {
    let ours = STRIPPED_EARLY.iter().map(|name| json!({"remove": name}));
    let envoys = json!({"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}});
    let removals: Vec<Value> = ours.chain([envoys]).collect();
    json!({
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": removals,
        },
    })
}

/// The sidecar's and the filter's answers carry none of these flags, so they pass as they are.
// https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage#response-flags
fn local_replies() -> Value {
    // No host. So end the requests that the sidecar did not see, and those whose Backend has no address yet.
    const NO_HOST: [&str; 1] = ["UH"];
    // Connect failure, timeout, resets and terminations, an answer that is no HTTP, overflow, retries used up, no such
    // cluster, a name that does not resolve, overloaded.
    const FAILED: [&str; 11] = ["UF", "UT", "LR", "UR", "UC", "UPE", "UO", "URX", "NC", "DF", "OM"];
    // Whose silence it was, the sidecar's or a model server's, Envoy does not say.
    const IDLE: [&str; 1] = ["SI"];
    json!({"mappers": [
        unavailable(&NO_HOST, UNAVAILABLE),
        json!({
            "# Idle before the request was complete. Of one that is, Envoy says 504.": null,
            "filter": unfinished(),
            "body_format_override": error("invalid_request_error", "the request did not arrive in time; send all of its body"),
        }),
        unavailable(&IDLE, "no answer came in time; retry in a second"),
        unavailable(&FAILED, "the model server did not answer; retry in a second"),
    ]})
}

fn unfinished() -> Value {
    // Envoy demands a key, by which its runtime could say another status.
    let is_408 = json!({"op": "EQ", "value": {"default_value": 408, "runtime_key": "attache.unfinished_status"}});
    json!({"and_filter": {"filters": [
        {"response_flag_filter": {"flags": ["SI"]}},
        {"status_code_filter": {"comparison": is_408}},
    ]}})
}

fn unavailable(flags: &[&str], message: &str) -> Value {
    json!({
        "filter": {"response_flag_filter": {"flags": flags}},
        "headers_to_add": [{
            "header": {"key": "retry-after", "value": "1"},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }],
        "body_format_override": error("server_error", message),
    })
}

fn error(kind: &str, message: &str) -> Value {
    json!({"json_format": error_body(kind, message)})
}

/// What clients read of a request that nobody could serve.
pub(super) const UNAVAILABLE: &str = "the gateway cannot serve requests at the moment; retry in a second";

/// An error as OpenAI's clients read it.
pub(super) fn error_body(kind: &str, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": null}})
}
