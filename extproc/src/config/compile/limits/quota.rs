//! QuotaPolicy into limits of backends, with Envoy Gateway's semantics: only what is charged is checked.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::Stage;
use super::super::backends::ServiceBackends;
use super::super::routes::Routes;
use super::{Attachment, Gap, Limiting, Reach, Site};
use crate::config::diagnostic::Diagnostic;
use crate::config::fields::{closest, quote};
use crate::config::model::ObjectName;
use crate::config::resource::{Object, QuotaPolicy, QuotaSpec, Spec};
use crate::config::value::Reference;
use crate::limit::{Cap, Condition, Dimension, Expected, Limit, Mode, OnStoreError};

/// QuotaPolicies into limits.
pub(in crate::config::compile) struct QuotaStage<'a> {
    backends: &'a ServiceBackends,
    routes: &'a Routes,
    limiting: Limiting,
}

impl<'a> QuotaStage<'a> {
    pub(in crate::config::compile) fn new(
        backends: &'a ServiceBackends,
        routes: &'a Routes,
        limiting: Limiting,
    ) -> Self {
        Self { backends, routes, limiting }
    }

    pub(in crate::config::compile) fn finish(self) -> Limiting {
        self.limiting
    }

    /// The backend; `None` for one that is left out.
    fn site(
        &self,
        target: &Reference,
        policy: &ObjectName,
        findings: &mut Vec<Diagnostic>,
    ) -> Result<Option<Site>, Reach> {
        let wanted = target.seen_from(policy);
        match self.backends.by_name.resolve(target, policy, findings) {
            Some(index) => Ok(Some(Site::Backend(*index))),
            None if self.backends.by_name.knows(&wanted) => Ok(None),
            None => Err(Reach::NewBackends { of: wanted.namespace }),
        }
    }

    fn report_unserved(&self, quotas: &[QuotaSpec], sites: &[Site], findings: &mut Vec<Diagnostic>) {
        let served: BTreeSet<_> = sites.iter().flat_map(|site| self.routes.served_models(*site)).collect();
        let mut seen = BTreeSet::new();
        for model in quotas.iter().filter_map(|quota| quota.model.as_ref()) {
            if sites.iter().any(|site| self.routes.may_serve(&model.value, *site)) || !seen.insert(&model.value) {
                continue;
            }
            let message =
                format!("no route sends {} to this policy's backends, so nothing uses this quota", quote(&model.value));
            let help = match closest(&model.value, served.iter().map(|model| &**model)) {
                Some(meant) => format!("did you mean `{meant}`? A quota is for the model's name at the backend"),
                None => "a quota is for the model's name at the backend: a route's `modelNameOverride`, if it has one"
                    .to_owned(),
            };
            findings.push(Diagnostic::warning(&model.location, message).with_help(help));
        }
    }
}

impl Stage for QuotaStage<'_> {
    type Spec = QuotaPolicy;
    type Built = Limiting;

    fn build(&self, name: &ObjectName, spec: &QuotaPolicy, findings: &mut Vec<Diagnostic>) -> Option<Limiting> {
        let mut limiting = Limiting::default();
        let mut sites = Vec::new();
        for target in spec.targets.as_deref().unwrap_or_default() {
            match self.site(target, name, findings) {
                Ok(site) => sites.extend(site.map(|site| (site, &target.name))),
                Err(reach) => limiting.gaps.push(Gap::new(reach, QuotaPolicy::KIND, name, &target.location)),
            }
        }
        sites.dedup();
        let places: Vec<_> = sites.iter().map(|(site, _)| *site).collect();
        self.report_unserved(&spec.quotas, &places, findings);
        for (site, backend) in sites {
            let attach = |quota| Attachment { site, limit: Arc::new(limit_of(name, backend, quota)) };
            limiting.attachments.extend(spec.quotas.iter().map(attach));
        }
        Some(limiting)
    }

    fn accept(&mut self, _: &ObjectName, built: Option<Limiting>) {
        self.limiting.extend(built.unwrap_or_default());
    }

    fn lose(&mut self, object: &Object<QuotaPolicy>) {
        let Object { name, location, remains, .. } = object;
        let unknown = || Reach::Backends { of: Arc::clone(&name.namespace) };
        let targets = remains.as_ref().and_then(|remains| remains.targets.as_deref());
        let reaches: Vec<Reach> = match targets {
            None => vec![unknown()],
            Some(targets) => targets
                .iter()
                .filter_map(|target| match self.site(target, name, &mut Vec::new()) {
                    Ok(site) => site.map(Reach::Site),
                    Err(_) => Some(unknown()),
                })
                .collect(),
        };
        let gaps = reaches.into_iter().map(|reach| Gap::new(reach, QuotaPolicy::KIND, name, location));
        self.limiting.gaps.extend(gaps);
    }
}

/// Each backend has counters of its own, as in Envoy AI Gateway: its name is a part of the id.
fn limit_of(policy: &ObjectName, backend: &str, quota: &QuotaSpec) -> Limit {
    let QuotaSpec { place, model, selector, quantity, amount, window, enforcement } = quota;
    let of_model = model
        .iter()
        .map(|model| Condition { dimension: Dimension::ServedModel, expected: Expected::Is(Arc::clone(&model.value)) });
    let id = Arc::from(format!("{policy}/{backend}:{place}"));
    Limit {
        per: selector.per.clone(),
        when: of_model.chain(selector.when.iter().cloned()).collect(),
        quantity: quantity.clone().of_limit(&id),
        id,
        amount: *amount,
        low_priority_percent: 100,
        window: window.clone(),
        mode: Mode::Check,
        cap: Cap::Open,
        default_max_tokens: None,
        enforcement: *enforcement,
        on_store_error: OnStoreError::Local,
    }
}
