//! A Redis behind TLS, behind sentinels, and in a cluster: real servers of the test's own.

use std::path::Path;
use std::process::Child;

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::bed::ERA;
use super::redis_server::{PATIENCE, RedisServer, ask, end, free_port, redis_server, say, spawn, try_connect, until};
use super::*;

const OPTIONS: RedisOptions = RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE };

fn tokens(id: &str, amount: u64, mode: Mode) -> Arc<Limit> {
    Arc::new(Limit { window: Window::Fixed(ERA), ..limit(id, amount, mode) })
}

async fn granted_in_time(store: &RedisStore, holds: &[Hold]) {
    until(async || matches!(store.reserve(&request(holds.to_vec())).await, Ok(Admission::Granted { .. }))).await;
}

fn target(url: &str, files: RedisFiles) -> RedisTarget {
    url.parse::<RedisTarget>().unwrap().with_files(files).unwrap()
}

mod tls {
    use super::*;

    fn certificate(directory: &Path, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let path = |kind: &str| directory.join(format!("{name}.{kind}"));
        std::fs::write(path("crt"), certificate.pem()).unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        (path("crt").display().to_string(), path("key").display().to_string())
    }

    #[tokio::test]
    async fn a_redis_is_trusted_by_the_file_that_names_it_and_by_nothing_else() {
        let files = TempDir::new().unwrap();
        let (certificate_file, key) = certificate(files.path(), "server");
        let (other, _) = certificate(files.path(), "other");
        let port = free_port();
        let words =
            format!("--tls-port {port} --tls-auth-clients no --tls-cert-file {certificate_file} --tls-key-file {key}");
        let words: Vec<&str> = words.split_whitespace().collect();
        let _server = RedisServer::start_with(&words).await;
        let url = format!("rediss://localhost:{port}");
        let with_ca = |ca: &str| {
            RedisStore::new(target(&url, RedisFiles { ca: Some(ca.into()), ..RedisFiles::default() }), OPTIONS)
        };
        let limit = tokens("tls", 300, Mode::Soft);
        granted_in_time(&with_ca(&certificate_file), &[hold(&limit, "caller", 40)]).await;
        for stranger in [with_ca(&other), RedisStore::new(target(&url, RedisFiles::default()), OPTIONS)] {
            let answer = stranger.reserve(&request(vec![hold(&limit, "caller", 40)])).await;
            let Err(StoreError::Unreachable(reason)) = answer else { panic!("{answer:?}") };
            assert!(reason.contains("certificate"), "{reason}");
        }
    }
}

mod sentinels {
    use super::*;

    /// F10.
    #[tokio::test]
    async fn after_a_failover_the_new_primary_is_used_without_a_restart() {
        let primary = RedisServer::start_on_port(|_, _| Vec::new()).await;
        let replica = RedisServer::start_on_port(|_, _| {
            vec!["--replicaof".to_owned(), "127.0.0.1".to_owned(), primary.port().to_string()]
        })
        .await;
        let sentinel = Sentinel::over(primary.port()).await;
        let url = format!("redis+sentinel://127.0.0.1:{}/limits", sentinel.port);
        let store = RedisStore::new(target(&url, RedisFiles::default()), OPTIONS);
        let limit = tokens("failover", 1 << 40, Mode::Soft);
        let holds = [hold(&limit, "caller", 40)];
        granted_in_time(&store, &holds).await;

        // Refused until it has found the replica.
        until(async || sentinel.says("SENTINEL FAILOVER limits").await.is_ok()).await;
        until(async || {
            // A sentinel ends all connections of the server that it makes the primary: ours as well, if there is one just then.
            let Some(mut connection) = try_connect(&replica.url()).await else { return false };
            ask(&mut connection, "ROLE").await.is_ok_and(|role| format!("{role:?}").contains("master"))
        })
        .await;
        until(async || {
            let primary = sentinel.says("SENTINEL GET-MASTER-ADDR-BY-NAME limits").await.unwrap();
            format!("{primary:?}").contains(&replica.port().to_string())
        })
        .await;
        // What the former primary takes until it is told, floors bring along.
        until(async || {
            let Some(mut connection) = try_connect(&replica.url()).await else { return false };
            ask(&mut connection, "FLUSHALL").await.is_ok()
        })
        .await;
        until(async || {
            granted_in_time(&store, &holds).await;
            let Some(mut connection) = try_connect(&replica.url()).await else { return false };
            ask(&mut connection, "DBSIZE").await.is_ok_and(|keys| keys != ::redis::Value::Int(0))
        })
        .await;
    }

