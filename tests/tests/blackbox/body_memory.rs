//! Bodies that never end, or that stand for more than they are: what they take of a real process, and what is left for others.

use std::fs;
use std::io::Write as _;

use attache_tests::{Stack, tools::Profile, wait::until};
use flate2::{Compression, write::GzEncoder};
use serde_json::json;

use crate::{
    documents::{key, pool, route},
    profile,
    raw::{Connection, chunked},
};

const MIB: usize = 1 << 20;

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// What the sidecar says that bodies take, in bytes.
async fn taken(stack: &Stack) -> u64 {
    stack.sidecar_metrics().await.unwrap().sum("attache_body_memory_bytes", &[]) as u64
}

async fn refused(stack: &Stack) -> f64 {
    stack.sidecar_metrics().await.unwrap().sum("attache_body_memory_refusals_total", &[])
}

/// The memory of the sidecar that is resident, in bytes.
fn resident(stack: &Stack) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", stack.gateway.sidecar.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Requests of a key that send this much of their bodies.
async fn unfinished(stack: &Stack, count: usize, key: &str, encoding: &str, body: &[u8]) -> Vec<Connection> {
    let headers = format!("authorization: Bearer sk-{key}\r\n{encoding}");
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut connection = Connection::open(&stack.gateway.envoy).await;
        connection.send(chunked("/v1/chat/completions", &headers)).await;
        connection.send_chunk(body).await;
        connections.push(connection);
    }
    connections
}

async fn two_tenants(arguments: &[&str]) -> Stack {
    let documents = [pool(), route("r", "m", "{name: pool}"), key("a", "acme", "r"), key("b", "other", "r")];
    Stack::builder(documents.concat()).models(1).arguments(arguments).start().await.unwrap()
}

#[tokio::test]
async fn sixty_bodies_that_stand_for_much_and_never_end_take_what_was_sent() {
    // Elsewhere Envoy collects bodies, and the sidecar sees those alone that end.
    if !profile::is(Profile::Static) {
        return;
    }
    let stack = two_tenants(&[]).await;
    let bomb = gzip(&gzip(&vec![b' '; 16 * MIB]));
    let before = resident(&stack);
    let connections = unfinished(&stack, 60, "a", "content-encoding: gzip, gzip\r\n", &bomb[..bomb.len() - 1]).await;
    until("all of them were there", async || taken(&stack).await >= 60 * (16 * 1024 + bomb.len() as u64))
        .await
        .unwrap();
    assert!(resident(&stack) < before + 64 * MIB, "{before} -> {}", resident(&stack));
    drop(connections);
    until("they were gone", async || taken(&stack).await == 0).await.unwrap();
}

#[tokio::test]
async fn a_key_that_takes_its_share_of_memory_is_refused_more_and_others_are_served() {
    if !profile::is(Profile::Static) {
        return;
    }
    let stack = two_tenants(&["--max-body", "1MiB", "--body-memory", "4MiB"]).await;
    let connections = unfinished(&stack, 8, "a", "", &vec![b' '; MIB / 2]).await;
    until("one of them was refused", async || refused(&stack).await > 0.0).await.unwrap();
    assert!(taken(&stack).await <= 2 * MIB as u64);
    let mut answer = None;
    for mut connection in connections {
        // Those that were taken wait for the rest, in vain.
        connection.send_chunk(b"").await;
        let head = connection.read_answer().await;
        answer = Some(head).filter(|answer| answer.status == 503).or(answer);
    }
    let answer = answer.expect("one of them was refused");
    assert!(answer.body.contains("too many request bodies"), "{}", answer.body);
    assert_eq!(answer.header("retry-after"), Some("1"));

    let before = refused(&stack).await;
    let held = unfinished(&stack, 8, "a", "", &vec![b' '; MIB / 2]).await;
    until("one of them was refused again", async || refused(&stack).await > before).await.unwrap();
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(MIB / 4)}]});
    assert_eq!(stack.client().with_key("sk-b").chat(&body).await.unwrap().status, 200);
    drop(held);
    until("they were gone", async || taken(&stack).await == 0).await.unwrap();
}
