//! One normalised account of an answer's tokens, whichever API it came from.
//!
//! Servers disagree on what is part of what, leave figures out and contradict themselves. [`Figures::account`] makes one
//! consistent account of whatever they say, and never one that is lower than what they say.

/// The largest count that is believed: the largest integer that every JSON implementation carries exactly (RFC 8259,
/// section 6). Sums of such counts stay far from overflow.
const MAX_TOKENS: f64 = 9_007_199_254_740_992.0;

/// Tokens of one answer.
///
/// It is consistent: `total` is `input + output`, `cached_input + cache_creation_input` is at most `input`, and `reasoning`
/// at most `output`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub input: u64,
    /// Completion tokens, reasoning included.
    pub output: u64,
    /// Input and output together.
    pub total: u64,
    /// Prompt tokens that came from the upstream's cache.
    pub cached_input: u64,
    /// Prompt tokens that were written to the upstream's cache, where it says so.
    pub cache_creation_input: u64,
    /// Completion tokens spent on reasoning.
    pub reasoning: u64,
}

impl Usage {
    /// The same with at least so much input and output, for what its server did not say.
    #[must_use]
    pub fn at_least(self, input: u64, output: u64) -> Self {
        Self { input: self.input.max(input), output: self.output.max(output), ..self }.consistent()
    }

    /// Both of them, of two answers of which each used its own.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            total: 0,
            cached_input: self.cached_input.saturating_add(other.cached_input),
            cache_creation_input: self.cache_creation_input.saturating_add(other.cache_creation_input),
            reasoning: self.reasoning.saturating_add(other.reasoning),
        }
        .consistent()
    }

    /// The larger count of each.
    fn or_more(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            total: 0,
            cached_input: self.cached_input.max(other.cached_input),
            cache_creation_input: self.cache_creation_input.max(other.cache_creation_input),
            reasoning: self.reasoning.max(other.reasoning),
        }
        .consistent()
    }

    fn consistent(self) -> Self {
        let cached_input = self.cached_input.min(self.input);
        Self {
            total: self.input.saturating_add(self.output),
            cached_input,
            cache_creation_input: self.cache_creation_input.min(self.input - cached_input),
            reasoning: self.reasoning.min(self.output),
            ..self
        }
    }
}

/// A usage, and what of it its server told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) usage: Usage,
    /// What was used beyond that and is in none of its counts: Anthropic's compaction of a conversation, for one.
    pub(crate) beyond: Usage,
    pub(crate) told: Told,
}

/// Which sides of a usage a server told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Both,
    Input,
    Output,
}

impl Account {
    /// All that was used.
    pub(crate) fn whole(&self) -> Usage {
        self.usage.and(self.beyond)
    }

    /// What a later event of the same answer makes of it. Anthropic's are cumulative, and name the input at the start and the
    /// output at the end; what an event does not name is 0 in it. So the larger count holds: that of a field by itself would
    /// not do, as what was input first may be a cache's later.
    pub(crate) fn updated(self, later: Self) -> Self {
        let told = if self.told == later.told { self.told } else { Told::Both };
        Self { usage: self.usage.or_more(later.usage), beyond: self.beyond.or_more(later.beyond), told }
    }
}

/// A count that servers report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figure {
    /// OpenAI's `prompt_tokens`: with what came from a cache.
    Prompt,
    /// `input_tokens` of the Responses API, with what came from a cache, and of Anthropic's, without.
    Input,
    /// `completion_tokens`
    Completion,
    /// `output_tokens`
    Output,
    /// `total_tokens`
    Total,
    /// `cached_tokens` of the details of the input.
    Cached,
    /// `prompt_cache_hit_tokens`: DeepSeek's name for them.
    CacheHit,
    /// `cached_tokens` beside `prompt_tokens`: Moonshot's and Together's place for them.
    CachedBeside,
    /// `cache_read_input_tokens`: Anthropic's name. They are not in its `input_tokens`, but in the `prompt_tokens` of gateways
    /// that send both.
    CacheRead,
    /// `cache_creation_input_tokens`: likewise.
    CacheCreation,
    /// `ephemeral_5m_input_tokens` of `cache_creation`: a part of `cache_creation_input_tokens`.
    CacheCreationShort,
    /// `ephemeral_1h_input_tokens`: the other part.
    CacheCreationLong,
    /// `cache_write_tokens` of the details of the input, which are in it: OpenAI's and OpenRouter's name.
    CacheWritten,
    /// `cache_creation_tokens` of the same: LiteLLM's.
    CacheCreated,
    /// `cache_creation_input_tokens` of the same: Model Studio's.
    CacheCreatedInput,
    /// `created_cache_tokens` of the same: vLLM's.
    CreatedCache,
    /// `ephemeral_5m_input_tokens` of the `cache_creation` (Model Studio) or `cache_creation_token_details` (LiteLLM) of the same: a part
    /// of the three above.
    CacheCreatedShort,
    /// `ephemeral_1h_input_tokens`: the other part.
    CacheCreatedLong,
    /// `reasoning_tokens` of the details of the output, or `thinking_tokens` as Anthropic's API has them.
    Reasoning,
    /// `reasoning_tokens` beside `completion_tokens`: SGLang's place for them.
    ReasoningBeside,
    /// `prompt_audio_seconds`: Mistral's, whose tokens are in the total alone.
    AudioSeconds,
    /// `prompt_n` of llama.cpp's `timings`: without what came from the cache.
    Evaluated,
    /// `cache_n` of the same: what did.
    Reused,
    /// `predicted_n` of the same.
    Predicted,
}

