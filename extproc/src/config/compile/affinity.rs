//! CacheAffinityPolicy into the policy of each backend.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Stage;
use super::backends::{Replicas, ServiceBackends, fitting_mode};
use super::reference::Index;
use super::routes::Routes;
use crate::affinity::{AffinityPolicy, Canon, PlacementMode};
use crate::config::diagnostic::{Diagnostic, Location, Severity};
use crate::config::model::{self, ObjectName};
use crate::config::resource::{AffinityTarget, CacheAffinityPolicy, Catalog, MetricsSpec, ServiceBackend};
use crate::config::upstream::Credentials;
use crate::config::value::HeaderName;

/// CacheAffinityPolicies onto backends.
pub(super) struct AffinityStage<'a> {
    replicas: &'a Index<Replicas>,
    backends: &'a ServiceBackends,
    routes: &'a Routes,
    /// By index of the backend, the most specific so far.
    attached: HashMap<usize, Attachment>,
}

/// A policy at a backend.
pub(super) struct Attachment {
    backend: usize,
    specificity: Specificity,
    policy: Arc<AffinityPolicy>,
    pages: Pages,
    location: Location,
}

/// Whether a policy says how metrics pages are read, or whether.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pages {
    Said,
    NotSaid,
}

/// What became of the policies.
pub(super) struct Affinities {
    /// By index of the backend, where one is attached.
    pub(super) policies: HashMap<usize, Arc<AffinityPolicy>>,
    /// The clusters of which a policy says how their metrics pages are read.
    said: HashSet<Arc<str>>,
}

impl Affinities {
    /// Has no metrics page read where requests go by TLS or with a key, unless a policy says so: they are providers, or servers that
    /// are not to be spoken to in clear text, and pages are read so.
    pub(super) fn leave_out_pages(&self, backends: &mut [model::Backend]) {
        let is_guarded =
            |backend: &&model::Backend| backend.tls.is_some() || !matches!(backend.credentials, Credentials::NotNeeded);
        // The replicas of one Backend are one pool, whoever refers to it.
        let guarded: HashSet<Arc<str>> =
            backends.iter().filter(is_guarded).map(|backend| Arc::clone(&backend.cluster)).collect();
        for backend in backends {
            if guarded.contains(&backend.cluster) && !self.said.contains(&backend.cluster) {
                Arc::make_mut(&mut backend.affinity).scraping = None;
            }
        }
    }
}

/// How closely a policy's target names a backend: where several policies reach it, the closest wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Specificity {
    Route,
    Backend,
    ServiceBackend,
}

impl<'a> AffinityStage<'a> {
    pub(super) fn new(replicas: &'a Index<Replicas>, backends: &'a ServiceBackends, routes: &'a Routes) -> Self {
        Self { replicas, backends, routes, attached: HashMap::new() }
    }

    /// The policies by backend, where one is attached. `read` is where the backends stand.
    pub(super) fn finish(self, read: &Catalog<ServiceBackend>, findings: &mut Vec<Diagnostic>) -> Affinities {
        self.report_shared_pools(findings);
        self.report_clear_text(read, findings);
        let says = self.attached.values().filter(|attachment| attachment.pages == Pages::Said);
        let cluster = |attachment: &Attachment| Some(Arc::clone(&self.backends.list.get(attachment.backend)?.cluster));
        let said = says.filter_map(cluster).collect();
        let policies = self.attached.into_iter().map(|(backend, attachment)| (backend, attachment.policy)).collect();
        Affinities { policies, said }
    }

    /// The replicas of one Backend are one pool, with one index, whoever refers to it.
    fn report_shared_pools(&self, findings: &mut Vec<Diagnostic>) {
        let mut first_of: HashMap<&str, usize> = HashMap::new();
        for (index, backend) in self.backends.list.iter().enumerate() {
            let first = *first_of.entry(&backend.cluster).or_insert(index);
            let Some(other) = self.backends.list.get(first) else { continue };
            let (attached, attached_other) = (self.attached.get(&index), self.attached.get(&first));
            let policy = attached.map_or(&*backend.affinity, |attached| &*attached.policy);
            let other_policy = attached_other.map_or(&*other.affinity, |attached| &*attached.policy);
            // One of the two is attached, or both would have the default.
            if let Some(here) = attached.or(attached_other).filter(|_| policy.pool_part() != other_policy.pool_part()) {
                findings.push(split(backend, policy, other, other_policy, &here.location));
            }
        }
    }

    /// Metrics pages are read in clear text, where requests go by TLS too: the port of the endpoints is hardly right for them then,
    /// and a provider has none.
    fn report_clear_text(&self, read: &Catalog<ServiceBackend>, findings: &mut Vec<Diagnostic>) {
        let mut seen = HashSet::new();
        for (index, backend) in self.backends.list.iter().enumerate() {
            let attached = self.attached.get(&index);
            let policy = attached.map_or(&*backend.affinity, |attached| &*attached.policy);
            let is_at_their_port = policy.scraping.as_ref().is_some_and(|scraping| scraping.port.is_none());
            // Of several that share a pool, the policy of the first holds.
            let is_said = attached.is_some_and(|attached| attached.pages == Pages::Said);
            if !seen.insert(&*backend.cluster) || backend.tls.is_none() || !is_at_their_port || !is_said {
                continue;
            }
            let message = format!(
                "metrics pages of the Backend {} are asked for in clear text, though it has TLS",
                backend.cluster
            );
            let location = attached
                .map(|attached| &attached.location)
                .or_else(|| read.find(&backend.name).map(|object| &object.location));
            let warning = match location {
                Some(location) => Diagnostic::warning(location, message),
                None => Diagnostic::general(Severity::Warning, message),
            };
            findings.push(warning.with_help(
                "leave `metrics` out, and none is asked for; or name the `port` where they are in clear text",
            ));
        }
    }

