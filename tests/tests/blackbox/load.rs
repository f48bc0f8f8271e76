//! Replicas known by name, and what their metrics pages and their errors do to where requests go.

use std::num::NonZeroU64;

use attache_model_server::{Config as ModelConfig, FaultSpan, ModelServer};
use attache_tests::{Client, Stack, until};
use serde_json::{Value, json};

use crate::{
    documents::{affinity, backend, pool, route},
    residue,
};

/// Three ports of one name: three hosts of one Envoy cluster, which resolves the name itself.
const NAMES: &str = "[{fqdn: {hostname: localhost, port: ${MODEL_0}}}, {fqdn: {hostname: localhost, port: ${MODEL_1}}}, \
    {fqdn: {hostname: localhost, port: ${MODEL_2}}}]";
const MIXED: &str = "[{ip: {address: 127.0.0.1, port: ${MODEL_0}}}, {fqdn: {hostname: localhost, port: ${MODEL_1}}}, \
    {fqdn: {hostname: localhost, port: ${MODEL_2}}}]";

fn documents(endpoints: &str) -> String {
    backend("named", endpoints) + &route("r", "m", "{name: named}") + &affinity("named", "debugHeaders: true")
}

fn prompt(subject: usize, turns: usize) -> Value {
    let text =
        format!("You know all about {subject}. ").repeat(40) + &format!("And about {turns}? ").repeat(20 * turns);
    json!({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 2})
}

fn totals(stack: &Stack) -> Vec<u64> {
    stack.models.iter().map(ModelServer::requests_total).collect()
}

#[tokio::test]
async fn the_addresses_of_names_are_replicas_of_one_cluster() {
    for endpoints in [NAMES, MIXED] {
        let stack = Stack::builder(documents(endpoints)).models(3).without_wasm().start().await.unwrap();
        for turns in 0..4 {
            let answer = stack.client().chat(&prompt(1, turns)).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            let home = stack.models.iter().find(|model| model.requests_total() > 0).unwrap().addr();
            let decision = answer.header("x-attache-decision").unwrap();
            assert!(decision.starts_with(&format!("cluster=default/named; endpoints={home},")), "{decision}");
        }
        assert_eq!(totals(&stack).into_iter().filter(|total| *total > 0).count(), 1);
        for subject in 0..40 {
            let answer = stack.client().chat(&prompt(subject, 0)).await.unwrap();
            let decision = answer.header("x-attache-decision").unwrap();
            let first = decision.split("endpoints=").nth(1).and_then(|list| list.split([',', ';']).next()).unwrap();
            let served = stack.models.iter().find(|model| model.addr().to_string() == first).unwrap();
            let was_last =
                served.requests().last().is_some_and(|record| record.body.contains(&format!("about {subject}.")));
            assert!(was_last, "Envoy took the one that was named first: {decision}");
        }
        assert!(totals(&stack).iter().all(|total| *total > 0), "{:?}", totals(&stack));
        residue::none(&stack).await;
    }
}

