//! What manifests need to know besides the operator's documents: which Gateway, and how the sidecar runs.

use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;
use std::sync::Arc;

use attache_gate::UnknownKeys;

use super::names;
use super::pod::EXTPROC_PORT;
use super::wasm::WasmSource;
use crate::config::model::ObjectName;
use crate::limit::RedisTarget;

/// The options of `attache render envoy-gateway`.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// The Gateway that clients call.
    pub gateway: ObjectName,
    /// Where the sidecar's Deployment lives; the Gateway's namespace without.
    pub namespace: Option<String>,
    /// Where Envoy Gateway runs the Gateway's proxies.
    pub proxy_namespace: String,
    /// Where whoever scrapes metrics runs.
    pub monitoring_namespace: String,
    /// Host names that the routes are for; all of the Gateway's without.
    pub hostnames: Vec<String>,
    /// The Wasm filter; `None` leaves it out.
    pub wasm: Option<WasmSource>,
    /// What the Wasm filter does with keys that are not in what was rendered.
    pub unknown_keys: UnknownKeys,
    /// How the sidecar runs.
    pub sidecar: SidecarForm,
    /// The sidecar's image.
    pub image: String,
    /// The Redis that sidecars share.
    pub redis: Option<GatewayRedis>,
    /// Whether several sidecars without a Redis are meant.
    pub ledgers: Ledgers,
}

/// Where several sidecars keep what was used of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ledgers {
    /// In one place, so that a limit holds for all of them together.
    Shared,
    /// Each in its own memory: a limit holds as often as there are sidecars.
    Separate,
}

impl GatewayOptions {
    /// The name of what is there once, in the Gateway's namespace.
    pub(super) fn base(&self) -> String {
        names::of_gateway(&self.gateway.name, None)
    }

    /// The name of what is there once for each role, in the Gateway's namespace.
    pub(super) fn named(&self, role: &str) -> String {
        names::of_gateway(&self.gateway.name, Some(role))
    }

    /// By which everything of one rendering is found, wherever it is.
    pub(super) fn instance(&self) -> String {
        names::across_namespaces(&self.gateway, None)
    }

    /// The name of what is the sidecar's own, in a namespace that Gateways of other namespaces may use as well. It does not
    /// depend on whether that is the Gateway's own: a Deployment's selector, which has [`Self::instance`], cannot be changed.
    pub(super) fn named_across_namespaces(&self, role: &str) -> String {
        names::across_namespaces(&self.gateway, Some(role))
    }

    /// Where the sidecar and its configuration live.
    pub(super) fn sidecar_namespace(&self) -> &str {
        match &self.sidecar {
            SidecarForm::Container => &self.proxy_namespace,
            SidecarForm::Deployment { .. } => self.namespace.as_deref().unwrap_or(&self.gateway.namespace),
            SidecarForm::External(service) => &service.name.namespace,
        }
    }

    /// Whether the sidecar's own objects are among those printed.
    pub(super) fn runs_sidecar(&self) -> bool {
        !matches!(self.sidecar, SidecarForm::External(_))
    }
}

/// How the sidecar runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SidecarForm {
    /// In each of the Gateway's proxy pods, reached by a Unix socket.
    Container,
    /// As pods of its own behind a Service.
    Deployment {
        /// How many.
        replicas: NonZeroU32,
    },
    /// Somebody else runs it, a Helm chart say, behind this Service.
    External(ServiceName),
}

/// The Redis that sidecars share.
#[derive(Debug, Clone)]
pub struct GatewayRedis {
    /// Its URL as it was written.
    pub url: String,
    /// The same, read.
    pub target: RedisTarget,
    /// The Secret whose key `password` is the password.
    pub secret: Option<String>,
}

/// A Gateway, as `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayName(pub ObjectName);

impl FromStr for GatewayName {
    type Err = InvalidGatewayName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidGatewayName::Unreadable(text.to_owned());
        let (namespace, name) = text.split_once('/').ok_or_else(invalid)?;
        if is_dns_label(namespace) && name.len() > MAX_LABEL_BYTES {
            return Err(InvalidGatewayName::TooLong(text.to_owned(), name.len()));
        }
        if !is_dns_label(namespace) || !is_dns_subdomain(name) {
            return Err(invalid());
        }
        Ok(Self(ObjectName { namespace: Arc::from(namespace), name: Arc::from(name) }))
    }
}

