//! What each kind of document says, before references between objects are followed.
//!
//! An object with any error in it is still known by its name, so that what refers to it is told the right thing and its last
//! good state can take its place.

mod backend;
mod cache_affinity;
mod client_key;
mod kind;
mod route;
mod service_backend;
mod token_limit;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::diagnostic::{Diagnostic, Location, Source};
use super::fields::{Fields, FromNode, Log, quote};
use super::model::ObjectName;
use super::node::{Document, Node, Value};
use super::source::{Documents, Lost};
use super::value::{DnsName, Located};

pub(super) use backend::{Backend, endpoint_id};
pub(super) use cache_affinity::{AffinityTarget, CacheAffinityPolicy};
pub(super) use client_key::{ClientKey, RoutePattern};
use kind::{Kind, Misnamed};
pub(super) use route::{BackendRef, Route};
pub(super) use service_backend::ServiceBackend;
pub(super) use token_limit::{LimitSpec, LimitTarget, TokenLimitPolicy};

/// Every object of the kinds that we read. As the result of a compilation: the last good state of each.
#[derive(Debug, Default)]
pub struct Resources {
    pub(super) backends: Catalog<Backend>,
    pub(super) service_backends: Catalog<ServiceBackend>,
    pub(super) routes: Catalog<Route>,
    pub(super) token_limits: Catalog<TokenLimitPolicy>,
    pub(super) cache_affinities: Catalog<CacheAffinityPolicy>,
    pub(super) client_keys: Catalog<ClientKey>,
    pub(super) guard: Guard,
}

/// Whether there has been a ClientKey, ever. A gate that asked for keys does not stand open because they are gone: a file may
/// be half written, or moved for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Guard {
    #[default]
    Unguarded,
    Guarded,
}

/// The objects of one kind, in document order, no two of one name.
#[derive(Debug)]
pub(super) struct Catalog<T> {
    objects: Vec<Object<T>>,
    by_name: HashMap<ObjectName, usize>,
}

/// One object.
#[derive(Debug)]
pub(super) struct Object<T> {
    pub(super) name: ObjectName,
    /// Of its name.
    pub(super) location: Location,
    /// `None` if there is an error in it.
    pub(super) spec: Option<Arc<T>>,
}

impl<T> Default for Catalog<T> {
    fn default() -> Self {
        Self { objects: Vec::new(), by_name: HashMap::new() }
    }
}

impl<T> Clone for Object<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), location: self.location.clone(), spec: self.spec.clone() }
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
}

/// What one kind's `spec` says.
pub(super) trait Spec: FromNode {
    const KIND: &'static str;
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) resources: Resources,
    pub(super) lost: Vec<Lost>,
    pub(super) diagnostics: Vec<Diagnostic>,
    /// How many objects there were, of all kinds.
    pub(super) objects: usize,
}

/// Reads every document.
pub(super) fn read(documents: Documents) -> Read {
    let Documents { documents, lost, diagnostics, .. } = documents;
    let mut reader = Reader { read: Read { lost, diagnostics, ..Read::default() }, foreign: HashSet::new() };
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
}

impl Reader {
    fn read_object(&mut self, source: &Arc<Source>, node: &Node, text: Text) {
        if is_list(node) {
            if let Some(Value::Sequence(items)) = node.get("items").map(|items| &items.value) {
                items.iter().for_each(|item| self.read_object(source, item, text));
            }
            return;
        }
        self.read.objects += 1;
        let mut log = Log::new(source);
        if self.read_kind(node, text, &mut log).is_none() {
            // Without a kind or a name nobody knows what this was.
            self.read.lost.push(Lost::from_text(source));
        }
        self.read.diagnostics.extend(log.into_findings());
    }

    fn read_kind(&mut self, node: &Node, text: Text, log: &mut Log) -> Option<()> {
        let TypeMeta { api_version, kind } = TypeMeta::from_node(node, log)?;
        let resources = &mut self.read.resources;
        match Kind::of(&api_version.value, &kind.value) {
            Ok(Kind::Backend) => resources.backends.read(node, text, log),
            Ok(Kind::ServiceBackend) => resources.service_backends.read(node, text, log),
            Ok(Kind::Route) => resources.routes.read(node, text, log),
            Ok(Kind::TokenLimitPolicy) => resources.token_limits.read(node, text, log),
            Ok(Kind::CacheAffinityPolicy) => resources.cache_affinities.read(node, text, log),
            Ok(Kind::ClientKey) => resources.client_keys.read(node, text, log),
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
        let sound = text == Text::Sound && !log.has_errors();
        let Metadata { name, location } = metadata;
        if let Some(first) = self.find(&name) {
            let twice = Diagnostic::error(&location, format!("there are two {}s named {name}", T::KIND));
            log.push(twice.with_help(format!("the first is at {}; rename or remove this one", first.location)));
            return Some(());
        }
        self.insert(Object { name, location, spec: spec.filter(|_| sound).map(Arc::new) });
        Some(())
    }
}

fn is_list(node: &Node) -> bool {
    let text = |field| node.get(field).and_then(Node::text).map(|text| &**text);
    text("apiVersion") == Some("v1") && text("kind") == Some("List")
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
}

impl FromNode for Metadata {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            // What Kubernetes itself keeps here, as `kubectl get -o yaml` shows it.
            fields.accept(&[
                "labels",
                "annotations",
                "creationTimestamp",
                "deletionGracePeriodSeconds",
                "deletionTimestamp",
            ]);
            fields.accept(&["finalizers", "generation", "managedFields", "ownerReferences", "resourceVersion", "uid"]);
            let name: Option<Located<DnsName>> = fields.require("name");
            let namespace: Option<DnsName> = fields.take("namespace");
            let namespace = namespace.map_or_else(|| Arc::from("default"), |namespace| namespace.0);
            let Located { value: DnsName(name), location } = name?;
            Some(Self { name: ObjectName { namespace, name }, location })
        })
    }
}
