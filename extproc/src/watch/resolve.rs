//! What the endpoints' DNS names stand for, asked again and again.
//!
//! Every name has a task of its own, which never asks twice at a time. A name that gets no answer stands for what it stood for:
//! a DNS server that is away must not take the model servers with it.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tracing::{info, warn};

use super::stats::Resolution;
use super::{Task, jittered};
use crate::affinity::Change;
use crate::world::World;

/// How often a name is asked for: as often as Envoy does (`dns_refresh_rate`), so that the two see the same.
const EVERY: Duration = Duration::from_secs(5);
/// More addresses than that of one name are left out.
const MOST_ADDRESSES: usize = 256;
/// The system's resolver holds a thread for as long as it waits.
const LOOKUPS_AT_A_TIME: usize = 16;

/// Who knows what names stand for.
pub trait Lookup: Send + Sync + 'static {
    /// The addresses of a name.
    ///
    /// # Errors
    /// When there is no answer.
    fn lookup(&self, hostname: Arc<str>) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send;
}

/// The system's resolver, `getaddrinfo`: the one that knows `/etc/hosts` and the cluster's search domains.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    async fn lookup(&self, hostname: Arc<str>) -> io::Result<Vec<IpAddr>> {
        let addresses = tokio::net::lookup_host((&*hostname, 0)).await?;
        Ok(addresses.map(|address| address.ip()).collect())
    }
}

/// Asks for all names of the fleet.
pub(super) struct Resolver<L> {
    shared: Arc<Shared<L>>,
    /// Turns true when all names were asked for once.
    all_answered: watch::Sender<bool>,
}

struct Shared<L> {
    world: Arc<World>,
    /// Told when endpoints came or went.
    members: watch::Sender<()>,
    lookup: L,
    permits: Semaphore,
}

impl<L: Lookup> Resolver<L> {
    pub(super) fn new(
        world: Arc<World>,
        members: watch::Sender<()>,
        all_answered: watch::Sender<bool>,
        lookup: L,
    ) -> Self {
        let permits = Semaphore::new(LOOKUPS_AT_A_TIME);
        Self { shared: Arc::new(Shared { world, members, lookup, permits }), all_answered }
    }

    /// For ever.
    pub(super) async fn run(self, mut reloads: watch::Receiver<()>) {
        let mut tasks: HashMap<Arc<str>, (Task, watch::Receiver<bool>)> = HashMap::new();
        loop {
            reloads.mark_unchanged();
            let hostnames = self.shared.world.fleet.hostnames();
            tasks.retain(|hostname, _| hostnames.contains(hostname));
            for hostname in hostnames {
                tasks.entry(hostname).or_insert_with_key(|hostname| {
                    let (answered, first) = watch::channel(false);
                    let name = Name { hostname: Arc::clone(hostname), is_silent: false };
                    (Task::spawn(Arc::clone(&self.shared).follow(name, answered, reloads.clone())), first)
                });
            }
            if !*self.all_answered.borrow() {
                for (_, first) in tasks.values_mut() {
                    // A task that is gone will not answer.
                    let _ = first.wait_for(|answered| *answered).await;
                }
                self.all_answered.send_replace(true);
            }
            if reloads.changed().await.is_err() {
                // Nobody reloads any more; the tasks go on for as long as we are there.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// One name.
struct Name {
    hostname: Arc<str>,
    /// Whether it had no answer the last time.
    is_silent: bool,
}

impl<L: Lookup> Shared<L> {
    async fn follow(self: Arc<Self>, mut name: Name, answered: watch::Sender<bool>, mut reloads: watch::Receiver<()>) {
        loop {
            let answer = match self.permits.acquire().await {
                Ok(_permit) => self.lookup.lookup(Arc::clone(&name.hostname)).await,
                Err(_closed) => return,
            };
            self.heard(&mut name, answer);
            answered.send_replace(true);
            tokio::select! {
                () = tokio::time::sleep(jittered(EVERY)) => {}
                Ok(()) = reloads.changed() => {}
            }
        }
    }

    fn heard(&self, name: &mut Name, answer: io::Result<Vec<IpAddr>>) {
        let World { fleet, cooldown, telemetry, .. } = &*self.world;
        let stats = telemetry.watch_stats();
        let hostname = &*name.hostname;
        let answer = answer.map(usable).and_then(|addresses| match addresses.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "it has no addresses")),
            false => Ok(addresses),
        });
        let addresses = match answer {
            Ok(addresses) => addresses,
            Err(error) => {
                stats.resolution(Resolution::Failed);
                if !std::mem::replace(&mut name.is_silent, true) {
                    warn!(hostname, %error, "the name is not resolved; what it stood for stays");
                }
                return;
            }
        };
        if std::mem::take(&mut name.is_silent) {
            info!(hostname, "the name is resolved again");
        }
        let count = addresses.len();
        match fleet.resolved(&name.hostname, addresses, Instant::now()) {
            Change::Nothing => stats.resolution(Resolution::Unchanged),
            Change::Members => {
                stats.resolution(Resolution::Changed);
                info!(hostname, addresses = count, "the name stands for other addresses");
                cooldown.keep_only(&fleet.endpoint_clusters());
                self.members.send_replace(());
            }
        }
    }
}

/// Those addresses of a name that Envoy uses as well, which is told to prefer IPv4 (`V4_PREFERRED`): all of IPv4 or, where there
/// are none, all of IPv6. In an order of their own, since resolvers turn theirs with each answer.
fn usable(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    if addresses.iter().any(IpAddr::is_ipv4) {
        addresses.retain(IpAddr::is_ipv4);
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(MOST_ADDRESSES);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_names_addresses_those_are_used_that_envoy_uses_in_an_order_that_stays() {
        let usable = |addresses: &[&str]| {
            let parsed = addresses.iter().map(|address| address.parse().unwrap()).collect();
            usable(parsed).iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(usable(&["10.0.0.2", "::1", "10.0.0.1", "10.0.0.2"]), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(usable(&["fd00::2", "fd00::1"]), ["fd00::1", "fd00::2"]);
        assert_eq!(usable(&[]), [""; 0]);
    }
}
