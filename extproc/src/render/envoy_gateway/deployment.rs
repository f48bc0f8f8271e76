//! The sidecar in pods of its own: ServiceAccount, Deployment, Service, PodDisruptionBudget.

use std::num::NonZeroU32;

use serde_json::{Value, json};

use super::config_map::ConfigFiles;
use super::extension::sidecar_name;
use super::object::{DEPLOYMENT, Kind, POD_DISRUPTION_BUDGET, SERVICE, SERVICE_ACCOUNT, labels, object, pod_labels};
use super::options::GatewayOptions;
use super::pod::{EXTPROC_PORT, TERMINATION_GRACE_SECONDS, container, volumes};
use crate::config::Config;

/// All four, in the order in which they are needed.
pub(super) fn deployment(
    replicas: NonZeroU32,
    config: &Config,
    files: &ConfigFiles,
    options: &GatewayOptions,
) -> Vec<Value> {
    let name = sidecar_name(options);
    let one =
        |kind: Kind, comment: &str, fields| object(kind, options.sidecar_namespace(), &name, options, comment, fields);
    let selector = json!({"matchLabels": pod_labels(options)});
    let spread = |key: &str| {
        json!({
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": pod_labels(options)},
        })
    };
    let pod = json!({
        "serviceAccountName": name,
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "topologySpreadConstraints": [spread("topology.kubernetes.io/zone"), spread("kubernetes.io/hostname")],
        "containers": [container(config, files, options)],
        "volumes": volumes(files, options),
    });
    vec![
        one(
            SERVICE_ACCOUNT,
            "The sidecar asks Kubernetes nothing: no token, and no Role.",
            json!({"automountServiceAccountToken": false}),
        ),
        one(
            DEPLOYMENT,
            "The sidecar. Without --redis each pod has a ledger of its own, and a limit holds for each pod.",
            json!({"spec": {
                "replicas": replicas,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "selector": selector,
                "template": {"metadata": {"labels": labels(options)}, "spec": pod},
            }}),
        ),
        one(
            SERVICE,
            "",
            json!({"spec": {
                "type": "ClusterIP",
                "selector": pod_labels(options),
                "ports": [{
                    "name": "grpc",
                    "port": EXTPROC_PORT,
                    "targetPort": "grpc",
                    "protocol": "TCP",
                    "appProtocol": "kubernetes.io/h2c",
                }],
            }}),
        ),
        one(POD_DISRUPTION_BUDGET, "", json!({"spec": {"maxUnavailable": 1, "selector": selector}})),
    ]
}
