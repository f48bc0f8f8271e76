//! One normalised account of an answer's tokens, whichever API it came from.

use crate::json::{JsonError, Scanner, ValueKind};

/// The largest count that is believed: the largest integer that every JSON implementation carries exactly (RFC 8259,
/// section 6). Sums of such counts stay far from overflow.
const MAX_TOKENS: f64 = 9_007_199_254_740_992.0;

/// Tokens of one answer. Every field is what the upstream said, or absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub input: u64,
    /// Completion tokens, reasoning included.
    pub output: u64,
    /// As the upstream says; where it does not, input + output.
    pub total: u64,
    /// Prompt tokens that came from the upstream's cache.
    pub cached_input: u64,
    /// Prompt tokens that were written to the upstream's cache, where it says so.
    pub cache_creation_input: u64,
    /// Completion tokens spent on reasoning.
    pub reasoning: u64,
}

impl Usage {
    /// Reads the `usage` object of an answer: of OpenAI's chats, completions, embeddings and responses, or of Anthropic's
    /// messages.
    ///
    /// Anthropic's `input_tokens` leave out what its cache gave and took, which are counts of their own beside it.
    ///
    /// A count that is no whole number from 0 to 2^53 is ignored, as are fields nobody knows. `None` where the bytes are
    /// no JSON object or none of the three counts is there.
    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        Counts::scan(bytes).ok()?.normalised()
    }

    /// What a later event of the same answer makes of it. Anthropic's name the input at the start and the output at the end;
    /// what an event does not name is 0 in it.
    pub(crate) fn updated(&self, later: &Self) -> Self {
        let input = self.input.max(later.input);
        let output = self.output.max(later.output);
        Self {
            input,
            output,
            total: input.saturating_add(output),
            cached_input: self.cached_input.max(later.cached_input),
            cache_creation_input: self.cache_creation_input.max(later.cache_creation_input),
            reasoning: self.reasoning.max(later.reasoning),
        }
    }
}

/// The counts as they were found.
#[derive(Default)]
struct Counts {
    prompt: Option<u64>,
    /// As the Responses API and Anthropic name it.
    input: Option<u64>,
    completion: Option<u64>,
    total: Option<u64>,
    cached: Option<u64>,
    /// DeepSeek's name for cached prompt tokens.
    cache_hit: Option<u64>,
    reasoning: Option<u64>,
    /// Anthropic's: not in its `input_tokens`, but in the `prompt_tokens` of gateways that send both.
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
}

impl Counts {
    fn scan(bytes: &[u8]) -> Result<Self, JsonError> {
        let mut counts = Self::default();
        let mut scanner = Scanner::new(bytes);
        for_each_field(&mut scanner, |name, scanner| {
            match name {
                b"prompt_tokens" => counts.prompt = count(scanner)?,
                b"input_tokens" => counts.input = count(scanner)?,
                b"completion_tokens" | b"output_tokens" => counts.completion = count(scanner)?.or(counts.completion),
                b"cache_read_input_tokens" => counts.cache_read = count(scanner)?,
                b"cache_creation_input_tokens" => counts.cache_creation = count(scanner)?,
                b"total_tokens" => counts.total = count(scanner)?,
                b"prompt_cache_hit_tokens" => counts.cache_hit = count(scanner)?,
                b"prompt_tokens_details" | b"input_tokens_details" => {
                    counts.cached = detail(scanner, b"cached_tokens")?.or(counts.cached);
                }
                b"completion_tokens_details" | b"output_tokens_details" => {
                    counts.reasoning = detail(scanner, b"reasoning_tokens")?.or(counts.reasoning);
                }
                _ => {
                    scanner.skip()?;
                }
            }
            Ok(())
        })?;
        scanner.finish()?;
        Ok(counts)
    }

    fn normalised(self) -> Option<Usage> {
        self.prompt.or(self.input).or(self.completion).or(self.total)?;
        let (read, created) = (self.cache_read.unwrap_or_default(), self.cache_creation.unwrap_or_default());
        let input = match self.prompt {
            Some(prompt) => prompt,
            None => self.input.unwrap_or_default().saturating_add(read).saturating_add(created),
        };
        let output = self.completion.unwrap_or_default();
        Some(Usage {
            input,
            output,
            total: self.total.unwrap_or(input.saturating_add(output)),
            cached_input: self.cached.or(self.cache_hit).unwrap_or(read),
            cache_creation_input: created,
            reasoning: self.reasoning.unwrap_or_default(),
        })
    }
}

