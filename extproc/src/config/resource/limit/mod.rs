//! The parts of a limit, whichever kind of policy has them.

mod dimension;
mod money;
mod selector;
mod window;

use std::sync::Arc;

use super::super::fields::{FromNode, Log, closest};
use super::super::node::Node;
use crate::limit::{CostProgram, InvalidProgram, Mode, OnStoreError};

pub(in crate::config) use dimension::MAX_CONDITION_BYTES;
pub(in crate::config) use money::{MAX_PRICED_MODELS, MAX_UNITS, PriceTable, is_fraction, read_money};
pub(in crate::config) use selector::{Selector, mentions};
pub(in crate::config) use window::read_window;

/// Redis scripts count in doubles, which are exact up to 2^53: this leaves a factor of nine for what is held above it.
pub(in crate::config) const MAX_AMOUNT: u64 = 1_000_000_000_000_000;

impl FromNode for Mode {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        super::super::value::one_of(
            node,
            log,
            &[("soft", Self::Soft), ("strict", Self::Strict), ("check", Self::Check)],
        )
    }
}

impl FromNode for OnStoreError {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        super::super::value::one_of(node, log, &[("local", Self::Local), ("allow", Self::Allow), ("deny", Self::Deny)])
    }
}

/// An expression over the usage.
#[derive(Debug, Clone)]
pub(in crate::config) struct Expression(pub(in crate::config) Arc<CostProgram>);

impl FromNode for Expression {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let text = Arc::<str>::from_node(node, log)?;
        match CostProgram::compile(&text) {
            Ok(program) => Some(Self(Arc::new(program))),
            Err(error) => log.fail(node, &error, way_out(&error)),
        }
    }
}

fn way_out(error: &InvalidProgram) -> String {
    match error {
        InvalidProgram::TooLong { .. } | InvalidProgram::TooDeep => "write a shorter one".to_owned(),
        InvalidProgram::Syntax { .. } | InvalidProgram::Unreadable | InvalidProgram::Structure => {
            "write one like `input_tokens + output_tokens * 3u`".to_owned()
        }
        InvalidProgram::UnknownVariable(name) => match closest(name, CostProgram::VARIABLES.into_iter()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("there are {}", CostProgram::VARIABLES.join(", ")),
        },
        InvalidProgram::UnknownFunction(name) => {
            let functions = InvalidProgram::functions();
            match closest(name, functions.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("there are {}", functions.into_iter().collect::<Vec<_>>().join(", ")),
            }
        }
        InvalidProgram::Types(_) => {
            "token counts are of the type uint: write `2u`, or `double(output_tokens) * 0.5`".to_owned()
        }
        InvalidProgram::Fails { .. } | InvalidProgram::NoCost { .. } => {
            "write an expression that yields a number from 0 on for every answer, with a condition (`a ? b : c`) where it is needed"
                .to_owned()
        }
    }
}
