//! BackendSecurityPolicy into the keys of backends, and which backends get no requests because theirs is not known.
//!
//! A backend whose key is missing must not be called without one. So what a policy with errors names is closed, or where that
//! cannot be told whatever is new in its namespace and has no key. A key that was in force stays in force while its Secret is
//! missing or faulty.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use super::Stage;
use super::backends::ServiceBackends;
use super::grants::{Crossing, Grants};
use super::reference::Index;
use crate::config::diagnostic::{Diagnostic, Location, Severity};
use crate::config::model::{Backend, ObjectName};
use crate::config::resource::{KEY_ENTRY, KeySpec, Object, Secrets, SecurityPolicy, Served, Spec};
use crate::config::source::{Keys, Lost, Presence};
use crate::config::upstream::{ApiKey, Credential, Credentials};
use crate::config::value::Reference;

/// BackendSecurityPolicies onto backends.
pub(super) struct CredentialStage<'a> {
    grants: &'a Grants,
    secrets: &'a Secrets,
    keys: Keys,
    /// The keys that were in force, by their Secrets.
    last: &'a BTreeMap<ObjectName, ApiKey>,
    backends: &'a ServiceBackends,
    /// By index of the backend.
    attached: HashMap<usize, Attached>,
    policies: Index<Attached>,
    gaps: Vec<Gap>,
}

/// What a policy gives to each of its backends.
#[derive(Debug, Clone)]
struct Attached {
    policy: ObjectName,
    location: Location,
    secret: ObjectName,
    credentials: Credentials,
    /// What to do where the key is not known.
    way_out: &'static str,
}

/// Where there are errors.
const MEND: &str = "mend its errors";
/// Where nothing is wrong but that the key is elsewhere.
const MOUNT: &str = "nothing is wrong if its Secret is mounted where `attache run --secrets-dir DIR` looks, as it is in what \
     `attache render envoy-gateway` prints";
/// Where the type of the policy is not served here.
const LEAVE: &str = "leave these backends to Envoy AI Gateway, or give them a key";

/// A policy, and the backends that it names.
pub(super) struct BuiltPolicy {
    targets: Vec<(usize, Location)>,
    attached: Attached,
    gaps: Vec<Gap>,
}

/// Backends that may be meant to have a key.
struct Gap {
    reach: Reach,
    /// Whoever asks for it.
    asked_by: String,
    location: Option<Location>,
}

enum Reach {
    Backend(usize),
    /// What was served before stays.
    NewBackends {
        of: Option<Arc<str>>,
    },
}

/// What came of the policies.
pub(super) struct Keyed {
    /// By index of the backend; the others need none.
    credentials: HashMap<usize, Credentials>,
    /// The keys in force, by their Secrets.
    pub(super) keys: BTreeMap<ObjectName, ApiKey>,
    /// The Secrets that policies of backends name.
    pub(super) secrets: BTreeSet<ObjectName>,
}

impl Keyed {
    /// Puts keys where they belong. Returns the backends that are closed.
    pub(super) fn apply(self, backends: &mut [Backend]) -> BTreeSet<ObjectName> {
        let mut closed = BTreeSet::new();
        for (index, credentials) in self.credentials {
            if let Some(backend) = backends.get_mut(index) {
                if credentials == Credentials::Unknown {
                    closed.insert(backend.name.clone());
                }
                backend.credentials = credentials;
            }
        }
        closed
    }
}

impl<'a> CredentialStage<'a> {
    pub(super) fn new(
        backends: &'a ServiceBackends,
        grants: &'a Grants,
        secrets: &'a Secrets,
        keys: Keys,
        last: &'a BTreeMap<ObjectName, ApiKey>,
    ) -> Self {
        let policies = Index::of::<SecurityPolicy>();
        Self { grants, secrets, keys, last, backends, attached: HashMap::new(), policies, gaps: Vec::new() }
    }

