//! Counters of token limits, read from a Redis as the operator's YAML names them.

use std::sync::Arc;

use attache::{
    config::{self, Config, Documents, model::Settings},
    limit::{
        CostContext, CounterKey, CounterState, Hold, Limit, ModelGroups, Priority, RedisOptions, RedisStore,
        Store as _, Subject,
    },
};

use crate::{
    error::{Error, Result},
    redis::Redis,
    wait::DEADLINE,
};

/// Reads counters; it changes nothing.
#[derive(Debug)]
pub struct Counters {
    store: RedisStore,
    limits: Vec<Arc<Limit>>,
}

/// What an operator's YAML says.
///
/// # Errors
/// When it has errors.
pub fn compile(yaml: &str) -> Result<Config> {
    let outcome = config::compile(Documents::from_text("attache.yaml", yaml), Settings::default(), 1, None);
    let outcome = outcome.map_err(|error| Error::unexpected("the settings are wrong", error.to_string()))?;
    match outcome.diagnostics.iter().find(|diagnostic| diagnostic.is_error()) {
        None => Ok(outcome.config),
        Some(error) => Err(Error::unexpected("the YAML has errors", error.plain().to_string())),
    }
}

/// All limits of a configuration, in document order.
pub fn limits(config: &Config) -> Vec<Arc<Limit>> {
    let of_route = |route: &config::model::Route| {
        let of_rules = route.rules.iter().flat_map(|rule| &rule.limits);
        route.limits.iter().chain(of_rules).cloned().collect::<Vec<_>>()
    };
    config.routes.iter().flat_map(of_route).collect()
}

impl Counters {
    /// Of the limits in `yaml`, which has no `${...}` left; to be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the YAML has errors.
    pub fn of(yaml: &str, redis: &Redis) -> Result<Self> {
        let options = RedisOptions { deadline: DEADLINE, settle_deadline: DEADLINE };
        let store = RedisStore::connect(&redis.url(), options);
        let store = store.map_err(|error| Error::unexpected("this is no Redis", error.to_string()))?;
        Ok(Self { store, limits: limits(&compile(yaml)?) })
    }

    /// How the counter that a limit (`<policy>/<limit>`) has for a key and its tenant stands. The limit counts by nothing else.
    ///
    /// # Errors
    /// When there is no such limit, or Redis does not answer.
    pub async fn state(&self, limit: &str, key: &str, tenant: &str) -> Result<CounterState> {
        let id = format!("default/{limit}");
        let limit = self.limits.iter().find(|limit| *limit.id == *id);
        let limit = limit.ok_or_else(|| Error::unexpected("the YAML has no such limit", &id))?;
        let context =
            Arc::new(CostContext { model: "".into(), served_model: "".into(), backend: "".into(), route: "".into() });
        let key = format!("default/{key}");
        let subject = Subject {
            key_id: Some(&key),
            tenant: Some(tenant),
            priority: Priority::Normal,
            context: &context,
            groups: ModelGroups::default(),
            model_class: None,
            label: &|_| None,
            header: &|_| None,
        };
        let counter = CounterKey::new(limit, &subject);
        let hold = Hold { limit: Arc::clone(limit), counter, estimate: 0, ceiling: limit.amount };
        let states = self.store.peek(&[hold]).await;
        let states = states.map_err(|error| Error::unexpected(format!("cannot read {id}"), error.to_string()))?;
        states.into_iter().next().ok_or_else(|| Error::unexpected(format!("no state of {id}"), "nothing"))
    }
}
