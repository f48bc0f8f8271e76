//! What each kind of document says, before references between objects are followed.
//!
//! An object with any error in it is still known by its name, so that what refers to it is told the right thing and its last
//! good state can take its place.

mod backend;
mod cache_affinity;
mod client_key;
mod config_map;
mod grant;
mod kind;
mod limit;
mod mutation;
mod quota;
mod route;
mod secret;
mod security_policy;
mod service_backend;
mod tls;
mod token_limit;
mod traffic;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::diagnostic::{Diagnostic, Location, Source};
use super::fields::{Fields, FromNode, Log, quote};
use super::model::{FilterConfigs, ObjectName};
use super::node::{Document, Entry, Node, Value};
use super::source::{Documents, Keys, Lost};
use super::upstream::ApiKey;
use super::value::{DnsName, Located, Namespace, header_value};
use attache_proto::headers::COST_METADATA_NAMESPACE;

pub(super) use backend::{Backend, endpoint_id};
pub(super) use cache_affinity::{
    AffinityTarget, CacheAffinityPolicy, MAX_CACHE_TOKENS, MAX_TOKENS_PER_SECOND, MAX_UNCACHED, MIN_BLOCKS, MOST_MASKS,
    MetricsSpec,
};
pub(super) use client_key::{ClientKey, MAX_KEY_DIGESTS, MAX_KEY_LABELS, MAX_KEY_VALUE_BYTES, RoutePattern};
pub(super) use config_map::ConfigMaps;
pub(super) use grant::ReferenceGrant;
pub(super) use kind::{AI_GATEWAY, ATTACHE, ENVOY_GATEWAY, LIST};
use kind::{Kind, Misnamed};
pub(super) use limit::{MAX_AMOUNT, MAX_CONDITION_BYTES, MAX_PRICED_MODELS, MAX_UNITS, PriceTable};
pub(super) use quota::{QuotaPolicy, QuotaSpec};
pub(super) use route::{BackendRef, Route};
pub(super) use secret::{KEY_ENTRY, Kept, KeyFault, Secrets};
pub(super) use security_policy::{KeySpec, SecurityPolicy};
pub(super) use service_backend::ServiceBackend;
pub(super) use tls::{TlsPolicy, TlsSettings, TrustSpec, Validation};
pub(super) use token_limit::{
    Counted, FEWEST_DEFAULT_TOKENS, LimitSpec, LimitTarget, MOST_DEFAULT_TOKENS, TokenLimitPolicy,
};
pub(super) use traffic::{Sharing, TrafficPolicy, TrafficRule, TrafficTarget};

/// Every object of the kinds that we read. As the result of a compilation: the last good state of each.
#[derive(Debug, Default)]
pub struct Resources {
    pub(super) backends: Catalog<Backend>,
    pub(super) service_backends: Catalog<ServiceBackend>,
    pub(super) routes: Catalog<Route>,
    pub(super) token_limits: Catalog<TokenLimitPolicy>,
    pub(super) cache_affinities: Catalog<CacheAffinityPolicy>,
    pub(super) client_keys: Catalog<ClientKey>,
    pub(super) traffic_policies: Catalog<TrafficPolicy>,
    pub(super) quotas: Catalog<QuotaPolicy>,
    pub(super) security_policies: Catalog<SecurityPolicy>,
    pub(super) grants: Catalog<ReferenceGrant>,
    pub(super) tls_policies: Catalog<TlsPolicy>,
    /// The keys that were in force, by their Secrets.
    pub(super) keys: BTreeMap<ObjectName, ApiKey>,
    /// The authorities by which model servers were trusted, by their ConfigMaps, in PEM.
    pub(super) authorities: BTreeMap<ObjectName, Arc<str>>,
    pub(super) guard: Guard,
    pub(super) served: Served,
    /// What the Wasm filter was told of it, and before.
    pub(super) filter: FilterConfigs,
}

