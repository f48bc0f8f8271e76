//! What a Redis has lost comes back from what the sidecars have seen.

use ::redis;

use super::bed::{Bed, ERA, connect};
use super::redis_server::{PATIENCE, RedisServer};
use super::*;

fn tokens(window: Window) -> Arc<Limit> {
    Arc::new(Limit { window, ..limit("tokens", 300, Mode::Soft) })
}

fn fixed() -> Arc<Limit> {
    tokens(Window::Fixed(ERA))
}

async fn charge(store: &RedisStore, limit: &Arc<Limit>, used: u64) {
    let request = request(vec![hold(limit, "caller", used)]);
    assert!(matches!(store.reserve(&request).await.unwrap(), Admission::Granted { .. }));
    store.settle(&settlement(&request, &[used])).await.unwrap();
}

async fn settled(store: &RedisStore, limit: &Arc<Limit>) -> u64 {
    store.peek(&[hold(limit, "caller", 0)]).await.unwrap()[0].settled
}

/// As after `kill -9`: the same place, and nothing there. The stores connect anew.
async fn lose_everything(server: &mut RedisServer, stores: &[&RedisStore], limit: &Arc<Limit>) {
    server.kill();
    server.restart().await;
    for store in stores {
        let started = std::time::Instant::now();
        let elsewhere = [hold(limit, "somebody else", 0)];
        while store.peek(&elsewhere).await.is_err() {
            assert!(started.elapsed() < PATIENCE, "it did not recover");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// F1.
#[tokio::test]
async fn use_comes_back_with_the_first_request_after_an_empty_restart() {
    let mut server = RedisServer::start().await;
    let (store, limit) = (connect(&server), fixed());
    charge(&store, &limit, 300).await;
    lose_everything(&mut server, &[&store], &limit).await;
    let refused = store.reserve(&request(vec![hold(&limit, "caller", 1)])).await.unwrap();
    assert_eq!(refused.states()[0].settled, 300);
    assert!(matches!(refused, Admission::Refused { by: 0, .. }));
    // For a sidecar that has seen nothing, too: even though that request was refused.
    assert_eq!(settled(&connect(&server), &limit).await, 300);
}

#[tokio::test]
async fn what_is_settled_first_after_a_loss_comes_on_top() {
    let mut server = RedisServer::start().await;
    let (store, limit) = (connect(&server), fixed());
    charge(&store, &limit, 200).await;
    let running = request(vec![hold(&limit, "caller", 40)]);
    store.reserve(&running).await.unwrap();
    lose_everything(&mut server, &[&store], &limit).await;
    store.settle(&settlement(&running, &[30])).await.unwrap();
    assert_eq!(settled(&connect(&server), &limit).await, 230);
}

#[tokio::test]
async fn the_sidecar_that_saw_most_brings_most_back() {
    let mut server = RedisServer::start().await;
    let (early, late, limit) = (connect(&server), connect(&server), fixed());
    charge(&early, &limit, 100).await;
    charge(&late, &limit, 100).await;
    lose_everything(&mut server, &[&early, &late], &limit).await;
    assert_eq!(settled(&early, &limit).await, 100);
    charge(&late, &limit, 0).await;
    assert_eq!(settled(&early, &limit).await, 200);
}

/// What one sidecar charges before another has brought back what it saw comes on top of that.
#[tokio::test]
async fn no_charge_is_lost_whichever_sidecar_comes_first_after_a_loss() {
    let mut server = RedisServer::start().await;
    let (early, late, limit) = (connect(&server), connect(&server), fixed());
    charge(&early, &limit, 20).await;
    charge(&late, &limit, 50).await;
    lose_everything(&mut server, &[&early, &late], &limit).await;
    charge(&early, &limit, 7).await;
    charge(&late, &limit, 3).await;
    assert_eq!(settled(&connect(&server), &limit).await, 80);
    // A second loss, before the other sidecar has seen what the first one saw last.
    charge(&early, &limit, 11).await;
    lose_everything(&mut server, &[&early, &late], &limit).await;
    charge(&late, &limit, 5).await;
    charge(&early, &limit, 2).await;
    assert_eq!(settled(&connect(&server), &limit).await, 98);
}

/// Redis loses everything, or one counter, or goes back to an earlier state, again and again; four sidecars go on charging.
#[tokio::test]
async fn every_token_of_four_sidecars_is_charged_over_many_losses() {
    let server = RedisServer::start().await;
    let sidecars: Vec<RedisStore> = (0..4).map(|_| connect(&server)).collect();
    let limit = Arc::new(Limit { amount: 1 << 40, ..Limit::clone(&fixed()) });
    let mut random = 7_u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut charged = 0;
    for loss in 0..40 {
        // Each of them comes at least once between two losses, in any order: what only one had seen of a life but the last is gone.
        let mut still_to_come: Vec<usize> = (0..4).collect();
        while !still_to_come.is_empty() {
            let (sidecar, used) = (draw(4) as usize, draw(1_000));
            charge(&sidecars[sidecar], &limit, used).await;
            still_to_come.retain(|other| *other != sidecar);
            charged += used;
        }
        match loss % 2 {
            0 => flush(&server).await,
            _ => assert_eq!(delete(&server, &format!("att1:*:f{}:*", ERA.as_millis())).await, 1),
        }
    }
    for sidecar in &sidecars {
        charge(sidecar, &limit, 0).await;
    }
    assert_eq!(settled(&connect(&server), &limit).await, charged);
}

/// A failover to a replica that lags, or a restart with an older snapshot.
#[tokio::test]
async fn what_a_redis_that_went_back_has_forgotten_comes_back_and_what_is_charged_then_comes_on_top() {
    let server = RedisServer::start().await;
    let (ahead, behind, limit) = (connect(&server), connect(&server), fixed());
    charge(&behind, &limit, 100).await;
    let earlier = dump(&server).await;
    charge(&behind, &limit, 20).await;
    charge(&ahead, &limit, 30).await;
    restore(&server, &earlier).await;
    assert_eq!(settled(&connect(&server), &limit).await, 100);
    charge(&behind, &limit, 5).await;
    charge(&ahead, &limit, 7).await;
    assert_eq!(settled(&connect(&server), &limit).await, 162);
}

/// As the version before counters had lives wrote them.
#[tokio::test]
async fn a_counter_of_the_former_version_is_read() {
    let server = RedisServer::start().await;
    let (store, limit) = (connect(&server), fixed());
    charge(&store, &limit, 100).await;
    for (key, value) in dump(&server).await {
        let mut connection = server.connection().await;
        let former = [&value[..8], &value[20..]].concat();
        let () = redis::cmd("SET").arg(key).arg(former).query_async(&mut connection).await.unwrap();
    }
    let new = connect(&server);
    charge(&new, &limit, 20).await;
    assert_eq!(settled(&new, &limit).await, 120);
    charge(&store, &limit, 3).await;
    assert_eq!(settled(&new, &limit).await, 123);
}

#[tokio::test]
async fn a_sliding_window_brings_back_both_of_its_buckets() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, store } = &bed else { unreachable!() };
    let limit = tokens(Window::Sliding(ERA));
    charge(store, &limit, 100).await;
    bed.advance(ERA).await;
    charge(store, &limit, 20).await;
    flush(server).await;
    let state = bed.state(&hold(&limit, "caller", 0)).await;
    assert_eq!((state.settled, state.previous), (20, 100));
}

#[tokio::test]
async fn a_counter_that_was_evicted_comes_back() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, store } = &bed else { unreachable!() };
    let limit = fixed();
    charge(store, &limit, 300).await;
    let evicted = delete(server, &format!("att1:*:f{}:*", ERA.as_millis())).await;
    assert_eq!(evicted, 1);
    bed.refused(vec![hold(&limit, "caller", 1)]).await;
}

