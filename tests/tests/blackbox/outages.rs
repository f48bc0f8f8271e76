//! Limits while Redis is gone, and what a sidecar that ends, in good order or not, leaves behind.

use attache_tests::{Client, EventStream, Gateway, Signal, Stack, until};
use futures_util::future::join_all;
use redis::AsyncCommands as _;
use serde_json::json;

use crate::{
    documents::{key, limits, pool, route},
    limits::{WINDOW, chat, documents, settled},
    residue::Counters,
    verdict::{error, is, served},
};

async fn ledger_is_up(gateway: &Gateway) -> bool {
    gateway.sidecar.metrics().await.unwrap().sum("attache_ledger_up", &[]) == 1.0
}

async fn decided_alone(stack: &Stack, decision: &str) -> f64 {
    stack.sidecar_metrics().await.unwrap().sum("attache_ledger_degraded_decisions_total", &[("decision", decision)])
}

async fn counters(stack: &Stack) -> Counters {
    Counters::read(&mut stack.redis.as_ref().unwrap().connection().await.unwrap()).await
}

/// So many streams that will take seconds, each with its first events read.
async fn streams(client: &Client, count: usize, events: usize) -> Vec<EventStream> {
    let client = client.clone().with_header("x-sim-fault", "slow=25");
    let body = chat(9 + 300);
    let mut streams: Vec<_> =
        join_all((0..count).map(|_| client.stream_chat(&body))).await.into_iter().map(Result::unwrap).collect();
    for stream in &mut streams {
        assert_eq!(stream.status, 200);
        for _ in 0..events {
            stream.next().await.unwrap().unwrap();
        }
    }
    streams
}

#[tokio::test]
async fn without_redis_each_limit_says_what_becomes_of_requests_and_it_is_used_again_when_it_is_back() {
    let with = |name: &str, fields: &str| {
        let limit = format!("{{name: t, per: [key], limit: 3, {WINDOW}, cost: requests{fields}}}");
        route(name, name, "{name: pool}") + &limits(name, &limit)
    };
    let documents = pool()
        + &with("shared", "")
        + &with("allowed", ", onStoreError: allow")
        + &with("denied", ", onStoreError: deny")
        + &route("free", "free", "{name: pool}")
        + &key("a", "acme", "shared, allowed, denied, free");
    let mut stack = Stack::builder(documents).models(1).without_wasm().redis().start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    let ask = async |model: &str| client.chat(&json!({"model": model, "messages": []})).await.unwrap();
    until("Redis was used", async || ledger_is_up(&stack.gateway).await).await.unwrap();
    stack.redis.as_mut().unwrap().kill().await.unwrap();

    for left in ["3", "2", "1"] {
        let answer = ask("shared").await;
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining-requests")), (200, Some(left)));
    }
    let refused = ask("shared").await;
    assert_eq!((refused.status, refused.header("x-ratelimit-remaining-requests")), (429, Some("0")));
    for _ in 0..5 {
        let answer = ask("allowed").await;
        assert_eq!((answer.status, answer.header("x-ratelimit-limit-requests")), (200, None));
        let failed = ask("denied").await;
        assert_eq!(error(&failed), is(503, "server_error", None));
        assert_eq!(failed.header("retry-after"), Some("1"));
    }
    assert_eq!(ask("free").await.status, 200);
    assert!(!ledger_is_up(&stack.gateway).await);
    for (decision, requests) in [("granted", 8.0), ("refused", 1.0), ("failed", 5.0)] {
        assert_eq!(decided_alone(&stack, decision).await, requests, "{decision}");
    }

    stack.redis.as_mut().unwrap().restart().await.unwrap();
    until("Redis was used again", async || ask("denied").await.status == 200).await.unwrap();
    assert_eq!(settled(&stack).await, 3.0 + 5.0 + 1.0);
    assert_eq!(ask("shared").await.status, 429);
}

