//! The dashboard and the alerts speak PromQL of metrics and labels that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use attache_tests::Stack;
use promql_parser::parser::{self, Expr};
use serde_json::{Value, json};

use crate::{
    documents::{key, limits, pool, route},
    verdict::counted,
};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config").join(path)).unwrap()
}

/// Every expression, with what Grafana fills in filled in.
fn expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("grafana/dashboards/attache.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let of_panels = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let rules: Value = serde_saphyr::from_str(&read("prometheus/rules.yaml")).unwrap();
    let of_rules = rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    let expressions: Vec<String> = of_panels
        .chain(of_rules)
        .map(|it| it["expr"].as_str().unwrap())
        .map(|expression| {
            expression.replace("$__rate_interval", "1m").replace("$model", ".*").replace("$cluster", ".*")
        })
        .collect();
    assert!(expressions.len() > 40 && expressions.iter().all(|expression| !expression.contains('$')));
    expressions
}

/// The metrics that an expression selects, with the labels that it selects, and groups them by.
fn selected(expression: &Expr, found: &mut BTreeMap<String, BTreeSet<String>>) {
    match expression {
        Expr::VectorSelector(selector) => {
            let labels = selector.matchers.matchers.iter().map(|matcher| matcher.name.clone());
            found.entry(selector.name.clone().unwrap()).or_default().extend(labels);
        }
        Expr::MatrixSelector(selector) => selected(&Expr::VectorSelector(selector.vs.clone()), found),
        Expr::Aggregate(aggregate) => {
            let mut inner = BTreeMap::new();
            selected(&aggregate.expr, &mut inner);
            let grouped =
                aggregate.modifier.as_ref().map(|modifier| modifier.labels().labels.clone()).unwrap_or_default();
            for (name, labels) in inner {
                found.entry(name).or_default().extend(labels.into_iter().chain(grouped.clone()));
            }
        }
        Expr::Binary(binary) => {
            selected(&binary.lhs, found);
            selected(&binary.rhs, found);
        }
        Expr::Call(call) => call.args.args.iter().for_each(|argument| selected(argument, found)),
        Expr::Paren(paren) => selected(&paren.expr, found),
        Expr::Unary(unary) => selected(&unary.expr, found),
        Expr::Subquery(query) => selected(&query.expr, found),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}

/// What a page offers: each series' name, with its labels.
fn offered(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut offered: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let series = line.rsplit_once(' ').unwrap().0;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        offered.entry(name.to_owned()).or_default().extend(labels);
    }
    offered
}

#[tokio::test]
async fn they_ask_for_metrics_and_labels_that_a_sidecar_has() {
    let documents = [
        pool(),
        route("r", "m", "{name: pool}"),
        route("poor", "poor", "{name: pool}"),
        route("keyed", "keyed", "{name: pool, headerMutation: {set: [{name: authorization, value: Bearer old}]}}"),
        key("a", "acme", "r"),
        key("b", "acme", "poor"),
        key("c", "acme", "keyed"),
        limits(
            "r",
            "{name: t, per: [key], limit: 10, window: 300d, shadow: true}, {name: u, per: [key], limit: 100000, window: 300d}",
        ),
        limits(
            "poor",
            "{name: t, per: [key], limit: 1, window: 300d, cost: requests}, {name: u, per: [key], limit: 5, window: 300d}",
        ),
    ];
    let stack = Stack::builder(documents.concat()).models(1).redis().start().await.unwrap();
    let client = stack.client().with_key("sk-a").with_header("x-sim-answer-tokens", "2000");
    let chat = |model: &str| json!({"model": model, "messages": [{"role": "user", "content": "Hi"}]});
    for _ in 0..2 {
        assert_eq!(client.chat(&chat("m")).await.unwrap().status, 200);
        assert!(client.stream_chat(&chat("m")).await.unwrap().rest().await.is_done());
    }
    let poor = stack.client().with_key("sk-b");
    assert_eq!(
        [poor.chat(&chat("poor")).await.unwrap().status, poor.chat(&chat("poor")).await.unwrap().status],
        [200, 429]
    );
    let keyed = stack.client().with_key("sk-c").with_header("x-sim-fault", "status=401");
    assert_eq!(keyed.chat(&chat("keyed")).await.unwrap().status, 502);
    counted(&stack, "served", 5).await;

    let envoy = format!("{}/stats/prometheus", stack.gateway.envoy.admin_url());
    let envoy = reqwest::Client::builder().no_proxy().build().unwrap().get(envoy).send().await.unwrap();
    let of_filter = offered(&envoy.text().await.unwrap()).into_iter().filter(|(name, _)| name.starts_with("attache_"));
    let of_filter: Vec<_> = of_filter.collect();
    let mut offered = offered(&stack.gateway.sidecar.page("/metrics").await.unwrap());
    offered.insert("up".to_owned(), ["job".to_owned()].into());
    offered.extend(of_filter);
    let mut wanting = Vec::new();
    for text in expressions() {
        let expression = parser::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut found = BTreeMap::new();
        selected(&expression, &mut found);
        assert!(!found.is_empty(), "{text}");
        for (name, labels) in found {
            match offered.get(&name) {
                None => wanting.push(format!("{name}, in {text}")),
                Some(there) => {
                    wanting.extend(labels.difference(there).map(|label| format!("{name}{{{label}}}, in {text}")));
                }
            }
        }
    }
    assert!(wanting.is_empty(), "{wanting:#?}");
}
