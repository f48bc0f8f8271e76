//! Which objects are ours to read, which are somebody else's, and which names are slips.

use crate::config::fields::{closest, quote};

/// The group of Envoy AI Gateway.
pub(in crate::config) const AI_GATEWAY: &str = "aigateway.envoyproxy.io";
/// The group of Envoy Gateway's extensions.
pub(in crate::config) const ENVOY_GATEWAY: &str = "gateway.envoyproxy.io";
/// The group of our own kinds.
pub(in crate::config) const ATTACHE: &str = "attache.dev";
/// The group of the Gateway API.
pub(in crate::config) const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// What is to be done with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    Backend,
    ServiceBackend,
    Route,
    TokenLimitPolicy,
    CacheAffinityPolicy,
    ClientKey,
    QuotaPolicy,
    SecurityPolicy,
    ReferenceGrant,
    /// BackendTLSPolicy.
    TlsPolicy,
    /// Authorities may be in it.
    ConfigMap,
    /// Keys to upstreams may be in it.
    Secret,
    /// BackendTrafficPolicy; ours where it counts tokens.
    TrafficPolicy,
    /// One that this sidecar is meant to act on and does not yet.
    Unsupported {
        consequence: &'static str,
    },
    /// One that Kubernetes or Envoy Gateway act on, and that stands rightly beside ours.
    NotOurs,
    /// One of a group that nobody here acts on.
    Foreign {
        group: &'a str,
    },
}

/// An object that seems to be meant for us under a name that nobody knows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misnamed {
    pub(super) message: String,
    pub(super) help: String,
}

const AI_GATEWAY_KINDS: [&str; 6] =
    ["AIGatewayRoute", "AIServiceBackend", "BackendSecurityPolicy", "GatewayConfig", "MCPRoute", "QuotaPolicy"];
const ENVOY_GATEWAY_KINDS: [&str; 9] = [
    "Backend",
    "BackendTrafficPolicy",
    "ClientTrafficPolicy",
    "EnvoyExtensionPolicy",
    "EnvoyGateway",
    "EnvoyPatchPolicy",
    "EnvoyProxy",
    "HTTPRouteFilter",
    "SecurityPolicy",
];
const ATTACHE_KINDS: [&str; 3] = ["CacheAffinityPolicy", "ClientKey", "TokenLimitPolicy"];

/// The kinds without which more is allowed than with them.
pub(super) const GUARDS: [&str; 5] =
    ["BackendSecurityPolicy", "BackendTrafficPolicy", "ClientKey", "QuotaPolicy", "TokenLimitPolicy"];

/// Objects in one, of any kind.
pub(in crate::config) const LIST: &str = "List";

/// Whether a kind may be what is left of one of those.
pub(super) fn begins_a_guard(kind: &str) -> bool {
    GUARDS.iter().chain([&LIST]).any(|guard| guard.starts_with(kind))
}

