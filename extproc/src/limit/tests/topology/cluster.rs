//! A Redis Cluster of three nodes.

use tokio::task::JoinSet;

use super::*;

struct Cluster(Vec<RedisServer>);

impl Cluster {
    async fn start() -> Self {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(
                RedisServer::start_on_port(|_, _| {
                    let words = "--cluster-enabled yes --cluster-require-full-coverage no --cluster-node-timeout 2000";
                    words.split_whitespace().map(str::to_owned).collect()
                })
                .await,
            );
        }
        for (node, slots) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
            let mut connection = node.connection().await;
            say(&mut connection, &format!("CLUSTER ADDSLOTSRANGE {slots}")).await;
            say(&mut connection, &format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port())).await;
        }
        for node in &nodes {
            until(async || {
                let slots = ask(&mut node.connection().await, "CLUSTER SLOTS").await.unwrap();
                matches!(slots, ::redis::Value::Array(ranges) if ranges.len() == 3)
            })
            .await;
            until(async || {
                let info = ask(&mut node.connection().await, "CLUSTER INFO").await.unwrap();
                format!("{info:?}").contains("cluster_state:ok")
            })
            .await;
        }
        Self(nodes)
    }

    /// The first that has any.
    async fn with_keys(&self) -> usize {
        for (index, node) in self.0.iter().enumerate() {
            if ask(&mut node.connection().await, "DBSIZE").await.unwrap() != ::redis::Value::Int(0) {
                return index;
            }
        }
        panic!("there are no keys")
    }

    fn store(&self) -> RedisStore {
        let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", self.0[0].port(), self.0[1].port());
        connect(&url)
    }
}

/// Counters of so many tenants lie in as many groups, and so on all three nodes.
fn of_tenants(limit: &Arc<Limit>, tenants: usize, estimate: u64) -> Vec<Hold> {
    (0..tenants).map(|tenant| hold(limit, &format!("tenant-{tenant}"), estimate)).collect()
}

#[tokio::test]
async fn a_request_over_several_nodes_is_granted_whole_or_refused_whole() {
    let cluster = Cluster::start().await;
    let (store, limit) = (cluster.store(), tokens("shared", 100, Mode::Strict));
    let holds = of_tenants(&limit, 12, 40);
    granted_in_time(&store, &holds[..1]).await;
    let wide = request(holds[1..].to_vec());
    assert!(matches!(store.reserve(&wide).await.unwrap(), Admission::Granted { .. }));
    assert_eq!(seen(&store, &holds).await, [(0, 40); 12]);
    store.settle(&settlement(&wide, &[30; 11])).await.unwrap();
    assert_eq!(seen(&store, &holds[1..]).await, [(30, 0); 11]);

    // The first has room for 60 more, all others for 70.
    let refused = store.reserve(&request(of_tenants(&limit, 12, 65))).await.unwrap();
    let Admission::Refused { by, states } = refused else { panic!("{refused:?}") };
    assert_eq!((by, states[0].held, states[1].settled), (0, 40, 30));
    until(async || seen(&store, &holds[1..]).await == [(30, 0); 11]).await;

    store.reset(&holds).await.unwrap();
    assert_eq!(seen(&store, &holds[1..]).await, [(0, 0); 11]);
}

/// F11.
#[tokio::test]
async fn while_slots_move_nothing_is_lost_and_nothing_is_counted_twice() {
    let cluster = Cluster::start().await;
    let (store, limit) = (cluster.store(), tokens("moving", 1 << 40, Mode::Soft));
    let holds = of_tenants(&limit, 8, 40);
    granted_in_time(&store, &holds[..1]).await;
    store.reset(&holds).await.unwrap();
    let mut load = JoinSet::new();
    for hold in holds.clone() {
        let store = store.clone();
        load.spawn(async move {
            let mut charged = 0;
            for _ in 0..150 {
                let request = request(vec![hold.clone()]);
                if let Ok(Admission::Granted { .. }) = store.reserve(&request).await {
                    while store.settle(&settlement(&request, &[7])).await.is_err() {
                        tokio::task::yield_now().await;
                    }
                    charged += 7;
                }
            }
            charged
        });
    }
    move_all_slots_of(&cluster.0[0], &cluster.0[1], &cluster.0).await;
    let mut charged: Vec<u64> = load.join_all().await;
    charged.sort_unstable();
    let mut settled: Vec<u64> = seen(&store, &holds).await.into_iter().map(|(settled, _)| settled).collect();
    settled.sort_unstable();
    assert_eq!(settled, charged);
    assert!(charged[0] > 0, "{charged:?}");
}

