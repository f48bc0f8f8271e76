//! Which of an endpoint's backends serves a request, and what happens when one of them fails.

use attache_model_server::{Fault, FaultSpan, ModelServer};
use attache_tests::{Stack, until};
use serde_json::{Value, json};

use crate::{
    documents::{affinity, pool, replica, route},
    profile, residue,
};

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hi"}]})
}

fn totals(stack: &Stack) -> Vec<u64> {
    stack.models.iter().map(ModelServer::requests_total).collect()
}

fn fault(text: &str) -> Fault {
    text.parse().unwrap()
}

/// `m`, on the first server while it lasts, then on the second, then on the third.
async fn by_priority() -> Stack {
    let documents = [
        replica("first", 0),
        replica("second", 1),
        replica("third", 2),
        route(
            "r",
            "m",
            "{name: third, priority: 2, modelNameOverride: c}, {name: first, modelNameOverride: a}, \
             {name: second, priority: 1, modelNameOverride: b}",
        ),
    ];
    Stack::builder(documents.concat()).models(3).without_wasm().start().await.unwrap()
}

#[tokio::test]
async fn the_lowest_priority_number_serves_as_long_as_it_is_well() {
    let stack = by_priority().await;
    for _ in 0..20 {
        assert_eq!(stack.client().chat(&chat("m")).await.unwrap().json().unwrap()["model"], "a");
    }
    assert_eq!(totals(&stack), [20, 0, 0]);
}

#[tokio::test]
async fn a_backend_that_answers_5xx_twice_is_left_alone_until_it_is_well_again() {
    let stack = by_priority().await;
    let ask = async || {
        let answer = stack.client().chat(&chat("m")).await.unwrap();
        (answer.status, answer.json().unwrap()["model"].as_str().map(str::to_owned))
    };
    stack.models[0].arm(fault("status=500"), FaultSpan::UntilCleared);
    assert_eq!((ask().await.0, ask().await.0), (500, 500));
    until("the second served", async || ask().await == (200, Some("b".to_owned()))).await.unwrap();
    // The second fails too: the third takes over.
    stack.models[1].arm(fault("status=500"), FaultSpan::UntilCleared);
    until("the third served", async || ask().await == (200, Some("c".to_owned()))).await.unwrap();
    until("they are left alone", async || {
        ask().await;
        stack.sidecar_metrics().await.unwrap().sum("attache_endpoints_cooling", &[]) >= 1.0
    })
    .await
    .unwrap();
    // All is well again: so is the order.
    stack.models[0].disarm();
    stack.models[1].disarm();
    until("the first served", async || ask().await == (200, Some("a".to_owned()))).await.unwrap();
    for _ in 0..5 {
        assert_eq!(ask().await, (200, Some("a".to_owned())));
    }
    residue::none(&stack).await;
}

#[tokio::test]
async fn errors_that_are_the_clients_fault_take_nobody_out() {
    let stack = by_priority().await;
    for status in [400, 404, 429] {
        let client = stack.client().with_header("x-sim-fault", &format!("status={status}"));
        for _ in 0..3 {
            assert_eq!(client.chat(&chat("m")).await.unwrap().status, status);
        }
    }
    assert_eq!(totals(&stack), [9, 0, 0]);
    assert_eq!(stack.sidecar_metrics().await.unwrap().sum("attache_endpoints_cooling", &[]), 0.0);
}

#[tokio::test]
async fn when_all_backends_are_gone_the_client_gets_a_503_and_when_one_is_back_it_serves() {
    let documents = replica("only", 0) + &route("r", "m", "{name: only}");
    let mut stack = Stack::builder(documents).models(1).without_wasm().start().await.unwrap();
    assert_eq!(stack.client().chat(&chat("m")).await.unwrap().status, 200);
    let address = stack.models[0].addr();
    stack.models.remove(0).shutdown().await;
    for _ in 0..4 {
        let answer = stack.client().chat(&chat("m")).await.unwrap();
        assert_eq!(answer.status, 503);
        if profile::own_errors_are_json() {
            assert_eq!(answer.json().unwrap()["error"]["type"], "server_error");
            assert!(answer.header("retry-after").is_some());
        }
    }
    let config = attache_model_server::Config { listen: address.to_string(), ..Default::default() };
    stack.models.push(ModelServer::start(config).await.unwrap());
    until("it served", async || stack.client().chat(&chat("m")).await.unwrap().status == 200).await.unwrap();
}

#[tokio::test]
async fn of_one_priority_each_backend_gets_its_weight_and_none_without_weight_is_asked() {
    let documents = [
        replica("light", 0),
        replica("heavy", 1),
        replica("none", 2),
        route("r", "m", "{name: light, weight: 1}, {name: heavy, weight: 3}, {name: none, weight: 0}"),
    ];
    let stack = Stack::builder(documents.concat()).models(3).without_wasm().start().await.unwrap();
    for _ in 0..400 {
        assert_eq!(stack.client().chat(&chat("m")).await.unwrap().status, 200);
    }
    let totals = totals(&stack);
    // 100 expected, with a standard deviation below 9: six of them.
    assert!((48..=152).contains(&totals[0]), "{totals:?}");
    assert_eq!((totals[0] + totals[1], totals[2]), (400, 0));
}