/// What was served, its limits being known: what is wrong with another object later does not take it away.
#[derive(Debug, Default)]
pub(super) struct Served {
    pub(super) routes: BTreeSet<ObjectName>,
    pub(super) backends: BTreeSet<ObjectName>,
}

/// Whether there has been a ClientKey, ever. A gate that asked for keys does not stand open because they are gone: a file may
/// be half written, or moved for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Guard {
    /// Nothing has said yet whether keys are meant.
    #[default]
    Unguarded,
    /// Everybody was let in, by sound documents without keys.
    Open,
    Guarded,
}

/// The objects of one kind, in document order, no two of one name.
#[derive(Debug)]
pub(super) struct Catalog<T> {
    objects: Vec<Object<T>>,
    by_name: HashMap<ObjectName, usize>,
    /// Objects whose names others had before.
    rejected: Vec<Object<T>>,
}

/// One object.
#[derive(Debug)]
pub(super) struct Object<T> {
    pub(super) name: ObjectName,
    /// Of its name.
    pub(super) location: Location,
    /// `None` if there is an error in it.
    pub(super) spec: Option<Arc<T>>,
    /// What can be told of one with errors.
    pub(super) remains: Option<Arc<T>>,
    /// Whether it is of a sort that is served.
    pub(super) support: Support,
}

/// Whether an object asks for something that is served here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Support {
    Supported,
    /// It is right as it is, and not for us. What it was before is no stand-in for it.
    Unsupported,
}

impl<T> Default for Catalog<T> {
    fn default() -> Self {
        Self { objects: Vec::new(), by_name: HashMap::new(), rejected: Vec::new() }
    }
}

impl<T> Clone for Object<T> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            location: self.location.clone(),
            spec: self.spec.clone(),
            remains: self.remains.clone(),
            support: self.support,
        }
    }
}

impl<T> Catalog<T> {
    /// Adds an object of a new name.
    pub(super) fn insert(&mut self, object: Object<T>) {
        self.by_name.insert(object.name.clone(), self.objects.len());
        self.objects.push(object);
    }

    pub(super) fn find(&self, name: &ObjectName) -> Option<&Object<T>> {
        self.objects.get(*self.by_name.get(name)?)
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Object<T>> {
        self.objects.iter()
    }

    /// Objects that cannot be known by their names, since others are.
    pub(super) fn rejected(&self) -> &[Object<T>] {
        &self.rejected
    }
}

/// What one kind's `spec` says.
pub(super) trait Spec: FromNode {
    const KIND: &'static str;

    /// Takes what the labels of the object say.
    #[must_use]
    fn labelled(self, _labels: &Labels) -> Self {
        self
    }

    /// Takes what the annotations of the object say, where its kind has any that are ours, and reports what is wrong in them.
    #[must_use]
    fn annotated(self, _annotations: &Annotations, _log: &mut Log) -> Self {
        self
    }
}

/// Where objects are whose namespace is not said.
const DEFAULT_NAMESPACE: &str = "default";

/// The labels of an object.
pub(super) type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// The annotations of an object that are ours.
pub(super) type Annotations = BTreeMap<Arc<str>, Located<Arc<str>>>;

/// What the names of our annotations begin with.
const OUR_ANNOTATIONS: &str = "attache.dev/";

/// Names the paths that a route passes through.
pub(super) const PASS_THROUGH: &str = "attache.dev/pass-through";

/// Names the field by which a backend's answers are bounded, where we add one.
pub(super) const ANSWER_BOUND: &str = "attache.dev/answer-bound";

/// Says which class of models a route or a backend serves.
pub(super) const MODEL_CLASS: &str = "attache.dev/model-class";

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) resources: Resources,
    pub(super) secrets: Secrets,
    pub(super) config_maps: ConfigMaps,
    pub(super) keys: Keys,
    pub(super) lost: Vec<Lost>,
    pub(super) diagnostics: Vec<Diagnostic>,
    /// How many objects there were, of all kinds.
    pub(super) objects: usize,
}

