//! The sidecar's container, wherever it runs: arguments, mounts, probes, and what it may not do.

use attache_gate::UnattachedStatus;
use serde_json::{Map, Value, json};

use super::config_map::{ConfigFiles, SecretFile};
use super::options::{GatewayOptions, SidecarForm};
use crate::config::Config;

/// Where Envoy finds the sidecar in its own pod.
pub(super) const SOCKET: &str = "/run/attache/extproc.sock";
pub(super) const SOCKET_DIRECTORY: &str = "/run/attache";
pub(super) const SOCKET_VOLUME: &str = "attache-socket";

/// Where it listens in a pod of its own.
pub(super) const EXTPROC_PORT: u16 = 10001;
/// The pages about limits and the configuration: for callers of the same pod alone, which `kubectl exec` and `port-forward` are.
const ADMIN_PORT: u16 = 10002;
/// Metrics for monitoring, health for the node's probes.
pub(super) const METRICS_PORT: u16 = 10003;

const CONFIG_DIRECTORY: &str = "/etc/attache";
const CONFIG_VOLUME: &str = "attache-config";
/// As `--secrets-dir` reads it: NAMESPACE/NAME/apiKey.
const SECRETS_DIRECTORY: &str = "/etc/attache-secrets";
const REDIS_DIRECTORY: &str = "/etc/attache-redis";
const REDIS_VOLUME: &str = "attache-redis";

/// The user that Envoy Gateway runs Envoy as: who else could connect to the socket?
const ENVOY_USER: u32 = 65532;
/// The user of our image.
const OWN_USER: u32 = 10001;

/// How long answers under way may take to end after SIGTERM. Below [`TERMINATION_GRACE_SECONDS`].
const DRAIN_SECONDS: u32 = 300;
/// For endpoints to be forgotten by proxies before the sidecar stops to accept.
pub(super) const PRE_STOP_SECONDS: u32 = 5;
pub(super) const TERMINATION_GRACE_SECONDS: u32 = DRAIN_SECONDS + PRE_STOP_SECONDS + 15;

