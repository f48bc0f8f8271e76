//! What happens to Redis and to the way there, by the numbers of the specification (F1 to F17). Those of a failover and of a
//! cluster stand with sentinels and clusters, those of a sidecar with the ledger.

use std::fs;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use ::redis::{self};
use tokio::task::JoinSet;

use super::bed::connect;
use super::on_redis::{granted_again, keys, tokens};
use super::proxy::{Proxy, Weather};
use super::redis_server::{PATIENCE, RedisServer, say, until};
use super::*;

const PATIENT: RedisOptions = RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE };

/// A counter's (used, held).
pub(super) async fn standing(store: &RedisStore, hold: &Hold) -> (u64, u64) {
    let states = store.peek(std::slice::from_ref(hold)).await.unwrap();
    (states[0].used(), states[0].held)
}

async fn on_a_port() -> (RedisServer, Proxy) {
    let server = RedisServer::start_on_port(|_, _| Vec::new()).await;
    let proxy = Proxy::before(server.port()).await;
    (server, proxy)
}

/// F1: `kill -9`, and a start with nothing: scripts and counters are gone.
#[tokio::test]
async fn a_redis_that_dies_is_an_error_at_once_and_is_used_again_when_it_is_back() {
    let mut server = RedisServer::start().await;
    let store = connect(&server);
    let limit = tokens("soft", 300, Mode::Soft);
    let request = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    store.settle(&settlement(&request, &[30])).await.unwrap();
    let errors = store.errors();
    server.kill();
    // Until the end of the connection has been heard of, nobody can know whether a command arrived.
    until(async || matches!(store.reserve(&request).await, Err(StoreError::Unreachable(_)))).await;
    assert!(matches!(store.settle(&settlement(&request, &[30])).await, Err(StoreError::Unreachable(_))));
    assert!(store.errors() >= errors + 2);

    server.restart().await;
    let again = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    assert_eq!(standing(&store, &again.holds[0]).await, (30, 40), "this sidecar remembers what was used");
}

/// F2: a start with what was written to the append-only file.
#[tokio::test]
async fn a_redis_that_comes_back_with_its_file_has_lost_nothing() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let store = connect(&server);
    let limit = tokens("soft", 300, Mode::Soft);
    let settled = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    store.settle(&settlement(&settled, &[30])).await.unwrap();
    let running = granted_again(&store, vec![hold(&limit, "caller", 50)]).await;
    server.kill();
    server.restart().await;
    until(async || store.ping(PATIENCE).await.is_ok()).await;
    // Another sidecar, which remembers nothing.
    let another = connect(&server);
    assert_eq!(standing(&another, &running.holds[0]).await, (30, 50));
    store.settle(&settlement(&settled, &[30])).await.unwrap();
    store.settle(&settlement(&running, &[45])).await.unwrap();
    assert_eq!(standing(&another, &running.holds[0]).await, (75, 0), "the tombstone came back as well");
}

/// F3: it hangs; the kernel goes on accepting connections.
#[tokio::test]
async fn a_redis_that_hangs_is_a_timeout_at_the_deadline_and_is_used_again_when_it_goes_on() {
    let server = RedisServer::start().await;
    let options = RedisOptions { deadline: Duration::from_millis(200), settle_deadline: PATIENCE };
    let store = RedisStore::connect(&server.url(), options).unwrap();
    let limit = tokens("soft", 1 << 40, Mode::Soft);
    granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    server.signal("STOP");
    assert_eq!(
        store.reserve(&request(vec![hold(&limit, "caller", 40)])).await,
        Err(StoreError::Timeout(options.deadline))
    );
    // The connection is given up, and the next one hangs as well.
    let asking = async || store.reserve(&request(vec![hold(&limit, "caller", 40)])).await;
    until(async || matches!(asking().await, Err(StoreError::Unreachable(_)))).await;
    server.signal("CONT");
    granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
}