/// Every slot in which `from` has keys, as `redis-cli --cluster reshard` does it.
async fn move_all_slots_of(from: &RedisServer, to: &RedisServer, all: &[RedisServer]) {
    let mut source = from.connection().await;
    for slot in 0..=5460 {
        let count = ask(&mut source, &format!("CLUSTER COUNTKEYSINSLOT {slot}")).await.unwrap();
        if count == ::redis::Value::Int(0) {
            continue;
        }
        begin_move(slot, from, to).await;
        loop {
            let keys = ask(&mut source, &format!("CLUSTER GETKEYSINSLOT {slot} 10")).await.unwrap();
            let keys: Vec<String> = ::redis::from_redis_value(keys).unwrap();
            if keys.is_empty() {
                break;
            }
            move_keys(&keys, from, to).await;
        }
        end_move(slot, to, all).await;
    }
}

async fn begin_move(slot: u16, from: &RedisServer, to: &RedisServer) {
    let (source, destination) = (id(from).await, id(to).await);
    say(&mut to.connection().await, &format!("CLUSTER SETSLOT {slot} IMPORTING {source}")).await;
    say(&mut from.connection().await, &format!("CLUSTER SETSLOT {slot} MIGRATING {destination}")).await;
}

async fn move_keys(keys: &[String], from: &RedisServer, to: &RedisServer) {
    let mut migrate = ::redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(to.port()).arg("").arg(0).arg(5_000).arg("KEYS").arg(keys);
    // A key may have ended in between.
    let _: ::redis::RedisResult<::redis::Value> = migrate.query_async(&mut from.connection().await).await;
}

/// The destination first: whoever is sent on to it must be taken.
async fn end_move(slot: u16, to: &RedisServer, all: &[RedisServer]) {
    let destination = id(to).await;
    for node in [to].into_iter().chain(all) {
        say(&mut node.connection().await, &format!("CLUSTER SETSLOT {slot} NODE {destination}")).await;
    }
}

