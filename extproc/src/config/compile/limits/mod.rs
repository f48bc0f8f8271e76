//! Policies into limits of routes, rules and backends, and what is not served because its limits are not known.
//!
//! A policy that cannot be built, now or as it last was, would leave what it limits open to anyone. So that is closed instead: what
//! the policy names, or where that cannot be told all of its namespace. What was served before a change stays so where nothing
//! says that the policy was about it.

mod quota;
mod token;
mod traffic;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use crate::config::diagnostic::{Diagnostic, Location, Severity};
use crate::config::model::{Backend, LimitsKnown, ObjectName, Route};
use crate::config::resource::Served;
use crate::config::source::{Lost, Presence};
use crate::limit::Limit;

pub(super) use quota::QuotaStage;
pub(super) use token::TokenLimitStage;
pub(super) use traffic::TrafficStage;

/// What became of policies.
#[derive(Default)]
pub(super) struct Limiting {
    pub(super) attachments: Vec<Attachment>,
    pub(super) gaps: Vec<Gap>,
}

/// A limit where it holds.
pub(super) struct Attachment {
    pub(super) site: Site,
    pub(super) limit: Arc<Limit>,
}

/// Where limits hold, by indices into the routes, their rules, and the backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Site {
    Route(usize),
    Rule(usize, usize),
    Backend(usize),
}

impl Site {
    /// Whether every request of `other` is one of this.
    fn covers(self, other: Self) -> bool {
        self == other || matches!((self, other), (Self::Route(route), Self::Rule(of, _)) if route == of)
    }
}

/// Something whose limits are not known.
pub(super) struct Gap {
    reach: Reach,
    policy: String,
    location: Option<Location>,
}

/// How far a gap goes.
enum Reach {
    Site(Site),
    /// What was served before stays.
    NewRoutes {
        of: Option<Arc<str>>,
    },
    NewBackends {
        of: Arc<str>,
    },
    Routes {
        of: Arc<str>,
    },
    Backends {
        of: Arc<str>,
    },
}

impl Gap {
    /// A policy is about this and cannot say what it wants of it.
    fn at(site: Site, kind: &str, policy: &ObjectName, location: &Location) -> Self {
        Self::new(Reach::Site(site), kind, policy, location)
    }

    fn new(reach: Reach, kind: &str, policy: &ObjectName, location: &Location) -> Self {
        Self { reach, policy: format!("the {kind} {policy}"), location: Some(location.clone()) }
    }
}

impl Limiting {
    fn extend(&mut self, other: Self) {
        self.attachments.extend(other.attachments);
        self.gaps.extend(other.gaps);
    }

    /// Puts limits where they hold and closes what has gaps. Returns what is served.
    pub(super) fn apply(
        mut self,
        routes: &mut [Route],
        backends: &mut [Backend],
        lost: &[Lost],
        before: &Served,
        findings: &mut Vec<Diagnostic>,
    ) -> Served {
        for Attachment { site, limit } in self.attachments {
            if let Some(limits) = limits_at(site, routes, backends) {
                limits.push(limit);
            }
        }
        for Lost { path, .. } in lost.iter().filter(|lost| lost.limits != Presence::Unlikely) {
            let policy = format!("what could not be read in {}", path.display());
            self.gaps.push(Gap { reach: Reach::NewRoutes { of: None }, policy, location: None });
        }
        // A policy that names one route twice says so once.
        let mut said = HashSet::new();
        for gap in &self.gaps {
            let closed = gap.close(routes, backends, before);
            if !closed.is_empty() && said.insert(message(gap, &closed)) {
                findings.push(told(gap, &closed));
            }
        }
        let is_open = |known: LimitsKnown| known == LimitsKnown::All;
        Served {
            routes: routes.iter().filter(|it| is_open(it.limits_known)).map(|it| it.name.clone()).collect(),
            backends: backends.iter().filter(|it| is_open(it.limits_known)).map(|it| it.name.clone()).collect(),
        }
    }
}

