//! Whether the Wasm filters that ask us run on what is in force here: each says so with every request.

use std::sync::{Mutex, PoisonError};

use attache_gate::ConfigDigest;

/// Of which filters something was said already.
#[derive(Debug, Default)]
pub struct Filters {
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    in_force: ConfigDigest,
    of: Vec<ConfigDigest>,
}

/// A gateway in the middle of a rollout has Envoys of two renderings; beyond some, one more is no news.
const MOST_TOLD: usize = 16;

impl Filters {
    /// Whether it is news that a filter runs on `theirs` while `in_force` holds here: once for each pair of them.
    pub fn is_news(&self, theirs: ConfigDigest, in_force: ConfigDigest) -> bool {
        if theirs == in_force {
            return false;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.in_force != in_force {
            *told = Told { in_force, of: Vec::new() };
        }
        if told.of.contains(&theirs) || told.of.len() >= MOST_TOLD {
            return false;
        }
        told.of.push(theirs);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: u64) -> ConfigDigest {
        format!("{number:012x}-000000000000-000000000000-000000000000").parse().unwrap()
    }

    #[test]
    fn a_filter_of_another_configuration_is_news_once_for_each_that_comes_into_force() {
        let filters = Filters::default();
        assert!(!filters.is_news(digest(1), digest(1)));
        assert!(filters.is_news(digest(1), digest(2)));
        assert!(!filters.is_news(digest(1), digest(2)));
        assert!(!filters.is_news(digest(2), digest(2)));
        assert!(filters.is_news(digest(3), digest(2)));
        assert!(filters.is_news(digest(1), digest(4)));
        // Whoever says something else with every request fills neither the log nor the memory.
        assert_eq!((10..1_000).filter(|number| filters.is_news(digest(*number), digest(4))).count(), MOST_TOLD - 1);
    }
}
