//! ClientKey into what the gate checks.
//!
//! Without any ClientKey everyone may call, so a ClientKey must never be missing by accident: one with errors, and any text
//! that could not be read and may have held one, keep the gate shut.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use attache_gate::{Access, GateConfig, KeyDigest, KeyEntry};

use super::Stage;
use super::routes::Routes;
use crate::config::diagnostic::{Diagnostic, Location, Severity};
use crate::config::model::{MatchId, ObjectName, Route, RuleId, Settings};
use crate::config::resource::{Catalog, ClientKey, Guard, RoutePattern};
use crate::config::source::{Lost, Presence};
use crate::config::value::{Located, Timestamp};

/// ClientKeys into entries of the gate.
pub(super) struct KeyStage<'a> {
    routes: &'a Routes,
    /// Since 1970.
    now: Duration,
    entries: Vec<KeyEntry>,
    owners: HashMap<KeyDigest, Location>,
}

/// An entry, and where its digests stand.
pub(super) struct BuiltKey {
    entry: KeyEntry,
    digests: Vec<Located<KeyDigest>>,
}

/// So long before a key ends, somebody is told.
const SOON: Duration = Duration::from_secs(14 * 86_400);

impl<'a> KeyStage<'a> {
    /// `now` is since 1970: a key that ends is told of before.
    pub(super) fn new(routes: &'a Routes, now: Duration) -> Self {
        Self { routes, now, entries: Vec::new(), owners: HashMap::new() }
    }

    /// Who may come in, and whether that has to be asked from now on.
    pub(super) fn finish(
        self,
        read: &Catalog<ClientKey>,
        lost: &[Lost],
        before: Guard,
        findings: &mut Vec<Diagnostic>,
    ) -> (Access, Guard) {
        if !self.entries.is_empty() || read.iter().next().is_some() {
            return (Access::Keys(self.entries), Guard::Guarded);
        }
        if before == Guard::Guarded {
            let message = "nobody can call: the ClientKeys that there were are gone";
            let error = Diagnostic::general(Severity::Error, message);
            findings.push(error.with_help("write a ClientKey, or restart the sidecar if anyone may call from now on"));
            return (Access::Keys(Vec::new()), Guard::Guarded);
        }
        // Where everybody was let in, a text of which nobody can tell what it was does not change that.
        let is_lost = |lost: &Lost| match lost.client_keys {
            Presence::Possible => true,
            Presence::Conceivable => before != Guard::Open,
            Presence::Unlikely => false,
        };
        if lost.iter().any(is_lost) {
            let message = "nobody can call: no ClientKey was read, and what could not be read may have had one";
            let warning = Diagnostic::general(Severity::Warning, message);
            findings.push(warning.with_help("mend what could not be read").following_from_another());
            return (Access::Keys(Vec::new()), Guard::Unguarded);
        }
        let warning = Diagnostic::general(Severity::Warning, "anyone can call: there is no ClientKey");
        findings.push(warning.with_help("add a ClientKey for each caller, unless something before Envoy knows them"));
        (Access::Open, Guard::Open)
    }

    fn warn_of_end(&self, name: &ObjectName, spec: &ClientKey, findings: &mut Vec<Diagnostic>) {
        const DAY_SECONDS: u64 = 86_400;
        let Some(Located { value: Timestamp(end), location }) = spec.not_after.as_ref().filter(|_| !spec.disabled)
        else {
            return;
        };
        let left = Duration::from_secs(*end).checked_sub(self.now);
        let message = match left {
            None => format!("ClientKey {name} has expired: nobody can call with it"),
            Some(left) if left < Duration::from_secs(DAY_SECONDS) => format!("ClientKey {name} expires within a day"),
            Some(left) if left < SOON => format!("ClientKey {name} expires in {} days", left.as_secs() / DAY_SECONDS),
            Some(_) => return,
        };
        let help = match left {
            None => "remove it, or give its caller a new key and another `notAfter`",
            Some(_) => "give its caller a new key (`sha256` may be a list meanwhile), or another `notAfter`",
        };
        findings.push(Diagnostic::warning(location, message).with_help(help));
    }

    fn routes(&self, pattern: &RoutePattern, key: &ObjectName, findings: &mut Vec<Diagnostic>) -> Vec<String> {
        let id = |index: &usize| self.routes.list.get(*index).map(|built| built.route.id.to_string());
        match pattern {
            RoutePattern::All => self.routes.list.iter().map(|built| built.route.id.to_string()).collect(),
            RoutePattern::One(reference) => {
                self.routes.by_name.resolve(reference, key, findings).and_then(id).into_iter().collect()
            }
        }
    }
}

impl Stage for KeyStage<'_> {
    type Spec = ClientKey;
    type Built = BuiltKey;

    fn build(&self, name: &ObjectName, spec: &ClientKey, findings: &mut Vec<Diagnostic>) -> Option<BuiltKey> {
        for digest in &spec.sha256 {
            if let Some(first) = self.owners.get(&digest.value) {
                let twice = Diagnostic::error(&digest.location, "two ClientKeys have this `sha256`");
                let help = format!("the first is at {first}; remove one, or give this caller another key");
                findings.push(twice.with_help(help));
                return None;
            }
        }
        let (first, also) = spec.sha256.split_first()?;
        self.warn_of_end(name, spec, findings);
        let mut routes: Vec<_> = spec.routes.iter().flat_map(|pattern| self.routes(pattern, name, findings)).collect();
        routes.sort();
        routes.dedup();
        let id = name.to_string();
        let tenant = spec.tenant.as_ref().map_or_else(|| id.clone(), ToString::to_string);
        let entry = KeyEntry {
            also: also.iter().map(|digest| digest.value).collect(),
            labels: spec.labels.clone(),
            priority: spec.priority,
            not_after_ms: spec.not_after.as_ref().map(|end| end.value.0.saturating_mul(1_000)),
            disabled: spec.disabled,
            ..KeyEntry::new(id, first.value, tenant, routes)
        };
        Some(BuiltKey { entry, digests: spec.sha256.clone() })
    }

    fn accept(&mut self, _: &ObjectName, built: Option<BuiltKey>) {
        if let Some(BuiltKey { entry, digests }) = built {
            self.owners.extend(digests.into_iter().map(|digest| (digest.value, digest.location)));
            self.entries.push(entry);
        }
    }
}

/// The gate's checks as data.
pub(super) fn gate_config(
    settings: &Settings,
    access: Access,
    routes: &[Route],
    rules_by_model: &HashMap<Arc<str>, Vec<MatchId>>,
) -> GateConfig {
    let mut config = GateConfig::new(access);
    config.path_prefix.clone_from(&settings.path_prefix);
    config.max_body_bytes = settings.max_body_bytes;
    config.unattached_status = settings.unattached_status;
    for route in routes {
        let id = route.id.to_string();
        for pattern in &route.pass_through {
            config.pass_through.entry(pattern.to_string()).or_default().push(id.clone());
        }
    }
    // A hint refuses keys that none of a model's routes is attached to, so those that serve it by a pattern belong to it. Of a
    // model that no rule names, the filter knows nothing, and lets it pass.
    for (model, matches) in rules_by_model {
        let mut serving: Vec<RuleId> = matches.iter().map(|found| found.rule).collect();
        serving.sort_by_key(|id| id.route);
        serving.dedup_by_key(|id| id.route);
        let ids = serving.iter().filter_map(|id| Some(routes.get(id.route)?.id.to_string())).collect();
        config.models.insert(model.to_string(), ids);
    }
    config
}