/// F4: a slow network.
#[tokio::test]
async fn a_slow_network_is_waited_for_until_the_deadline_and_what_came_too_late_is_given_back() {
    let (_server, proxy) = on_a_port().await;
    let hasty = RedisOptions { deadline: Duration::from_millis(20), settle_deadline: PATIENCE };
    let store = RedisStore::connect(&proxy.url(), hasty).unwrap();
    let patient = RedisStore::connect(&proxy.url(), PATIENT).unwrap();
    let limit = tokens("soft", 1_000, Mode::Soft);
    let holds = || vec![hold(&limit, "caller", 40)];
    granted_again(&patient, holds()).await;
    let first = granted_again(&store, holds()).await;
    patient.settle(&settlement(&first, &[30])).await.unwrap();

    proxy.turn(Weather::Slow(Duration::from_millis(5)));
    assert!(matches!(patient.reserve(&request(holds())).await, Ok(Admission::Granted { .. })));

    for latency in [50, 500] {
        proxy.turn(Weather::Slow(Duration::from_millis(latency)));
        let late = request(holds());
        assert_eq!(store.reserve(&late).await, Err(StoreError::Timeout(hasty.deadline)));
        // It is written all the same, but whoever gives it back need not wait for that.
        store.settle(&late.release()).await.unwrap();
    }
    proxy.turn(Weather::Fine);
    // Of those that were granted only two still hold.
    until(async || standing(&patient, &holds()[0]).await == (30, 80)).await;
}

/// F5: the connection is cut in the middle of the answer to a reservation.
#[tokio::test]
async fn a_reservation_whose_answer_is_cut_may_have_happened_and_can_be_given_back() {
    let (server, proxy) = on_a_port().await;
    let store = RedisStore::connect(&proxy.url(), PATIENT).unwrap();
    let limit = tokens("soft", 300, Mode::Soft);
    let first = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    store.settle(&settlement(&first, &[30])).await.unwrap();

    proxy.turn(Weather::CutsNextAnswer);
    let cut = request(vec![hold(&limit, "caller", 50)]);
    let answer = store.reserve(&cut).await;
    assert!(matches!(answer, Err(StoreError::Failed(_))), "{answer:?}");
    assert_eq!(proxy.weather(), Weather::Fine);
    let direct = connect(&server);
    assert_eq!(standing(&direct, &cut.holds[0]).await, (30, 50));
    store.settle(&cut.release()).await.unwrap();
    assert_eq!(standing(&direct, &cut.holds[0]).await, (30, 0));
    granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
}

/// F5: and to a settlement.
#[tokio::test]
async fn a_settlement_whose_answer_is_cut_is_settled_again_and_charged_once() {
    let (server, proxy) = on_a_port().await;
    let store = RedisStore::connect(&proxy.url(), PATIENT).unwrap();
    let limit = tokens("soft", 300, Mode::Soft);
    let request = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    proxy.turn(Weather::CutsNextAnswer);
    let settlement = settlement(&request, &[30]);
    let answer = store.settle(&settlement).await;
    assert!(matches!(answer, Err(StoreError::Failed(_))), "{answer:?}");
    let direct = connect(&server);
    assert_eq!(standing(&direct, &request.holds[0]).await, (30, 0), "it had happened");
    until(async || store.settle(&settlement).await.is_ok()).await;
    assert_eq!(standing(&direct, &request.holds[0]).await, (30, 0));
}