#[tokio::test]
async fn of_a_list_those_are_passed_over_that_envoy_has_not_resolved() {
    let stack = Stack::builder(documents(NAMES)).models(3).without_wasm().start().await.unwrap();
    // From now on the sidecar sees other addresses than Envoy: nobody listens there, so whoever is asked there fails.
    let other = |address: u8, model: usize| format!("{{ip: {{address: 127.9.9.{address}, port: ${{MODEL_{model}}}}}}}");
    let partly = format!("[{}, {}, {{ip: {{address: 127.0.0.1, port: ${{MODEL_2}}}}}}]", other(1, 0), other(2, 1));
    stack.reconfigure(&documents(&partly)).await.unwrap();
    let mut named_first = [0, 0];
    for subject in 0..30 {
        let answer = stack.client().chat(&prompt(subject, 0)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let is_unknown = answer.header("x-attache-decision").unwrap().contains("endpoints=127.9.9.");
        named_first[usize::from(is_unknown)] += 1;
    }
    assert!(named_first.iter().all(|count| *count > 0), "{named_first:?}");
    assert_eq!(totals(&stack), [0, 0, 30], "the next of the list");
    let cooling = stack.sidecar_metrics().await.unwrap().sum("attache_endpoints_cooling", &[]);
    assert!(
        cooling <= 2.0,
        "those that were passed over are left alone, as if they had failed, and nobody else: {cooling}"
    );
    // None at all: whichever Envoy takes.
    stack.reconfigure(&documents(&format!("[{}, {}]", other(1, 0), other(2, 1)))).await.unwrap();
    for subject in 0..30 {
        assert_eq!(stack.client().chat(&prompt(subject, 1)).await.unwrap().status, 200);
    }
    assert!(totals(&stack)[..2].iter().all(|total| *total > 0), "{:?}", totals(&stack));
    residue::none(&stack).await;
}

#[tokio::test]
async fn traffic_goes_away_from_a_server_that_others_keep_busy() {
    let slow = || ModelConfig { prefill_tokens_per_second: NonZeroU64::new(2_000).unwrap(), ..ModelConfig::default() };
    let stack = (0..3).fold(Stack::builder(documents(NAMES)), |builder, _| builder.model(slow()));
    let stack = stack.without_wasm().start().await.unwrap();
    // Of requests that do not come through the gateway only the metrics page tells.
    let direct = Client::new(stack.models[0].url()).unwrap();
    let others: Vec<_> = (0..40)
        .map(|subject| {
            let text = format!("Others ask about {subject}. ").repeat(400);
            let body = json!({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1});
            let direct = direct.clone();
            tokio::spawn(async move { direct.chat(&body).await })
        })
        .collect();
    until("the server was busy", async || stack.models[0].load().waiting >= 30).await.unwrap();
    let scraped =
        async || stack.sidecar_metrics().await.unwrap().sum("attache_endpoint_scrapes_total", &[("result", "ok")]);
    let before = scraped().await;
    until("all were scraped again", async || scraped().await >= before + 6.0).await.unwrap();
    stack.forget_requests();
    let before = totals(&stack);
    for subject in 0..30 {
        assert_eq!(stack.client().chat(&prompt(subject, 0)).await.unwrap().status, 200);
    }
    assert!(stack.models[0].load().waiting > 0, "it was busy all the time");
    let taken: Vec<u64> = totals(&stack).iter().zip(before).map(|(now, before)| now - before).collect();
    // A third each without the page.
    assert_eq!(taken[0], 0, "{taken:?}");
    assert!(taken[1] > 0 && taken[2] > 0, "{taken:?}");
    others.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn an_endpoint_that_answers_500_at_once_is_no_black_hole() {
    const REQUESTS: usize = 300;
    let documents = pool() + &route("r", "m", "{name: pool}");
    let stack = Stack::builder(documents).models(3).without_wasm().start().await.unwrap();
    stack.models[0].arm("status=500".parse().unwrap(), FaultSpan::UntilCleared);
    let mut errors = 0;
    for subject in 0..REQUESTS {
        errors += usize::from(stack.client().chat(&prompt(subject, 0)).await.unwrap().status != 200);
    }
    println!("{errors} of {REQUESTS} requests saw an error");
    // A third of all without the cool-down; with it, two at the beginning and one after each time out: 1, 2, 4 s and so on.
    assert!((2..=REQUESTS / 20).contains(&errors), "{errors}");
    // It is well again, and so it is asked again.
    stack.models[0].disarm();
    let before = totals(&stack)[0];
    let mut subject = REQUESTS;
    until("it served again", async || {
        subject += 1;
        stack.client().chat(&prompt(subject, 0)).await.unwrap().status == 200 && totals(&stack)[0] > before
    })
    .await
    .unwrap();
    residue::none(&stack).await;
}
