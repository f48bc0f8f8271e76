//! Money and prices: decimals of up to six places, counted in millionths.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::MAX_AMOUNT;
use crate::config::diagnostic::{Diagnostic, Location};
use crate::config::fields::{Fields, FromNode, Log, describe, quote};
use crate::config::node::{Node, Value};
use crate::limit::{Price, Prices};

/// The most that a price or a budget may be, in whole units: counted in millionths, they stay exact.
pub(in crate::config) const MAX_UNITS: u64 = MAX_AMOUNT / 1_000_000;
/// A price list that is longer is a mistake.
pub(in crate::config) const MAX_PRICED_MODELS: usize = 4_096;

/// An amount of money in millionths, never 0.
pub(in crate::config) fn read_money(node: &Node, log: &mut Log) -> Option<u64> {
    let millionths = read_decimal(node, log)?;
    if millionths > 0 {
        return Some(millionths);
    }
    log.fail(node, "a limit of 0 lets nothing through", "write an amount like `500.00`")
}

/// Whether it reads as an amount with places after a point.
pub(in crate::config) fn is_fraction(node: &Node) -> bool {
    matches!(&node.value, Value::Plain(text) if text.contains('.') && parse_decimal(text).is_some())
}

fn read_decimal(node: &Node, log: &mut Log) -> Option<u64> {
    let found = match &node.value {
        Value::Plain(text) => parse_decimal(text),
        _ => None,
    };
    found.filter(|millionths| *millionths <= MAX_AMOUNT).or_else(|| {
        let help = match &node.value {
            Value::Quoted(text) if parse_decimal(text).is_some() => "write it without quotes",
            _ => "write digits, and after a point at most six more: `500`, `2.50`, `0.000125`",
        };
        log.fail(node, format!("expected an amount from 0 to {MAX_UNITS}, found {}", describe(node)), help)
    })
}

/// In millionths.
fn parse_decimal(text: &str) -> Option<u64> {
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(places) || places.len() > 6 {
        return None;
    }
    let millionths: u64 = format!("{places:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(millionths)
}

/// What models cost.
#[derive(Debug, Clone)]
pub(in crate::config) struct PriceTable {
    pub(in crate::config) prices: Arc<Prices>,
    /// Whether the operator wrote `*`.
    pub(in crate::config) other: Other,
    pub(in crate::config) location: Location,
}

/// What a model costs that is not in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::config) enum Other {
    /// What is written for it.
    Written,
    /// As much as the dearest.
    Dearest,
}

impl PriceTable {
    /// Whether somebody thought of this model.
    pub(in crate::config) fn covers(&self, model: &str) -> bool {
        self.other == Other::Written || self.prices.by_model.contains_key(model)
    }
}

impl FromNode for PriceTable {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let Value::Mapping(entries) = &node.value else {
            let help = "write `MODEL: {input: 2.50, output: 10.00}` lines";
            return log.fail(node, format!("expected a table of prices, found {}", describe(node)), help);
        };
        if entries.is_empty() || entries.len() > MAX_PRICED_MODELS {
            return log.fail(
                node,
                format!("a table has from 1 to {MAX_PRICED_MODELS} models"),
                "name the models that are served",
            );
        }
        let mut by_model = BTreeMap::new();
        let mut is_sound = true;
        for entry in entries {
            if entry.key.is_empty() || entry.key.len() > 256 {
                let error = Diagnostic::error(
                    &log.at(entry.key_span.clone()),
                    format!("{} is no model's name", quote(&entry.key)),
                );
                log.push(error.with_help("write the name that the server knows it by, of at most 256 bytes, or `*`"));
                is_sound = false;
            }
            match Price::from_node(&entry.value, log) {
                Some(price) => {
                    by_model.insert(Arc::clone(&entry.key), price);
                }
                None => is_sound = false,
            }
        }
        let written = by_model.remove("*");
        let other = if written.is_some() { Other::Written } else { Other::Dearest };
        let dearest = by_model.values().fold(Price::default(), |dearest, price| Price {
            input: dearest.input.max(price.input),
            output: dearest.output.max(price.output),
            cached_input: dearest.cached_input.max(price.cached_input),
            cache_creation_input: dearest.cache_creation_input.max(price.cache_creation_input),
        });
        let prices = Prices { by_model, other: written.unwrap_or(dearest) };
        is_sound.then(|| Self { prices: Arc::new(prices), other, location: log.location(node) })
    }
}

/// For a million tokens. What is not written about the cache costs as much as input.
impl FromNode for Price {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let input = fields.require_with("input", read_decimal);
            let output = fields.require_with("output", read_decimal);
            let cached_input = fields.take_with("cachedInput", read_decimal).or(input);
            let cache_creation_input = fields.take_with("cacheCreationInput", read_decimal).or(input);
            Some(Self {
                input: input?,
                output: output?,
                cached_input: cached_input?,
                cache_creation_input: cache_creation_input?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read_in_millionths() {
        let read =
            ["500", "500.00", "2.5", "0.000125", "0.1234567", "1.", ".5", "-1", "1e3", "1_000", "", "99999999999999"]
                .map(parse_decimal);
        let some = [500_000_000, 500_000_000, 2_500_000, 125].map(Some);
        assert_eq!(read[..4], some);
        assert_eq!(read[4..], [None; 8]);
    }
}