/// Reads every document.
pub(super) fn read(documents: Documents) -> Read {
    let Documents { documents, secrets, keys, lost, diagnostics, .. } = documents;
    let read = Read { secrets, keys, lost, diagnostics, ..Read::default() };
    let mut reader = Reader { read, foreign: HashSet::new(), lost: HashSet::new() };
    for Document { source, root, diagnostics } in documents {
        let state = if diagnostics.is_empty() { Text::Sound } else { Text::Faulty };
        reader.read.diagnostics.extend(diagnostics);
        reader.read_object(&source, &root, state);
    }
    reader.read
}

/// Whether the text that an object is read from had faults of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    Sound,
    Faulty,
}

struct Reader {
    read: Read,
    /// Foreign API groups that were warned of.
    foreign: HashSet<Arc<str>>,
    /// Texts of which something was lost, so that each is searched once, however many of its objects are.
    lost: HashSet<(*const Source, Extent)>,
}

/// How much of a text may be lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Extent {
    /// What its words may name.
    Named,
    /// Nobody can tell what.
    Unknown,
    /// Anything of ours.
    Whole,
}

impl Reader {
    fn read_object(&mut self, source: &Arc<Source>, node: &Node, text: Text) {
        if is_list(node) {
            match node.get("items").map(|items| &items.value) {
                Some(Value::Sequence(items)) => items.iter().for_each(|item| self.read_object(source, item, text)),
                _ => {
                    let here = Log::new(source).location(node);
                    let warning = Diagnostic::warning(&here, "this List has no list of `items`");
                    self.read.diagnostics.push(warning.with_help("write its objects under `items`, or remove it"));
                    self.lose(source, Extent::Unknown);
                }
            }
            return;
        }
        let mut log = Log::new(source);
        if !is_object(node) {
            let here = log.location(node);
            let message = "this is no object of Kubernetes: it is not read";
            log.push(
                Diagnostic::warning(&here, message).with_help("write `apiVersion`, `kind`, `metadata` and `spec`"),
            );
            self.lose(source, Extent::Named);
            self.read.diagnostics.extend(log.into_findings());
            return;
        }
        self.read.objects += 1;
        let known = self.read_kind(node, text, &mut log);
        if let Some(extent) = extent_of_loss(node, known) {
            self.lose(source, extent);
        }
        self.read.diagnostics.extend(log.into_findings());
    }

    fn lose(&mut self, source: &Arc<Source>, extent: Extent) {
        if self.lost.insert((Arc::as_ptr(source), extent)) {
            self.read.lost.push(match extent {
                Extent::Named => Lost::from_text(source),
                Extent::Unknown => Lost::unknown(source),
                Extent::Whole => Lost::whole(Path::new(source.name())),
            });
        }
    }

