//! TLS to model servers: `tls` of a Backend of Envoy Gateway, and BackendTLSPolicy of Gateway API.

use std::sync::Arc;

use super::kind::ENVOY_GATEWAY;
use super::{Backend, Spec, Support};
use crate::config::diagnostic::Location;
use crate::config::fields::{Fields, FromNode, Log, quote};
use crate::config::node::Node;
use crate::config::tls::Subject;
use crate::config::value::{Reference, is_dns_name, one_of};

/// Who vouches for a server, before references are followed.
#[derive(Debug)]
pub(in crate::config) enum TrustSpec {
    System,
    /// ConfigMaps.
    Authorities(Vec<Reference>),
    Anyone,
}

/// `tls` of a Backend.
#[derive(Debug)]
pub(in crate::config) struct TlsSettings {
    pub(in crate::config) location: Location,
    /// `None` where a policy has to say it.
    pub(in crate::config) trust: Option<TrustSpec>,
    pub(in crate::config) sni: Option<Arc<str>>,
}

impl FromNode for TlsSettings {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            // Each endpoint's own name is what is asked for where no other is said.
            fields.accept(&["autoSNIFromUpstreamHost"]);
            fields.unsupported("alpnProtocols", "HTTP/1.1 is what is spoken");
            fields.unsupported("clientCertificateRef", "servers are shown no certificate");
            for parameter in ["ciphers", "ecdhCurves", "maxVersion", "minVersion", "signatureAlgorithms"] {
                fields.unsupported(parameter, "Envoy's own choice holds");
            }
            let sni = read_sni(fields);
            let trust = read_trust(fields);
            let anyone = fields.take("insecureSkipVerify").unwrap_or(false);
            let (sni, trust) = (sni?, trust?);
            if anyone && trust.is_some() {
                let message = "`insecureSkipVerify` says to trust anyone, and beside it stands whom to trust";
                fields.reject("insecureSkipVerify", message, "keep one of the two");
            }
            let trust = trust.or(anyone.then_some(TrustSpec::Anyone));
            Some(Self { location: fields.here(), trust, sni })
        })
    }
}

/// `None` where there is one that cannot be read.
fn read_sni(fields: &mut Fields<'_>) -> Option<Option<Arc<str>>> {
    if !fields.has("sni") {
        return Some(None);
    }
    fields.take_with("sni", read_host_name).map(Some)
}

fn read_host_name(node: &Node, log: &mut Log) -> Option<Arc<str>> {
    let text = Arc::<str>::from_node(node, log)?;
    let is_address = text.parse::<std::net::IpAddr>().is_ok();
    if is_dns_name(&text) && !is_address {
        return Some(text);
    }
    log.fail(
        node,
        format!("{} is not a host name", quote(&text)),
        "write the name that the server's certificate is for",
    )
}

/// `caCertificateRefs` or `wellKnownCACertificates`; `None` where they are wrong, and within where neither is there.
fn read_trust(fields: &mut Fields<'_>) -> Option<Option<TrustSpec>> {
    let by_reference = fields.has("caCertificateRefs");
    let by_name = fields.has("wellKnownCACertificates");
    if by_reference && by_name {
        let message = "`caCertificateRefs` and `wellKnownCACertificates` are both here";
        fields.reject("wellKnownCACertificates", message, "keep one of the two");
    }
    let references = fields.take_with("caCertificateRefs", |node, log| {
        let references = Vec::<AuthorityRef>::from_node(node, log)?;
        if references.is_empty() {
            return log.fail(node, "it is empty", "name a ConfigMap with the authorities in its entry `ca.crt`");
        }
        Some(references.into_iter().map(|AuthorityRef(reference)| reference).collect())
    });
    let well_known = fields.take_with("wellKnownCACertificates", |node, log| one_of(node, log, &[("System", ())]));
    match (by_reference, by_name) {
        (true, _) => Some(Some(TrustSpec::Authorities(references?))),
        (false, true) => well_known.map(|()| Some(TrustSpec::System)),
        (false, false) => Some(None),
    }
}

struct AuthorityRef(Reference);

impl FromNode for AuthorityRef {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.accept(&["group"]);
            let kind = fields.require_with("kind", |node, log| one_of(node, log, &[("ConfigMap", ())]));
            let reference = Reference::local_from_fields(fields);
            kind?;
            Some(Self(reference?))
        })
    }
}

/// BackendTLSPolicy.
#[derive(Debug)]
pub(in crate::config) struct TlsPolicy {
    /// The Backends; `None` where that could not be read.
    pub(in crate::config) targets: Option<Vec<Reference>>,
    /// `None` only in what remains of one with errors.
    pub(in crate::config) validation: Option<Arc<Validation>>,
}

/// What a policy says of the servers.
#[derive(Debug)]
pub(in crate::config) struct Validation {
    pub(in crate::config) location: Location,
    pub(in crate::config) trust: TrustSpec,
    pub(in crate::config) hostname: Arc<str>,
    /// Empty where the host name is all.
    pub(in crate::config) subjects: Vec<Subject>,
}

impl Spec for TlsPolicy {
    const KIND: &'static str = "BackendTLSPolicy";
}

impl FromNode for TlsPolicy {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("options", "they are each implementation's own");
            let targets: Option<Vec<Target>> = fields.require_list("targetRefs");
            let validation: Option<Validation> = fields.require("validation");
            let targets = targets.map(|targets| targets.into_iter().filter_map(|Target(backend)| backend).collect());
            Some(Self { targets, validation: validation.map(Arc::new) })
        })
    }
}

impl FromNode for Validation {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let location = fields.here();
            let hostname = fields.require_with("hostname", read_host_name);
            let subjects: Option<Vec<AltName>> = fields.list("subjectAltNames");
            let Some(trust) = read_trust(fields)? else {
                let help = "write `wellKnownCACertificates: System`, or name a ConfigMap in `caCertificateRefs`";
                return fields.fail("it is not said whom to trust", help);
            };
            let subjects = subjects?.into_iter().map(|AltName(subject)| subject).collect();
            Some(Self { location, trust, hostname: hostname?, subjects })
        })
    }
}

struct AltName(Subject);

impl FromNode for AltName {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.accept(&["hostname", "uri"]);
            let is_name =
                fields.require_with("type", |node, log| one_of(node, log, &[("Hostname", true), ("URI", false)]))?;
            let subject = match is_name {
                true => Subject::Dns(fields.require_with("hostname", read_host_name)?),
                false => Subject::Uri(fields.require("uri")?),
            };
            Some(Self(subject))
        })
    }
}

/// `None` for what is not served here.
struct Target(Option<Reference>);

impl FromNode for Target {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("sectionName", "the policy holds for the whole Backend");
            let support = fields.require_with("kind", |node, log| {
                if node.text().is_some_and(|kind| matches!(&**kind, "Service" | "InferencePool")) {
                    let message = "nothing is served from it here, by TLS or otherwise: this target is left out";
                    log.leave_out::<()>(node, message, "attach the policy to a Backend");
                    return Some(Support::Unsupported);
                }
                one_of(node, log, &[(Backend::KIND, Support::Supported)])
            });
            if support == Some(Support::Unsupported) {
                fields.accept(&["group", "name"]);
                return Some(Self(None));
            }
            fields.take_with("group", |node, log| one_of(node, log, &[(ENVOY_GATEWAY, ())]));
            let backend = Reference::local_from_fields(fields);
            support?;
            Some(Self(Some(backend?)))
        })
    }
}
