//! Two sidecars with one Redis know where the other sent a prompt.

use std::num::NonZeroU64;

use attache_model_server::Config as ModelConfig;
use attache_tests::{Answer, Stack, until};
use serde_json::{Value, json};

use crate::documents::{affinity, pool, route};

const TOKENS_PER_SECOND: u64 = 10_000;

fn conversation(subject: usize, turns: usize) -> Value {
    let mut messages =
        vec![json!({"role": "system", "content": format!("You know all about {subject}. ").repeat(100)})];
    for turn in 0..turns {
        messages.push(json!({"role": "assistant", "content": format!("Answer {turn}.")}));
        messages.push(json!({"role": "user", "content": "Go on."}));
    }
    json!({"model": "m", "messages": messages, "max_tokens": 2})
}

/// Where a request went, and why.
fn decision(answer: &Answer) -> (String, String) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let decision = answer.header("x-attache-decision").unwrap();
    let of = |name: &str| decision.split(name).nth(1).unwrap().split([',', ';']).next().unwrap().to_owned();
    (of("endpoints="), of("reason="))
}

/// How often the sidecars looked for news.
async fn looks(stack: &Stack) -> u64 {
    let mut connection = stack.redis.as_ref().unwrap().connection().await.unwrap();
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await.unwrap();
    let calls = stats.split("cmdstat_xrange:calls=").nth(1).and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test]
async fn a_conversation_that_began_away_from_its_busy_home_goes_on_there_through_another_sidecar() {
    let documents = pool() + &route("r", "m", "{name: pool}") + &affinity("pool", "debugHeaders: true");
    let model = || ModelConfig {
        prefill_tokens_per_second: NonZeroU64::new(TOKENS_PER_SECOND).unwrap(),
        ..ModelConfig::default()
    };
    let stack = Stack::builder(documents).model(model()).model(model()).without_wasm().sidecars(2).redis();
    let stack = stack.start().await.unwrap();
    let [first, second] = stack.gateways().collect::<Vec<_>>().try_into().ok().unwrap();
    for gateway in [first, second] {
        until("the sidecars shared", async || gateway.sidecar.log().contains("sidecars tell each other"))
            .await
            .unwrap();
    }

    // Keeps one of the two busy for five seconds.
    let client = first.client();
    let long =
        json!({"model": "m", "messages": [{"role": "user", "content": "long ".repeat(40_000)}], "max_tokens": 2});
    let busy = tokio::spawn(async move { client.chat(&long).await.unwrap() });
    until("one was busy", async || stack.models.iter().any(|model| model.requests_total() > 0)).await.unwrap();
    let mut away = None;
    for subject in 0..64 {
        let (endpoint, reason) = decision(&first.client().chat(&conversation(subject, 0)).await.unwrap());
        if reason == "load" {
            away = Some((subject, endpoint));
            break;
        }
    }
    let (subject, away) = away.unwrap();
    let (home, _) = decision(&busy.await.unwrap());
    assert_ne!(away, home);
    let before = looks(&stack).await;
    until("both had looked for news", async || looks(&stack).await >= before + 10).await.unwrap();

    let answer = second.client().chat(&conversation(subject, 1)).await.unwrap();
    assert_eq!(decision(&answer), (away, "prefix".to_owned()));
    assert!(answer.json().unwrap()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 400);
}
