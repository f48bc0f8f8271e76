//! AIGatewayRoute of Envoy AI Gateway: which requests go to which backends.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use attache_proto::headers;
use attache_proto::pass_through::PathPattern;

use super::limit::Expression;
use super::mutation::read_mutation;
use super::{Annotations, Labels, PASS_THROUGH, ServiceBackend, Spec, Support};
use crate::config::diagnostic::{Diagnostic, Location};
use crate::config::fields::{Fields, FromNode, Log, quote};
use crate::config::model::{CostSource, RequestCost, RuleMatch};
use crate::config::node::Node;
use crate::config::upstream::Mutation;
use crate::config::value::{HeaderName, Located, Reference, Timestamp, number, one_of};
use crate::limit::Cost;

#[derive(Debug)]
pub(in crate::config) struct Route {
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
    /// The headers of each in the order of their names. Empty where none of them is served: the rule is left out.
    pub(in crate::config) matches: Vec<Located<RuleMatch>>,
    /// Those that are served; not all of weight 0, if there is any.
    pub(in crate::config) backends: Vec<BackendRef>,
    pub(in crate::config) models_owned_by: Arc<str>,
    /// In seconds since 1970.
    pub(in crate::config) models_created_at: u64,
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
        for (name, Located { location, .. }) in annotations.iter().filter(|(name, _)| &***name != PASS_THROUGH) {
            let unknown = Diagnostic::warning(location, format!("there is no annotation {} of a route", quote(name)));
            log.push(unknown.with_help(format!("there is `{PASS_THROUGH}`; rename or remove this one")));
        }
        Self { pass_through, ..self }
    }
}

impl FromNode for Route {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            // Which Gateway a route hangs on is the business of whoever renders or reconciles the Gateway, but for the
            // policies that a Gateway has.
            let parents = fields.take::<Vec<Parent>>("parentRefs").unwrap_or_default();
            fields.unsupported("filterConfig", "there is no filter of Envoy AI Gateway here");
            fields.unsupported("hostnames", "the route serves every host");
            fields.unsupported("rateLimitsFromHeaders", "use a TokenLimitPolicy");
            fields.unsupported("responseCache", "every request goes to a model server");
            fields.unsupported("schema", "the path of a request says its schema");
            fields.unsupported("targetRefs", "use `parentRefs`");
            let rules: Option<Vec<Rule>> = fields.require_list("rules");
            let costs: Option<Vec<LlmRequestCost>> = fields.list("llmRequestCosts");
            let (rules, costs) = (rules?, costs?);
            report_duplicate_names(&rules, fields);
            report_duplicate_keys(&costs, fields);
            let costs = costs.into_iter().map(|cost| RequestCost { key: cost.metadata_key.value, cost: cost.cost });
            let parents = parents.into_iter().filter_map(|Parent(gateway)| gateway).collect();
            Some(Self { rules, costs: costs.collect(), parents, labels: Labels::new(), pass_through: Vec::new() })
        })
    }
}

/// A Gateway; `None` for anything else.
struct Parent(Option<Reference>);

impl FromNode for Parent {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::peek(node, log, |fields| {
            let kind: Option<Arc<str>> = fields.take("kind");
            if kind.is_some_and(|kind| &*kind != "Gateway") {
                return Some(Self(None));
            }
            Some(Self(Some(Reference::from_fields(fields)?)))
        })
    }
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
            fields.unsupported("mirrors", "requests go to one backend alone");
            fields.unsupported("streamIdleTimeout", "a stalled stream ends with the request's timeout");
            let location = fields.here();
            let name = fields.take("name");
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
            Some(Self {
                location,
                name,
                matches: matches?,
                backends: backends?,
                models_owned_by,
                models_created_at,
                request_timeout: timeout,
            })
        })
    }
}

const MATCH_ON_MODEL: &str = "write `matches: [{headers: [{name: x-ai-eg-model, value: MODEL}]}]`";

/// Those that are served. A match that is not is left out as a whole: what it would have taken goes to other rules, or nowhere.
fn read_matches(fields: &mut Fields<'_>) -> Option<Vec<Located<RuleMatch>>> {
    if !fields.has("matches") {
        let message = "a rule without a match on `x-ai-eg-model` is not supported here, and left out";
        fields.leave_out(message, MATCH_ON_MODEL);
        return Some(Vec::new());
    }
    let matches: Vec<Located<ServedMatch>> = fields.require_list("matches")?;
    let served = |Located { value: ServedMatch(value), location }| value.map(|value| Located { value, location });
    Some(matches.into_iter().filter_map(served).collect())
}

/// `None` for a match that means something which is not served here.
struct ServedMatch(Option<RuleMatch>);

impl FromNode for ServedMatch {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let conditions: Vec<HeaderMatch> = fields.list("headers")?;
            let mut headers: Vec<(Arc<str>, Arc<str>)> = Vec::new();
            let mut support = Support::Supported;
            for HeaderMatch { name: Located { value: HeaderName(name), location }, value } in conditions {
                let Some(value) = value else {
                    support = Support::Unsupported;
                    continue;
                };
                if headers.iter().any(|(other, _)| *other == name) {
                    let twice =
                        Diagnostic::error(&location, format!("two conditions of this match are on {}", quote(&name)));
                    fields.push(twice.with_help("write another match: any of a rule's matches is enough"));
                } else {
                    headers.push((name, value));
                }
            }
            if support == Support::Unsupported {
                return Some(Self(None));
            }
            let Some(at) = headers.iter().position(|(name, _)| &**name == headers::MODEL) else {
                let message = "a match without a condition on `x-ai-eg-model` is not supported here, and left out";
                fields.leave_out(message, MATCH_ON_MODEL);
                return Some(Self(None));
            };
            let (_, model) = headers.swap_remove(at);
            headers.sort();
            Some(Self(Some(RuleMatch { model, headers })))
        })
    }
}

struct HeaderMatch {
    name: Located<HeaderName>,
    /// `None` where it is no exact value.
    value: Option<Arc<str>>,
}

impl FromNode for HeaderMatch {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let support = fields.take_with("type", |node, log| {
                let support =
                    one_of(node, log, &[("Exact", Support::Supported), ("RegularExpression", Support::Unsupported)]);
                if support == Some(Support::Unsupported) {
                    let help = "use `Exact`, with one match for each value";
                    log.leave_out::<()>(node, "`RegularExpression` is not supported yet: this match is left out", help);
                }
                support
            });
            let name = fields.require("name");
            let value: Option<Arc<str>> = fields.require("value");
            let is_exact = support != Some(Support::Unsupported);
            Some(Self { name: name?, value: value.map(|value| is_exact.then_some(value))? })
        })
    }
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
