//! The task that keeps all pools in talk with the peers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::MissedTickBehavior;

use super::codec::Dialect;
use super::exchange;
use super::talk::Talk;
use crate::affinity::Fleet;
use crate::limit::{Errand, RedisTarget};

/// How often peers are told and heard: well within the two seconds for which a load counts, and often enough that a burst is
/// seen by others before it is over.
const TICK: Duration = Duration::from_millis(200);
/// How many pools are in a call at once.
const AT_ONCE: usize = 16;

/// Keeps the pools of a fleet in talk with those of other sidecars.
#[derive(Debug)]
pub struct Sharing {
    errand: Errand,
    fleet: Arc<Fleet>,
    dialect: Dialect,
    talks: Vec<Talk>,
    standing: Standing,
}

/// What was last logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Unknown,
    Shared,
    Unshared,
}

impl Sharing {
    /// For sidecars that share the Redis at `target` and have the same secret; 0 for none. To be called within a Tokio runtime.
    pub fn new(target: RedisTarget, fleet: Arc<Fleet>, secret: u64) -> Self {
        let mut sharing = Self {
            errand: Errand::new(target, exchange::script(), exchange::RIGHTS),
            fleet,
            dialect: Dialect::new(secret),
            talks: Vec::new(),
            standing: Standing::Unknown,
        };
        // What happens before the first tick is told as well.
        sharing.meet(Instant::now());
        sharing
    }

    /// Never ends by itself.
    pub async fn run(mut self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.tick().await;
        }
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        self.meet(now);
        let errand = &self.errand;
        let due = self.talks.iter_mut().filter_map(|talk| talk.is_due(now).then_some(talk));
        stream::iter(due).for_each_concurrent(AT_ONCE, |talk| talk.exchange(errand)).await;
        self.note();
    }

    /// Begins to talk for pools that came, and ends for those that went.
    fn meet(&mut self, now: Instant) {
        let pools = self.fleet.pools();
        self.talks.retain(|talk| pools.iter().any(|pool| Arc::ptr_eq(pool, talk.pool())));
        for pool in pools {
            if !self.talks.iter().any(|talk| Arc::ptr_eq(talk.pool(), &pool)) {
                self.talks.push(Talk::new(pool, self.dialect, now));
            }
        }
    }

    /// Says when it has changed whether sidecars share what they know.
    fn note(&mut self) {
        let trouble = self.talks.iter().find_map(|talk| Some((talk.pool().id(), talk.trouble()?)));
        let standing = if trouble.is_some() { Standing::Unshared } else { Standing::Shared };
        if self.talks.is_empty() || standing == self.standing {
            return;
        }
        self.standing = standing;
        match trouble {
            None => tracing::info!("sidecars tell each other where prompts went"),
            Some((pool, reason)) => tracing::warn!(
                pool = &**pool,
                %reason,
                "sidecars do not tell each other where prompts went; until they do again each goes by what it knows itself"
            ),
        }
    }
}
