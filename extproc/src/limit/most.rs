//! The most tokens that a prompt of so many bytes is to be expected to have: what a hold must be safe against, and not much more.
//!
//! A prompt is text and template. Their rates are learned from the same prompts: of a long one nearly all is text, of a short one
//! nearly all template. To weigh them alike, a prompt is looked at in multiples of its usual size: it is
//! `text * share + template * (1 - share)`, where `share` is the part of its usual size that is text. Both rates are kept twice:
//! a line through the middle of the prompts, and one above all of them, which gives way to the prompts below it by little.

use super::learned::MESSAGE_TOKENS;
use super::{Learned, Prompt};

/// A prompt's usual size in tokens: its text at four bytes a token, and a template of so many tokens.
const USUAL_BYTES_PER_TOKEN: f64 = 4.0;
const USUAL_TEMPLATE_TOKENS: f64 = 24.0;

/// The fewest bytes a token of text has on average, and the most.
const DENSEST: f64 = 0.5;
const SPARSEST: f64 = 16.0;
/// No template adds more.
pub(super) const MAX_TEMPLATE_TOKENS: f64 = 4096.0;

/// What is taken for granted counts as much as so many prompts. Until more were seen, each weighs as much as any before it; from
/// then on the latest weigh most.
const PRIOR: f64 = 16.0;
/// The middle line follows within some hundred prompts, their spread around it a little slower.
const MIDDLE: f64 = 1.0 / 64.0;
const SPREAD: f64 = 1.0 / 128.0;
/// The upper line gives way within some thousand.
const UPPER: f64 = 1.0 / 512.0;
/// The upper line is safe with so much of the mean deviation from the middle on top, and so much of the usual size. With the
/// constants above, tuned on prompts of 20 to 4,000 bytes at four bytes a token, give or take 7 % (one standard deviation) or
/// 15 % (evenly), with templates of 8 to 30 tokens: after 200 of them a hold is short once in some thousand, and has a quarter
/// more than is needed. The tests do the same.
const DEVIATIONS: f64 = 1.25;
const MARGIN: f64 = 0.03;

/// The tokens of a tenant's prompts to a model at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    prompts: u32,
    middle: Middle,
    /// The mean deviation from the middle, in usual sizes.
    spread: f64,
    upper: Line,
}

/// Tokens for what usually is one.
#[derive(Debug, Clone, Copy)]
struct Line {
    text: f64,
    template: f64,
}

/// One prompt.
#[derive(Debug, Clone, Copy)]
struct Sample {
    share: f64,
    size: f64,
}

/// Moving averages, for a regression of size on share.
#[derive(Debug, Clone, Copy)]
struct Middle {
    share: f64,
    size: f64,
    share_squared: f64,
    share_by_size: f64,
}

impl Most {
    /// Before the first prompt: what is expected of those of others.
    pub(super) fn expecting(usual: &Learned) -> Self {
        let text = USUAL_BYTES_PER_TOKEN / usual.fewest_bytes_per_token.max(DENSEST);
        let template = usual.template_tokens as f64 / USUAL_TEMPLATE_TOKENS;
        let upper = Line { text: text - MARGIN, template: template - MARGIN };
        Self { prompts: 0, middle: Middle::default(), spread: 0.0, upper }
    }

    pub(super) fn learn(&mut self, prompt: &Prompt) {
        self.prompts = self.prompts.saturating_add(1);
        let equal = 1.0 / (f64::from(self.prompts) + PRIOR);
        let sample = Sample::of(prompt);
        self.middle.learn(&sample, MIDDLE.max(equal));
        let middle = self.middle.line();
        self.spread += SPREAD.max(equal) * ((sample.size - middle.at(&sample)).abs() - self.spread);
        self.upper.follow(&sample, UPPER.max(equal), &middle);
    }

    pub(super) fn bytes_per_token(&self) -> f64 {
        (USUAL_BYTES_PER_TOKEN / (self.upper.text + self.margin())).clamp(DENSEST, SPARSEST)
    }

    pub(super) fn template_tokens(&self) -> u64 {
        (USUAL_TEMPLATE_TOKENS * (self.upper.template + self.margin())).ceil() as u64
    }

    fn margin(&self) -> f64 {
        DEVIATIONS * self.spread + MARGIN
    }
}

impl Sample {
    fn of(prompt: &Prompt) -> Self {
        let text = prompt.bytes as f64 / USUAL_BYTES_PER_TOKEN;
        let usual = text + USUAL_TEMPLATE_TOKENS;
        let tokens = prompt.tokens as f64 - prompt.messages.saturating_mul(MESSAGE_TOKENS) as f64;
        Self { share: text / usual, size: tokens / usual }
    }
}

