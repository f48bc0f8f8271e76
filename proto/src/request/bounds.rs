//! Where a body bounds the length of its answer, and the edits that lower it.

use std::ops::Range;

use bytes::Bytes;

use super::budgets::Budget;
use super::lax::Count;
use crate::operation::Operation;
use crate::splice::Edit;

/// The fields of a body that bound the tokens of each choice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutputBounds {
    /// At most one for each name.
    fields: Vec<Field>,
    /// How much of the answer may be thoughts.
    budgets: Vec<Budget>,
    /// How long the answer has to be, in tokens of each choice.
    at_least: u64,
    /// Where a field can be added, if servers would find none, and its name.
    insertion: Option<(usize, BoundName)>,
    is_chat: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: BoundName,
    value: Range<usize>,
    tokens: Count,
}

/// The names of such a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundName {
    /// `max_tokens`, which every server knows.
    MaxTokens,
    /// `max_completion_tokens`, which newer ones know for chats.
    MaxCompletionTokens,
    /// `max_output_tokens`, as the Responses API calls it.
    MaxOutputTokens,
    /// `n_predict`, by which llama.cpp's server lets a body override the others.
    NPredict,
}

impl BoundName {
    /// As bodies have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxOutputTokens => "max_output_tokens",
            Self::NPredict => "n_predict",
        }
    }
}

impl OutputBounds {
    /// The edits that make every reading of the body bound each choice by `tokens`, whichever of its fields a server knows. A lower
    /// bound of the client's stays; one that not all servers read is written so that they do.
    pub fn lowered_to(&self, tokens: u64) -> Vec<Edit> {
        // `null` is no bound, and -1 is none for some.
        let lowered = |field: &Field| match field.tokens {
            Count::Plain(bound) if bound <= tokens => None,
            Count::Lax(bound) => Some(bound.min(tokens)),
            Count::Plain(_) | Count::None => Some(tokens),
        };
        let lower = |field: &Field| {
            let bound = lowered(field)?;
            Some(Edit { span: field.value.clone(), replacement: Bytes::from(bound.to_string()) })
        };
        let mut edits: Vec<_> = self.fields.iter().filter_map(lower).collect();
        if let Some((at, name)) = self.insertion {
            // A comma always belongs before it: a body that was scanned has at least a model.
            let field = format!(",\"{}\":{tokens}", name.as_str());
            edits.push(Edit { span: at..at, replacement: Bytes::from(field) });
        }
        let bound = self.fields.iter().filter_map(|field| field.tokens.number()).max();
        edits.extend(self.budgets.iter().filter_map(|budget| budget.lowered_with(tokens, bound)));
        edits
    }

    /// The smallest bound, in tokens of each choice, that a server takes with what the body says of thoughts and of the answer's least
    /// length; 0 where it says nothing.
    pub fn least(&self) -> u64 {
        self.budgets.iter().map(Budget::least_bound).max().unwrap_or(0).max(self.at_least)
    }

    /// Whether the body says how much of the answer may be thoughts.
    pub fn has_thoughts(&self) -> bool {
        !self.budgets.is_empty()
    }

    /// Whether [`OutputBounds::lowered_to`] leaves the body with a bound.
    pub fn is_bounding(&self) -> bool {
        self.insertion.is_some() || !self.fields.is_empty()
    }

    /// The field that [`OutputBounds::lowered_to`] adds, where the body has none that its server heeds.
    pub fn added(&self) -> Option<BoundName> {
        self.insertion.map(|(_, name)| name)
    }

    /// The fields that could be added in its place; none where the body has one of its own.
    pub fn choices(&self) -> &'static [BoundName] {
        match self.insertion {
            None => &[],
            Some(_) if self.is_chat => &[BoundName::MaxTokens, BoundName::MaxCompletionTokens],
            Some((_, BoundName::MaxOutputTokens)) => &[BoundName::MaxOutputTokens],
            Some(_) => &[BoundName::MaxTokens],
        }
    }

    /// Has this field added where the body has none, or none at all.
    pub fn add_as(&mut self, name: Option<BoundName>) {
        self.insertion = self.insertion.take().and_then(|(at, _)| Some((at, name?)));
    }

    /// The largest bound that servers of `operation` may find, in tokens.
    pub(super) fn largest(&self, operation: Operation) -> Option<u64> {
        let bound = |name: BoundName| self.fields.iter().find(|field| field.name == name)?.tokens.number();
        match operation {
            Operation::Responses => bound(BoundName::MaxOutputTokens),
            Operation::Messages => bound(BoundName::MaxTokens),
            // Its API has none, so a server heeds none.
            Operation::CompactResponse => None,
            _ => bound(BoundName::MaxTokens).max(bound(BoundName::MaxCompletionTokens)).max(bound(BoundName::NPredict)),
        }
    }

    pub(super) fn add_budgets(&mut self, budgets: Vec<Budget>) {
        self.budgets.extend(budgets);
    }

    pub(super) fn add_at_least(&mut self, tokens: Count) {
        self.at_least = tokens.number().unwrap_or(0);
    }

    pub(super) fn add(&mut self, name: BoundName, value: Range<usize>, tokens: Count) {
        self.fields.push(Field { name, value, tokens });
    }

    /// Ends the scan of a body whose last brace is at `closing_brace`.
    pub(super) fn finish(&mut self, operation: Operation, closing_brace: usize) {
        self.is_chat = operation == Operation::ChatCompletions;
        let has = |name: BoundName| self.fields.iter().any(|field| field.name == name);
        let is_bounded = match operation {
            // OpenAI refuses a chat that has both.
            Operation::ChatCompletions => has(BoundName::MaxTokens) || has(BoundName::MaxCompletionTokens),
            Operation::Completions | Operation::Messages => has(BoundName::MaxTokens),
            Operation::Responses => has(BoundName::MaxOutputTokens),
            // The others write nothing whose length could be bounded.
            _ => true,
        };
        let name = match operation {
            Operation::Responses => BoundName::MaxOutputTokens,
            _ => BoundName::MaxTokens,
        };
        self.insertion = (!is_bounded).then_some((closing_brace, name));
    }
}
