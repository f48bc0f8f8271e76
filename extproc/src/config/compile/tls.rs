//! What Backends and BackendTLSPolicies say of TLS, put together.
//!
//! A Backend whose TLS is wrong is left out: it must not be called in clear text because nobody could read how it is to be
//! called.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::Stage;
use crate::config::diagnostic::Diagnostic;
use crate::config::model::{EndpointAddress, ObjectName};
use crate::config::resource::{self, Catalog, ConfigMaps, Object, Spec, TlsPolicy, TrustSpec, Validation};
use crate::config::tls::{ServerName, Subject, Trust, UpstreamTls};
use crate::config::value::Reference;

/// BackendTLSPolicies onto Backends.
pub(super) struct TlsStage<'a> {
    /// As they were read now, and last.
    backends: [&'a Catalog<resource::Backend>; 2],
    policies: TlsPolicies<'a>,
}

/// The policy of a Backend.
pub(super) struct Attached {
    policy: ObjectName,
    validation: Arc<Validation>,
}

/// The policies of all Backends, and the authorities that they refer to.
pub(super) struct TlsPolicies<'a> {
    config_maps: &'a ConfigMaps,
    /// The authorities that were in force, by their ConfigMaps.
    last: &'a Authorities,
    attached: HashMap<ObjectName, Attached>,
    /// What policies with errors name.
    lost: HashSet<ObjectName>,
    /// Where a policy with errors may name anything.
    lost_namespaces: HashSet<Arc<str>>,
}

impl<'a> TlsStage<'a> {
    pub(super) fn new(
        backends: [&'a Catalog<resource::Backend>; 2],
        config_maps: &'a ConfigMaps,
        last: &'a Authorities,
    ) -> Self {
        let policies = TlsPolicies {
            config_maps,
            last,
            attached: HashMap::new(),
            lost: HashSet::new(),
            lost_namespaces: HashSet::new(),
        };
        Self { backends, policies }
    }

    pub(super) fn finish(self) -> TlsPolicies<'a> {
        self.policies
    }
}

impl Stage for TlsStage<'_> {
    type Spec = TlsPolicy;
    type Built = Vec<(ObjectName, Arc<Validation>)>;

    fn build(&self, name: &ObjectName, spec: &TlsPolicy, findings: &mut Vec<Diagnostic>) -> Option<Self::Built> {
        let validation = spec.validation.as_ref()?;
        let mut built = Vec::new();
        for target in spec.targets.iter().flatten() {
            let wanted = target.seen_from(name);
            if self.backends.iter().all(|backends| backends.find(&wanted).is_none()) {
                let missing = format!("there is no {} {wanted}", resource::Backend::KIND);
                let error = Diagnostic::error(&target.location, missing);
                findings.push(error.with_help("add the Backend of that name, or remove the reference"));
            } else if let Some(first) = self.policies.attached.get(&wanted) {
                let message =
                    format!("the Backend {wanted} has its TLS from the {} {} already", TlsPolicy::KIND, first.policy);
                let error = Diagnostic::error(&target.location, message);
                findings.push(error.with_help("attach one of the two policies to it"));
            } else {
                built.push((wanted, Arc::clone(validation)));
            }
        }
        Some(built)
    }

    fn accept(&mut self, name: &ObjectName, built: Option<Self::Built>) {
        for (backend, validation) in built.into_iter().flatten() {
            self.policies.attached.insert(backend, Attached { policy: name.clone(), validation });
        }
    }

    fn lose(&mut self, object: &Object<TlsPolicy>) {
        let Object { name, remains, .. } = object;
        match remains.as_ref().and_then(|remains| remains.targets.as_ref()) {
            Some(targets) => self.policies.lost.extend(targets.iter().map(|target| target.seen_from(name))),
            None => {
                self.policies.lost_namespaces.insert(Arc::clone(&name.namespace));
            }
        }
    }
}

