//! What only a store behind a network can do wrong.

use std::time::Instant;

use ::redis::{self, aio::MultiplexedConnection};
use tokio::task::JoinSet;

use super::bed::{Bed, ERA, connect};
use super::redis_server::{PATIENCE, RedisServer, say, until};
use super::*;

fn tokens(id: &str, amount: u64, mode: Mode) -> Arc<Limit> {
    Arc::new(Limit { window: Window::Fixed(ERA), ..limit(id, amount, mode) })
}

async fn keys(connection: &mut MultiplexedConnection) -> Vec<String> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(connection).await.unwrap();
    keys.sort();
    keys
}

/// Reserves until it is granted: how a recovery is awaited.
async fn granted_again(store: &RedisStore, holds: Vec<Hold>) -> ReserveRequest {
    let started = Instant::now();
    loop {
        let request = request(holds.clone());
        if let Ok(Admission::Granted { .. }) = store.reserve(&request).await {
            return request;
        }
        assert!(started.elapsed() < PATIENCE, "it did not recover");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn every_key_has_a_bounded_life_and_no_clear_text() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, .. } = &bed else { unreachable!() };
    let limits = [tokens("tokens", 300, Mode::Soft), tokens("check", 300, Mode::Check)]
        .map(|limit| Arc::new(Limit { per: vec![Dimension::Tenant, Dimension::Key], ..Limit::clone(&limit) }));
    let subject = Subject { tenant: Some("acme"), key_id: Some("sk-secret"), ..nobody() };
    let ask = || ReserveRequest::new(&limits, &subject, Estimate { input: 40, ..Estimate::default() });
    let (first, second) = (ask(), ask());
    let mut connection = server.connection().await;
    bed.reserve(&first).await;
    bed.settle(&settlement(&first, &[30, 30])).await;
    bed.reserve(&second).await;
    bed.renew(&second).await;

    let all = keys(&mut connection).await;
    assert_eq!(all.len(), 4, "two counters, a lease set, a tombstone: {all:?}");
    for key in &all {
        let left: i64 = redis::cmd("PTTL").arg(key).query_async(&mut connection).await.unwrap();
        assert!(left > 0 && left <= i64::try_from((2 * ERA + 2 * LEASE).as_millis()).unwrap(), "{key}: {left}");
        assert!(key.starts_with("att1:{"), "{key}");
        assert!(!key.contains("acme") && !key.contains("secret") && !key.contains("tokens"), "{key}");
    }
    bed.advance(2 * ERA + 2 * LEASE).await;
    assert_eq!(keys(&mut connection).await, [""; 0]);
}

#[tokio::test]
async fn a_counter_takes_less_than_300_bytes() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, .. } = &bed else { unreachable!() };
    let request = bed.granted(vec![hold(&tokens("tokens", 300, Mode::Soft), "caller", 40)]).await;
    bed.settle(&settlement(&request, &[30])).await;
    let mut connection = server.connection().await;
    let counter = keys(&mut connection).await.into_iter().find(|key| !key.contains(":settled:")).unwrap();
    let bytes: u64 = redis::cmd("MEMORY").arg("USAGE").arg(&counter).query_async(&mut connection).await.unwrap();
    assert!(bytes < 300, "{bytes}");
    let packed: Vec<u8> = redis::cmd("GET").arg(&counter).query_async(&mut connection).await.unwrap();
    assert_eq!(packed.len(), 44);
}

#[tokio::test]
async fn a_reservation_is_one_command_and_so_is_a_settlement() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, store } = &bed else { unreachable!() };
    let limits = [tokens("a", 30_000, Mode::Soft), tokens("b", 30_000, Mode::Strict), tokens("c", 30_000, Mode::Check)];
    let holds = || limits.iter().map(|limit| hold(limit, "caller", 40)).collect();
    // The first of each sends the script as well.
    let first = bed.granted(holds()).await;
    bed.settle(&settlement(&first, &[30, 30, 30])).await;

    let mut connection = server.connection().await;
    let () = redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut connection).await.unwrap();
    let before = store.round_trips();
    for _ in 0..10 {
        let request = bed.granted(holds()).await;
        bed.settle(&settlement(&request, &[30, 30, 30])).await;
    }
    assert_eq!(store.round_trips() - before, 20);
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await.unwrap();
    assert!(stats.contains("cmdstat_evalsha:calls=20,"), "{stats}");
    assert!(!stats.contains("cmdstat_eval:"), "{stats}");
}

