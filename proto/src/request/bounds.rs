//! Where a body bounds the length of its answer, and the edits that lower it.

use std::ops::Range;

use bytes::Bytes;

use crate::operation::Operation;
use crate::splice::Edit;

/// How many fields are remembered. A client needs one.
const MAX_FIELDS: usize = 16;

/// The fields of a body that bound the tokens of each choice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutputBounds {
    fields: Vec<Field>,
    /// How many there are, remembered or not.
    count: usize,
    /// Where a field can be added, if servers would find none, and its name.
    insertion: Option<(usize, &'static str)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: BoundName,
    value: Range<usize>,
    /// The value, if it is a whole number.
    tokens: Option<u64>,
}

/// The names of such a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BoundName {
    /// `max_tokens`, which every server knows.
    MaxTokens,
    /// `max_completion_tokens`, which newer ones know for chats.
    MaxCompletionTokens,
    /// `max_output_tokens`, as the Responses API calls it.
    MaxOutputTokens,
    /// `n_predict`, by which llama.cpp's server lets a body override the others.
    NPredict,
}

/// A body says so often how long its answer may be that not all of it is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`max_tokens` and the like appear more than {MAX_FIELDS} times in the request body; send one of them once")]
pub struct TooManyBounds;

impl OutputBounds {
    /// The edits that make every reading of the body bound each choice by `tokens`: whichever of its fields a server
    /// knows, and whichever of two it takes. A lower bound of the client's stays.
    ///
    /// # Errors
    /// [`TooManyBounds`] for a body that has more such fields than any client sends.
    pub fn lowered_to(&self, tokens: u64) -> Result<Vec<Edit>, TooManyBounds> {
        if self.count > self.fields.len() {
            return Err(TooManyBounds);
        }
        // What is no whole number is replaced too: `null` is no bound, -1 is none for some, and some read "4096" as a number.
        let is_above = |field: &&Field| field.tokens.is_none_or(|bound| bound > tokens);
        let lower = |field: &Field| Edit { span: field.value.clone(), replacement: Bytes::from(tokens.to_string()) };
        let mut edits: Vec<_> = self.fields.iter().filter(is_above).map(lower).collect();
        if let Some((at, name)) = self.insertion {
            // A comma always belongs before it: a body that was scanned has at least a model.
            edits.push(Edit { span: at..at, replacement: Bytes::from(format!(",\"{name}\":{tokens}")) });
        }
        Ok(edits)
    }

    /// The largest bound that servers of `operation` may find, in tokens.
    pub(super) fn largest(&self, operation: Operation) -> Option<u64> {
        let last = |name: BoundName| self.fields.iter().rfind(|field| field.name == name)?.tokens;
        match operation {
            Operation::Responses => last(BoundName::MaxOutputTokens),
            Operation::Messages => last(BoundName::MaxTokens),
            _ => last(BoundName::MaxTokens).max(last(BoundName::MaxCompletionTokens)),
        }
    }

    pub(super) fn add(&mut self, name: BoundName, value: Range<usize>, tokens: Option<u64>) {
        self.count = self.count.saturating_add(1);
        let field = Field { name, value, tokens };
        if self.fields.len() < MAX_FIELDS {
            self.fields.push(field);
        } else if let Some(last) = self.fields.last_mut() {
            // The last one counts for the estimate.
            *last = field;
        }
    }

    /// Ends the scan of a body whose last brace is at `closing_brace`.
    pub(super) fn finish(&mut self, operation: Operation, closing_brace: usize) {
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
            Operation::Responses => "max_output_tokens",
            _ => "max_tokens",
        };
        self.insertion = (!is_bounded).then_some((closing_brace, name));
    }
}
