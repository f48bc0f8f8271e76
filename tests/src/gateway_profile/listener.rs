//! ClientTrafficPolicy and HTTPRoutes into the Gateway's listener.

use serde_json::{Map, Value, json};

use super::objects::{Objects, list, only, text};
use super::{BUFFER_BYTES, Places, TYPE, address, filters, quantity, routes};
use crate::error::Result;

pub(super) fn listener(objects: &Objects, places: &Places) -> Result<Value> {
    let policy = objects.of_kind("ClientTrafficPolicy").next().unwrap_or(&Value::Null);
    if let Some(spec) = policy.get("spec") {
        only(spec, &["targetRefs", "connection", "http2", "headers", "timeout"])?;
    }
    let buffer = text(policy, "/spec/connection/bufferLimit");
    let buffer = if buffer.is_empty() { BUFFER_BYTES } else { quantity(buffer)? };
    Ok(json!({
        "name": "gateways/llm/http",
        "address": address(&places.listen.to_string())?,
        "per_connection_buffer_limit_bytes": buffer,
        "max_connections_to_accept_per_socket_event": 1,
        "default_filter_chain": {"name": "gateways/llm/http", "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": connection_manager(objects, policy, places)?,
        }]},
    }))
}

fn connection_manager(objects: &Objects, policy: &Value, places: &Places) -> Result<Value> {
    let mut manager = Map::new();
    let window = |field: &str, default: u64| match text(policy, field) {
        "" => Ok(default),
        given => quantity(given),
    };
    let fixed = json!({
        "@type": format!("{TYPE}/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": format!("http-{}", places.listen.port()),
        "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
        "http2_protocol_options": {
            "initial_connection_window_size": window("/spec/http2/initialConnectionWindowSize", 1_048_576)?,
            "initial_stream_window_size": window("/spec/http2/initialStreamWindowSize", 65_536)?,
            "max_concurrent_streams": 100,
        },
        "merge_slashes": true,
        "normalize_path": true,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
        "server_header_transformation": "PASS_THROUGH",
        "use_remote_address": true,
        "http_filters": filters::http_filters(objects, places)?,
        "route_config": routes::route_config(objects)?,
    });
    manager.extend(fixed.as_object().cloned().unwrap_or_default());
    let idle = text(policy, "/spec/timeout/http/streamIdleTimeout");
    if !idle.is_empty() {
        manager.insert("stream_idle_timeout".to_owned(), json!(idle));
    }
    if let Some(early) = policy.pointer("/spec/headers/earlyRequestHeaders") {
        manager.insert("early_header_mutation_extensions".to_owned(), json!([early_mutation(early)?]));
    }
    Ok(Value::Object(manager))
}

fn early_mutation(headers: &Value) -> Result<Value> {
    only(headers, &["remove", "removeOnMatch"])?;
    let removed = list(headers, "/remove").iter().map(|name| json!({"remove": name}));
    let matched = list(headers, "/removeOnMatch").iter().map(|one| match text(one, "/type") {
        "Prefix" => json!({"remove_on_match": {"key_matcher": {"prefix": text(one, "/value")}}}),
        _ => json!({"remove_on_match": {"key_matcher": {"exact": text(one, "/value")}}}),
    });
    let mutations: Vec<Value> = removed.chain(matched).collect();
    Ok(json!({
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": format!("{TYPE}/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"),
            "mutations": mutations,
        },
    }))
}
