//! Without Redis: each limit's `onStoreError`, and what Redis is told when it is back.

use super::*;

fn when_redis_is_gone(id: &str, amount: u64, mode: Mode, on_store_error: OnStoreError) -> Arc<Limit> {
    Arc::new(Limit { window: Window::Fixed(ERA), on_store_error, ..limit(id, amount, mode) })
}

fn local(amount: u64) -> Hold {
    hold(&when_redis_is_gone("local", amount, Mode::Strict, OnStoreError::Local), "caller", 30)
}

/// How many requests are granted before one is refused; they are charged in full.
async fn admitted(ledger: &Ledger, hold: &Hold) -> u64 {
    let mut admitted = 0;
    while let Decision::Granted(reservation) = ledger.reserve(&Arc::new(request(vec![hold.clone()]))).await.unwrap() {
        assert_eq!(reservation.keeper(), Keeper::Sidecar);
        ledger.settle_detached(end(&reservation, &[hold.estimate]));
        admitted += 1;
    }
    admitted
}

async fn until_redis_is_used(ledger: &Ledger, hold: &Hold) {
    until("Redis was used again", async || {
        match ledger.reserve(&Arc::new(request(vec![hold.clone()]))).await.unwrap() {
            Decision::Granted(reservation) => {
                ledger.settle_detached(end(&reservation, &[0]));
                reservation.keeper() == Keeper::Store
            }
            Decision::Refused(_) => false,
        }
    })
    .await;
}

async fn charged(server: RedisServer, hold: &Hold) -> (u64, u64) {
    Bed::Redis { store: connect(&server), server }.peek(hold).await
}

#[tokio::test]
async fn a_local_limit_admits_this_sidecars_share_of_what_was_left() {
    let mut server = RedisServer::start().await;
    let ledger = Ledger::redis(connect(&server), shared_by(4));
    let hold = local(1_000);
    charge(&ledger, &Hold { estimate: 100, ..hold.clone() }).await;
    server.kill();
    let first = granted(&ledger, vec![hold.clone()]).await;
    assert_eq!(first.keeper(), Keeper::Sidecar);
    let headers = first.headers();
    // 900 were left, a quarter of them is ours.
    assert!(headers.contains(&("x-ratelimit-limit-tokens", "1000".to_owned())), "{headers:?}");
    assert!(headers.contains(&("x-ratelimit-remaining-tokens", "225".to_owned())), "{headers:?}");
    ledger.settle_detached(end(&first, &[30]));
    assert_eq!(admitted(&ledger, &hold).await, 225 / 30 - 1);

    let refused = refused(&ledger, vec![hold.clone()]).await;
    assert_eq!(refused.states[0].map(|state| state.settled), Some(1_000 - 225 + 210));
    assert!(refused.retry_after() > Duration::from_secs(86_400));
    let decisions = ledger.stats().degraded;
    assert_eq!((decisions.granted, decisions.refused, decisions.failed), (7, 2, 0));
    assert_eq!(ledger.stats().state, StoreState::Degraded);
}

#[tokio::test]
async fn requests_are_admitted_or_failed_as_their_limits_say_and_all_of_them_together() {
    let mut server = RedisServer::start().await;
    let ledger = ledger(&server);
    let limit = |id, on_store_error| hold(&when_redis_is_gone(id, 30, Mode::Strict, on_store_error), "caller", 30);
    let [local, allow, deny] =
        [("local", OnStoreError::Local), ("allow", OnStoreError::Allow), ("deny", OnStoreError::Deny)]
            .map(|(id, on_store_error)| limit(id, on_store_error));
    until_redis_is_used(&ledger, &local).await;
    server.kill();

    for _ in 0..3 {
        let failed = ledger.reserve(&Arc::new(request(vec![local.clone(), deny.clone()]))).await;
        assert!(failed.is_err());
        assert_eq!(granted(&ledger, vec![allow.clone()]).await.standings().count(), 0);
    }
    let shadow = Limit { enforcement: Enforcement::Shadow, ..Limit::clone(&deny.limit) };
    granted(&ledger, vec![hold(&Arc::new(shadow), "caller", 30)]).await;
    // What failed has held nothing of the local limit.
    let reservation = granted(&ledger, vec![allow.clone(), local.clone()]).await;
    assert_eq!(reservation.standings().map(|(hold, _)| &*hold.limit.id).collect::<Vec<_>>(), ["local"]);
    let refused = refused(&ledger, vec![allow, local]).await;
    assert_eq!((refused.by, refused.states[0], refused.states[1].map(|state| state.held)), (1, None, Some(30)));
}