#[tokio::test]
async fn a_redis_that_hangs_is_no_error_for_any_client_and_is_told_everything_when_it_goes_on() {
    let documents = documents(&format!("{{name: t, per: [key], limit: 100000, {WINDOW}}}"));
    let stack = Stack::builder(documents).models(1).without_wasm().redis();
    let mut stack = stack.environment("ATTACHE_REDIS_TIMEOUT", "100ms").start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    until("Redis was used", async || {
        client.chat(&chat(29)).await.unwrap();
        settled(&stack).await > 0.0
    })
    .await
    .unwrap();
    let before = settled(&stack).await;

    stack.redis.as_mut().unwrap().signal(Signal::Stop).unwrap();
    for _ in 0..4 {
        let body = chat(29);
        let answers = join_all((0..10).map(|_| client.chat(&body))).await;
        assert!(answers.into_iter().all(|answer| answer.unwrap().status == 200));
    }
    assert!(!ledger_is_up(&stack.gateway).await);
    stack.redis.as_mut().unwrap().signal(Signal::Continue).unwrap();
    until("Redis was used again", async || ledger_is_up(&stack.gateway).await).await.unwrap();
    // What it was asked to hold while it hung has been given back.
    assert_eq!(settled(&stack).await, before + 40.0 * 29.0);
    assert_eq!(stack.sidecar_metrics().await.unwrap().sum("attache_store_lost_settlements_total", &[]), 0.0);
}

/// F13.
#[tokio::test]
async fn what_a_killed_sidecar_held_for_a_hundred_streams_is_free_again_when_their_leases_end() {
    let both = format!("{{name: c, per: [key], concurrency: 100}}, {{name: t, per: [key], limit: 1000000, {WINDOW}}}");
    let stack = Stack::builder(documents(&both)).models(1).without_wasm().sidecars(2).redis();
    let mut stack = stack.start().await.unwrap();
    let open = streams(&stack.client().with_key("sk-a"), 100, 1).await;
    assert_eq!(counters(&stack).await.leases, 100);
    stack.gateway.sidecar.kill().await.unwrap();
    let other = stack.peers[0].client().with_key("sk-a");
    assert_eq!(error(&other.chat(&chat(29)).await.unwrap()), is(429, "requests", "rate_limit_exceeded"));
    // Their answers go on, uncounted.
    for stream in open {
        assert!(stream.rest().await.is_done());
    }

    // Half a minute later.
    let mut connection = stack.redis.as_ref().unwrap().connection().await.unwrap();
    let sets: Vec<String> = connection.keys("att1:*:leases").await.unwrap();
    for set in sets {
        for (lease, _) in connection.zrange_withscores::<_, Vec<(String, f64)>>(&set, 0, -1).await.unwrap() {
            let _: f64 = connection.zincr(&set, lease, -30_000).await.unwrap();
        }
    }
    // Each request gives back some of it; it does not have to give back all.
    let mut requests = 0;
    until("a request was admitted", async || {
        requests += 1;
        other.chat(&chat(29)).await.unwrap().status == 200
    })
    .await
    .unwrap();
    until("nothing was held any more", async || {
        requests += 1;
        other.chat(&chat(29)).await.unwrap();
        counters(&stack).await.leases <= 1
    })
    .await
    .unwrap();
    assert!(requests <= 100, "{requests}");
    until("nothing was held any more", async || counters(&stack).await.held == 0.0).await.unwrap();
}

/// F14.
#[tokio::test]
async fn a_drain_that_runs_out_of_time_charges_what_was_delivered() {
    let documents = documents(&format!("{{name: t, per: [key], limit: 1000000, {WINDOW}}}"));
    let stack = Stack::builder(documents).models(1).without_wasm().redis();
    let mut stack = stack.environment("ATTACHE_DRAIN_TIMEOUT", "500ms").start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    // Which are over before anybody is cut, and which are not.
    client.chat(&chat(29)).await.unwrap();
    let open = streams(&client, 20, 10).await;
    assert!(stack.gateway.sidecar.terminate().await.unwrap().success());

    let left = counters(&stack).await;
    assert_eq!((left.held, left.leases), (0.0, 0));
    // The first event has no content, and the prompt is estimated: 9 tokens by the model server's rule.
    let (least, most) = (29.0 + 20.0 * 9.0, 29.0 + 20.0 * (300.0 + 20.0));
    assert!((least..most).contains(&left.settled), "{left:?}");
    let log = stack.gateway.sidecar.log();
    assert!(log.contains("requests are cut") && !log.contains("are lost"), "{log}");
    // The clients do not notice.
    for stream in open {
        assert!(stream.rest().await.is_done());
    }
}

