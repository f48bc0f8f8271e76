//! One way to Redis for one kind of call: the link that serves a call's keys, a deadline, and what became of the call.
//!
//! Only what certainly was not executed is sent again: a script that Redis does not know, and a call to a cluster's node that
//! does not serve its slot (any more). All else is the caller's to decide, which is why it learns exactly what is known:
//! [`StoreError::Unreachable`], nothing happened; [`StoreError::Timeout`] and [`StoreError::Failed`], it may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::select_ok;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use super::call::Call;
use super::cluster::{Cluster, Node};
use super::link::{Destination, Failure, Inspection, Link};
use super::script::{self, Script};
use super::sentinel::Sentinels;
use super::slots;
use super::url::{Address, Place, RedisTarget};
use crate::limit::StoreError;

/// Nodes that say that a slot has moved, one after the other, before a call is given up. One is enough but while slots move.
const MAX_REDIRECTIONS: usize = 16;

/// Before a call is sent again to a slot that is on the move, until its deadline: it has to arrive first, which takes as long
/// as its keys are many.
const PAUSE_WHILE_SLOT_MOVES: Duration = Duration::from_millis(5);

pub(super) struct Channel {
    route: Route,
    /// Who needs what of an access list: `token limits need: ~att1:* +eval` and so on.
    rights: &'static str,
    round_trips: AtomicU64,
    /// Whether Redis's refusal of our commands was told since it last took one.
    complained: AtomicBool,
}

enum Route {
    One(Link),
    Cluster(Cluster),
}

/// What an error says of what happened.
enum Verdict {
    /// Another node serves the slot.
    Moved(Option<Address>),
    /// Another node is taking over the slot, and may have the keys already.
    Asks(Option<Address>),
    /// The slot's keys are spread over two nodes for now.
    TryAgain,
    /// It was not executed.
    Nothing,
    /// It may have been executed, wholly or in part.
    Unknown,
}

impl Channel {
    /// Starts connecting; to be called within a Tokio runtime. `rights` says who needs what of
    /// Redis's access list.
    pub(super) fn new(target: &Arc<RedisTarget>, inspection: Inspection, rights: &'static str) -> Self {
        let target = Arc::clone(target);
        let route = match target.place.clone() {
            Place::Server(address) => Route::One(Link::new(Destination::Server(target, address), inspection)),
            Place::Sentinels { sentinels, service } => {
                let sentinels = Sentinels::new(target, sentinels, service);
                Route::One(Link::new(Destination::Primary(sentinels), inspection))
            }
            Place::Cluster { seeds } => Route::Cluster(Cluster::new(target, seeds, inspection)),
        };
        Self { route, rights, round_trips: AtomicU64::new(0), complained: AtomicBool::new(false) }
    }