#[tokio::test]
async fn what_was_used_meanwhile_is_charged_when_redis_is_back_and_each_outage_begins_afresh() {
    let mut server = RedisServer::start().await;
    let ledger = ledger(&server);
    let hold = local(300);
    until_redis_is_used(&ledger, &hold).await;
    for outage in 1..=2 {
        server.kill();
        let long = granted(&ledger, vec![Hold { estimate: 10, ..hold.clone() }]).await;
        let short = granted(&ledger, vec![Hold { estimate: 10, ..hold.clone() }]).await;
        ledger.settle_detached(end(&short, &[100]));
        server.restart().await;
        until_redis_is_used(&ledger, &hold).await;
        ledger.settle_detached(end(&long, &[5]));
        until("Redis was told", async || ledger.stats().queue_length == 0).await;
        let store = connect(&server);
        let states = store.peek(std::slice::from_ref(&hold)).await.unwrap();
        if let Some(state) = states.first() {
            assert!(state.used() >= 105 && state.held == 0, "{outage}: {state:?}");
        }
    }
    assert_eq!(ledger.stats().lost_settlements, 0);
}

#[tokio::test]
async fn slots_are_shared_out_and_given_back() {
    let mut server = RedisServer::start().await;
    let ledger = Ledger::redis(connect(&server), shared_by(4));
    let slots = Limit { quantity: Quantity::Concurrency, ..Limit::clone(&local(8).limit) };
    let slot = hold(&Arc::new(slots), "caller", 1);
    // These two are Redis's: what they hold is no use of ours.
    let _running = [granted(&ledger, vec![slot.clone()]).await, granted(&ledger, vec![slot.clone()]).await];
    server.kill();
    let first = granted(&ledger, vec![slot.clone()]).await;
    granted(&ledger, vec![slot.clone()]).await;
    let refused = refused(&ledger, vec![slot.clone()]).await;
    assert_eq!(refused.retry_after(), Duration::from_secs(1));
    ledger.settle_detached(end(&first, &[0]));
    granted(&ledger, vec![slot]).await;
}

#[tokio::test]
async fn what_was_admitted_here_grows_here_and_what_redis_keeps_just_goes_on() {
    let mut server = RedisServer::start().await;
    let ledger = ledger(&server);
    let capped = Limit { cap: Cap::Capped, ..Limit::clone(&local(300).limit) };
    let hold = hold(&Arc::new(capped), "caller", 30);
    let mut theirs = granted(&ledger, vec![hold.clone()]).await;
    server.kill();
    let mut ours = granted(&ledger, vec![hold.clone()]).await;
    // 270 were left.
    for (tokens, outcome) in [(100, Grown::Granted), (0, Grown::Granted), (200, Grown::Refused)] {
        let growth = ours.growth(tokens);
        let answer = ledger.grow(&growth).await;
        assert_eq!(ours.note(&growth, &answer), outcome);
        let state = answer.unwrap().states()[0];
        assert_eq!(300 - state.used() - state.held, 270);
    }
    assert_eq!(ours.request().holds[0].estimate, 100);
    until("Redis is left alone", async || {
        ledger.reserve(&Arc::new(request(vec![hold.clone()]))).await.unwrap();
        ledger.stats().state == StoreState::Degraded
    })
    .await;
    let growth = theirs.growth(100);
    let answer = ledger.grow(&growth).await;
    assert!(matches!(answer, Err(StoreError::Unreachable(_))), "{answer:?}");
    assert_eq!(theirs.note(&growth, &answer), Grown::Unknown);
    assert!(theirs.settlement(&attache_proto::Usage::default()).doubt.is_none());
}