    pub(super) fn finish(mut self, lost: &[Lost], before: &Served, findings: &mut Vec<Diagnostic>) -> Keyed {
        self.attach_by_backends(findings);
        for Lost { path, .. } in lost.iter().filter(|lost| lost.credentials != Presence::Unlikely) {
            self.gaps.push(Gap::of_lost(path));
        }
        let mut credentials = HashMap::new();
        let mut keys = BTreeMap::new();
        let mut unknown: BTreeMap<String, (Vec<usize>, &Attached)> = BTreeMap::new();
        for (index, attached) in &self.attached {
            match &attached.credentials {
                Credentials::Known(credential) => {
                    keys.insert(attached.secret.clone(), credential.key.clone());
                }
                Credentials::Unknown | Credentials::NotNeeded => {
                    let asked_by = policy_text(&attached.policy);
                    unknown.entry(asked_by).or_insert_with(|| (Vec::new(), attached)).0.push(*index);
                }
            }
            credentials.insert(*index, attached.credentials.clone());
        }
        if self.keys != Keys::Unneeded {
            for (asked_by, (indices, attached)) in unknown {
                let told = self.closed(&indices, &asked_by, Some(&attached.location));
                findings.extend(told.map(|told| told.with_help(attached.way_out)));
            }
        }
        for gap in &self.gaps {
            let is_meant = |(index, backend): &(usize, &Backend)| match &gap.reach {
                Reach::Backend(only) => index == only,
                Reach::NewBackends { of } => {
                    of.as_ref().is_none_or(|of| backend.name.namespace == *of)
                        && !before.backends.contains(&backend.name)
                }
            };
            let meant = self.backends.list.iter().enumerate().filter(is_meant).map(|(index, _)| index);
            let closed: Vec<_> = meant.filter(|index| !credentials.contains_key(index)).collect();
            credentials.extend(closed.iter().map(|index| (*index, Credentials::Unknown)));
            let told = self.closed(&closed, &gap.asked_by, gap.location.as_ref());
            findings.extend(told.map(|told| told.with_help(gap.way_out())));
        }
        let secrets = self.attached.values().map(|attached| attached.secret.clone()).collect();
        Keyed { credentials, keys, secrets }
    }

    /// The older form: backends that name their policies.
    fn attach_by_backends(&mut self, findings: &mut Vec<Diagnostic>) {
        for (index, further) in self.backends.further.iter().enumerate() {
            let (Some(reference), Some(backend)) = (&further.security_policy, self.backends.list.get(index)) else {
                continue;
            };
            let mut found = Vec::new();
            let Some(attached) = self.policies.resolve(reference, &backend.name, &mut found) else {
                // The backend's own stage has said so where it knew it.
                let is_new = |new: &Diagnostic| findings.iter().all(|old| !is_same(old, new));
                found.retain(is_new);
                findings.extend(found);
                let asked_by = policy_text(&reference.seen_from(&backend.name));
                self.gaps.push(Gap {
                    reach: Reach::Backend(index),
                    asked_by,
                    location: Some(reference.location.clone()),
                });
                continue;
            };
            match self.attached.get(&index) {
                Some(other) if other.policy != attached.policy => {
                    findings.push(second(backend, other, &reference.location));
                }
                _ => {
                    self.attached.insert(index, attached.clone());
                }
            }
        }
    }

    fn credentials(
        &self,
        key: &KeySpec,
        policy: &ObjectName,
        secret: &ObjectName,
        findings: &mut Vec<Diagnostic>,
    ) -> Credentials {
        // What was in force does not stay: the key belongs to whoever grants its use, and whoever did may do so no more.
        if self.grants.permit(Crossing::SecurityPolicyToSecret, &key.secret, policy, findings).is_none() {
            return Credentials::Unknown;
        }
        let found = self.secrets.find(secret);
        let credential =
            |key: &ApiKey, scheme| Credentials::Known(Credential { policy: policy.clone(), scheme, key: key.clone() });
        let location = &key.secret.location;
        match found {
            Some(Ok(found)) => return credential(found, key.scheme),
            Some(Err(fault)) => {
                let message = format!("the Secret {secret} cannot be used: {fault}");
                findings.push(Diagnostic::error(location, message).with_help(fault.help()));
            }
            None if self.keys != Keys::Unneeded => {
                let message = format!("there is no Secret {secret}");
                let help = format!(
                    "add that Secret to these documents, or say `--secrets-dir DIR` and put the key into \
                     DIR/{secret}/{KEY_ENTRY}"
                );
                let missing = match self.keys {
                    Keys::Wanted => Diagnostic::warning(location, message),
                    Keys::Needed | Keys::Unneeded => Diagnostic::error(location, message),
                };
                findings.push(missing.with_help(help));
            }
            None => {}
        }
        match self.last.get(secret) {
            Some(last) => {
                let message = format!("the key that was last in the Secret {secret} stays in force");
                let warning = Diagnostic::warning(location, message).with_help("mend the Secret");
                findings.push(warning.following_from_another());
                credential(last, key.scheme)
            }
            None => Credentials::Unknown,
        }
    }

    fn closed(&self, indices: &[usize], asked_by: &str, location: Option<&Location>) -> Option<Diagnostic> {
        /// So many are named.
        const NAMED: usize = 3;
        let mut names: Vec<_> =
            indices.iter().filter_map(|index| self.backends.list.get(*index)).map(|backend| &backend.name).collect();
        names.sort();
        let mut told: Vec<String> = names.iter().take(NAMED).map(|name| format!("the backend {name}")).collect();
        if names.len() > NAMED {
            told.push(format!("{} more", names.len() - NAMED));
        }
        if told.is_empty() {
            return None;
        }
        let message = format!("requests to {} get 503: the key that {asked_by} asks for is not known", told.join(", "));
        let warning = match location {
            Some(location) => Diagnostic::warning(location, message),
            None => Diagnostic::general(Severity::Warning, message),
        };
        Some(warning.following_from_another())
    }
}

