//! Requests of paths that routes pass through: only the routes that name a path serve it.

use std::sync::Arc;

use attache_gate::Caller;
use attache_proto::pass_through::PathMatch;

use super::{Resolution, resolve_among};
use crate::config::host;
use crate::config::model::{Config, Route, RuleId, RuleMatch};

/// A request of such a path.
#[derive(Debug, Clone, Copy)]
pub struct Passage<'a> {
    /// Whose routes they are.
    pub config: &'a Config,
    /// The request's `:method`.
    pub method: &'a str,
    /// The request's `:path`.
    pub path: &'a str,
    /// Who sends it.
    pub caller: Option<&'a Caller>,
}

impl<'a> Passage<'a> {
    /// The rule for a request that names a model, as [`super::resolve`] finds it.
    pub fn resolve<'h>(&self, model: &str, header: impl Fn(&str) -> Option<&'h str>) -> Resolution {
        resolve_among(self.config, model, |route| self.is_named_by(route), |route| self.may_call(route), header)
    }

    /// The first rule of the first route that serves the host and that the caller may use, and the first model that it serves, or
    /// what stands for the models of a pattern: for a request that names none.
    pub fn first(&self, authority: Option<&str>) -> Option<(RuleId, &'a Arc<str>)> {
        let serves = |route: &Route| {
            host::rank(&route.hosts, authority).is_some() && self.is_named_by(route) && self.may_call(&route.id)
        };
        let routes = self.config.routes.iter().enumerate();
        routes.filter(|(_, route)| serves(route)).find_map(|(index, route)| {
            let rule = route.rules.first()?;
            let named = rule.matches.iter().find_map(RuleMatch::model_name);
            Some((RuleId { route: index, rule: 0 }, named.unwrap_or(&rule.label)))
        })
    }

    fn is_named_by(&self, route: &Route) -> bool {
        let prefix = &self.config.settings.path_prefix;
        route.pass_through.iter().any(|pattern| pattern.matches(self.method, self.path, prefix) == PathMatch::Full)
    }

    fn may_call(&self, route: &str) -> bool {
        self.config.gate.may_call(self.caller, route)
    }
}
