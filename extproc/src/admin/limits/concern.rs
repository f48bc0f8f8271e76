//! Which limits concern a caller, and on which of their counters its requests fall: found out from the configuration, so that
//! it is known before the first request and at every sidecar, and from the journal where a request's headers decide.

use std::sync::Arc;

use attache_gate::{KeyEntry, KeyPriority};

use crate::config::model::{Config, ModelName, Route, Rule, Target};
use crate::limit::{
    Condition, CostContext, CounterKey, Dimension, Hold, LastDecision, Limit, ModelGroups, Priority, Subject,
};

/// A limit that concerns a caller.
#[derive(Debug)]
pub(super) struct Concern {
    pub(super) limit: Arc<Limit>,
    /// The routes that it is attached to, and the rules, as `route/rule`.
    pub(super) places: Vec<String>,
    pub(super) counters: Vec<Counter>,
}

/// One counter of it.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) hold: Hold,
    /// The values that it counts by, in the order of the limit's dimensions. `None`: the caller's header decides, and the
    /// value is not kept.
    pub(super) values: Option<Vec<Option<String>>>,
}

/// More than any key has that people look at; it bounds the work of one page.
const MOST_COUNTERS: usize = 256;

/// The limits of all that `key` may call; of everything where no keys are demanded.
pub(super) fn concerns(config: &Config, key: Option<&KeyEntry>, last: Option<&LastDecision>) -> Vec<Concern> {
    let mut found = Found::default();
    for route in config.routes.iter().filter(|route| may_call(key, route)) {
        for (index, rule) in route.rules.iter().enumerate() {
            for (limit, place) in limits_at(route, rule, index) {
                found.place(limit, place);
            }
            for matched in &rule.matches {
                // Models of which only a pattern is known are counted together.
                let model = match matched.model_name() {
                    Some(name) => ModelName { name: Arc::clone(name), group: None },
                    None => ModelName { name: Arc::clone(&rule.label), group: Some(Arc::clone(&rule.label)) },
                };
                for target in &rule.targets {
                    found.request(config, key, route, rule, &model, target);
                }
            }
        }
    }
    for hold in last.iter().flat_map(|last| &last.by_header) {
        found.counter(hold, || None);
    }
    found.concerns
}

fn may_call(key: Option<&KeyEntry>, route: &Route) -> bool {
    key.is_none_or(|key| key.routes.iter().any(|attached| *attached == *route.id))
}

fn limits_at<'a>(route: &'a Route, rule: &'a Rule, index: usize) -> impl Iterator<Item = (&'a Arc<Limit>, String)> {
    let rule_place = move || match &rule.name {
        Some(name) => format!("{}/{name}", route.id),
        None => format!("{}/{index}", route.id),
    };
    let of_route = route.limits.iter().map(|limit| (limit, route.id.to_string()));
    of_route.chain(rule.limits.iter().map(move |limit| (limit, rule_place())))
}

#[derive(Default)]
struct Found {
    concerns: Vec<Concern>,
    counters: usize,
}

impl Found {
    fn place(&mut self, limit: &Arc<Limit>, place: String) {
        match self.of(limit) {
            Some(concern) if concern.places.contains(&place) => {}
            Some(concern) => concern.places.push(place),
            None => {
                self.concerns.push(Concern { limit: Arc::clone(limit), places: vec![place], counters: Vec::new() });
            }
        }
    }

    /// The counters of a request without headers for `model` that goes to `target`.
    fn request(
        &mut self,
        config: &Config,
        key: Option<&KeyEntry>,
        route: &Route,
        rule: &Rule,
        model: &ModelName,
        target: &Target,
    ) {
        let Some(backend) = config.backends.get(target.backend) else { return };
        let context = Arc::new(CostContext {
            model: Arc::clone(&model.name),
            served_model: Arc::clone(target.model_override.as_ref().unwrap_or(&model.name)),
            backend: backend.name.to_string().into(),
            route: Arc::clone(&route.id),
        });
        let subject = Subject {
            key_id: key.map(|key| key.id.as_str()),
            tenant: key.map(|key| key.tenant.as_str()),
            priority: priority(key),
            context: &context,
            groups: ModelGroups {
                model: model.group.as_deref(),
                served: model.group.as_deref().filter(|_| target.model_override.is_none()),
            },
            model_class: backend.model_class.as_deref().or(route.model_class.as_deref()),
            label: &|name| key?.labels.get(name).map(String::as_str),
            header: &|_| None,
        };
        // Whether a header is as the limit wants it does not change which counter it is.
        let by_header = |condition: &Condition| matches!(condition.dimension, Dimension::Header(_));
        let may_concern =
            |limit: &&Arc<Limit>| limit.when.iter().all(|condition| by_header(condition) || subject.meets(condition));
        for limit in route.limits.iter().chain(&rule.limits).filter(may_concern) {
            let hold = Hold {
                limit: Arc::clone(limit),
                counter: CounterKey::new(limit, &subject),
                estimate: 0,
                ceiling: limit.ceiling(subject.priority),
            };
            self.counter(&hold, || {
                let value = |dimension: &Dimension| {
                    subject.value(dimension).map(|value| String::from_utf8_lossy(value).into_owned())
                };
                Some(limit.per.iter().map(value).collect())
            });
        }
    }

    fn counter(&mut self, hold: &Hold, values: impl FnOnce() -> Option<Vec<Option<String>>>) {
        if self.counters >= MOST_COUNTERS {
            return;
        }
        // A limit of the journal that is no longer in force concerns nobody.
        let Some(concern) = self.of(&hold.limit) else { return };
        if concern.counters.iter().any(|known| known.hold.counter == hold.counter) {
            return;
        }
        let hold = Hold { limit: Arc::clone(&concern.limit), ..hold.clone() };
        concern.counters.push(Counter { hold, values: values() });
        self.counters += 1;
    }

    fn of(&mut self, limit: &Limit) -> Option<&mut Concern> {
        self.concerns.iter_mut().find(|concern| concern.limit.id == limit.id)
    }
}

fn priority(key: Option<&KeyEntry>) -> Priority {
    match key.map(|key| key.priority) {
        Some(KeyPriority::Low) => Priority::Low,
        Some(KeyPriority::Normal) | None => Priority::Normal,
    }
}