    fn read_kind(&mut self, node: &Node, text: Text, log: &mut Log) -> Option<()> {
        let TypeMeta { api_version, kind } = TypeMeta::from_node(node, log)?;
        let group = api_version.value.split('/').next().unwrap_or_default();
        if let Some(today) = kind::name_of_today(group, &kind.value) {
            let message = format!("{} is the older name of {today}: it is read as one", quote(&kind.value));
            log.push(Diagnostic::warning(&kind.location, message).with_help(format!("write `kind: {today}`")));
        }
        let resources = &mut self.read.resources;
        match Kind::of(&api_version.value, &kind.value) {
            Ok(Kind::Backend) => resources.backends.read(node, text, log),
            Ok(Kind::ServiceBackend) => resources.service_backends.read(node, text, log),
            Ok(Kind::Route) => resources.routes.read(node, text, log),
            Ok(Kind::TokenLimitPolicy) => resources.token_limits.read(node, text, log),
            Ok(Kind::CacheAffinityPolicy) => resources.cache_affinities.read(node, text, log),
            Ok(Kind::ClientKey) => resources.client_keys.read(node, text, log),
            Ok(Kind::QuotaPolicy) => resources.quotas.read(node, text, log),
            Ok(Kind::SecurityPolicy) => resources.security_policies.read(node, text, log),
            Ok(Kind::ReferenceGrant) => resources.grants.read(node, text, log),
            Ok(Kind::TlsPolicy) => resources.tls_policies.read(node, text, log),
            Ok(Kind::ConfigMap) => {
                self.read.config_maps.read(node);
                Some(())
            }
            Ok(Kind::Secret) => {
                self.read.secrets.read(node);
                Some(())
            }
            Ok(Kind::TrafficPolicy) if traffic::counts_tokens(node) => resources.traffic_policies.read(node, text, log),
            Ok(Kind::TrafficPolicy) => {
                let message =
                    format!("{} counts no tokens of {COST_METADATA_NAMESPACE}: it is not applied here", kind.value);
                let warning = Diagnostic::warning(&kind.location, message);
                log.push(warning.with_help("nothing is wrong if Envoy Gateway applies it; else remove it"));
                Some(())
            }
            Ok(Kind::Unsupported { consequence }) => {
                let message = format!("{} is known but not supported yet: {consequence}", kind.value);
                log.push(Diagnostic::warning(&kind.location, message).with_help("leave it for later, or remove it"));
                Some(())
            }
            Ok(Kind::NotOurs) => Some(()),
            Ok(Kind::Foreign { group }) => {
                if self.foreign.insert(Arc::from(group)) {
                    let message = format!("objects of the group {} are not read", quote(group));
                    let warning = Diagnostic::warning(&api_version.location, message);
                    log.push(warning.with_help("nothing is wrong if they are meant for somebody else"));
                }
                Some(())
            }
            Err(Misnamed { message, help }) => {
                log.push(Diagnostic::error(&kind.location, message).with_help(help));
                None
            }
        }
    }
}

impl<T: Spec> Catalog<T> {
    /// Reads an object; `None` if it has no name to be known by.
    fn read(&mut self, node: &Node, text: Text, log: &mut Log) -> Option<()> {
        let (metadata, spec) = Fields::read(node, log, |fields| {
            fields.accept(&["apiVersion", "kind", "status"]);
            let metadata: Option<Metadata> = fields.require("metadata");
            let spec: Option<T> = fields.require("spec");
            Some((metadata?, spec))
        })?;
        let Metadata { name, location, labels, annotations } = metadata;
        let spec = spec.map(|spec| Arc::new(spec.labelled(&labels).annotated(&annotations, log)));
        let sound = text == Text::Sound && !log.has_errors();
        let support = if spec.is_none() && sound { Support::Unsupported } else { Support::Supported };
        // Of a text in which a field is there twice, nobody knows which of the two was meant.
        let remains = spec.clone().filter(|_| !sound && text == Text::Sound);
        let object = Object { name, location, spec: spec.filter(|_| sound), remains, support };
        if let Some(first) = self.find(&object.name) {
            let message = format!("there are two {}s named {}", T::KIND, object.name);
            let twice = Diagnostic::error(&object.location, message);
            log.push(twice.with_help(format!("the first is at {}; rename or remove this one", first.location)));
            let remains = object.remains.or(object.spec);
            self.rejected.push(Object { spec: None, remains, ..object });
            return Some(());
        }
        self.insert(object);
        Some(())
    }
}

/// How much is lost with an object, if anything is. A text that was cut off may end anywhere in one: in the name of a group or of a
/// kind, or before the namespace that says what a policy is about.
fn extent_of_loss(node: &Node, known: Option<()>) -> Option<Extent> {
    let text = |field| node.get(field).filter(|value| !value.is_null()).and_then(Node::text);
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let is_ours = api_version.is_some_and(|version| version.split('/').next() == Some(kind::ATTACHE));
    let (Some(_), Some(kind)) = (api_version, kind) else {
        return Some(if is_ours { Extent::Whole } else { Extent::Unknown });
    };
    if known.is_none() {
        return Some(match is_ours {
            true => Extent::Whole,
            false if kind::begins_a_guard(kind) => Extent::Unknown,
            false => Extent::Named,
        });
    }
    let has_spec = node.get("spec").is_some_and(|spec| !spec.is_null());
    (kind::GUARDS.contains(&&**kind) && !has_spec).then_some(Extent::Named)
}

