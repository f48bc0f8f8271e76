//! BackendTrafficPolicy of Envoy Gateway, where its global rate limits count the tokens that `llmRequestCosts` publishes.

use std::sync::Arc;
use std::time::Duration;

use attache_proto::headers::COST_METADATA_NAMESPACE;

use super::kind::{AI_GATEWAY, GATEWAY_API};
use super::limit::{MAX_AMOUNT, Selector, mentions};
use super::{Labels, Route, Spec};
use crate::config::diagnostic::{Diagnostic, Location};
use crate::config::fields::{Fields, FromNode, Log, describe};
use crate::config::node::{Entry, Node, Value};
use crate::config::value::{Located, Reference, number, one_of};
use crate::limit::{Enforcement, Window};

#[derive(Debug)]
pub(in crate::config) struct TrafficPolicy {
    /// `None`, in what remains of one with errors: nobody knows.
    pub(in crate::config) targets: Option<Vec<TrafficTarget>>,
    pub(in crate::config) rules: Vec<TrafficRule>,
}

/// What a policy is attached to.
#[derive(Debug)]
pub(in crate::config) enum TrafficTarget {
    /// The routes of a Gateway.
    Gateway(Reference),
    /// A route, or one rule of it.
    Route { route: Reference, rule: Option<Located<Arc<str>>> },
    /// The routes that have all of these labels.
    Labelled(Labels),
    /// Every route: nothing here knows the labels of Gateways.
    Any,
}

/// One rule of its global rate limit that counts tokens.
#[derive(Debug)]
pub(in crate::config) struct TrafficRule {
    /// Among all rules of the policy, from 0.
    pub(in crate::config) index: usize,
    pub(in crate::config) selector: Selector,
    /// In tokens, never 0.
    pub(in crate::config) amount: u64,
    pub(in crate::config) window: Window,
    /// Which of a route's `llmRequestCosts` it counts.
    pub(in crate::config) cost_key: Located<Arc<str>>,
    /// What each request costs besides.
    pub(in crate::config) each_request: u64,
    pub(in crate::config) sharing: Sharing,
    pub(in crate::config) enforcement: Enforcement,
}

/// Whether routes share a rule's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::config) enum Sharing {
    /// Each has its own.
    PerRoute,
    /// All that the policy targets have one.
    Shared,
}

impl Spec for TrafficPolicy {
    const KIND: &'static str = "BackendTrafficPolicy";
}

/// Whether a policy is ours to read at all.
pub(super) fn counts_tokens(node: &Node) -> bool {
    mentions(node, "namespace", COST_METADATA_NAMESPACE)
}

impl FromNode for TrafficPolicy {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            const OTHERS: [&str; 17] = [
                "admissionControl",
                "bandwidthLimit",
                "circuitBreaker",
                "compression",
                "compressor",
                "connection",
                "dns",
                "faultInjection",
                "healthCheck",
                "http2",
                "httpUpgrade",
                "loadBalancer",
                "proxyProtocol",
                "requestBuffer",
                "responseOverride",
                "tcpKeepalive",
                "telemetry",
            ];
            fields.accept(&OTHERS);
            fields.unsupported("retry", "Envoy Gateway applies it, and the static profile retries twice");
            fields.unsupported("timeout", "set `timeouts` of the route's rule");
            fields.unsupported("mergeType", "all policies that reach a route hold");
            let targets = read_targets(fields);
            let rules = fields.require_with("rateLimit", read_rate_limit);
            Some(Self { targets, rules: rules.unwrap_or_default() })
        })
    }
}

fn read_targets(fields: &mut Fields<'_>) -> Option<Vec<TrafficTarget>> {
    let one = if fields.has("targetRef") {
        fields.take("targetRef").map(|target: Target| vec![target])
    } else {
        Some(vec![])
    };
    let many = fields.list::<Target>("targetRefs");
    let labelled = fields.list::<TargetSelector>("targetSelectors");
    let targets: Vec<_> = one?
        .into_iter()
        .chain(many?)
        .filter_map(|target| target.0)
        .chain(labelled?.into_iter().map(|selector| selector.0))
        .collect();
    if targets.is_empty() {
        return fields.fail(
            "this policy targets no route",
            "write `targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: ROUTE}]`",
        );
    }
    Some(targets)
}

