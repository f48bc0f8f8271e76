//! The EnvoyExtensionPolicy: which filters run, on which routes, and where the sidecar is.

use attache_gate::{AnswerTime, GateConfig, UnknownKeys};
use attache_proto::headers::COST_METADATA_NAMESPACE;
use serde_json::{Map, Value, json};

use super::error::GatewayError;
use super::object::{BACKEND, ENVOY_EXTENSION_POLICY, ENVOY_GATEWAY, object, route_refs};
use super::options::{GatewayOptions, SidecarForm};
use super::plan::Plan;
use super::pod::{EXTPROC_PORT, SOCKET};
use super::routes::way_in_name;
use super::traffic::{CONNECTION_BUFFER, circuit_breaker};
use super::wasm::WasmSource;
use crate::config::Config;
use crate::render::timeouts::{MESSAGE_BUFFERED, seconds};
use crate::server::HEALTH_SERVICE;

/// The sidecar as a Backend, where it is a socket, and the policy.
pub(super) fn extension(
    config: &Config,
    plan: &Plan<'_>,
    options: &GatewayOptions,
) -> Result<Vec<Value>, GatewayError> {
    let mut objects = Vec::new();
    if options.sidecar == SidecarForm::Container {
        let comment = "The sidecar, in the pod of whoever asks it. Envoy Gateway heeds Backends where its configuration says \
                       `extensionApis: {enableBackend: true}`.";
        let spec = json!({"endpoints": [{"unix": {"path": SOCKET}}]});
        objects.push(object(
            BACKEND,
            &options.gateway.namespace,
            &backend_name(options),
            options,
            comment,
            json!({"spec": spec}),
        ));
    }
    objects.push(policy(config, plan, options)?);
    Ok(objects)
}

/// The Backend of a sidecar that is a socket.
fn backend_name(options: &GatewayOptions) -> String {
    options.named("sidecar")
}

/// The Service of a sidecar of ours, and what belongs to it.
pub(super) fn sidecar_name(options: &GatewayOptions) -> String {
    options.named_across_namespaces("sidecar")
}

fn policy(config: &Config, plan: &Plan<'_>, options: &GatewayOptions) -> Result<Value, GatewayError> {
    let way_in = way_in_name(options);
    let routes = std::iter::once(&*way_in).chain(plan.routes().map(|route| &*route.name));
    let mut spec = Map::new();
    spec.insert(
        "# On the way in, where filters are chosen for a request once and for all. On the routes to model servers as well: what \
         reached one of them directly would be asked about, too."
            .to_owned(),
        Value::Null,
    );
    spec.insert("targetRefs".to_owned(), json!(route_refs(routes)));
    if let Some(source) = &options.wasm {
        spec.insert("wasm".to_owned(), json!([wasm(config, source, options.unknown_keys)?]));
    }
    spec.insert("extProc".to_owned(), json!([ext_proc(options)]));
    let comment =
        "The filters: what the sidecar is told of a request, and what becomes of it when the sidecar is away.";
    let name = options.base();
    Ok(object(ENVOY_EXTENSION_POLICY, &options.gateway.namespace, &name, options, comment, json!({"spec": spec})))
}

fn wasm(config: &Config, source: &WasmSource, unknown_keys: UnknownKeys) -> Result<Value, GatewayError> {
    // Envoy Gateway has no word for `allow_on_headers_stop_iteration`, without which there is no body to wait for.
    let gate_config = GateConfig { answers: AnswerTime::AtOnce, unknown_keys, ..config.gate_config.clone() };
    let gate_config =
        serde_json::to_value(&gate_config).map_err(|error| GatewayError::GateConfig(error.to_string()))?;
    let code = match source.image() {
        Some(image) => json!({"type": "Image", "image": {"url": image, "sha256": source.sha256}}),
        None => json!({"type": "HTTP", "http": {"url": source.url, "sha256": source.sha256}}),
    };
    Ok(json!({
        "# Refuses by the headers alone, in microseconds. The sidecar checks everything again, so a request goes on without it \
            where it has failed.": null,
        "name": "attache",
        "rootID": "attache",
        "code": code,
        "failOpen": true,
        "# Keys, models and paths as they were when this was rendered. What it does not know of a key it leaves to the sidecar, \
            unless this says `unknown_keys: refuse`; a path that it does not know it refuses.": null,
        "config": gate_config,
    }))
}

fn ext_proc(options: &GatewayOptions) -> Value {
    let mut filter = json!({
        "backendRefs": [sidecar_ref(options)],
        "# So that answers which are under way outlive the sidecar. A request that it did not see still goes nowhere: no rule \
            but the last of all matches.": null,
        "failOpen": true,
        "# It bounds the sidecar's silence, for each message.": null,
        "messageTimeout": seconds(MESSAGE_BUFFERED),
        "processingMode": {
            "request": {"body": "Buffered"},
            "# Which replica has answered, or why none could be asked.": null,
            "response": {"body": "Streamed", "attributes": ["upstream.address", "upstream.transport_failure_reason"]},
        },
        "# The costs that llmRequestCosts names, for access logs and rate limits.": null,
        "metadata": {"writableNamespaces": [COST_METADATA_NAMESPACE]},
        "backendSettings": {
            "# Every request is a stream for as long as its answer lasts: the default of 1024 would be the gateway's limit.": null,
            "circuitBreaker": circuit_breaker(),
            "timeout": {"tcp": {"connectTimeout": "1s"}},
            "connection": {"bufferLimit": CONNECTION_BUFFER},
        },
    });
    if options.sidecar != SidecarForm::Container
        && let Some(settings) = filter.pointer_mut("/backendSettings").and_then(Value::as_object_mut)
    {
        let comment = "# The Service stands for several: one that drains, hangs or is gone gets no new requests. Where none is well, all are \
                       tried.";
        settings.insert(comment.to_owned(), Value::Null);
        settings.insert(
            "healthCheck".to_owned(),
            json!({
                "active": {
                    "type": "GRPC",
                    "timeout": "1s",
                    "interval": "500ms",
                    "unhealthyThreshold": 2,
                    "healthyThreshold": 1,
                    "grpc": {"service": HEALTH_SERVICE},
                },
                "panicThreshold": 1,
            }),
        );
    }
    filter
}

fn sidecar_ref(options: &GatewayOptions) -> Value {
    let name = sidecar_name(options);
    let (name, port) = match &options.sidecar {
        SidecarForm::Container => {
            return json!({"group": ENVOY_GATEWAY, "kind": "Backend", "name": backend_name(options)});
        }
        SidecarForm::Deployment { .. } => (&*name, EXTPROC_PORT),
        SidecarForm::External(service) => (&*service.name.name, service.port.get()),
    };
    let mut service = Map::new();
    service.insert("name".to_owned(), json!(name));
    if options.sidecar_namespace() != &*options.gateway.namespace {
        service.insert("namespace".to_owned(), json!(options.sidecar_namespace()));
    }
    service.insert("port".to_owned(), json!(port));
    Value::Object(service)
}
