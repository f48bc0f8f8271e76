//! All pools, by Backend. They outlive configurations: a reload changes policies and endpoints, and what is known stays.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use super::pool::Pool;
use crate::config::model::{Backend, Config};

/// All pools.
#[derive(Debug, Default)]
pub struct Fleet {
    pools: RwLock<HashMap<Arc<str>, Arc<Pool>>>,
}

impl Fleet {
    /// The pool of a backend; one that is not known yet begins.
    pub fn pool(&self, backend: &Backend, now: Instant) -> Arc<Pool> {
        if let Some(pool) = self.pools.read().unwrap_or_else(PoisonError::into_inner).get(&backend.cluster) {
            return Arc::clone(pool);
        }
        let mut pools = self.pools.write().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(Arc::clone(&backend.cluster)).or_insert_with(|| {
            let pool = Pool::new(Arc::clone(&backend.cluster), Arc::clone(&backend.affinity), now);
            pool.set_members(members(backend), now);
            Arc::new(pool)
        });
        Arc::clone(pool)
    }

    /// A new configuration holds. Pools of Backends that are no longer there go, with all that is known. Where several
    /// AIServiceBackends share a Backend, the policy of the first holds for the pool.
    pub fn adopt(&self, config: &Config, now: Instant) {
        for (index, backend) in config.backends.iter().enumerate() {
            if config.backends.iter().take(index).any(|other| other.cluster == backend.cluster) {
                continue;
            }
            let pool = self.pool(backend, now);
            pool.set_policy(Arc::clone(&backend.affinity));
            pool.set_members(members(backend), now);
        }
        let mut pools = self.pools.write().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|cluster, _| config.backends.iter().any(|backend| backend.cluster == *cluster));
    }

    /// All of them, in the order of their names.
    pub fn pools(&self) -> Vec<Arc<Pool>> {
        let pools = self.pools.read().unwrap_or_else(PoisonError::into_inner);
        let mut pools: Vec<Arc<Pool>> = pools.values().map(Arc::clone).collect();
        pools.sort_by(|one, other| one.id().cmp(other.id()));
        pools
    }
}

fn members(backend: &Backend) -> Vec<Arc<crate::config::model::Endpoint>> {
    backend.endpoints.iter().map(|endpoint| Arc::new(endpoint.clone())).collect()
}
