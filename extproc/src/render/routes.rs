//! The routes: one for each cluster that the sidecar may name, and a refusal for everything else.

use attache_proto::headers::{CLUSTER, DESTINATION_ENDPOINT, EXTERNAL_ADDRESS, OWNED, PROTOCOL};
use serde_json::{Map, Value, json};

use super::clusters::{Pool, UNPROCESSED, pools};
use super::timeouts::{REQUEST_IDLE, seconds, stream_idle};
use super::{Cors, cors};
use crate::affinity::PlacementMode;
use crate::config::Config;
use crate::config::model::{Backend, Retries};

/// The route table.
pub(super) fn routes(config: &Config, cors: Option<&Cors>) -> Value {
    let prefix = &config.settings.path_prefix;
    let idle_timeout = seconds(stream_idle(config));
    let of_pool = |pool: &Pool<'_>| pool_routes(pool, prefix, &idle_timeout);
    let mut routes: Vec<Value> = pools(&config.backends).iter().flat_map(of_pool).collect();
    routes.push(refusal());
    let mut host = Map::new();
    host.insert("name".to_owned(), json!("attache"));
    host.insert("domains".to_owned(), json!(["*"]));
    host.insert(
        "# Above the sidecar's own bound for bodies, or a large one would stall instead of getting its 413. Retries repeat bodies up \
            to this size."
            .to_owned(),
        Value::Null,
    );
    let limit = config.settings.max_body_bytes.saturating_add(BODY_SLACK_BYTES);
    host.insert("request_body_buffer_limit".to_owned(), json!(limit));
    host.insert("# What is ours goes neither to model servers nor to clients.".to_owned(), Value::Null);
    host.insert("request_headers_to_remove".to_owned(), json!(headers_kept_from_upstreams()));
    let of_upstreams = cors.map(|_| cors::OF_UPSTREAMS).into_iter().flatten();
    host.insert(
        "response_headers_to_remove".to_owned(),
        json!(OWNED.into_iter().chain(of_upstreams).collect::<Vec<_>>()),
    );
    if let Some(cors) = cors {
        host.insert("# Which web pages may call, and read the answers.".to_owned(), Value::Null);
        host.insert("typed_per_filter_config".to_owned(), json!({cors::FILTER: cors::policy(cors)}));
    }
    host.insert("routes".to_owned(), json!(routes));
    json!({"name": "attache", "virtual_hosts": [host]})
}

/// The chunk that goes over the cap must still fit, or nobody could refuse it.
pub(super) const BODY_SLACK_BYTES: u64 = 64 * 1024;

/// [`DESTINATION_ENDPOINT`] stays: the load balancer reads it after these removals. The router takes it off then.
fn headers_kept_from_upstreams() -> Vec<&'static str> {
    OWNED.into_iter().filter(|name| *name != DESTINATION_ENDPOINT).chain([PROTOCOL, EXTERNAL_ADDRESS]).collect()
}

fn pool_routes(pool: &Pool<'_>, path_prefix: &str, idle_timeout: &str) -> Vec<Value> {
    let backend = pool.first;
    let cluster = &*backend.cluster;
    let mut routes = vec![route(
        cluster,
        json!({"exact": cluster}),
        path_prefix,
        action(json!({"cluster": cluster}), backend, path_prefix, idle_timeout),
    )];
    if pool.has(PlacementMode::Cluster) {
        let replicas = format!("{cluster}/");
        let action = action(json!({"cluster_header": CLUSTER}), backend, path_prefix, idle_timeout);
        routes.push(route(&format!("{replicas}*"), json!({"prefix": replicas}), path_prefix, action));
    }
    routes
}

fn route(name: &str, cluster: Value, path_prefix: &str, action: Value) -> Value {
    json!({
        "name": name,
        "match": {
            "prefix": format!("{path_prefix}/"),
            "headers": [{"name": CLUSTER, "string_match": cluster}],
        },
        "route": action,
    })
}

fn action(target: Value, backend: &Backend, path_prefix: &str, idle_timeout: &str) -> Value {
    let mut action = Map::new();
    action.extend(target.as_object().cloned().unwrap_or_default());
    if !path_prefix.is_empty() {
        action.insert("prefix_rewrite".to_owned(), json!("/"));
    }
    action.insert("auto_host_rewrite".to_owned(), json!(true));
    action.insert("# Unbounded here: where a rule has a timeout, the sidecar sends it along.".to_owned(), Value::Null);
    action.insert("timeout".to_owned(), json!("0s"));
    action.insert("# The listener's again, in place of the way in's.".to_owned(), Value::Null);
    action.insert("idle_timeout".to_owned(), json!(idle_timeout));
    if let Some(policy) = retry_policy(&backend.retries) {
        action.insert("retry_policy".to_owned(), policy);
    }
    Value::Object(action)
}

/// Only what cannot have cost tokens is repeated: the request did not get there, or the server said 503.
fn retry_policy(retries: &Retries) -> Option<Value> {
    (retries.attempts > 0).then(|| {
        json!({
            "# A generation is never repeated once a model may have begun it.": null,
            "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
            "retriable_status_codes": [503],
            "num_retries": retries.attempts,
            "retry_host_predicate": [{
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
                },
            }],
            "host_selection_retry_max_attempts": 5,
        })
    })
}

/// Not a `direct_response`: Envoy 1.40 does not apply `request_body_buffer_limit` to those, and a body above the connection's
/// buffer then stalls until it is given up.
fn refusal() -> Value {
    json!({
        "# The way in: filters run on it, and when the sidecar has named a cluster the routes above match. What the sidecar \
            did not see stays here and gets a 503, for this cluster has no host.": null,
        "name": UNPROCESSED,
        "match": {"prefix": "/"},
        "route": {
            "cluster": UNPROCESSED,
            "# A client that does not send the rest of its request gets 408. Below ext_proc's message_timeout.": null,
            "idle_timeout": seconds(REQUEST_IDLE),
        },
    })
}