    struct Sentinel {
        port: u16,
        process: Option<Child>,
        _directory: TempDir,
    }

    impl Sentinel {
        /// One that watches the server on this port under the name `limits`.
        async fn over(primary: u16) -> Self {
            let (directory, port) = (TempDir::new().unwrap(), free_port());
            let config = directory.path().join("sentinel.conf");
            let text = format!(
                "bind 127.0.0.1\nport {port}\nsentinel monitor limits 127.0.0.1 {primary} 1\n\
                 sentinel down-after-milliseconds limits 60000\nsentinel failover-timeout limits 2000\n"
            );
            std::fs::write(&config, text).unwrap();
            let mut command = redis_server();
            command.arg(&config).arg("--sentinel").current_dir(directory.path());
            let sentinel = Self { port, process: Some(spawn(command)), _directory: directory };
            until(async || try_connect(&sentinel.url()).await.is_some()).await;
            sentinel
        }

        fn url(&self) -> String {
            format!("redis://127.0.0.1:{}", self.port)
        }

        async fn says(&self, words: &str) -> ::redis::RedisResult<::redis::Value> {
            ask(&mut try_connect(&self.url()).await.unwrap(), words).await
        }
    }

    impl Drop for Sentinel {
        fn drop(&mut self) {
            end(&mut self.process);
        }
    }
}

mod cluster {
    use super::*;

    struct Cluster(Vec<RedisServer>);

    impl Cluster {
        async fn start() -> Self {
            let mut nodes = Vec::new();
            for _ in 0..3 {
                nodes.push(
                    RedisServer::start_on_port(|_, _| {
                        let words =
                            "--cluster-enabled yes --cluster-require-full-coverage no --cluster-node-timeout 2000";
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

        fn store(&self) -> RedisStore {
            let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", self.0[0].port(), self.0[1].port());
            RedisStore::new(target(&url, RedisFiles::default()), OPTIONS)
        }
    }

    /// Counters of so many tenants lie in as many groups, and so on all three nodes.
    fn of_tenants(limit: &Arc<Limit>, tenants: usize, estimate: u64) -> Vec<Hold> {
        (0..tenants).map(|tenant| hold(limit, &format!("tenant-{tenant}"), estimate)).collect()
    }

    async fn seen(store: &RedisStore, holds: &[Hold]) -> Vec<(u64, u64)> {
        store.peek(holds).await.unwrap().iter().map(|state| (state.settled, state.held)).collect()
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
        let (mut source, mut destination) = (from.connection().await, to.connection().await);
        let id = async |connection: &mut ::redis::aio::MultiplexedConnection| -> String {
            ::redis::from_redis_value(ask(connection, "CLUSTER MYID").await.unwrap()).unwrap()
        };
        let (source_id, destination_id) = (id(&mut source).await, id(&mut destination).await);
        for slot in 0..=5460 {
            let count = ask(&mut source, &format!("CLUSTER COUNTKEYSINSLOT {slot}")).await.unwrap();
            if count == ::redis::Value::Int(0) {
                continue;
            }
            say(&mut destination, &format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}")).await;
            say(&mut source, &format!("CLUSTER SETSLOT {slot} MIGRATING {destination_id}")).await;
            loop {
                let keys = ask(&mut source, &format!("CLUSTER GETKEYSINSLOT {slot} 10")).await.unwrap();
                let keys: Vec<String> = ::redis::from_redis_value(keys).unwrap();
                if keys.is_empty() {
                    break;
                }
                let mut migrate = ::redis::cmd("MIGRATE");
                migrate.arg("127.0.0.1").arg(to.port()).arg("").arg(0).arg(5_000).arg("KEYS");
                migrate.arg(&keys);
                // A key may have ended in between.
                let _: ::redis::RedisResult<::redis::Value> = migrate.query_async(&mut source).await;
            }
            for node in [to, from].into_iter().chain(all) {
                say(&mut node.connection().await, &format!("CLUSTER SETSLOT {slot} NODE {destination_id}")).await;
            }
        }
    }
}