#[tokio::test]
async fn two_sidecars_share_a_limit_to_the_token() {
    let server = RedisServer::start().await;
    let stores = [connect(&server), connect(&server)];
    let limit = tokens("strict", 10_000, Mode::Strict);
    let mut tasks = JoinSet::new();
    for worker in 0..128 {
        let store = stores[worker % 2].clone();
        let limit = Arc::clone(&limit);
        tasks.spawn(async move {
            let mut charged = 0;
            for call in 0..5 {
                let held = 20 + (worker as u64 + call) % 21;
                let request = request(vec![hold(&limit, "caller", held)]);
                if let Admission::Granted { states } = store.reserve(&request).await.unwrap() {
                    assert!(states[0].settled + states[0].held + held <= 10_000);
                    store.settle(&settlement(&request, &[held])).await.unwrap();
                    charged += held;
                }
            }
            charged
        });
    }
    let charged: u64 = tasks.join_all().await.into_iter().sum();
    // 640 calls of 30 tokens ask for nearly twice the limit, so all but less than one call's worth is used.
    assert!(charged <= 10_000 && charged > 10_000 - 40, "{charged}");
    let bed = Bed::Redis { store: stores[0].clone(), server };
    assert_eq!(bed.peek(&hold(&limit, "caller", 0)).await, (charged, 0));
}

#[tokio::test]
async fn a_real_window_ends_and_the_next_one_is_fresh() {
    let server = RedisServer::start().await;
    let store = connect(&server);
    let limit = Arc::new(Limit { window: Window::Fixed(Duration::from_secs(1)), ..limit("second", 10, Mode::Soft) });
    let request = granted_again(&store, vec![hold(&limit, "caller", 10)]).await;
    store.settle(&settlement(&request, &[10])).await.unwrap();
    granted_again(&store, vec![hold(&limit, "caller", 10)]).await;
}

/// F1.
#[tokio::test]
async fn a_redis_that_dies_is_an_error_at_once_and_is_used_again_when_it_is_back() {
    let mut server = RedisServer::start().await;
    let store = connect(&server);
    let limit = tokens("soft", 300, Mode::Soft);
    let request = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    server.kill();
    let asked = Instant::now();
    assert!(matches!(store.reserve(&request).await, Err(StoreError::Failed(_))));
    assert!(matches!(store.settle(&settlement(&request, &[30])).await, Err(StoreError::Failed(_))));
    assert!(asked.elapsed() < PATIENCE);
    assert_eq!(store.errors(), 2);

    server.restart().await;
    // It has lost everything, scripts too.
    granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
}

/// F3.
#[tokio::test]
async fn a_redis_that_hangs_is_a_timeout_at_the_deadline_and_is_used_again_when_it_goes_on() {
    let server = RedisServer::start().await;
    let options = RedisOptions { deadline: Duration::from_millis(200), settle_deadline: PATIENCE };
    let store = RedisStore::connect(&server.url(), options).unwrap();
    let limit = tokens("soft", 1 << 40, Mode::Soft);
    granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    server.signal("STOP");
    // As many as it takes for the connection to be given up; a new one is accepted by the kernel and hangs as well.
    for _ in 0..5 {
        assert_eq!(
            store.reserve(&request(vec![hold(&limit, "caller", 40)])).await,
            Err(StoreError::Timeout(options.deadline))
        );
    }
    server.signal("CONT");
    granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
}

/// F15.
#[tokio::test]
async fn starting_without_redis_is_no_error() {
    let mut server = RedisServer::stopped();
    let store = connect(&server);
    let limit = tokens("soft", 300, Mode::Soft);
    let request = request(vec![hold(&limit, "caller", 40)]);
    assert!(matches!(store.reserve(&request).await, Err(StoreError::Unreachable(_))));
    server.restart().await;
    granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
}

#[tokio::test]
async fn a_url_that_is_none_is_an_error_at_start() {
    for url in ["localhost", "http://localhost", "redis://", "redis+sentinel://localhost"] {
        let error = RedisStore::connect(url, RedisOptions::default()).unwrap_err();
        assert!(error.to_string().contains("redis://USER:PASSWORD@HOST:PORT/DB"), "{error}");
    }
}