impl<'a> Kind<'a> {
    pub(super) fn of(api_version: &'a str, kind: &str) -> Result<Self, Misnamed> {
        let groups = [AI_GATEWAY, ATTACHE, ENVOY_GATEWAY];
        // Of the core group as it stands, it would be somebody else's.
        if let Some(group) = groups.into_iter().find(|group| group.starts_with(api_version)) {
            let message = format!("{} is no group and version", quote(api_version));
            return Err(Misnamed { message, help: format!("write `apiVersion: {group}/v1alpha1`") });
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let (kinds, versions): (&[&str], &[&str]) = match group {
            AI_GATEWAY => (&AI_GATEWAY_KINDS, &["v1alpha1", "v1beta1"]),
            ENVOY_GATEWAY => (&ENVOY_GATEWAY_KINDS, &["v1alpha1"]),
            ATTACHE => (&ATTACHE_KINDS, &["v1alpha1"]),
            _ => return Self::of_another_group(group, kind),
        };
        let kind = name_of_today(group, kind).unwrap_or(kind);
        if !kinds.contains(&kind) {
            let help = closest(kind, kinds.iter().copied())
                .map_or_else(|| format!("it has {}", kinds.join(", ")), |meant| format!("did you mean `{meant}`?"));
            return Err(Misnamed { message: format!("the group {group} has no kind {}", quote(kind)), help });
        }
        if !versions.contains(&version) {
            let message = format!("{kind} is not known in version {}", quote(version));
            return Err(Misnamed { message, help: format!("write `apiVersion: {group}/{}`", versions.join("` or `")) });
        }
        Ok(match kind {
            "AIGatewayRoute" => Self::Route,
            "AIServiceBackend" => Self::ServiceBackend,
            "Backend" => Self::Backend,
            "CacheAffinityPolicy" => Self::CacheAffinityPolicy,
            "ClientKey" => Self::ClientKey,
            "TokenLimitPolicy" => Self::TokenLimitPolicy,
            "BackendSecurityPolicy" => Self::SecurityPolicy,
            "BackendTrafficPolicy" => Self::TrafficPolicy,
            "QuotaPolicy" => Self::QuotaPolicy,
            "GatewayConfig" | "MCPRoute" => Self::Unsupported { consequence: "it is not applied here" },
            _ => Self::NotOurs,
        })
    }

    fn of_another_group(group: &'a str, kind: &str) -> Result<Self, Misnamed> {
        // `Backend` and the like are names that other groups have a right to.
        let ours = ["AIGatewayRoute", "AIServiceBackend", "BackendSecurityPolicy"]
            .map(|kind| (AI_GATEWAY, kind))
            .into_iter()
            .chain(ATTACHE_KINDS.map(|kind| (ATTACHE, kind)))
            .find(|(_, name)| *name == kind);
        if let Some((home, kind)) = ours {
            let message = format!("{kind} is no kind of the group {}", quote(group));
            return Err(Misnamed { message, help: format!("write `apiVersion: {home}/v1alpha1`") });
        }
        if group == GATEWAY_API && kind == "BackendTLSPolicy" {
            return Ok(Self::TlsPolicy);
        }
        if group == GATEWAY_API && kind == "ReferenceGrant" {
            return Ok(Self::ReferenceGrant);
        }
        Ok(match group {
            "" if kind == "Secret" => Self::Secret,
            "" if kind == "ConfigMap" => Self::ConfigMap,
            "" if LIST.starts_with(kind) => {
                let message = format!("{} is no list of objects", quote(kind));
                return Err(Misnamed { message, help: format!("write `apiVersion: v1` and `kind: {LIST}`") });
            }
            "" | "apps" | GATEWAY_API => Self::NotOurs,
            _ => Self::Foreign { group },
        })
    }
}

/// What a kind is called now that had another name when Envoy AI Gateway was being made.
pub(super) fn name_of_today(group: &str, kind: &str) -> Option<&'static str> {
    match (group, kind) {
        (AI_GATEWAY, "AIRoute") => Some("AIGatewayRoute"),
        (AI_GATEWAY, "AIBackend") => Some("AIServiceBackend"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_belongs_to_its_group_and_version() {
        assert_eq!(Kind::of("aigateway.envoyproxy.io/v1beta1", "AIGatewayRoute"), Ok(Kind::Route));
        assert_eq!(Kind::of("attache.dev/v1alpha1", "ClientKey"), Ok(Kind::ClientKey));
        assert_eq!(Kind::of("v1", "Service"), Ok(Kind::NotOurs));
        assert_eq!(Kind::of("gateway.kgateway.dev/v1", "Backend"), Ok(Kind::Foreign { group: "gateway.kgateway.dev" }));
        let help = |api_version, kind| Kind::of(api_version, kind).unwrap_err().help;
        assert_eq!(help("attache.dev/v1alpha1", "ClientKeys"), "did you mean `ClientKey`?");
        assert_eq!(help("attache.io/v1alpha1", "ClientKey"), "write `apiVersion: attache.dev/v1alpha1`");
        assert_eq!(
            help("aigateway.envoyproxy.io/v1", "AIGatewayRoute"),
            "write `apiVersion: aigateway.envoyproxy.io/v1alpha1` or `v1beta1`"
        );
    }
}
