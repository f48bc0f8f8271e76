//! What the log says of a Redis that cannot be used as it is: each once, with what to do, and without a secret.

use ::redis::aio::MultiplexedConnection;

use super::bed::{ERA, connect};
use super::log::Log;
use super::redis_server::{PATIENCE, RedisServer, ask, end, free_port, redis_server, say, spawn, try_connect, until};
use super::*;

const OPTIONS: RedisOptions = RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE };

fn tokens() -> Arc<Limit> {
    Arc::new(Limit { window: Window::Fixed(ERA), ..limit("tokens", 1 << 40, Mode::Soft) })
}

async fn is_granted(store: &RedisStore) -> bool {
    let request = request(vec![hold(&tokens(), "caller", 40)]);
    matches!(store.reserve(&request).await, Ok(Admission::Granted { .. }))
}

fn as_user(server: &RedisServer, user: &str, password: &str) -> RedisStore {
    RedisStore::connect(&format!("{}?user={user}&pass={password}", server.url()), OPTIONS).unwrap()
}

/// F9.
#[tokio::test]
async fn a_redis_that_may_evict_counters_is_told_once_and_what_to_set() {
    let log = Log::start();
    let server = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]).await;
    let store = connect(&server);
    let line = log.line("may evict").await;
    for part in ["WARN", "policy=\"allkeys-lru\"", "redis.sock", "noeviction", "volatile-ttl"] {
        assert!(line.contains(part), "{line}");
    }
    until(async || is_granted(&store).await).await;
    until(async || log.lines("connected to Redis").len() == 2).await;
    assert_eq!(log.lines("may evict").len(), 1, "{}", log.text());
}

#[tokio::test]
async fn a_redis_as_it_should_be_is_warned_of_by_nothing() {
    let log = Log::start();
    let server = RedisServer::start().await;
    let store = connect(&server);
    until(async || is_granted(&store).await).await;
    let mut connection = server.connection().await;
    // Both sections have been asked for, beside what is asked here; the settlement is answered after them.
    let mut asked_here = 0;
    until(async || {
        asked_here += 1;
        let stats: String = ::redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await.unwrap();
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_info:calls="));
        let calls = calls.and_then(|calls| calls.split(',').next()).map_or(0, |calls| calls.parse().unwrap());
        calls == asked_here - 1 + 2
    })
    .await;
    store.settle(&request(vec![hold(&tokens(), "caller", 40)]).release()).await.unwrap();
    assert!(!log.text().contains("WARN") && !log.text().contains("ERROR"), "{}", log.text());
}

/// F17.
#[tokio::test]
async fn a_refused_login_is_told_once_for_each_connection_with_what_to_mend_and_without_the_password() {
    let log = Log::start();
    let server = RedisServer::start().await;
    say(&mut server.connection().await, "ACL SETUSER sidecar on >right ~att1:* +@all").await;
    let store = as_user(&server, "sidecar", "wr0ng-s3cret");
    let line = log.line("does not let this sidecar in").await;
    for part in ["ERROR", "--redis-password-file", "access list"] {
        assert!(line.contains(part), "{line}");
    }
    // As long as it takes for many more attempts to be refused.
    let mut connection = server.connection().await;
    until(async || refused_logins(&mut connection).await >= 8).await;
    assert_eq!(log.lines("does not let this sidecar in").len(), 2, "one for each of two links: {}", log.text());
    assert!(!log.text().contains("wr0ng-s3cret"), "{}", log.text());

    ask(&mut connection, "ACL SETUSER sidecar >wr0ng-s3cret").await.unwrap();
    until(async || is_granted(&store).await).await;
    assert!(!log.lines("connected to Redis").is_empty());
}

async fn refused_logins(connection: &mut MultiplexedConnection) -> u64 {
    let stats: String = ::redis::cmd("INFO").arg("errorstats").query_async(connection).await.unwrap();
    let count = stats.lines().find_map(|line| line.strip_prefix("errorstat_WRONGPASS:count="));
    count.map_or(0, |count| count.parse().unwrap())
}

