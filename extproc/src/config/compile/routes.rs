//! AIGatewayRoute into rules with targets, and which rules each model name has.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::Stage;
use super::backends::ServiceBackends;
use super::grants::{Crossing, Grants};
use super::limits::Site;
use super::reference::Index;
use crate::config::diagnostic::{Diagnostic, Location};
use crate::config::fields::quote;
use crate::config::model::{self, LimitsKnown, ObjectName, RuleId, Target};
use crate::config::resource::{self, BackendRef, Labels, MODEL_CLASS};

/// AIGatewayRoutes into routes.
pub(super) struct RouteStage<'a> {
    backends: &'a ServiceBackends,
    grants: &'a Grants,
    built: Routes,
}

/// A route and what policies want to know of it.
pub(super) struct BuiltRoute {
    pub(super) route: model::Route,
    /// For each of its rules, where the matches stand.
    match_locations: Vec<Vec<Location>>,
    /// The names of rules that are left out.
    pub(super) left_out: Vec<Arc<str>>,
    /// The Gateways it hangs on; empty where it does not say.
    pub(super) parents: Vec<ObjectName>,
    pub(super) labels: Labels,
}

impl<'a> RouteStage<'a> {
    pub(super) fn new(backends: &'a ServiceBackends, grants: &'a Grants) -> Self {
        Self { backends, grants, built: Routes { list: Vec::new(), by_name: Index::of::<resource::Route>() } }
    }

    pub(super) fn finish(self) -> Routes {
        self.built
    }

    fn target(&self, reference: &BackendRef, route: &ObjectName, findings: &mut Vec<Diagnostic>) -> Option<Target> {
        let BackendRef { backend, weight, priority, model_override, mutation } = reference;
        self.grants.permit(Crossing::RouteToServiceBackend, backend, route, findings)?;
        let backend = *self.backends.by_name.resolve(backend, route, findings)?;
        let mutation = Arc::new(self.backends.further.get(backend)?.mutation.overruled_by(mutation));
        let model_override = model_override.clone();
        Some(Target { backend, weight: *weight, priority: *priority, model_override, mutation })
    }
}

impl Stage for RouteStage<'_> {
    type Spec = resource::Route;
    type Built = BuiltRoute;

    fn build(&self, name: &ObjectName, spec: &resource::Route, findings: &mut Vec<Diagnostic>) -> Option<BuiltRoute> {
        let mut rules = Vec::new();
        let mut match_locations = Vec::new();
        let mut left_out = Vec::new();
        for rule in &spec.rules {
            if rule.matches.is_empty() {
                left_out.extend(rule.name.as_ref().map(|name| Arc::clone(&name.value)));
                continue;
            }
            let targets: Vec<_> =
                rule.backends.iter().filter_map(|backend| self.target(backend, name, findings)).collect();
            if targets.iter().all(|target| target.weight == 0) {
                let message = "this rule is left out: there is none of its backends left";
                let warning = Diagnostic::warning(&rule.location, message);
                findings
                    .push(warning.with_help("mend its backendRefs, or what they refer to").following_from_another());
                left_out.extend(rule.name.as_ref().map(|name| Arc::clone(&name.value)));
                continue;
            }
            match_locations.push(rule.matches.iter().map(|found| found.location.clone()).collect());
            rules.push(model::Rule {
                name: rule.name.as_ref().map(|name| Arc::clone(&name.value)),
                matches: rule.matches.iter().map(|found| found.value.clone()).collect(),
                targets,
                limits: Vec::new(),
                limits_known: LimitsKnown::All,
                models_owned_by: Arc::clone(&rule.models_owned_by),
                models_created_at: rule.models_created_at,
                request_timeout: rule.request_timeout,
            });
        }
        let id = Arc::from(name.to_string());
        let route = model::Route {
            name: name.clone(),
            id,
            rules,
            limits: Vec::new(),
            limits_known: LimitsKnown::All,
            costs: spec.costs.clone(),
            model_class: spec.labels.get(MODEL_CLASS).cloned(),
            pass_through: spec.pass_through.clone(),
        };
        let parents = spec.parents.iter().map(|parent| parent.seen_from(name)).collect();
        Some(BuiltRoute { route, match_locations, left_out, parents, labels: spec.labels.clone() })
    }

    fn accept(&mut self, name: &ObjectName, built: Option<BuiltRoute>) {
        let Routes { list, by_name } = &mut self.built;
        by_name.insert(name, built.is_some().then_some(list.len()));
        list.extend(built);
    }
}

/// The routes.
pub(super) struct Routes {
    pub(super) list: Vec<BuiltRoute>,
    /// Indices into `list`.
    pub(super) by_name: Index<usize>,
}

impl Routes {
    /// For each model name its rules: most header conditions first, then in document order. A rule stands where its most
    /// specific match for that model puts it. Matches that an equal one before them hides are reported, and stay: a key may
    /// be bound to their route alone.
    pub(super) fn rules_by_model(&self, findings: &mut Vec<Diagnostic>) -> HashMap<Arc<str>, Vec<RuleId>> {
        let mut first_claims: HashMap<_, &Location> = HashMap::new();
        let mut candidates: HashMap<Arc<str>, Vec<(usize, RuleId)>> = HashMap::new();
        for (route, BuiltRoute { route: built, match_locations, .. }) in self.list.iter().enumerate() {
            for (rule, (built, locations)) in built.rules.iter().zip(match_locations).enumerate() {
                let id = RuleId { route, rule };
                for (found, location) in built.matches.iter().zip(locations) {
                    if let Some(first) = first_claims.get(&(&found.model, &found.headers)) {
                        findings.push(shadowed(&found.model, location, first));
                    } else {
                        first_claims.insert((&found.model, &found.headers), location);
                    }
                    candidates.entry(Arc::clone(&found.model)).or_default().push((found.headers.len(), id));
                }
            }
        }
        let in_order = |mut candidates: Vec<(usize, RuleId)>| {
            candidates.sort_by_key(|(conditions, _)| Reverse(*conditions));
            let mut rules: Vec<RuleId> = Vec::new();
            for (_, rule) in candidates {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
            rules
        };
        candidates.into_iter().map(|(model, candidates)| (model, in_order(candidates))).collect()
    }

    /// The names by which backends know the models that are served there.
    pub(super) fn served_models(&self, site: Site) -> Vec<Arc<str>> {
        let rules = self.list.iter().enumerate().flat_map(|(route, built)| {
            built.route.rules.iter().enumerate().map(move |(rule, built)| (route, rule, built))
        });
        rules
            .filter(|(route, rule, _)| match site {
                Site::Route(of) => *route == of,
                Site::Rule(of, only) => (*route, *rule) == (of, only),
                Site::Backend(_) => true,
            })
            .flat_map(|(_, _, rule)| rule.targets.iter().map(move |target| (rule, target)))
            .filter(|(_, target)| !matches!(site, Site::Backend(backend) if target.backend != backend))
            .flat_map(|(rule, target)| match &target.model_override {
                Some(model) => vec![Arc::clone(model)],
                None => rule.matches.iter().map(|found| Arc::clone(&found.model)).collect(),
            })
            .collect()
    }

    pub(super) fn into_list(self) -> Vec<model::Route> {
        self.list.into_iter().map(|built| built.route).collect()
    }
}

fn shadowed(model: &str, location: &Location, first: &Location) -> Diagnostic {
    let message =
        format!("this match for the model {} is shadowed for callers of both: an equal one is before it", quote(model));
    let help = format!("the first is at {first}; remove one of them, unless each has callers of its own");
    Diagnostic::warning(location, message).with_help(help)
}
