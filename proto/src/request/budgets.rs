//! Where a body says how much of its answer may be thoughts: servers refuse a bound of the answer that is no larger.

use std::ops::Range;

use bytes::Bytes;

use super::ScanError;
use super::lax::Count;
use super::names::Seen;
use crate::json::{Scanner, ValueKind};
use crate::splice::Edit;

/// Fields that are such a budget or have one: `thinking` of Anthropic's API, `reasoning` of OpenRouter's, Qwen's and vLLM's own, and
/// what servers of Gemini's models take in `extra_body`.
const ROOTS: [&str; 8] = [
    "thinking",
    "reasoning",
    "thinking_budget",
    "thinking_token_budget",
    "reasoning_budget",
    "chat_template_kwargs",
    "extra_body",
    "google",
];

/// What a budget is called in an object of these, and the objects that it may lie in there.
const WITHIN: [&str; 9] = [
    "budget_tokens",
    "max_tokens",
    "thinking_budget",
    "thinking_token_budget",
    "reasoning_budget",
    "google",
    "thinking_config",
    "thinking",
    "reasoning",
];

/// So deep an object may lie in another.
const MAX_LEVELS: usize = 4;

/// The smallest budget that Anthropic's API takes; others have none that is larger.
const LEAST_BUDGET: u64 = 1_024;

/// What an answer needs besides its thoughts: a word or two, and the end.
const LEAST_ANSWER: u64 = 16;

/// One budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Budget {
    value: Range<usize>,
    tokens: u64,
}

/// Whether the field of this name may be a budget or have one.
pub(super) fn may_have(name: &str) -> bool {
    ROOTS.contains(&name)
}

impl Budget {
    /// Those in the value that comes next.
    ///
    /// # Errors
    /// Those of JSON; [`ScanError::Duplicate`] and [`ScanError::Misspelt`] where servers do not agree on a budget.
    pub(super) fn read(scanner: &Scanner<'_>) -> Result<Vec<Self>, ScanError> {
        let mut found = Vec::new();
        collect(&mut scanner.clone(), MAX_LEVELS, &mut found)?;
        Ok(found)
    }

    /// The smallest bound of the answer with which it can be kept.
    pub(super) fn least_bound(&self) -> u64 {
        self.least().saturating_add(LEAST_ANSWER)
    }

    /// The edit that goes with a bound of so many tokens in the place of the client's, if it has one: thoughts keep their share.
    pub(super) fn lowered_with(&self, tokens: u64, bound: Option<u64>) -> Option<Edit> {
        let share = match bound {
            Some(bound) if bound > tokens => {
                let share = u128::from(self.tokens) * u128::from(tokens) / u128::from(bound);
                u64::try_from(share).unwrap_or(self.tokens)
            }
            Some(_) => return None,
            None if self.tokens < tokens => return None,
            None => tokens / 2,
        };
        let lowered = share.max(self.least()).min(self.tokens).min(tokens.saturating_sub(1));
        (lowered < self.tokens)
            .then(|| Edit { span: self.value.clone(), replacement: Bytes::from(lowered.to_string()) })
    }

    fn least(&self) -> u64 {
        self.tokens.min(LEAST_BUDGET)
    }
}

fn collect(scanner: &mut Scanner<'_>, levels: usize, found: &mut Vec<Budget>) -> Result<(), ScanError> {
    /// A client needs one.
    const MOST: usize = 16;
    let bytes = scanner.bytes();
    match scanner.peek()? {
        // A text may be a number for lax servers.
        ValueKind::Number | ValueKind::String => {
            let mut ahead = scanner.clone();
            let value = scanner.skip()?;
            if let Some(tokens) = Count::scan(&mut ahead)?.and_then(Count::number)
                && found.len() < MOST
            {
                found.push(Budget { value, tokens });
            }
        }
        ValueKind::Object if levels > 0 => {
            let mut seen = Seen::default();
            scanner.open()?;
            while let Some(key) = scanner.next_key()? {
                match seen.member(&WITHIN, &key.text(bytes))? {
                    Some(_) => collect(scanner, levels - 1, found)?,
                    None => {
                        scanner.skip()?;
                    }
                }
            }
        }
        _ => {
            scanner.skip()?;
        }
    }
    Ok(())
}
