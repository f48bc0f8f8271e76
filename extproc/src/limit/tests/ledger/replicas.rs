//! How many sidecars share a limit while Redis is gone.

use super::*;

fn hold_of(amount: u64) -> Hold {
    let local = Limit { mode: Mode::Strict, on_store_error: OnStoreError::Local, ..Limit::clone(&tokens(amount)) };
    hold(&Arc::new(local), "caller", 10)
}

/// What a sidecar admits until it refuses, in tokens; all of it is in flight.
async fn admitted(ledger: &Ledger, hold: &Hold) -> u64 {
    let mut admitted = 0;
    while let Decision::Granted(_) = ledger.reserve(&Arc::new(request(vec![hold.clone()]))).await.unwrap() {
        admitted += hold.estimate;
    }
    admitted
}

/// One more, once it is counted.
async fn one_more(server: &RedisServer, sidecars: usize) -> Ledger {
    let ledger = ledger(server);
    until("it counted itself", async || ledger.stats().replicas == sidecars).await;
    ledger
}

#[tokio::test]
async fn sidecars_that_run_are_counted_and_share_a_limit_without_being_told_to() {
    let mut server = RedisServer::start().await;
    let first = ledger(&server);
    until("it was counted", async || first.stats().round_trips > 0).await;
    let _others = [one_more(&server, 2).await, one_more(&server, 3).await];
    let last = one_more(&server, 4).await;
    server.kill();
    assert_eq!(admitted(&last, &hold_of(400)).await, 100);
}

#[tokio::test]
async fn a_sidecar_that_drains_does_not_count_any_more() {
    let server = RedisServer::start().await;
    let first = ledger(&server);
    until("it was counted", async || first.stats().round_trips > 0).await;
    let _second = one_more(&server, 2).await;
    first.drain(PATIENCE).await;
    one_more(&server, 2).await;
}

/// F18.
#[tokio::test]
async fn no_more_is_admitted_than_the_limit_while_sidecars_come_and_go_in_an_outage() {
    let mut server = RedisServer::start().await;
    let start = || Ledger::redis(connect(&server), shared_by(4));
    let (hold, first) = (hold_of(400), start());
    let before = granted(&first, vec![Hold { estimate: 40, ..hold.clone() }]).await;
    first.settle_detached(end(&before, &[40]));
    assert_eq!(first.stats().replicas, 4);
    let later = [start(), start(), start()];
    server.kill();

    // The first knows what was used; those that have never seen it reckon with the whole limit.
    let mut total = 40 + admitted(&first, &hold).await;
    assert_eq!(total, 40 + (400 - 40) / 4);
    for ledger in &later {
        let share = admitted(ledger, &hold).await;
        assert_eq!(share, 400 / 4);
        total += share;
    }
    assert!(total <= 400 + 40, "{total}");
    // Two of them go. Nobody takes over what they had.
    let [second, ..] = later;
    assert_eq!((admitted(&first, &hold).await, admitted(&second, &hold).await), (0, 0));
}
