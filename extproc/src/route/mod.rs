//! From a model name to a target: which rule a request matches, and which of the rule's backends takes it.
//!
//! Pure but for the cool-down table, which is memory with one owner; nothing here waits.

pub mod cooldown;
pub mod models;

pub use cooldown::CoolDown;

use std::time::Instant;

use attache_gate::Caller;

use crate::config::model::{Config, Rule, RuleId, RuleMatch, Target};

/// What a search for a rule came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// This rule.
    Rule(RuleId),
    /// Rules serve the model, but none of them for this caller.
    NotAttached,
    /// No rule serves the model for a request with these headers.
    Unknown,
}

/// The first rule, most specific first, that serves `model` for a request with these headers and that the caller may use:
/// two routes may serve one name for different keys.
///
/// `header` answers with a request header's value by its lower-case name.
pub fn resolve<'a>(
    config: &Config,
    model: &str,
    caller: Option<&Caller>,
    header: impl Fn(&str) -> Option<&'a str>,
) -> Resolution {
    let serves = |rule_match: &RuleMatch| {
        *rule_match.model == *model && rule_match.headers.iter().all(|(name, value)| header(name) == Some(value))
    };
    let mut resolution = Resolution::Unknown;
    for &id in config.rules_by_model.get(model).into_iter().flatten() {
        let (Some(route), Some(rule)) = (config.route(id), config.rule(id)) else { continue };
        if rule.matches.iter().any(serves) {
            if config.gate.may_call(caller, &route.id) {
                return Resolution::Rule(id);
            }
            resolution = Resolution::NotAttached;
        }
    }
    resolution
}

/// The target that takes this request: the lowest priority number with a target that is not cooling down, by weight within
/// it. When all are cooling down, the lowest priority is tried all the same: somebody has to find out that it is back.
///
/// `entropy` is a fresh random number; the same number makes the same choice.
pub fn choose<'a>(
    rule: &'a Rule,
    config: &Config,
    cooldown: &CoolDown,
    entropy: u64,
    now: Instant,
) -> Option<&'a Target> {
    let usable = |target: &&Target| {
        config
            .backends
            .get(target.backend)
            .is_some_and(|backend| backend.endpoints.iter().any(|endpoint| cooldown.admits(&endpoint.cluster, now)))
    };
    let serving = || rule.targets.iter().filter(|target| target.weight > 0);
    let first_priority = serving().filter(usable).map(|target| target.priority).min();
    match first_priority {
        Some(priority) => by_weight(serving().filter(usable).filter(|target| target.priority == priority), entropy),
        None => {
            let priority = serving().map(|target| target.priority).min()?;
            by_weight(serving().filter(|target| target.priority == priority), entropy)
        }
    }
}

fn by_weight<'a>(targets: impl Iterator<Item = &'a Target> + Clone, entropy: u64) -> Option<&'a Target> {
    let total: u64 = targets.clone().map(|target| u64::from(target.weight)).sum();
    // The bias of a remainder is below 2^-32 for weights that fit 32 bits.
    let mut point = entropy.checked_rem(total)?;
    for target in targets {
        match point.checked_sub(u64::from(target.weight)) {
            None => return Some(target),
            Some(rest) => point = rest,
        }
    }
    None
}