fn limits_at<'a>(site: Site, routes: &'a mut [Route], backends: &'a mut [Backend]) -> Option<&'a mut Vec<Arc<Limit>>> {
    Some(match site {
        Site::Route(route) => &mut routes.get_mut(route)?.limits,
        Site::Rule(route, rule) => &mut routes.get_mut(route)?.rules.get_mut(rule)?.limits,
        Site::Backend(backend) => &mut backends.get_mut(backend)?.limits,
    })
}

impl Gap {
    /// Returns what it closed.
    fn close(&self, routes: &mut [Route], backends: &mut [Backend], before: &Served) -> Vec<Closed> {
        let mut closed = Vec::new();
        match &self.reach {
            Reach::Site(Site::Rule(route, rule)) => {
                if let Some(route) = routes.get_mut(*route)
                    && let Some(rule) = route.rules.get_mut(*rule)
                {
                    rule.limits_known = LimitsKnown::NotAll;
                    closed.push(Closed::Rule(route.name.clone(), rule.name.clone()));
                }
            }
            Reach::Site(Site::Route(route)) => close_routes(routes.get_mut(*route), |_| true, &mut closed),
            Reach::Site(Site::Backend(backend)) => close_backends(backends.get_mut(*backend), |_| true, &mut closed),
            Reach::Routes { of } => close_routes(routes, |name| name.namespace == *of, &mut closed),
            Reach::Backends { of } => close_backends(backends, |name| name.namespace == *of, &mut closed),
            Reach::NewRoutes { of } => {
                let is_meant = |name: &ObjectName| of.as_ref().is_none_or(|of| name.namespace == *of);
                close_routes(routes, |name| is_meant(name) && !before.routes.contains(name), &mut closed);
            }
            Reach::NewBackends { of } => {
                close_backends(backends, |name| name.namespace == *of && !before.backends.contains(name), &mut closed);
            }
        }
        closed
    }
}

fn close_routes<'a>(
    routes: impl IntoIterator<Item = &'a mut Route>,
    is_meant: impl Fn(&ObjectName) -> bool,
    closed: &mut Vec<Closed>,
) {
    for route in routes.into_iter().filter(|route| is_meant(&route.name)) {
        route.limits_known = LimitsKnown::NotAll;
        closed.push(Closed::Route(route.name.clone()));
    }
}

fn close_backends<'a>(
    backends: impl IntoIterator<Item = &'a mut Backend>,
    is_meant: impl Fn(&ObjectName) -> bool,
    closed: &mut Vec<Closed>,
) {
    for backend in backends.into_iter().filter(|backend| is_meant(&backend.name)) {
        backend.limits_known = LimitsKnown::NotAll;
        closed.push(Closed::Backend(backend.name.clone()));
    }
}

/// What is not served.
enum Closed {
    Route(ObjectName),
    Rule(ObjectName, Option<Arc<str>>),
    Backend(ObjectName),
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(name) => write!(f, "the route {name}"),
            Self::Rule(route, Some(rule)) => write!(f, "the rule {rule} of the route {route}"),
            Self::Rule(route, None) => write!(f, "a rule of the route {route}"),
            Self::Backend(name) => write!(f, "the backend {name}"),
        }
    }
}

fn message(gap: &Gap, closed: &[Closed]) -> String {
    /// So many are named.
    const NAMED: usize = 3;
    let mut names: Vec<String> = closed.iter().take(NAMED).map(Closed::to_string).collect();
    if closed.len() > NAMED {
        names.push(format!("{} more", closed.len() - NAMED));
    }
    format!("requests to {} get 503: the limits that {} sets are not known", names.join(", "), gap.policy)
}

fn told(gap: &Gap, closed: &[Closed]) -> Diagnostic {
    let message = message(gap, closed);
    let warning = match &gap.location {
        Some(location) => Diagnostic::warning(location, message).with_help("mend its errors"),
        None => Diagnostic::general(Severity::Warning, message).with_help("mend what could not be read"),
    };
    warning.following_from_another()
}