#[tokio::test]
async fn scripts_that_redis_has_forgotten_are_sent_again() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, .. } = &bed else { unreachable!() };
    let limit = tokens("soft", 300, Mode::Soft);
    let mut connection = server.connection().await;
    for used in [10, 20, 30] {
        let () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut connection).await.unwrap();
        let request = bed.granted(vec![hold(&limit, "caller", 40)]).await;
        bed.renew(&request).await;
        bed.settle(&settlement(&request, &[used])).await;
    }
    assert_eq!(bed.peek(&hold(&limit, "caller", 0)).await, (60, 0));
}

/// F7.
#[tokio::test]
async fn a_user_who_may_not_load_scripts_and_sees_only_our_keys_is_enough() {
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    let rules = "ACL SETUSER sidecar on >pass ~att1:* +eval +evalsha +time +exists +get +set +pttl +pexpire +zadd +zrem \
                 +zrangebyscore";
    let mut command = redis::Cmd::new();
    for word in rules.split_whitespace() {
        command.arg(word);
    }
    let () = command.query_async(&mut connection).await.unwrap();
    let url = format!("{}?user=sidecar&pass=pass", server.url());
    let options = RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE };
    let bed = Bed::Redis { store: RedisStore::connect(&url, options).unwrap(), server };
    let limit = tokens("soft", 300, Mode::Soft);
    let request = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    bed.renew(&request).await;
    bed.settle(&settlement(&request, &[30])).await;
    assert_eq!(bed.peek(&request.holds[0]).await, (30, 0));
    bed.granted(vec![hold(&limit, "caller", 40)]).await;
    bed.advance(LEASE).await;
    bed.granted(vec![hold(&limit, "caller", 20)]).await;
    bed.reset(&request.holds).await;
    assert_eq!(bed.peek(&request.holds[0]).await, (0, 20));
    let Bed::Redis { store, .. } = &bed else { unreachable!() };
    let presence = store.sidecars("sidecar", LEASE).await.unwrap();
    assert_eq!((presence.sidecars, presence.memory), (1, StoreMemory::default()), "INFO is not among its rights");
}

/// F8.
#[tokio::test]
async fn a_full_redis_refuses_a_reservation_whole_and_still_takes_settlements() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, store } = &bed else { unreachable!() };
    let limit = tokens("soft", 300, Mode::Soft);
    let running = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    let mut connection = server.connection().await;
    let maxmemory = async |connection: &mut MultiplexedConnection, bytes: u64| {
        let mut command = redis::cmd("CONFIG");
        let () = command.arg("SET").arg("maxmemory").arg(bytes).query_async(connection).await.unwrap();
    };
    maxmemory(&mut connection, 1).await;
    let before = keys(&mut connection).await;
    let refused = store.reserve(&request(vec![hold(&limit, "another", 40)])).await;
    assert!(matches!(&refused, Err(StoreError::Failed(reason)) if reason.contains("OOM")), "{refused:?}");
    assert_eq!(keys(&mut connection).await, before);
    bed.renew(&running).await;
    bed.settle(&settlement(&running, &[30])).await;
    maxmemory(&mut connection, 0).await;
    assert_eq!(bed.peek(&running.holds[0]).await, (30, 0));
}

#[tokio::test]
async fn a_primary_that_becomes_read_only_is_left_for_a_new_connection() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, store } = &bed else { unreachable!() };
    let limit = tokens("soft", 300, Mode::Soft);
    bed.granted(vec![hold(&limit, "caller", 40)]).await;
    let mut connection = server.connection().await;
    let clients = async |connection: &mut MultiplexedConnection| {
        let list: String = redis::cmd("CLIENT").arg("LIST").query_async(connection).await.unwrap();
        list.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect::<Vec<_>>()
    };
    let before = clients(&mut connection).await;
    let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg("1").query_async(&mut connection).await.unwrap();
    let refused = store.reserve(&request(vec![hold(&limit, "caller", 40)])).await;
    assert!(matches!(&refused, Err(StoreError::Unreachable(_))), "{refused:?}");
    let () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query_async(&mut connection).await.unwrap();
    granted_again(store, vec![hold(&limit, "caller", 40)]).await;
    let after = clients(&mut connection).await;
    assert!(after.iter().any(|client| !before.contains(client)), "{before:?} {after:?}");
}

