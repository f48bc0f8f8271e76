//! Names of the headers and metadata that Attaché owns, in the lower case in which Envoy hands them over.
//!
//! None of them is ever taken from a client, and none reaches one, but for the rate-limit headers and, where the operator
//! asks for it, [`DECISION`].

/// The model the client asked for, under the name that Envoy AI Gateway uses.
pub const MODEL: &str = "x-ai-eg-model";
/// The route (`namespace/name`) that the request took.
pub const ROUTE: &str = "x-attache-route";
/// The Envoy cluster chosen. Routes match on its presence, so a request that the sidecar did not see finds no route.
pub const CLUSTER: &str = "x-attache-cluster";
/// The endpoints chosen, `ip:port,ip:port` in order of preference, as the Kubernetes endpoint-picker protocol names them.
pub const DESTINATION_ENDPOINT: &str = "x-gateway-destination-endpoint";
/// The caller's key id (a ClientKey's `namespace/name`), never the key.
pub const KEY_ID: &str = "x-attache-key-id";
/// The caller's tenant.
pub const TENANT: &str = "x-attache-tenant";
/// The reservation that this request holds in the ledger.
pub const RESERVATION: &str = "x-attache-reservation";
/// Why the request went where it went, for people who debug; sent to clients only where the operator asks for it.
pub const DECISION: &str = "x-attache-decision";
/// That a key has nothing left, from the sidecar to the filter with a refusal: `attache_gate::Exhausted` as JSON. The filter
/// takes it out of every answer, and believes it of the sidecar's alone.
pub const EXHAUSTED: &str = "x-attache-exhausted";
/// The version of HTTP by which a request came, as Envoy names it (`HTTP/1.1`, `HTTP/2`): by it the ext_proc is chosen that can
/// take the request's trailers. The bootstrap that we render has Envoy write it over whatever a client said; nobody else reads it.
pub const PROTOCOL: &str = "x-attache-protocol";

/// Which configuration the Wasm filter runs on, from the filter to the sidecar: `attache_gate::ConfigDigest`. Its presence says
/// that there is a filter.
pub const FILTER_CONFIG: &str = "x-attache-filter-config";
/// Why the sidecar's gate refused a request that the filter had left to it: `attache_gate::Learned` as JSON. The filter takes it
/// out of every answer, and believes it of the sidecar's alone.
pub const VERDICT: &str = "x-attache-verdict";
/// What an answer says of limits, in the names of OpenAI and of Envoy.
pub const RATE_LIMITS: [&str; 9] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
];

/// By which one request is known in everybody's logs: Envoy makes one where there is none. Not ours, but every answer has it.
pub const REQUEST_ID: &str = "x-request-id";
/// What an upstream called the same request, where it says so: it would be lost behind ours.
pub const UPSTREAM_REQUEST_ID: &str = "x-upstream-request-id";

/// What Envoy calls an answer by which the sidecar refuses a request for a limit (`response.code_details`).
pub const LIMITED_DETAILS: &str = "attache_limited";
/// What the name is preceded by in `response.code_details` for which the sidecar answers by itself.
pub const DETAILS_PREFIX: &str = "attache_";

/// The headers of ours that are removed from what clients send before anything else looks at the request.
///
/// [`MODEL`] is not among them: the filter may use it as a hint, to refuse early and never to admit, and the sidecar
/// overwrites it always.
pub const STRIPPED_EARLY: [&str; 10] =
    [ROUTE, CLUSTER, DESTINATION_ENDPOINT, KEY_ID, TENANT, RESERVATION, DECISION, EXHAUSTED, FILTER_CONFIG, VERDICT];

/// Every header of ours: [`STRIPPED_EARLY`] and [`MODEL`].
pub const OWNED: [&str; 11] = [
    ROUTE,
    CLUSTER,
    DESTINATION_ENDPOINT,
    KEY_ID,
    TENANT,
    RESERVATION,
    DECISION,
    EXHAUSTED,
    FILTER_CONFIG,
    VERDICT,
    MODEL,
];

/// The namespace of the dynamic metadata that carries request costs, as Envoy AI Gateway writes it, so that access logs
/// and policies which read it go on working.
pub const COST_METADATA_NAMESPACE: &str = "io.envoy.ai_gateway";

/// Envoy's own header that bounds one request's time at the upstream, in milliseconds. Not ours, but the sidecar sets or
/// removes it always: one route serves rules with different timeouts.
pub const UPSTREAM_TIMEOUT_MS: &str = "x-envoy-upstream-rq-timeout-ms";

/// Envoy's own header with a client's address, which it adds to requests from outside. Not for model servers:
/// `x-forwarded-for` says as much to those who are to know.
pub const EXTERNAL_ADDRESS: &str = "x-envoy-external-address";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_own_is_what_is_stripped_early_and_the_model() {
        let (model, early) = OWNED.split_last().unwrap();
        assert_eq!(*model, MODEL);
        assert_eq!(early, STRIPPED_EARLY);
    }

    #[test]
    fn our_names_are_in_lower_case_as_envoy_has_them() {
        for name in OWNED {
            assert_eq!(name, name.to_ascii_lowercase());
        }
    }
}
