//! TokenLimitPolicy into limits of routes and rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::Stage;
use super::super::routes::{BuiltRoute, Routes};
use super::{Attachment, Gap, Limiting, Reach, Site};
use crate::config::diagnostic::{Diagnostic, Location};
use crate::config::fields::{closest, quote};
use crate::config::model::ObjectName;
use crate::config::resource::{Counted, LimitSpec, LimitTarget, Object, PriceTable, Spec, TokenLimitPolicy};
use crate::config::value::{Located, Reference};
use crate::limit::{Limit, Quantity};

/// TokenLimitPolicies into limits.
pub(in crate::config::compile) struct TokenLimitStage<'a> {
    routes: &'a Routes,
    limiting: Limiting,
}

impl<'a> TokenLimitStage<'a> {
    pub(in crate::config::compile) fn new(routes: &'a Routes, limiting: Limiting) -> Self {
        Self { routes, limiting }
    }

    pub(in crate::config::compile) fn finish(self) -> Limiting {
        self.limiting
    }

    /// Where the policy holds, and the gaps where that cannot be told.
    fn sites(
        &self,
        targets: &[LimitTarget],
        policy: &ObjectName,
        findings: &mut Vec<Diagnostic>,
    ) -> (Vec<Site>, Vec<Gap>) {
        let (mut sites, mut gaps) = (Vec::<Site>::new(), Vec::new());
        for LimitTarget { route, rule } in targets {
            let site = match site_of(self.routes, route, rule.as_ref(), policy, findings) {
                Ok(Some(site)) => site,
                Ok(None) => continue,
                Err(reach) => {
                    gaps.push(Gap::new(reach, TokenLimitPolicy::KIND, policy, &route.location));
                    continue;
                }
            };
            // Both would count one request.
            if sites.iter().any(|other| other.covers(site) || site.covers(*other)) {
                let message = "another target of this policy has these requests already";
                findings.push(Diagnostic::error(&route.location, message).with_help("keep one of the two targets"));
                if !sites.iter().any(|other| other.covers(site)) {
                    gaps.push(Gap::at(site, TokenLimitPolicy::KIND, policy, &route.location));
                }
                continue;
            }
            sites.push(site);
        }
        (sites, gaps)
    }

    /// Models that are served and that nobody has a price for.
    fn report_unpriced(
        &self,
        limits: &[LimitSpec],
        table: &PriceTable,
        sites: &[Site],
        findings: &mut Vec<Diagnostic>,
    ) {
        if !limits.iter().any(|limit| matches!(limit.counted.quantity, Quantity::Money(_))) {
            return;
        }
        let served: BTreeSet<_> = sites.iter().flat_map(|site| self.routes.served_models(*site)).collect();
        let unpriced: Vec<_> = served.iter().filter(|model| !table.covers(model)).map(|model| quote(model)).collect();
        if !unpriced.is_empty() {
            let message = format!("{} has no price and costs as much as the dearest of the table", unpriced.join(", "));
            let warning = Diagnostic::warning(&table.location, message);
            findings.push(warning.with_help("add its price, or one for `*`, which is every other model"));
        }
    }
}

/// The route or the rule that a policy names; `None` for one that is left out, and how far that leaves a gap where there is none.
pub(super) fn site_of(
    routes: &Routes,
    route: &Reference,
    rule: Option<&Located<Arc<str>>>,
    policy: &ObjectName,
    findings: &mut Vec<Diagnostic>,
) -> Result<Option<Site>, Reach> {
    let wanted = route.seen_from(policy);
    let Some(index) = routes.by_name.resolve(route, policy, findings).copied() else {
        // A route that is left out serves nobody; one that does not exist may go by another name now.
        let is_left_out = routes.by_name.knows(&wanted);
        return if is_left_out { Ok(None) } else { Err(Reach::NewRoutes { of: Some(wanted.namespace) }) };
    };
    let Some(section) = rule else { return Ok(Some(Site::Route(index))) };
    let Some(built) = routes.list.get(index) else { return Ok(None) };
    if let Some(rule) = built.route.rules.iter().position(|rule| rule.name.as_ref() == Some(&section.value)) {
        return Ok(Some(Site::Rule(index, rule)));
    }
    if built.left_out.contains(&section.value) {
        return Ok(None);
    }
    findings.push(no_such_rule(built, section));
    Err(Reach::Site(Site::Route(index)))
}

