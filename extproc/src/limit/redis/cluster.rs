//! A link to each primary of a cluster, and which of them serves a slot.
//!
//! By hand instead of by the crate's cluster client: that one sends a command again after it may have been executed, and a
//! reservation must not be. One task asks the nodes which of them serves what, at the start and whenever an answer or a link
//! shows that it has changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::link::{Destination, Failure, Inspection, Link};
use super::slots::{self, Range};
use super::url::{Address, RedisTarget};

/// For one node to answer; another one knows as well.
const DEADLINE: Duration = Duration::from_millis(500);

/// Between two rounds of asking: while slots move, every request may show that something has changed.
const PAUSE: Duration = Duration::from_millis(20);

/// The same when no node answers.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

pub(super) struct Cluster {
    map: watch::Receiver<Map>,
    /// The node that showed that the map is wrong, and so knows better.
    wrong: mpsc::Sender<Address>,
    task: AbortHandle,
}

#[derive(Clone, Default)]
struct Map {
    ranges: Arc<[Range]>,
    nodes: Arc<HashMap<Address, Arc<Link>>>,
    /// Why the last attempt at learning it failed.
    trouble: Option<Arc<str>>,
}

/// A node of the cluster.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) link: Arc<Link>,
}

impl Cluster {
    /// Starts asking; to be called within a Tokio runtime.
    pub(super) fn new(target: Arc<RedisTarget>, seeds: Vec<Address>, inspection: Inspection) -> Self {
        let (sender, map) = watch::channel(Map::default());
        // Several wishes at once are one.
        let (wrong, wishes) = mpsc::channel(1);
        let task = tokio::spawn(keep_map(Scout { target, seeds, inspection }, sender, wishes)).abort_handle();
        Self { map, wrong, task }
    }

    /// The node that serves a slot.
    pub(super) async fn serving(&self, slot: u16, until: Instant) -> Result<Node, Failure> {
        let unserved = || Failure::Unsent("no node of the cluster serves that slot".to_owned());
        self.known(until).await?.serving(slot).ok_or_else(unserved)
    }

    /// All nodes that serve a slot.
    pub(super) async fn nodes(&self, until: Instant) -> Result<Vec<Node>, Failure> {
        let map = self.known(until).await?;
        Ok(map.nodes.keys().filter_map(|address| map.node(address)).collect())
    }

    /// The map, as soon as there is one or it is known why there is none.
    async fn known(&self, until: Instant) -> Result<Map, Failure> {
        let mut map = self.map.clone();
        let known = timeout_at(until, map.wait_for(|map| !map.ranges.is_empty() || map.trouble.is_some())).await;
        match known {
            Ok(Ok(map)) => match &map.trouble {
                Some(trouble) if map.ranges.is_empty() => Err(Failure::Unsent(trouble.to_string())),
                _ => Ok(map.clone()),
            },
            _ => Err(Failure::Unsent("it is not known yet which node of the cluster serves what".to_owned())),
        }
    }

    /// A node that is known by its address.
    pub(super) fn node(&self, address: &Address) -> Option<Node> {
        self.map.borrow().node(address)
    }

    /// To be called when `address` showed that the map is wrong. Nobody waits.
    pub(super) fn mistrust(&self, address: &Address) {
        // Full means that it is going to be asked anyway.
        let _ = self.wrong.try_send(address.clone());
    }

    /// The same, and waits until it has been asked.
    pub(super) async fn ask_anew(&self, address: &Address, until: Instant) {
        let mut map = self.map.clone();
        map.mark_unchanged();
        self.mistrust(address);
        // Too late is too late for the caller as well, which sees so itself.
        let _ = timeout_at(until, map.changed()).await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Map {
    fn serving(&self, slot: u16) -> Option<Node> {
        let after = self.ranges.partition_point(|range| range.first <= slot);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (slot <= range.last).then(|| self.node(&range.node)).flatten()
    }

    fn node(&self, address: &Address) -> Option<Node> {
        Some(Node { address: address.clone(), link: Arc::clone(self.nodes.get(address)?) })
    }
}

/// Who asks the nodes.
struct Scout {
    target: Arc<RedisTarget>,
    seeds: Vec<Address>,
    inspection: Inspection,
}

async fn keep_map(scout: Scout, map: watch::Sender<Map>, mut wishes: mpsc::Receiver<Address>) {
    let mut better_informed: Option<Address> = None;
    loop {
        let known = map.borrow().clone();
        let pause = match scout.ask(&known, better_informed.as_ref()).await {
            Ok(ranges) => {
                map.send_replace(scout.map(ranges, &known));
                PAUSE
            }
            Err(trouble) => {
                if known.trouble.as_deref() != Some(trouble.as_str()) {
                    tracing::warn!(reason = %trouble, "cannot learn which node of the Redis Cluster serves what");
                }
                map.send_replace(Map { trouble: Some(trouble.into()), ..known });
                PAUSE_AFTER_FAILURE
            }
        };
        tokio::time::sleep(pause).await;
        if map.borrow().trouble.is_none() {
            better_informed = match wishes.recv().await {
                Some(address) => Some(address),
                None => return,
            };
        }
    }
}

impl Scout {
    /// Asks nodes one by one until one of them knows.
    async fn ask(&self, known: &Map, better_informed: Option<&Address>) -> Result<Vec<Range>, String> {
        let mut trouble = "there is no node to ask".to_owned();
        let candidates = better_informed.into_iter().chain(known.nodes.keys()).chain(&self.seeds);
        let mut asked: Vec<&Address> = Vec::new();
        for address in candidates {
            if asked.contains(&address) {
                continue;
            }
            asked.push(address);
            let until = Instant::now() + DEADLINE;
            match timeout_at(until, self.ask_node(address, known.nodes.get(address), until)).await {
                Ok(Ok(ranges)) => return Ok(ranges),
                Ok(Err(reason)) => trouble = reason,
                Err(_) => trouble = format!("{address} did not answer within {DEADLINE:?}"),
            }
        }
        Err(trouble)
    }

    async fn ask_node(
        &self,
        address: &Address,
        link: Option<&Arc<Link>>,
        until: Instant,
    ) -> Result<Vec<Range>, String> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let answer = match link {
            Some(link) => link.query(&command, until, || {}).await.map_err(|failure| failure.reason(DEADLINE))?,
            None => {
                let mut wire = self.target.dial(address, || {}).await.map_err(|error| error.reason().to_owned())?;
                wire.query(&command).await.map_err(|error| error.to_string())?
            }
        };
        let ranges = slots::ranges(answer, address).ok_or_else(|| format!("{address} does not say who serves what"))?;
        if ranges.is_empty() { Err(format!("{address} knows no node that serves a slot")) } else { Ok(ranges) }
    }

    /// Links that are still of use are kept.
    fn map(&self, ranges: Vec<Range>, known: &Map) -> Map {
        let mut nodes: HashMap<Address, Arc<Link>> = HashMap::new();
        for Range { node, .. } in &ranges {
            if nodes.contains_key(node) {
                continue;
            }
            let new = || {
                let destination = Destination::Server(Arc::clone(&self.target), node.clone());
                Arc::new(Link::new(destination, self.inspection))
            };
            nodes.insert(node.clone(), known.nodes.get(node).map_or_else(new, Arc::clone));
        }
        Map { ranges: ranges.into(), nodes: Arc::new(nodes), trouble: None }
    }
}
