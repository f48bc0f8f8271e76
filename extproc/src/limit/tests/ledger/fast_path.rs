//! Refusals without a round trip.

use ::redis;
use ::redis::aio::MultiplexedConnection;

use super::*;

/// A limit that is used up, and known to be: the store has refused once.
async fn used_up(ledger: &Ledger, limit: &Arc<Limit>) -> Hold {
    let hold = hold(limit, "caller", limit.amount);
    charge(ledger, &hold).await;
    assert_eq!(ledger.drain(PATIENCE).await, 0);
    let refused = refused(ledger, vec![hold.clone()]).await;
    assert_eq!(refused.states[0].map(|state| state.settled), Some(limit.amount));
    hold
}

/// How often counters were read since the last time: every reservation does.
async fn reads(connection: &mut MultiplexedConnection) -> bool {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await.unwrap();
    let () = redis::cmd("CONFIG").arg("RESETSTAT").query_async(connection).await.unwrap();
    stats.contains("cmdstat_get:")
}

#[tokio::test]
async fn a_caller_with_nothing_left_is_refused_without_a_command() {
    let server = RedisServer::start().await;
    let (ledger, mut connection) = (ledger(&server), server.connection().await);
    let hold = used_up(&ledger, &tokens(300)).await;
    assert!(reads(&mut connection).await);
    for _ in 0..1_000 {
        let refused = refused(&ledger, vec![hold.clone()]).await;
        assert_eq!((refused.by, refused.states[0].map(|state| state.settled)), (0, Some(300)));
        assert!(refused.retry_after() > Duration::from_secs(1));
    }
    assert!(!reads(&mut connection).await);
    assert_eq!(ledger.stats().cached_refusals, 1_000);
}

#[tokio::test]
async fn a_raised_limit_acts_on_the_next_request() {
    let server = RedisServer::start().await;
    let ledger = ledger(&server);
    let hold = used_up(&ledger, &tokens(300)).await;
    granted(&ledger, vec![Hold { ceiling: 301, ..hold }]).await;
}

/// What it remembers is how the counter stood at the last refusal. Somebody may have used more since, at another sidecar, and who
/// fits his request to what is remembered must not be refused for good by it.
#[tokio::test]
async fn a_request_that_was_fitted_to_what_is_left_is_refused_by_the_store_alone() {
    let server = RedisServer::start().await;
    let (ledger, other) = (ledger(&server), self::ledger(&server));
    let strict = Limit { mode: Mode::Strict, ..Limit::clone(&tokens(300)) };
    let used = hold(&Arc::new(strict), "caller", 200);
    charge(&ledger, &used).await;
    assert_eq!(ledger.drain(PATIENCE).await, 0);
    let asked = |amount: u64, judge: Judge| {
        Arc::new(ReserveRequest { judge, ..request(vec![Hold { estimate: amount, ..used.clone() }]) })
    };
    let settled = |decision: Decision| match decision {
        Decision::Refused(refused) => refused.states[0].map(|state| state.settled),
        Decision::Granted(_) => None,
    };
    assert_eq!(settled(ledger.reserve(&asked(150, Judge::Anyone)).await.unwrap()), Some(200));
    charge(&other, &Hold { estimate: 40, ..used.clone() }).await;
    assert_eq!(other.drain(PATIENCE).await, 0);
    assert_eq!(settled(ledger.reserve(&asked(150, Judge::Anyone)).await.unwrap()), Some(200));
    assert_eq!(settled(ledger.reserve(&asked(150, Judge::Store)).await.unwrap()), Some(240));
    assert_eq!(settled(ledger.reserve(&asked(60, Judge::Store)).await.unwrap()), None);
}

#[tokio::test]
async fn after_a_reload_or_a_reset_the_store_is_asked_again() {
    let server = RedisServer::start().await;
    let (ledger, mut connection) = (ledger(&server), server.connection().await);
    let hold = used_up(&ledger, &tokens(300)).await;
    ledger.forget_denials();
    reads(&mut connection).await;
    refused(&ledger, vec![hold.clone()]).await;
    assert!(reads(&mut connection).await);

    ledger.reset(std::slice::from_ref(&hold)).await.unwrap();
    reads(&mut connection).await;
    ledger.reserve(&Arc::new(request(vec![hold]))).await.unwrap();
    assert!(reads(&mut connection).await);
    assert_eq!(ledger.stats().cached_refusals, 0);
}

#[tokio::test]
async fn what_requests_in_flight_hold_is_asked_for_each_time() {
    let server = RedisServer::start().await;
    let ledger = ledger(&server);
    let slots = Limit { quantity: Quantity::Concurrency, ..Limit::clone(&tokens(1)) };
    let hold = hold(&Arc::new(slots), "caller", 1);
    let running = granted(&ledger, vec![hold.clone()]).await;
    refused(&ledger, vec![hold.clone()]).await;
    ledger.settle_detached(end(&running, &[0]));
    assert_eq!(ledger.drain(PATIENCE).await, 0);
    granted(&ledger, vec![hold]).await;
}
