//! The EnvoyProxy: the order of the filters, and the sidecar in the proxies' pods.

use serde_json::{Map, Value, json};

use super::config_map::ConfigFiles;
use super::object::{ENVOY_PROXY, object};
use super::options::{GatewayOptions, SidecarForm};
use super::pod::{SOCKET_DIRECTORY, SOCKET_VOLUME, container, volumes};
use crate::config::Config;
use crate::render::tls::{ECDH_CURVES, SIGNATURE_ALGORITHMS};

/// What has to be merged into the Gateway's EnvoyProxy; `None` where nothing has to.
pub(super) fn envoy_proxy(config: &Config, files: &ConfigFiles, options: &GatewayOptions) -> Option<Value> {
    let mut spec = Map::new();
    if options.wasm.is_some() {
        spec.insert("# The other way round by default; then the filter would save nothing.".to_owned(), Value::Null);
        let order = json!([{"name": "envoy.filters.http.wasm", "before": "envoy.filters.http.ext_proc"}]);
        spec.insert("filterOrder".to_owned(), order);
    }
    if config.backends.iter().any(|backend| backend.tls.is_some()) {
        spec.insert(
            "# Model servers of TLS 1.3, and those whose certificates have keys on P-384 or P-521: Envoy's defaults take none of them."
                .to_owned(),
            Value::Null,
        );
        spec.insert(
            "backendTLS".to_owned(),
            json!({
                "maxVersion": "1.3",
                "ecdhCurves": ECDH_CURVES,
                "signatureAlgorithms": SIGNATURE_ALGORITHMS,
            }),
        );
    }
    if options.sidecar == SidecarForm::Container {
        let provider =
            json!({"type": "Kubernetes", "kubernetes": {"envoyDeployment": deployment(config, files, options)}});
        spec.insert("provider".to_owned(), provider);
    }
    if spec.is_empty() {
        return None;
    }
    spec.insert("# With that of the GatewayClass, if it has one.".to_owned(), Value::Null);
    spec.insert("mergeType".to_owned(), json!("StrategicMerge"));
    let name = options.base();
    let comment = format!(
        "Decide: Gateway {gateway} takes part when it names this object in spec.infrastructure.parametersRef: {{group: \
         gateway.envoyproxy.io, kind: EnvoyProxy, name: {name}}}. Where it names one already, put these fields into that one. \
         A change of the pods' template has Envoy Gateway replace the proxies one by one.",
        gateway = options.gateway,
    );
    Some(object(ENVOY_PROXY, &options.gateway.namespace, &name, options, &comment, json!({"spec": spec})))
}

fn deployment(config: &Config, files: &ConfigFiles, options: &GatewayOptions) -> Value {
    json!({
        "pod": {"volumes": volumes(files, options)},
        "container": {"volumeMounts": [{"name": SOCKET_VOLUME, "mountPath": SOCKET_DIRECTORY}]},
        "# A container of the pod that starts before Envoy and ends after it (restartPolicy: Always makes it one, from \
            Kubernetes 1.29 on), so that no request and no answer ever finds it gone.": null,
        "initContainers": [container(config, files, options)],
    })
}