/// The counts that a server reported in one place.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    /// One bit for each that was reported.
    told: u32,
    counts: [u64; Figure::Predicted as usize + 1],
}

impl Figures {
    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.told = 0;
    }

    /// Reads a count as it is written. What is no whole number from 0 to 2^53 is no count, and changes nothing.
    ///
    /// Some servers write `12.0`, so it is read as a float, which is exact so far.
    pub(crate) fn read(&mut self, figure: Figure, number: &[u8]) {
        let value = core::str::from_utf8(number).ok().and_then(|digits| digits.parse::<f64>().ok());
        let value = value.filter(|value| (0.0..=MAX_TOKENS).contains(value) && value.fract() == 0.0);
        if let (Some(value), Some(count)) = (value, self.counts.get_mut(figure as usize)) {
            *count = value as u64;
            self.told |= 1 << figure as u32;
        }
    }

    /// The account that they make; `None` where neither input nor output nor a total is told.
    ///
    /// 1. What came from a cache, or was written to one, is in the input, wherever the server puts it, and what Anthropic's has
    ///    beside its input is added to it, once. What stands in the details of the input is in it already. Under several names it
    ///    is one and the same, so the largest figure holds.
    /// 2. Of input, output and total, two tell the third, unless they contradict each other. A total alone is input: those who
    ///    send it alone (rerankers) write nothing.
    /// 3. What a total has beyond input and output is output, as the thoughts of Gemini's and Grok's models are, which are in
    ///    neither count. With Mistral's seconds of audio it is input.
    /// 4. Reasoning beyond the output cannot be a part of it, so it is added.
    /// 5. The total is then the sum, even where the server said less; other parts are at most their whole.
    pub(crate) fn account(&self) -> Option<Account> {
        if self.told == 0 {
            return None;
        }
        let get = |figure| self.get(figure);
        let read = get(Figure::CacheRead);
        let parts = add(get(Figure::CacheCreationShort), get(Figure::CacheCreationLong));
        let created = get(Figure::CacheCreation).max(parts);
        let input = get(Figure::Prompt)
            .or_else(|| add(get(Figure::Input), add(read, created)))
            // What older servers reused they do not tell.
            .or_else(|| Some(get(Figure::Evaluated)?.saturating_add(get(Figure::Reused)?)));
        let output = get(Figure::Completion).or(get(Figure::Output)).or(get(Figure::Predicted));
        let total = get(Figure::Total);
        let (mut input, mut output, told) = match (input, output, total) {
            (None, None, None) => return None,
            (None, None, Some(total)) => (total, 0, Told::Both),
            (None, Some(output), Some(total)) if total >= output => (total - output, output, Told::Both),
            (None, Some(output), _) => (0, output, Told::Output),
            // The rest of the total is below.
            (Some(input), None, Some(total)) if total >= input => (input, 0, Told::Both),
            (Some(input), None, _) => (input, 0, Told::Input),
            (Some(input), Some(output), _) => (input, output, Told::Both),
        };
        let beyond = total.unwrap_or_default().saturating_sub(input).saturating_sub(output);
        match get(Figure::AudioSeconds) {
            Some(1..) => input = input.saturating_add(beyond),
            Some(0) | None => output = output.saturating_add(beyond),
        }
        let reasoning = get(Figure::Reasoning).or(get(Figure::ReasoningBeside)).unwrap_or_default();
        if reasoning > output {
            output = output.saturating_add(reasoning);
        }
        let within = add(get(Figure::CacheCreatedShort), get(Figure::CacheCreatedLong));
        let written = [Figure::CacheWritten, Figure::CacheCreated, Figure::CacheCreatedInput, Figure::CreatedCache];
        let written = written.into_iter().filter_map(get).chain(within).chain(created).max();
        let cached = get(Figure::Cached).or(get(Figure::CacheHit)).or(read);
        let usage = Usage {
            input,
            output,
            total: 0,
            cached_input: cached.or(get(Figure::CachedBeside)).or(get(Figure::Reused)).unwrap_or_default(),
            cache_creation_input: written.unwrap_or_default(),
            reasoning,
        };
        Some(Account { usage: usage.consistent(), beyond: Usage::default(), told })
    }

    fn get(&self, figure: Figure) -> Option<u64> {
        let is_told = self.told & 1 << figure as u32 != 0;
        self.counts.get(figure as usize).copied().filter(|_| is_told)
    }
}

/// The sum of those that there are.
fn add(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
