//! `clientSelectors` of Envoy Gateway: which requests a rule is about, and which of them it tells apart.

use std::sync::Arc;

use attache_proto::headers;

use crate::config::fields::{Fields, FromNode, Log};
use crate::config::node::{Node, Value};
use crate::config::value::{HeaderName, header_value, one_of};
use crate::limit::{Condition, Dimension, Expected};

/// The bound of the CRD.
const MAX_VALUE_BYTES: usize = 1_024;

/// What the selectors of a rule come to, all of them together.
#[derive(Debug, Default)]
pub(in crate::config) struct Selector {
    pub(in crate::config) per: Vec<Dimension>,
    pub(in crate::config) when: Vec<Condition>,
}

impl FromNode for Selector {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let parts = Vec::<Part>::from_node(node, log)?;
        let mut selector = Self::default();
        for Match { dimension, expected } in parts.into_iter().flat_map(|part| part.0) {
            if expected == Expected::Present && !selector.per.contains(&dimension) {
                selector.per.push(dimension.clone());
            }
            selector.when.push(Condition { dimension, expected });
        }
        Some(selector)
    }
}

/// One selector.
struct Part(Vec<Match>);

impl FromNode for Part {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            for field in ["sourceCIDR", "queryParams"] {
                if fields.has(field) {
                    let message = format!("the selector `{field}` is not supported here");
                    fields.reject(field, message, "select by `headers`, or write a TokenLimitPolicy instead");
                }
            }
            fields.take_with("path", read_path);
            fields.take_with("methods", read_methods);
            Some(Self(fields.list("headers")?))
        })
    }
}

/// A header that a request has, by its value or with a counter for each.
struct Match {
    dimension: Dimension,
    expected: Expected,
}

#[derive(Clone, Copy)]
enum MatchType {
    Exact,
    Distinct,
}

impl FromNode for Match {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let name: Option<HeaderName> = fields.require("name");
            let kind = fields.take_with("type", |node, log| {
                if node.text().is_some_and(|text| &**text == "RegularExpression") {
                    let help = "use `Exact` with one rule for each value, or `Distinct`";
                    return log.fail(node, "`RegularExpression` is not supported here", help);
                }
                one_of(node, log, &[("Exact", MatchType::Exact), ("Distinct", MatchType::Distinct)])
            });
            let invert: Option<bool> = fields.take("invert");
            let expected = match kind.unwrap_or(MatchType::Exact) {
                MatchType::Exact => {
                    let value = fields.require_with("value", |node, log| header_value(node, log, MAX_VALUE_BYTES));
                    value.map(if invert == Some(true) { Expected::IsNot } else { Expected::Is })
                }
                MatchType::Distinct => {
                    if fields.has("value") || invert == Some(true) {
                        let message = "`Distinct` is about every value, so it takes neither `value` nor `invert`";
                        return fields.fail(message, "remove it, or write `type: Exact`");
                    }
                    Some(Expected::Present)
                }
            };
            Some(Self { dimension: dimension(name?), expected: expected? })
        })
    }
}

/// What Envoy would see in this header once the sidecar is through with the request.
fn dimension(HeaderName(name): HeaderName) -> Dimension {
    match &*name {
        headers::MODEL => Dimension::Model,
        headers::TENANT => Dimension::Tenant,
        headers::KEY_ID => Dimension::Key,
        headers::ROUTE => Dimension::Route,
        _ => Dimension::Header(name),
    }
}

/// Limits are about requests to models, whose paths the routes do not tell apart.
fn read_path(node: &Node, log: &mut Log) -> Option<()> {
    Fields::read(node, log, |fields| {
        let kind: Option<Arc<str>> = fields.take("type");
        let value: Option<Arc<str>> = fields.take("value");
        let invert: Option<bool> = fields.take("invert");
        let is_any = kind.is_none_or(|kind| &*kind == "PathPrefix")
            && value.is_none_or(|value| &*value == "/")
            && invert != Some(true);
        if is_any {
            return Some(());
        }
        fields.fail("the selector `path` is not supported here, but for `/`", "leave it out: limits are about models")
    })
}

/// Requests to models are `POST`s: nothing else costs tokens.
fn read_methods(node: &Node, log: &mut Log) -> Option<()> {
    let methods = Vec::<Method>::from_node(node, log)?;
    let has_post = methods.is_empty() || methods.iter().any(|method| method.admits_post);
    if has_post {
        return Some(());
    }
    log.fail(node, "no request that costs tokens has one of these methods", "leave `methods` out, or list `POST`")
}

struct Method {
    admits_post: bool,
}

impl FromNode for Method {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let value: Arc<str> = fields.require("value")?;
            let invert = fields.take("invert") == Some(true);
            Some(Self { admits_post: (&*value == "POST") != invert })
        })
    }
}

/// Whether `node` has, anywhere in it, a field of this name with this text.
pub(in crate::config) fn mentions(node: &Node, field: &str, text: &str) -> bool {
    match &node.value {
        Value::Plain(_) | Value::Quoted(_) => false,
        Value::Sequence(items) => items.iter().any(|item| mentions(item, field, text)),
        Value::Mapping(entries) => entries.iter().any(|entry| {
            let is_it = &*entry.key == field && entry.value.text().is_some_and(|found| &**found == text);
            is_it || mentions(&entry.value, field, text)
        }),
    }
}
