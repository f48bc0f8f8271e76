//! What manifests need to know besides the operator's documents: which Gateway, and how the sidecar runs.

use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;
use std::sync::Arc;

use super::names;
use super::pod::EXTPROC_PORT;
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
    /// How the sidecar runs.
    pub sidecar: SidecarForm,
    /// The sidecar's image.
    pub image: String,
    /// The Redis that sidecars share.
    pub redis: Option<GatewayRedis>,
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

/// Where Envoy Gateway finds the Wasm filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WasmSource {
    /// `https://...`, `http://...` or `oci://REGISTRY/IMAGE:TAG`.
    pub url: String,
    /// The file's (or image's) SHA-256, 64 hexadecimal digits in lower case.
    pub sha256: String,
}

impl WasmSource {
    /// What the command line says of it.
    ///
    /// # Errors
    /// [`InvalidWasm`] where one of the two is missing or wrong.
    pub fn from_parts(url: Option<String>, sha256: Option<String>) -> Result<Option<Self>, InvalidWasm> {
        // An empty variable is how deployments say "none".
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (url, sha256) = match (given(url), given(sha256)) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(InvalidWasm::NoUrl),
            (Some(url), None) => return Err(InvalidWasm::NoHash(url)),
            (Some(url), Some(sha256)) => (url, sha256.to_ascii_lowercase()),
        };
        let place = ["https://", "http://", "oci://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let is_url =
            place.is_some_and(|place| !place.is_empty() && !place.contains(|c: char| c.is_whitespace() || c == '@'));
        if !is_url {
            return Err(InvalidWasm::Url(url));
        }
        if sha256.len() != 64 || !sha256.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(InvalidWasm::Hash(sha256));
        }
        Ok(Some(Self { url, sha256 }))
    }
}

/// What is wrong with `--wasm-url` and `--wasm-sha256`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWasm {
    /// Without it Envoy Gateway runs whatever stands at the URL.
    #[error(
        "--wasm-url without --wasm-sha256: Envoy Gateway would run in every proxy whatever {0} serves; give the file's hash \
         (`sha256sum attache_wasm_filter.wasm`)"
    )]
    NoHash(String),
    /// A hash of nothing.
    #[error("--wasm-sha256 without --wasm-url: say where Envoy Gateway finds the file")]
    NoUrl,
    /// Not one of the forms.
    #[error("--wasm-url: `{0}` is no URL; write https://HOST/PATH, http://HOST/PATH or oci://REGISTRY/IMAGE:TAG")]
    Url(String),
    /// Not a SHA-256.
    #[error(
        "--wasm-sha256: `{0}` is no SHA-256, which has 64 hexadecimal digits (`sha256sum attache_wasm_filter.wasm`)"
    )]
    Hash(String),
}

/// A Gateway, as `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayName(pub ObjectName);

impl FromStr for GatewayName {
    type Err = InvalidGatewayName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidGatewayName(text.to_owned());
        let (namespace, name) = text.split_once('/').ok_or_else(invalid)?;
        if !is_dns_label(namespace) || !is_dns_subdomain(name) {
            return Err(invalid());
        }
        Ok(Self(ObjectName { namespace: Arc::from(namespace), name: Arc::from(name) }))
    }
}

/// The text names no Gateway.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no Gateway; write NAMESPACE/NAME of one that is there already (`kubectl get gateways -A` lists them)"
)]
pub struct InvalidGatewayName(String);

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
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
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
    fn a_service_is_named_with_its_namespace_and_its_port_is_the_sidecars_where_none_is_said() {
        let service = "gateways/attache".parse::<ServiceName>().unwrap();
        assert_eq!((&*service.name.namespace, &*service.name.name, service.port.get()), ("gateways", "attache", 10001));
        assert_eq!("gateways/attache:7".parse::<ServiceName>().unwrap().port.get(), 7);
        for wrong in ["attache", "a/b:", "a/b:0", "a/b:65536", "a/b:http", "a/b.c", "a/", "/b", "a/b/c", "a.b/c", ""] {
            let error = wrong.parse::<ServiceName>().unwrap_err();
            assert!(error.to_string().contains("NAMESPACE/NAME:PORT"), "{wrong}: {error}");
        }
    }

    fn wasm(url: &str, sha256: &str) -> Result<Option<WasmSource>, InvalidWasm> {
        WasmSource::from_parts(Some(url.to_owned()), Some(sha256.to_owned()))
    }

    #[test]
    fn a_filter_needs_its_hash() {
        let hash = "a5".repeat(32);
        let source = wasm("https://files.example/a.wasm", &hash.to_uppercase()).unwrap().unwrap();
        assert_eq!(source.sha256, hash);
        assert!(wasm("oci://registry.example/attache:1", &hash).unwrap().is_some());
        assert_eq!(wasm("", ""), Ok(None));
        assert_eq!(wasm("https://a.example/a", ""), Err(InvalidWasm::NoHash("https://a.example/a".to_owned())));
        assert_eq!(wasm("", &hash), Err(InvalidWasm::NoUrl));
        for bad in ["a5", &"g".repeat(64), &"a5".repeat(33)] {
            assert!(matches!(wasm("https://a.example/a", bad), Err(InvalidWasm::Hash(_))), "{bad}");
        }
        for bad in ["files.example/a.wasm", "https://", "ftp://a/b", "https://a b", "https://user:pw@a/b"] {
            assert!(matches!(wasm(bad, &hash), Err(InvalidWasm::Url(_))), "{bad}");
        }
    }
}