/// F7.
#[tokio::test]
async fn a_command_that_the_access_list_forbids_is_told_once_until_it_is_mended() {
    let log = Log::start();
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    say(&mut connection, "ACL SETUSER sidecar on >pass ~att1:* +@all").await;
    let store = as_user(&server, "sidecar", "pass");
    until(async || store.ping(PATIENCE).await.is_ok()).await;
    for times_told in 1..=2 {
        say(&mut connection, "ACL SETUSER sidecar -zadd").await;
        for _ in 0..3 {
            let answer = store.reserve(&request(vec![hold(&tokens(), "caller", 40)])).await;
            assert!(matches!(answer, Err(StoreError::Failed(_))), "{answer:?}");
        }
        assert_eq!(log.lines("access list does not allow").len(), times_told, "{}", log.text());
        say(&mut connection, "ACL SETUSER sidecar +zadd").await;
        assert!(is_granted(&store).await);
    }

    // What it says is enough, and nothing of it is too much.
    let line = log.lines("access list does not allow").remove(0);
    let rules = line.split("need: ").nth(1).unwrap().split(", and").next().unwrap().to_owned();
    let grant = async |connection: &mut MultiplexedConnection, rules: &str| {
        say(connection, &format!("ACL SETUSER sidecar reset on >pass {rules}")).await;
    };
    grant(&mut connection, &rules).await;
    let store = as_user(&server, "sidecar", "pass");
    until(async || store.ping(PATIENCE).await.is_ok()).await;
    whole_life(&store).await.unwrap();
    for rule in rules.split_whitespace() {
        let fewer: Vec<&str> = rules.split_whitespace().filter(|other| *other != rule).collect();
        say(&mut connection, "FLUSHALL").await;
        say(&mut connection, "SCRIPT FLUSH").await;
        grant(&mut connection, &fewer.join(" ")).await;
        let store = as_user(&server, "sidecar", "pass");
        assert!(whole_life(&store).await.is_err(), "{rule} is not needed");
    }
}

/// All that a store does, so that every command is used.
async fn whole_life(store: &RedisStore) -> Result<(), StoreError> {
    store.ping(PATIENCE).await?;
    store.sidecars("sidecar", Duration::from_secs(60)).await?;
    let request = request(vec![hold(&tokens(), "caller", 40)]);
    store.reserve(&request).await?;
    store.grow(&renewal(&request)).await?;
    store.settle(&settlement(&request, &[30])).await?;
    store.peek(&request.holds).await?;
    store.reset(&request.holds).await?;
    store.sidecars("sidecar", Duration::ZERO).await.map(drop)
}

#[tokio::test]
async fn a_node_of_a_cluster_that_is_taken_for_a_server_is_told_with_the_url_to_write() {
    let log = Log::start();
    let node = RedisServer::start_on_port(|_, _| vec!["--cluster-enabled".to_owned(), "yes".to_owned()]).await;
    say(&mut node.connection().await, "CLUSTER ADDSLOTSRANGE 0 16383").await;
    let _store = connect(&node);
    let line = log.line("is not what --redis says").await;
    assert!(line.contains("ERROR") && line.contains("redis+cluster://HOST:PORT"), "{line}");

    let log = Log::start();
    let url = format!("redis+cluster://127.0.0.1:{}", node.port());
    let store = RedisStore::connect(&url, OPTIONS).unwrap();
    until(async || is_granted(&store).await).await;
    store.settle(&request(vec![hold(&tokens(), "caller", 40)]).release()).await.unwrap();
    assert!(log.lines("is not what").is_empty(), "{}", log.text());
}

#[tokio::test]
async fn a_sentinel_that_is_taken_for_a_server_is_told_with_the_url_to_write() {
    let log = Log::start();
    let (directory, port) = (tempfile::TempDir::new().unwrap(), free_port());
    let config = directory.path().join("sentinel.conf");
    std::fs::write(&config, format!("bind 127.0.0.1\nport {port}\n")).unwrap();
    let mut command = redis_server();
    command.arg(&config).arg("--sentinel").current_dir(directory.path());
    let mut sentinel = Some(spawn(command));
    let url = format!("redis://127.0.0.1:{port}");
    until(async || try_connect(&url).await.is_some()).await;
    let _store = RedisStore::connect(&url, OPTIONS).unwrap();
    let line = log.line("is not what --redis says").await;
    assert!(line.contains("redis+sentinel://HOST:PORT"), "{line}");
    end(&mut sentinel);
}
