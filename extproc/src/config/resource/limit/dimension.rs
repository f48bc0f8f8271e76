//! Whom a limit counts together, and which requests it is about.

use std::sync::Arc;

use crate::config::fields::{Fields, FromNode, Log, closest, quote};
use crate::config::node::Node;
use crate::config::value::{HeaderName, header_value, is_label_name};
use crate::limit::{Condition, Dimension, Expected};

/// What a header may have: nobody writes more by hand, and no counter keeps it.
pub(in crate::config) const MAX_CONDITION_BYTES: usize = 1_024;

impl FromNode for Dimension {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let words = [
            ("key", Self::Key),
            ("tenant", Self::Tenant),
            ("model", Self::Model),
            ("servedModel", Self::ServedModel),
            ("modelClass", Self::ModelClass),
            ("route", Self::Route),
            ("endpoint", Self::Route),
        ];
        let text = Arc::<str>::from_node(node, log)?;
        if let Some((_, dimension)) = words.iter().find(|(word, _)| **word == *text) {
            return Some(dimension.clone());
        }
        if let Some(HeaderName(name)) = text.strip_prefix("header:").and_then(HeaderName::parse) {
            return Some(Self::Header(name));
        }
        if let Some(name) = text.strip_prefix("label:").filter(|name| is_label_name(name)) {
            return Some(Self::Label(Arc::from(name)));
        }
        /// What people call what is here a tenant or a key.
        const OTHER_WORDS: [(&str, &str); 7] = [
            ("team", "tenant"),
            ("org", "tenant"),
            ("organization", "tenant"),
            ("customer", "tenant"),
            ("user", "key"),
            ("apikey", "key"),
            ("client", "key"),
        ];
        let meant = OTHER_WORDS.iter().find(|(word, _)| text.eq_ignore_ascii_case(word)).map(|(_, meant)| *meant);
        let help = match meant.or_else(|| closest(&text, words.iter().map(|(word, _)| *word))) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "use `key`, `tenant`, `route`, `model`, `servedModel`, `modelClass`, `header:NAME` or `label:NAME`"
                .to_owned(),
        };
        log.fail(node, format!("{} is not a dimension that a limit can count by", quote(&text)), help)
    }
}

/// `{dimension: tenant, is: acme}`, `{dimension: "header:x-team", isNot: red}`, `{dimension: key, present: true}`.
impl FromNode for Condition {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let dimension = fields.require("dimension");
            let forms = ["is", "isNot", "present"].map(|form| fields.has(form));
            if forms.into_iter().filter(|is_there| *is_there).count() != 1 {
                let message = "a condition is exactly one of `is`, `isNot` and `present`";
                return fields.fail(message, "write `{dimension: tenant, is: acme}`");
            }
            let value = |node: &Node, log: &mut Log| header_value(node, log, MAX_CONDITION_BYTES);
            let is = fields.take_with("is", value).map(Expected::Is);
            let is_not = fields.take_with("isNot", value).map(Expected::IsNot);
            let present = fields.take_with("present", |node, log| match bool::from_node(node, log)? {
                true => Some(Expected::Present),
                false => {
                    log.fail(node, "it can only be `true`", "write `isNot` with a value, or leave the condition out")
                }
            });
            Some(Self { dimension: dimension?, expected: is.or(is_not).or(present)? })
        })
    }
}
