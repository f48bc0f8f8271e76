//! BackendTrafficPolicies for what goes to model servers, and the ClientTrafficPolicy for what comes in.

use attache_proto::headers::{DESTINATION_ENDPOINT, STRIPPED_EARLY};
use serde_json::{Map, Value, json};

use super::error::GatewayError;
use super::object::{BACKEND_TRAFFIC_POLICY, CLIENT_TRAFFIC_POLICY, gateway_ref, object, route_refs};
use super::options::GatewayOptions;
use super::plan::{Balancing, Group, Hosts, Plan};
use crate::config::Config;
use crate::render::routes::BODY_SLACK_BYTES;
use crate::render::timeouts::{seconds, stream_idle};

/// Envoy's own default for connections, where Envoy Gateway has 32 KiB: a stream of answers is written in pieces of this.
pub(super) const CONNECTION_BUFFER: &str = "1Mi";

/// One policy for each group.
pub(super) fn backend_traffic_policies(plan: &Plan<'_>, options: &GatewayOptions) -> Vec<Value> {
    plan.groups.iter().map(|group| backend_traffic_policy(group, options)).collect()
}

fn backend_traffic_policy(group: &Group<'_>, options: &GatewayOptions) -> Value {
    let mut spec = Map::new();
    spec.insert("targetRefs".to_owned(), json!(route_refs(group.routes.iter().map(|route| &*route.name))));
    let mut balancer = json!({"type": "LeastRequest"});
    if group.policy.balancing == Balancing::EndpointOverride
        && let Some(fields) = balancer.as_object_mut()
    {
        fields.insert("endpointOverride".to_owned(), json!({"extractFrom": [{"header": DESTINATION_ENDPOINT}]}));
    }
    spec.insert("loadBalancer".to_owned(), balancer);
    if group.policy.attempts > 0 {
        spec.insert("# A generation is never repeated once a model may have begun it.".to_owned(), Value::Null);
        spec.insert(
            "retry".to_owned(),
            json!({
                "numRetries": group.policy.attempts,
                "retryOn": {
                    "triggers": ["connect-failure", "refused-stream", "reset-before-request", "retriable-status-codes"],
                    "httpStatusCodes": [503],
                },
            }),
        );
    }
    spec.insert("# How much goes to a model server is the sidecar's business.".to_owned(), Value::Null);
    spec.insert("circuitBreaker".to_owned(), circuit_breaker());
    spec.insert(
        "# Idle connections: below the 5 s after which uvicorn, so vLLM, closes them; else requests race with the close.".to_owned(),
        Value::Null,
    );
    spec.insert(
        "timeout".to_owned(),
        json!({"tcp": {"connectTimeout": "2s"}, "http": {"connectionIdleTimeout": "4s"}}),
    );
    spec.insert(
        "# A model may be silent for minutes; this tells a silent one from a dead one.".to_owned(),
        Value::Null,
    );
    spec.insert("tcpKeepalive".to_owned(), json!({"probes": 3, "idleTime": "30s", "interval": "10s"}));
    spec.insert("connection".to_owned(), json!({"bufferLimit": CONNECTION_BUFFER}));
    let comment = comment(group);
    object(BACKEND_TRAFFIC_POLICY, &options.gateway.namespace, &group.name, options, comment, json!({"spec": spec}))
}

fn comment(group: &Group<'_>) -> &'static str {
    match (group.policy.balancing, group.policy.hosts) {
        (Balancing::EndpointOverride, Hosts::Addresses) => {
            "The sidecar names replicas by address, the best first; retries walk down its list."
        }
        (Balancing::EndpointOverride, Hosts::Names) => {
            "The sidecar resolves these names itself and names replicas by address. Envoy resolves them as well, and takes the \
             sidecar's choice where it knows the address; where the two had different answers of DNS, it takes the replica with \
             least to do, and the request finds less in the cache there. IP addresses are exact."
        }
        (Balancing::LeastRequest, _) => {
            "The sidecar names a cluster; each replica is one, or there is nothing to choose."
        }
    }
}

/// So high that they do not act: Envoy's default of 1024 would be the gateway's limit.
pub(super) fn circuit_breaker() -> Value {
    const UNBOUNDED: u32 = 1_000_000;
    json!({
        "maxConnections": UNBOUNDED,
        "maxPendingRequests": UNBOUNDED,
        "maxParallelRequests": UNBOUNDED,
        "maxParallelRetries": UNBOUNDED,
    })
}

/// The policy of the Gateway's listeners.
pub(super) fn client_traffic_policy(config: &Config, options: &GatewayOptions) -> Result<Value, GatewayError> {
    let idle_timeout = seconds(stream_idle(config));
    let buffer_limit = buffer_limit(config.settings.max_body_bytes)?;
    let spec = json!({
        "targetRefs": [gateway_ref(options)],
        "# The sidecar gets whole bodies: what it may be asked to read must fit, and a little more, so that it can say 413. \
            Each request that comes in slowly may hold as much of Envoy's memory.": null,
        "connection": {"bufferLimit": buffer_limit},
        "# Of an HTTP/2 stream Envoy holds no more than its window: 64 KiB without this, and every larger body would get a 413.": null,
        "http2": {"initialStreamWindowSize": buffer_limit, "initialConnectionWindowSize": buffer_limit},
        "# Nobody but the sidecar sets these, and nobody but Envoy x-envoy-..., by which a client could set timeouts and \
            retries. They go before any filter or route looks at the request.": null,
        "headers": {"earlyRequestHeaders": {
            "remove": STRIPPED_EARLY,
            "removeOnMatch": [{"type": "Prefix", "value": "x-envoy-"}],
        }},
        "# The longest silence. An answer that is not streamed is silent until the model has finished; a client that does not \
            send the rest of its request gets 408 after it.": null,
        "timeout": {"http": {"streamIdleTimeout": idle_timeout}},
    });
    Ok(object(
        CLIENT_TRAFFIC_POLICY,
        &options.gateway.namespace,
        &options.base(),
        options,
        "It holds for all of the Gateway's listeners. Decide: where the Gateway has a ClientTrafficPolicy already, put these fields \
         into that one instead: of two, the older holds, and without the removal of headers a client could choose its model \
         server while the sidecar is away.",
        json!({"spec": spec}),
    ))
}

fn buffer_limit(max_body_bytes: u64) -> Result<String, GatewayError> {
    // A window of HTTP/2 has 31 bits (RFC 9113, 6.9.2).
    const MOST: u64 = i32::MAX as u64 - BODY_SLACK_BYTES;
    if max_body_bytes > MOST {
        return Err(GatewayError::BodyTooLarge { bytes: max_body_bytes, most: MOST });
    }
    let bytes = max_body_bytes.saturating_add(BODY_SLACK_BYTES);
    Ok(if bytes.is_multiple_of(1024) { format!("{}Ki", bytes / 1024) } else { bytes.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_a_quantity_that_envoy_can_count() {
        assert_eq!(buffer_limit(32 << 20), Ok("32832Ki".to_owned()));
        assert_eq!(buffer_limit(1_000_000), Ok("1065536".to_owned()));
        assert!(matches!(buffer_limit(2 << 30), Err(GatewayError::BodyTooLarge { .. })));
    }
}
