//! What a request will probably use, from what is known before the model is asked. No tokenizer: the hold is corrected by
//! the real usage within seconds, and the request path has no time for one.

use attache_proto::Usage;

use super::learned::MESSAGE_TOKENS;

/// Reserved for the answer where the client sets no bound or a high one and nothing has been learned: a model's maximum would
/// lock others out for tokens that hardly any answer uses.
const OUTPUT_FALLBACK: u64 = 512;

/// Held by a limit that may not be overdrawn, for each choice of an answer in one piece whose client sets no bound: the answer
/// cannot be held more for as it grows, so it gets room for nearly every length. It is the most that whole generations of models
/// could answer at all (GPT-4 Turbo, the first GPT-4o), and what is not used is free again when the answer is there.
const WHOLE_FALLBACK: u64 = 4_096;

/// What an image, a sound or a video is taken to cost: an image of six tiles in OpenAI's high detail (85 + 6 x 170), which is
/// one of 930 x 930 pixels in Qwen2-VL (28 x 28 a token). Half a minute of sound is near (750 in Qwen2-Audio). How long its
/// data is says nothing: it is compressed, or a URL.
pub(crate) const MEDIA_TOKENS: u64 = 1_105;

/// What is known of a request before the model is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EstimateInput {
    /// Bytes of prompt text.
    pub prompt_bytes: u64,
    /// Messages that the prompt consists of.
    pub messages: u64,
    /// Tokens of what is no text: images and audio, at flat costs.
    pub media_tokens: u64,
    /// The client's bound on completion tokens, for each choice.
    pub max_tokens: Option<u64>,
    /// How many answers are asked for: `n` for each prompt. 0 is read as 1.
    pub choices: u64,
    /// How the answer comes.
    pub form: Form,
}

/// How an answer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// In one piece: what is held for it has to do.
    #[default]
    Whole,
    /// In events: it can be ended at any of them, and what is held for it grows with it.
    Stream,
}

/// What earlier answers of the same model taught.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Learned {
    /// Bytes of prompt for one token, on average.
    pub bytes_per_token: f64,
    /// The fewest bytes of prompt for one token that are to be expected: what a hold must be safe against.
    pub fewest_bytes_per_token: f64,
    /// What a prompt has at most besides its text and its messages, in tokens: what the chat template adds by itself.
    pub template_tokens: u64,
    /// What nine of ten answers to this caller stay below, in tokens; `None` until enough of them were seen.
    pub output_p90: Option<u64>,
    /// The longest of the last answers to this caller, in tokens; one that was kept short counts twice.
    pub longest_output: Option<u64>,
}

/// English text and code are near four bytes a token in the vocabularies in use; the densest text (numbers, rare scripts) is
/// near two. A template's own system prompt has some 25 tokens (Llama 3, Qwen 2.5).
impl Default for Learned {
    fn default() -> Self {
        Self {
            bytes_per_token: 4.0,
            fewest_bytes_per_token: 2.0,
            template_tokens: 32,
            output_p90: None,
            longest_output: None,
        }
    }
}

/// What a request will probably use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    /// The prompt, in tokens.
    pub input: u64,
    /// The most that the prompt is to be expected to have, in tokens: for limits that may not be overdrawn.
    pub input_at_most: u64,
    /// The answer, in tokens, all choices together.
    pub output: u64,
    /// The most that the answer is let have before more is held for it, in tokens, all choices together: for limits that may
    /// not be overdrawn. Never below `output`.
    pub output_at_most: u64,
}

impl EstimateInput {
    /// The estimate, with what was learned.
    pub fn estimate(&self, learned: &Learned) -> Estimate {
        let text = |bytes_per_token: f64| self.prompt_bytes as f64 / bytes_per_token.max(f64::MIN_POSITIVE);
        let template = self.messages.saturating_mul(MESSAGE_TOKENS).saturating_add(learned.template_tokens);
        Estimate {
            input: (text(learned.bytes_per_token) as u64).saturating_add(self.media_tokens),
            input_at_most: (text(learned.fewest_bytes_per_token).ceil() as u64)
                .saturating_add(self.media_tokens)
                .saturating_add(template),
            output: self.output(learned),
            output_at_most: self.output_at_most(learned),
        }
    }

    /// The most completion tokens that the client lets the answer have, all choices together.
    pub fn output_bound(&self) -> Option<u64> {
        self.max_tokens.map(|max_tokens| max_tokens.saturating_mul(self.choices.max(1)))
    }

    fn output(&self, learned: &Learned) -> u64 {
        let bound = self.output_bound().unwrap_or(u64::MAX);
        match learned.output_p90 {
            // A bound not far above what answers have is there because this answer will be about as long.
            Some(p90) if bound <= p90.saturating_mul(2) => bound,
            // A choice has at least one token.
            Some(p90) => p90.max(self.choices).min(bound),
            None => OUTPUT_FALLBACK.max(self.choices).min(bound),
        }
    }

    fn output_at_most(&self, learned: &Learned) -> u64 {
        match (self.form, self.output_bound()) {
            (Form::Stream, _) => self.output(learned),
            (Form::Whole, Some(bound)) => bound,
            // Whoever gets long answers gets room for longer ones.
            (Form::Whole, None) => {
                let usual = learned.output_p90.unwrap_or(0).saturating_mul(2);
                let longest = learned.longest_output.unwrap_or(0);
                WHOLE_FALLBACK.saturating_mul(self.choices.max(1)).max(usual).max(longest)
            }
        }
    }
}