impl TlsPolicies<'_> {
    /// How a Backend is called: `Ok(None)` in clear text, and `Err` where that cannot be told, which is reported.
    pub(super) fn tls(
        &self,
        name: &ObjectName,
        spec: &resource::Backend,
        findings: &mut Vec<Diagnostic>,
    ) -> Result<Option<Arc<UpstreamTls>>, Untold> {
        let policy = self.attached.get(name).map(|attached| &*attached.validation);
        if policy.is_none() && (self.lost.contains(name) || self.lost_namespaces.contains(&name.namespace)) {
            if let Some(location) = &spec.location {
                let message = format!("the Backend {name} is left out: how it is to be called by TLS cannot be told");
                let warning = Diagnostic::warning(location, message).with_help("mend the BackendTLSPolicy");
                findings.push(warning.following_from_another());
            }
            return Err(Untold);
        }
        let (location, trust, sni) = match (policy, &spec.tls) {
            (Some(policy), _) => (&policy.location, Some(&policy.trust), Some(&policy.hostname)),
            (None, Some(tls)) => (&tls.location, tls.trust.as_ref(), tls.sni.as_ref()),
            (None, None) => {
                warn_of_clear_text(name, spec, findings);
                return Ok(None);
            }
        };
        let Some(trust) = trust else {
            let error = Diagnostic::error(location, "it is not said by whom the server is trusted");
            findings.push(
                error.with_help("write `wellKnownCACertificates: System`, or name a ConfigMap in `caCertificateRefs`"),
            );
            return Err(Untold);
        };
        let trust = self.trust(name, trust, findings)?;
        if trust == Trust::Anyone {
            let message =
                "any certificate will do: whoever stands between the proxy and this server can read what goes there";
            let warning = Diagnostic::warning(location, message);
            findings.push(warning.with_help("say whom to trust, in `wellKnownCACertificates` or `caCertificateRefs`"));
        }
        let subjects = policy.map(|policy| policy.subjects.clone()).unwrap_or_default();
        let Some(tls) = named(trust, sni, subjects, spec) else {
            let message = "the endpoints have no name that a certificate could be for";
            findings.push(
                Diagnostic::error(location, message).with_help("write the name of their certificate: `sni: NAME`"),
            );
            return Err(Untold);
        };
        Ok(Some(Arc::new(tls)))
    }

    fn trust(&self, backend: &ObjectName, spec: &TrustSpec, findings: &mut Vec<Diagnostic>) -> Result<Trust, Untold> {
        let references = match spec {
            TrustSpec::System => return Ok(Trust::System),
            TrustSpec::Anyone => return Ok(Trust::Anyone),
            TrustSpec::Authorities(references) => references,
        };
        let mut authorities = String::new();
        let mut result = Ok(());
        for reference in references {
            match self.authorities(backend, reference) {
                Ok(text) => authorities.push_str(text),
                Err(message) => {
                    let last = self.last.get(&reference.seen_from(backend));
                    let stays = if last.is_some() { "; the authorities that were read last stay" } else { "" };
                    let error = Diagnostic::error(&reference.location, message + stays);
                    let help =
                        "add that ConfigMap to these documents, with the certificates in PEM in its entry `ca.crt`";
                    findings.push(error.with_help(help));
                    match last {
                        Some(text) => authorities.push_str(text),
                        None => result = Err(Untold),
                    }
                }
            }
        }
        result.map(|()| Trust::Authorities(Arc::from(authorities)))
    }

    /// The authorities that these objects refer to, for the next time that a ConfigMap is not there or cannot be read.
    pub(super) fn in_force(&self, backends: &Catalog<resource::Backend>, policies: &Catalog<TlsPolicy>) -> Authorities {
        let of_backends = backends.iter().filter_map(|backend| {
            let tls = backend.spec.as_ref()?.tls.as_ref()?;
            Some((&backend.name, tls.trust.as_ref()?))
        });
        let of_policies = policies.iter().filter_map(|policy| {
            let validation = policy.spec.as_ref()?.validation.as_ref()?;
            Some((&policy.name, &validation.trust))
        });
        let references = of_backends.chain(of_policies).flat_map(|(name, trust)| match trust {
            TrustSpec::Authorities(references) => references.iter().map(|it| it.seen_from(name)).collect(),
            TrustSpec::System | TrustSpec::Anyone => Vec::new(),
        });
        let known = references.filter_map(|name| {
            let found =
                self.config_maps.find(&name).and_then(|found| found.as_ref().ok()).or_else(|| self.last.get(&name));
            found.map(Arc::clone).map(|text| (name, text))
        });
        known.collect()
    }

    /// They are in the Backend's own namespace, which is its policy's.
    fn authorities(&self, backend: &ObjectName, reference: &Reference) -> Result<&str, String> {
        let wanted = reference.seen_from(backend);
        match self.config_maps.find(&wanted) {
            Some(Ok(text)) => Ok(text),
            Some(Err(fault)) => Err(format!("the ConfigMap {wanted} cannot be used: {fault}")),
            None => Err(format!("there is no ConfigMap {wanted}")),
        }
    }
}

/// Certificates in PEM, by their ConfigMaps.
pub(in crate::config) type Authorities = BTreeMap<ObjectName, Arc<str>>;

/// Nobody can tell how the Backend is to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Untold;

/// `None` where a certificate could be for anybody.
fn named(
    trust: Trust,
    sni: Option<&Arc<str>>,
    subjects: Vec<Subject>,
    spec: &resource::Backend,
) -> Option<UpstreamTls> {
    if let Some(sni) = sni {
        let of_name = || vec![Subject::Dns(Arc::clone(sni))];
        let subjects = if subjects.is_empty() { of_name() } else { subjects };
        return Some(UpstreamTls { trust, server_name: ServerName::Fixed(Arc::clone(sni)), subjects });
    }
    let is_name = |address: &EndpointAddress| matches!(address, EndpointAddress::Fqdn { .. });
    if spec.endpoints.iter().all(is_name) {
        return Some(UpstreamTls { trust, server_name: ServerName::OfEndpoint, subjects });
    }
    let ip = |address: &EndpointAddress| match address {
        EndpointAddress::Ip(address) => Some(Subject::Ip(address.ip())),
        EndpointAddress::Fqdn { .. } | EndpointAddress::Unix(_) => None,
    };
    let addresses: Option<Vec<Subject>> = spec.endpoints.iter().map(ip).collect();
    match (addresses, &trust) {
        (Some(subjects), _) => Some(UpstreamTls { trust, server_name: ServerName::Unsaid, subjects }),
        (None, Trust::Anyone) => Some(UpstreamTls { trust, server_name: ServerName::Unsaid, subjects }),
        (None, Trust::System | Trust::Authorities(_)) => None,
    }
}

/// Port 443 of a name is HTTPS everywhere.
fn warn_of_clear_text(name: &ObjectName, spec: &resource::Backend, findings: &mut Vec<Diagnostic>) {
    let https = spec.endpoints.iter().find_map(|address| match address {
        EndpointAddress::Fqdn { hostname, port: 443 } => Some(hostname),
        _ => None,
    });
    if let (Some(hostname), Some(location)) = (https, &spec.location) {
        let message = format!(
            "requests to {hostname}:443, and keys with them, go there in clear text: nothing says that the Backend {name} \
             speaks TLS"
        );
        let help = "add `tls: {wellKnownCACertificates: System}` to the Backend, or a BackendTLSPolicy";
        findings.push(Diagnostic::warning(location, message).with_help(help));
    }
}
