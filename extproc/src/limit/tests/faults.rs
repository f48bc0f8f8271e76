//! What a network, a restart, another version and a password can do to a store. (What Redis loses is in `floors`, what outages
//! do to limits in `tests/tests/blackbox/outages.rs`.)

use super::bed::{ERA, connect};
use super::proxy::{Proxy, Weather};
use super::redis_server::{PATIENCE, RedisServer, ask, say, until};
use super::*;

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
