//! What all exchanges share: the configuration, the ledger, what was learned, the cool-down table, the counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::affinity::Fleet;
use crate::config::Config;
use crate::config::model::Settings;
use crate::exchange::{BodyMemory, Memory};
use crate::limit::{Experience, Journal, Ledger};
use crate::route::CoolDown;
use crate::telemetry::Telemetry;

/// Everything that outlives an exchange, each with one owner.
#[derive(Debug)]
pub struct World {
    /// From the command line; fixed for the life of the process.
    pub settings: Settings,
    /// The configuration in force; the reloader replaces it.
    pub config: Arc<ArcSwap<Config>>,
    /// Token limits.
    pub ledger: Ledger,
    /// What answers taught.
    pub experience: Arc<Experience>,
    /// The last decision on each key's requests.
    pub journal: Journal,
    /// Endpoints that failed.
    pub cooldown: Arc<CoolDown>,
    /// What replicas hold, and how busy they are.
    pub fleet: Arc<Fleet>,
    /// What requests' bodies take until they have gone on.
    pub bodies: Arc<BodyMemory>,
    /// Metrics.
    pub telemetry: Arc<Telemetry>,
    entropy: AtomicU64,
}

impl World {
    /// Puts the parts together.
    pub fn new(settings: Settings, config: Arc<ArcSwap<Config>>, ledger: Ledger, telemetry: Arc<Telemetry>) -> Self {
        let bodies = Arc::new(BodyMemory::new(settings.body_memory_bytes));
        // `RandomState` is seeded by the operating system; one such draw a process is all we need of it.
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
        Self {
            settings,
            config,
            ledger,
            experience: Arc::default(),
            journal: Journal::default(),
            cooldown: Arc::default(),
            fleet: Arc::default(),
            bodies,
            telemetry,
            entropy: AtomicU64::new(seed),
        }
    }

    /// What an exchange looks up of others before it.
    pub fn memory(&self) -> Memory {
        Memory {
            experience: Arc::clone(&self.experience),
            cooldown: Arc::clone(&self.cooldown),
            fleet: Arc::clone(&self.fleet),
            bodies: Arc::clone(&self.bodies),
        }
    }

    /// A fresh number for choices by weight: no secret, only evenly spread.
    pub fn entropy(&self) -> u64 {
        let step = self.entropy.fetch_add(1, Ordering::Relaxed);
        xxhash_rust::xxh3::xxh3_64(&step.to_le_bytes())
    }
}
