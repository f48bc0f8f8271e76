//! The content of answers: a function of the prompt, and of the choice's number, so that clients can compare what they get.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::prompt::Prompt;

/// Three letters each: with the space before it a word is four bytes, a token by the rule that counts prompts.
const WORDS: [&str; 64] = [
    "air", "ant", "arm", "art", "ash", "bay", "bee", "bow", "box", "bud", "car", "cat", "cow", "cup", "day", "dew",
    "dog", "ear", "egg", "elk", "elm", "eye", "fig", "fir", "fog", "fox", "gem", "hat", "hay", "hen", "hut", "ice",
    "ink", "ivy", "jam", "jar", "key", "kit", "lap", "log", "map", "mud", "net", "nut", "oak", "oar", "oat", "owl",
    "pea", "pen", "pie", "pot", "ray", "rye", "sea", "sky", "sun", "tea", "toe", "van", "wax", "web", "yak", "zoo",
];

/// The words of one choice, one a token. Endless.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    seed: u64,
    position: u64,
}

impl Words {
    pub(crate) fn new(prompt: &Prompt, choice: u64) -> Self {
        Self { seed: xxh3_64_with_seed(prompt.as_bytes(), choice), position: 0 }
    }
}

impl Iterator for Words {
    type Item = String;

    /// The next word, with the space before it.
    fn next(&mut self) -> Option<String> {
        let hash = xxh3_64_with_seed(&self.position.to_le_bytes(), self.seed);
        let word = WORDS.get(hash as usize % WORDS.len())?;
        let space = if self.position == 0 { "" } else { " " };
        self.position += 1;
        Some(format!("{space}{word}"))
    }
}

/// The embedding of a prompt: eight numbers between -1 and 1.
pub(crate) fn embedding(prompt: &Prompt) -> Vec<f32> {
    let numbers = (0..8).map(|dimension| xxh3_64_with_seed(prompt.as_bytes(), dimension) as u16);
    numbers.map(|number| f32::from(number) / f32::from(u16::MAX) * 2.0 - 1.0).collect()
}

/// How alike the two texts of a prompt are: a number between 0 and 1.
pub(crate) fn similarity(prompt: &Prompt) -> f64 {
    f64::from(xxh3_64_with_seed(prompt.as_bytes(), 0) as u16) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(prompt: &str, choice: u64) -> String {
        let prompt = Prompt::all_from(&json!(prompt)).unwrap().remove(0);
        Words::new(&prompt, choice).take(12).collect()
    }

    #[test]
    fn the_same_prompt_has_the_same_answer() {
        assert_eq!(text("Hi", 0), text("Hi", 0));
        assert_ne!(text("Hi", 0), text("Ho", 0));
        assert_ne!(text("Hi", 0), text("Hi", 1));
    }

    #[test]
    fn an_answer_of_n_tokens_is_n_words_and_counts_n_tokens_in_a_prompt() {
        let answer = text("Hi", 0);
        assert_eq!(answer.split(' ').count(), 12);
        assert_eq!(answer.len().div_ceil(4), 12);
    }
}