async fn id(node: &RedisServer) -> String {
    ::redis::from_redis_value(ask(&mut node.connection().await, "CLUSTER MYID").await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_growth_over_several_nodes_that_one_of_them_refuses_holds_what_was_held() {
    let cluster = Cluster::start().await;
    let store = cluster.store();
    let limit = Arc::new(Limit { cap: Cap::Capped, ..Limit::clone(&tokens("capped", 100, Mode::Strict)) });
    let holds = of_tenants(&limit, 12, 40);
    let stream = request(holds.clone());
    assert!(matches!(store.reserve(&stream).await.unwrap(), Admission::Granted { .. }));
    let other = request(vec![hold(&limit, "tenant-7", 50)]);
    assert!(matches!(store.reserve(&other).await.unwrap(), Admission::Granted { .. }));
    let to = |estimate| {
        let to = ReserveRequest { holds: of_tenants(&limit, 12, estimate), ..stream.clone() };
        Growth { from: Arc::new(stream.clone()), doubt: None, to: Arc::new(to), keeper: Keeper::Store }
    };
    let before = seen(&store, &holds).await;
    assert_eq!((before[6], before[7]), ((0, 40), (0, 90)));

    let refused = store.grow(&to(51)).await.unwrap();
    assert!(matches!(refused, Admission::Refused { by: 7, .. }), "{refused:?}");
    assert_eq!(seen(&store, &holds).await, before);
    let growth = to(50);
    assert!(matches!(store.grow(&growth).await.unwrap(), Admission::Granted { .. }));
    let after = seen(&store, &holds).await;
    assert_eq!((after[6], after[7]), ((0, 50), (0, 100)));
    store.settle(&settlement(&growth.to, &[45; 12])).await.unwrap();
    store.settle(&settlement(&growth.to, &[45; 12])).await.unwrap();
    let settled = seen(&store, &holds).await;
    assert_eq!((settled[6], settled[7]), ((45, 0), (45, 50)));
}

/// I1.
#[tokio::test]
async fn requests_over_several_nodes_at_once_overdraw_none_of_their_limits() {
    let cluster = Cluster::start().await;
    let (store, limit) = (cluster.store(), tokens("strict", 1_000, Mode::Strict));
    let counters = of_tenants(&limit, 4, 0);
    store.reset(&counters).await.unwrap();
    let mut load = JoinSet::new();
    for worker in 0..32 {
        let (store, limit) = (store.clone(), Arc::clone(&limit));
        load.spawn(async move {
            let mut charged = 0;
            for call in 0..4 {
                let used = 20 + (worker + call) % 21;
                let request = request(of_tenants(&limit, 4, used));
                if let Admission::Granted { .. } = store.reserve(&request).await.unwrap() {
                    for (settled, held) in seen(&store, &request.holds).await {
                        assert!(settled + held <= 1_000, "{settled} + {held}");
                    }
                    store.settle(&settlement(&request, &[used; 4])).await.unwrap();
                    charged += used;
                }
            }
            charged
        });
    }
    let charged: u64 = load.join_all().await.into_iter().sum();
    assert!((1..=1_000).contains(&charged), "{charged}");
    until(async || seen(&store, &counters).await == [(charged, 0); 4]).await;
    // To the last token: nothing that was given back is still in the way.
    let last = request(of_tenants(&limit, 4, 1_000 - charged));
    assert!(matches!(store.reserve(&last).await.unwrap(), Admission::Granted { .. }));
}

#[tokio::test]
async fn a_node_that_dies_takes_its_own_counters_with_it_and_no_others() {
    let mut cluster = Cluster::start().await;
    let (store, limit) = (cluster.store(), tokens("shared", 1 << 40, Mode::Strict));
    let holds = of_tenants(&limit, 12, 40);
    store.reset(&holds).await.unwrap();
    let answers = async |holds: &[Hold]| {
        let mut there = Vec::new();
        for hold in holds {
            there.push(store.peek(std::slice::from_ref(hold)).await);
        }
        there
    };
    assert!(answers(&holds).await.iter().all(Result::is_ok));

    cluster.0[2].kill();
    // Until its links have ended, something may have happened.
    until(async || answers(&holds).await.iter().all(|a| matches!(a, Ok(_) | Err(StoreError::Unreachable(_))))).await;
    let (there, gone): (Vec<_>, Vec<_>) =
        holds.iter().cloned().zip(answers(&holds).await).partition(|(_, answer)| answer.is_ok());
    let there: Vec<Hold> = there.into_iter().map(|(hold, _)| hold).collect();
    assert!(!there.is_empty() && !gone.is_empty());
    let whole = store.reserve(&request(holds.clone())).await;
    assert!(matches!(whole, Err(StoreError::Unreachable(_))), "{whole:?}");
    until(async || seen(&store, &there).await.iter().all(|state| *state == (0, 0))).await;
    let others = request(there.clone());
    assert!(matches!(store.reserve(&others).await, Ok(Admission::Granted { .. })));
    store.settle(&settlement(&others, &vec![30; there.len()])).await.unwrap();
    assert!(seen(&store, &there).await.iter().all(|state| *state == (30, 0)));
    assert_eq!(store.ping(PATIENCE).await, Ok(()));

    cluster.0[2].restart().await;
    granted_in_time(&store, &holds).await;
}

/// F11. While a slot's keys are on both sides, neither takes a script.
#[tokio::test]
async fn a_call_waits_for_a_slot_on_the_move_until_its_deadline() {
    let cluster = Cluster::start().await;
    let (store, limit) = (cluster.store(), tokens("moving", 100, Mode::Strict));
    let first = request(vec![hold(&limit, "caller", 40)]);
    assert!(matches!(store.reserve(&first).await.unwrap(), Admission::Granted { .. }));
    let source = cluster.with_keys().await;
    let destination = (source + 1) % 3;
    let (source, destination) = (&cluster.0[source], &cluster.0[destination]);
    let keys: Vec<String> =
        ::redis::from_redis_value(ask(&mut source.connection().await, "KEYS *").await.unwrap()).unwrap();
    assert_eq!(keys.len(), 2, "a counter and a lease set: {keys:?}");
    let slot: u16 = ::redis::from_redis_value(
        ask(&mut source.connection().await, &format!("CLUSTER KEYSLOT {}", keys[0])).await.unwrap(),
    )
    .unwrap();
    begin_move(slot, source, destination).await;
    move_keys(&keys[..1], source, destination).await;

    let hasty = RedisStore::connect(
        &format!("redis+cluster://127.0.0.1:{}", source.port()),
        RedisOptions { deadline: Duration::from_secs(2), ..OPTIONS },
    )
    .unwrap();
    until(async || hasty.ping(PATIENCE).await.is_ok()).await;
    let late = hasty.reserve(&request(vec![hold(&limit, "caller", 40)])).await;
    assert!(
        matches!(&late, Err(StoreError::Unreachable(reason)) if reason.to_lowercase().contains("again")),
        "{late:?}"
    );

    let before = store.round_trips();
    let second = request(vec![hold(&limit, "caller", 40)]);
    let waiting = tokio::spawn({
        let (store, second) = (store.clone(), second.clone());
        async move { store.reserve(&second).await }
    });
    // More often than a call is sent on.
    until(async || store.round_trips() > before + 40).await;
    move_keys(&keys[1..], source, destination).await;
    end_move(slot, destination, &cluster.0).await;
    assert!(matches!(waiting.await.unwrap(), Ok(Admission::Granted { .. })));
    assert_eq!(seen(&store, &first.holds).await, [(0, 80)]);
    for request in [&first, &second] {
        store.settle(&settlement(request, &[30])).await.unwrap();
    }
    assert_eq!(seen(&store, &first.holds).await, [(60, 0)]);
}

/// Two counters of the limit: one on the first node, one on the last.
async fn of_first_and_last_node(cluster: &Cluster, limit: &Arc<Limit>, estimate: u64) -> [Hold; 2] {
    let mut connection = cluster.0[0].connection().await;
    let mut found = [None, None];
    for hold in of_tenants(limit, 64, estimate) {
        let key = format!("CLUSTER KEYSLOT {{{}}}", hold.counter.parts().0);
        match ask(&mut connection, &key).await.unwrap() {
            ::redis::Value::Int(..=5460) => found[0] = Some(hold),
            ::redis::Value::Int(10923..) => found[1] = Some(hold),
            _ => {}
        }
    }
    found.map(Option::unwrap)
}

#[tokio::test]
async fn a_growth_that_reaches_some_nodes_only_leaves_nothing_held_behind_its_settlement() {
    let mut cluster = Cluster::start().await;
    let (store, limit) = (cluster.store(), tokens("split", 300, Mode::Soft));
    let [there, gone] = of_first_and_last_node(&cluster, &limit, 40).await;
    granted_in_time(&store, std::slice::from_ref(&there)).await;
    store.reset(std::slice::from_ref(&there)).await.unwrap();
    let request = request(vec![there.clone(), gone.clone()]);
    let admission = store.reserve(&request).await.unwrap();
    let Decision::Granted(mut reservation) = decision(&request, admission) else { panic!("it is refused") };
    cluster.0[2].kill();
    until(async || matches!(store.reserve(&super::request(vec![gone.clone()])).await, Err(StoreError::Unreachable(_))))
        .await;
    let growth = reservation.growth(100);
    let answer = store.grow(&growth).await;
    assert_eq!(seen(&store, std::slice::from_ref(&there)).await, [(0, 40 + 100)], "it has grown where it could");
    assert!(matches!(answer, Err(StoreError::Failed(_))), "so that it is in doubt: {answer:?}");
    assert_eq!(reservation.note(&growth, &answer), Grown::Unknown);
    let settled = store.settle(&reservation.settlement(&attache_proto::Usage::default())).await;
    assert!(matches!(settled, Err(StoreError::Unreachable(_))), "{settled:?}");
    assert_eq!(seen(&store, &[there]).await[0].1, 40, "only the other request holds");
}

#[tokio::test]
async fn a_ping_is_answered_while_some_slots_are_served_by_nobody() {
    let cluster = Cluster::start().await;
    for node in &cluster.0 {
        say(&mut node.connection().await, "CLUSTER DELSLOTS 0").await;
    }
    assert_eq!(cluster.store().ping(PATIENCE).await, Ok(()));
}
