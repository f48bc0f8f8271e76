//! The harness itself: what it promises to the tests that are written on it.

use std::process::Command;

use attache_tests::{Client, Directory, Error, Process, Redis, Signal, Stack, client::StreamEnd};
use serde_json::json;

/// One endpoint of this name on all model servers, open to everybody.
fn open_to_all(model: &str) -> String {
    OPEN_TO_ALL.replace("THE_MODEL", model)
}

const OPEN_TO_ALL: &str = "
{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {name: pool}, spec: {endpoints: ${MODELS}}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: pool}
spec: {schema: {name: OpenAI}, backendRef: {kind: Backend, group: gateway.envoyproxy.io, name: pool}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: all}
spec:
  rules:
  - matches: [{headers: [{name: x-ai-eg-model, value: THE_MODEL}]}]
    backendRefs: [{name: pool}]
";

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[tokio::test]
async fn a_process_that_ends_is_reported_with_its_last_lines() {
    let directory = Directory::temporary().unwrap();
    let mut process = Process::spawn("short", shell("echo the reason; exit 3"), directory.path()).await.unwrap();
    let error = process.until("it was ready", async || false).await.unwrap_err();
    assert!(matches!(error, Error::Ended { .. }));
    assert_eq!(error.to_string(), "short ended with exit status: 3 before it was ready; it last wrote\n  | the reason");
}

#[tokio::test]
async fn a_dropped_process_is_gone() {
    let directory = Directory::temporary().unwrap();
    let process = Process::spawn("long", shell("exec sleep 600"), directory.path()).await.unwrap();
    let proc = format!("/proc/{}", process.id());
    assert!(std::fs::exists(&proc).unwrap());
    drop(process);
    assert!(!std::fs::exists(&proc).unwrap());
}

#[tokio::test]
async fn a_redis_that_is_killed_comes_back_empty_at_its_address() {
    let directory = Directory::temporary().unwrap();
    let mut server = Redis::start(directory.path(), &[]).await.unwrap();
    let keys = async |server: &Redis| -> u64 {
        redis::cmd("DBSIZE").query_async(&mut server.connection().await.unwrap()).await.unwrap()
    };
    let mut connection = server.connection().await.unwrap();
    redis::cmd("SET").arg("a").arg(1).query_async::<()>(&mut connection).await.unwrap();
    assert_eq!(keys(&server).await, 1);
    let address = server.address();
    server.kill().await.unwrap();
    server.connection().await.unwrap_err();
    server.restart().await.unwrap();
    assert_eq!((server.address(), keys(&server).await), (address, 0));
    server.signal(Signal::Stop).unwrap();
    server.signal(Signal::Continue).unwrap();
    assert_eq!(keys(&server).await, 0);
}

#[tokio::test]
async fn a_stack_has_as_many_gateways_as_sidecars_and_all_reach_the_models() {
    let stack = Stack::builder(open_to_all("m")).models(2).sidecars(2).redis().start().await.unwrap();
    for gateway in stack.gateways() {
        let answer = gateway.client().chat(&json!({"model": "m", "messages": []})).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(gateway.envoy.stats().await.unwrap().passed_by_filter(), 1);
    }
    assert_eq!(stack.gateways().count(), 2);
    let served: usize = stack.models.iter().map(|model| model.requests().len()).sum();
    assert_eq!(served, 2);
}

#[tokio::test]
async fn a_stream_is_read_event_by_event() {
    let stack = Stack::builder(open_to_all("m")).models(1).without_wasm().start().await.unwrap();
    let body = json!({"model": "m", "messages": [], "max_tokens": 5});
    let mut stream = stack.client().stream_chat(&body).await.unwrap();
    assert_eq!(stream.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let first = stream.next().await.unwrap().unwrap();
    assert!(first.contains("assistant"), "{first}");
    let rest = stream.rest().await;
    assert_eq!((rest.text().split(' ').count(), rest.is_done(), rest.end), (5, true, StreamEnd::Complete));
}

#[tokio::test]
async fn a_changed_configuration_is_in_force_when_reconfigure_returns() {
    let stack = Stack::builder(open_to_all("before")).models(1).without_wasm().start().await.unwrap();
    let status =
        async |client: Client, model: &str| client.chat(&json!({"model": model, "messages": []})).await.unwrap().status;
    assert_eq!((status(stack.client(), "before").await, status(stack.client(), "after").await), (200, 404));
    stack.reconfigure(&open_to_all("after")).await.unwrap();
    assert_eq!((status(stack.client(), "before").await, status(stack.client(), "after").await), (404, 200));
}
