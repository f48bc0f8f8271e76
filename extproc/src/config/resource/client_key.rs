//! ClientKey: a caller, known by the hash of its key.

use std::collections::BTreeMap;
use std::sync::Arc;

use attache_gate::{KeyDigest, KeyPriority};

use super::Spec;
use crate::config::diagnostic::{Diagnostic, Location};
use crate::config::fields::{Fields, FromNode, Log, describe, quote};
use crate::config::node::{Node, Value};
use crate::config::value::{Located, Reference, Timestamp, header_value, is_dns_name, is_label_name, one_of};

#[derive(Debug)]
pub(in crate::config) struct ClientKey {
    /// At least one, no two of them equal.
    pub(in crate::config) sha256: Vec<Located<KeyDigest>>,
    /// `None`: the key is a tenant of its own.
    pub(in crate::config) tenant: Option<Arc<str>>,
    /// What it may call; empty is nothing.
    pub(in crate::config) routes: Vec<RoutePattern>,
    pub(in crate::config) labels: BTreeMap<String, String>,
    pub(in crate::config) priority: KeyPriority,
    /// The last moment at which it may come in.
    pub(in crate::config) not_after: Option<Located<Timestamp>>,
    pub(in crate::config) disabled: bool,
}

/// Routes that a key may call.
#[derive(Debug)]
pub(in crate::config) enum RoutePattern {
    /// `*`
    All,
    /// `name` in the key's own namespace, or `namespace/name`.
    One(Reference),
}

impl Spec for ClientKey {
    const KIND: &'static str = "ClientKey";
}

impl FromNode for ClientKey {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let sha256 = fields.require_with("sha256", read_digests);
            let tenant = fields.take_with("tenant", read_tenant);
            let routes = fields.list("routes");
            if routes.as_ref().is_some_and(Vec::is_empty) {
                let warning =
                    Diagnostic::warning(&fields.location("routes"), "this key may call nothing: it has no `routes`");
                fields.push(warning.with_help("list routes by name, or write `routes: [\"*\"]` for all of them"));
            }
            let labels = fields.take_with("labels", read_labels).unwrap_or_default();
            let priority = fields.take("priority").unwrap_or_default();
            let not_after = fields.take("notAfter");
            let disabled = fields.take("disabled").unwrap_or_default();
            Some(Self { sha256: sha256?, tenant, routes: routes?, labels, priority, not_after, disabled })
        })
    }
}

impl FromNode for KeyDigest {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        // The digits alone may read as a number to YAML, so its type says nothing here.
        if let Some(digest) = node.text().and_then(|text| Self::from_hex(text).ok()) {
            return Some(digest);
        }
        // People paste the key itself here, so nothing shows what was found.
        let error = Diagnostic::error(&log.location(node).secret(), "`sha256`: expected 64 hexadecimal digits");
        log.push(error.with_help("make them with `printf %s \"$KEY\" | sha256sum`"));
        None
    }
}

/// One takes the place of another, and nobody needs more at a time.
pub(in crate::config) const MAX_KEY_DIGESTS: usize = 4;

/// One, or a list while keys are changed.
fn read_digests(node: &Node, log: &mut Log) -> Option<Vec<Located<KeyDigest>>> {
    let Value::Sequence(items) = &node.value else { return Some(vec![Located::from_node(node, log)?]) };
    if items.is_empty() || items.len() > MAX_KEY_DIGESTS {
        let help = format!("list one to {MAX_KEY_DIGESTS} of them, or write one without a list");
        return log.fail(node, format!("there are {} of them", items.len()), help);
    }
    let read: Vec<Option<Located<KeyDigest>>> = items.iter().map(|item| Located::from_node(item, log)).collect();
    let mut digests: Vec<Located<KeyDigest>> = Vec::with_capacity(items.len());
    for digest in read {
        let digest = digest?;
        if digests.iter().any(|known| known.value == digest.value) {
            let error = Diagnostic::error(&digest.location, "`sha256`: this one is in the list twice");
            log.push(error.with_help("remove one of the two"));
            return None;
        }
        digests.push(digest);
    }
    Some(digests)
}

/// What a tenant's name or a label's value may have: a tenant goes into a header, and labels into every filter's
/// configuration.
pub(in crate::config) const MAX_KEY_VALUE_BYTES: usize = 256;

pub(in crate::config) const MAX_KEY_LABELS: usize = 64;

/// A tenant goes into a header, as it is.
fn read_tenant(node: &Node, log: &mut Log) -> Option<Arc<str>> {
    header_value(node, log, MAX_KEY_VALUE_BYTES)
}

fn read_labels(node: &Node, log: &mut Log) -> Option<BTreeMap<String, String>> {
    let Value::Mapping(entries) = &node.value else {
        return log.fail(node, format!("expected a mapping, found {}", describe(node)), "write `tier: gold` lines");
    };
    if entries.len() > MAX_KEY_LABELS {
        return log.fail(
            node,
            format!("there are {} of them", entries.len()),
            format!("write at most {MAX_KEY_LABELS}"),
        );
    }
    let mut labels = BTreeMap::new();
    for entry in entries {
        if !is_label_name(&entry.key) {
            let message = format!("{} is not a label that Kubernetes takes", quote(&entry.key));
            let help = "use letters, digits, `-`, `_` and `.`, at most 63 of them, a letter or digit first and last";
            log.push(Diagnostic::error(&log.at(entry.key_span.clone()), message).with_help(help));
        }
        if let Some(value) = header_value(&entry.value, log, MAX_KEY_VALUE_BYTES) {
            labels.insert(entry.key.to_string(), value.to_string());
        }
    }
    Some(labels)
}

impl FromNode for KeyPriority {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        one_of(node, log, &[("low", Self::Low), ("normal", Self::Normal)])
    }
}

impl FromNode for RoutePattern {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let text = Arc::<str>::from_node(node, log)?;
        if &*text == "*" {
            return Some(Self::All);
        }
        let location: Location = log.location(node);
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(Arc::from(namespace)), Arc::from(name)),
            None => (None, Arc::clone(&text)),
        };
        if is_dns_name(&name) && namespace.as_ref().is_none_or(|namespace: &Arc<str>| is_dns_name(namespace)) {
            return Some(Self::One(Reference { namespace, name, location }));
        }
        let help = "write `name`, `namespace/name`, or `*` for all routes";
        log.fail(node, format!("{} is not the name of a route", quote(&text)), help)
    }
}
