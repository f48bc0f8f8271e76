//! BackendTrafficPolicy into limits of routes and rules, with Envoy Gateway's semantics: what an answer costs is charged after it,
//! and only what is charged is checked.

use std::sync::Arc;

use super::super::Stage;
use super::super::routes::{BuiltRoute, Routes};
use super::token::site_of;
use super::{Attachment, Gap, Limiting, Reach, Site};
use crate::config::diagnostic::Diagnostic;
use crate::config::fields::{closest, quote};
use crate::config::model::{CostSource, ObjectName};
use crate::config::resource::{Object, Sharing, Spec, TrafficPolicy, TrafficRule, TrafficTarget};
use crate::limit::{Cap, CostProgram, Dimension, Limit, Mode, OnStoreError, Quantity};

/// BackendTrafficPolicies into limits.
pub(in crate::config::compile) struct TrafficStage<'a> {
    routes: &'a Routes,
    limiting: Limiting,
}

impl<'a> TrafficStage<'a> {
    pub(in crate::config::compile) fn new(routes: &'a Routes, limiting: Limiting) -> Self {
        Self { routes, limiting }
    }

    pub(in crate::config::compile) fn finish(self) -> Limiting {
        self.limiting
    }

    fn sites(
        &self,
        target: &TrafficTarget,
        policy: &ObjectName,
        findings: &mut Vec<Diagnostic>,
    ) -> Result<Vec<Site>, Reach> {
        let those = |is_meant: &dyn Fn(&BuiltRoute) -> bool| -> Vec<Site> {
            let routes = self.routes.list.iter().enumerate().filter(|(_, built)| is_meant(built));
            routes.map(|(index, _)| Site::Route(index)).collect()
        };
        match target {
            TrafficTarget::Route { route, rule } => {
                Ok(site_of(self.routes, route, rule.as_ref(), policy, findings)?.into_iter().collect())
            }
            TrafficTarget::Gateway(gateway) => {
                let wanted = gateway.seen_from(policy);
                let hangs = |built: &BuiltRoute| built.parents.is_empty() || built.parents.contains(&wanted);
                let sites = those(&hangs);
                if sites.is_empty() && !self.routes.list.is_empty() {
                    let error = Diagnostic::error(&gateway.location, format!("no route hangs on the Gateway {wanted}"));
                    findings.push(error.with_help("name a Gateway of a route's `parentRefs`, or a route"));
                    return Err(Reach::NewRoutes { of: None });
                }
                Ok(sites)
            }
            TrafficTarget::Labelled(labels) => {
                let has_all = |built: &BuiltRoute| {
                    built.route.name.namespace == policy.namespace
                        && labels.iter().all(|(name, value)| built.labels.get(name) == Some(value))
                };
                Ok(those(&has_all))
            }
            TrafficTarget::Any => Ok(those(&|_| true)),
        }
    }

    fn attachment(
        &self,
        rule: &TrafficRule,
        site: Site,
        policy: &ObjectName,
        findings: &mut Vec<Diagnostic>,
    ) -> Option<Attachment> {
        let (Site::Route(route) | Site::Rule(route, _)) = site else { return None };
        let built = self.routes.list.get(route)?;
        let cost_key = &rule.cost_key.value;
        let Some(cost) = built.route.costs.iter().find(|cost| cost.key == *cost_key) else {
            let message = format!("the route {} publishes no cost {}", built.route.name, quote(cost_key));
            let keys = || built.route.costs.iter().map(|cost| &*cost.key);
            let help = match closest(cost_key, keys()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None if keys().next().is_none() => "add it to the route's `llmRequestCosts`".to_owned(),
                None => format!("it has {}", keys().collect::<Vec<_>>().join(", ")),
            };
            findings.push(Diagnostic::error(&rule.cost_key.location, message).with_help(help));
            return None;
        };
        let quantity = quantity(&cost.cost, rule.each_request)?;
        let mut per = rule.selector.per.clone();
        if rule.sharing == Sharing::PerRoute && !per.contains(&Dimension::Route) {
            per.push(Dimension::Route);
        }
        // No other policy's limits have brackets in their names.
        let id = Arc::from(format!("{policy}/rules[{}]", rule.index));
        let limit = Limit {
            per,
            when: rule.selector.when.clone(),
            amount: rule.amount.saturating_mul(quantity.scale()),
            quantity: quantity.of_limit(&id),
            id,
            low_priority_percent: 100,
            window: rule.window.clone(),
            mode: Mode::Check,
            cap: Cap::Open,
            default_max_tokens: None,
            enforcement: rule.enforcement,
            on_store_error: OnStoreError::Local,
        };
        Some(Attachment { site, limit: Arc::new(limit) })
    }
}

