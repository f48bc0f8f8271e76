//! The pages, asked for without a socket.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::to_bytes;
use axum::http::HeaderValue;

use super::*;
use crate::config::model::Settings;
use crate::config::{self, Documents};
use crate::limit::{
    Dimension, Estimate, Ledger, Limit, Quantity, RedisOptions, RedisStore, ReserveRequest, SharedOptions, Subject,
};
use crate::readiness::Readiness;
use crate::telemetry::Telemetry;
use crate::world::World;

const POOL: &str = r#"
{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {name: pool}, spec: {endpoints: [{ip: {address: 10.0.0.1, port: 80}}]}}
---
{apiVersion: aigateway.envoyproxy.io/v1beta1, kind: AIServiceBackend, metadata: {name: pool},
 spec: {schema: {name: OpenAI}, backendRef: {name: pool, kind: Backend, group: gateway.envoyproxy.io}}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: unified}
spec:
  rules:
  - {name: small, matches: [{headers: [{name: x-ai-eg-model, value: small}]}], backendRefs: [{name: pool}]}
  - {name: large, matches: [{headers: [{name: x-ai-eg-model, value: large}]}], backendRefs: [{name: pool}]}
---
apiVersion: attache.dev/v1alpha1
kind: TokenLimitPolicy
metadata: {name: fair}
spec:
  targetRefs: [{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: unified}]
  limits:
  - {name: tenant-day, per: [tenant], limit: 300, window: 1d}
  - {name: model-minute, per: [key, model], limit: 5, window: 1m, cost: requests}
  - {name: team, per: ["header:x-team"], limit: 100, window: 1d}
---
"#;

const KEYS: &str = r#"
{apiVersion: attache.dev/v1alpha1, kind: ClientKey, metadata: {name: app},
 spec: {sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b, tenant: acme, routes: [unified]}}
---
{apiVersion: attache.dev/v1alpha1, kind: ClientKey, metadata: {name: idle},
 spec: {sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, tenant: acme, routes: []}}
"#;

fn admin(documents: &[&str]) -> Admin {
    admin_on(Ledger::memory(), documents)
}

fn admin_on(ledger: Ledger, documents: &[&str]) -> Admin {
    let documents = Documents::from_text("test.yaml", &documents.concat());
    let config = config::compile(documents, Settings::default(), 1, None).unwrap().config;
    let world = World::new(
        Settings::default(),
        Arc::new(ArcSwap::from_pointee(config)),
        ledger,
        Arc::new(Telemetry::default()),
    );
    Admin { world: Arc::new(world), readiness: tokio::sync::watch::channel(Readiness::Ready).1 }
}

async fn page(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn get(admin: &Admin, query: &str) -> (u16, Value) {
    page(show(State(admin.clone()), RawQuery(Some(query.to_owned()))).await).await
}

async fn post_from(admin: &Admin, query: &str, peer: &str, headers: HeaderMap) -> (u16, Value) {
    let peer = ConnectInfo(SocketAddr::new(peer.parse().unwrap(), 1));
    page(reset(State(admin.clone()), peer, headers, RawQuery(Some(query.to_owned()))).await).await
}

async fn post(admin: &Admin, query: &str) -> (u16, Value) {
    post_from(admin, query, "127.0.0.1", HeaderMap::new()).await
}

/// A request of the key `app`, granted and settled with what it was estimated to use.
async fn use_up(admin: &Admin, model: &str, team: &'static str, tokens: u64) {
    let config = admin.world.config.load_full();
    let route = &config.routes[0];
    let context = Arc::new(crate::limit::CostContext {
        model: model.into(),
        served_model: model.into(),
        backend: "default/pool".into(),
        route: Arc::clone(&route.id),
    });
    let header = move |_: &str| Some(team.as_bytes());
    let subject = Subject {
        key_id: Some("default/app"),
        tenant: Some("acme"),
        priority: crate::limit::Priority::Normal,
        context: &context,
        groups: crate::limit::ModelGroups::default(),
        model_class: None,
        label: &|_| None,
        header: &header,
    };
    let estimate = Estimate { input: tokens, input_at_most: tokens, ..Estimate::default() };
    let request = Arc::new(ReserveRequest::new(&route.limits, &subject, estimate));
    let decision = admin.world.ledger.reserve(&request).await;
    admin.world.journal.record(&request, &decision, SystemTime::now());
    if let Ok(crate::limit::Decision::Granted(reservation)) = decision {
        admin.world.ledger.settle_detached(reservation.settlement(&estimate.usage()));
    }
}

fn limit<'a>(page: &'a Value, name: &str) -> &'a Value {
    let id = format!("default/fair/{name}");
    page["limits"].as_array().unwrap().iter().find(|limit| limit["id"] == id.as_str()).unwrap()
}