/// Reads an object, which must come next, and hands over each field's name, with the scanner before its value.
fn for_each_field(
    scanner: &mut Scanner<'_>,
    mut read: impl FnMut(&[u8], &mut Scanner<'_>) -> Result<(), JsonError>,
) -> Result<(), JsonError> {
    let offset = scanner.offset();
    if scanner.peek()? != ValueKind::Object {
        return Err(JsonError::Syntax { reason: "expected an object", offset });
    }
    scanner.open()?;
    while let Some(key) = scanner.next_key()? {
        read(&key.text(scanner.bytes()), scanner)?;
    }
    Ok(())
}

/// One count inside of a details object, which may as well be null or missing.
fn detail(scanner: &mut Scanner<'_>, wanted: &[u8]) -> Result<Option<u64>, JsonError> {
    let mut found = None;
    if scanner.peek()? != ValueKind::Object {
        scanner.skip()?;
        return Ok(found);
    }
    for_each_field(scanner, |name, scanner| {
        if name == wanted {
            found = count(scanner)?;
        } else {
            scanner.skip()?;
        }
        Ok(())
    })?;
    Ok(found)
}

/// A count: some servers write it as `12.0`, so it is read as a float, which is exact up to [`MAX_TOKENS`].
fn count(scanner: &mut Scanner<'_>) -> Result<Option<u64>, JsonError> {
    let kind = scanner.peek()?;
    let span = scanner.skip()?;
    let value = match kind {
        ValueKind::Number => core::str::from_utf8(scanner.bytes().get(span).unwrap_or_default()).ok(),
        _ => None,
    };
    let value = value.and_then(|digits| digits.parse::<f64>().ok());
    Ok(value.filter(|value| (0.0..=MAX_TOKENS).contains(value) && value.fract() == 0.0).map(|value| value as u64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn usage(text: &str) -> Option<Usage> {
        Usage::from_json(text.as_bytes())
    }

    #[test]
    fn a_chat_answers_usage_is_read_with_its_details() {
        let text = r#"{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,
            "prompt_tokens_details":{"cached_tokens":1920,"audio_tokens":0},
            "completion_tokens_details":{"reasoning_tokens":64,"accepted_prediction_tokens":0}}"#;
        let expected =
            Usage { input: 2006, output: 300, total: 2306, cached_input: 1920, cache_creation_input: 0, reasoning: 64 };
        assert_eq!(usage(text), Some(expected));
    }

    #[test]
    fn an_embedding_has_no_output() {
        let expected = Usage { input: 8, total: 8, ..Usage::default() };
        assert_eq!(usage(r#"{"prompt_tokens":8,"total_tokens":8}"#), Some(expected));
        assert_eq!(usage(r#"{"prompt_tokens":8,"total_tokens":8,"completion_tokens":0}"#), Some(expected));
    }

    #[test]
    fn null_details_and_extras_are_tolerated() {
        let text = r#"{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2,"prompt_tokens_details":null,
            "completion_tokens_details":[1],"reasoning_tokens":0,"queue":{"a":[{}]}}"#;
        assert_eq!(usage(text), Some(Usage { input: 5, output: 2, total: 7, ..Usage::default() }));
    }

    #[test]
    fn deepseeks_cache_hits_count_where_the_details_do_not_say() {
        let hits = r#"{"prompt_tokens":5,"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":1}"#;
        assert_eq!(usage(hits), Some(Usage { input: 5, total: 5, cached_input: 4, ..Usage::default() }));
        let both = r#"{"prompt_tokens":5,"prompt_cache_hit_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}"#;
        assert_eq!(usage(both), Some(Usage { input: 5, total: 5, cached_input: 3, ..Usage::default() }));
    }

    #[test]
    fn a_responses_usage_is_read_with_its_details() {
        let text = r#"{"input_tokens":20,"input_tokens_details":{"cached_tokens":16},"output_tokens":5,
            "output_tokens_details":{"reasoning_tokens":3},"total_tokens":25}"#;
        let expected =
            Usage { input: 20, output: 5, total: 25, cached_input: 16, cache_creation_input: 0, reasoning: 3 };
        assert_eq!(usage(text), Some(expected));
    }

    #[test]
    fn what_anthropics_cache_gave_and_took_is_input_once() {
        let text = r#"{"input_tokens":4,"cache_creation_input_tokens":100,"cache_read_input_tokens":2000,
            "cache_creation":{"ephemeral_5m_input_tokens":100},"output_tokens":7,"service_tier":"standard"}"#;
        let expected =
            Usage { input: 2104, output: 7, total: 2111, cached_input: 2000, cache_creation_input: 100, reasoning: 0 };
        assert_eq!(usage(text), Some(expected));
        let translated = r#"{"prompt_tokens":2104,"completion_tokens":7,"cache_read_input_tokens":2000}"#;
        assert_eq!(usage(translated).map(|usage| (usage.input, usage.cached_input)), Some((2104, 2000)));
    }

    #[test]
    fn a_missing_total_is_the_sum() {
        let text = r#"{"prompt_tokens":5,"completion_tokens":2}"#;
        assert_eq!(usage(text), Some(Usage { input: 5, output: 2, total: 7, ..Usage::default() }));
    }

    #[test]
    fn what_is_no_usage_is_none() {
        for text in
            ["", "null", "5", "[]", "\"x\"", "{}", "{\"total_tokens\":null}", "{\"prompt_tokens\":1", "{\"a\":1}"]
        {
            assert_eq!(usage(text), None, "{text}");
        }
    }

    #[test]
    fn absurd_counts_are_ignored() {
        for absurd in
            ["-1", "1.5", "9007199254740993.0e3", "1e300", "1e999", "99999999999999999999", "\"7\"", "true", "{}"]
        {
            let text = format!(r#"{{"prompt_tokens":3,"completion_tokens":{absurd},"total_tokens":{absurd}}}"#);
            assert_eq!(usage(&text), Some(Usage { input: 3, total: 3, ..Usage::default() }), "{absurd}");
        }
        let largest = usage(r#"{"prompt_tokens":9007199254740992,"completion_tokens":12.0}"#);
        let expected = Usage { input: 1 << 53, output: 12, total: (1 << 53) + 12, ..Usage::default() };
        assert_eq!(largest, Some(expected));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Usage::from_json(&bytes);
        }
    }
}
