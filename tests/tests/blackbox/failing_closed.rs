//! Nothing passes that the sidecar did not see, and nothing that it let pass is lost: whatever happens to it.

use std::time::Duration;

use attache_tests::{Answer, Client, Process, Signal, Stack, client::StreamEnd, tools::Profile, until};
use serde_json::{Value, json};

use crate::{
    documents::{key, limits, open, pool, route},
    profile,
    raw::{Connection, chunked},
    residue::{self, Counters},
    verdict::{counted, error, is, served},
};

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
}

async fn stack() -> Stack {
    Stack::builder(open()).models(1).without_wasm().start().await.unwrap()
}

/// A client that claims what only the sidecar may say.
fn spoofing(stack: &Stack) -> Client {
    let endpoint = stack.models[0].addr().to_string();
    let client = stack.client().with_header("x-attache-cluster", "default/pool");
    client.with_header("x-gateway-destination-endpoint", &endpoint).with_header("x-ai-eg-model", "m")
}

fn assert_unserved(answer: &Answer) {
    assert_eq!(error(answer), is(503, "server_error", None));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn without_the_sidecar_every_request_is_a_503_in_json_whatever_it_claims() {
    let mut stack = stack().await;
    stack.gateway.sidecar.kill().await.unwrap();
    for client in [stack.client(), spoofing(&stack)] {
        for _ in 0..3 {
            assert_unserved(&client.chat(&chat()).await.unwrap());
            assert_unserved(&client.get("/v1/models").await.unwrap());
        }
    }
    assert_eq!(served(&stack), 0);
    stack.gateway.sidecar.restart().await.unwrap();
    until("requests were served", async || stack.client().chat(&chat()).await.unwrap().status == 200).await.unwrap();
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_sidecar_killed_amid_a_stream_costs_the_client_no_event() {
    let mut stack = stack().await;
    let mut body = chat();
    body["max_tokens"] = json!(60);
    let client = stack.client().with_header("x-sim-fault", "slow=20");
    let mut stream = client.stream_chat(&body).await.unwrap();
    let mut seen = String::new();
    for _ in 0..10 {
        seen.push_str(&stream.next().await.unwrap().unwrap());
    }
    stack.gateway.sidecar.kill().await.unwrap();
    let rest = stream.rest().await;
    assert_eq!((rest.is_done(), rest.end.clone()), (true, StreamEnd::Complete));
    // One opening event, 60 with a word, a closing one; then the usage that the client did not ask for, which nobody is
    // there to take out any more, and the end.
    assert!((62 + 1 - 10..=62 + 2 - 10).contains(&rest.data.len()), "{rest:?}");
    assert_unserved(&stack.client().chat(&chat()).await.unwrap());
    assert_unserved(&spoofing(&stack).chat(&chat()).await.unwrap());
    assert_eq!(served(&stack), 1);
    stack.gateway.sidecar.restart().await.unwrap();
    until("requests were served", async || stack.client().chat(&chat()).await.unwrap().status == 200).await.unwrap();
}

#[tokio::test]
async fn a_sidecar_killed_while_it_holds_requests_lets_none_of_them_pass() {
    let mut stack = stack().await;
    let body = chat().to_string();
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut connection = Connection::open(&stack.gateway.envoy).await;
        connection.send(chunked("/v1/chat/completions", "x-attache-cluster: default/pool\r\n")).await;
        connection.send_chunk(body.as_bytes()).await;
        held.push(connection);
    }
    until("the sidecar held them", async || {
        stack.sidecar_metrics().await.unwrap().sum("attache_in_flight", &[]) == 5.0
    })
    .await
    .unwrap();
    stack.gateway.sidecar.kill().await.unwrap();
    for mut connection in held {
        connection.send_chunk(b"").await;
        assert_eq!(connection.read_answer().await.status, 503);
    }
    assert_eq!(served(&stack), 0);
}

#[tokio::test]
async fn a_sidecar_that_stands_still_lets_nothing_pass_and_goes_on_afterwards() {
    let mut stack = stack().await;
    stack.gateway.sidecar.signal(Signal::Stop).unwrap();
    // Envoy waits as long as `message_timeout` says, and no longer: the client's own patience is greater.
    let mut paused = Connection::open(&stack.gateway.envoy).await;
    paused.send(chunked("/v1/chat/completions", "x-attache-cluster: default/pool\r\n")).await;
    paused.send_chunk(b"{").await;
    let (plain, spoofed, paused) = tokio::join!(
        async { stack.client().chat(&chat()).await },
        async { spoofing(&stack).chat(&chat()).await },
        async { paused.read_answer().await }
    );
    assert_eq!(paused.status, if profile::is(Profile::Static) { 408 } else { 503 }, "{}", paused.body);
    for answer in [plain.unwrap(), spoofed.unwrap()] {
        let (status, kind, _) = error(&answer);
        assert!(matches!(status, 503 | 504) && kind == "server_error", "{status}: {}", answer.text());
    }
    assert_eq!(served(&stack), 0);
    stack.gateway.sidecar.signal(Signal::Continue).unwrap();
    until("requests were served", async || stack.client().chat(&chat()).await.unwrap().status == 200).await.unwrap();
    residue::none(&stack).await;
}

#[tokio::test]
async fn a_sidecar_told_to_end_finishes_what_it_has_and_charges_it() {
    let documents = [
        pool(),
        route("r", "m", "{name: pool}"),
        key("a", "acme", "r"),
        limits("r", "{name: t, per: [key], limit: 100000, window: 300d}"),
    ];
    let mut stack = Stack::builder(documents.concat()).models(1).without_wasm().redis().start().await.unwrap();
    let client = stack.client().with_key("sk-a");
    let mut body = chat();
    body["max_tokens"] = json!(50);
    let slow = client.clone().with_header("x-sim-fault", "slow=20");
    let mut streams = Vec::new();
    for _ in 0..5 {
        let mut stream = slow.stream_chat(&body).await.unwrap();
        stream.next().await.unwrap().unwrap();
        streams.push(stream);
    }
    stack.gateway.sidecar.signal(Signal::Terminate).unwrap();
    for stream in streams {
        let events = stream.rest().await;
        assert_eq!((events.is_done(), events.end.clone()), (true, StreamEnd::Complete));
        assert!(!events.json().any(|event| event["usage"].is_object()), "the sidecar left before the stream had ended");
    }
    let status = stack.gateway.sidecar.terminate().await.unwrap();
    assert!(status.success(), "{status}");
    let ledger = Counters::read(&mut stack.redis.as_ref().unwrap().connection().await.unwrap()).await;
    assert_eq!((ledger.settled, ledger.held, ledger.leases), (5.0 * 59.0, 0.0, 0));
    assert_unserved(&client.chat(&chat()).await.unwrap());
}

#[tokio::test]
async fn no_request_is_dropped_across_twenty_reloads_under_load() {
    let stack = stack().await;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let load = async |streamed: bool| {
        let mut requests = 0;
        let mut body = chat();
        body["stream"] = json!(streamed);
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let answer = stack.client().chat(&body).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert!(!streamed || answer.text().contains("[DONE]"));
            requests += 1;
        }
        requests
    };
    let reloads = async {
        for number in 0..20 {
            stack.reconfigure(&(open() + &route("further", &format!("n{number}"), "{name: pool}"))).await.unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let (a, b, c, ()) = tokio::join!(load(true), load(false), load(true), reloads);
    let answered = stack.sidecar_metrics().await.unwrap();
    assert_eq!(answered.sum("attache_config_reloads_total", &[]), 21.0);
    counted(&stack, "served", a + b + c).await;
    residue::none(&stack).await;
}

#[tokio::test]
async fn two_sidecars_do_not_take_each_others_socket() {
    let stack = stack().await;
    let listen = stack.gateway.sidecar.listen().to_owned();
    let mut command = attache_tests::tools::attache().unwrap();
    let config = stack.directory().join("config");
    command.arg("run").arg("--config").arg(config).args(["--extproc-listen", &listen, "--admin-listen", "127.0.0.1:0"]);
    let mut second = Process::spawn("second", command, stack.directory()).await.unwrap();
    let status = tokio::time::timeout(Duration::from_secs(20), second.end()).await.unwrap().unwrap();
    assert!(!status.success());
    assert!(second.log().contains("another process listens there"), "{}", second.log());
    assert_eq!(stack.client().chat(&chat()).await.unwrap().status, 200);
}
