//! References that cross namespaces, and whether the other namespace allows them.
//!
//! As in Gateway API: the namespace that is referred to has to say so in a ReferenceGrant. A reference that nobody granted is
//! not followed, whether the object is there or not.

use std::sync::Arc;

use super::Stage;
use crate::config::diagnostic::Diagnostic;
use crate::config::model::ObjectName;
use crate::config::resource::{
    AI_GATEWAY, Backend, ENVOY_GATEWAY, ReferenceGrant, Route, SecurityPolicy, ServiceBackend, Spec,
};
use crate::config::value::Reference;

/// The references that can cross namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crossing {
    /// From an AIGatewayRoute to an AIServiceBackend.
    RouteToServiceBackend,
    /// From an AIServiceBackend to a Backend.
    ServiceBackendToBackend,
    /// From a BackendSecurityPolicy to a Secret.
    SecurityPolicyToSecret,
}

/// A kind of objects: its group, which is empty for the core, and its name.
type GroupKind = (&'static str, &'static str);

impl Crossing {
    const fn from(self) -> GroupKind {
        match self {
            Self::RouteToServiceBackend => (AI_GATEWAY, Route::KIND),
            Self::ServiceBackendToBackend => (AI_GATEWAY, ServiceBackend::KIND),
            Self::SecurityPolicyToSecret => (AI_GATEWAY, SecurityPolicy::KIND),
        }
    }

    const fn to(self) -> GroupKind {
        match self {
            Self::RouteToServiceBackend => (AI_GATEWAY, ServiceBackend::KIND),
            Self::ServiceBackendToBackend => (ENVOY_GATEWAY, Backend::KIND),
            Self::SecurityPolicyToSecret => ("", "Secret"),
        }
    }
}

/// ReferenceGrants into what they allow.
#[derive(Default)]
pub(super) struct GrantStage {
    built: Grants,
}

/// Everything that is allowed.
#[derive(Debug, Default)]
pub(super) struct Grants {
    list: Vec<Grant>,
}

/// A reference that is allowed, or all references of a kind.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    crossing: Crossing,
    from_namespace: Arc<str>,
    to_namespace: Arc<str>,
    /// All of the kind, where it is not said.
    to_name: Option<Arc<str>>,
}

impl GrantStage {
    pub(super) fn finish(self) -> Grants {
        self.built
    }
}

impl Stage for GrantStage {
    type Spec = ReferenceGrant;
    type Built = Vec<Grant>;

    fn build(&self, name: &ObjectName, spec: &ReferenceGrant, _: &mut Vec<Diagnostic>) -> Option<Vec<Grant>> {
        let is = |(group, kind): GroupKind, other: (&str, &str)| (group, kind) == other;
        let mut grants = Vec::new();
        for crossing in
            [Crossing::RouteToServiceBackend, Crossing::ServiceBackendToBackend, Crossing::SecurityPolicyToSecret]
        {
            for from in spec.from.iter().filter(|from| is(crossing.from(), (&from.group, &from.kind))) {
                for to in spec.to.iter().filter(|to| is(crossing.to(), (&to.group, &to.kind))) {
                    grants.push(Grant {
                        crossing,
                        from_namespace: Arc::clone(&from.namespace),
                        to_namespace: Arc::clone(&name.namespace),
                        to_name: to.name.clone(),
                    });
                }
            }
        }
        Some(grants)
    }

    fn accept(&mut self, _: &ObjectName, built: Option<Vec<Grant>>) {
        self.built.list.extend(built.into_iter().flatten());
    }
}

impl Grants {
    /// Whether the reference may be followed. Where it may not, that is reported, with the grant that would allow it.
    pub(super) fn permit(
        &self,
        crossing: Crossing,
        reference: &Reference,
        referrer: &ObjectName,
        findings: &mut Vec<Diagnostic>,
    ) -> Option<()> {
        let wanted = reference.seen_from(referrer);
        if wanted.namespace == referrer.namespace || self.allow(crossing, referrer, &wanted) {
            return Some(());
        }
        let ((from_group, from), (to_group, to)) = (crossing.from(), crossing.to());
        let message = format!(
            "the {from} {referrer} refers to the {to} {wanted} in another namespace, and no ReferenceGrant there allows it"
        );
        let group = if to_group.is_empty() { "\"\"" } else { to_group };
        let ObjectName { namespace: to_namespace, name } = &wanted;
        let from_namespace = &referrer.namespace;
        let help = format!(
            "whoever answers for the namespace {to_namespace} can allow it: {{apiVersion: \
             gateway.networking.k8s.io/v1beta1, kind: ReferenceGrant, metadata: {{name: {from_namespace}-{name}, \
             namespace: {to_namespace}}}, spec: {{from: [{{group: {from_group}, kind: {from}, namespace: \
             {from_namespace}}}], to: [{{group: {group}, kind: {to}, name: {name}}}]}}}}"
        );
        findings.push(Diagnostic::error(&reference.location, message).with_help(help));
        None
    }

    fn allow(&self, crossing: Crossing, referrer: &ObjectName, wanted: &ObjectName) -> bool {
        self.list.iter().any(|grant| {
            grant.crossing == crossing
                && grant.from_namespace == referrer.namespace
                && grant.to_namespace == wanted.namespace
                && grant.to_name.as_ref().is_none_or(|name| *name == wanted.name)
        })
    }
}