#[tokio::test]
async fn a_keys_limits_are_explained_before_its_first_request() {
    let admin = admin(&[POOL, KEYS]);
    let (status, page) = get(&admin, "key=app").await;
    assert_eq!((status, &page["key"], &page["tenant"]), (200, &json!("default/app"), &json!("acme")));
    assert_eq!(page["lastDecision"], Value::Null);
    let day = limit(&page, "tenant-day");
    assert_eq!(day["says"], "300 tokens per day for this tenant");
    assert_eq!(day["at"], json!(["default/unified"]));
    assert_eq!((&day["per"], &day["counts"], &day["amount"]), (&json!(["tenant"]), &json!("tokens"), &json!(300)));
    assert_eq!((&day["mode"], &day["cap"], &day["shadow"]), (&json!("soft"), &json!(false), &json!(false)));
    assert_eq!(day["window"], json!({"kind": "calendar", "length": "day", "timeZone": "UTC"}));
    let [counter] = &day["counters"].as_array().unwrap()[..] else { panic!("{day}") };
    assert_eq!(counter["of"], json!({"tenant": "acme"}));
    assert_eq!((&counter["used"], &counter["held"], &counter["remaining"]), (&json!(0), &json!(0), &json!(300)));
    assert_eq!(counter["says"], "300 of 300 left");
    let of: Vec<_> =
        limit(&page, "model-minute")["counters"].as_array().unwrap().iter().map(|counter| &counter["of"]).collect();
    assert_eq!(
        of,
        [&json!({"key": "default/app", "model": "small"}), &json!({"key": "default/app", "model": "large"})]
    );
}

#[tokio::test]
async fn use_and_the_last_decision_are_shown() {
    let admin = admin(&[POOL, KEYS]);
    use_up(&admin, "small", "red", 320).await;
    let (_, page) = get(&admin, "key=default/app").await;
    let counter = &limit(&page, "tenant-day")["counters"][0];
    assert_eq!((&counter["used"], &counter["remaining"]), (&json!(320), &json!(0)));
    assert!(counter["says"].as_str().unwrap().starts_with("used up; something is left in "), "{counter}");
    // A day of the calendar: there is room when it is over, and then nothing is used any more.
    assert_eq!(counter["roomIn"], counter["emptyIn"]);
    let last = &page["lastDecision"];
    assert_eq!((&last["outcome"], &last["model"]), (&json!("granted"), &json!("small")));
    assert_eq!((&last["limits"][0]["requested"], &last["limits"][0]["remaining"]), (&json!(320), &json!(300)));

    use_up(&admin, "large", "blue", 40).await;
    let (_, page) = get(&admin, "key=app").await;
    let last = &page["lastDecision"];
    assert_eq!(last["outcome"], "refused");
    let says = last["says"].as_str().unwrap();
    assert!(says.starts_with("refused by default/fair/tenant-day: Quota used up for this tenant"), "{says}");
    // Whoever asks without the header, and the two that this key had in it.
    assert_eq!(limit(&page, "team")["counters"].as_array().unwrap().len(), 3);
    assert_eq!(limit(&page, "team")["counters"][1]["used"], 320);
}