#[tokio::test]
async fn a_redis_that_hangs_costs_few_requests_its_deadline_and_what_it_was_asked_to_hold_is_given_back() {
    let server = RedisServer::start().await;
    let deadline = Duration::from_millis(100);
    let options = RedisOptions { deadline, ..RedisOptions::default() };
    let ledger = Ledger::redis(
        RedisStore::connect(&server.url(), options).unwrap(),
        SharedOptions { replicas: 1, probe_deadline: deadline },
    );
    let hold = local(1 << 40);
    until_redis_is_used(&ledger, &hold).await;
    until("Redis was told", async || ledger.stats().queue_length == 0).await;
    server.signal("STOP");
    for _ in 0..20 {
        let reservation = granted(&ledger, vec![hold.clone()]).await;
        assert_eq!(reservation.keeper(), Keeper::Sidecar);
        ledger.settle_detached(end(&reservation, &[30]));
    }
    assert_eq!(ledger.stats().state, StoreState::Degraded);
    server.signal("CONT");
    until_redis_is_used(&ledger, &hold).await;
    until("Redis was told", async || ledger.stats().queue_length == 0).await;
    assert_eq!(ledger.stats().lost_settlements, 0);
    assert_eq!(charged(server, &hold).await, (20 * 30, 0));
}

/// F15.
#[tokio::test]
async fn a_sidecar_that_starts_without_redis_serves_from_its_share() {
    let mut server = RedisServer::stopped();
    let ledger = Ledger::redis(connect(&server), shared_by(2));
    let hold = local(300);
    assert_eq!(admitted(&ledger, &hold).await, 150 / 30);
    server.restart().await;
    until_redis_is_used(&ledger, &hold).await;
    until("Redis was told", async || ledger.stats().queue_length == 0).await;
    assert_eq!(charged(server, &hold).await, (150, 0));
}

#[tokio::test]
async fn what_was_last_seen_of_a_counter_is_known_while_redis_does_not_tell() {
    let mut server = RedisServer::start().await;
    let ledger = ledger(&server);
    let hold = local(1_000);
    charge(&ledger, &Hold { estimate: 100, ..hold.clone() }).await;
    until("it was charged", async || ledger.stats().queue_length == 0).await;
    assert_eq!(ledger.unanswered(std::slice::from_ref(&hold)).lasting, None);
    server.kill();
    until("the outage was seen", async || ledger.stats().state == StoreState::Degraded).await;
    let unseen = Hold { counter: super::hold(&hold.limit, "somebody else", 0).counter, ..hold.clone() };
    let unanswered = ledger.unanswered(&[hold, unseen]);
    assert!(unanswered.lasting.is_some());
    let known: Vec<_> = unanswered.known.iter().map(|state| state.map(|state| (state.settled, state.held))).collect();
    assert_eq!(known, [Some((100, 0)), None]);
}

/// Whoever watches a sidecar at night sees it, though nobody asks.
#[tokio::test]
async fn that_redis_is_gone_and_back_is_seen_without_a_request() {
    let mut server = RedisServer::start().await;
    let ledger = ledger(&server);
    assert_eq!(ledger.stats().state, StoreState::Up);
    server.kill();
    until("the outage was seen", async || ledger.stats().state == StoreState::Degraded).await;
    server.restart().await;
    until("Redis was back", async || ledger.stats().state == StoreState::Up).await;
    assert_eq!(ledger.stats().degraded, DegradedDecisions::default());
}

/// A header's values are the client's: what Redis does not take of them, no limit lets through for it.
#[tokio::test]
async fn nobody_stands_in_for_a_redis_that_takes_no_more_counters_of_a_key() {
    let server = RedisServer::start_with(&["--maxmemory", "2mb"]).await;
    let ledger = ledger(&server);
    until("it is known how full Redis is", async || ledger.stats().memory.limit_bytes > 0).await;
    for on_store_error in [OnStoreError::Local, OnStoreError::Allow] {
        let per = vec![Dimension::Header("x-user".into())];
        let limit = Arc::new(Limit { per, on_store_error, ..Limit::clone(&tokens(300)) });
        let ask = async |value: usize| {
            let value = value.to_string();
            let header = |_: &str| Some(value.as_bytes());
            let subject = Subject { header: &header, ..nobody() };
            let asked = ReserveRequest::new([&limit], &subject, Estimate { input: 40, ..Estimate::default() });
            ledger.reserve(&Arc::new(asked)).await
        };
        let mut made = 0;
        let error = loop {
            match ask(made).await {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
            assert!(made < 4_096, "without end");
        };
        assert!(matches!(error, StoreError::NoRoom(_)), "{error:?}");
        for value in made..made + 10 {
            assert!(matches!(ask(value).await, Err(StoreError::NoRoom(_))));
        }
        assert!(matches!(ask(0).await, Ok(Decision::Granted(_))));
    }
    let stats = ledger.stats();
    assert_eq!((stats.state, stats.degraded), (StoreState::Up, DegradedDecisions::default()));
}
