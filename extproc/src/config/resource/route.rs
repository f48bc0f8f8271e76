//! AIGatewayRoute of Envoy AI Gateway: which requests go to which backends.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use attache_proto::headers;
use attache_proto::pass_through::PathPattern;

use super::kind::GATEWAY_API;
use super::limit::Expression;
use super::mutation::read_mutation;
use super::{Annotations, Labels, PASS_THROUGH, ServiceBackend, Spec, report_others};
use crate::config::diagnostic::{Diagnostic, Location};
use crate::config::fields::{Fields, FromNode, Log, quote};
use crate::config::host::HostName;
use crate::config::model::{CostSource, RequestCost, RuleMatch, ValueMatch};
use crate::config::node::Node;
use crate::config::pattern::{Pattern, PatternError};
use crate::config::upstream::Mutation;
use crate::config::value::{DnsName, HeaderName, Located, Reference, Timestamp, number, one_of};
use crate::limit::Cost;

#[derive(Debug)]
pub(in crate::config) struct Route {
    /// Empty is all of them.
    pub(in crate::config) hosts: Vec<HostName>,
    pub(in crate::config) rules: Vec<Rule>,
    pub(in crate::config) costs: Vec<RequestCost>,
    /// The Gateways it hangs on; empty where it does not say.
    pub(in crate::config) parents: Vec<Reference>,
    pub(in crate::config) labels: Labels,
    pub(in crate::config) pass_through: Vec<PathPattern>,
}

#[derive(Debug)]
pub(in crate::config) struct Rule {
    pub(in crate::config) location: Location,
    pub(in crate::config) name: Option<Located<Arc<str>>>,
    /// The headers of each in the order of their names; never empty.
    pub(in crate::config) matches: Vec<Located<RuleMatch>>,
    /// Those that are served; not all of weight 0, if there is any.
    pub(in crate::config) backends: Vec<BackendRef>,
    pub(in crate::config) models_owned_by: Arc<str>,
    /// In seconds since 1970.
    pub(in crate::config) models_created_at: u64,
    pub(in crate::config) is_listed: bool,
    pub(in crate::config) request_timeout: Option<Duration>,
}

#[derive(Debug)]
pub(in crate::config) struct BackendRef {
    /// The AIServiceBackend.
    pub(in crate::config) backend: Reference,
    pub(in crate::config) weight: u32,
    pub(in crate::config) priority: u32,
    pub(in crate::config) model_override: Option<Arc<str>>,
    /// What is changed of requests that go this way; it overrules the backend's.
    pub(in crate::config) mutation: Mutation,
}

/// The default of the CRD.
const MODELS_OWNED_BY: &str = "attache";

impl Spec for Route {
    const KIND: &'static str = "AIGatewayRoute";

    fn labelled(self, labels: &Labels) -> Self {
        Self { labels: labels.clone(), ..self }
    }

    fn annotated(self, annotations: &Annotations, log: &mut Log) -> Self {
        let pass_through = annotations.get(PASS_THROUGH).map(|text| read_patterns(text, log)).unwrap_or_default();
        report_others(annotations, PASS_THROUGH, "a route", log);
        Self { pass_through, ..self }
    }
}

impl FromNode for Route {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            // Which Gateway a route hangs on is the business of whoever renders or reconciles the Gateway, but for the
            // policies that a Gateway has.
            fields.narrowed_by(&["hostnames"]);
            let parents = fields.list_of_at_most::<Parent>("parentRefs", 16).unwrap_or_default();
            fields.unsupported("filterConfig", "there is no filter of Envoy AI Gateway here");
            fields.unsupported("rateLimitsFromHeaders", "use a TokenLimitPolicy");
            fields.unsupported("responseCache", "every request goes to a model server");
            fields.unsupported("schema", "the path of a request says its schema");
            fields.unsupported("targetRefs", "use `parentRefs`");
            let hosts = fields.list_of_at_most::<Host>("hostnames", 16);
            let rules: Option<Vec<Rule>> = fields.require_list("rules");
            fields.warn_above("rules", MOST_RULES);
            let costs: Option<Vec<LlmRequestCost>> = fields.list("llmRequestCosts");
            let (hosts, rules, costs) = (hosts?, rules?, costs?);
            let hosts = hosts.into_iter().map(|Host(host)| host).collect();
            report_duplicate_names(&rules, fields);
            report_duplicate_keys(&costs, fields);
            let costs = costs.into_iter().map(|cost| RequestCost { key: cost.metadata_key.value, cost: cost.cost });
            let parents = parents.into_iter().map(|Parent(gateway)| gateway).collect();
            Some(Self {
                hosts,
                rules,
                costs: costs.collect(),
                parents,
                labels: Labels::new(),
                pass_through: Vec::new(),
            })
        })
    }
}

/// The CRD's bound: one more has the project's own.
const MOST_RULES: usize = 15;

struct Host(HostName);

impl FromNode for Host {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        read_host(node, log).map(Self)
    }
}

/// A Gateway.
struct Parent(Reference);