impl Stage for CredentialStage<'_> {
    type Spec = SecurityPolicy;
    type Built = BuiltPolicy;

    fn build(&self, name: &ObjectName, spec: &SecurityPolicy, findings: &mut Vec<Diagnostic>) -> Option<BuiltPolicy> {
        let policy = name.clone();
        let attached = match &spec.key {
            Some(key) => {
                let secret = key.secret.seen_from(name);
                let mut found = Vec::new();
                let credentials = self.credentials(key, name, &secret, &mut found);
                let way_out = if found.iter().any(Diagnostic::is_error) { MEND } else { MOUNT };
                findings.append(&mut found);
                Attached { policy, location: key.secret.location.clone(), secret, credentials, way_out }
            }
            // Of a type that is not served here: its backends are to have something that nobody here can give them.
            None => {
                let location = spec.targets.iter().flatten().next()?.location.clone();
                let credentials = Credentials::Unknown;
                Attached { policy, location, secret: name.clone(), credentials, way_out: LEAVE }
            }
        };
        let mut built = BuiltPolicy { targets: Vec::new(), attached, gaps: Vec::new() };
        for target in spec.targets.iter().flatten() {
            let Some(index) = self.backends.by_name.resolve(target, name, findings).copied() else {
                built.gaps.extend(self.gap_of_missing(target, name));
                continue;
            };
            match (self.attached.get(&index), self.backends.list.get(index)) {
                (Some(other), Some(backend)) => findings.push(second(backend, other, &target.location)),
                _ => built.targets.push((index, target.location.clone())),
            }
        }
        Some(built)
    }

    fn accept(&mut self, name: &ObjectName, built: Option<BuiltPolicy>) {
        let Some(BuiltPolicy { targets, attached, gaps }) = built else {
            self.policies.insert(name, None);
            return;
        };
        for (index, _) in targets {
            self.attached.insert(index, attached.clone());
        }
        self.gaps.extend(gaps);
        self.policies.insert(name, Some(attached));
    }

    fn lose(&mut self, object: &Object<SecurityPolicy>) {
        let Object { name, location, remains, .. } = object;
        let gap = |reach| Gap { reach, asked_by: policy_text(name), location: Some(location.clone()) };
        let Some(targets) = remains.as_ref().and_then(|remains| remains.targets.as_ref()) else {
            self.gaps.push(gap(Reach::NewBackends { of: Some(Arc::clone(&name.namespace)) }));
            return;
        };
        for target in targets {
            // What is wrong with the reference is said when the policy is read anew without its other errors.
            match self.backends.by_name.resolve(target, name, &mut Vec::new()) {
                Some(index) => self.gaps.push(gap(Reach::Backend(*index))),
                None => self.gaps.extend(self.gap_of_missing(target, name)),
            }
        }
    }
}

impl CredentialStage<'_> {
    /// A backend that is left out serves nobody; one that does not exist may go by another name now.
    fn gap_of_missing(&self, target: &Reference, policy: &ObjectName) -> Option<Gap> {
        let is_left_out = self.backends.by_name.knows(&target.seen_from(policy));
        (!is_left_out).then(|| Gap {
            reach: Reach::NewBackends { of: Some(Arc::clone(&policy.namespace)) },
            asked_by: policy_text(policy),
            location: Some(target.location.clone()),
        })
    }
}

impl Gap {
    fn of_lost(path: &Path) -> Self {
        let asked_by = format!("what could not be read in {}", path.display());
        Self { reach: Reach::NewBackends { of: None }, asked_by, location: None }
    }

    fn way_out(&self) -> &'static str {
        if self.location.is_some() { MEND } else { "mend what could not be read" }
    }
}

fn is_same(one: &Diagnostic, other: &Diagnostic) -> bool {
    let place = |diagnostic: &Diagnostic| diagnostic.location.as_ref().map(Location::to_string);
    one.message == other.message && place(one) == place(other)
}

fn policy_text(policy: &ObjectName) -> String {
    format!("the {} {policy}", SecurityPolicy::KIND)
}

fn second(backend: &Backend, first: &Attached, location: &Location) -> Diagnostic {
    let message = format!(
        "the AIServiceBackend {} has its key from the {} {} already",
        backend.name,
        SecurityPolicy::KIND,
        first.policy
    );
    Diagnostic::error(location, message).with_help("attach one of the two policies to it")
}