/// The container.
pub(super) fn container(config: &Config, files: &ConfigFiles, options: &GatewayOptions) -> Value {
    let mut container = Map::new();
    container.insert("name".to_owned(), json!("attache"));
    container.insert("# Decide: where your registry has it.".to_owned(), Value::Null);
    container.insert("image".to_owned(), json!(options.image));
    if options.sidecar == SidecarForm::Container {
        container.insert("restartPolicy".to_owned(), json!("Always"));
    }
    container.insert("args".to_owned(), json!(arguments(config, files, options)));
    container.insert("ports".to_owned(), ports(options));
    container.insert("volumeMounts".to_owned(), json!(mounts(files, options)));
    container.insert(
        "# Decide: 64 MiB are for the sidecar and a small index; each Backend with prefix affinity may take its indexBytes more."
            .to_owned(),
        Value::Null,
    );
    container.insert(
        "resources".to_owned(),
        json!({"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}),
    );
    container.insert("startupProbe".to_owned(), probe("/healthz", 1, 1, 60));
    container.insert("livenessProbe".to_owned(), probe("/healthz", 10, 5, 6));
    container.insert("readinessProbe".to_owned(), probe("/readyz", 5, 2, 2));
    if options.sidecar != SidecarForm::Container {
        container.insert("lifecycle".to_owned(), json!({"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}}));
    }
    container.insert("securityContext".to_owned(), security(options));
    Value::Object(container)
}

fn arguments(config: &Config, files: &ConfigFiles, options: &GatewayOptions) -> Vec<String> {
    let listen = match options.sidecar {
        SidecarForm::Container => format!("unix:{SOCKET}"),
        SidecarForm::Deployment { .. } | SidecarForm::External(_) => format!("0.0.0.0:{EXTPROC_PORT}"),
    };
    let mut arguments = vec![
        "run".to_owned(),
        format!("--config={CONFIG_DIRECTORY}"),
        format!("--extproc-listen={listen}"),
        format!("--admin-listen=127.0.0.1:{ADMIN_PORT}"),
        format!("--metrics-listen=0.0.0.0:{METRICS_PORT}"),
        format!("--max-body={}", config.settings.max_body_bytes),
        format!("--drain-timeout={DRAIN_SECONDS}s"),
        "--log-format=json".to_owned(),
    ];
    if !config.settings.path_prefix.is_empty() {
        arguments.push(format!("--path-prefix={}", config.settings.path_prefix));
    }
    if config.settings.unattached_status == UnattachedStatus::Forbidden {
        arguments.push("--unattached-status=403".to_owned());
    }
    if !files.secrets.is_empty() {
        arguments.push(format!("--secrets-dir={SECRETS_DIRECTORY}"));
    }
    if let SidecarForm::Deployment { replicas } = options.sidecar {
        arguments.push(format!("--replicas={replicas}"));
    }
    if let Some(redis) = &options.redis {
        arguments.push(format!("--redis={}", redis.url));
        if redis.secret.is_some() {
            arguments.push(format!("--redis-password-file={REDIS_DIRECTORY}/password"));
        }
    }
    arguments
}

fn ports(options: &GatewayOptions) -> Value {
    let metrics = |name: &str| json!({"name": name, "containerPort": METRICS_PORT});
    match options.sidecar {
        // A name of its own among the ports of Envoy's pod, which has a `metrics`.
        SidecarForm::Container => json!([metrics("attache-metrics")]),
        SidecarForm::Deployment { .. } | SidecarForm::External(_) => {
            json!([{"name": "grpc", "containerPort": EXTPROC_PORT}, metrics("metrics")])
        }
    }
}

fn mounts(files: &ConfigFiles, options: &GatewayOptions) -> Vec<Value> {
    let mut mounts = vec![json!({"name": CONFIG_VOLUME, "mountPath": CONFIG_DIRECTORY, "readOnly": true})];
    if options.sidecar == SidecarForm::Container {
        mounts.push(json!({"name": SOCKET_VOLUME, "mountPath": SOCKET_DIRECTORY}));
    }
    if options.redis.as_ref().is_some_and(|redis| redis.secret.is_some()) {
        mounts.push(json!({"name": REDIS_VOLUME, "mountPath": REDIS_DIRECTORY, "readOnly": true}));
    }
    let secret = |secret: &SecretFile| {
        json!({
            "name": secret.volume,
            "mountPath": format!("{SECRETS_DIRECTORY}/{}/{}", secret.namespace, secret.name),
            "readOnly": true,
        })
    };
    mounts.extend(files.secrets.iter().map(secret));
    mounts
}

/// The volumes that [`container`] mounts.
pub(super) fn volumes(files: &ConfigFiles, options: &GatewayOptions) -> Vec<Value> {
    let mut volumes = vec![json!({"name": CONFIG_VOLUME, "configMap": {"name": files.name}})];
    if options.sidecar == SidecarForm::Container {
        volumes.push(json!({"name": SOCKET_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}));
    }
    if let Some(secret) = options.redis.as_ref().and_then(|redis| redis.secret.as_ref()) {
        volumes.push(json!({"name": REDIS_VOLUME, "secret": {"secretName": secret}}));
    }
    volumes.extend(files.secrets.iter().map(|secret| {
        let comment = format!(
            "# {}/{} of your documents. A pod mounts Secrets of its own namespace alone: apply it in namespace {}, by this name.",
            secret.namespace,
            secret.name,
            options.sidecar_namespace(),
        );
        let mut volume = Map::new();
        volume.insert(comment, Value::Null);
        volume.insert("name".to_owned(), json!(secret.volume));
        volume.insert("secret".to_owned(), json!({"secretName": secret.name}));
        Value::Object(volume)
    }));
    volumes
}

/// Kubernetes gives an answer one second where nothing is said, which a throttled CPU may need.
fn probe(path: &str, period_seconds: u32, timeout_seconds: u32, failures: u32) -> Value {
    json!({
        "httpGet": {"path": path, "port": METRICS_PORT},
        "periodSeconds": period_seconds,
        "timeoutSeconds": timeout_seconds,
        "failureThreshold": failures,
    })
}

fn security(options: &GatewayOptions) -> Value {
    let user = match options.sidecar {
        SidecarForm::Container => ENVOY_USER,
        SidecarForm::Deployment { .. } | SidecarForm::External(_) => OWN_USER,
    };
    json!({
        "runAsNonRoot": true,
        "runAsUser": user,
        "runAsGroup": user,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}
