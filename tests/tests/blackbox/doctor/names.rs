//! Endpoints that are names, under Envoy Gateway: a STRICT_DNS cluster with `override_host` goes where the header says.

use std::fs;

use attache_model_server::ModelServer;
use attache_tests::{
    Envoy, Stack,
    gateway_profile::{self, Places},
    port,
};
use serde_json::{Value, json};

use super::{address, diagnose, ids};
use crate::documents::{affinity, backend, route};

const NAMES: &str = "[{fqdn: {hostname: localhost, port: ${MODEL_0}}}, {fqdn: {hostname: localhost, port: ${MODEL_1}}}, \
    {fqdn: {hostname: localhost, port: ${MODEL_2}}}]";

fn chat(subject: usize) -> Value {
    let text = format!("You know all about {subject}. ").repeat(40);
    json!({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 2})
}

#[tokio::test]
async fn envoy_takes_the_address_that_the_sidecar_has_resolved_of_a_name() {
    let documents =
        backend("named", NAMES) + &route("r", "m", "{name: named}") + &affinity("named", "debugHeaders: true");
    let stack = Stack::builder(documents).models(3).without_wasm().start().await.unwrap();
    let places = Places {
        listen: port::free().unwrap(),
        admin: port::free().unwrap(),
        extproc: stack.gateway.sidecar.listen().to_owned(),
        wasm: None,
    };
    let text = gateway_profile::render(&[stack.directory().join("config/attache.yaml")], &[], &places).await.unwrap();
    assert!(text.contains("\"type\": \"STRICT_DNS\"") && text.contains("OverrideHost"), "{text}");
    let bootstrap = stack.directory().join("names.yaml");
    fs::write(&bootstrap, text).unwrap();
    let envoy = Envoy::start_with("names", &bootstrap, places.listen, places.admin, stack.directory()).await.unwrap();

    let client = envoy.client().unwrap();
    for subject in 0..24 {
        let before: Vec<u64> = stack.models.iter().map(ModelServer::requests_total).collect();
        let answer = client.chat(&chat(subject)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let decision = answer.header("x-attache-decision").unwrap();
        let first = decision.split("endpoints=").nth(1).and_then(|list| list.split([',', ';']).next()).unwrap();
        let served =
            stack.models.iter().zip(before).find(|(model, before)| model.requests_total() > *before).unwrap().0;
        assert_eq!(served.addr().to_string(), first, "{decision}");
    }
    assert!(stack.models.iter().all(|model| model.requests_total() > 0), "no server is everyone's");
    let admin = address(&stack.gateway.sidecar.admin_url());
    let (status, found, proxy) = diagnose(&envoy, Some(&admin)).await;
    assert_eq!((status, found), (Some(0), ids(&[])), "{proxy}");
}
