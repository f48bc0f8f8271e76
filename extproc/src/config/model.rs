//! The checked configuration: what is left of the operator's documents once nothing in it can be wrong.
//!
//! A [`Config`] is immutable. It is compiled once, published behind an `ArcSwap`, and an exchange holds the one it started
//! with to its end, so indices into it never dangle.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use attache_gate::{ConfigDigest, Gate, GateConfig, UnattachedStatus};
use attache_proto::Usage;
use attache_proto::pass_through::PathPattern;

use super::host::HostName;
use super::pattern::Pattern;
use super::tls::UpstreamTls;
use super::upstream::{AnswerBound, Api, Credentials, Mutation};
use crate::affinity::{AffinityPolicy, SecretSeed};
use crate::exchange::DEFAULT_BODY_MEMORY_BYTES;
use crate::limit::{Cost, CostContext, CostProgram, Limit};

/// Everything the sidecar knows of the operator's will at one moment.
#[derive(Debug)]
pub struct Config {
    /// Counts up with every reload; 1 is the first.
    pub generation: u64,
    /// What holds for all routes.
    pub settings: Settings,
    /// The header checks, as the sidecar runs them.
    pub gate: Gate,
    /// The same checks as data, as the Wasm filter gets them.
    pub gate_config: GateConfig,
    /// By what the filter's configuration is known that belongs to this.
    pub filter: FilterConfigs,
    /// Unified endpoints, in document order.
    pub routes: Vec<Route>,
    /// Model servers, in document order; [`Target::backend`] points here.
    pub backends: Vec<Backend>,
    /// The Secrets that hold keys to upstreams, whether they are among the documents or not.
    pub secrets: BTreeSet<ObjectName>,
    /// For each model name that a rule gives, the matches that requests for it may meet, those by patterns and without a model
    /// among them: most specific first.
    pub rules_by_model: HashMap<Arc<str>, Vec<MatchId>>,
    /// The matches that requests for any other model may meet, most specific first.
    pub open_matches: Vec<MatchId>,
}

impl Config {
    /// The route that `id` names.
    pub fn route(&self, id: RuleId) -> Option<&Route> {
        self.routes.get(id.route)
    }

    /// The rule that `id` names.
    pub fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.route(id)?.rules.get(id.rule)
    }

    /// The match that `id` names.
    pub fn rule_match(&self, id: MatchId) -> Option<&RuleMatch> {
        self.rule(id.rule)?.matches.get(id.index)
    }

    /// What is known of a model by the name that a client gave it, where `rule` serves it.
    pub fn model_named(&self, name: &str, rule: &Rule) -> ModelName {
        match self.rules_by_model.get_key_value(name) {
            Some((name, _)) => ModelName { name: Arc::clone(name), group: None },
            None => ModelName { name: Arc::from(name), group: Some(Arc::clone(&rule.label)) },
        }
    }

    /// All limits, each at least once.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        let of_routes = self
            .routes
            .iter()
            .flat_map(|route| route.limits.iter().chain(route.rules.iter().flat_map(|rule| &rule.limits)));
        of_routes.chain(self.backends.iter().flat_map(|backend| &backend.limits))
    }

    /// Whether every limit is known that a request has to keep to which `rule` sends to `backend`.
    pub fn limits_known(&self, rule: RuleId, backend: usize) -> LimitsKnown {
        let of_route = self.route(rule).map(|route| route.limits_known);
        let of_rule = self.rule(rule).map(|rule| rule.limits_known);
        let of_backend = self.backends.get(backend).map(|backend| backend.limits_known);
        let known = [of_route, of_rule, of_backend].into_iter().all(|known| known == Some(LimitsKnown::All));
        if known { LimitsKnown::All } else { LimitsKnown::NotAll }
    }
}

/// By what configurations of the Wasm filter are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilterConfigs {
    /// What is rendered of the documents in force.
    pub digest: ConfigDigest,
    /// What was rendered of those that were in force before, since the process started; the last comes last.
    pub earlier: Vec<ConfigDigest>,
}

impl FilterConfigs {
    /// So many reloads back it is known of a filter that it is older.
    const MOST_EARLIER: usize = 64;

    /// The same once another configuration is in force.
    #[must_use]
    pub fn followed_by(&self, config: &GateConfig) -> Self {
        let digest = ConfigDigest::of(config);
        let mut earlier = self.earlier.clone();
        // Of the process's first configuration there was none before.
        if *self != Self::default() {
            earlier.push(self.digest);
        }
        earlier.retain(|other| *other != digest);
        earlier.drain(..earlier.len().saturating_sub(Self::MOST_EARLIER));
        Self { digest, earlier }
    }
}

