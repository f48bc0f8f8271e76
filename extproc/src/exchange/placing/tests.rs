//! Conversations over sites.

use std::collections::HashMap;

use attache_proto::request;
use serde_json::json;

use super::*;
use crate::affinity::{Answered, Ticket};
use crate::config::model::{ModelName, RuleId, Settings};
use crate::config::{self, Documents};

const YAML: &str = r#"
{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {name: a}, spec: {endpoints: [{ip: {address: 10.0.0.1, port: 80}}]}}
---
{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {name: b}, spec: {endpoints: [{ip: {address: 10.0.0.2, port: 80}}]}}
---
{apiVersion: aigateway.envoyproxy.io/v1beta1, kind: AIServiceBackend, metadata: {name: a}, spec: {schema: {name: OpenAI}, backendRef: {name: a}}}
---
{apiVersion: aigateway.envoyproxy.io/v1beta1, kind: AIServiceBackend, metadata: {name: b}, spec: {schema: {name: OpenAI}, backendRef: {name: b}}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: r}
spec:
  rules:
  - matches: [{headers: [{name: x-ai-eg-model, value: m}]}]
    backendRefs: [{name: a, weight: 75}, {name: b, weight: 25}]
"#;

/// Two sites of one replica each, at weights of 75 and 25.
struct Sites {
    config: Config,
    memory: Memory,
    now: Instant,
    requests: u64,
}

impl Sites {
    fn new() -> Self {
        let config = config::compile(Documents::from_text("test.yaml", YAML), Settings::default(), 1, None).unwrap();
        let memory = Memory::default();
        Self { config: config.config, memory, now: Instant::now(), requests: 0 }
    }

    /// Sends a prompt. Tells the site, why, and what is to be held while it is under way.
    fn send(&mut self, prompt: &str) -> (usize, SiteReason, Ticket) {
        self.requests += 1;
        let body = json!({"model": "m", "messages": [{"role": "user", "content": prompt}]}).to_string();
        let scan = request::scan(Operation::ChatCompletions, body.as_bytes()).unwrap();
        let request = Request {
            operation: Operation::ChatCompletions,
            scan: &scan,
            body: body.as_bytes(),
            headers: &Headers::default(),
            tenant: None,
            witness: Witness::default(),
            model: &ModelName { name: "m".into(), group: None },
            entropy: xxh3_64(&self.requests.to_le_bytes()),
        };
        let rule = self.config.rule(RuleId { route: 0, rule: 0 }).unwrap();
        let placed = request.place(rule, &self.config, &self.memory, self.now).unwrap();
        let (candidate, reason) = placed.into_chosen().unwrap();
        let ticket = candidate.pool.dispatch(&candidate.placement).unwrap();
        (candidate.target.backend, reason, ticket)
    }

    fn serve(&mut self, prompt: &str) -> (usize, SiteReason) {
        let (site, reason, mut ticket) = self.send(prompt);
        ticket.answered(Answered::Well, None, self.now);
        ticket.first_byte();
        (site, reason)
    }
}

/// The first `bytes` of a conversation that has nothing in common with others.
fn conversation(number: u64, bytes: usize) -> String {
    let words = (0..).map(|word: u64| format!("{:016x}", xxh3_64(&(number << 32 | word).to_le_bytes())));
    let mut text = String::new();
    words.take(bytes / 16).for_each(|word| text.push_str(&word));
    text
}

#[test]
fn weights_hold_over_conversations_and_each_stays_where_it_began() {
    let mut sites = Sites::new();
    let mut counts = [0_i32; 2];
    for number in 0..1_000 {
        let turns: Vec<_> = [600, 1_200, 2_400].map(|bytes| sites.serve(&conversation(number, bytes))).to_vec();
        assert!(turns.iter().all(|turn| *turn == (turns[0].0, SiteReason::Home)), "{turns:?}");
        counts[turns[0].0] += 1;
    }
    assert!((counts[0] - 750).abs() <= 41, "{counts:?}");
}

#[test]
fn a_system_prompt_that_all_have_makes_no_home() {
    let mut sites = Sites::new();
    let system = conversation(u64::MAX >> 32, 2_048);
    let serve = |sites: &mut Sites, number| sites.serve(&(system.clone() + &conversation(number, 1_024))).0;
    // Until it is known to be common.
    (0..100).for_each(|number| {
        serve(&mut sites, number);
    });
    let mut homes = HashMap::new();
    let mut counts = [0_i32; 2];
    for number in 1_000..2_000 {
        let home = serve(&mut sites, number);
        homes.insert(number, home);
        counts[home] += 1;
    }
    assert!((counts[0] - 750).abs() <= 41, "{counts:?}");
    assert!(homes.iter().all(|(number, home)| serve(&mut sites, *number) == *home));
}

#[test]
fn what_has_nothing_in_common_goes_by_weight() {
    let mut sites = Sites::new();
    let choices: Vec<_> = (0..1_000).map(|_| sites.serve("hello")).collect();
    assert!(choices.iter().all(|(_, reason)| *reason == SiteReason::Weight));
    let first = choices.iter().filter(|(site, _)| *site == 0).count() as i32;
    assert!((first - 750).abs() <= 41, "{first}");
}

#[test]
fn an_overloaded_site_spills_and_gets_its_conversations_back() {
    let mut sites = Sites::new();
    let home = sites.serve(&conversation(7, 4_096)).0;
    // Another conversation that is at home there, and whose long prompt is a while of work.
    let busy = (100..200).map(|number| sites.send(&conversation(number, 60_000))).find(|(site, ..)| *site == home);
    assert!(busy.is_some());
    assert_eq!(sites.serve(&conversation(7, 5_000)), (1 - home, SiteReason::Load));
    drop(busy);
    assert_eq!(sites.serve(&conversation(7, 6_000)), (home, SiteReason::Home));
}
