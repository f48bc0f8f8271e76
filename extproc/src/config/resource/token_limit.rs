//! TokenLimitPolicy: how much may be used, by whom together, in which time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::kind::AI_GATEWAY;
use super::limit::{Expression, MAX_AMOUNT, PriceTable, is_fraction, read_money, read_window};
use super::{Route, Spec};
use crate::config::diagnostic::Diagnostic;
use crate::config::fields::{Fields, FromNode, Log, describe, quote};
use crate::config::node::{Node, Value};
use crate::config::value::{Located, Reference, number, one_of};
use crate::limit::{Cap, Condition, Cost, Dimension, Enforcement, Mode, OnStoreError, Quantity, Window};

#[derive(Debug)]
pub(in crate::config) struct TokenLimitPolicy {
    /// `None`, in what remains of one with errors: nobody knows.
    pub(in crate::config) targets: Option<Vec<LimitTarget>>,
    /// Never empty, no two of one name.
    pub(in crate::config) limits: Vec<LimitSpec>,
    pub(in crate::config) prices: Option<PriceTable>,
}

/// A route, or one rule of it.
#[derive(Debug, Clone)]
pub(in crate::config) struct LimitTarget {
    pub(in crate::config) route: Reference,
    pub(in crate::config) rule: Option<Located<Arc<str>>>,
}

/// A [`Limit`](crate::limit::Limit), but for the policy's part of its id.
#[derive(Debug)]
pub(in crate::config) struct LimitSpec {
    pub(in crate::config) name: Located<Arc<str>>,
    pub(in crate::config) per: Vec<Dimension>,
    pub(in crate::config) when: Vec<Condition>,
    pub(in crate::config) counted: Counted,
    pub(in crate::config) low_priority_percent: u8,
    pub(in crate::config) enforcement: Enforcement,
    pub(in crate::config) on_store_error: OnStoreError,
}

/// How much of what in which time.
#[derive(Debug)]
pub(in crate::config) struct Counted {
    pub(in crate::config) quantity: Quantity,
    /// In the quantity's unit, never 0.
    pub(in crate::config) amount: u64,
    pub(in crate::config) window: Window,
    pub(in crate::config) mode: Mode,
    pub(in crate::config) cap: Cap,
    pub(in crate::config) default_max_tokens: Option<u64>,
}

/// For how long an idle counter of requests in flight is kept.
const CONCURRENCY_WINDOW: Window = Window::Fixed(Duration::from_secs(1));

/// Fewer are no answer.
pub(in crate::config) const FEWEST_DEFAULT_TOKENS: u64 = 16;

/// No model answers more.
pub(in crate::config) const MOST_DEFAULT_TOKENS: u64 = 1_000_000;

/// The default of [`Limit::low_priority_percent`](crate::limit::Limit::low_priority_percent).
const LOW_PRIORITY_PERCENT: u8 = 80;

impl Spec for TokenLimitPolicy {
    const KIND: &'static str = "TokenLimitPolicy";
}

impl FromNode for TokenLimitPolicy {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let targets = fields.require_list("targetRefs");
            let prices: Option<PriceTable> = fields.take("prices");
            let shadow = fields.take("shadow");
            fields.accept(&["limits"]);
            let known = match &prices {
                Some(table) => KnownPrices::Are(table),
                None if fields.has("prices") => KnownPrices::CannotBeRead,
                None if fields.has_misspelt("prices") => KnownPrices::AreMisspelt,
                None => KnownPrices::AreNone,
            };
            let limits = fields.require_with("limits", |node, log| read_limits(node, log, known, shadow));
            Some(Self { targets, limits: limits.unwrap_or_default(), prices })
        })
    }
}

/// What is known of a policy's prices when its limits are read.
#[derive(Debug, Clone, Copy)]
enum KnownPrices<'a> {
    Are(&'a PriceTable),
    AreNone,
    /// A field is there that was probably meant to be theirs.
    AreMisspelt,
    /// They have errors, which were reported.
    CannotBeRead,
}