impl Estimate {
    /// The same for a request whose server may run tools, where answers to such requests have usually used so much input and output;
    /// the client lets this one have so much output.
    #[must_use]
    pub fn with_tools(self, usual: Option<(u64, u64)>, bound: Option<u64>) -> Self {
        let Some((input, output)) = usual else { return self };
        let output = self.output.max(output).min(bound.unwrap_or(u64::MAX));
        Self {
            input: self.input.max(input),
            input_at_most: self.input_at_most.max(input),
            output,
            output_at_most: self.output_at_most.max(output),
        }
    }

    /// As an answer would report it.
    pub fn usage(&self) -> Usage {
        let Self { input, output, .. } = *self;
        Usage { input, output, total: input.saturating_add(output), ..Usage::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(prompt_bytes: u64, max_tokens: Option<u64>, choices: u64, learned: &Learned) -> (u64, u64) {
        let input = EstimateInput { max_tokens, choices, ..of(prompt_bytes) };
        let Estimate { input, output, .. } = input.estimate(learned);
        (input, output)
    }

    fn of(prompt_bytes: u64) -> EstimateInput {
        EstimateInput { prompt_bytes, messages: 1, ..EstimateInput::default() }
    }

    #[test]
    fn a_request_holds_its_prompt_and_what_the_client_bounds() {
        let nothing = Learned::default();
        assert_eq!(estimate(400, Some(20), 1, &nothing), (100, 20));
        assert_eq!(estimate(400, Some(20), 3, &nothing), (100, 60));
    }

    #[test]
    fn an_answer_without_a_bound_or_with_a_high_one_reserves_the_fallback_until_something_is_learned() {
        let nothing = Learned::default();
        assert_eq!(estimate(400, None, 1, &nothing), (100, 512));
        assert_eq!(estimate(400, Some(128_000), 4, &nothing), (100, 512));
        let learned = Learned { output_p90: Some(90), ..nothing };
        assert_eq!(estimate(400, None, 0, &learned), (100, 90));
        assert_eq!(estimate(400, Some(128_000), 4, &learned), (100, 90));
    }

    #[test]
    fn a_bound_not_far_above_what_answers_have_is_taken_as_it_is() {
        let learned = Learned { output_p90: Some(90), ..Learned::default() };
        assert_eq!(estimate(400, Some(180), 1, &learned), (100, 180));
        assert_eq!(estimate(400, Some(181), 1, &learned), (100, 90));
        assert_eq!(estimate(400, Some(10), 1, &learned), (100, 10));
    }

    #[test]
    fn what_must_not_be_overdrawn_expects_a_dense_prompt() {
        let input = EstimateInput { messages: 2, media_tokens: 7, max_tokens: Some(1), ..of(400) };
        let expected = Estimate { input: 107, input_at_most: 200 + 7 + 10 + 32, output: 1, output_at_most: 1 };
        assert_eq!(input.estimate(&Learned::default()), expected);
    }

    #[test]
    fn an_answer_in_one_piece_that_must_not_overdraw_has_room_for_what_the_client_lets_it_have() {
        let at_most = |max_tokens: Option<u64>, choices: u64, output_p90: Option<u64>| {
            let learned = Learned { output_p90, ..Learned::default() };
            let whole = EstimateInput { max_tokens, choices, ..of(400) };
            let stream = EstimateInput { form: Form::Stream, ..whole };
            let [whole, stream] = [whole, stream].map(|input| input.estimate(&learned));
            assert_eq!(whole.output, stream.output);
            assert_eq!(stream.output_at_most, stream.output);
            (whole.output, whole.output_at_most)
        };
        assert_eq!(at_most(Some(900), 1, None), (512, 900));
        assert_eq!(at_most(Some(900), 3, Some(90)), (90, 2_700));
        assert_eq!(at_most(Some(0), 1, None), (0, 0));
        assert_eq!(at_most(None, 0, None), (512, 4_096));
        assert_eq!(at_most(None, 2, Some(90)), (90, 8_192));
        assert_eq!(at_most(None, 1, Some(2_048)), (2_048, 4_096));
        assert_eq!(at_most(None, 1, Some(5_000)), (5_000, 10_000));
    }

    #[test]
    fn each_of_many_choices_is_held_a_token() {
        assert_eq!(estimate(400, None, 1_000, &Learned::default()), (100, 1_000));
        let learned = Learned { output_p90: Some(90), ..Learned::default() };
        assert_eq!(estimate(400, None, 100, &learned), (100, 100));
        assert_eq!(estimate(400, Some(0), 100, &learned), (100, 0));
    }

    #[test]
    fn absurd_numbers_saturate() {
        let all = u64::MAX;
        let input = EstimateInput {
            prompt_bytes: all,
            messages: all,
            media_tokens: all,
            choices: all,
            ..EstimateInput::default()
        };
        let learned = Learned {
            bytes_per_token: 0.0,
            fewest_bytes_per_token: f64::NAN,
            template_tokens: all,
            output_p90: Some(all),
            longest_output: Some(all),
        };
        let estimate = input.estimate(&learned);
        assert_eq!((estimate.usage().total, estimate.output_at_most), (u64::MAX, u64::MAX));
    }
}