/// What holds for all routes; from the command line, not from documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// A path prefix before `/v1/...`, without a trailing slash; empty by default.
    pub path_prefix: String,
    /// The largest request body that is accepted, in bytes.
    pub max_body_bytes: u64,
    /// What all bodies together may take in memory until they have gone on, in bytes.
    pub body_memory_bytes: u64,
    /// With which status a key is refused that is not attached to what it calls.
    pub unattached_status: UnattachedStatus,
    /// What all hashes of prompts begin with.
    pub affinity_secret: SecretSeed,
    /// Where the keys to upstreams are mounted; elsewhere than in documents there are none without.
    pub secrets_dir: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            path_prefix: String::new(),
            max_body_bytes: 32 * 1024 * 1024,
            body_memory_bytes: DEFAULT_BODY_MEMORY_BYTES,
            unattached_status: UnattachedStatus::default(),
            affinity_secret: SecretSeed::default(),
            secrets_dir: None,
        }
    }
}

/// `namespace/name` of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// The namespace; `default` where a document gives none.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Where a rule stands: a route in [`Config::routes`], a rule in [`Route::rules`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RuleId {
    /// Index into [`Config::routes`].
    pub route: usize,
    /// Index into [`Route::rules`].
    pub rule: usize,
}

/// Where a match stands: in [`Rule::matches`] of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatchId {
    /// The rule.
    pub rule: RuleId,
    /// Index into [`Rule::matches`].
    pub index: usize,
}

/// The name of a model, and what stands for it wherever names must not grow without a bound: in metrics, in what is learned, and
/// in the counters of limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    /// The name.
    pub name: Arc<str>,
    /// The [`Rule::label`] that stands for it; `None` where the name is one of the configuration's.
    pub group: Option<Arc<str>>,
}

impl ModelName {
    /// What stands for it.
    pub fn bounded(&self) -> &Arc<str> {
        self.group.as_ref().unwrap_or(&self.name)
    }
}

/// Whether the limits of something are known. Where a policy with errors leaves that open, nothing of it is served: a limit that
/// nobody reads is a budget that anybody may overdraw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitsKnown {
    /// They are.
    All,
    /// A policy that has errors, and no earlier state without, may have more of them.
    NotAll,
}

/// One AIGatewayRoute: a unified endpoint, or several that share keys and limits.
#[derive(Debug)]
pub struct Route {
    /// Its name.
    pub name: ObjectName,
    /// `namespace/name` as text, made once.
    pub id: Arc<str>,
    /// The hosts that it serves; empty is all of them.
    pub hosts: Vec<HostName>,
    /// Its rules, in document order.
    pub rules: Vec<Rule>,
    /// Limits of every policy that targets this route as a whole.
    pub limits: Vec<Arc<Limit>>,
    /// Whether these are all that there are meant to be.
    pub limits_known: LimitsKnown,
    /// Costs to publish as dynamic metadata.
    pub costs: Vec<RequestCost>,
    /// The class of its models, where no backend says otherwise.
    pub model_class: Option<Arc<str>>,
    /// What it passes through besides the operations that we know.
    pub pass_through: Vec<PathPattern>,
}

/// One rule: which requests, to which targets.
#[derive(Debug)]
pub struct Rule {
    /// The rule's name, if it has one; `sectionName` of a policy refers to it.
    pub name: Option<Arc<str>>,
    /// `namespace/route/rule`, by its name or else its place in the route: what stands for models that only a pattern names.
    pub label: Arc<str>,
    /// Any of these matches; never empty.
    pub matches: Vec<RuleMatch>,
    /// Where such requests may go; never empty.
    pub targets: Vec<Target>,
    /// Limits of policies whose `sectionName` is this rule.
    pub limits: Vec<Arc<Limit>>,
    /// Whether these are all that there are meant to be.
    pub limits_known: LimitsKnown,
    /// Who `/v1/models` says owns the model.
    pub models_owned_by: Arc<str>,
    /// When `/v1/models` says the model was made, in seconds since 1970.
    pub models_created_at: u64,
    /// Whether `/v1/models` lists its models.
    pub is_listed: bool,
    /// How long Envoy waits for a complete answer; `None` is no bound.
    pub request_timeout: Option<Duration>,
}

/// All of its conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RuleMatch {
    /// The model asked for; `None` is any.
    pub model: Option<ValueMatch>,
    /// Further headers, lower-case names, with what their values must be.
    pub headers: Vec<(Arc<str>, ValueMatch)>,
}

