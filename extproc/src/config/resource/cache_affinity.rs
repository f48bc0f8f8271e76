//! CacheAffinityPolicy: how a replica is chosen, for the backends it is attached to.

use super::kind::{AI_GATEWAY, ENVOY_GATEWAY};
use super::{Backend, Route, ServiceBackend, Spec};
use crate::affinity::{DebugHeaders, PlacementMode, Tenancy};
use crate::config::diagnostic::Location;
use crate::config::fields::{Fields, FromNode, Log};
use crate::config::node::Node;
use crate::config::value::{HeaderName, Located, Reference, one_of};

#[derive(Debug)]
pub(in crate::config) struct CacheAffinityPolicy {
    /// Never empty.
    pub(in crate::config) targets: Vec<AffinityTarget>,
    /// `None`: whichever suits the endpoints.
    pub(in crate::config) mode: Option<Located<PlacementMode>>,
    pub(in crate::config) session_header: Option<HeaderName>,
    pub(in crate::config) tenancy: Tenancy,
    pub(in crate::config) debug_headers: DebugHeaders,
}

/// What a policy is attached to. Where several policies reach one backend, the most specific target wins.
#[derive(Debug)]
pub(in crate::config) enum AffinityTarget {
    ServiceBackend(Reference),
    Backend(Reference),
    Route(Reference),
}

impl AffinityTarget {
    pub(in crate::config) fn location(&self) -> &Location {
        let (Self::ServiceBackend(reference) | Self::Backend(reference) | Self::Route(reference)) = self;
        &reference.location
    }
}

impl Spec for CacheAffinityPolicy {
    const KIND: &'static str = "CacheAffinityPolicy";
}

impl FromNode for CacheAffinityPolicy {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let targets = fields.require_list("targetRefs");
            let mode = fields.take("mode");
            let session_header = fields.take("sessionHeader");
            let tenancy = if fields.take("isolateTenants") == Some(true) { Tenancy::Isolated } else { Tenancy::Shared };
            let debug_headers =
                if fields.take("debugHeaders") == Some(true) { DebugHeaders::Shown } else { DebugHeaders::Hidden };
            Some(Self { targets: targets?, mode, session_header, tenancy, debug_headers })
        })
    }
}

impl FromNode for PlacementMode {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        one_of(node, log, &[("endpoint", Self::Endpoint), ("cluster", Self::Cluster)])
    }
}

impl FromNode for AffinityTarget {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("namespace", "a policy is attached in its own namespace");
            fields.unsupported("sectionName", "the policy holds for the whole target");
            let target: Option<Target> = fields.require_with("kind", |node, log| {
                let choices = [
                    (ServiceBackend::KIND, Target { group: AI_GATEWAY, variant: Self::ServiceBackend }),
                    (Backend::KIND, Target { group: ENVOY_GATEWAY, variant: Self::Backend }),
                    (Route::KIND, Target { group: AI_GATEWAY, variant: Self::Route }),
                ];
                one_of(node, log, &choices)
            });
            fields.accept(&["group"]);
            if let Some(Target { group, .. }) = target {
                fields.take_with("group", |node, log| one_of(node, log, &[(group, ())]));
            }
            let reference = Reference::local_from_fields(fields);
            Some((target?.variant)(reference?))
        })
    }
}

/// A kind of target.
#[derive(Clone, Copy)]
struct Target {
    group: &'static str,
    variant: fn(Reference) -> AffinityTarget,
}
