//! One normalised account of an answer's tokens, whichever API it came from.

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