impl Stage for TokenLimitStage<'_> {
    type Spec = TokenLimitPolicy;
    type Built = Limiting;

    fn build(&self, name: &ObjectName, spec: &TokenLimitPolicy, findings: &mut Vec<Diagnostic>) -> Option<Limiting> {
        let (sites, gaps) = self.sites(spec.targets.as_deref().unwrap_or_default(), name, findings);
        if let Some(table) = &spec.prices {
            self.report_unpriced(&spec.limits, table, &sites, findings);
        }
        let limits: Vec<_> = spec.limits.iter().map(|limit| Arc::new(limit_of(name, limit))).collect();
        let attach = |limit: &Arc<Limit>| {
            let attach = |site| Attachment { site, limit: Arc::clone(limit) };
            sites.iter().copied().map(attach).collect::<Vec<_>>()
        };
        Some(Limiting { attachments: limits.iter().flat_map(attach).collect(), gaps })
    }

    fn accept(&mut self, _: &ObjectName, built: Option<Limiting>) {
        self.limiting.extend(built.unwrap_or_default());
    }

    fn lose(&mut self, object: &Object<TokenLimitPolicy>) {
        let Object { name, location, remains, .. } = object;
        let targets = remains.as_ref().and_then(|remains| remains.targets.as_deref());
        let gaps = match targets {
            Some(targets) => self.lost_sites(targets, name, location),
            None => {
                let reach = Reach::Routes { of: Arc::clone(&name.namespace) };
                vec![Gap::new(reach, TokenLimitPolicy::KIND, name, location)]
            }
        };
        self.limiting.gaps.extend(gaps);
    }
}

impl TokenLimitStage<'_> {
    fn lost_sites(&self, targets: &[LimitTarget], policy: &ObjectName, location: &Location) -> Vec<Gap> {
        let gap = |LimitTarget { route, rule }: &LimitTarget| {
            let reach = match site_of(self.routes, route, rule.as_ref(), policy, &mut Vec::new()) {
                Ok(site) => Reach::Site(site?),
                Err(Reach::Site(site)) => Reach::Site(site),
                Err(_) => Reach::Routes { of: Arc::clone(&policy.namespace) },
            };
            Some(Gap::new(reach, TokenLimitPolicy::KIND, policy, location))
        };
        targets.iter().filter_map(gap).collect()
    }
}

fn limit_of(policy: &ObjectName, spec: &LimitSpec) -> Limit {
    let LimitSpec { name, per, when, counted, low_priority_percent, enforcement, on_store_error } = spec;
    let Counted { quantity, amount, window, mode, cap, default_max_tokens } = counted;
    let id = Arc::from(format!("{policy}/{}", name.value));
    Limit {
        per: per.clone(),
        when: when.clone(),
        quantity: quantity.clone().of_limit(&id),
        id,
        amount: *amount,
        low_priority_percent: *low_priority_percent,
        window: window.clone(),
        mode: *mode,
        cap: *cap,
        default_max_tokens: *default_max_tokens,
        enforcement: *enforcement,
        on_store_error: *on_store_error,
    }
}

fn no_such_rule(built: &BuiltRoute, section: &Located<Arc<str>>) -> Diagnostic {
    let names: Vec<&str> = built.route.rules.iter().filter_map(|rule| rule.name.as_deref()).collect();
    let message = format!("the route {} has no rule named {}", built.route.name, quote(&section.value));
    let help = match closest(&section.value, names.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if names.is_empty() => "give the rule a `name`, or leave `sectionName` out for the whole route".to_owned(),
        None => format!("it has {}", names.join(", ")),
    };
    Diagnostic::error(&section.location, message).with_help(help)
}
