//! Where a body says how much of its answer may be thoughts: servers refuse a bound of the answer that is no larger.

use std::ops::Range;

use bytes::Bytes;

use crate::json::{JsonError, Scanner, ValueKind};
use crate::splice::Edit;

/// Fields that are such a budget or have one: `thinking` of Anthropic's API, `reasoning` of OpenRouter's, Qwen's and vLLM's own, and
/// what servers of Gemini's models take in `extra_body`.
const ROOTS: [&[u8]; 8] = [
    b"thinking",
    b"reasoning",
    b"thinking_budget",
    b"thinking_token_budget",
    b"reasoning_budget",
    b"chat_template_kwargs",
    b"extra_body",
    b"google",
];

/// What a budget is called in an object of these, and the objects that it may lie in there.
const WITHIN: [&[u8]; 9] = [
    b"budget_tokens",
    b"max_tokens",
    b"thinking_budget",
    b"thinking_token_budget",
    b"reasoning_budget",
    b"google",
    b"thinking_config",
    b"thinking",
    b"reasoning",
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

impl Budget {
    /// Those in the field of this name, whose value comes next.
    pub(super) fn read(name: &[u8], scanner: &Scanner<'_>) -> Vec<Self> {
        let mut found = Vec::new();
        if ROOTS.contains(&name) {
            // Whoever reads the body says what is wrong with it.
            let _ = collect(&mut scanner.clone(), MAX_LEVELS, &mut found);
        }
        found
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

fn collect(scanner: &mut Scanner<'_>, levels: usize, found: &mut Vec<Budget>) -> Result<(), JsonError> {
    /// A client needs one.
    const MOST: usize = 16;
    let bytes = scanner.bytes();
    match scanner.peek()? {
        ValueKind::Number => {
            let value = scanner.skip()?;
            let digits = bytes.get(value.clone()).and_then(|digits| core::str::from_utf8(digits).ok());
            if let Some(tokens) = digits.and_then(|digits| digits.parse().ok())
                && found.len() < MOST
            {
                found.push(Budget { value, tokens });
            }
        }
        ValueKind::Object if levels > 0 => {
            scanner.open()?;
            while let Some(key) = scanner.next_key()? {
                if WITHIN.contains(&key.text(bytes).as_ref()) {
                    collect(scanner, levels - 1, found)?;
                } else {
                    scanner.skip()?;
                }
            }
        }
        _ => {
            scanner.skip()?;
        }
    }
    Ok(())
}
