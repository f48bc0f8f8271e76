//! CacheAffinityPolicy: how a replica is chosen, for the backends it is attached to.

mod metrics;
mod weights;

use std::sync::Arc;

use super::kind::{AI_GATEWAY, ENVOY_GATEWAY};
use super::{Backend, Route, ServiceBackend, Spec};
use crate::affinity::blocks::MAX_BLOCKS;
use crate::affinity::{Basis, DebugHeaders, Masks, PlacementMode, Tenancy, Weights};
use crate::config::diagnostic::{Diagnostic, Location};
use crate::config::fields::{Fields, FromNode, Log};
use crate::config::node::Node;
use crate::config::value::{HeaderName, Located, Reference, byte_quantity, number, one_of};
pub(in crate::config) use metrics::MetricsSpec;
pub(in crate::config) use weights::{MAX_TOKENS_PER_SECOND, MAX_UNCACHED};

/// A block takes about 24 bytes: 1 MiB knows some 40,000 of them, 4 GiB what a thousand replicas hold.
const INDEX_BYTES: std::ops::RangeInclusive<u64> = (1 << 20)..=(4 << 30);
/// The first 4 KiB, below which prompts are hardly told apart.
pub(in crate::config) const MIN_BLOCKS: usize = 16;
/// Masks that are tried on every system prompt.
pub(in crate::config) const MOST_MASKS: usize = 16;
/// Far above what any replica's cache has room for, and still a number of tokens that bytes can be made of.
pub(in crate::config) const MAX_CACHE_TOKENS: u64 = 100_000_000_000_000;

/// What is `None` or absent has the default of [`AffinityPolicy`](crate::affinity::AffinityPolicy).
#[derive(Debug)]
pub(in crate::config) struct CacheAffinityPolicy {
    /// Never empty.
    pub(in crate::config) targets: Vec<AffinityTarget>,
    /// `None`: whichever suits the endpoints.
    pub(in crate::config) mode: Option<Located<PlacementMode>>,
    pub(in crate::config) basis: Basis,
    pub(in crate::config) session_header: Option<HeaderName>,
    pub(in crate::config) tenancy: Tenancy,
    pub(in crate::config) masks: Masks,
    pub(in crate::config) max_blocks: Option<usize>,
    pub(in crate::config) weights: Weights,
    pub(in crate::config) index_bytes: Option<usize>,
    pub(in crate::config) cache_tokens: Option<u64>,
    pub(in crate::config) metrics: Option<MetricsSpec>,
    pub(in crate::config) debug_headers: DebugHeaders,
}

/// What a policy is attached to. Where several policies reach one backend, the most specific target wins.
#[derive(Debug)]
pub(in crate::config) enum AffinityTarget {
    ServiceBackend(Reference),
    Backend(Reference),
    Route(Reference),
}

impl AffinityTarget {
    pub(in crate::config) fn location(&self) -> &Location {
        let (Self::ServiceBackend(reference) | Self::Backend(reference) | Self::Route(reference)) = self;
        &reference.location
    }
}

impl Spec for CacheAffinityPolicy {
    const KIND: &'static str = "CacheAffinityPolicy";
}

impl FromNode for CacheAffinityPolicy {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let targets = fields.require_list("targetRefs");
            let mode = fields.take("mode");
            let basis = fields.take("basis").unwrap_or(Basis::Prefix);
            let session_header = fields.take("sessionHeader");
            let tenancy = if fields.take("isolateTenants") == Some(true) { Tenancy::Isolated } else { Tenancy::Shared };
            let masks = fields.take_with("volatile", read_masks);
            let max_blocks = fields.take_with("maxBlocks", |node, log| number(node, log, MIN_BLOCKS, MAX_BLOCKS));
            let weights = fields.take("weights").unwrap_or_default();
            let index_bytes = fields.take_with("indexBytes", read_index_bytes);
            let cache_tokens = fields.take_with("cacheTokens", |node, log| number(node, log, 1, MAX_CACHE_TOKENS));
            let metrics = fields.take("metrics");
            let debug_headers =
                if fields.take("debugHeaders") == Some(true) { DebugHeaders::Shown } else { DebugHeaders::Hidden };
            Some(Self {
                targets: targets?,
                mode,
                basis,
                session_header,
                tenancy,
                masks: masks.unwrap_or_default(),
                max_blocks,
                weights,
                index_bytes,
                cache_tokens,
                metrics,
                debug_headers,
            })
        })
    }
}

fn read_index_bytes(node: &Node, log: &mut Log) -> Option<usize> {
    byte_quantity(node, log, INDEX_BYTES).and_then(|bytes| usize::try_from(bytes).ok())
}

/// Patterns beside the default ones; an empty list is no patterns at all.
fn read_masks(node: &Node, log: &mut Log) -> Option<Masks> {
    let patterns = Vec::<Located<Arc<str>>>::from_node(node, log)?;
    if patterns.len() > MOST_MASKS {
        return log.fail(node, format!("there are {} patterns", patterns.len()), format!("write at most {MOST_MASKS}"));
    }
    let mut all = Masks::default().patterns().map(str::to_owned).collect::<Vec<_>>();
    let mut is_sound = true;
    for Located { value, location } in &patterns {
        match Masks::new(&[value]) {
            Ok(_) => all.push(value.to_string()),
            Err(error) => {
                is_sound = false;
                let help = "write a regular expression as of Rust's `regex`: no look-around, no back-references";
                log.push(Diagnostic::error(location, format!("`volatile`: {error}")).with_help(help));
            }
        }
    }
    if patterns.is_empty() {
        all.clear();
    }
    // Each of them was sound, so all of them are.
    is_sound.then(|| Masks::new(&all).ok()).flatten()
}

impl FromNode for Basis {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        one_of(node, log, &[("prefix", Self::Prefix), ("key", Self::KeyOnly)])
    }
}

impl FromNode for PlacementMode {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        one_of(node, log, &[("endpoint", Self::Endpoint), ("cluster", Self::Cluster)])
    }
}

impl FromNode for AffinityTarget {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("namespace", "a policy is attached in its own namespace");
            fields.unsupported("sectionName", "the policy holds for the whole target");
            let target: Option<Target> = fields.require_with("kind", |node, log| {
                let choices = [
                    (ServiceBackend::KIND, Target { group: AI_GATEWAY, variant: Self::ServiceBackend }),
                    (Backend::KIND, Target { group: ENVOY_GATEWAY, variant: Self::Backend }),
                    (Route::KIND, Target { group: AI_GATEWAY, variant: Self::Route }),
                ];
                one_of(node, log, &choices)
            });
            fields.accept(&["group"]);
            if let Some(Target { group, .. }) = target {
                fields.take_with("group", |node, log| one_of(node, log, &[(group, ())]));
            }
            let reference = Reference::local_from_fields(fields);
            Some((target?.variant)(reference?))
        })
    }
}

/// A kind of target.
#[derive(Clone, Copy)]
struct Target {
    group: &'static str,
    variant: fn(Reference) -> AffinityTarget,
}
