//! The HTTP filters, in the order in which they see a request.

use std::path::Path;

use attache_gate::{AnswerTime, GateConfig, UnknownKeys};
use attache_proto::headers::{COST_METADATA_NAMESPACE, DESTINATION_ENDPOINT, PROTOCOL};
use serde_json::{Map, Value, json};

use super::clusters::SIDECAR;
use super::timeouts::{MESSAGE_STREAMED, seconds};
use super::{RenderError, StaticOptions, address, cors};
use crate::config::Config;

/// The name of the filter that asks the sidecar.
const EXT_PROC: &str = "envoy.filters.http.ext_proc";

/// CORS and the Wasm filter where there are such, the sidecar, the router.
pub(super) fn http_filters(config: &Config, options: &StaticOptions) -> Result<Vec<Value>, RenderError> {
    let mut filters = Vec::with_capacity(4);
    filters.extend(options.cors.as_ref().map(|_| cors::filter()));
    if let Some(file) = &options.wasm {
        filters.push(wasm(config, file, options.unknown_keys)?);
    }
    filters.push(ext_proc());
    filters.push(router());
    Ok(filters)
}

fn wasm(config: &Config, file: &Path, unknown_keys: UnknownKeys) -> Result<Value, RenderError> {
    // Of one piece with `allow_on_headers_stop_iteration` below.
    let gate_config = GateConfig { answers: AnswerTime::AfterBody, unknown_keys, ..config.gate_config.clone() };
    Ok(json!({
        "# Refuses by the headers alone, in microseconds. The sidecar checks everything again.": null,
        "name": "envoy.filters.http.wasm",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": "attache",
                "# A filter that failed starts anew with the next request.": null,
                "failure_policy": "FAIL_RELOAD",
                "# What it refuses, it answers when the body has come in: an HTTP/1.1 connection outlives that.": null,
                "allow_on_headers_stop_iteration": true,
                "vm_config": {
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": {"local": {"filename": address::path_text(file)?}},
                },
                "# Keys, models and paths as they were when this was rendered. What it does not know of a key it leaves to the \
                    sidecar, unless this says `unknown_keys: refuse`; a path that it does not know it refuses.": null,
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": serde_json::to_string(&gate_config)?,
                },
            },
        },
    }))
}

/// ext_proc, made only when a request's headers have reached it. A plain ext_proc is asked about every answer that passes it:
/// those of filters before it, and those of the codec to what is no HTTP, which then never get out, since the connection is
/// closed before the sidecar has said anything.
fn ext_proc() -> Value {
    json!({
        "# The sidecar. Asked about requests alone: a matcher stands before it, so that it never hears of what the filter \
            or Envoy itself has refused.": null,
        "name": EXT_PROC,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher",
            "extension_config": {
                "name": "envoy.filters.http.composite",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.composite.v3.Composite"},
            },
            "xds_matcher": {"matcher_list": {"matchers": [
                ask(PROTOCOL, "HTTP/1", streamed()),
                ask(":path", "/", buffered()),
            ]}},
        },
    })
}

/// Has the sidecar asked by this ext_proc about requests whose header begins so.
fn ask(header: &str, prefix: &str, external_processor: Value) -> Value {
    json!({
        "predicate": {"single_predicate": {
            "input": {
                "name": "header",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
                    "header_name": header,
                },
            },
            "value_match": {"prefix": prefix},
        }},
        "on_match": {"action": {
            "name": "ask",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.composite.v3.ExecuteFilterAction",
                "typed_config": {"name": EXT_PROC, "typed_config": external_processor},
            },
        }},
    })
}

fn streamed() -> Value {
    let mut processor = external_processor("STREAMED");
    if let Some(fields) = processor.as_object_mut() {
        fields.insert(
            "# One round trip: the sidecar answers the headers when it has read the body.".to_owned(),
            Value::Null,
        );
        fields.insert("send_body_without_waiting_for_header_response".to_owned(), json!(true));
    }
    processor
}

fn buffered() -> Value {
    let mut processor = Map::new();
    processor.insert(
        "# Requests over HTTP/2 may have trailers, which Envoy keeps back while the headers wait for an answer: asked as above, \
            such a request would wait until it is given up."
            .to_owned(),
        Value::Null,
    );
    processor.extend(external_processor("BUFFERED").as_object().cloned().unwrap_or_default());
    Value::Object(processor)
}

fn external_processor(request_body_mode: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": SIDECAR}},
        "# So that answers which are under way outlive the sidecar. A request that it did not see still goes nowhere: \
            no route to a model server matches.": null,
        "failure_mode_allow": true,
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": request_body_mode,
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": "STREAMED",
            "response_trailer_mode": "SEND",
        },
        "# The sidecar rewrites bodies, and says how long they are then.": null,
        "allow_content_length_header": true,
        "# It bounds a client's pause within a body, too, but that of the way in (idle_timeout) is shorter.": null,
        "message_timeout": seconds(MESSAGE_STREAMED),
        "# x-envoy-...: the sidecar sets the rule's timeout.": null,
        "mutation_rules": {"allow_all_routing": true, "allow_envoy": true},
        "# The costs that llmRequestCosts names, for access logs.": null,
        "metadata_options": {"receiving_namespaces": {"untyped": [COST_METADATA_NAMESPACE]}},
        "# Which replica has answered, or why none could be asked.": null,
        "response_attributes": ["upstream.address", "upstream.transport_failure_reason"],
    })
}

fn router() -> Value {
    json!({
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            "suppress_envoy_headers": true,
            "# Once a replica is chosen: the list of them is not for model servers. Retries go on with it all the same.": null,
            "upstream_http_filters": [
                {
                    "name": "envoy.filters.http.header_mutation",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
                        "mutations": {"request_mutations": [{"remove": DESTINATION_ENDPOINT}]},
                    },
                },
                {
                    "name": "envoy.filters.http.upstream_codec",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec",
                    },
                },
            ],
        },
    })
}