/// `None`: nothing that serves models.
struct Target(Option<TrafficTarget>);

#[derive(Clone, Copy)]
enum TargetKind {
    Gateway,
    Route,
    Other,
}

impl FromNode for Target {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.take_with("group", |node, log| one_of(node, log, &[(GATEWAY_API, ()), (AI_GATEWAY, ())]));
            let kind = fields.require_with("kind", |node, log| {
                let kinds = [
                    ("HTTPRoute", TargetKind::Route),
                    ("Gateway", TargetKind::Gateway),
                    (Route::KIND, TargetKind::Route),
                    ("GRPCRoute", TargetKind::Other),
                    ("TCPRoute", TargetKind::Other),
                    ("TLSRoute", TargetKind::Other),
                    ("UDPRoute", TargetKind::Other),
                ];
                one_of(node, log, &kinds)
            });
            let reference = Reference::local_from_fields(fields);
            match kind? {
                TargetKind::Gateway => {
                    fields.unsupported("sectionName", "the policy holds for all listeners of the Gateway");
                    Some(Self(Some(TrafficTarget::Gateway(reference?))))
                }
                TargetKind::Route => {
                    let rule = fields.take("sectionName");
                    Some(Self(Some(TrafficTarget::Route { route: reference?, rule })))
                }
                TargetKind::Other => {
                    fields.accept(&["sectionName"]);
                    Some(Self(None))
                }
            }
        })
    }
}

struct TargetSelector(TrafficTarget);

impl FromNode for TargetSelector {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.take_with("group", |node, log| one_of(node, log, &[(GATEWAY_API, ()), (AI_GATEWAY, ())]));
            if fields.has("matchExpressions") {
                fields.reject("matchExpressions", "`matchExpressions` is not supported here", "use `matchLabels`");
            }
            let labels = fields.take_with("matchLabels", read_match_labels);
            let kinds =
                [("HTTPRoute", TargetKind::Route), (Route::KIND, TargetKind::Route), ("Gateway", TargetKind::Gateway)];
            match fields.require_with("kind", |node, log| one_of(node, log, &kinds))? {
                TargetKind::Route => Some(Self(TrafficTarget::Labelled(labels.unwrap_or_default()))),
                TargetKind::Gateway | TargetKind::Other => {
                    let warning = "the labels of Gateways are not known here: the policy holds for all routes";
                    let here = fields.here();
                    fields.push(Diagnostic::warning(&here, warning).with_help("name the Gateway in `targetRefs`"));
                    Some(Self(TrafficTarget::Any))
                }
            }
        })
    }
}

fn read_match_labels(node: &Node, log: &mut Log) -> Option<Labels> {
    let Value::Mapping(entries) = &node.value else {
        return log.fail(node, format!("expected a mapping, found {}", describe(node)), "write `name: value` lines");
    };
    let label = |Entry { key, value, .. }: &Entry| Some((Arc::clone(key), Arc::clone(value.text()?)));
    Some(entries.iter().filter_map(label).collect())
}

fn read_rate_limit(node: &Node, log: &mut Log) -> Option<Vec<TrafficRule>> {
    Fields::read(node, log, |fields| {
        fields.accept(&["type"]);
        fields.unsupported("local", "Envoy Gateway applies it; nothing here does");
        fields.require_with("global", |node, log| {
            Fields::read(node, log, |fields| fields.require_with("rules", read_rules))
        })
    })
}

fn read_rules(node: &Node, log: &mut Log) -> Option<Vec<TrafficRule>> {
    let Value::Sequence(items) = &node.value else {
        return log.fail(node, format!("expected a list, found {}", describe(node)), "write the rules as `- ` lines");
    };
    let mut rules = Vec::new();
    let mut is_sound = true;
    for (index, item) in items.iter().enumerate() {
        if !counts_tokens(item) {
            let warning = format!("this rule counts no tokens of {COST_METADATA_NAMESPACE}: it is not applied here");
            let location = log.location(item);
            log.push(Diagnostic::warning(&location, warning).with_help("nothing is wrong if Envoy Gateway applies it"));
            continue;
        }
        match read_rule(item, log, index) {
            Some(rule) => rules.push(rule),
            None => is_sound = false,
        }
    }
    is_sound.then_some(rules)
}

