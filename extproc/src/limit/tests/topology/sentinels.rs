//! A Redis whose primary is found by sentinels.

use std::process::Child;

use tempfile::TempDir;

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
    let store = connect(&url);
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
    say(&mut replica.connection().await, "FLUSHALL").await;
    until(async || {
        granted_in_time(&store, &holds).await;
        ask(&mut replica.connection().await, "DBSIZE").await.unwrap() != ::redis::Value::Int(0)
    })
    .await;
}

/// F10, where the primary is killed: nobody tells the store.
#[tokio::test]
async fn after_the_death_of_the_primary_its_successor_is_used_and_what_was_used_is_still_used() {
    let mut primary = RedisServer::start_on_port(|_, _| Vec::new()).await;
    let _replica = replica_of(primary.port()).await;
    let sentinel = Sentinel::over(primary.port()).await;
    sentinel.says("SENTINEL SET limits down-after-milliseconds 500").await.unwrap();
    // The first of them is not there.
    let store = connect(&format!("redis+sentinel://127.0.0.1:{},127.0.0.1:{}/limits", free_port(), sentinel.port));
    let limit = tokens("failover", 100, Mode::Strict);
    let holds = [hold(&limit, "caller", 40)];
    let first = request(holds.to_vec());
    assert!(matches!(store.reserve(&first).await, Ok(Admission::Granted { .. })));
    store.settle(&settlement(&first, &[40])).await.unwrap();
    until(async || sentinel.knows_a_replica().await).await;

    primary.kill();
    granted_in_time(&store, &holds).await;
    let admission = store.reserve(&request(holds.to_vec())).await.unwrap();
    let Admission::Refused { states, .. } = admission else { panic!("{admission:?}") };
    // Of what was asked of the primary as it died, one may be held.
    assert_eq!(states[0].settled, 40);
}

#[tokio::test]
async fn a_sentinel_that_takes_a_replica_for_the_primary_is_not_believed() {
    let primary = RedisServer::start_on_port(|_, _| Vec::new()).await;
    let replica = replica_of(primary.port()).await;
    let (mistaken, right) = (Sentinel::over(replica.port()).await, Sentinel::over(primary.port()).await);
    let reason = obstacle(&connect(&format!("redis+sentinel://127.0.0.1:{}/limits", mistaken.port))).await;
    assert_eq!(reason, format!("127.0.0.1:{} is not the primary that a sentinel takes it for", replica.port()));
    works(&connect(&format!("redis+sentinel://127.0.0.1:{},127.0.0.1:{}/limits", mistaken.port, right.port))).await;
    assert_eq!(mistaken.primary().await, replica.port(), "it still is mistaken");
}

#[tokio::test]
async fn a_service_that_no_sentinel_knows_is_said_to_be_unknown() {
    let primary = RedisServer::start_on_port(|_, _| Vec::new()).await;
    let sentinel = Sentinel::over(primary.port()).await;
    let reason = obstacle(&connect(&format!("redis+sentinel://127.0.0.1:{}/other", sentinel.port))).await;
    assert_eq!(reason, format!("127.0.0.1:{} knows no service \"other\"", sentinel.port));
}

async fn replica_of(primary: u16) -> RedisServer {
    let replica =
        RedisServer::start_on_port(|_, _| vec!["--replicaof".to_owned(), "127.0.0.1".to_owned(), primary.to_string()])
            .await;
    until(async || {
        let role = ask(&mut replica.connection().await, "ROLE").await.unwrap();
        format!("{role:?}").contains("connected")
    })
    .await;
    replica
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

    /// The port of what it takes for the primary.
    async fn primary(&self) -> u16 {
        let answer = self.says("SENTINEL GET-MASTER-ADDR-BY-NAME limits").await.unwrap();
        let (_, port): (String, u16) = ::redis::from_redis_value(answer).unwrap();
        port
    }

    async fn knows_a_replica(&self) -> bool {
        let replicas = self.says("SENTINEL REPLICAS limits").await.unwrap();
        format!("{replicas:?}").contains("\"ok\"")
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
