//! Regular expressions as Envoy matches headers by them: RE2's syntax, the whole value, in time linear to it.
//!
//! The `regex` crate is RE2's descendant and differs in three things that would match other values in silence: `\d`, `\s`, `\w`
//! and `\b` are Unicode's there and ASCII's in RE2, classes nest, and they have operators. So these are written out for it.
//! What RE2 knows and the crate does not (`\Q`, `\C`) is an error.

use std::fmt;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};

/// A compiled expression. Equal to another of the same text.
#[derive(Clone)]
pub struct Pattern {
    text: Arc<str>,
    regex: Regex,
}

/// Why a text is no [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The syntax.
    #[error("it is no regular expression of RE2: {0}")]
    Syntax(String),
    /// A repetition of repetitions, most often.
    #[error("it is too large: compiled it would have more than {MAX_COMPILED_BYTES} bytes")]
    TooLarge,
}

/// The longest value that is looked at. Names of models and what tells callers apart are shorter; what is left of a header's bound
/// would be a client's way to spend our time.
pub const MAX_VALUE_BYTES: usize = 512;

/// Room for some hundred characters or words that are listed, and for counted repetitions of such.
const MAX_COMPILED_BYTES: usize = 256 * 1024;

/// What one search may keep in memory besides; beyond it, it goes on without, in linear time still.
const MAX_CACHE_BYTES: usize = 128 * 1024;

impl Pattern {
    /// Compiles it.
    ///
    /// # Errors
    /// [`PatternError`].
    pub fn new(text: &str) -> Result<Self, PatternError> {
        // By itself: parentheses that do not match would go with those that are put around it.
        let translated = translated(text);
        let compile = |pattern: &str| {
            let built =
                RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES).dfa_size_limit(MAX_CACHE_BYTES).build();
            built.map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => PatternError::TooLarge,
                // It prints the expression with a line of carets below, and then says what it is.
                error => PatternError::Syntax(
                    error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned(),
                ),
            })
        };
        compile(&translated)?;
        let regex = compile(&format!("\\A(?:{translated})\\z"))?;
        Ok(Self { text: Arc::from(text), regex })
    }

    /// Whether all of `value` is as the expression says.
    pub fn matches(&self, value: &str) -> bool {
        value.len() <= MAX_VALUE_BYTES && self.regex.is_match(value)
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// RE2's meaning in the crate's syntax.
fn translated(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut class = Class::Outside;
    while let Some(c) = chars.next() {
        if c == '\\' {
            match chars.next() {
                Some('d') => written.push_str("[0-9]"),
                Some('D') => written.push_str("[^0-9]"),
                Some('s') => written.push_str(r"[\t\n\x0C\r ]"),
                Some('S') => written.push_str(r"[^\t\n\x0C\r ]"),
                Some('w') => written.push_str("[0-9A-Za-z_]"),
                Some('W') => written.push_str("[^0-9A-Za-z_]"),
                Some(boundary @ ('b' | 'B')) if class == Class::Outside => {
                    written.push_str("(?-u:\\");
                    written.push(boundary);
                    written.push(')');
                }
                Some(other) => written.extend(['\\', other]),
                None => written.push('\\'),
            }
            class = class.after_an_item();
            continue;
        }
        match (class, c) {
            (Class::Outside, '[') => {
                written.push('[');
                if chars.next_if_eq(&'^').is_some() {
                    written.push('^');
                }
                class = Class::Begun;
                continue;
            }
            // `[:alpha:]`, which is ASCII in both.
            (Class::Begun | Class::Inside, '[') if chars.peek() == Some(&':') => {
                written.push('[');
                for c in chars.by_ref() {
                    written.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            // The first one is one of the class.
            (Class::Begun, ']') => written.push_str("\\]"),
            (Class::Inside, ']') => {
                written.push(']');
                class = Class::Outside;
                continue;
            }
            (Class::Begun | Class::Inside, c @ ('[' | '&' | '~')) => written.extend(['\\', c]),
            (_, c) => written.push(c),
        }
        class = class.after_an_item();
    }
    written
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Outside,
    /// After its `[` or `[^`.
    Begun,
    Inside,
}

impl Class {
    const fn after_an_item(self) -> Self {
        match self {
            Self::Outside => Self::Outside,
            Self::Begun | Self::Inside => Self::Inside,
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl std::hash::Hash for Pattern {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.text).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, value: &str) -> bool {
        Pattern::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}")).matches(value)
    }

    #[test]
    fn the_whole_value_is_matched() {
        for (pattern, value, expected) in [
            ("gpt-.*", "gpt-4o", true),
            ("gpt-.*", "my-gpt-4o", false),
            ("gpt", "gpt-4o", false),
            ("a|b", "b", true),
            ("a|b", "ab", false),
            ("^a$", "a", true),
            ("", "", true),
            ("(?i)GPT", "gpt", true),
            (".*", "a\nb", false),
            ("a$", "a\n", false),
            ("gpt.4", "gpté4", true),
        ] {
            assert_eq!(matches(pattern, value), expected, "{pattern} on {value:?}");
        }
    }

    #[test]
    fn classes_mean_what_they_mean_in_re2() {
        for (pattern, value, expected) in [
            (r"m\d", "m4", true),
            // Arabic-Indic four.
            (r"m\d", "m\u{664}", false),
            (r"m\D", "m\u{664}", true),
            (r"[\w-]+", "a-b_1", true),
            (r"\w+", "é", false),
            (r"[^\w]", "é", true),
            (r"a\b.c", "aéc", true),
            (r"[a&&b]+", "a&b", true),
            (r"[a~~b]+", "~", true),
            (r"[[]", "[", true),
            (r"[]a]+", "]a", true),
            (r"[^]a]", "b", true),
            (r"[[:digit:]a]+", "1a", true),
            (r"\[\d\]", "[1]", true),
            (r"\\d", r"\d", true),
        ] {
            assert_eq!(matches(pattern, value), expected, "{pattern} on {value:?}");
        }
    }

    #[test]
    fn what_is_no_expression_or_too_large_is_an_error() {
        for pattern in ["(", "a)(b", "a)|(b", "[a", "*", r"\", r"\Qa.b\E", r"(a)\1", "(?=a)", "(?<!a)b"] {
            assert!(matches!(Pattern::new(pattern), Err(PatternError::Syntax(_))), "{pattern}");
        }
        for pattern in [r"((\p{L}{1,100}){1,100}){1,10}", "(((a{100}){100}){100}){100}"] {
            assert_eq!(Pattern::new(pattern).unwrap_err(), PatternError::TooLarge, "{pattern}");
        }
    }

    #[test]
    fn a_value_that_is_too_long_matches_nothing() {
        assert!(matches(".*", &"a".repeat(MAX_VALUE_BYTES)) && !matches(".*", &"a".repeat(MAX_VALUE_BYTES + 1)));
    }
}
