//! The page, with pools.

use std::time::Duration;

use super::*;
use crate::affinity::Scrape;
use crate::config::model::Settings;
use crate::config::{self, Documents};
use crate::limit::Ledger;
use crate::telemetry::Telemetry;

const YAML: &str = r#"
{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {name: p}, spec: {endpoints: [{ip: {address: 10.0.0.1, port: 80}}, {ip: {address: 10.0.0.2, port: 80}}]}}
---
{apiVersion: aigateway.envoyproxy.io/v1beta1, kind: AIServiceBackend, metadata: {name: p}, spec: {schema: {name: OpenAI}, backendRef: {name: p}}}
"#;

fn page(fleet: &Fleet, cooldown: &CoolDown, now: Instant) -> Vec<String> {
    let pools = PoolFigures::of(fleet, cooldown, now);
    let page = Telemetry::default().page(&Ledger::memory().stats(), &[], 0, pools);
    assert!(page.ends_with("# EOF\n") && page.matches("# EOF").count() == 1);
    page.lines().filter(|line| line.starts_with("attache_affinity_")).map(str::to_owned).collect()
}

#[test]
fn series_come_and_go_with_endpoints_and_say_their_state() {
    let config = config::compile(Documents::from_text("test.yaml", YAML), Settings::default(), 1, None).unwrap().config;
    let (fleet, cooldown, now) = (Fleet::default(), CoolDown::default(), Instant::now());
    assert_eq!(page(&fleet, &cooldown, now), [""; 0]);
    fleet.adopt(&config, now);
    let pool = fleet.pools().remove(0);
    pool.scraped("10.0.0.1:80", Scrape { waiting: 3.0, kv_usage: 0.5, ..Scrape::default() }, now);
    let lines = page(&fleet, &cooldown, now);
    let has = |line: &str| assert!(lines.iter().any(|other| other == line), "{line} in {lines:#?}");
    has(r#"attache_affinity_predicted_tokens_total{cluster="default/p"} 0"#);
    has(r#"attache_affinity_index_budget_bytes{cluster="default/p"} 67108864.0"#);
    has(r#"attache_affinity_endpoint_waiting{cluster="default/p",endpoint="10.0.0.1:80"} 3.0"#);
    has(r#"attache_affinity_endpoint_state{cluster="default/p",endpoint="10.0.0.1:80",state="up"} 1"#);
    has(r#"attache_affinity_endpoint_state{cluster="default/p",endpoint="10.0.0.2:80",state="stale_page"} 1"#);
    assert!(!lines.iter().any(|line| line.contains("endpoint_waiting") && line.contains("10.0.0.2")));

    let members = pool.members();
    (0..2).for_each(|_| cooldown.failed(&members[0].cluster, now));
    pool.set_members(vec![Arc::clone(&members[0])], now);
    let later = now + Duration::from_millis(1);
    let lines = page(&fleet, &cooldown, later);
    assert!(!lines.iter().any(|line| line.contains("10.0.0.2")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains(r#"state="cooling""#)));
}

#[test]
fn imbalance_is_the_busiest_over_the_mean() {
    let endpoint = |recent_tokens| EndpointStats {
        endpoint: Arc::from("e"),
        own: Default::default(),
        page: None,
        trust: 1.0,
        weight: 1.0,
        held_bytes: 0,
        pending_tokens: 0.0,
        routed_tokens: 0,
        recent_tokens,
    };
    let of = |tokens: &[f64]| {
        PoolStats { endpoints: tokens.iter().map(|tokens| endpoint(*tokens)).collect(), ..PoolStats::default() }
            .imbalance()
    };
    assert_eq!((of(&[100.0, 100.0]), of(&[300.0, 100.0]), of(&[100.0, 0.0])), (Some(1.0), Some(1.5), Some(2.0)));
    assert_eq!((of(&[]), of(&[0.0, 0.0])), (None, None));
}
