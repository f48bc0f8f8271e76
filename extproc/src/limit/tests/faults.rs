//! What a network, a restart, a clock, another version and a password can do to a store. (What else Redis loses is in `floors`,
//! what outages do to limits in `tests/tests/blackbox/outages.rs`.)

use ::redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use super::bed::{Bed, ERA, connect};
use super::proxy::{Proxy, Weather};
use super::redis_server::{PATIENCE, RedisServer, ask, say, until};
use super::*;

/// By which a clock is wrong.
const CLOCK_ERROR: Duration = Duration::from_secs(90);

fn tokens(amount: u64) -> Arc<Limit> {
    Arc::new(Limit { window: Window::Fixed(ERA), ..limit("tokens", amount, Mode::Soft) })
}

async fn behind_a_proxy() -> (RedisServer, Proxy) {
    let server = RedisServer::start_on_port(|_, _| Vec::new()).await;
    let proxy = Proxy::before(server.port()).await;
    (server, proxy)
}

/// What is (settled, held), by a connection that has no trouble.
async fn seen(server: &RedisServer, limit: &Arc<Limit>) -> (u64, u64) {
    let states = connect(server).peek(&[hold(limit, "caller", 0)]).await.unwrap();
    (states[0].settled, states[0].held)
}

async fn times_called(connection: &mut MultiplexedConnection, command: &str) -> u64 {
    let stats: String = ::redis::cmd("INFO").arg("commandstats").query_async(connection).await.unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    calls.and_then(|calls| calls.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
}

async fn granted_in_time(store: &RedisStore, limit: &Arc<Limit>) -> ReserveRequest {
    let granted = std::sync::Mutex::new(None);
    until(async || {
        let request = request(vec![hold(limit, "caller", 40)]);
        let is_granted = matches!(store.reserve(&request).await, Ok(Admission::Granted { .. }));
        if is_granted {
            *granted.lock().unwrap() = Some(request);
        }
        is_granted
    })
    .await;
    granted.into_inner().unwrap().unwrap()
}

/// F2.
#[tokio::test]
async fn a_redis_that_writes_everything_down_has_lost_nothing_after_a_kill() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let (store, limit) = (connect(&server), tokens(300));
    let (settled, held) = (granted_in_time(&store, &limit).await, granted_in_time(&store, &limit).await);
    store.settle(&settlement(&settled, &[30])).await.unwrap();
    server.kill();
    server.restart().await;
    // Asked by a sidecar that has seen nothing.
    assert_eq!(seen(&server, &limit).await, (30, 40));
    until(async || store.settle(&settlement(&held, &[35])).await.is_ok()).await;
    assert_eq!(seen(&server, &limit).await, (65, 0));
}

/// F3.
#[tokio::test]
async fn what_a_hanging_redis_was_asked_for_is_given_back_when_it_goes_on() {
    let server = RedisServer::start().await;
    let deadline = Duration::from_millis(200);
    let store = RedisStore::connect(&server.url(), RedisOptions { deadline, settle_deadline: PATIENCE }).unwrap();
    let limit = tokens(1 << 40);
    let earlier = granted_in_time(&store, &limit).await;
    store.settle(&settlement(&earlier, &[30])).await.unwrap();
    let ledger = Ledger::redis(store.clone(), SharedOptions { replicas: 1, probe_deadline: PATIENCE });
    server.signal("STOP");
    // Not so many that the connection is given up: what was sent is still read later.
    for _ in 0..3 {
        let answer = ledger.reserve(&Arc::new(request(vec![hold(&limit, "caller", 40)]))).await;
        assert_eq!(answer.unwrap_err(), StoreError::Timeout(deadline));
    }
    server.signal("CONT");
    assert_eq!(ledger.drain(PATIENCE).await, 0);
    assert_eq!(ledger.stats().lost_settlements, 0);
    // Behind them on the same connection, so they are through.
    let last = granted_in_time(&store, &limit).await;
    store.settle(&last.release()).await.unwrap();
    assert_eq!(seen(&server, &limit).await, (30, 0));
}

/// F4.
#[tokio::test]
async fn a_slow_network_is_waited_for_until_the_deadline_and_leaves_nothing_held_beyond_it() {
    let (server, proxy) = behind_a_proxy().await;
    let limit = tokens(1 << 40);
    let patient = RedisStore::connect(&proxy.url(), RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE });
    let patient = patient.unwrap();
    for milliseconds in [5, 50, 500] {
        proxy.turn(Weather::Slow(Duration::from_millis(milliseconds)));
        let request = granted_in_time(&patient, &limit).await;
        patient.settle(&settlement(&request, &[30])).await.unwrap();
    }
    assert_eq!(seen(&server, &limit).await, (90, 0));

    let deadline = Duration::from_millis(100);
    let hasty = RedisStore::connect(&proxy.url(), RedisOptions { deadline, settle_deadline: PATIENCE }).unwrap();
    proxy.turn(Weather::Fine);
    let request = granted_in_time(&hasty, &limit).await;
    hasty.settle(&settlement(&request, &[30])).await.unwrap();
    proxy.turn(Weather::Slow(Duration::from_millis(500)));
    let late = super::request(vec![hold(&limit, "caller", 40)]);
    assert_eq!(hasty.reserve(&late).await, Err(StoreError::Timeout(deadline)));
    // It was sent before its release, and arrives after it or before: either way nobody holds anything.
    hasty.settle(&late.release()).await.unwrap();
    until(async || seen(&server, &limit).await == (120, 0)).await;
}

