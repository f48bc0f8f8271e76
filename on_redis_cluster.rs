//! A cluster of three nodes: groups of counters lie on different ones, and move.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use ::redis::{self, aio::MultiplexedConnection};
use tokio::task::JoinSet;

use super::faults::standing;
use super::on_redis::{granted_again, keys, tokens};
use super::redis_server::{PATIENCE, RedisServer, ask, free_port, say, until};
use super::*;

const PATIENT: RedisOptions = RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE };

/// The last slot of each node but the last.
const ENDS: [u16; 2] = [5_460, 10_922];

struct TestCluster {
    nodes: Vec<RedisServer>,
    connections: Vec<MultiplexedConnection>,
}

impl TestCluster {
    async fn start() -> Self {
        let mut cluster = Self { nodes: Vec::new(), connections: Vec::new() };
        let mut buses = Vec::new();
        for _ in 0..3 {
            let bus = free_port();
            let arguments = |_: u16, _: &Path| {
                let words = "--cluster-enabled yes --cluster-node-timeout 3000 --cluster-require-full-coverage no --cluster-port";
                words.split_whitespace().map(str::to_owned).chain([bus.to_string()]).collect()
            };
            let node = RedisServer::start_on_port(arguments).await;
            cluster.connections.push(node.connection().await);
            cluster.nodes.push(node);
            buses.push(bus);
        }
        let mut first = 0;
        for (index, connection) in cluster.connections.iter_mut().enumerate() {
            let last = ENDS.get(index).copied().unwrap_or(16_383);
            say(connection, &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)).await;
            say(connection, &format!("CLUSTER ADDSLOTSRANGE {first} {last}")).await;
            first = last + 1;
        }
        for (node, bus) in cluster.nodes.iter().zip(&buses).skip(1) {
            say(&mut cluster.connections[0], &format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port())).await;
        }
        for connection in &mut cluster.connections {
            until(async || {
                let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(connection).await.unwrap();
                info.contains("cluster_state:ok") && info.contains("cluster_slots_assigned:16384")
            })
            .await;
        }
        cluster
    }

    fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", free_port(), self.nodes[0].port())
    }

    fn store(&self) -> RedisStore {
        RedisStore::connect(&self.url(), PATIENT).unwrap()
    }

    /// Which node serves the counters of a hold, and in which slot.
    async fn place(&mut self, hold: &Hold) -> (usize, u16) {
        let key = format!("{{{}}}", hold.counter.parts().0);
        let slot: u16 =
            redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut self.connections[0]).await.unwrap();
        (ENDS.iter().filter(|end| slot > **end).count(), slot)
    }

    /// A hold whose counters the node serves.
    async fn hold_on(&mut self, node: usize, limit: &Arc<Limit>, estimate: u64) -> Hold {
        for number in 0.. {
            let hold = hold(limit, &format!("tenant-{number}"), estimate);
            if self.place(&hold).await.0 == node {
                return hold;
            }
        }
        unreachable!()
    }

    async fn id(&mut self, node: usize) -> String {
        redis::cmd("CLUSTER").arg("MYID").query_async(&mut self.connections[node]).await.unwrap()
    }

    /// As an operator's tool moves a slot with its keys.
    async fn move_slot(&mut self, slot: u16, from: usize, to: usize) {
        let (from_id, to_id) = (self.id(from).await, self.id(to).await);
        say(&mut self.connections[to], &format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")).await;
        say(&mut self.connections[from], &format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")).await;
        let port = self.nodes[to].port();
        loop {
            let some = ask(&mut self.connections[from], &format!("CLUSTER GETKEYSINSLOT {slot} 100")).await.unwrap();
            let some: Vec<String> = redis::from_redis_value(some).unwrap();
            if some.is_empty() {
                break;
            }
            // A key may have ended in the meantime: then the answer is NOKEY.
            let mut command = redis::cmd("MIGRATE");
            command.arg("127.0.0.1").arg(port).arg("").arg(0).arg(5_000).arg("KEYS").arg(some);
            let _: redis::Value = command.query_async(&mut self.connections[from]).await.unwrap();
        }
        for node in [to, from] {
            say(&mut self.connections[node], &format!("CLUSTER SETSLOT {slot} NODE {to_id}")).await;
        }
    }
}

#[tokio::test]
async fn a_request_holds_on_several_nodes_and_is_settled_on_all() {
    let mut cluster = TestCluster::start().await;
    let store = cluster.store();
    let limits = ["a", "b", "c"].map(|id| tokens(id, 300, Mode::Strict));
    let mut holds = Vec::new();
    for (node, limit) in limits.iter().enumerate() {
        holds.push(cluster.hold_on(node, limit, 40 + node as u64).await);
    }
    let request = granted_again(&store, holds.clone()).await;
    for (node, hold) in holds.iter().enumerate() {
        assert_eq!(standing(&store, hold).await, (0, 40 + node as u64));
        assert!(!keys(&mut cluster.connections[node]).await.is_empty());
    }
    store.grow(&renewal(&request)).await.unwrap();
    store.settle(&settlement(&request, &[10, 20, 30])).await.unwrap();
    store.settle(&settlement(&request, &[10, 20, 30])).await.unwrap();
    let states = store.peek(&holds).await.unwrap();
    assert_eq!(states.iter().map(|state| (state.used(), state.held)).collect::<Vec<_>>(), [(10, 0), (20, 0), (30, 0)]);
    assert_eq!(store.ping(PATIENCE).await, Ok(()));
    assert_eq!(store.sidecars("sidecar", PATIENCE).await, Ok(1));
}

#[tokio::test]
async fn what_is_granted_on_one_node_and_refused_on_another_is_given_back() {
    let mut cluster = TestCluster::start().await;
    let store = cluster.store();
    let (wide, narrow) = (tokens("wide", 300, Mode::Strict), tokens("narrow", 50, Mode::Strict));
    let holds = [cluster.hold_on(0, &wide, 40).await, cluster.hold_on(1, &narrow, 40).await];
    granted_again(&store, vec![holds[1].clone()]).await;
    let answer = store.reserve(&request(holds.to_vec())).await.unwrap();
    let Admission::Refused { by: 1, states } = answer else { panic!("{answer:?}") };
    assert_eq!((states[0].held, states[1].held), (0, 40));
    until(async || standing(&store, &holds[0]).await == (0, 0)).await;
    assert_eq!(standing(&store, &holds[1]).await, (0, 40));
}

#[tokio::test]
async fn a_growth_that_is_refused_on_one_node_grows_on_none() {
    let mut cluster = TestCluster::start().await;
    let store = cluster.store();
    let capped = |id, amount| Arc::new(Limit { cap: Cap::Capped, ..Limit::clone(&tokens(id, amount, Mode::Strict)) });
    let holds = [
        cluster.hold_on(0, &capped("wide", 300), 40).await,
        cluster.hold_on(1, &capped("narrow", 50), 40).await,
    ];
    let request = Arc::new(granted_again(&store, holds.to_vec()).await);
    let mut to = ReserveRequest::clone(&request);
    for hold in &mut to.holds {
        hold.estimate = 60;
    }
    let growth = Growth { from: Arc::clone(&request), doubt: None, to: to.into() };
    let answer = store.grow(&growth).await.unwrap();
    assert!(matches!(answer, Admission::Refused { by: 1, .. }), "{answer:?}");
    for hold in &holds {
        assert_eq!(standing(&store, hold).await, (0, 40));
    }
    store.settle(&settlement(&request, &[35, 35])).await.unwrap();
    for hold in &holds {
        assert_eq!(standing(&store, hold).await, (35, 0));
    }
}

/// F11: slots move while their counters are in use; nothing is charged twice, and nothing is lost.
#[tokio::test]
async fn slots_move_under_load_and_every_charge_arrives_once() {
    let mut cluster = TestCluster::start().await;
    let store = cluster.store();
    let limit = tokens("soft", 1 << 40, Mode::Soft);
    let caller = cluster.hold_on(0, &limit, 40).await;
    let (_, slot) = cluster.place(&caller).await;
    granted_again(&store, vec![caller.clone()]).await;
    let done = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let (store, caller, done) = (store.clone(), caller.clone(), Arc::clone(&done));
        callers.spawn(async move {
            let mut charged = 0;
            while !done.load(Ordering::Relaxed) {
                let request = request(vec![caller.clone()]);
                match store.reserve(&request).await {
                    Ok(admission) => assert!(matches!(admission, Admission::Granted { .. })),
                    // Nothing happened, as it says.
                    Err(StoreError::Unreachable(_)) => continue,
                    Err(error) => panic!("{error}"),
                }
                let settlement = settlement(&request, &[30]);
                until(async || store.settle(&settlement).await.is_ok()).await;
                charged += 30;
            }
            charged
        });
    }
    for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 2)] {
        cluster.move_slot(slot, from, to).await;
        // It is served from where it is now.
        granted_again(&store, vec![Hold { estimate: 0, ..caller.clone() }]).await;
    }
    done.store(true, Ordering::Relaxed);
    let charged: u64 = callers.join_all().await.into_iter().sum();
    assert!(charged > 0);
    assert_eq!(standing(&store, &caller).await, (charged, 40));
    assert!(keys(&mut cluster.connections[2]).await.iter().any(|key| key.ends_with(":leases")));
    assert!(!keys(&mut cluster.connections[0]).await.iter().any(|key| key.ends_with(":leases")));
}

#[tokio::test]
async fn a_node_that_dies_takes_only_its_own_counters_with_it() {
    let mut cluster = TestCluster::start().await;
    let store = cluster.store();
    let limit = tokens("soft", 300, Mode::Soft);
    let (there, gone) = (cluster.hold_on(0, &limit, 40).await, cluster.hold_on(2, &limit, 40).await);
    granted_again(&store, vec![there.clone(), gone.clone()]).await;
    cluster.nodes[2].kill();
    until(async || {
        matches!(store.reserve(&request(vec![gone.clone()])).await, Err(StoreError::Unreachable(_)))
    })
    .await;
    let answer = store.reserve(&request(vec![there.clone()])).await;
    assert!(matches!(answer, Ok(Admission::Granted { .. })), "{answer:?}");
    // Together they are refused, and what was granted is given back.
    let answer = store.reserve(&request(vec![there.clone(), gone.clone()])).await;
    assert!(matches!(answer, Err(StoreError::Unreachable(_))), "{answer:?}");
    until(async || standing(&store, &there).await == (0, 80)).await;
    assert_eq!(store.ping(PATIENCE).await, Ok(()), "two of three nodes would take a reservation");
}