    /// The backends that a target stands for.
    fn reach(
        &self,
        target: &AffinityTarget,
        policy: &ObjectName,
        findings: &mut Vec<Diagnostic>,
    ) -> Option<(Specificity, Vec<usize>)> {
        match target {
            AffinityTarget::ServiceBackend(reference) => {
                let backend = *self.backends.by_name.resolve(reference, policy, findings)?;
                Some((Specificity::ServiceBackend, vec![backend]))
            }
            AffinityTarget::Backend(reference) => {
                let Replicas { cluster, .. } = self.replicas.resolve(reference, policy, findings)?;
                let backends = self.backends.list.iter().enumerate().filter(|(_, backend)| backend.cluster == *cluster);
                Some((Specificity::Backend, backends.map(|(index, _)| index).collect()))
            }
            AffinityTarget::Route(reference) => {
                let route = &self.routes.list.get(*self.routes.by_name.resolve(reference, policy, findings)?)?.route;
                let targets = route.rules.iter().flat_map(|rule| &rule.targets);
                let mut backends: Vec<_> = targets.map(|target| target.backend).collect();
                backends.sort_unstable();
                backends.dedup();
                Some((Specificity::Route, backends))
            }
        }
    }
}

impl Stage for AffinityStage<'_> {
    type Spec = CacheAffinityPolicy;
    type Built = Vec<Attachment>;

    fn build(
        &self,
        name: &ObjectName,
        spec: &CacheAffinityPolicy,
        findings: &mut Vec<Diagnostic>,
    ) -> Option<Vec<Attachment>> {
        let mut attachments = Vec::new();
        for target in &spec.targets {
            let Some((specificity, backends)) = self.reach(target, name, findings) else { continue };
            for index in backends {
                let Some(backend) = self.backends.list.get(index) else { continue };
                let Some(mode) = mode_for(backend, spec, findings) else { continue };
                if let Some(other) = self.attached.get(&index)
                    && other.specificity == specificity
                {
                    findings.push(ignored(backend, &other.policy, target.location()));
                    continue;
                }
                let policy = Arc::new(policy_of(name, spec, mode));
                let location = target.location().clone();
                let pages = if spec.metrics.is_some() { Pages::Said } else { Pages::NotSaid };
                attachments.push(Attachment { backend: index, specificity, policy, pages, location });
            }
        }
        Some(attachments)
    }

    fn accept(&mut self, _: &ObjectName, built: Option<Vec<Attachment>>) {
        for attachment in built.into_iter().flatten() {
            let is_closest =
                self.attached.get(&attachment.backend).is_none_or(|other| other.specificity < attachment.specificity);
            if is_closest {
                self.attached.insert(attachment.backend, attachment);
            }
        }
    }
}

fn mode_for(
    backend: &model::Backend,
    spec: &CacheAffinityPolicy,
    findings: &mut Vec<Diagnostic>,
) -> Option<PlacementMode> {
    let fitting = fitting_mode(&backend.endpoints);
    let Some(asked) = &spec.mode else { return Some(fitting) };
    if asked.value == PlacementMode::Endpoint && fitting == PlacementMode::Cluster {
        let message = format!(
            "mode `endpoint` needs IP addresses or names, and the Backend {} has Unix sockets",
            backend.cluster
        );
        findings
            .push(Diagnostic::error(&asked.location, message).with_help("use `mode: cluster`, or leave `mode` out"));
        return None;
    }
    Some(asked.value)
}

fn policy_of(name: &ObjectName, spec: &CacheAffinityPolicy, mode: PlacementMode) -> AffinityPolicy {
    let default = AffinityPolicy::default();
    AffinityPolicy {
        id: Arc::from(name.to_string()),
        mode,
        basis: spec.basis,
        session_header: spec.session_header.as_ref().map(|HeaderName(name)| Arc::clone(name)),
        tenancy: spec.tenancy,
        canon: Canon {
            masks: spec.masks.clone(),
            max_blocks: spec.max_blocks.unwrap_or(default.canon.max_blocks),
            ..default.canon
        },
        weights: spec.weights,
        index_bytes: spec.index_bytes.unwrap_or(default.index_bytes),
        cache_tokens: spec.cache_tokens,
        scraping: spec.metrics.as_ref().map_or(default.scraping, |MetricsSpec(scraping)| scraping.clone()),
        debug_headers: spec.debug_headers,
    }
}

fn ignored(backend: &model::Backend, other: &AffinityPolicy, location: &Location) -> Diagnostic {
    let message =
        format!("the backend {} has the policy {} already; this one does not hold for it", backend.name, other.id);
    Diagnostic::warning(location, message).with_help("attach one of them to the AIServiceBackend itself, or remove one")
}

fn split(
    backend: &model::Backend,
    policy: &AffinityPolicy,
    other: &model::Backend,
    other_policy: &AffinityPolicy,
    location: &Location,
) -> Diagnostic {
    let message = format!(
        "the AIServiceBackends {} and {} share the Backend {}, but have different policies ({} and {}): for how its \
         replicas are chosen, that of {} holds for both",
        other.name, backend.name, backend.cluster, other_policy.id, policy.id, other.name
    );
    Diagnostic::warning(location, message)
        .with_help(format!("attach one policy to the Backend {} instead", backend.cluster))
}