fn read_limits(node: &Node, log: &mut Log, prices: KnownPrices<'_>, shadow: Option<bool>) -> Option<Vec<LimitSpec>> {
    let Value::Sequence(items) = &node.value else {
        return log.fail(node, "expected a list", "write the limits as `- ` lines");
    };
    if items.is_empty() {
        return log.fail(node, "`limits` is empty", "list at least one");
    }
    let read: Vec<_> = items.iter().map(|item| LimitSpec::read(item, log, prices, shadow)).collect();
    let limits = read.into_iter().collect::<Option<Vec<_>>>()?;
    let mut seen = HashSet::new();
    for LimitSpec { name, .. } in &limits {
        if !seen.insert(Arc::clone(&name.value)) {
            let twice = format!("two limits of this policy are named {}", quote(&name.value));
            log.push(Diagnostic::error(&name.location, twice).with_help("rename one of them"));
        }
    }
    Some(limits)
}

impl FromNode for LimitTarget {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("namespace", "a policy is attached in its own namespace");
            fields.take_with("group", |node, log| one_of(node, log, &[(AI_GATEWAY, ())]));
            let kind = fields.require_with("kind", |node, log| one_of(node, log, &[(Route::KIND, ())]));
            let rule = fields.take("sectionName");
            let route = Reference::local_from_fields(fields);
            kind?;
            Some(Self { route: route?, rule })
        })
    }
}

impl LimitSpec {
    fn read(node: &Node, log: &mut Log, prices: KnownPrices<'_>, shadow: Option<bool>) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let name = fields.require_with("name", |node, log| {
                Some(Located { value: read_name(node, log)?, location: log.location(node) })
            });
            let per = fields.list("per");
            report_duplicates(fields, per.as_deref().unwrap_or_default());
            let when = fields.list("when");
            let low_priority_percent = fields.take_with("lowPriorityPercent", |node, log| number(node, log, 1, 100));
            let enforcement = match fields.take("shadow").or(shadow) {
                Some(true) => Enforcement::Shadow,
                Some(false) | None => Enforcement::Refuse,
            };
            let on_store_error = fields.take("onStoreError").unwrap_or_default();
            let counted =
                if fields.has("concurrency") { read_concurrency(fields) } else { read_budget(fields, prices) };
            Some(Self {
                name: name?,
                per: per?,
                when: when?,
                counted: counted?,
                low_priority_percent: low_priority_percent.unwrap_or(LOW_PRIORITY_PERCENT),
                enforcement,
                on_store_error,
            })
        })
    }
}

/// A part of an id, which stands in paths, logs and metrics.
fn read_name(node: &Node, log: &mut Log) -> Option<Arc<str>> {
    const MAX_BYTES: usize = 63;
    let name = Arc::<str>::from_node(node, log)?;
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.len() <= MAX_BYTES && name.bytes().all(is_fit) {
        return Some(name);
    }
    let help = format!("use letters, digits, `-`, `_` and `.`, at most {MAX_BYTES} of them");
    log.fail(node, format!("{} is no name of a limit", quote(&name)), help)
}

fn report_duplicates(fields: &mut Fields<'_>, per: &[Dimension]) {
    let mut seen = HashSet::new();
    if !per.iter().all(|dimension| seen.insert(dimension)) {
        fields.reject("per", "something is twice in `per`", "remove one of them");
    }
}

fn read_budget(fields: &mut Fields<'_>, prices: KnownPrices<'_>) -> Option<Counted> {
    if !fields.has("limit") {
        fields.accept(&["window", "windowType", "timeZone", "cost", "mode", "cap", "defaultMaxTokens"]);
        return fields.fail("a limit needs `limit` or `concurrency`", "write `limit: 1000` and `window: 1m`");
    }
    let cost =
        if fields.has("cost") { fields.take("cost") } else { Some(CostSpec::Quantity(Quantity::Tokens(Cost::Total))) };
    let amount = match &cost {
        Some(CostSpec::Money) => fields.take_with("limit", read_money),
        Some(CostSpec::Quantity(quantity)) => {
            fields.take_with("limit", |node, log| read_amount(node, log, quantity.scale()))
        }
        None => fields.take_with("limit", |node, log| read_amount(node, log, 1)),
    };
    let quantity = cost.and_then(|cost| match cost {
        CostSpec::Quantity(quantity) => Some(quantity),
        CostSpec::Money => money(fields, prices),
    });
    let window = read_window(fields);
    let mode = fields.take("mode").unwrap_or_default();
    let cap = read_cap(fields, mode);
    if cap == Cap::Capped && quantity == Some(Quantity::Requests) {
        fields.reject("cap", "`cap` bounds what an answer costs, and requests are counted without", "leave `cap` out");
    }
    let default_max_tokens =
        fields.take_with("defaultMaxTokens", |node, log| number(node, log, FEWEST_DEFAULT_TOKENS, MOST_DEFAULT_TOKENS));
    if cap == Cap::Open && fields.has("defaultMaxTokens") {
        let message = "`defaultMaxTokens` is what answers are bounded by for a limit with a cap";
        fields.reject("defaultMaxTokens", message, "write `cap: true`, or leave it out");
    }
    Some(Counted { quantity: quantity?, amount: amount?, window: window?, mode, cap, default_max_tokens })
}

