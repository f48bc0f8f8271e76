//! Volatile masks: what clients put at the head of a system's prompt that is another one in every request.

use std::sync::{Arc, LazyLock};

use regex::bytes::{Regex, RegexBuilder};

/// Claude Code begins its system's prompt with `x-anthropic-billing-header: ... cch=<nonce>`.
const DEFAULT: &str = r"^x-anthropic-billing-header:[^\n]*";

/// How much of a text a mask may look at, in bytes.
const WINDOW: usize = 256;

/// Far above any mask that a person would write; what is compiled is held in memory.
const MAX_COMPILED_BYTES: usize = 1 << 20;

/// Patterns whose matches within the first 256 bytes of a system's text are no part of the prompt. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Masks(Arc<[Regex]>);

/// A pattern that is no regular expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{pattern}` is no regular expression that can be a mask: {reason}")]
pub struct MaskError {
    /// The pattern.
    pub pattern: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Masks {
    /// Compiles patterns.
    ///
    /// # Errors
    /// [`MaskError`] with the first that is no regular expression.
    pub fn new<P: AsRef<str>>(patterns: &[P]) -> Result<Self, MaskError> {
        patterns.iter().map(|pattern| compile(pattern.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    /// The patterns.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(Regex::as_str)
    }

    /// Hands over what of a system's text is part of the prompt.
    pub(super) fn apply(&self, text: &[u8], mut take: impl FnMut(&[u8])) {
        let window = text.get(..WINDOW).unwrap_or(text);
        let mut masked: Vec<_> =
            self.0.iter().flat_map(|mask| mask.find_iter(window)).map(|found| found.range()).collect();
        masked.sort_unstable_by_key(|range| range.start);
        let mut kept = 0;
        for range in masked {
            if let Some(piece) = text.get(kept..range.start) {
                take(piece);
            }
            kept = kept.max(range.end);
        }
        take(text.get(kept..).unwrap_or_default());
    }
}

impl Default for Masks {
    fn default() -> Self {
        // It is a regular expression, as a test proves; were it none, nothing would be masked.
        static MASKS: LazyLock<Masks> = LazyLock::new(|| Masks::new(&[DEFAULT]).unwrap_or(Masks(Arc::default())));
        MASKS.clone()
    }
}

impl PartialEq for Masks {
    fn eq(&self, other: &Self) -> bool {
        self.patterns().eq(other.patterns())
    }
}

impl Eq for Masks {}

fn compile(pattern: &str) -> Result<Regex, MaskError> {
    RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES).build().map_err(|error| {
        // The first lines repeat the pattern, with a caret under it.
        let reason = error.to_string().lines().last().unwrap_or_default().to_owned();
        MaskError { pattern: pattern.to_owned(), reason: reason.trim_start_matches("error: ").to_owned() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unmasked(masks: &Masks, text: &[u8]) -> Vec<u8> {
        let mut kept = Vec::new();
        masks.apply(text, |piece| kept.extend_from_slice(piece));
        kept
    }

    #[test]
    fn the_default_takes_off_the_billing_header_and_no_more_than_256_bytes() {
        let masks = Masks::default();
        let head = b"x-anthropic-billing-header:";
        let text = [head.as_slice(), &[b'a'; 300]].concat();
        assert_eq!(unmasked(&masks, &text), text[256..]);
        assert_eq!(unmasked(&masks, head), b"");
        assert_eq!(unmasked(&masks, b"x-anthropic-billing-header: 1\nrest"), b"\nrest");
        assert_eq!(unmasked(&masks, b" x-anthropic-billing-header: 1"), b" x-anthropic-billing-header: 1");
        assert_eq!(unmasked(&masks, b""), b"");
    }

    #[test]
    fn matches_of_several_masks_are_taken_off_wherever_they_are_at_the_head() {
        let masks = Masks::new(&[r"Today is [^.]*\.", "[0-9]+", "is"]).unwrap();
        assert_eq!(unmasked(&masks, b"You are 7 of 9. Today is May 5. Be brief."), b"You are  of .  Be brief.");
        let late = [vec![b'x'; 256], b"77".to_vec()].concat();
        assert_eq!(unmasked(&masks, &late), late);
        assert_eq!(unmasked(&Masks::new::<&str>(&[]).unwrap(), b"7"), b"7");
    }

    #[test]
    fn a_bad_pattern_is_named_with_what_is_wrong() {
        let error = Masks::new(&["ok", "[a"]).unwrap_err();
        assert_eq!(error.to_string(), "`[a` is no regular expression that can be a mask: unclosed character class");
        let error = Masks::new(&["(?:a{1000}){1000}"]).unwrap_err();
        assert_eq!(error.reason, "Compiled regex exceeds size limit of 1048576 bytes.");
    }
}