/// I6, after an eviction.
#[tokio::test]
async fn what_is_held_of_a_counter_that_is_gone_is_counted_anew_by_whoever_comes_first() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, store } = &bed else { unreachable!() };
    let strict = Arc::new(Limit { mode: Mode::Strict, ..Limit::clone(&fixed()) });
    let slots = Arc::new(Limit { quantity: Quantity::Concurrency, amount: 3, ..limit("slots", 3, Mode::Soft) });
    let slots = Arc::new(Limit { window: Window::Fixed(ERA), ..Limit::clone(&slots) });
    let holds = || vec![hold(&strict, "caller", 100), hold(&slots, "caller", 1)];
    let held = async || {
        let states = store.peek(&holds()).await.unwrap();
        [states[0].held, states[1].held]
    };
    let [first, second] = [bed.granted(holds()).await, bed.granted(holds()).await];
    let lose_counters = async || assert_eq!(delete(server, &format!("att1:*:f{}:*", ERA.as_millis())).await, 2);

    lose_counters().await;
    assert_eq!(held().await, [200, 2]);
    let (by, states) = bed.refused(vec![hold(&strict, "caller", 101)]).await;
    assert_eq!((by, states[0].held), (0, 200));
    // Of one counter the refusal has told, of the other nobody has asked yet.
    bed.renew(&first).await;
    assert_eq!(held().await, [200, 2]);

    lose_counters().await;
    bed.renew(&second).await;
    assert_eq!(held().await, [200, 2]);

    lose_counters().await;
    bed.settle(&settlement(&first, &[30, 0])).await;
    assert_eq!(held().await, [100, 1]);

    lose_counters().await;
    let third = bed.granted(holds()).await;
    assert_eq!(held().await, [200, 2]);
    for running in [second, third] {
        bed.settle(&settlement(&running, &[30, 0])).await;
    }
    assert_eq!(held().await, [0, 0]);
}

