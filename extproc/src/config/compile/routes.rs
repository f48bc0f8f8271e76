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
use crate::config::host::HostName;
use crate::config::model::{self, LimitsKnown, MatchId, ObjectName, RuleId, RuleMatch, Target, ValueMatch};
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
        for (index, rule) in spec.rules.iter().enumerate() {
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
            let label = match &rule.name {
                Some(rule) => format!("{name}/{}", rule.value),
                None => format!("{name}/{index}"),
            };
            rules.push(model::Rule {
                name: rule.name.as_ref().map(|name| Arc::clone(&name.value)),
                label: Arc::from(label),
                matches: rule.matches.iter().map(|found| found.value.clone()).collect(),
                targets,
                limits: Vec::new(),
                limits_known: LimitsKnown::All,
                models_owned_by: Arc::clone(&rule.models_owned_by),
                models_created_at: rule.models_created_at,
                is_listed: rule.is_listed,
                request_timeout: rule.request_timeout,
            });
        }
        let id = Arc::from(name.to_string());
        let route = model::Route {
            name: name.clone(),
            id,
            hosts: spec.hosts.clone(),
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

/// Where requests for a model may go.
pub(super) struct Matches {
    /// For each name that a match gives.
    pub(super) by_model: HashMap<Arc<str>, Vec<MatchId>>,
    /// For every other.
    pub(super) open: Vec<MatchId>,
}

/// The routes.
pub(super) struct Routes {
    pub(super) list: Vec<BuiltRoute>,
    /// Indices into `list`.
    pub(super) by_name: Index<usize>,
}

impl Routes {
    /// For each model name the matches that are about it, and those that are about any other. Matches that an equal one before them
    /// hides are reported, and stay: a key may be bound to their route alone.
    #[expect(clippy::mutable_key_type, reason = "a pattern is compared by its text, whatever its matcher caches")]
    pub(super) fn matches(&self, findings: &mut Vec<Diagnostic>) -> Matches {
        let mut first_claims: HashMap<(&[HostName], &RuleMatch), &Location> = HashMap::new();
        let mut by_model: HashMap<Arc<str>, Vec<MatchId>> = HashMap::new();
        let mut open = Vec::new();
        for (route, BuiltRoute { route: built, match_locations, .. }) in self.list.iter().enumerate() {
            for (rule, (of_rule, locations)) in built.rules.iter().zip(match_locations).enumerate() {
                for (index, (found, location)) in of_rule.matches.iter().zip(locations).enumerate() {
                    if let Some(first) = first_claims.get(&(&*built.hosts, found)) {
                        findings.push(shadowed(found, location, first));
                    } else {
                        first_claims.insert((&*built.hosts, found), location);
                    }
                    let id = MatchId { rule: RuleId { route, rule }, index };
                    match found.model_name() {
                        Some(model) => by_model.entry(Arc::clone(model)).or_default().push(id),
                        None => open.push(id),
                    }
                }
            }
        }
        for (model, matches) in &mut by_model {
            matches.extend(open.iter().filter(|id| self.rule_match(id).is_some_and(|found| found.is_about(model))));
            self.sort(matches);
        }
        self.sort(&mut open);
        Matches { by_model, open }
    }

    /// Most specific first, then in document order.
    fn sort(&self, matches: &mut [MatchId]) {
        matches.sort_by_key(|id| {
            let MatchId { rule: RuleId { route, rule }, index } = *id;
            (Reverse(self.rule_match(id).map(RuleMatch::specificity)), route, rule, index)
        });
    }

    fn rule_match(&self, id: &MatchId) -> Option<&RuleMatch> {
        self.list.get(id.rule.route)?.route.rules.get(id.rule.rule)?.matches.get(id.index)
    }

    /// The names by which backends know the models that are served there, as far as they are written down.
    pub(super) fn served_models(&self, site: Site) -> Vec<Arc<str>> {
        self.targets_at(site)
            .flat_map(|(rule, target)| match &target.model_override {
                Some(model) => vec![Arc::clone(model)],
                None => rule.matches.iter().filter_map(|found| found.model_name().map(Arc::clone)).collect(),
            })
            .collect()
    }

    /// Whether a request may be served there by a model that backends know by this name.
    pub(super) fn may_serve(&self, model: &str, site: Site) -> bool {
        self.targets_at(site).any(|(rule, target)| match &target.model_override {
            Some(name) => **name == *model,
            None => rule.matches.iter().any(|found| found.is_about(model)),
        })
    }

    fn targets_at(&self, site: Site) -> impl Iterator<Item = (&model::Rule, &Target)> {
        let rules = self.list.iter().enumerate().flat_map(|(route, built)| {
            built.route.rules.iter().enumerate().map(move |(rule, built)| (route, rule, built))
        });
        rules
            .filter(move |(route, rule, _)| match site {
                Site::Route(of) => *route == of,
                Site::Rule(of, only) => (*route, *rule) == (of, only),
                Site::Backend(_) => true,
            })
            .flat_map(|(_, _, rule)| rule.targets.iter().map(move |target| (rule, target)))
            .filter(move |(_, target)| !matches!(site, Site::Backend(backend) if target.backend != backend))
    }

    pub(super) fn into_list(self) -> Vec<model::Route> {
        self.list.into_iter().map(|built| built.route).collect()
    }
}

fn shadowed(found: &RuleMatch, location: &Location, first: &Location) -> Diagnostic {
    let about = match &found.model {
        Some(ValueMatch::Exact(model)) => format!("the model {}", quote(model)),
        Some(ValueMatch::Pattern(pattern)) => format!("models like {}", quote(pattern.as_str())),
        None => "every model".to_owned(),
    };
    let message = format!("this match for {about} is shadowed for callers of both: an equal one is before it");
    let help = format!("the first is at {first}; remove one of them, unless each has callers of its own");
    Diagnostic::warning(location, message).with_help(help)
}
