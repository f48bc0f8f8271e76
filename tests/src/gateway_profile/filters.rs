//! EnvoyExtensionPolicies into HTTP filters. All are disabled, and enabled by each route that a policy targets.

use serde_json::{Map, Value, json};

use super::objects::{Objects, list, only, targets, text};
use super::{Places, TYPE};
use crate::error::{Error, Result};

/// The filters in their order, the router last.
pub(super) fn http_filters(objects: &Objects, places: &Places) -> Result<Vec<Value>> {
    let (mut ext_procs, mut wasms) = (Vec::new(), Vec::new());
    for policy in objects.of_kind("EnvoyExtensionPolicy") {
        only(policy.get("spec").unwrap_or(&Value::Null), &["targetRefs", "extProc", "wasm"])?;
        for (index, filter) in list(policy, "/spec/extProc").iter().enumerate() {
            ext_procs.push(disabled(ext_proc_name(policy, index), ext_proc(filter, &cluster_name(policy, index))?));
        }
        for (index, filter) in list(policy, "/spec/wasm").iter().enumerate() {
            let name = wasm_name(policy, index);
            let config = wasm(filter, &name, places)?;
            wasms.push(disabled(name, config));
        }
    }
    // Without a `filterOrder`, ext_proc goes first.
    let turned = objects.of_kind("EnvoyProxy").flat_map(|proxy| list(proxy, "/spec/filterOrder")).any(|position| {
        text(position, "/name") == "envoy.filters.http.wasm"
            && text(position, "/before") == "envoy.filters.http.ext_proc"
    });
    let mut filters = if turned { [wasms, ext_procs].concat() } else { [ext_procs, wasms].concat() };
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": format!("{TYPE}/envoy.extensions.filters.http.router.v3.Router"),
            "suppress_envoy_headers": true,
        },
    }));
    Ok(filters)
}

/// What enables the filters of all policies that target a route.
pub(super) fn enabled_on(objects: &Objects, route: &str) -> Map<String, Value> {
    let mut enabled = Map::new();
    for policy in objects.of_kind("EnvoyExtensionPolicy").filter(|policy| targets(policy, "HTTPRoute", route)) {
        let ext_procs = (0..list(policy, "/spec/extProc").len()).map(|index| ext_proc_name(policy, index));
        let wasms = (0..list(policy, "/spec/wasm").len()).map(|index| wasm_name(policy, index));
        for name in ext_procs.chain(wasms) {
            let config = json!({"@type": format!("{TYPE}/envoy.config.route.v3.FilterConfig"), "config": {}});
            enabled.insert(name, config);
        }
    }
    enabled
}

/// The cluster of a policy's processor.
pub(super) fn cluster_name(policy: &Value, index: usize) -> String {
    format!("{}/{index}", policy_name(policy))
}

fn policy_name(policy: &Value) -> String {
    format!("envoyextensionpolicy/{}/{}", text(policy, "/metadata/namespace"), text(policy, "/metadata/name"))
}

fn ext_proc_name(policy: &Value, index: usize) -> String {
    format!("envoy.filters.http.ext_proc/{}/extproc/{index}", policy_name(policy))
}

fn wasm_name(policy: &Value, index: usize) -> String {
    format!("envoy.filters.http.wasm/{}/wasm/{index}", policy_name(policy))
}

fn disabled(name: String, typed_config: Value) -> Value {
    json!({"name": name, "disabled": true, "typed_config": typed_config})
}

fn ext_proc(filter: &Value, cluster: &str) -> Result<Value> {
    only(filter, &["backendRefs", "backendSettings", "failOpen", "messageTimeout", "processingMode", "metadata"])?;
    let header_mode = |side: &str| if filter.pointer(side).is_some() { "SEND" } else { "SKIP" };
    let body_mode = |side: &str| match text(filter, side) {
        "" => Ok("NONE"),
        "Buffered" => Ok("BUFFERED"),
        "BufferedPartial" => Ok("BUFFERED_PARTIAL"),
        "Streamed" => Ok("STREAMED"),
        other => Err(Error::unexpected("a body mode that is not translated", other)),
    };
    let namespaces = list(filter, "/metadata/writableNamespaces");
    Ok(json!({
        "@type": format!("{TYPE}/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"),
        "grpc_service": {"envoy_grpc": {"cluster_name": cluster, "authority": "attache"}, "timeout": "10s"},
        "failure_mode_allow": filter.get("failOpen").and_then(Value::as_bool).unwrap_or_default(),
        "message_timeout": text(filter, "/messageTimeout"),
        "processing_mode": {
            "request_header_mode": header_mode("/processingMode/request"),
            "request_body_mode": body_mode("/processingMode/request/body")?,
            "request_trailer_mode": "SKIP",
            "response_header_mode": header_mode("/processingMode/response"),
            "response_body_mode": body_mode("/processingMode/response/body")?,
            "response_trailer_mode": "SKIP",
        },
        "request_attributes": list(filter, "/processingMode/request/attributes"),
        "response_attributes": list(filter, "/processingMode/response/attributes"),
        "metadata_options": {"receiving_namespaces": {"untyped": namespaces}},
    }))
}

fn wasm(filter: &Value, name: &str, places: &Places) -> Result<Value> {
    only(filter, &["name", "rootID", "code", "config", "failOpen"])?;
    let file = places.wasm.as_ref().ok_or_else(|| Error::unexpected("no file of the Wasm filter for", name))?;
    let configuration = filter.get("config").unwrap_or(&Value::Null).to_string();
    Ok(json!({
        "@type": format!("{TYPE}/envoy.extensions.filters.http.wasm.v3.Wasm"),
        "config": {
            "name": text(filter, "/name"),
            "root_id": text(filter, "/rootID"),
            "fail_open": filter.get("failOpen").and_then(Value::as_bool).unwrap_or_default(),
            "vm_config": {
                "vm_id": name,
                "runtime": "envoy.wasm.runtime.v8",
                "code": {"local": {"filename": file}},
            },
            "configuration": {"@type": format!("{TYPE}/google.protobuf.StringValue"), "value": configuration},
        },
    }))
}
