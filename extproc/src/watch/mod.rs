//! Watches the endpoints from outside the requests: what their DNS names stand for ([`resolve`]), and what their metrics pages
//! say ([`scrape`]). This is the I/O; what is seen goes to the [`Fleet`](crate::affinity::Fleet), which believes only what can be.
//!
//! Nothing here stands in the way of a request: a page or a name that does not answer makes what is known older, no more.

mod resolve;
mod scrape;
mod stats;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use resolve::{Lookup, SystemLookup};
pub use stats::{Resolution, Scraped, WatchStats};

use crate::world::World;

/// How long the start waits for the first answers to names: without them the first requests would find no replicas.
const FIRST_ANSWERS: Duration = Duration::from_secs(2);

/// Watches the endpoints of the world's fleet, until it is dropped. Whenever `reloads` changes, they are others.
#[derive(Debug)]
pub struct Watch {
    _tasks: [Task; 2],
    answered: watch::Receiver<bool>,
}

impl Watch {
    /// Begins to watch.
    pub fn start(world: &Arc<World>, reloads: watch::Receiver<()>, lookup: impl Lookup) -> Self {
        let (members, changes) = watch::channel(());
        let (all, answered) = watch::channel(false);
        let resolver = resolve::Resolver::new(Arc::clone(world), members, all, lookup);
        let resolving = Task::spawn(resolver.run(reloads.clone()));
        let scraping = Task::spawn(scrape::run(Arc::clone(world), reloads, changes));
        Self { _tasks: [resolving, scraping], answered }
    }

    /// Until every name was asked for once, but not for long.
    pub async fn first_answers(&mut self) {
        // Neither a name without an answer nor a resolver that is gone is a reason not to serve.
        let _ = tokio::time::timeout(FIRST_ANSWERS, self.answered.wait_for(|answered| *answered)).await;
    }
}

/// A task that ends when this is dropped.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Task {
    fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A time that is up to a tenth shorter or longer, so that what many do again and again is not done by all at once.
fn jittered(time: Duration) -> Duration {
    // Every `RandomState` has other keys; so much chance is enough here.
    let hash = RandomState::new().hash_one(0_u8);
    time.mul_f64(0.9 + 0.2 * (hash >> 11) as f64 / (1_u64 << 53) as f64)
}