/// What a value must be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValueMatch {
    /// This one.
    Exact(Arc<str>),
    /// As the expression says.
    Pattern(Pattern),
}

impl RuleMatch {
    /// The one model that it is about, if it names one.
    pub fn model_name(&self) -> Option<&Arc<str>> {
        match &self.model {
            Some(ValueMatch::Exact(name)) => Some(name),
            Some(ValueMatch::Pattern(_)) | None => None,
        }
    }

    /// Whether it is about this model, among others perhaps.
    pub fn is_about(&self, model: &str) -> bool {
        self.model.as_ref().is_none_or(|wanted| wanted.is(model))
    }

    /// Whether the further headers are as it wants them. `header` answers with a request header's value by its lower-case name.
    pub fn holds_for<'h>(&self, header: impl Fn(&str) -> Option<&'h str>) -> bool {
        self.headers.iter().all(|(name, wanted)| header(name).is_some_and(|value| wanted.is(value)))
    }

    /// The larger wins, as Envoy Gateway orders routes: by the number of conditions, then of those that are exact.
    pub fn specificity(&self) -> (usize, usize) {
        let conditions = || self.model.iter().chain(self.headers.iter().map(|(_, value)| value));
        (conditions().count(), conditions().filter(|value| matches!(value, ValueMatch::Exact(_))).count())
    }
}

impl ValueMatch {
    fn is(&self, value: &str) -> bool {
        match self {
            Self::Exact(wanted) => **wanted == *value,
            Self::Pattern(pattern) => pattern.matches(value),
        }
    }
}

/// One way to serve a rule's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Index into [`Config::backends`].
    pub backend: usize,
    /// Share among the targets of the same priority; 0 takes no traffic.
    pub weight: u32,
    /// 0 is tried first.
    pub priority: u32,
    /// The model name to send, where it differs from the one asked for.
    pub model_override: Option<Arc<str>>,
    /// What is changed of requests that go this way, by the route and by the backend.
    pub mutation: Arc<Mutation>,
}

/// One AIServiceBackend with the Backend behind it: replicas of one model server.
#[derive(Debug)]
pub struct Backend {
    /// The AIServiceBackend's name.
    pub name: ObjectName,
    /// The Envoy cluster: `namespace/name` of the Backend.
    pub cluster: Arc<str>,
    /// Its replicas; never empty, no two alike.
    pub endpoints: Vec<Endpoint>,
    /// How they are called by TLS; `None` is in clear text.
    pub tls: Option<Arc<UpstreamTls>>,
    /// What it serves, and where.
    pub api: Api,
    /// How its answers are bounded.
    pub answer_bound: AnswerBound,
    /// The key to it.
    pub credentials: Credentials,
    /// How a replica is chosen. Every backend has one: the default policy where no document names it.
    pub affinity: Arc<AffinityPolicy>,
    /// What Envoy may do when an attempt fails.
    pub retries: Retries,
    /// The class of its model.
    pub model_class: Option<Arc<str>>,
    /// Limits of every policy that targets it: of requests that it serves, whichever route they come by.
    pub limits: Vec<Arc<Limit>>,
    /// Whether these are all that there are meant to be.
    pub limits_known: LimitsKnown,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `host:port` (IPv6 in brackets) or `unix:/path`; what logs, metrics and the rank use.
    pub id: Arc<str>,
    /// The Envoy cluster of this replica alone, used in `cluster` mode: `<backend cluster>/<id>`.
    pub cluster: Arc<str>,
    /// Where it is.
    pub address: EndpointAddress,
}

/// Where a replica listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointAddress {
    /// An IP address and port: Envoy's `override_host` can name it.
    Ip(SocketAddr),
    /// A DNS name, which Envoy resolves.
    Fqdn {
        /// The name.
        hostname: Arc<str>,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Unix(Arc<str>),
}

/// Envoy's retries of one request, within one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    /// Attempts after the first.
    pub attempts: u32,
}

/// One entry of `llmRequestCosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestCost {
    /// The metadata key under [`attache_proto::headers::COST_METADATA_NAMESPACE`].
    pub key: Arc<str>,
    /// What is written there.
    pub cost: CostSource,
}

/// Where the number of a [`RequestCost`] comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CostSource {
    /// The usage.
    Tokens(Cost),
    /// An expression over it.
    Expression(Arc<CostProgram>),
}

impl CostSource {
    /// The whole number that is published of an answer.
    pub fn of(&self, usage: &Usage, context: &CostContext) -> u64 {
        match self {
            Self::Tokens(cost) => cost.of(usage),
            Self::Expression(program) => program.cost(usage, context) / 1_000,
        }
    }
}