/// Whether it has any of the fields by which objects are known. Values of Helm charts and settings of other programs, which
/// stand beside manifests, have none.
fn is_object(node: &Node) -> bool {
    let is_mapping = matches!(node.value, Value::Mapping(_));
    !is_mapping || ["apiVersion", "kind", "metadata", "spec"].iter().any(|field| node.get(field).is_some())
}

fn is_list(node: &Node) -> bool {
    let text = |field| node.get(field).and_then(Node::text).map(|text| &**text);
    text("apiVersion") == Some("v1") && text("kind") == Some(kind::LIST)
}

struct TypeMeta {
    api_version: Located<Arc<str>>,
    kind: Located<Arc<str>>,
}

impl FromNode for TypeMeta {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::peek(node, log, |fields| {
            let api_version = fields.require("apiVersion");
            let kind = fields.require("kind");
            Some(Self { api_version: api_version?, kind: kind? })
        })
    }
}

struct Metadata {
    name: ObjectName,
    location: Location,
    labels: Labels,
    annotations: Annotations,
}

impl FromNode for Metadata {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            // What Kubernetes itself keeps here, as `kubectl get -o yaml` shows it.
            fields.accept(&["creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp"]);
            fields.accept(&["finalizers", "generation", "managedFields", "ownerReferences", "resourceVersion", "uid"]);
            let name: Option<Located<DnsName>> = fields.require("name");
            let namespace: Option<Namespace> = fields.take("namespace");
            let labels = fields.take_with("labels", read_labels).unwrap_or_default();
            let annotations = fields.take_with("annotations", read_annotations).unwrap_or_default();
            let namespace = namespace.map_or_else(|| Arc::from(DEFAULT_NAMESPACE), |namespace| namespace.0);
            let Located { value: DnsName(name), location } = name?;
            Some(Self { name: ObjectName { namespace, name }, location, labels, annotations })
        })
    }
}

/// All but one of them mean something to others alone, who will say what is wrong with them.
fn read_labels(node: &Node, log: &mut Log) -> Option<Labels> {
    let Value::Mapping(entries) = &node.value else { return None };
    let mut labels = Labels::new();
    for Entry { key, value, .. } in entries {
        if &**key == MODEL_CLASS {
            const MAX_BYTES: usize = 63;
            labels.insert(Arc::clone(key), header_value(value, log, MAX_BYTES)?);
        } else if let Some(text) = value.text() {
            labels.insert(Arc::clone(key), Arc::clone(text));
        }
    }
    Some(labels)
}

/// Reports each annotation of ours but the one that is `known` of such an object.
fn report_others(annotations: &Annotations, known: &str, object: &str, log: &mut Log) {
    for (name, Located { location, .. }) in annotations.iter().filter(|(name, _)| &***name != known) {
        let unknown = Diagnostic::warning(location, format!("there is no annotation {} of {object}", quote(name)));
        log.push(unknown.with_help(format!("there is `{known}`; rename or remove this one")));
    }
}

/// Those of others are theirs to judge.
fn read_annotations(node: &Node, log: &mut Log) -> Option<Annotations> {
    let Value::Mapping(entries) = &node.value else { return None };
    let ours = entries.iter().filter(|entry| entry.key.starts_with(OUR_ANNOTATIONS));
    let text = |value: &Node, log: &mut Log| Located::<Arc<str>>::from_node(value, log);
    Some(ours.filter_map(|entry| Some((Arc::clone(&entry.key), text(&entry.value, log)?))).collect())
}