/// F5.
#[tokio::test]
async fn a_connection_that_is_cut_in_an_answer_doubles_nothing_and_loses_nothing() {
    let (server, proxy) = behind_a_proxy().await;
    let options = RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE };
    let (store, limit) = (RedisStore::connect(&proxy.url(), options).unwrap(), tokens(1 << 40));
    let running = granted_in_time(&store, &limit).await;

    proxy.turn(Weather::CutsNextAnswer);
    let cut = request(vec![hold(&limit, "caller", 50)]);
    let answer = store.reserve(&cut).await;
    assert!(matches!(answer, Err(StoreError::Failed(_))), "it may have been executed, and it was: {answer:?}");
    assert_eq!(proxy.weather(), Weather::Fine);
    assert_eq!(seen(&server, &limit).await, (0, 90));
    until(async || store.settle(&cut.release()).await.is_ok()).await;
    assert_eq!(seen(&server, &limit).await, (0, 40));

    proxy.turn(Weather::CutsNextAnswer);
    let answer = store.settle(&settlement(&running, &[30])).await;
    assert!(matches!(answer, Err(StoreError::Failed(_))), "{answer:?}");
    assert_eq!(seen(&server, &limit).await, (30, 0));
    until(async || store.settle(&settlement(&running, &[30])).await.is_ok()).await;
    assert_eq!(seen(&server, &limit).await, (30, 0));
}

/// F6.
#[tokio::test]
async fn scripts_that_are_forgotten_while_they_are_used_lose_nothing() {
    const CALLERS: usize = 16;
    const CALLS: usize = 25;
    let server = RedisServer::start().await;
    let (stores, limit) = ([connect(&server), connect(&server)], tokens(1 << 40));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (store, limit) = (stores[caller % 2].clone(), Arc::clone(&limit));
        callers.spawn(async move {
            for _ in 0..CALLS {
                let request = request(vec![hold(&limit, "caller", 40)]);
                store.reserve(&request).await.unwrap();
                store.grow(&renewal(&request)).await.unwrap();
                store.settle(&settlement(&request, &[30])).await.unwrap();
            }
        });
    }
    let mut connection = server.connection().await;
    while !callers.is_empty() {
        say(&mut connection, "SCRIPT FLUSH").await;
        while let Some(ended) = callers.try_join_next() {
            ended.unwrap();
        }
    }
    let calls = u64::try_from(CALLERS * CALLS).unwrap();
    assert_eq!(seen(&server, &limit).await, (calls * 30, 0));
    // Each of the three scripts was sent more often than a server that forgets nothing needs it from two sidecars.
    assert!(times_called(&mut connection, "eval").await > 6);
}

/// F9.
#[tokio::test]
async fn what_was_used_comes_back_when_everything_was_evicted_to_make_room() {
    let server = RedisServer::start().await;
    let (store, limit) = (connect(&server), tokens(300));
    let (settled, running) = (granted_in_time(&store, &limit).await, granted_in_time(&store, &limit).await);
    store.settle(&settlement(&settled, &[30])).await.unwrap();
    let mut connection = server.connection().await;
    say(&mut connection, "CONFIG SET maxmemory-policy allkeys-lru maxmemory 3mb").await;
    let fill = "for i = 1, 500 do redis.call('SET', ARGV[1] .. ':' .. i, string.rep('x', 1000)) end";
    let mut round = 0;
    until(async || {
        round += 1;
        let () = ::redis::cmd("EVAL").arg(fill).arg(0).arg(round).query_async(&mut connection).await.unwrap();
        let left: Vec<String> = ::redis::cmd("KEYS").arg("att1:*").query_async(&mut connection).await.unwrap();
        left.is_empty()
    })
    .await;
    // Or what comes back may be evicted again before it is looked at.
    say(&mut connection, "CONFIG SET maxmemory 0").await;
    let next = granted_in_time(&store, &limit).await;
    assert_eq!(seen(&server, &limit).await, (30, 40), "the hold of the running one is lost until it is renewed");
    store.grow(&renewal(&running)).await.unwrap();
    assert_eq!(seen(&server, &limit).await, (30, 80));
    store.settle(&settlement(&running, &[35])).await.unwrap();
    store.settle(&settlement(&next, &[5])).await.unwrap();
    assert_eq!(seen(&server, &limit).await, (70, 0));
}