impl Line {
    fn at(&self, sample: &Sample) -> f64 {
        self.text * sample.share + self.template * (1.0 - sample.share)
    }

    /// Rises to a sample above it at once, by the shortest way; to one below it falls by a part of the way, but not below `middle`.
    fn follow(&mut self, sample: &Sample, part: f64, middle: &Self) {
        let Sample { share, size } = *sample;
        let above = size - self.at(sample);
        let step = if above > 0.0 { above } else { part * above };
        let step = step / (share * share + (1.0 - share) * (1.0 - share));
        self.text = (self.text + step * share).max(middle.text).min(USUAL_BYTES_PER_TOKEN / DENSEST);
        self.template = (self.template + step * (1.0 - share)).max(middle.template);
        // What text cannot account for. No text is endless, so its share is below 1.
        self.template = self.template.max((size - self.text * share) / (1.0 - share).max(f64::EPSILON));
    }
}

/// As if two prompts had been seen: a template of eight tokens alone, and one of mostly text with four bytes a token.
impl Default for Middle {
    fn default() -> Self {
        let size = |share: f64| Self::TEMPLATE + Self::SLOPE * share;
        let mean = |of: fn(f64) -> f64| f64::midpoint(of(0.0), of(0.9));
        Self {
            share: mean(|share| share),
            size: size(mean(|share| share)),
            share_squared: mean(|share| share * share),
            share_by_size: Self::TEMPLATE * mean(|share| share) + Self::SLOPE * mean(|share| share * share),
        }
    }
}

impl Middle {
    const TEMPLATE: f64 = 1.0 / 3.0;
    const SLOPE: f64 = 1.0 - Self::TEMPLATE;
    /// Where all prompts are of one length, nothing tells text from template: then the slope is the usual one.
    const RIDGE: f64 = 0.002;

    fn learn(&mut self, sample: &Sample, part: f64) {
        let Sample { share, size } = *sample;
        self.share += part * (share - self.share);
        self.size += part * (size - self.size);
        self.share_squared += part * (share * share - self.share_squared);
        self.share_by_size += part * (share * size - self.share_by_size);
    }