#[tokio::test]
async fn what_a_dead_sidecar_held_of_a_counter_that_is_gone_is_given_back_once() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, .. } = &bed else { unreachable!() };
    let limit = Arc::new(Limit { mode: Mode::Strict, ..Limit::clone(&fixed()) });
    bed.granted(vec![hold(&limit, "caller", 100)]).await;
    bed.advance(LEASE / 2).await;
    bed.granted(vec![hold(&limit, "caller", 60)]).await;
    bed.advance(LEASE * 3 / 4).await;
    assert_eq!(delete(server, &format!("att1:*:f{}:*", ERA.as_millis())).await, 1);
    let next = bed.granted(vec![hold(&limit, "caller", 240)]).await;
    assert_eq!(bed.peek(&next.holds[0]).await, (0, 300));
}

#[tokio::test]
async fn without_its_leases_a_counter_holds_nothing() {
    let bed = Bed::redis().await;
    let Bed::Redis { server, .. } = &bed else { unreachable!() };
    let limit = Arc::new(Limit { mode: Mode::Strict, ..Limit::clone(&fixed()) });
    let running = bed.granted(vec![hold(&limit, "caller", 300)]).await;
    assert_eq!(delete(server, "att1:*:leases").await, 1);
    let next = bed.granted(vec![hold(&limit, "caller", 200)]).await;
    assert_eq!(bed.peek(&next.holds[0]).await, (0, 200));
    bed.settle(&settlement(&running, &[50])).await;
    assert_eq!(bed.peek(&next.holds[0]).await, (50, 200));
    bed.settle(&settlement(&next, &[50])).await;
    assert_eq!(bed.peek(&next.holds[0]).await, (100, 0));
}