/// F12.
#[tokio::test]
async fn a_clock_that_jumps_ahead_ends_leases_and_the_next_renewal_takes_them_again() {
    let (bed, limit) = (Bed::redis().await, tokens(300));
    let running = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    bed.advance(CLOCK_ERROR).await;
    assert_eq!(bed.peek(&running.holds[0]).await, (0, 0));
    bed.renew(&running).await;
    assert_eq!(bed.peek(&running.holds[0]).await, (0, 40));
    bed.settle(&settlement(&running, &[30])).await;
    assert_eq!(bed.peek(&running.holds[0]).await, (30, 0));
}

/// F12.
#[tokio::test]
async fn a_clock_that_is_set_back_charges_once_and_frees_what_the_dead_held_so_much_later() {
    let (bed, limit) = (Bed::redis().await, tokens(300));
    let ended = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    let of_the_dead = bed.granted(vec![hold(&limit, "caller", 50)]).await;
    bed.settle(&settlement(&ended, &[30])).await;
    bed.set_clock_back(CLOCK_ERROR).await;
    bed.settle(&settlement(&ended, &[30])).await;
    assert_eq!(bed.peek(&of_the_dead.holds[0]).await, (30, 50));
    bed.advance(CLOCK_ERROR).await;
    assert_eq!(bed.peek(&of_the_dead.holds[0]).await, (30, 50));
    bed.advance(LEASE).await;
    assert_eq!(bed.peek(&of_the_dead.holds[0]).await, (30, 0));
}

/// F16.
#[tokio::test]
async fn sidecars_of_two_versions_share_a_limit_and_end_what_the_other_began() {
    let server = RedisServer::start().await;
    let (old, new) = (connect(&server), connect(&server));
    let limit = Arc::new(Limit { mode: Mode::Strict, ..Limit::clone(&tokens(300)) });
    let mut running = Vec::new();
    for round in 0..10 {
        let request = request(vec![hold(&limit, "caller", 40)]);
        let of_old = round % 2 == 0;
        let answer = if of_old { old.reserve(&request).await } else { new.reserve_as_another_version(&request).await };
        if matches!(answer.unwrap(), Admission::Granted { .. }) {
            running.push((of_old, request));
        }
    }
    assert_eq!(running.len(), 7, "no more than 7 times 40 fit into 300");
    assert_eq!(seen(&server, &limit).await, (0, 280));
    for (of_old, request) in &running {
        let settlement = settlement(request, &[30]);
        if *of_old {
            new.settle_as_another_version(&settlement).await
        } else {
            old.settle(&settlement).await.map(drop)
        }
        .unwrap();
    }
    assert_eq!(seen(&server, &limit).await, (210, 0));
    // Redis knows them as two, and neither drives the other out: each was sent once.
    assert_eq!(times_called(&mut server.connection().await, "eval").await, 5, "twice two, and the one that looks");
}

/// F16.
#[tokio::test]
async fn a_counter_that_another_version_wrote_begins_anew_and_harms_nobody() {
    let server = RedisServer::start().await;
    let (store, limit) = (connect(&server), tokens(300));
    let request = granted_in_time(&store, &limit).await;
    store.settle(&settlement(&request, &[30])).await.unwrap();
    let mut connection = server.connection().await;
    let keys: Vec<String> = ::redis::cmd("KEYS").arg("att1:*").query_async(&mut connection).await.unwrap();
    let counter = keys.iter().find(|key| !key.contains(":settled:") && !key.ends_with(":leases")).unwrap();
    say(&mut connection, &format!("SET {counter} 28-bytes-of-another-version PX 60000")).await;
    let fresh = connect(&server);
    assert_eq!(seen(&server, &limit).await, (0, 0));
    let request = granted_in_time(&fresh, &limit).await;
    fresh.settle(&settlement(&request, &[20])).await.unwrap();
    assert_eq!(seen(&server, &limit).await, (20, 0));
}

/// F17.
#[tokio::test]
async fn a_wrong_password_is_told_and_a_mended_one_is_enough() {
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    say(&mut connection, "CONFIG SET requirepass right").await;
    let url = format!("{}?pass=wrong", server.url());
    let store = RedisStore::connect(&url, RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE }).unwrap();
    let limit = tokens(300);
    let answer = store.reserve(&request(vec![hold(&limit, "caller", 40)])).await;
    let Err(StoreError::Unreachable(reason)) = answer else { panic!("{answer:?}") };
    assert!(reason.contains("WRONGPASS") || reason.to_lowercase().contains("password"), "{reason}");
    assert!(!reason.contains("right"), "{reason}");
    let mut connection = ::redis::Client::open(format!("{}?pass=right", server.url()))
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    ask(&mut connection, "CONFIG SET requirepass wrong").await.unwrap();
    granted_in_time(&store, &limit).await;
}
