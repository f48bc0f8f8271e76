//! The fields of a body that are acted on, each named once, and what readers that do not mind the case take for one of them.

use std::borrow::Cow;

use super::bounds::BoundName;
use super::prompt::PromptField;
use super::{ScanError, budgets, tools};
use crate::operation::Operation;

/// A top-level field that is acted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldName {
    Model,
    Stream,
    StreamOptions,
    Bound(BoundName),
    Choices,
    Background,
    /// A bound from below.
    AtLeast,
    Prompt(PromptField),
    /// It is looked into for budgets of thoughts, or tools of the server.
    Other,
}

/// The names of all fields that are acted on, by some operation or other.
const NAMES: [&str; 47] = [
    "background",
    "best_of",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "conversation",
    "data_1",
    "data_2",
    "documents",
    "extra_body",
    "google",
    "input",
    "instructions",
    "items",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "mcp_servers",
    "messages",
    "min_tokens",
    "model",
    "n",
    "n_cmpl",
    "n_predict",
    "output_config",
    "output_format",
    "plugins",
    "previous_response_id",
    "prompt",
    "queries",
    "query",
    "reasoning",
    "reasoning_budget",
    "reasoning_effort",
    "response_format",
    "search_parameters",
    "stream",
    "stream_options",
    "system",
    "text",
    "text_1",
    "text_2",
    "thinking",
    "thinking_budget",
    "thinking_token_budget",
    "tools",
    "web_search_options",
];

impl FieldName {
    /// The field of that name, and the name, if it is acted on.
    fn of(operation: Operation, name: &[u8]) -> Option<(Self, &'static str)> {
        let known = NAMES.into_iter().find(|known| known.as_bytes() == name)?;
        let field = match known {
            "model" => Self::Model,
            // What passes through is not looked at.
            _ if operation == Operation::PassThrough => return None,
            "stream" => Self::Stream,
            "stream_options" => Self::StreamOptions,
            "max_tokens" => Self::Bound(BoundName::MaxTokens),
            "max_completion_tokens" => Self::Bound(BoundName::MaxCompletionTokens),
            "max_output_tokens" => Self::Bound(BoundName::MaxOutputTokens),
            "n_predict" => Self::Bound(BoundName::NPredict),
            "n" | "best_of" | "n_cmpl" => Self::Choices,
            // Others do not know it.
            "background" if operation == Operation::Responses => Self::Background,
            "min_tokens" if matches!(operation, Operation::ChatCompletions | Operation::Completions) => Self::AtLeast,
            known => match PromptField::of(operation, known.as_bytes()) {
                Some(field) => Self::Prompt(field),
                None if operation.generates() && (budgets::may_have(known) || tools::may_switch(known)) => Self::Other,
                None => return None,
            },
        };
        Some((field, known))
    }
}

/// The names of an object's fields that were acted on so far.
#[derive(Debug, Default)]
pub(crate) struct Seen(Vec<&'static str>);

impl Seen {
    /// The field that a key of the body names, if it is one that is acted on.
    ///
    /// # Errors
    /// As for [`Seen::add`].
    pub(super) fn field(
        &mut self,
        operation: Operation,
        key: &[u8],
    ) -> Result<Option<(FieldName, &'static str)>, ScanError> {
        self.add(key, |name| FieldName::of(operation, name).map(|(field, name)| ((field, name), name)))
    }

    /// Which of the members `known` of an object a key names, by the last part of what they are called there.
    ///
    /// # Errors
    /// As for [`Seen::add`].
    pub(super) fn member(&mut self, known: &[&'static str], key: &[u8]) -> Result<Option<&'static str>, ScanError> {
        self.add(key, |key| known.iter().find(|name| is_last_of(key, name)).map(|name| (*name, *name)))
    }

    /// What `known` knows a key for.
    ///
    /// # Errors
    /// [`ScanError::Duplicate`] where there was the same key before: some readers take the first of two, some the last.
    /// [`ScanError::Misspelt`] where some readers take the key for one that is known, and others do not.
    pub(crate) fn add<T>(
        &mut self,
        key: &[u8],
        known: impl Fn(&[u8]) -> Option<(T, &'static str)>,
    ) -> Result<Option<T>, ScanError> {
        let Some((field, name)) = known(key) else {
            return match folded(key) {
                Cow::Borrowed(_) => Ok(None),
                Cow::Owned(key) => known(&key).map_or(Ok(None), |(_, name)| Err(ScanError::Misspelt(name))),
            };
        };
        if self.0.contains(&name) {
            return Err(ScanError::Duplicate(name));
        }
        self.0.push(name);
        Ok(Some(field))
    }
}

/// Whether a key is what a member is called by itself: `text` of `content.text`.
fn is_last_of(key: &[u8], name: &str) -> bool {
    name.as_bytes().strip_suffix(key).is_some_and(|before| before.is_empty() || before.ends_with(b"."))
}

/// A name as Go's `encoding/json` compares it with those of its fields: the case of ASCII makes no difference, and U+212A (KELVIN SIGN) is a
/// `k`, U+017F (LATIN SMALL LETTER LONG S) an `s`. No other letter folds to one of ASCII. Borrowed where nothing folds.
pub(crate) fn folded(name: &[u8]) -> Cow<'_, [u8]> {
    if name.iter().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        return Cow::Borrowed(name);
    }
    let mut folded = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, tail)) = rest.split_first() {
        rest = match rest {
            [0xe2, 0x84, 0xaa, tail @ ..] => {
                folded.push(b'k');
                tail
            }
            [0xc5, 0xbf, tail @ ..] => {
                folded.push(b's');
                tail
            }
            _ => {
                folded.push(first.to_ascii_lowercase());
                tail
            }
        };
    }
    Cow::Owned(folded)
}

/// How a name is spelt that readers without regard to case take this one for: one that is acted on, and is written in another way.
pub fn misspelt(name: &str) -> Option<&'static str> {
    let folded = folded(name.as_bytes());
    NAMES.into_iter().find(|known| known.as_bytes() == &*folded && *known != name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_acted_on_by_some_operation_and_folds_to_itself() {
        for name in NAMES {
            assert!(
                Operation::ALL.into_iter().any(|operation| FieldName::of(operation, name.as_bytes()).is_some()),
                "{name}"
            );
            assert_eq!(folded(name.as_bytes()), Cow::Borrowed(name.as_bytes()));
        }
        assert!(NAMES.is_sorted());
    }

    #[test]
    fn names_fold_as_in_go() {
        for (name, fold) in [
            ("Model", "model"),
            ("MAX_TOKENS", "max_tokens"),
            ("max_to\u{212a}ens", "max_tokens"),
            ("\u{17f}tream", "stream"),
            ("MAX_TO\u{212a}EN\u{17f}", "max_tokens"),
            ("Ä", "Ä"),
            ("ı", "ı"),
        ] {
            assert_eq!(folded(name.as_bytes()).as_ref(), fold.as_bytes(), "{name}");
        }
        assert_eq!(misspelt("Max_To\u{212a}ens"), Some("max_tokens"));
        assert_eq!((misspelt("max_tokens"), misspelt("maxtokens")), (None, None));
    }
}
