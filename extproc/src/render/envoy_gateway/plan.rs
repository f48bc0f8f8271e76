//! What is to be routed to, and by which objects: everything that has to be decided before the first line is written.

use std::time::Duration;

use super::error::GatewayError;
use super::names::of_upstream;
use super::options::GatewayOptions;
use super::tls;
use crate::affinity::PlacementMode;
use crate::config::Config;
use crate::config::model::{Endpoint, EndpointAddress};
use crate::config::tls::{Trust, UpstreamTls};
use crate::render::clusters::{Pool, pools};

/// Gateway API: rules of an HTTPRoute.
const RULES_PER_ROUTE: usize = 16;
/// Gateway API: backendRefs of a rule.
const REFS_PER_RULE: usize = 16;
/// Envoy Gateway: endpoints of a Backend.
const ENDPOINTS_PER_BACKEND: usize = 64;
/// Gateway API: subjectAltNames of a BackendTLSPolicy.
const SUBJECTS_PER_POLICY: usize = 5;
/// As many HTTPRoutes as the policies that name them can well have: an object of Kubernetes ends at 1.5 MiB.
const MOST_TARGETS: usize = 64 * RULES_PER_ROUTE;

/// All upstreams, in the order in which they are printed.
pub(super) struct Plan<'c> {
    pub(super) groups: Vec<Group<'c>>,
}

/// Targets under one BackendTrafficPolicy.
pub(super) struct Group<'c> {
    /// The policy's name.
    pub(super) name: String,
    pub(super) policy: Policy,
    pub(super) routes: Vec<TargetRoute<'c>>,
}

/// One HTTPRoute to targets.
pub(super) struct TargetRoute<'c> {
    pub(super) name: String,
    pub(super) targets: Vec<Target<'c>>,
}

/// One value of `x-attache-cluster`, and where it leads.
pub(super) struct Target<'c> {
    pub(super) cluster: &'c str,
    /// Backends: one, or as many as it takes to hold all endpoints.
    pub(super) backends: Vec<TargetBackend<'c>>,
    pub(super) timeout: RuleTimeout,
    pub(super) tls: Option<&'c UpstreamTls>,
}

/// One Backend.
pub(super) struct TargetBackend<'c> {
    pub(super) name: String,
    pub(super) endpoints: Vec<&'c Endpoint>,
}

/// What targets must have in common to share a BackendTrafficPolicy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) balancing: Balancing,
    pub(super) hosts: Hosts,
    pub(super) attempts: u32,
}

/// Who chooses among a target's endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Balancing {
    /// The sidecar, by a header.
    EndpointOverride,
    /// Envoy, if there is anything to choose.
    LeastRequest,
}

/// What a target's endpoints are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hosts {
    Addresses,
    Names,
}

/// How long a complete answer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleTimeout {
    /// All rules agree; `None` is no bound.
    Same(Option<Duration>),
    /// They do not: the longest.
    Longest(Option<Duration>),
}

impl RuleTimeout {
    pub(super) fn duration(self) -> Option<Duration> {
        match self {
            Self::Same(timeout) | Self::Longest(timeout) => timeout,
        }
    }
}

impl<'c> Plan<'c> {
    /// # Errors
    /// Everything that Envoy Gateway would not take.
    pub(super) fn new(config: &'c Config, options: &GatewayOptions) -> Result<Self, Vec<GatewayError>> {
        let pools = pools(&config.backends);
        let errors: Vec<GatewayError> = pools.iter().flat_map(faults).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
        let drafts: Vec<Draft<'c>> = pools.iter().flat_map(|pool| drafts(pool, config)).collect();
        if drafts.len() > MOST_TARGETS {
            return Err(vec![GatewayError::TooManyTargets { count: drafts.len(), most: MOST_TARGETS }]);
        }
        Ok(Self { groups: groups(drafts, options) })
    }

    /// All HTTPRoutes to targets.
    pub(super) fn routes(&self) -> impl Iterator<Item = &TargetRoute<'c>> {
        self.groups.iter().flat_map(|group| &group.routes)
    }

    /// All targets.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Target<'c>> {
        self.routes().flat_map(|route| &route.targets)
    }

    /// Whether anything is reached by name.
    pub(super) fn has_names(&self) -> bool {
        self.groups.iter().any(|group| group.policy.hosts == Hosts::Names)
    }
}

/// A target before it and its objects have names.
struct Draft<'c> {
    cluster: &'c str,
    endpoints: Vec<&'c Endpoint>,
    policy: Policy,
    timeout: RuleTimeout,
    tls: Option<&'c UpstreamTls>,
}

fn drafts<'c>(pool: &Pool<'c>, config: &'c Config) -> Vec<Draft<'c>> {
    let backend = pool.first;
    let hosts = match backend.endpoints.iter().any(|endpoint| matches!(endpoint.address, EndpointAddress::Fqdn { .. }))
    {
        true => Hosts::Names,
        false => Hosts::Addresses,
    };
    let policy = |balancing| Policy { balancing, hosts, attempts: backend.retries.attempts };
    let timeout = timeout(&backend.cluster, config);
    let balancing =
        if pool.has(PlacementMode::Endpoint) { Balancing::EndpointOverride } else { Balancing::LeastRequest };
    let mut drafts = vec![Draft {
        cluster: &backend.cluster,
        endpoints: backend.endpoints.iter().collect(),
        policy: policy(balancing),
        timeout,
        tls: backend.tls.as_deref(),
    }];
    if pool.has(PlacementMode::Cluster) {
        drafts.extend(backend.endpoints.iter().map(|endpoint| Draft {
            cluster: &endpoint.cluster,
            endpoints: vec![endpoint],
            policy: policy(Balancing::LeastRequest),
            timeout,
            tls: backend.tls.as_deref(),
        }));
    }
    drafts
}