    fn line(&self) -> Line {
        let variance = self.share_squared - self.share * self.share;
        let covariance = self.share_by_size - self.share * self.size;
        let slope = (covariance + Self::RIDGE * Self::SLOPE) / (variance.max(0.0) + Self::RIDGE);
        let template = self.size - slope * self.share;
        // No template is less than nothing: then the line goes through the origin.
        let text = if template > 0.0 { template + slope } else { self.size / self.share.max(f64::EPSILON) };
        let [least, most] = [SPARSEST, DENSEST].map(|bytes| USUAL_BYTES_PER_TOKEN / bytes);
        Line { text: text.clamp(least, most), template: template.max(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{EstimateInput, Experience, Lesson};
    use super::*;

    /// Prompts of one model as they may come.
    struct Traffic {
        template_tokens: f64,
        noise: fn(&mut u64) -> f64,
        random: u64,
    }

    /// From 0 to 1. Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014).
    fn uniform(random: &mut u64) -> f64 {
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }

    /// The sum of twelve is nearly normal, with a deviation of 1.
    fn normal(random: &mut u64) -> f64 {
        (0..12).map(|_| uniform(random)).sum::<f64>() - 6.0
    }

    impl Iterator for Traffic {
        type Item = Prompt;

        fn next(&mut self) -> Option<Prompt> {
            let messages = [1, 1, 2, 3, 5][(uniform(&mut self.random) * 4.99) as usize];
            let bytes = (20.0 * 200f64.powf(uniform(&mut self.random))).floor();
            let text = (bytes / 4.0 * (1.0 + (self.noise)(&mut self.random))).round().max(1.0);
            let tokens = text + self.template_tokens + 4.0 * (messages - 1) as f64;
            Some(Prompt { bytes: bytes as u64, messages, tokens: tokens as u64 })
        }
    }

    fn learn(experience: &Experience, prompt: Prompt) {
        experience.learn(
            "m",
            None,
            None,
            &Lesson { prompt: Some(prompt), output: None, in_events: None, with_tools: None },
        );
    }

    fn at_most(experience: &Experience, prompt: &Prompt) -> u64 {
        let &Prompt { bytes: prompt_bytes, messages, .. } = prompt;
        let input = EstimateInput { prompt_bytes, messages, ..EstimateInput::default() };
        input.estimate(&experience.of("m", None, None)).input_at_most
    }

    #[test]
    fn after_200_prompts_a_hold_is_seldom_short_and_never_far_too_much_whether_prompts_are_short_or_long() {
        const PROMPTS: usize = 1_000;
        let noises: [fn(&mut u64) -> f64; 2] = [|it| 0.07 * normal(it), |it| 0.3 * (uniform(it) - 0.5)];
        for noise in noises {
            let (mut short, mut all) = (0, 0);
            // Excess, truth and number of prompts below 100 bytes, below 1,000, and of the others.
            let mut by_length = [(0, 0, 0); 3];
            for seed in 0..10 {
                for template_tokens in [8.0, 15.0, 30.0] {
                    let mut traffic = Traffic { template_tokens, noise, random: seed };
                    let experience = Experience::default();
                    traffic.by_ref().take(200).for_each(|prompt| learn(&experience, prompt));
                    for prompt in traffic.take(PROMPTS) {
                        let held = at_most(&experience, &prompt);
                        short += u64::from(held < prompt.tokens);
                        all += 1;
                        let (excess, truth, count) =
                            &mut by_length[[100, 1_000].partition_point(|it| prompt.bytes >= *it)];
                        *excess += held.saturating_sub(prompt.tokens);
                        *truth += prompt.tokens;
                        *count += 1;
                        learn(&experience, prompt);
                    }
                }
            }
            assert!(short * 1_000 <= all, "{short} of {all}");
            for (excess, truth, count) in by_length {
                let (excess, truth) = (excess as f64 / f64::from(count), truth as f64 / f64::from(count));
                assert!(excess < truth / 4.0 + 12.0, "{excess} of {truth}: {by_length:?}");
            }
        }
    }

    #[test]
    fn a_prompt_of_medium_length_and_dense_text_is_not_taken_for_a_template() {
        let experience = Experience::default();
        let short = Prompt { bytes: 6, messages: 1, tokens: 9 };
        for _ in 0..100 {
            learn(&experience, short);
            learn(&experience, Prompt { bytes: 2_000, messages: 1, tokens: 510 });
        }
        let before = at_most(&experience, &short);
        learn(&experience, Prompt { bytes: 900, messages: 1, tokens: 600 });
        let after = at_most(&experience, &short);
        assert!(before <= 20 && after <= before + 12, "{before}, {after}");
    }

    #[test]
    fn the_densest_prompt_is_expected_at_once_and_for_long() {
        let experience = Experience::default();
        let (dense, usual) = ([3_000; 2], [4_000, 1_000]);
        let [dense, usual] = [dense, usual].map(|[bytes, tokens]| Prompt { bytes, messages: 1, tokens });
        let teach = |count: usize| (0..count).for_each(|_| learn(&experience, usual));
        teach(300);
        assert!((1_000..1_150).contains(&at_most(&experience, &usual)), "{}", at_most(&experience, &usual));
        learn(&experience, dense);
        assert!((3_000..4_000).contains(&at_most(&experience, &dense)), "{}", at_most(&experience, &dense));
        teach(100);
        assert!((2_000..4_000).contains(&at_most(&experience, &usual)), "{}", at_most(&experience, &usual));
        teach(4_000);
        assert!((1_000..1_150).contains(&at_most(&experience, &usual)), "{}", at_most(&experience, &usual));
    }

    #[test]
    fn what_a_template_adds_is_learned_from_short_prompts() {
        let experience = Experience::default();
        let [short, long] = [(6, 150), (4_000, 1_150)].map(|(bytes, tokens)| Prompt { bytes, messages: 1, tokens });
        learn(&experience, short);
        assert!((150..200).contains(&at_most(&experience, &short)), "{}", at_most(&experience, &short));
        for _ in 0..1_000 {
            learn(&experience, short);
            learn(&experience, long);
        }
        assert!((150..180).contains(&at_most(&experience, &short)), "{}", at_most(&experience, &short));
        assert!((1_150..1_300).contains(&at_most(&experience, &long)), "{}", at_most(&experience, &long));
    }

    proptest! {
        #[test]
        fn the_densest_of_the_last_prompts_would_have_fit(
            prompts in prop::collection::vec((1u64..100_000, 1u64..50, 5u32..200, 0u64..4_096), 1..64),
        ) {
            let experience = Experience::default();
            for (bytes, messages, percent, template) in prompts {
                let tokens = (bytes * u64::from(percent) / 100).max(1) + template;
                let prompt = Prompt { bytes, messages, tokens };
                if prompt.is_plausible() {
                    learn(&experience, prompt);
                    prop_assert!(at_most(&experience, &prompt) >= tokens, "{prompt:?} {:?}", experience.of("m", None, None));
                    prop_assert!(experience.of("m", None, None).template_tokens <= 100_000);
                }
            }
        }
    }
}