fn read_rule(node: &Node, log: &mut Log, index: usize) -> Option<TrafficRule> {
    Fields::read(node, log, |fields| {
        let selector =
            if fields.has("clientSelectors") { fields.take("clientSelectors") } else { Some(Selector::default()) };
        let limit = fields.require_with("limit", read_limit);
        let cost = fields.require_with("cost", read_cost);
        let sharing = if fields.take("shared") == Some(true) { Sharing::Shared } else { Sharing::PerRoute };
        let enforcement =
            if fields.take("shadowMode") == Some(true) { Enforcement::Shadow } else { Enforcement::Refuse };
        let ((amount, window), (each_request, cost_key)) = (limit?, cost?);
        Some(TrafficRule { index, selector: selector?, amount, window, cost_key, each_request, sharing, enforcement })
    })
}

fn read_limit(node: &Node, log: &mut Log) -> Option<(u64, Window)> {
    Fields::read(node, log, |fields| {
        let amount = fields.require_with("requests", |node, log| number(node, log, 1, MAX_AMOUNT / 1_000));
        let window = fields.require_with("unit", |node, log| {
            // As envoyproxy/ratelimit divides time (`UnitToDivider`): equal lengths from 1970 on, a month of 30 days.
            const MINUTE: u64 = 60;
            const DAY: u64 = 24 * 60 * MINUTE;
            let units = [
                ("Second", 1),
                ("Minute", MINUTE),
                ("Hour", 60 * MINUTE),
                ("Day", DAY),
                ("Month", 30 * DAY),
                ("Year", 365 * DAY),
            ];
            Some(Window::Fixed(Duration::from_secs(one_of(node, log, &units)?)))
        });
        Some((amount?, window?))
    })
}

/// What each request costs, and which of the published costs comes on top.
fn read_cost(node: &Node, log: &mut Log) -> Option<(u64, Located<Arc<str>>)> {
    Fields::read(node, log, |fields| {
        // The default of Envoy Gateway.
        let request = if fields.has("request") { fields.take_with("request", read_request_cost) } else { Some(1) };
        let response = fields.require_with("response", |node, log| {
            Fields::read(node, log, |fields| {
                fields.require_with("from", |node, log| one_of(node, log, &[("Metadata", ())]));
                fields.require_with("metadata", read_metadata)
            })
        });
        Some((request?, response?))
    })
}

fn read_request_cost(node: &Node, log: &mut Log) -> Option<u64> {
    /// Above it, thousandths would not be exact.
    const MAX: u64 = 1_000_000_000;
    Fields::read(node, log, |fields| {
        fields.require_with("from", |node, log| {
            if node.text().is_some_and(|text| &**text == "Metadata") {
                let help = "write `from: Number` and a `number`: nothing is published of a request before its answer";
                return log.fail(node, "a request's cost from metadata is not supported here", help);
            }
            one_of(node, log, &[("Number", ())])
        })?;
        if fields.has("number") { fields.take_with("number", |node, log| number(node, log, 0, MAX)) } else { Some(1) }
    })
}

fn read_metadata(node: &Node, log: &mut Log) -> Option<Located<Arc<str>>> {
    Fields::read(node, log, |fields| {
        fields.require_with("namespace", |node, log| one_of(node, log, &[(COST_METADATA_NAMESPACE, ())]));
        fields.require("key")
    })
}

impl TrafficTarget {
    /// Where it is named, if it is.
    pub(in crate::config) fn location(&self) -> Option<&Location> {
        match self {
            Self::Gateway(reference) | Self::Route { route: reference, .. } => Some(&reference.location),
            Self::Labelled(_) | Self::Any => None,
        }
    }
}