impl FromNode for Parent {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.accept(&["port", "sectionName"]);
            let group = fields.take_with("group", |node, log| one_of(node, log, &[(GATEWAY_API, ())]));
            let kind = fields.take_with("kind", |node, log| one_of(node, log, &[("Gateway", ())]));
            let is_gateway = (group.is_some() || !fields.has("group")) && (kind.is_some() || !fields.has("kind"));
            Reference::from_fields(fields).filter(|_| is_gateway).map(Self)
        })
    }
}

/// The section of a route, as Gateway API names it. One name is the project's own.
fn read_rule_name(node: &Node, log: &mut Log) -> Option<Located<Arc<str>>> {
    const RESERVED: &str = "route-not-found";
    let DnsName(name) = DnsName::from_node(node, log)?;
    if &*name == RESERVED {
        return log.fail(node, format!("the name `{RESERVED}` is reserved"), "rename this rule");
    }
    Some(Located { value: name, location: log.location(node) })
}

/// The paths that [`PASS_THROUGH`] names, with commas between them.
fn read_patterns(Located { value, location }: &Located<Arc<str>>, log: &mut Log) -> Vec<PathPattern> {
    let mut patterns = Vec::new();
    for text in value.split(',').filter(|text| !text.trim().is_empty()) {
        match text.parse::<PathPattern>() {
            Ok(pattern) if !patterns.contains(&pattern) => patterns.push(pattern),
            Ok(_) => {}
            Err(error) => {
                let error = Diagnostic::error(location, format!("`{PASS_THROUGH}`: {error}"));
                log.push(error.with_help("write paths with commas between them: `/classify, POST /v1/custom/*`"));
            }
        }
    }
    patterns
}

fn report_duplicate_names(rules: &[Rule], fields: &mut Fields<'_>) {
    let mut seen = HashSet::new();
    for Located { value, location } in rules.iter().filter_map(|rule| rule.name.as_ref()) {
        if !seen.insert(value) {
            let twice = Diagnostic::error(location, format!("two rules of this route are named {}", quote(value)));
            fields.push(twice.with_help("rename one of them"));
        }
    }
}

fn report_duplicate_keys(costs: &[LlmRequestCost], fields: &mut Fields<'_>) {
    let mut seen = HashSet::new();
    for Located { value, location } in costs.iter().map(|cost| &cost.metadata_key) {
        if !seen.insert(value) {
            let twice = Diagnostic::error(location, format!("two costs of this route have the key {}", quote(value)));
            fields.push(twice.with_help("rename one of them"));
        }
    }
}

impl FromNode for Rule {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.narrowed_by(&["matches"]);
            fields.unsupported("mirrors", "requests go to one backend alone");
            fields.unsupported("streamIdleTimeout", "a stalled stream ends with the request's timeout");
            let location = fields.here();
            let name = fields.take_with("name", read_rule_name);
            let matches = read_matches(fields);
            let backends = fields.require_list::<ServedBackend>("backendRefs");
            let backends = backends.map(|all| all.into_iter().filter_map(|ServedBackend(one)| one).collect::<Vec<_>>());
            if let Some(backends) = &backends
                && !backends.is_empty()
                && backends.iter().all(|backend| backend.weight == 0)
            {
                let message = "all backends of this rule have weight 0, so it serves nothing";
                fields.reject("backendRefs", message, "give one of them a weight");
            }
            let timeout = fields.take_with("timeouts", read_request_timeout).flatten();
            let models_owned_by = fields.take("modelsOwnedBy").unwrap_or_else(|| Arc::from(MODELS_OWNED_BY));
            let models_created_at = fields.take("modelsCreatedAt").map_or(0, |Timestamp(seconds)| seconds);
            let is_listed = fields.take("excludeFromModelsEndpoint") != Some(true);
            Some(Self {
                location,
                name,
                matches: matches?,
                backends: backends?,
                models_owned_by,
                models_created_at,
                is_listed,
                request_timeout: timeout,
            })
        })
    }
}

/// Without any, a rule is about every request, as in Envoy AI Gateway; so those that were meant must not be missed.
fn read_matches(fields: &mut Fields<'_>) -> Option<Vec<Located<RuleMatch>>> {
    let everything = Located { value: RuleMatch::default(), location: fields.here() };
    let matches: Option<Vec<Located<RuleMatch>>> = fields.list_of_at_most("matches", 128);
    Some(Some(matches?).filter(|matches| !matches.is_empty()).unwrap_or_else(|| vec![everything]))
}

impl FromNode for RuleMatch {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        // A condition that nobody checks would widen the match.
        Fields::read_strictly(node, log, |fields| {
            let conditions: Vec<HeaderMatch> = fields.list_of_at_most("headers", 16)?;
            let mut headers: Vec<(Arc<str>, ValueMatch)> = Vec::new();
            for HeaderMatch { name: Located { value: HeaderName(name), location }, value } in conditions {
                if headers.iter().any(|(other, _)| *other == name) {
                    let twice =
                        Diagnostic::error(&location, format!("two conditions of this match are on {}", quote(&name)));
                    fields.push(twice.with_help("write another match: any of a rule's matches is enough"));
                } else {
                    headers.push((name, value));
                }
            }
            let at = headers.iter().position(|(name, _)| &**name == headers::MODEL);
            let model = at.map(|at| headers.swap_remove(at).1);
            headers.sort_by(|(a, _), (b, _)| a.cmp(b));
            Some(Self { model, headers })
        })
    }
}