/// The text names no Gateway.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGatewayName {
    /// Not of the form.
    #[error(
        "`{0}` names no Gateway; write NAMESPACE/NAME of one that is there already (`kubectl get gateways -A` lists them)"
    )]
    Unreadable(String),
    /// Gateway API takes it, and Envoy Gateway cannot run it.
    #[error(
        "`{0}`: the name in NAMESPACE/NAME has {1} characters, and Envoy Gateway writes it on each proxy as a label, which holds \
         {MAX_LABEL_BYTES}"
    )]
    TooLong(String, usize),
}

/// Kubernetes: the value of a label, and a DNS label.
const MAX_LABEL_BYTES: usize = 63;

/// A Service, as `NAMESPACE/NAME` or `NAMESPACE/NAME:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceName {
    /// Its name.
    pub name: ObjectName,
    /// The port at which the sidecar speaks gRPC.
    pub port: NonZeroU16,
}

/// Where the sidecar listens unless somebody says otherwise: 10001.
const DEFAULT_PORT: NonZeroU16 = NonZeroU16::MIN.saturating_add(EXTPROC_PORT - 1);

impl FromStr for ServiceName {
    type Err = InvalidServiceName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidServiceName(text.to_owned());
        let (namespace, rest) = text.split_once('/').ok_or_else(invalid)?;
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, port.parse().map_err(|_| invalid())?),
            None => (rest, DEFAULT_PORT),
        };
        if !is_dns_label(namespace) || !is_dns_label(name) {
            return Err(invalid());
        }
        Ok(Self { name: ObjectName { namespace: Arc::from(namespace), name: Arc::from(name) }, port })
    }
}

/// The text names no Service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no Service; write NAMESPACE/NAME or NAMESPACE/NAME:PORT, such as gateways/attache:10001")]
pub struct InvalidServiceName(String);

/// Whether a namespace may be called so (RFC 1123).
pub fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_LABEL_BYTES).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether an object may be called so.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_named_with_its_namespace() {
        let name = "gateways/llm.example".parse::<GatewayName>().unwrap().0;
        assert_eq!((&*name.namespace, &*name.name), ("gateways", "llm.example"));
        let long = format!("a/{}", "x".repeat(254));
        for wrong in ["llm", "/llm", "gateways/", "a/b/c", "A/b", "a/b_c", "a.b/c", "a/-b", "", &long] {
            let error = wrong.parse::<GatewayName>().unwrap_err();
            assert!(error.to_string().contains("NAMESPACE/NAME"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_gateways_name_is_no_longer_than_a_label_and_whose_is_hears_how_long() {
        assert!(format!("a/{}", "x".repeat(63)).parse::<GatewayName>().is_ok());
        for name in ["x".repeat(64), "x.".repeat(126) + "x"] {
            let error = format!("a/{name}").parse::<GatewayName>().unwrap_err().to_string();
            assert!(error.contains(&format!("has {} characters", name.len())) && error.contains("holds 63"), "{error}");
        }
    }

    #[test]
    fn a_service_is_named_with_its_namespace_and_its_port_is_the_sidecars_where_none_is_said() {
        let service = "gateways/attache".parse::<ServiceName>().unwrap();
        assert_eq!((&*service.name.namespace, &*service.name.name, service.port.get()), ("gateways", "attache", 10001));
        assert_eq!("gateways/attache:7".parse::<ServiceName>().unwrap().port.get(), 7);
        for wrong in ["attache", "a/b:", "a/b:0", "a/b:65536", "a/b:http", "a/b.c", "a/", "/b", "a/b/c", "a.b/c", ""] {
            let error = wrong.parse::<ServiceName>().unwrap_err();
            assert!(error.to_string().contains("NAMESPACE/NAME:PORT"), "{wrong}: {error}");
        }
    }
}