fn quantity(cost: &CostSource, each_request: u64) -> Option<Quantity> {
    Some(match cost {
        CostSource::Tokens(cost) if each_request == 0 => Quantity::Tokens(*cost),
        CostSource::Tokens(cost) => {
            Quantity::Weighted(Arc::new(CostProgram::of_tokens(*cost).ok()?.with_each_request(each_request)))
        }
        CostSource::Expression(program) => {
            Quantity::Weighted(Arc::new(CostProgram::clone(program).with_each_request(each_request)))
        }
    })
}

impl Stage for TrafficStage<'_> {
    type Spec = TrafficPolicy;
    type Built = Limiting;

    fn build(&self, name: &ObjectName, spec: &TrafficPolicy, findings: &mut Vec<Diagnostic>) -> Option<Limiting> {
        let mut limiting = Limiting::default();
        let mut sites: Vec<Site> = Vec::new();
        for target in spec.targets.as_deref().unwrap_or_default() {
            match self.sites(target, name, findings) {
                Ok(found) => sites.extend(found),
                Err(reach) => limiting
                    .gaps
                    .extend(target.location().map(|location| Gap::new(reach, TrafficPolicy::KIND, name, location))),
            }
        }
        sites.dedup();
        for rule in &spec.rules {
            let mut first: Option<Arc<Limit>> = None;
            for site in &sites {
                let attachment = self.attachment(rule, *site, name, findings);
                let unlike = |attachment: &Attachment| {
                    rule.sharing == Sharing::Shared
                        && first.as_ref().is_some_and(|first| first.quantity != attachment.limit.quantity)
                };
                match attachment {
                    Some(attachment) if !unlike(&attachment) => {
                        first.get_or_insert_with(|| Arc::clone(&attachment.limit));
                        limiting.attachments.push(attachment);
                    }
                    unfit => {
                        if unfit.is_some() {
                            let message = "routes that share this limit do not count the same by this cost";
                            let error = Diagnostic::error(&rule.cost_key.location, message);
                            findings.push(error.with_help("write the same cost in their `llmRequestCosts`"));
                        }
                        limiting.gaps.push(Gap::at(*site, TrafficPolicy::KIND, name, &rule.cost_key.location));
                    }
                }
            }
        }
        Some(limiting)
    }

    fn accept(&mut self, _: &ObjectName, built: Option<Limiting>) {
        self.limiting.extend(built.unwrap_or_default());
    }

    fn lose(&mut self, object: &Object<TrafficPolicy>) {
        let Object { name, location, remains, .. } = object;
        let unknown = || Reach::Routes { of: Arc::clone(&name.namespace) };
        let targets = remains.as_ref().and_then(|remains| remains.targets.as_deref());
        let reaches: Vec<Reach> = match targets {
            None => vec![unknown()],
            Some(targets) => targets
                .iter()
                .flat_map(|target| match self.sites(target, name, &mut Vec::new()) {
                    Ok(sites) => sites.into_iter().map(Reach::Site).collect(),
                    Err(Reach::Site(site)) => vec![Reach::Site(site)],
                    Err(_) => vec![unknown()],
                })
                .collect(),
        };
        let gaps = reaches.into_iter().map(|reach| Gap::new(reach, TrafficPolicy::KIND, name, location));
        self.limiting.gaps.extend(gaps);
    }
}
