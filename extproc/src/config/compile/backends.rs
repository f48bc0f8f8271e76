//! Backend and AIServiceBackend into model servers.

use std::collections::HashMap;
use std::sync::Arc;

use super::Stage;
use super::grants::{Crossing, Grants};
use super::reference::Index;
use super::tls::TlsPolicies;
use crate::affinity::{AffinityPolicy, PlacementMode};
use crate::config::diagnostic::Diagnostic;
use crate::config::model::{self, Endpoint, EndpointAddress, LimitsKnown, ObjectName, Retries};
use crate::config::resource::{self, Catalog, SecurityPolicy, ServiceBackend, Spec, endpoint_id};
use crate::config::tls::UpstreamTls;
use crate::config::upstream::{Credentials, Mutation};
use crate::config::value::Reference;

/// The default of Envoy Gateway's `retry.numRetries`.
const RETRIES: Retries = Retries { attempts: 2 };

/// Backends into replicas.
pub(super) struct BackendStage<'a> {
    tls: &'a TlsPolicies<'a>,
    replicas: Index<Replicas>,
}

/// What a Backend says.
#[derive(Debug, Clone)]
pub(super) struct Replicas {
    pub(super) cluster: Arc<str>,
    endpoints: Vec<Endpoint>,
    tls: Option<Arc<UpstreamTls>>,
}

impl<'a> BackendStage<'a> {
    pub(super) fn new(tls: &'a TlsPolicies<'a>) -> Self {
        Self { tls, replicas: Index::of::<resource::Backend>() }
    }

    pub(super) fn finish(self) -> Index<Replicas> {
        self.replicas
    }
}

impl Stage for BackendStage<'_> {
    type Spec = resource::Backend;
    type Built = Replicas;

    fn build(&self, name: &ObjectName, spec: &resource::Backend, findings: &mut Vec<Diagnostic>) -> Option<Replicas> {
        let tls = self.tls.tls(name, spec, findings).ok()?;
        let cluster: Arc<str> = Arc::from(name.to_string());
        let endpoint = |address: &EndpointAddress| {
            let id: Arc<str> = Arc::from(endpoint_id(address));
            Endpoint { cluster: Arc::from(format!("{cluster}/{id}")), id, address: address.clone() }
        };
        let endpoints = spec.endpoints.iter().map(endpoint).collect();
        Some(Replicas { cluster, endpoints, tls })
    }

    fn accept(&mut self, name: &ObjectName, built: Option<Replicas>) {
        self.replicas.insert(name, built);
    }
}

/// AIServiceBackends into model servers.
pub(super) struct ServiceBackendStage<'a> {
    replicas: &'a Index<Replicas>,
    grants: &'a Grants,
    /// As they were read now, and last.
    security_policies: [&'a Catalog<SecurityPolicy>; 2],
    built: ServiceBackends,
}

impl<'a> ServiceBackendStage<'a> {
    pub(super) fn new(
        replicas: &'a Index<Replicas>,
        grants: &'a Grants,
        security_policies: [&'a Catalog<SecurityPolicy>; 2],
    ) -> Self {
        let built = ServiceBackends { list: Vec::new(), further: Vec::new(), by_name: Index::of::<ServiceBackend>() };
        Self { replicas, grants, security_policies, built }
    }

    pub(super) fn finish(self) -> ServiceBackends {
        self.built
    }
}

impl Stage for ServiceBackendStage<'_> {
    type Spec = ServiceBackend;
    type Built = (model::Backend, Further);

    fn build(
        &self,
        name: &ObjectName,
        spec: &ServiceBackend,
        findings: &mut Vec<Diagnostic>,
    ) -> Option<(model::Backend, Further)> {
        // What the policy says is asked later. That it is there is asked now, while the backend can still stay as it was.
        if let Some(reference) = &spec.security_policy {
            let wanted = reference.seen_from(name);
            if self.security_policies.iter().all(|policies| policies.find(&wanted).is_none()) {
                let missing = format!("there is no {} {wanted}", SecurityPolicy::KIND);
                findings.push(
                    Diagnostic::error(&reference.location, missing)
                        .with_help("add the policy of that name, or remove the reference"),
                );
            }
        }
        self.grants.permit(Crossing::ServiceBackendToBackend, &spec.backend, name, findings)?;
        let Replicas { cluster, endpoints, tls } = self.replicas.resolve(&spec.backend, name, findings)?.clone();
        let affinity = Arc::new(AffinityPolicy { mode: fitting_mode(&endpoints), ..AffinityPolicy::default() });
        let backend = model::Backend {
            name: name.clone(),
            cluster,
            endpoints,
            tls,
            api: spec.api.clone(),
            answer_bound: spec.answer_bound,
            credentials: Credentials::NotNeeded,
            affinity,
            retries: RETRIES,
            model_class: spec.model_class.clone(),
            limits: Vec::new(),
            limits_known: LimitsKnown::All,
        };
        let further = Further { mutation: spec.mutation.clone(), security_policy: spec.security_policy.clone() };
        Some((backend, further))
    }

    fn accept(&mut self, name: &ObjectName, built: Option<(model::Backend, Further)>) {
        let ServiceBackends { list, further, by_name } = &mut self.built;
        by_name.insert(name, built.is_some().then_some(list.len()));
        if let Some((backend, more)) = built {
            list.push(backend);
            further.push(more);
        }
    }
}

/// What an AIServiceBackend says to routes and policies.
pub(super) struct Further {
    /// What is changed of requests to it, where no route says otherwise.
    pub(super) mutation: Mutation,
    /// The policy that it names.
    pub(super) security_policy: Option<Reference>,
}

/// The model servers.
pub(super) struct ServiceBackends {
    pub(super) list: Vec<model::Backend>,
    /// What others want to know of each.
    pub(super) further: Vec<Further>,
    /// Indices into `list`.
    pub(super) by_name: Index<usize>,
}

impl ServiceBackends {
    pub(super) fn with_affinities(mut self, affinities: &HashMap<usize, Arc<AffinityPolicy>>) -> Vec<model::Backend> {
        for (backend, affinity) in affinities {
            if let Some(backend) = self.list.get_mut(*backend) {
                backend.affinity = Arc::clone(affinity);
            }
        }
        self.list
    }
}

/// How a choice among these endpoints can reach Envoy: its `override_host` takes IP addresses, those of names included.
pub(super) fn fitting_mode(endpoints: &[Endpoint]) -> PlacementMode {
    if endpoints.iter().any(|endpoint| matches!(endpoint.address, EndpointAddress::Unix(_))) {
        PlacementMode::Cluster
    } else {
        PlacementMode::Endpoint
    }
}
