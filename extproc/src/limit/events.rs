//! How many tokens the events of a model's streams have, learned from those whose server said at the end what they used.
//!
//! One token an event is what most servers send; those that guess ahead send three or four. A stream that is ended before its
//! server says what it used is charged by its events, and so is kept to a limit by them.

/// What a stream's events had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InEvents {
    /// The tokens that could be seen in them.
    pub seen: u64,
    /// Those that they had, by the usage at the end.
    pub used: u64,
}

/// Tokens seen, and tokens used, of the last streams: with each stream the earlier ones count a little less.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Events {
    seen: f64,
    used: f64,
}

/// No event has so many tokens for one that is seen.
const MOST: u64 = 64;
/// What was expected before counts as much as so many tokens.
const PRIOR: f64 = 64.0;
/// By so much the earlier streams count less.
const FADING: f64 = 1.0 / 32.0;

impl InEvents {
    pub(super) fn is_plausible(&self) -> bool {
        self.seen > 0 && self.used > 0 && self.used <= self.seen.saturating_mul(MOST)
    }
}

impl Events {
    pub(super) fn learn(&mut self, stream: &InEvents) {
        self.seen += stream.seen as f64 - FADING * self.seen;
        self.used += stream.used as f64 - FADING * self.used;
    }

    /// Tokens for each that is seen, where `expected` is what there are elsewhere.
    pub(super) fn tokens_per_seen(&self, expected: f64) -> f64 {
        (self.used + PRIOR * expected) / (self.seen + PRIOR)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Experience, Lesson};
    use super::*;

    fn learn(experience: &Experience, key: &str, seen: u64, used: u64) {
        let in_events = Some(InEvents { seen, used });
        experience.learn("m", None, Some(key), &Lesson { prompt: None, output: None, in_events, with_tools: None });
    }

    #[test]
    fn tokens_of_an_event_are_learned_for_each_key_and_from_the_models_other_streams_before() {
        let experience = Experience::default();
        assert_eq!(experience.tokens_per_seen("m", Some("a")), 1.0);
        (0..4).for_each(|_| learn(&experience, "a", 500, 1_500));
        let known = |key: &str| experience.tokens_per_seen("m", Some(key));
        assert!(
            (2.9..=3.0).contains(&known("a")) && (2.8..=3.0).contains(&known("b")),
            "{} {}",
            known("a"),
            known("b")
        );
        assert_eq!(experience.tokens_per_seen("other", Some("a")), 1.0);
        (0..4).for_each(|_| learn(&experience, "b", 500, 500));
        assert!((1.0..=1.2).contains(&known("b")), "{}", known("b"));
    }

    #[test]
    fn one_token_an_event_stays_exactly_that_and_nonsense_is_ignored() {
        let experience = Experience::default();
        for (seen, used) in [(1, 1), (333, 333), (7, 1 << 53), (0, 9), (9, 0)] {
            learn(&experience, "a", seen, used);
        }
        assert_eq!(experience.tokens_per_seen("m", Some("a")), 1.0);
    }
}