/// Of all rules that may send requests to this cluster. Envoy Gateway's ext_proc may not set `x-envoy-...` headers, by which
/// each rule would have its own.
fn timeout(cluster: &str, config: &Config) -> RuleTimeout {
    let leads_there = |target: &crate::config::model::Target| {
        config.backends.get(target.backend).is_some_and(|backend| &*backend.cluster == cluster)
    };
    let rules = config.routes.iter().flat_map(|route| &route.rules);
    let mut timeouts = rules.filter(|rule| rule.targets.iter().any(leads_there)).map(|rule| rule.request_timeout);
    let Some(first) = timeouts.next() else { return RuleTimeout::Same(None) };
    timeouts.fold(RuleTimeout::Same(first), |so_far, next| match (so_far.duration(), next) {
        (one, other) if one == other => so_far,
        (Some(one), Some(other)) => RuleTimeout::Longest(Some(one.max(other))),
        _ => RuleTimeout::Longest(None),
    })
}

fn groups<'c>(drafts: Vec<Draft<'c>>, options: &GatewayOptions) -> Vec<Group<'c>> {
    let mut by_policy: Vec<(Policy, Vec<Target<'c>>)> = Vec::new();
    for draft in drafts {
        let backends = target_backends(&draft, options);
        let target = Target { cluster: draft.cluster, backends, timeout: draft.timeout, tls: draft.tls };
        match by_policy.iter_mut().find(|(policy, _)| *policy == draft.policy) {
            Some((_, targets)) => targets.push(target),
            None => by_policy.push((draft.policy, vec![target])),
        }
    }
    let mut routes_before = 0_usize;
    let mut groups = Vec::with_capacity(by_policy.len());
    for (index, (policy, mut targets)) in by_policy.into_iter().enumerate() {
        let mut routes = Vec::new();
        while !targets.is_empty() {
            let rest = targets.split_off(targets.len().min(RULES_PER_ROUTE));
            routes_before += 1;
            routes.push(TargetRoute { name: options.named(&format!("targets-{routes_before}")), targets });
            targets = rest;
        }
        groups.push(Group { name: options.named(&format!("upstream-{}", index + 1)), policy, routes });
    }
    groups
}

fn target_backends<'c>(draft: &Draft<'c>, options: &GatewayOptions) -> Vec<TargetBackend<'c>> {
    // `namespace/backend`, or `namespace/backend/endpoint`, which has no slash further on but in a socket's path.
    let parts: Vec<&str> = draft.cluster.splitn(3, '/').collect();
    let is_one = draft.endpoints.len() <= ENDPOINTS_PER_BACKEND;
    let backend = |(index, endpoints): (usize, &[&'c Endpoint])| {
        let number = (index + 1).to_string();
        let parts: Vec<&str> = parts.iter().copied().chain((!is_one).then_some(&*number)).collect();
        TargetBackend { name: of_upstream(&options.gateway.name, &parts), endpoints: endpoints.to_vec() }
    };
    draft.endpoints.chunks(ENDPOINTS_PER_BACKEND).enumerate().map(backend).collect()
}

/// What Envoy Gateway would refuse of a Backend.
fn faults(pool: &Pool<'_>) -> Vec<GatewayError> {
    let cluster = || pool.first.cluster.as_ref().to_owned();
    let endpoints = &pool.first.endpoints;
    let mut faults = Vec::new();
    for endpoint in endpoints {
        match &endpoint.address {
            EndpointAddress::Unix(path) => {
                faults.push(GatewayError::UnixModelServer { cluster: cluster(), path: path.as_ref().to_owned() });
            }
            EndpointAddress::Ip(address) if address.ip().to_canonical().is_loopback() => {
                faults.push(GatewayError::Loopback { cluster: cluster(), address: address.ip().to_string() });
            }
            EndpointAddress::Fqdn { hostname, .. } if !hostname.contains('.') || hostname.contains('_') => {
                faults.push(GatewayError::BadHostname { cluster: cluster(), hostname: hostname.as_ref().to_owned() });
            }
            EndpointAddress::Ip(_) | EndpointAddress::Fqdn { .. } => {}
        }
    }
    let names = endpoints.iter().filter(|endpoint| matches!(endpoint.address, EndpointAddress::Fqdn { .. })).count();
    if names > 0 && names < endpoints.len() {
        faults.push(GatewayError::MixedEndpoints { cluster: cluster() });
    }
    if let Some(tls) = pool.first.tls.as_deref().filter(|tls| tls.trust != Trust::Anyone) {
        let hostname = tls::hostname(tls, &endpoints.iter().collect::<Vec<_>>());
        let count = hostname.map(|hostname| tls::alternative_names(tls, hostname).len());
        match count {
            None => faults.push(GatewayError::NoServerName { cluster: cluster() }),
            Some(count) if count > SUBJECTS_PER_POLICY => {
                faults.push(GatewayError::TooManySubjects { cluster: cluster(), count, most: SUBJECTS_PER_POLICY });
            }
            Some(_) => {}
        }
    }
    let most = REFS_PER_RULE * ENDPOINTS_PER_BACKEND;
    if endpoints.len() > most {
        faults.push(GatewayError::TooManyEndpoints { cluster: cluster(), count: endpoints.len(), most });
    }
    faults
}