#[tokio::test]
async fn a_ping_is_answered_only_by_a_redis_that_would_take_a_reservation() {
    let server = RedisServer::start().await;
    let store = connect(&server);
    assert_eq!(store.ping(PATIENCE).await, Ok(()));
    let mut connection = server.connection().await;
    assert_eq!(keys(&mut connection).await, [""; 0]);
    for (breaks, mends) in
        [("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"), ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE")]
    {
        say(&mut connection, breaks).await;
        assert!(store.ping(PATIENCE).await.is_err(), "{breaks}");
        say(&mut connection, mends).await;
        until(async || store.ping(PATIENCE).await.is_ok()).await;
    }
}

#[tokio::test]
async fn a_sidecar_hears_how_full_redis_is() {
    let server = RedisServer::start_with(&["--maxmemory", "64mb"]).await;
    let store = connect(&server);
    let memory = store.sidecars("sidecar", LEASE).await.unwrap().memory;
    assert_eq!(memory.limit_bytes, 64 << 20);
    assert!((100_000..32 << 20).contains(&memory.used_bytes), "{memory:?}");
    say(&mut server.connection().await, "CONFIG SET maxmemory 0").await;
    assert_eq!(store.sidecars("sidecar", LEASE).await.unwrap().memory.limit_bytes, 0);
}

#[tokio::test]
async fn sidecars_are_counted_while_they_say_that_they_live() {
    let server = RedisServer::start().await;
    let (first, second) = (connect(&server), connect(&server));
    let lifetime = Duration::from_secs(60);
    assert_eq!(first.sidecars("first", lifetime).await.unwrap().sidecars, 1);
    assert_eq!(second.sidecars("second", lifetime).await.unwrap().sidecars, 2);
    assert_eq!(first.sidecars("first", lifetime).await.unwrap().sidecars, 2);
    let mut connection = server.connection().await;
    let left: u64 = redis::cmd("PTTL").arg("att1:{sidecars}").query_async(&mut connection).await.unwrap();
    assert!(left > 0 && left <= 60_000, "{left}");

    say(&mut connection, "ZADD att1:{sidecars} 1 second").await;
    assert_eq!(
        first.sidecars("first", lifetime).await.unwrap().sidecars,
        1,
        "the second has not been heard of for too long"
    );
    assert_eq!(second.sidecars("second", lifetime).await.unwrap().sidecars, 2);
    assert_eq!(second.sidecars("second", Duration::ZERO).await.unwrap().sidecars, 1);
    assert_eq!(first.sidecars("first", Duration::ZERO).await.unwrap().sidecars, 0);
    assert_eq!(keys(&mut connection).await, [""; 0]);
}

/// A header's values are the client's, and each makes a counter.
#[tokio::test]
async fn a_key_that_makes_counters_without_end_leaves_room_for_the_others() {
    for mode in [Mode::Soft, Mode::Check] {
        let bed = Bed::redis().await;
        let Bed::Redis { server, store } = &bed else { unreachable!() };
        // Room for some 3,000 counters more, of which Redis takes a part for itself.
        let used = store.sidecars("sidecar", LEASE).await.unwrap().memory.used_bytes;
        say(&mut server.connection().await, &format!("CONFIG SET maxmemory {}", used + 3_000 * 512)).await;
        let per = vec![Dimension::Key, Dimension::Header("x-user".into())];
        let limit = Arc::new(Limit { per, ..Limit::clone(&tokens("by-user", 300, mode)) });
        let ask = async |key: &str, value: usize| {
            let value = value.to_string();
            let header = |_: &str| Some(value.as_bytes());
            let subject = Subject { key_id: Some(key), header: &header, ..nobody() };
            let asked = ReserveRequest::new([&limit], &subject, Estimate { input: 40, ..Estimate::default() });
            store.reserve(&asked).await?;
            store.settle(&settlement(&asked, &[1])).await
        };
        let flood = async |key: &str| {
            store.sidecars("sidecar", LEASE).await.unwrap();
            let mut made = 0;
            for value in 0..3_000 {
                match ask(key, value).await {
                    Ok(_) => made += 1,
                    Err(error) => {
                        assert!(matches!(error, StoreError::NoRoom(_)), "{error:?}");
                        break;
                    }
                }
            }
            made
        };
        let made = flood("hostile").await;
        assert!((500..1_500).contains(&made), "{made}");
        assert_eq!(flood("hostile").await, made, "what it made is its own to use, and there is no more");
        assert!(flood("another").await > 0);
        for neighbour in 0..20 {
            assert!(ask(&format!("key {neighbour}"), 0).await.is_ok(), "{neighbour}");
        }
        // What nobody uses any more is free again.
        bed.advance(5 * ERA).await;
        assert!((500..1_500).contains(&flood("hostile").await));
    }
}
