//! TokenLimitPolicy into limits of routes and rules.

use std::sync::Arc;
use std::time::Duration;

use super::Stage;
use super::routes::Routes;
use crate::config::diagnostic::Diagnostic;
use crate::config::fields::{closest, quote};
use crate::config::model::{self, ObjectName};
use crate::config::resource::{LimitSpec, LimitTarget, TokenLimitPolicy};
use crate::config::value::Located;
use crate::limit::{Cap, Enforcement, Limit, OnStoreError, Window};

/// TokenLimitPolicies into limits.
pub(super) struct LimitStage<'a> {
    routes: &'a Routes,
    attachments: Vec<Attachment>,
}

/// A limit at a route, or at one rule of it.
pub(super) struct Attachment {
    pub(super) route: usize,
    pub(super) rule: Option<usize>,
    pub(super) limit: Arc<Limit>,
}

impl<'a> LimitStage<'a> {
    pub(super) fn new(routes: &'a Routes) -> Self {
        Self { routes, attachments: Vec::new() }
    }

    pub(super) fn finish(self) -> Vec<Attachment> {
        self.attachments
    }

    fn site(
        &self,
        target: &LimitTarget,
        policy: &ObjectName,
        findings: &mut Vec<Diagnostic>,
    ) -> Option<(usize, Option<usize>)> {
        let index = *self.routes.by_name.resolve(&target.route, policy, findings)?;
        let Some(section) = &target.rule else { return Some((index, None)) };
        let route = &self.routes.list.get(index)?.route;
        let rule = route.rules.iter().position(|rule| rule.name.as_ref() == Some(&section.value));
        if rule.is_none() {
            findings.push(no_such_rule(route, section));
        }
        Some((index, Some(rule?)))
    }
}

impl Stage for LimitStage<'_> {
    type Spec = TokenLimitPolicy;
    type Built = Vec<Attachment>;

    fn build(
        &self,
        name: &ObjectName,
        spec: &TokenLimitPolicy,
        findings: &mut Vec<Diagnostic>,
    ) -> Option<Vec<Attachment>> {
        let mut sites: Vec<(usize, Option<usize>)> = Vec::new();
        for target in &spec.targets {
            let Some(site) = self.site(target, name, findings) else { continue };
            // Both would count one request, and it would be charged twice.
            let overlaps = |other: &(usize, Option<usize>)| {
                other.0 == site.0 && (other.1.is_none() || site.1.is_none() || other.1 == site.1)
            };
            if sites.iter().any(overlaps) {
                let message = "another target of this policy has these requests already";
                findings
                    .push(Diagnostic::error(&target.route.location, message).with_help("keep one of the two targets"));
                continue;
            }
            sites.push(site);
        }
        let limits: Vec<_> = spec.limits.iter().map(|limit| Arc::new(limit_of(name, limit))).collect();
        let at_all_sites = |limit: &Arc<Limit>| {
            let attach = |(route, rule)| Attachment { route, rule, limit: Arc::clone(limit) };
            sites.iter().copied().map(attach).collect::<Vec<_>>()
        };
        Some(limits.iter().flat_map(at_all_sites).collect())
    }

    fn accept(&mut self, _: &ObjectName, built: Option<Vec<Attachment>>) {
        self.attachments.extend(built.into_iter().flatten());
    }
}

fn limit_of(policy: &ObjectName, spec: &LimitSpec) -> Limit {
    let LimitSpec { name, per, quantity, amount, window, mode } = spec;
    Limit {
        id: Arc::from(format!("{policy}/{}", name.value)),
        per: per.clone(),
        when: Vec::new(),
        quantity: quantity.clone(),
        amount: *amount,
        low_priority_percent: 80,
        window: match *window <= Duration::from_secs(3_600) {
            true => Window::Sliding(*window),
            false => Window::Fixed(*window),
        },
        mode: *mode,
        cap: Cap::Open,
        enforcement: Enforcement::Refuse,
        on_store_error: OnStoreError::Local,
    }
}

fn no_such_rule(route: &model::Route, section: &Located<Arc<str>>) -> Diagnostic {
    let names: Vec<&str> = route.rules.iter().filter_map(|rule| rule.name.as_deref()).collect();
    let message = format!("the route {} has no rule named {}", route.name, quote(&section.value));
    let help = match closest(&section.value, names.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if names.is_empty() => "give the rule a `name`, or leave `sectionName` out for the whole route".to_owned(),
        None => format!("it has {}", names.join(", ")),
    };
    Diagnostic::error(&section.location, message).with_help(help)
}
