//! The pages, asked for without a socket.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::to_bytes;

use super::*;
use crate::config::model::Settings;
use crate::config::{self, Documents};
use crate::limit::Ledger;
use crate::readiness::Readiness;
use crate::telemetry::Telemetry;
use crate::world::World;

const YAML: &str = r#"
{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {name: p}, spec: {endpoints: [{ip: {address: 10.0.0.1, port: 80}}, {ip: {address: 10.0.0.2, port: 80}}]}}
---
{apiVersion: aigateway.envoyproxy.io/v1beta1, kind: AIServiceBackend, metadata: {name: p}, spec: {schema: {name: OpenAI}, backendRef: {name: p}}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: r}
spec:
  rules: [{matches: [{headers: [{name: x-ai-eg-model, value: m}]}], backendRefs: [{name: p, modelNameOverride: served}]}]
---
{apiVersion: attache.dev/v1alpha1, kind: ClientKey, metadata: {name: app}, spec: {sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b, tenant: acme, routes: [r]}}
---
{apiVersion: attache.dev/v1alpha1, kind: ClientKey, metadata: {name: other}, spec: {sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, tenant: acme, routes: []}}
"#;

fn admin() -> Admin {
    let config = config::compile(Documents::from_text("test.yaml", YAML), Settings::default(), 1, None).unwrap().config;
    let world = World::new(
        Settings::default(),
        Arc::new(ArcSwap::from_pointee(config)),
        Ledger::memory(),
        Arc::new(Telemetry::default()),
    );
    world.fleet.adopt(&world.config.load(), Instant::now());
    Admin { world: Arc::new(world), readiness: tokio::sync::watch::channel(Readiness::Ready).1 }
}

async fn asked(admin: &Admin, query: &str, peer: &str, body: &str) -> (u16, Value) {
    let peer = ConnectInfo(SocketAddr::new(peer.parse().unwrap(), 1));
    let (state, query, body) = (State(admin.clone()), RawQuery(Some(query.to_owned())), Bytes::from(body.to_owned()));
    let response = explain(state, peer, query, HeaderMap::new(), body).await;
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&to_bytes(response.into_body(), 1 << 20).await.unwrap()).unwrap())
}

#[tokio::test]
async fn a_placement_is_explained_without_text_and_changes_nothing() {
    let admin = admin();
    let body =
        json!({"model": "m", "messages": [{"role": "user", "content": "unmistakable ".repeat(100)}]}).to_string();
    let (status, page) = asked(&admin, "key=app", "127.0.0.1", &body).await;
    assert_eq!(status, 200, "{page}");
    let again = asked(&admin, "key=app", "127.0.0.1", &body).await.1;
    assert_eq!(page, again, "asking is not sending");
    assert!(!page.to_string().contains("unmistakable"));
    assert_eq!((&page["model"], &page["route"], &page["reason"]), (&json!("m"), &json!("default/r"), &json!("only")));
    let site = &page["sites"][0];
    assert_eq!(
        (&site["backend"], &site["model"], &site["policy"]),
        (&json!("default/p"), &json!("served"), &json!("default"))
    );
    assert_eq!(site["reason"], "home");
    let endpoints = site["endpoints"].as_array().unwrap();
    let home = endpoints.iter().find(|endpoint| endpoint["rank"] == 0).unwrap();
    assert_eq!((&site["order"][0], endpoints.len()), (&home["endpoint"], 2));
    assert!(endpoints.iter().all(|endpoint| endpoint["matchedBytes"] == 0 && endpoint["state"] == "stale_page"));
}

#[tokio::test]
async fn it_is_explained_to_this_machine_alone_and_as_a_caller_would_fare() {
    let admin = admin();
    let body = r#"{"model":"m","messages":[]}"#;
    let status =
        async |query: &'static str, peer: &'static str, body: &'static str| asked(&admin, query, peer, body).await.0;
    assert_eq!(status("key=app", "10.1.1.1", body).await, 403);
    assert_eq!(status("key=default/app", "::ffff:127.0.0.1", body).await, 200);
    assert_eq!(status("", "::1", body).await, 200);
    assert_eq!(status("key=other", "::1", body).await, 400);
    assert_eq!(status("key=nobody", "::1", body).await, 404);
    assert_eq!(status("", "::1", "{").await, 400);
    assert_eq!(status("path=/v1/nothing", "::1", body).await, 400);
    assert_eq!(status("color=red", "::1", body).await, 400);
}

#[tokio::test]
async fn every_pool_is_shown() {
    let Json(page) = show(State(admin())).await;
    let pool = &page["pools"][0];
    assert_eq!(
        (&pool["cluster"], &pool["imbalance"], &pool["sharing"]),
        (&json!("default/p"), &Value::Null, &json!(false))
    );
    assert_eq!(pool["index"]["budgetBytes"], 64 << 20);
    assert_eq!(pool["endpoints"][1]["endpoint"], "10.0.0.2:80");
}
