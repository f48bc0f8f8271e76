//! Requests that share a prompt go where it is cached; others spread.

use attache_model_server::ModelServer;
use attache_tests::{Answer, Stack};
use serde_json::{Value, json};

use crate::{
    documents::{affinity, backend, key, pool, route},
    residue,
    verdict::served,
};

async fn stack(policy: &str) -> Stack {
    let documents = pool() + &route("r", "m", "{name: pool}") + &affinity("pool", policy);
    Stack::builder(documents).models(4).without_wasm().start().await.unwrap()
}

fn prompt(subject: usize, turns: usize) -> Value {
    let mut messages = vec![json!({"role": "system", "content": format!("You know all about {subject}. ").repeat(60)})];
    for turn in 0..turns {
        messages.push(json!({"role": "user", "content": format!("Question {turn} about {subject}? ").repeat(20)}));
        messages.push(json!({"role": "assistant", "content": format!("Answer {turn}. ").repeat(20)}));
    }
    messages.push(json!({"role": "user", "content": "Go on."}));
    json!({"model": "m", "messages": messages, "max_tokens": 4})
}

fn cached(answer: &Answer) -> u64 {
    answer.json().unwrap()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// How many servers have seen a request.
fn asked(stack: &Stack) -> usize {
    stack.models.iter().filter(|model| model.requests_total() > 0).count()
}

#[tokio::test]
async fn a_conversation_stays_where_its_beginning_is_cached() {
    let stack = stack("debugHeaders: true").await;
    let mut hits = Vec::new();
    let mut decisions = Vec::new();
    for turns in 0..6 {
        let answer = stack.client().chat(&prompt(1, turns)).await.unwrap();
        hits.push(cached(&answer));
        decisions.push(answer.header("x-attache-decision").unwrap().to_owned());
    }
    assert_eq!((hits[0], asked(&stack), served(&stack)), (0, 1, 6));
    assert!(hits.windows(2).all(|pair| pair[0] < pair[1]), "{hits:?}");
    let home = stack.models.iter().find(|model| model.requests_total() > 0).unwrap().addr();
    for (turn, decision) in decisions.iter().enumerate() {
        assert!(decision.starts_with(&format!("cluster=default/pool; endpoints={home},")), "{decision}");
        assert!(decision.contains("; site=only; prompt="), "{decision}");
        let reason = if turn == 0 { "; reason=home" } else { "; reason=prefix" };
        assert!(decision.ends_with(reason), "{decision}");
    }
    let metrics = stack.sidecar_metrics().await.unwrap();
    assert_eq!(metrics.sum("attache_affinity_decisions_total", &[("reason", "prefix")]), 5.0);
    let delivered = metrics.sum("attache_affinity_delivered_tokens_total", &[("cluster", "default/pool")]);
    assert_eq!(delivered, hits.iter().sum::<u64>() as f64);
    assert!(metrics.sum("attache_affinity_predicted_tokens_total", &[]) > 0.0);
}

#[tokio::test]
async fn unrelated_conversations_spread_over_all_replicas() {
    let stack = stack("debugHeaders: false").await;
    for subject in 0..60 {
        let answer = stack.client().chat(&prompt(subject, 1)).await.unwrap();
        assert_eq!((answer.status, answer.header("x-attache-decision")), (200, None));
    }
    let totals: Vec<u64> = stack.models.iter().map(ModelServer::requests_total).collect();
    // 15 expected; the prompts are always the same, the ports of the servers are not.
    assert!(totals.iter().all(|total| (2..=36).contains(total)), "{totals:?}");
    residue::none(&stack).await;
}

#[tokio::test]
async fn how_the_json_is_written_makes_no_difference_and_the_model_and_tenant_do() {
    let stack = stack("debugHeaders: true").await;
    let text = "x".repeat(2000);
    let bodies = [
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":1}}"#),
        format!(
            "{{ \"max_tokens\": 1,\n \"messages\":[ {{\"content\": \"{text}\", \"role\":\"user\"}} ], \"model\":\"m\" }}"
        ),
        format!(
            r#"{{"temperature":0,"model":"m","stream":false,"user":"u","messages":[{{"role":"user","content":"\u0078{}"}}]}}"#,
            &text[1..]
        ),
    ];
    for body in bodies {
        let request = stack.client().request(reqwest::Method::POST, "/v1/chat/completions");
        let answer = Answer::to(request.header("content-type", "application/json").body(body)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!((asked(&stack), served(&stack)), (1, 3));
}

#[tokio::test]
async fn a_session_header_wins_over_the_prompt() {
    let stack = stack("sessionHeader: x-session, debugHeaders: true").await;
    for subject in 0..12 {
        let client = stack.client().with_header("x-session", "one");
        let answer = client.chat(&prompt(subject, 0)).await.unwrap();
        assert!(answer.header("x-attache-decision").unwrap().ends_with("reason=session"));
    }
    assert_eq!((asked(&stack), served(&stack)), (1, 12));
    for session in 0..60 {
        let client = stack.client().with_header("x-session", &format!("session-{session}"));
        client.chat(&prompt(0, 0)).await.unwrap();
    }
    assert_eq!(asked(&stack), 4);
}

#[tokio::test]
async fn isolated_tenants_do_not_share_a_home() {
    let keys: String = (0..16).map(|tenant| key(&format!("k{tenant}"), &format!("tenant-{tenant}"), "r")).collect();
    for (policy, shares) in [("isolateTenants: false", true), ("isolateTenants: true", false)] {
        let documents = pool() + &route("r", "m", "{name: pool}") + &affinity("pool", policy) + &keys;
        let stack = Stack::builder(documents).models(4).without_wasm().start().await.unwrap();
        for tenant in 0..16 {
            let client = stack.client().with_key(&format!("sk-k{tenant}"));
            assert_eq!(client.chat(&prompt(0, 0)).await.unwrap().status, 200);
        }
        assert_eq!(asked(&stack) == 1, shares, "{policy}");
    }
}

#[tokio::test]
async fn in_cluster_mode_names_are_chosen_as_clusters() {
    let endpoints =
        "[{fqdn: {hostname: localhost, port: ${MODEL_0}}}, {fqdn: {hostname: localhost, port: ${MODEL_1}}}]";
    let documents = backend("named", endpoints)
        + &route("r", "m", "{name: named}")
        + &affinity("named", "mode: cluster, debugHeaders: true");
    let stack = Stack::builder(documents).models(2).without_wasm().start().await.unwrap();
    let mut hits = Vec::new();
    for turns in 0..4 {
        let answer = stack.client().chat(&prompt(1, turns)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let decision = answer.header("x-attache-decision").unwrap();
        assert!(decision.starts_with("cluster=default/named; endpoints=localhost:"), "{decision}");
        hits.push(cached(&answer));
    }
    assert!(asked(&stack) == 1 && hits.windows(2).all(|pair| pair[0] < pair[1]), "{hits:?}");
    for subject in 0..40 {
        stack.client().chat(&prompt(subject, 0)).await.unwrap();
    }
    assert_eq!(asked(&stack), 2);
    residue::none(&stack).await;
}

#[tokio::test]
async fn two_sidecars_agree_on_a_prompts_home_without_talking() {
    let documents = pool() + &route("r", "m", "{name: pool}");
    let stack = Stack::builder(documents).models(4).without_wasm().sidecars(2).start().await.unwrap();
    for subject in 0..8 {
        stack.forget_requests();
        for gateway in stack.gateways() {
            assert_eq!(gateway.client().chat(&prompt(subject, 2)).await.unwrap().status, 200);
        }
        let homes = stack.models.iter().filter(|model| !model.requests().is_empty()).count();
        assert_eq!(homes, 1, "{subject}");
    }
}