fn money(fields: &mut Fields<'_>, prices: KnownPrices<'_>) -> Option<Quantity> {
    let help = "write `prices: {MODEL: {input: 2.50, output: 10.00}}` beside `limits`, for a million tokens each";
    let missing =
        Diagnostic::error(&fields.location("cost"), "`money` needs `prices` in the policy's spec").with_help(help);
    match prices {
        KnownPrices::Are(table) => return Some(Quantity::Money(Arc::clone(&table.prices))),
        KnownPrices::CannotBeRead => {}
        KnownPrices::AreNone => fields.push(missing),
        KnownPrices::AreMisspelt => fields.push(missing.following_from_another()),
    }
    None
}

fn read_cap(fields: &mut Fields<'_>, mode: Mode) -> Cap {
    match fields.take("cap") {
        Some(true) if mode != Mode::Strict => {
            let message = "`cap` keeps answers within what is held for them, and only `strict` holds enough";
            fields.reject("cap", message, "write `mode: strict`, or leave `cap` out");
            Cap::Capped
        }
        Some(true) => Cap::Capped,
        Some(false) | None => Cap::Open,
    }
}

fn read_concurrency(fields: &mut Fields<'_>) -> Option<Counted> {
    for field in ["limit", "cost", "windowType", "timeZone", "cap", "defaultMaxTokens"] {
        if fields.has(field) {
            let message = format!("`concurrency` counts requests in flight and takes no `{field}`");
            fields.reject(field, message, "make it a limit of its own");
        }
    }
    let amount = fields.take_with("concurrency", |node, log| number(node, log, 1, MAX_AMOUNT));
    let window = if fields.has("window") { read_window(fields) } else { Some(CONCURRENCY_WINDOW) };
    let mode = fields.take("mode").unwrap_or_default();
    if mode == Mode::Check {
        fields.reject(
            "mode",
            "`check` holds nothing, so it would never see a request in flight",
            "use `soft` or `strict`",
        );
    }
    Some(Counted {
        quantity: Quantity::Concurrency,
        amount: amount?,
        window: window?,
        mode,
        cap: Cap::Open,
        default_max_tokens: None,
    })
}

/// A whole number of units, in what counters have.
fn read_amount(node: &Node, log: &mut Log, scale: u64) -> Option<u64> {
    if is_fraction(node) {
        let help = "write a whole number, or `cost: money` for an amount of money";
        return log.fail(node, format!("expected a whole number, found {}", describe(node)), help);
    }
    number(node, log, 1, MAX_AMOUNT.checked_div(scale)?)?.checked_mul(scale)
}

/// What a limit counts; prices are the policy's.
enum CostSpec {
    Quantity(Quantity),
    Money,
}

impl FromNode for CostSpec {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        if matches!(node.value, Value::Mapping(_)) {
            return Fields::read(node, log, |fields| {
                let Expression(program) = fields.require("cel")?;
                Some(Self::Quantity(Quantity::Weighted(program)))
            });
        }
        let words = [
            ("total", Some(Quantity::Tokens(Cost::Total))),
            ("input", Some(Quantity::Tokens(Cost::Input))),
            ("output", Some(Quantity::Tokens(Cost::Output))),
            ("cachedInput", Some(Quantity::Tokens(Cost::CachedInput))),
            ("cacheCreationInput", Some(Quantity::Tokens(Cost::CacheCreationInput))),
            ("reasoning", Some(Quantity::Tokens(Cost::Reasoning))),
            ("requests", Some(Quantity::Requests)),
            ("money", None),
        ];
        Some(one_of(node, log, &words)?.map_or(Self::Money, Self::Quantity))
    }
}