#[tokio::test]
async fn a_replica_that_is_gone_costs_no_request_and_is_asked_again_when_it_is_back() {
    let documents =
        pool() + &route("r", "m", "{name: pool}") + &affinity("pool", "sessionHeader: x-session, debugHeaders: true");
    let mut stack = Stack::builder(documents).models(3).without_wasm().start().await.unwrap();
    // Many sessions: each replica is the first choice of some.
    let round = async |stack: &Stack| {
        for session in 0..30 {
            let client = stack.client().with_header("x-session", &session.to_string());
            let answer = client.chat(&chat("m")).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    };
    round(&stack).await;
    assert!(totals(&stack).iter().all(|total| *total > 0), "{:?}", totals(&stack));
    let address = stack.models[0].addr();
    stack.models.remove(0).shutdown().await;
    // It is left alone for a second at first, which a busy machine may let pass before anybody looks.
    until("the replica that is gone is left alone", async || {
        round(&stack).await;
        stack.sidecar_metrics().await.unwrap().sum("attache_endpoints_cooling", &[]) == 1.0
    })
    .await
    .unwrap();
    let config = attache_model_server::Config { listen: address.to_string(), ..Default::default() };
    stack.models.push(ModelServer::start(config).await.unwrap());
    until("it was asked again", async || {
        round(&stack).await;
        stack.models[2].requests_total() > 0
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_503_before_any_token_is_retried_on_another_replica_and_other_errors_are_not() {
    let documents = pool() + &route("r", "m", "{name: pool}") + &affinity("pool", "sessionHeader: x-session");
    let stack = Stack::builder(documents).models(3).without_wasm().start().await.unwrap();
    // The header goes along with each attempt, the armed fault is one server's own.
    let chosen = async || {
        let before = totals(&stack);
        let status = stack.client().with_header("x-session", "one").chat(&chat("m")).await.unwrap().status;
        (status, totals(&stack).into_iter().zip(before).map(|(after, before)| after - before).collect::<Vec<_>>())
    };
    // A session has one home.
    let (status, counts) = chosen().await;
    let home = counts.iter().position(|count| *count == 1).unwrap();
    assert_eq!(status, 200);
    stack.models[home].arm(fault("status=503"), FaultSpan::Exchanges(1));
    let (status, counts) = chosen().await;
    assert_eq!((status, counts[home], counts.iter().sum::<u64>()), (200, 1, 2), "{counts:?}");
    stack.models[home].arm(fault("status=500"), FaultSpan::Exchanges(1));
    let (status, counts) = chosen().await;
    assert_eq!((status, counts[home], counts.iter().sum::<u64>()), (500, 1, 1), "{counts:?}");
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_rule_with_further_headers_goes_before_the_general_one() {
    let gold = "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIGatewayRoute\nmetadata: {name: tiers}\nspec:\n  rules:\n  \
        - matches: [{headers: [{name: x-ai-eg-model, value: m}]}]\n    backendRefs: [{name: common}]\n  \
        - matches: [{headers: [{name: x-ai-eg-model, value: m}, {name: x-tier, value: gold}]}]\n    \
        backendRefs: [{name: gold, modelNameOverride: better}]\n---\n";
    let documents = replica("common", 0) + &replica("gold", 1) + gold;
    let stack = Stack::builder(documents).models(2).without_wasm().start().await.unwrap();
    let model = async |tier: &str| {
        stack.client().with_header("x-tier", tier).chat(&chat("m")).await.unwrap().json().unwrap()["model"].clone()
    };
    assert_eq!((model("gold").await, model("silver").await), (json!("better"), json!("m")));
    assert_eq!(totals(&stack), [1, 1]);
}

#[tokio::test]
async fn a_rules_timeout_ends_a_request_and_another_rules_does_not() {
    let with_timeout = |name: &str, timeout: &str| {
        format!(
            "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIGatewayRoute\nmetadata: {{name: {name}}}\nspec:\n  rules:\n  \
             - matches: [{{headers: [{{name: x-ai-eg-model, value: {name}}}]}}]\n    backendRefs: [{{name: pool}}]\n    \
             timeouts: {{request: {timeout}}}\n---\n"
        )
    };
    let documents = pool() + &with_timeout("hasty", "200ms") + &with_timeout("patient", "1m");
    let stack = Stack::builder(documents).models(1).without_wasm().start().await.unwrap();
    let client = stack.client().with_header("x-sim-fault", "hang=1000");
    let hasty = client.chat(&chat("hasty")).await.unwrap();
    assert_eq!((hasty.status, hasty.json().unwrap()["error"]["type"].as_str()), (504, Some("server_error")));
    assert_eq!(client.chat(&chat("patient")).await.unwrap().status, 200);
    residue::none(&stack).await;
}
