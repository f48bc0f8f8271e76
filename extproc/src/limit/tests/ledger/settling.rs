//! Settling off the request path.

use super::*;

#[tokio::test]
async fn in_memory_the_next_request_sees_what_was_settled_before_it() {
    let ledger = Ledger::memory();
    let limit = tokens(300);
    for earlier in 0..9 {
        let request = request(vec![hold(&limit, "caller", 40)]);
        let Decision::Granted(reservation) = ledger.reserve(&Arc::new(request.clone())).await.unwrap() else {
            panic!()
        };
        let (_, state) = reservation.standings().next().unwrap();
        assert_eq!((state.settled, state.held), (earlier * 30, 0));
        ledger.settle_detached(settlement(&request, &[30]));
    }
    assert_eq!(ledger.drain(Duration::ZERO).await, 0);
    assert_eq!(ledger.stats(), LedgerStats { reservations: Some(0), ..LedgerStats::default() });
}

#[tokio::test]
async fn in_redis_everything_is_settled_when_the_ledger_is_drained() {
    let server = RedisServer::start().await;
    let store = connect(&server);
    let ledger = Ledger::redis(store.clone(), shared_by(1));
    let limit = tokens(1 << 40);
    let mut last = None;
    for _ in 0..500 {
        let request = request(vec![hold(&limit, "caller", 40)]);
        ledger.reserve(&Arc::new(request.clone())).await.unwrap();
        ledger.settle_detached(settlement(&request, &[30]));
        last = Some(request);
    }
    assert_eq!(ledger.drain(PATIENCE).await, 0);
    assert_eq!(Bed::Redis { store, server }.peek(&last.unwrap().holds[0]).await, (15_000, 0));
    let stats = ledger.stats();
    assert_eq!((stats.errors, stats.lost_settlements, stats.queue_length), (0, 0, 0));
    assert!(stats.round_trips >= 1_000);
}

#[tokio::test]
async fn settlements_outlive_a_restart_of_redis() {
    let mut server = RedisServer::start().await;
    let store = connect(&server);
    let ledger = Ledger::redis(store.clone(), shared_by(1));
    let limit = tokens(300);
    let request = request(vec![hold(&limit, "caller", 40)]);
    ledger.reserve(&Arc::new(request.clone())).await.unwrap();
    server.kill();
    ledger.settle_detached(settlement(&request, &[30]));
    until("it was tried in vain", async || ledger.stats().errors > 0).await;
    assert_eq!(ledger.drain(Duration::ZERO).await, 1);
    server.restart().await;
    assert_eq!(ledger.drain(PATIENCE).await, 0);
    assert_eq!(ledger.stats().lost_settlements, 0);
    assert_eq!(Bed::Redis { store: connect(&server), server }.peek(&request.holds[0]).await, (30, 0));
}

#[tokio::test]
async fn what_does_not_fit_the_backlog_is_counted_as_lost() {
    let server = RedisServer::stopped();
    let ledger = ledger(&server);
    let request = request(vec![hold(&tokens(300), "caller", 40)]);
    // Nothing is taken from the queue in between: this test's runtime has one thread and does not yield it.
    for _ in 0..16 * 1024 + 3 {
        ledger.settle_detached(settlement(&request, &[30]));
    }
    let stats = ledger.stats();
    assert_eq!((stats.lost_settlements, stats.queue_length), (3, 16 * 1024));
}
