//! TokenLimitPolicy: how much may be used, by whom together, in which time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::kind::AI_GATEWAY;
use super::{Route, Spec};
use crate::config::diagnostic::Diagnostic;
use crate::config::fields::{Fields, FromNode, Log, closest, quote};
use crate::config::node::Node;
use crate::config::value::{HeaderName, Located, Reference, number, one_of};
use crate::limit::{Cost, Dimension, Mode, Quantity};

#[derive(Debug)]
pub(in crate::config) struct TokenLimitPolicy {
    /// Never empty.
    pub(in crate::config) targets: Vec<LimitTarget>,
    /// Never empty, no two of one name.
    pub(in crate::config) limits: Vec<LimitSpec>,
}

/// A route, or one rule of it.
#[derive(Debug)]
pub(in crate::config) struct LimitTarget {
    pub(in crate::config) route: Reference,
    pub(in crate::config) rule: Option<Located<Arc<str>>>,
}

/// A [`Limit`](crate::limit::Limit), but for the policy's part of its id.
#[derive(Debug)]
pub(in crate::config) struct LimitSpec {
    pub(in crate::config) name: Located<Arc<str>>,
    pub(in crate::config) per: Vec<Dimension>,
    pub(in crate::config) quantity: Quantity,
    /// Never 0.
    pub(in crate::config) amount: u64,
    pub(in crate::config) window: Duration,
    pub(in crate::config) mode: Mode,
}

/// What a caller over a concurrency limit is told to wait: requests end at any moment.
const CONCURRENCY_RESET: Duration = Duration::from_secs(1);

impl Spec for TokenLimitPolicy {
    const KIND: &'static str = "TokenLimitPolicy";
}

impl FromNode for TokenLimitPolicy {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("priority", "all limits that match hold");
            fields.unsupported("shadow", "its limits refuse requests");
            let targets = fields.require_list("targetRefs");
            let limits: Option<Vec<LimitSpec>> = fields.require_list("limits");
            let (targets, limits) = (targets?, limits?);
            let mut seen = HashSet::new();
            for LimitSpec { name, .. } in &limits {
                if !seen.insert(&name.value) {
                    let twice = format!("two limits of this policy are named {}", quote(&name.value));
                    fields.push(Diagnostic::error(&name.location, twice).with_help("rename one of them"));
                }
            }
            Some(Self { targets, limits })
        })
    }
}

impl FromNode for LimitTarget {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("namespace", "a policy is attached in its own namespace");
            fields.take_with("group", |node, log| one_of(node, log, &[(AI_GATEWAY, ())]));
            fields.require_with("kind", |node, log| one_of(node, log, &[(Route::KIND, ())]));
            let rule = fields.take("sectionName");
            Some(Self { route: Reference::local_from_fields(fields)?, rule })
        })
    }
}

impl FromNode for LimitSpec {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("timeZone", "windows begin by UTC");
            fields.unsupported("cap", "`max_tokens` stays as the client sets it");
            fields.unsupported("onStoreError", "while Redis does not answer, requests get 503");
            fields.unsupported("priority", "all limits that match hold");
            fields.unsupported("shadow", "the limit refuses requests");
            fields.unsupported("when", "the limit holds for all requests of its targets");
            let name = fields.require("name");
            let per = fields.list("per");
            let counted = if fields.has("concurrency") { read_concurrency(fields) } else { read_budget(fields) };
            let Counted { quantity, amount, window, mode } = counted?;
            Some(Self { name: name?, per: per?, quantity, amount, window, mode })
        })
    }
}

/// What the two forms of a limit have in common.
struct Counted {
    quantity: Quantity,
    amount: u64,
    window: Duration,
    mode: Mode,
}

fn read_budget(fields: &mut Fields<'_>) -> Option<Counted> {
    if !fields.has("limit") {
        fields.accept(&["window", "cost", "mode"]);
        return fields.fail("a limit needs `limit` or `concurrency`", "write `limit: 1000` and `window: 1m`");
    }
    let amount = fields.take_with("limit", read_amount);
    let window: Option<Window> = fields.require("window");
    let quantity = fields.take_with("cost", read_quantity).unwrap_or(Quantity::Tokens(Cost::Total));
    let mode = fields.take("mode").unwrap_or_default();
    Some(Counted { quantity, amount: amount?, window: window?.0, mode })
}

fn read_concurrency(fields: &mut Fields<'_>) -> Option<Counted> {
    for field in ["limit", "cost"] {
        if fields.has(field) {
            let message = format!("`concurrency` counts requests in flight and takes no `{field}`");
            fields.reject(field, message, "make it a limit of its own");
        }
    }
    let amount = fields.take_with("concurrency", read_amount);
    let window: Option<Window> = fields.take("window");
    let mode = fields.take("mode").unwrap_or_default();
    if mode == Mode::Check {
        fields.reject(
            "mode",
            "`check` holds nothing, so it would never see a request in flight",
            "use `soft` or `strict`",
        );
    }
    let window = window.map_or(CONCURRENCY_RESET, |window| window.0);
    Some(Counted { quantity: Quantity::Concurrency, amount: amount?, window, mode })
}

fn read_amount(node: &Node, log: &mut Log) -> Option<u64> {
    /// Redis scripts count in doubles, which are exact up to 2^53: this leaves a factor of nine for what is held above it.
    const MAX: u64 = 1_000_000_000_000_000;
    number(node, log, 1, MAX)
}

fn read_quantity(node: &Node, log: &mut Log) -> Option<Quantity> {
    let choices = [
        ("total", Quantity::Tokens(Cost::Total)),
        ("input", Quantity::Tokens(Cost::Input)),
        ("output", Quantity::Tokens(Cost::Output)),
        ("cachedInput", Quantity::Tokens(Cost::CachedInput)),
        ("cacheCreationInput", Quantity::Tokens(Cost::CacheCreationInput)),
        ("reasoning", Quantity::Tokens(Cost::Reasoning)),
        ("requests", Quantity::Requests),
    ];
    one_of(node, log, &choices)
}

impl FromNode for Mode {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        one_of(node, log, &[("soft", Self::Soft), ("strict", Self::Strict), ("check", Self::Check)])
    }
}

struct Window(Duration);

impl FromNode for Window {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        /// A leap year: longer budgets are contracts, not windows.
        const MAX: Duration = Duration::from_secs(366 * 86_400);
        let window = Duration::from_node(node, log)?;
        if window.is_zero() || window > MAX {
            return log.fail(
                node,
                "a window is longer than nothing and at most 366 days",
                "write one like `1m`, `1h` or `1d`",
            );
        }
        Some(Self(window))
    }
}

impl FromNode for Dimension {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        const WORDS: [&str; 5] = ["key", "tenant", "model", "endpoint", "route"];
        let text = Arc::<str>::from_node(node, log)?;
        match &*text {
            "key" => return Some(Self::Key),
            "tenant" => return Some(Self::Tenant),
            "model" => return Some(Self::Model),
            "endpoint" | "route" => return Some(Self::Route),
            _ => {}
        }
        if let Some(HeaderName(name)) = text.strip_prefix("header:").and_then(HeaderName::parse) {
            return Some(Self::Header(name));
        }
        let help = match closest(&text, WORDS.into_iter()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "use `key`, `tenant`, `model`, `endpoint` or `header:NAME`".to_owned(),
        };
        log.fail(node, format!("{} is nothing to count by", quote(&text)), help)
    }
}