    /// Whether counters of different groups may lie on different nodes, so that a call can be of one group only.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.route, Route::Cluster(_))
    }

    /// Commands sent so far.
    pub(super) fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    /// Runs a script where its keys are.
    pub(super) async fn run(&self, script: &Script, call: &Call<'_>, deadline: Duration) -> Result<Value, StoreError> {
        let until = Instant::now() + deadline;
        let answer = match &self.route {
            Route::One(link) => {
                self.attempt(link, script, call, until).await.map_err(|failure| store_error(failure, deadline))
            }
            Route::Cluster(cluster) => self.run_in(cluster, script, call, deadline, until).await,
        };
        self.note(&answer);
        answer
    }

    /// Runs a script without keys on any server: on a cluster all nodes are asked, and the first that takes it answers.
    pub(super) async fn run_anywhere(&self, script: &Script, deadline: Duration) -> Result<Value, StoreError> {
        let call = Call::plain(Vec::new(), Vec::new());
        let cluster = match &self.route {
            Route::One(_) => return self.run(script, &call, deadline).await,
            Route::Cluster(cluster) => cluster,
        };
        let until = Instant::now() + deadline;
        let nodes = cluster.nodes(until).await.map_err(|failure| store_error(failure, deadline))?;
        let asking = nodes.iter().map(|node| Box::pin(self.attempt(&node.link, script, &call, until)));
        let asking: Vec<_> = asking.collect();
        if asking.is_empty() {
            return Err(StoreError::Unreachable("no node of the cluster is known".to_owned()));
        }
        match select_ok(asking).await {
            Ok((answer, _)) => Ok(answer),
            Err(failure) => {
                nodes.iter().take(1).for_each(|node| cluster.mistrust(&node.address));
                Err(store_error(failure, deadline))
            }
        }
    }

    async fn run_in(
        &self,
        cluster: &Cluster,
        script: &Script,
        call: &Call<'_>,
        deadline: Duration,
        until: Instant,
    ) -> Result<Value, StoreError> {
        let slot = slots::slot(call.slot_key());
        let mut next: Option<Node> = None;
        let mut redirections = 0;
        let mut last = String::new();
        while redirections < MAX_REDIRECTIONS {
            // After a pause, to send it and not wait would leave its fate unknown.
            if !last.is_empty() && Instant::now() >= until {
                break;
            }
            let node = match next.take() {
                Some(node) => node,
                None => cluster.serving(slot, until).await.map_err(|failure| store_error(failure, deadline))?,
            };
            let error = match self.attempt(&node.link, script, call, until).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Error(error)) => error,
                Err(failure) => {
                    // A node that is not there may have a successor.
                    cluster.mistrust(&node.address);
                    return Err(store_error(failure, deadline));
                }
            };
            last = error.to_string();
            match verdict(&error, Some(&node.address)) {
                Verdict::Moved(to) => {
                    redirections += 1;
                    next = to.and_then(|to| cluster.node(&to));
                    match &next {
                        Some(_) => cluster.mistrust(&node.address),
                        None => cluster.ask_anew(&node.address, until).await,
                    }
                }
                Verdict::Asks(to) => {
                    let Some(to) = to.and_then(|to| cluster.node(&to)) else {
                        // It serves no slot yet, so it is not on the map before this one is its own.
                        cluster.ask_anew(&node.address, until).await;
                        continue;
                    };
                    // By its text: whether the other node knows the script is not worth another round trip.
                    match to.link.query_asking(call.by_text(script), until, || self.count()).await {
                        Ok(answer) => return Ok(answer),
                        Err(Failure::Error(error)) => match verdict(&error, Some(&to.address)) {
                            Verdict::Unknown => return Err(StoreError::Failed(error.to_string())),
                            _ => tokio::time::sleep(PAUSE_WHILE_SLOT_MOVES).await,
                        },
                        Err(failure) => return Err(store_error(failure, deadline)),
                    }
                }
                Verdict::TryAgain => tokio::time::sleep(PAUSE_WHILE_SLOT_MOVES).await,
                Verdict::Nothing => {
                    cluster.mistrust(&node.address);
                    return Err(StoreError::Unreachable(last));
                }
                Verdict::Unknown => return Err(StoreError::Failed(last)),
            }
        }
        Err(StoreError::Unreachable(last))
    }

    async fn attempt(&self, link: &Link, script: &Script, call: &Call<'_>, until: Instant) -> Result<Value, Failure> {
        let by_hash = link.query(&call.by_hash(script), until, || self.count()).await;
        match by_hash {
            // EVAL, not SCRIPT LOAD: proxies and access lists block that one.
            Err(Failure::Error(error)) if script::is_unknown(&error) => {
                link.query(&call.by_text(script), until, || self.count()).await
            }
            answer => answer,
        }
    }

    /// At once, not with the answer: whoever asked may be gone by then.
    fn count(&self) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
    }

    /// Says once that Redis does not let us do what we must, and what to do.
    fn note(&self, answer: &Result<Value, StoreError>) {
        match answer {
            Ok(_) if self.complained.load(Ordering::Relaxed) => self.complained.store(false, Ordering::Relaxed),
            Err(StoreError::Failed(reason))
                if is_permission(reason) && !self.complained.swap(true, Ordering::Relaxed) =>
            {
                let rights = self.rights;
                tracing::error!(
                    %reason,
                    "Redis's access list does not allow what {rights}, and for a cluster +cluster|slots"
                );
            }
            _ => {}
        }
    }
}

/// From the command itself, or from one that a script makes: Redis 7.0 has a sentence of its own for those.
fn is_permission(reason: &str) -> bool {
    ["NOPERM", "ACL failure", "The user executing the script can't"].iter().any(|refusal| reason.contains(refusal))
}

/// What an error says, of the node at `from`.
fn verdict(error: &RedisError, from: Option<&Address>) -> Verdict {
    let to = || from.and_then(|from| slots::redirection(error, from));
    // What a script's own command answered comes with the script's name.
    if error.detail().is_some_and(|detail| detail.contains("@user_script")) {
        return Verdict::Unknown;
    }
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved) => Verdict::Moved(to()),
        ErrorKind::Server(ServerErrorKind::Ask) => Verdict::Asks(to()),
        ErrorKind::Server(ServerErrorKind::TryAgain) => Verdict::TryAgain,
        ErrorKind::Server(
            ServerErrorKind::ReadOnly
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown,
        ) => Verdict::Nothing,
        _ => match error.code() {
            Some("NOAUTH" | "NOREPLICAS" | "MISCONF" | "BUSY") => Verdict::Nothing,
            _ => Verdict::Unknown,
        },
    }
}

fn store_error(failure: Failure, deadline: Duration) -> StoreError {
    match failure {
        Failure::Unsent(reason) => StoreError::Unreachable(reason),
        Failure::Late => StoreError::Timeout(deadline),
        Failure::Error(error) => match verdict(&error, None) {
            Verdict::Unknown => StoreError::Failed(error.to_string()),
            _ => StoreError::Unreachable(error.to_string()),
        },
    }
}
