//! Several sidecars behind one name: one that drains or hangs is left alone, and the others serve.

use std::net::SocketAddr;

use attache_tests::{Client, Envoy, EnvoyOptions, Signal, Stack, envoy, port, tools::Profile, until};
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream, UnixStream},
};

use crate::{
    documents::{pool, route},
    profile, residue,
};

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})
}

/// A port that leads to a sidecar's socket.
async fn port_of(listen: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let listen = listen.to_owned();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let listen = listen.clone();
            tokio::spawn(async move {
                // Either side may go, or not be there.
                if let Some(path) = listen.strip_prefix("unix:") {
                    let Ok(mut sidecar) = UnixStream::connect(path).await else { return };
                    let _ = copy_bidirectional(&mut client, &mut sidecar).await;
                } else {
                    let Ok(mut sidecar) = TcpStream::connect(&listen).await else { return };
                    let _ = copy_bidirectional(&mut client, &mut sidecar).await;
                }
            });
        }
    });
    port
}

/// An Envoy whose name for the sidecar stands for all of the stack's.
async fn envoy_of_all(stack: &Stack) -> Envoy {
    let mut ports = Vec::new();
    for gateway in stack.gateways() {
        ports.push(port_of(gateway.sidecar.listen()).await);
    }
    let (listen, admin): (SocketAddr, SocketAddr) = (port::free().unwrap(), port::free().unwrap());
    let options = EnvoyOptions {
        config: vec![stack.directory().join("config/attache.yaml")],
        extproc: format!("localhost:{}", ports[0]),
        ..EnvoyOptions::default()
    };
    let text = envoy::render(&options, listen, admin).await.unwrap();
    let endpoint = |port: &u16| {
        format!("{{endpoint: {{address: {{socket_address: {{address: localhost, port_value: {port}}}}}}}}}")
    };
    let (first, all) = (endpoint(&ports[0]), ports.iter().map(endpoint).collect::<Vec<_>>().join(", "));
    assert!(text.contains(&first), "{text}");
    let file = stack.directory().join("envoy-of-all.yaml");
    std::fs::write(&file, text.replace(&first, &all)).unwrap();
    Envoy::start_with("envoy-of-all", &file, listen, admin, stack.directory()).await.unwrap()
}

async fn stack() -> Stack {
    Stack::builder(pool() + &route("r", "m", "{name: pool}"))
        .models(1)
        .without_wasm()
        .sidecars(2)
        .start()
        .await
        .unwrap()
}

/// How many of Envoy's sidecars are well.
async fn healthy(envoy: &Envoy) -> u64 {
    envoy.stats().await.unwrap().value("cluster.attache.membership_healthy")
}

/// Waits until 20 requests in a row are served, which half of the sidecars alone would not do in a million tries. (On a busy machine
/// a sidecar that is well may be late with its word on that.)
async fn served(client: &Client) {
    until("20 in a row are served", async || {
        for _ in 0..20 {
            if client.chat(&chat()).await.is_ok_and(|answer| answer.status != 200) {
                return false;
            }
        }
        true
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn one_sidecar_of_two_that_drains_or_hangs_or_is_gone_is_left_alone() {
    if profile::is(Profile::EnvoyGateway) {
        // Nobody there resolves a name: Kubernetes says which pods are ready.
        return;
    }
    let mut stack = stack().await;
    let envoy = envoy_of_all(&stack).await;
    let client = envoy.client().unwrap();
    until("both are well", async || healthy(&envoy).await == 2).await.unwrap();
    assert_eq!(client.chat(&chat()).await.unwrap().status, 200);

    stack.peers[0].sidecar.signal(Signal::Stop).unwrap();
    until("one is left", async || healthy(&envoy).await == 1).await.unwrap();
    served(&client).await;
    stack.peers[0].sidecar.signal(Signal::Continue).unwrap();
    until("both are well again", async || healthy(&envoy).await == 2).await.unwrap();

    // A stream under way keeps it from its end.
    let long = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100_000});
    let slow = client.clone().with_header("x-sim-fault", "slow=100");
    let streams = [slow.stream_chat(&long).await.unwrap(), slow.stream_chat(&long).await.unwrap()];
    stack.peers[0].sidecar.signal(Signal::Terminate).unwrap();
    until("one is left", async || healthy(&envoy).await == 1).await.unwrap();
    served(&client).await;
    drop(streams);
    stack.peers[0].sidecar.kill().await.unwrap();
    served(&client).await;
    stack.peers.clear();
    residue::none(&stack).await;
}