/// F6: scripts are forgotten again and again while they are used.
#[tokio::test]
async fn scripts_that_redis_has_forgotten_are_sent_again() {
    let server = RedisServer::start().await;
    let store = connect(&server);
    let limit = tokens("soft", 1 << 40, Mode::Soft);
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        let (store, limit) = (store.clone(), Arc::clone(&limit));
        callers.spawn(async move {
            for _ in 0..25 {
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
        tokio::task::yield_now().await;
    }
    assert_eq!(standing(&store, &hold(&limit, "caller", 0)).await, (16 * 25 * 30, 0));
}

/// F7: an access list without `SCRIPT`.
#[tokio::test]
async fn a_user_who_may_not_load_scripts_and_sees_only_our_keys_is_enough() {
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    let rules = "~att1:* +eval +evalsha +time +exists +get +set +ttl +pttl +pexpire +zadd +zrem +zrangebyscore";
    say(&mut connection, &format!("ACL SETUSER sidecar on >pass {rules}")).await;
    let url = format!("{}?user=sidecar&pass=pass", server.url());
    let store = RedisStore::connect(&url, PATIENT).unwrap();
    let limit = tokens("soft", 300, Mode::Soft);
    let request = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    store.grow(&renewal(&request)).await.unwrap();
    store.settle(&settlement(&request, &[30])).await.unwrap();
    assert_eq!(standing(&store, &request.holds[0]).await, (30, 0));
    store.reset(&request.holds).await.unwrap();
    assert_eq!(standing(&store, &request.holds[0]).await, (0, 0));
    assert_eq!(store.ping(PATIENCE).await, Ok(()));
    assert_eq!(store.sidecars("sidecar", PATIENCE).await, Ok(1));
}

/// F8: `maxmemory` is reached.
#[tokio::test]
async fn a_full_redis_refuses_a_reservation_whole_and_still_takes_settlements() {
    let server = RedisServer::start().await;
    let store = connect(&server);
    let limit = tokens("soft", 300, Mode::Soft);
    let running = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    let mut connection = server.connection().await;
    say(&mut connection, "CONFIG SET maxmemory 1").await;
    let before = keys(&mut connection).await;
    let refused = store.reserve(&request(vec![hold(&limit, "another", 40)])).await;
    assert!(matches!(&refused, Err(StoreError::Failed(reason)) if reason.contains("OOM")), "{refused:?}");
    assert_eq!(keys(&mut connection).await, before);
    store.grow(&renewal(&running)).await.unwrap();
    store.settle(&settlement(&running, &[30])).await.unwrap();
    say(&mut connection, "CONFIG SET maxmemory 0").await;
    assert_eq!(standing(&store, &running.holds[0]).await, (30, 0));
}

/// F9: counters are evicted to make room for something else.
#[tokio::test]
async fn what_was_used_by_an_evicted_counter_comes_back_with_the_next_request() {
    let server = RedisServer::start().await;
    let store = connect(&server);
    let limit = tokens("soft", 300, Mode::Soft);
    let request = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    store.settle(&settlement(&request, &[30])).await.unwrap();
    let mut connection = server.connection().await;
    say(&mut connection, "CONFIG SET maxmemory-policy allkeys-lru maxmemory 3mb").await;
    let fill = "for i = 1, 1000 do redis.call('SET', 'filler:' .. ARGV[1] .. ':' .. i, string.rep('x', 1000)) end";
    let mut round = 0;
    until(async || {
        round += 1;
        let _: () = redis::cmd("EVAL").arg(fill).arg(0).arg(round).query_async(&mut connection).await.unwrap();
        !keys(&mut connection).await.iter().any(|key| key.starts_with("att1:"))
    })
    .await;
    let again = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    assert_eq!(standing(&store, &again.holds[0]).await, (30, 40));
}

/// F10, without sentinels: the server that we know has become a replica.
#[tokio::test]
async fn a_primary_that_becomes_read_only_is_left_for_a_new_connection() {
    let server = RedisServer::start().await;
    let store = connect(&server);
    let limit = tokens("soft", 300, Mode::Soft);
    granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    let mut connection = server.connection().await;
    let clients = async |connection: &mut redis::aio::MultiplexedConnection| {
        let list: String = redis::cmd("CLIENT").arg("LIST").query_async(connection).await.unwrap();
        list.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect::<Vec<_>>()
    };
    let before = clients(&mut connection).await;
    say(&mut connection, "REPLICAOF 127.0.0.1 1").await;
    let refused = store.reserve(&request(vec![hold(&limit, "caller", 40)])).await;
    assert!(matches!(&refused, Err(StoreError::Unreachable(reason)) if reason.contains("READONLY")), "{refused:?}");
    say(&mut connection, "REPLICAOF NO ONE").await;
    granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    let after = clients(&mut connection).await;
    assert!(after.iter().any(|client| !before.contains(client)), "{before:?} {after:?}");
}

/// F15.
#[tokio::test]
async fn starting_without_redis_is_no_error() {
    let mut server = RedisServer::stopped();
    let store = connect(&server);
    let limit = tokens("soft", 300, Mode::Soft);
    let request = request(vec![hold(&limit, "caller", 40)]);
    let answer = store.reserve(&request).await;
    assert!(matches!(answer, Err(StoreError::Unreachable(_))), "{answer:?}");
    assert!(matches!(store.ping(PATIENCE).await, Err(StoreError::Unreachable(_))));
    server.restart().await;
    granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
}

/// F16: while sidecars are replaced one by one, two versions of a script are in use.
#[tokio::test]
async fn sidecars_of_two_versions_share_a_limit() {
    let server = RedisServer::start().await;
    let (old, new) = (connect(&server), connect(&server));
    let limit = tokens("strict", 300, Mode::Strict);
    let holds = || vec![hold(&limit, "caller", 40)];
    let mut granted = 0;
    for _ in 0..5 {
        for of_another_version in [false, true] {
            let request = request(holds());
            let answer = if of_another_version {
                new.reserve_as_another_version(&request).await
            } else {
                old.reserve(&request).await
            };
            granted += u64::from(matches!(answer.unwrap(), Admission::Granted { .. }));
        }
    }
    assert_eq!(granted, 7, "7 times 40 is all that fits into 300");
    assert_eq!(standing(&old, &holds()[0]).await, (0, 280));
}

/// F17: a wrong password, in the URL.
#[tokio::test]
async fn a_wrong_password_is_told_once_without_showing_it_and_redis_is_used_when_it_is_mended() {
    let (log, _guard) = captured_log();
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    say(&mut connection, "ACL SETUSER sidecar on >other ~att1:* +@all").await;
    let url = format!("{}?user=sidecar&pass=secret", server.url());
    let store = RedisStore::connect(&url, PATIENT).unwrap();
    let limit = tokens("soft", 300, Mode::Soft);
    let holds = || vec![hold(&limit, "caller", 40)];
    for _ in 0..10 {
        let answer = store.reserve(&request(holds())).await;
        assert!(matches!(&answer, Err(StoreError::Unreachable(reason)) if reason.contains("WRONGPASS")), "{answer:?}");
    }
    let refusals = async |connection: &mut redis::aio::MultiplexedConnection| {
        let log: Vec<redis::Value> = redis::cmd("ACL").arg("LOG").query_async(connection).await.unwrap();
        format!("{log:?}").contains("auth")
    };
    assert!(refusals(&mut connection).await);
    say(&mut connection, "ACL SETUSER sidecar >secret").await;
    granted_again(&store, holds()).await;
    let text = log.text();
    // One line for each of the two connections.
    assert_eq!(text.matches("Redis does not let this sidecar in").count(), 2, "{text}");
    assert!(text.contains("--redis-password-file") && !text.contains("secret"), "{text}");
}

/// F17: a wrong password in a file, which is mended there.
#[tokio::test]
async fn a_password_file_is_read_anew_for_every_connection() {
    let server = RedisServer::start_on_port(|_, _| Vec::new()).await;
    let mut connection = server.connection().await;
    say(&mut connection, "ACL SETUSER sidecar on >right ~att1:* +@all").await;
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    fs::write(&password, "wrong").unwrap();
    let target: RedisTarget = format!("redis://sidecar@127.0.0.1:{}", server.port()).parse().unwrap();
    let files = RedisFiles { password: Some(password.clone()), ..RedisFiles::default() };
    let store = RedisStore::new(target.with_files(files).unwrap(), PATIENT);
    let limit = tokens("soft", 300, Mode::Soft);
    let holds = || vec![hold(&limit, "caller", 40)];
    let answer = store.reserve(&request(holds())).await;
    assert!(matches!(&answer, Err(StoreError::Unreachable(reason)) if reason.contains("WRONGPASS")), "{answer:?}");
    fs::write(&password, "right\n").unwrap();
    granted_again(&store, holds()).await;
}

/// F17: a user who is let in, but may not do what scripts do.
#[tokio::test]
async fn a_user_who_may_too_little_is_told_once_what_is_missing_and_served_when_it_is_allowed() {
    let (log, _guard) = captured_log();
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    let limit = tokens("soft", 300, Mode::Soft);
    let holds = || vec![hold(&limit, "caller", 40)];
    say(&mut connection, "ACL SETUSER sidecar on >pass ~att1:* +get +set").await;
    let store = RedisStore::connect(&format!("{}?user=sidecar&pass=pass", server.url()), PATIENT).unwrap();
    for allowed in ["+get", "+eval +evalsha"] {
        say(&mut connection, &format!("ACL SETUSER sidecar {allowed}")).await;
        for _ in 0..3 {
            let answer = store.reserve(&request(holds())).await;
            assert!(matches!(answer, Err(StoreError::Failed(_))), "{answer:?}");
        }
    }
    say(&mut connection, "ACL SETUSER sidecar +@all").await;
    granted_again(&store, holds()).await;
    let text = log.text();
    assert_eq!(text.matches("access list does not allow").count(), 1, "{text}");
}

/// What is said while the guard lives, by tasks of this thread.
fn captured_log() -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    (log, tracing::subscriber::set_default(subscriber))
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
