//! A primary, its replica, and a sentinel that makes the one from the other.

use std::fs;
use std::process::Child;

use ::redis::{self, aio::MultiplexedConnection};
use tempfile::TempDir;

use super::faults::standing;
use super::on_redis::{granted_again, tokens};
use super::redis_server::{PATIENCE, RedisServer, ask, end, free_port, redis_server, say, spawn, try_connect, until};
use super::*;

const PATIENT: RedisOptions = RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE };

struct Watched {
    servers: [RedisServer; 2],
    port: u16,
    _directory: TempDir,
    sentinel: Option<Child>,
}

impl Watched {
    /// The first server is the primary, and the second has what it has.
    async fn start() -> Self {
        let primary = RedisServer::start_on_port(|_, _| Vec::new()).await;
        let of = primary.port().to_string();
        let words = ["--replicaof", "127.0.0.1", &of, "--repl-diskless-sync-delay", "0"];
        let replica = RedisServer::start_on_port(|_, _| words.map(str::to_owned).to_vec()).await;
        let mut connection = replica.connection().await;
        until(async || info(&mut connection).await.contains("master_link_status:up")).await;

        let (directory, port) = (TempDir::new().unwrap(), free_port());
        let configuration = directory.path().join("sentinel.conf");
        let lines = format!(
            "port {port}\nbind 127.0.0.1\nrequirepass watchword\nsentinel monitor main 127.0.0.1 {of} 1\n\
             sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        );
        fs::write(&configuration, lines).unwrap();
        let mut command = redis_server();
        command.arg(&configuration).arg("--sentinel").current_dir(directory.path());
        let sentinel = Some(spawn(command));
        let watched = Self { servers: [primary, replica], port, _directory: directory, sentinel };
        until(async || {
            let Some(mut sentinel) = watched.ask_sentinel().await else { return false };
            // It knows the replica, and that it can take over.
            format!("{:?}", ask(&mut sentinel, "SENTINEL MASTER main").await).contains("\"num-slaves\"), bulk-string('\"1\"')")
                || count_of_replicas(&mut sentinel).await == 1
        })
        .await;
        watched
    }

    async fn ask_sentinel(&self) -> Option<MultiplexedConnection> {
        try_connect(&format!("redis://:watchword@127.0.0.1:{}", self.port)).await
    }

    /// Nobody listens on the first of the sentinels' addresses.
    fn url(&self) -> String {
        format!(
            "redis+sentinel://127.0.0.1:{},127.0.0.1:{}/main?sentinel_password=watchword",
            free_port(),
            self.port
        )
    }

    async fn connection(&self, server: usize) -> MultiplexedConnection {
        self.servers[server].connection().await
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        end(&mut self.sentinel);
    }
}

async fn info(connection: &mut MultiplexedConnection) -> String {
    redis::cmd("INFO").arg("replication").query_async(connection).await.unwrap()
}

async fn count_of_replicas(sentinel: &mut MultiplexedConnection) -> usize {
    let replicas = ask(sentinel, "SENTINEL REPLICAS main").await.unwrap();
    redis::from_redis_value::<Vec<redis::Value>>(replicas).unwrap().len()
}

/// F10: the primary dies, and its replica takes its place.
#[tokio::test]
async fn when_the_primary_dies_the_sidecar_goes_on_with_its_successor() {
    let mut watched = Watched::start().await;
    let store = RedisStore::connect(&watched.url(), PATIENT).unwrap();
    let limit = tokens("soft", 300, Mode::Soft);
    let request = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    store.settle(&settlement(&request, &[30])).await.unwrap();
    say(&mut watched.connection(0).await, "WAIT 1 0").await;
    watched.servers[0].kill();
    let again = granted_again(&store, vec![hold(&limit, "caller", 50)]).await;
    assert!(info(&mut watched.connection(1).await).await.contains("role:master"));
    assert_eq!(standing(&store, &again.holds[0]).await, (30, 50));
}

/// F10: the primary is made a replica while it lives.
#[tokio::test]
async fn when_another_server_is_made_the_primary_the_sidecar_follows() {
    let watched = Watched::start().await;
    let store = RedisStore::connect(&watched.url(), PATIENT).unwrap();
    let limit = tokens("soft", 1 << 40, Mode::Soft);
    let request = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    store.settle(&settlement(&request, &[30])).await.unwrap();
    let mut sentinel = watched.ask_sentinel().await.unwrap();
    until(async || ask(&mut sentinel, "SENTINEL FAILOVER main").await.is_ok()).await;
    let mut former = watched.connection(0).await;
    until(async || info(&mut former).await.contains("role:slave")).await;
    granted_again(&store, vec![hold(&limit, "caller", 50)]).await;
    let mut successor = watched.connection(1).await;
    assert!(info(&mut successor).await.contains("role:master"));
    until(async || store.settle(&settlement(&request, &[30])).await.is_ok()).await;
}

#[tokio::test]
async fn a_service_that_the_sentinels_do_not_know_is_named() {
    let watched = Watched::start().await;
    let url = watched.url().replace("/main?", "/other?");
    let store = RedisStore::connect(&url, PATIENT).unwrap();
    let answer = store.ping(PATIENCE).await;
    assert!(matches!(&answer, Err(StoreError::Unreachable(reason)) if reason.contains("\"other\"")), "{answer:?}");
}