struct HeaderMatch {
    name: Located<HeaderName>,
    value: ValueMatch,
}

impl FromNode for HeaderMatch {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read_strictly(node, log, |fields| {
            let types = [("Exact", MatchType::Exact), ("RegularExpression", MatchType::RegularExpression)];
            let kind = fields.take_with("type", |node, log| one_of(node, log, &types));
            let has_kind = fields.has("type");
            let name = fields.require("name");
            let value = fields.require_with("value", |node, log| match kind {
                None if has_kind => None,
                None | Some(MatchType::Exact) => Arc::<str>::from_node(node, log).map(ValueMatch::Exact),
                Some(MatchType::RegularExpression) => read_pattern(node, log).map(ValueMatch::Pattern),
            });
            Some(Self { name: name?, value: value? })
        })
    }
}

#[derive(Debug, Clone, Copy)]
enum MatchType {
    Exact,
    RegularExpression,
}

fn read_pattern(node: &Node, log: &mut Log) -> Option<Pattern> {
    let text = Arc::<str>::from_node(node, log)?;
    match Pattern::new(&text) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            let help = match error {
                PatternError::Syntax(_) => "write one that is matched against the whole value, like `gpt-4.*`",
                PatternError::TooLarge => "repeat less in it, or write several matches",
            };
            log.fail(node, format!("{}: {error}", quote(&text)), help)
        }
    }
}

fn read_host(node: &Node, log: &mut Log) -> Option<HostName> {
    let text = Arc::<str>::from_node(node, log)?;
    HostName::parse(&text).or_else(|| {
        let help =
            "write a name like `api.example.com`, or `*.example.com` for all below one; in lower case, without a port";
        log.fail(node, format!("{} is no host name of a route", quote(&text)), help)
    })
}

/// `None` for a reference to something that is not served here.
struct ServedBackend(Option<BackendRef>);

impl FromNode for ServedBackend {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        if let Some(kind) = node.get("kind")
            && kind.text().is_some_and(|text| &**text == "InferencePool")
        {
            let help = "list the pool's servers in a Backend, behind an AIServiceBackend";
            log.leave_out::<()>(kind, "`InferencePool` is not supported yet: this reference is left out", help);
            return Some(Self(None));
        }
        BackendRef::from_node(node, log).map(|backend| Self(Some(backend)))
    }
}

impl FromNode for BackendRef {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        /// The bound of the Gateway API.
        const MAX_WEIGHT: u32 = 1_000_000;
        Fields::read(node, log, |fields| {
            fields.accept(&["group", "port"]);
            fields.unsupported("alias", "no header of a request names the backends to try");
            fields.unsupported("responseBodyMutation", "answers go to clients as they are");
            fields.take_with("kind", |node, log| one_of(node, log, &[(ServiceBackend::KIND, ())]));
            let backend = Reference::from_fields(fields);
            let weight = fields.take_with("weight", |node, log| number(node, log, 0, MAX_WEIGHT)).unwrap_or(1);
            let priority = fields.take("priority").unwrap_or(0);
            let model_override = fields.take("modelNameOverride");
            let mutation = read_mutation(fields);
            Some(Self { backend: backend?, weight, priority, model_override, mutation: mutation? })
        })
    }
}

/// `0s` is no timeout, as in the Gateway API.
fn read_request_timeout(node: &Node, log: &mut Log) -> Option<Option<Duration>> {
    Fields::read(node, log, |fields| {
        fields.unsupported("backendRequest", "an attempt takes as long as its request");
        Some(fields.take("request").filter(|request: &Duration| !request.is_zero()))
    })
}

struct LlmRequestCost {
    metadata_key: Located<Arc<str>>,
    cost: CostSource,
}

impl FromNode for LlmRequestCost {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let metadata_key = fields.require("metadataKey");
            let cost = fields.require_with("type", |node, log| {
                let choices = [
                    ("InputToken", Some(Cost::Input)),
                    ("OutputToken", Some(Cost::Output)),
                    ("TotalToken", Some(Cost::Total)),
                    ("CachedInputToken", Some(Cost::CachedInput)),
                    ("CacheCreationInputToken", Some(Cost::CacheCreationInput)),
                    // Its older names.
                    ("CachedCreationInputToken", Some(Cost::CacheCreationInput)),
                    ("CachedWriteInputToken", Some(Cost::CacheCreationInput)),
                    ("ReasoningToken", Some(Cost::Reasoning)),
                    ("CEL", None),
                ];
                one_of(node, log, &choices)
            });
            let cost = match cost? {
                Some(cost) => {
                    fields.accept(&["cel"]);
                    CostSource::Tokens(cost)
                }
                None => CostSource::Expression(fields.require::<Expression>("cel")?.0),
            };
            Some(Self { metadata_key: metadata_key?, cost })
        })
    }
}