#[tokio::test]
async fn a_reset_is_not_undone_by_what_another_sidecar_has_seen() {
    let mut server = RedisServer::start().await;
    let (one, other, limit) = (connect(&server), connect(&server), fixed());
    charge(&one, &limit, 200).await;
    charge(&other, &limit, 50).await;
    one.reset(&[hold(&limit, "caller", 0)]).await.unwrap();
    assert_eq!(settled(&other, &limit).await, 0);
    charge(&one, &limit, 7).await;
    assert_eq!(settled(&other, &limit).await, 7);

    // Nor after a loss: whoever saw the reset knows better than who did not, in whichever order they come.
    let stale = connect(&server);
    let before = connect(&server);
    charge(&before, &limit, 100).await;
    one.reset(&[hold(&limit, "caller", 0)]).await.unwrap();
    assert_eq!(settled(&one, &limit).await, 0);
    lose_everything(&mut server, &[&before, &one, &stale], &limit).await;
    charge(&before, &limit, 1).await;
    charge(&one, &limit, 3).await;
    assert_eq!(settled(&stale, &limit).await, 3);
    assert_eq!(settled(&before, &limit).await, 3);
}

#[tokio::test]
async fn resetting_what_was_lost_wins_over_what_others_have_seen() {
    let mut server = RedisServer::start().await;
    let (other, limit) = (connect(&server), fixed());
    charge(&other, &limit, 200).await;
    lose_everything(&mut server, &[&other], &limit).await;
    let new = connect(&server);
    new.reset(&[hold(&limit, "caller", 0)]).await.unwrap();
    assert_eq!(settled(&other, &limit).await, 0);
}

/// F12.
#[tokio::test]
async fn a_sidecar_whose_clock_is_wrong_counts_in_the_same_day_as_all_others() {
    const DAY_MS: i64 = 86_400_000;
    let bed = Bed::redis().await;
    let Bed::Redis { server, store } = &bed else { unreachable!() };
    let calendar = Calendar { period: Period::Day, zone: bed.zone_where_no_day_ends_soon() };
    let limit = tokens(Window::Calendar(calendar));
    charge(store, &limit, 10).await;
    let expected = bed.state(&hold(&limit, "caller", 0)).await.bucket;
    for wrong_by in [90_000, -90_000, DAY_MS, -DAY_MS, 10 * DAY_MS, -10 * DAY_MS] {
        let wrong = connect(server);
        wrong.believe_it_is_later_by(wrong_by);
        let request = request(vec![hold(&limit, "caller", 10)]);
        let admission = wrong.reserve(&request).await.unwrap();
        assert!(matches!(admission, Admission::Granted { .. }));
        assert_eq!(admission.states()[0].bucket, expected, "{wrong_by}");
        wrong.believe_it_is_later_by(wrong_by);
        wrong.settle(&settlement(&request, &[10])).await.unwrap();
    }
    assert_eq!(bed.peek(&hold(&limit, "caller", 0)).await, (70, 0));
}

async fn flush(server: &RedisServer) {
    let () = redis::cmd("FLUSHALL").query_async(&mut server.connection().await).await.unwrap();
}

/// All counters, as they are stored.
async fn dump(server: &RedisServer) -> Vec<(String, Vec<u8>)> {
    let mut connection = server.connection().await;
    let pattern = format!("att1:*:f{}:*", ERA.as_millis());
    let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut connection).await.unwrap();
    let mut counters = Vec::new();
    for key in keys {
        let value = redis::cmd("GET").arg(&key).query_async(&mut connection).await.unwrap();
        counters.push((key, value));
    }
    assert!(!counters.is_empty());
    counters
}

async fn restore(server: &RedisServer, counters: &[(String, Vec<u8>)]) {
    for (key, value) in counters {
        let () = redis::cmd("SET").arg(key).arg(value).query_async(&mut server.connection().await).await.unwrap();
    }
}

/// Deletes the keys of a pattern, and says how many there were.
async fn delete(server: &RedisServer, pattern: &str) -> usize {
    let mut connection = server.connection().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut connection).await.unwrap();
    redis::cmd("DEL").arg(keys).query_async(&mut connection).await.unwrap()
}
