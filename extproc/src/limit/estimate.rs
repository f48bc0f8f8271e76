//! What a request will probably use, from what is known before the model is asked. No tokenizer: the hold is corrected by
//! the real usage within seconds, and the request path has no time for one.

use super::{Cost, Quantity};

/// English text and code are near four bytes a token in the vocabularies in use.
const BYTES_PER_TOKEN: u64 = 4;

/// Reserved for the answer where the client sets no bound or a high one: a model's maximum would lock others out for
/// tokens that hardly any answer uses.
const OUTPUT_FALLBACK: u64 = 512;

/// What is known of a request before the model is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EstimateInput {
    /// Bytes of prompt text.
    pub prompt_bytes: u64,
    /// The client's bound on completion tokens, for each choice.
    pub max_tokens: Option<u64>,
    /// How many answers are asked for (`n`); 0 is read as 1.
    pub choices: u64,
}

impl EstimateInput {
    /// The prompt's estimate, in tokens.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_bytes / BYTES_PER_TOKEN
    }

    /// The answer's estimate, in tokens.
    pub fn output_tokens(&self) -> u64 {
        let bound = self.max_tokens.unwrap_or(u64::MAX);
        bound.saturating_mul(self.choices.max(1)).min(OUTPUT_FALLBACK)
    }
}

impl Quantity {
    /// What a request will probably use of this.
    pub fn estimate(self, input: &EstimateInput) -> u64 {
        match self {
            Self::Tokens(Cost::Input) => input.prompt_tokens(),
            Self::Tokens(Cost::Output) => input.output_tokens(),
            Self::Tokens(Cost::Total) => input.prompt_tokens().saturating_add(input.output_tokens()),
            // Whether the upstream has the prompt cached, or the model reasons, cannot be known from the request.
            Self::Tokens(Cost::CachedInput | Cost::CacheCreationInput | Cost::Reasoning) => 0,
            Self::Requests | Self::Concurrency => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(cost: Cost, prompt_bytes: u64, max_tokens: Option<u64>, choices: u64) -> u64 {
        Quantity::Tokens(cost).estimate(&EstimateInput { prompt_bytes, max_tokens, choices })
    }

    #[test]
    fn a_total_is_the_prompt_and_what_the_client_bounds() {
        assert_eq!(estimate(Cost::Total, 400, Some(20), 1), 120);
        assert_eq!(estimate(Cost::Total, 400, Some(20), 3), 160);
    }

    #[test]
    fn an_answer_without_a_bound_or_with_a_high_one_reserves_the_fallback() {
        assert_eq!(estimate(Cost::Total, 400, None, 1), 612);
        assert_eq!(estimate(Cost::Total, 400, Some(128_000), 4), 612);
        assert_eq!(estimate(Cost::Output, 400, None, 0), 512);
    }

    #[test]
    fn each_cost_estimates_its_own_part() {
        assert_eq!(estimate(Cost::Input, 400, Some(20), 1), 100);
        assert_eq!(estimate(Cost::Output, 400, Some(20), 1), 20);
        for cost in [Cost::CachedInput, Cost::CacheCreationInput, Cost::Reasoning] {
            assert_eq!(estimate(cost, 400, Some(20), 1), 0);
        }
        assert_eq!(Quantity::Requests.estimate(&EstimateInput::default()), 1);
        assert_eq!(Quantity::Concurrency.estimate(&EstimateInput::default()), 1);
    }

    #[test]
    fn absurd_numbers_saturate() {
        assert_eq!(estimate(Cost::Total, u64::MAX, Some(u64::MAX), u64::MAX), u64::MAX / 4 + 512);
    }
}