#[tokio::test]
async fn a_sidecar_that_is_to_go_serves_until_those_who_ask_for_its_health_have_heard_of_it() {
    let documents = pool() + &route("open", "m", "{name: pool}");
    // So long that the test ends first.
    let stack = Stack::builder(documents).models(1).without_wasm().environment("ATTACHE_DRAIN_DELAY", "5m");
    let mut stack = stack.start().await.unwrap();
    stack.gateway.sidecar.page("/readyz").await.unwrap();
    stack.gateway.sidecar.signal(Signal::Terminate).unwrap();
    until("it says so", async || stack.gateway.sidecar.page("/readyz").await.is_err()).await.unwrap();
    assert_eq!(stack.client().chat(&json!({"model": "m", "messages": []})).await.unwrap().status, 200);
}

/// F15.
#[tokio::test]
async fn a_sidecar_that_starts_without_redis_serves_and_charges_when_redis_comes() {
    let documents = documents(&format!("{{name: t, per: [key], limit: 1000, {WINDOW}}}"));
    let mut stack = Stack::builder(documents).models(1).without_wasm().redis().start().await.unwrap();
    stack.redis.as_mut().unwrap().kill().await.unwrap();
    stack.gateway.sidecar.restart().await.unwrap();
    let client = stack.client().with_key("sk-a");
    let mut remaining = Vec::new();
    for _ in 0..10 {
        let answer = client.chat(&chat(29)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        remaining.push(answer.header("x-ratelimit-remaining-tokens").unwrap().to_owned());
    }
    assert_eq!((&*remaining[0], &*remaining[9]), ("1000", "739"));
    stack.redis.as_mut().unwrap().restart().await.unwrap();
    until("Redis was used", async || ledger_is_up(&stack.gateway).await).await.unwrap();
    assert_eq!(settled(&stack).await, 290.0);
}

/// F18.
#[tokio::test]
async fn sidecars_that_come_and_go_in_an_outage_admit_no_more_than_the_limit() {
    let limit = format!("{{name: n, per: [key], limit: 40, {WINDOW}, cost: requests, mode: strict}}");
    let stack = Stack::builder(documents(&limit)).models(1).without_wasm().sidecars(4).redis();
    let mut stack = stack.environment("ATTACHE_REPLICAS", "4").start().await.unwrap();
    for peer in &mut stack.peers {
        peer.sidecar.kill().await.unwrap();
    }
    stack.redis.as_mut().unwrap().kill().await.unwrap();
    let admitted = async |gateway: &Gateway| {
        let client = gateway.client().with_key("sk-a");
        let mut admitted = 0;
        loop {
            match client.chat(&chat(29)).await.unwrap().status {
                200 => admitted += 1,
                status => {
                    assert_eq!(status, 429);
                    return admitted;
                }
            }
        }
    };
    // One of them, then four, then two.
    assert_eq!(admitted(&stack.gateway).await, 10);
    for peer in &mut stack.peers {
        peer.sidecar.restart().await.unwrap();
        assert_eq!(admitted(peer).await, 10);
    }
    for peer in &mut stack.peers[1..] {
        peer.sidecar.kill().await.unwrap();
    }
    assert_eq!((admitted(&stack.gateway).await, admitted(&stack.peers[0]).await), (0, 0));
    assert_eq!(served(&stack), 40);

    stack.redis.as_mut().unwrap().restart().await.unwrap();
    for gateway in [&stack.gateway, &stack.peers[0]] {
        until("Redis was told", async || {
            let metrics = gateway.sidecar.metrics().await.unwrap();
            metrics.sum("attache_ledger_up", &[]) == 1.0 && metrics.sum("attache_store_queue", &[]) == 0.0
        })
        .await
        .unwrap();
    }
    assert_eq!(counters(&stack).await.settled, 20.0);
}