#[tokio::test]
async fn while_the_store_does_not_answer_it_is_said_what_becomes_of_requests() {
    let nowhere = RedisStore::connect("redis+unix:///nowhere/redis.sock", RedisOptions::default()).unwrap();
    let (_, page) = get(&admin_on(Ledger::redis(nowhere, SharedOptions::default()), &[POOL, KEYS]), "key=app").await;
    let says = page["says"].as_str().unwrap();
    assert!(says.starts_with("the store did not answer just now: "), "{page}");
    assert!(page["error"].is_string() && page["storeSilentFor"].is_null(), "{page}");
    let counter = &limit(&page, "tenant-day")["counters"][0];
    assert_eq!((&counter["upTo"], &counter["used"]), (&json!(300), &Value::Null));
    let meanwhile =
        "not seen by this sidecar yet; until the store answers, each sidecar admits its share of what was left";
    assert_eq!(counter["says"], meanwhile);
}

#[tokio::test]
async fn who_is_not_known_is_told_whom_to_ask_for() {
    let admin = admin(&[POOL, KEYS]);
    let known = json!(["default/app", "default/idle"]);
    let not_found = |id: &str| json!({"error": format!("there is no key `{id}`"), "known": known});
    assert_eq!(get(&admin, "key=nobody").await, (404, not_found("default/nobody")));
    assert_eq!(get(&admin, "key=other%2Fapp").await, (404, not_found("other/app")));
    let (status, page) = get(&admin, "tenant=nobody").await;
    assert_eq!((status, &page["known"]), (404, &json!(["acme"])));
    for query in ["key=", "key=a&key=b", "kex=app", "limit=x", "key=app&tenant=acme"] {
        assert_eq!(get(&admin, query).await.0, 400, "{query}");
    }
    let (status, index) = get(&admin, "").await;
    assert_eq!((status, &index["keys"], &index["tenants"]), (200, &known, &json!(["acme"])));
    assert_eq!(index["limits"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_tenant_is_shown_key_by_key_and_a_key_without_routes_has_no_limits() {
    let (status, page) = get(&admin(&[POOL, KEYS]), "tenant=acme").await;
    assert_eq!((status, &page["more"]), (200, &json!(0)));
    let keys: Vec<_> = page["keys"].as_array().unwrap().iter().map(|key| &key["key"]).collect();
    assert_eq!(keys, ["default/app", "default/idle"]);
    assert_eq!(page["keys"][1]["limits"], json!([]));
}

#[tokio::test]
async fn where_no_keys_are_demanded_everyones_limits_are_shown_and_reset() {
    let admin = admin(&[POOL]);
    let (status, index) = get(&admin, "").await;
    assert_eq!((status, &index["everyone"]["key"]), (200, &Value::Null));
    assert_eq!(limit(&index["everyone"], "tenant-day")["counters"][0]["of"], json!({"tenant": null}));
    assert_eq!(post(&admin, "limit=tenant-day").await.0, 200);
}

#[tokio::test]
async fn a_reset_lets_one_limit_begin_anew_and_no_other() {
    let admin = admin(&[POOL, KEYS]);
    use_up(&admin, "small", "red", 320).await;
    let (status, page) = post(&admin, "key=app&limit=tenant-day").await;
    assert_eq!((status, &page["reset"], &page["key"]), (200, &json!("default/fair/tenant-day"), &json!("default/app")));
    assert_eq!(page["says"], "the counter of 300 tokens per day for this tenant begins anew");
    assert_eq!(page["before"][0]["used"], 320);
    // It may call nothing, so it uses no counter.
    assert_eq!((&page["alsoOf"], &page["alsoOfMore"]), (&json!([]), &json!(0)));
    let (_, page) = get(&admin, "key=app").await;
    assert_eq!(limit(&page, "tenant-day")["counters"][0]["used"], 0);
    assert_eq!(limit(&page, "model-minute")["counters"][0]["used"], 1);
    // Of a limit with several counters, all that the key's requests fall on.
    let (_, page) = post(&admin, "key=app&limit=fair/team").await;
    assert_eq!(page["before"].as_array().unwrap().len(), 2);
    let (_, page) = get(&admin, "key=app").await;
    assert_eq!(limit(&page, "team")["counters"][1]["used"], 0);
}

#[tokio::test]
async fn a_reset_names_the_keys_that_share_the_counter() {
    let neighbour = r#"
---
{apiVersion: attache.dev/v1alpha1, kind: ClientKey, metadata: {name: neighbour},
 spec: {sha256: 60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752, tenant: acme, routes: [unified]}}
---
{apiVersion: attache.dev/v1alpha1, kind: ClientKey, metadata: {name: stranger},
 spec: {sha256: fd61a03af4f77d870fc21e05e7e80678095c92d808cfb3b5c279ee04c74aca13, tenant: other, routes: [unified]}}
"#;
    let admin = admin(&[POOL, KEYS, neighbour]);
    let also_of = async |limit: &str| post(&admin, &format!("key=app&limit={limit}")).await.1["alsoOf"].clone();
    assert_eq!(also_of("tenant-day").await, json!(["default/neighbour"]));
    assert_eq!(also_of("model-minute").await, json!([]));
    assert_eq!(also_of("team").await, json!(["default/neighbour", "default/stranger"]));
}

#[tokio::test]
async fn a_reset_that_is_not_clear_says_what_could_be_meant() {
    let admin = admin(&[POOL, KEYS]);
    let known = json!(["default/fair/tenant-day", "default/fair/model-minute", "default/fair/team"]);
    for (query, status) in [
        ("key=app", 400),
        ("key=app&limit=day", 404),
        ("key=app&limit=other/fair/team", 404),
        ("key=app&limit=ir/team", 404),
    ] {
        let (found, page) = post(&admin, query).await;
        assert_eq!((found, &page["known"]), (status, &known), "{query}");
    }
    let (status, whose) = post(&admin, "limit=tenant-day").await;
    assert_eq!((status, &whose["known"]), (400, &json!(["default/app", "default/idle"])));
    assert!(whose["error"].as_str().unwrap().contains("`--key NAME`"), "{whose}");
    assert_eq!(post(&admin, "key=nobody&limit=tenant-day").await.0, 404);
}

#[tokio::test]
async fn only_this_machine_resets_and_no_browser() {
    let admin = admin(&[POOL, KEYS]);
    use_up(&admin, "small", "red", 320).await;
    let query = "key=app&limit=tenant-day";
    for stranger in ["10.0.0.1", "::ffff:10.0.0.1", "fd00::1"] {
        assert_eq!(post_from(&admin, query, stranger, HeaderMap::new()).await.0, 403, "{stranger}");
    }
    let from_a_page = HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static("http://127.0.0.1"))]);
    assert_eq!(post_from(&admin, query, "127.0.0.1", from_a_page).await.0, 403);
    for name in ["x-forwarded-for", "x-forwarded-proto", "forwarded", "via"] {
        let name: axum::http::HeaderName = name.parse().unwrap();
        let forwarded = HeaderMap::from_iter([(name, HeaderValue::from_static("10.0.0.1"))]);
        assert_eq!(post_from(&admin, query, "127.0.0.1", forwarded).await.0, 403);
    }
    let (_, page) = get(&admin, "key=app").await;
    assert_eq!(limit(&page, "tenant-day")["counters"][0]["used"], 320);
    for own in ["127.0.0.2", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(post_from(&admin, query, own, HeaderMap::new()).await.0, 200, "{own}");
    }
}

#[test]
fn money_is_shown_in_its_currency() {
    let prices = crate::limit::Prices { by_model: Default::default(), other: Default::default() };
    let money = Limit {
        id: "ns/policy/budget".into(),
        per: vec![Dimension::Label("team".into())],
        when: vec![],
        quantity: Quantity::Money(Arc::new(prices)),
        amount: 12_500_000,
        low_priority_percent: 80,
        window: crate::limit::Window::Fixed(std::time::Duration::from_secs(86_400)),
        mode: crate::limit::Mode::Check,
        cap: crate::limit::Cap::Open,
        default_max_tokens: None,
        enforcement: crate::limit::Enforcement::Shadow,
        on_store_error: crate::limit::OnStoreError::Deny,
    };
    let rule = page::rule(&money, &[]);
    assert_eq!(rule["says"], "12.5 spending per day for this team (only counted: it refuses nobody)");
    assert_eq!(
        (&rule["amount"], &rule["per"], &rule["counts"]),
        (&json!(12.5), &json!(["label:team"]), &json!("money"))
    );
}
