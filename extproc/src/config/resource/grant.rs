//! ReferenceGrant of Gateway API: which references into its namespace are allowed.
//!
//! It is read whatever else it allows, for it may be meant for others too.

use std::sync::Arc;

use super::Spec;
use crate::config::fields::{Fields, FromNode, Log};
use crate::config::node::Node;
use crate::config::value::{DnsName, Namespace};

#[derive(Debug)]
pub(in crate::config) struct ReferenceGrant {
    pub(in crate::config) from: Vec<GrantFrom>,
    pub(in crate::config) to: Vec<GrantTo>,
}

/// Who may refer.
#[derive(Debug)]
pub(in crate::config) struct GrantFrom {
    /// Empty for the core group.
    pub(in crate::config) group: Arc<str>,
    pub(in crate::config) kind: Arc<str>,
    pub(in crate::config) namespace: Arc<str>,
}

/// To what.
#[derive(Debug)]
pub(in crate::config) struct GrantTo {
    /// Empty for the core group.
    pub(in crate::config) group: Arc<str>,
    pub(in crate::config) kind: Arc<str>,
    /// All of the kind, where it is not said.
    pub(in crate::config) name: Option<Arc<str>>,
}

impl Spec for ReferenceGrant {
    const KIND: &'static str = "ReferenceGrant";
}

impl FromNode for ReferenceGrant {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let from = fields.require_list("from");
            let to = fields.require_list("to");
            Some(Self { from: from?, to: to? })
        })
    }
}

impl FromNode for GrantFrom {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let group = read_group(fields);
            let kind = fields.require("kind");
            let namespace: Option<Namespace> = fields.require("namespace");
            Some(Self { group: group?, kind: kind?, namespace: namespace?.0 })
        })
    }
}

impl FromNode for GrantTo {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let group = read_group(fields);
            let kind = fields.require("kind");
            // A name that cannot be read must not stand for all.
            let is_named = fields.has("name");
            let name: Option<DnsName> = fields.take("name");
            let name = name.map(|DnsName(name)| name);
            if is_named && name.is_none() {
                return None;
            }
            Some(Self { group: group?, kind: kind?, name })
        })
    }
}

/// The core group is the empty text.
fn read_group(fields: &mut Fields<'_>) -> Option<Arc<str>> {
    fields.require_with("group", |node, log| match node.text() {
        Some(text) if text.is_empty() => Some(Arc::from("")),
        _ => Arc::from_node(node, log),
    })
}
