//! Conversations as clients send them: one system prompt that all share, then turns of prose, an escape in every few lines.

use std::ops::Range;

use attache_proto::Operation;
use attache_proto::request::{self, Segment};
use attache_tests::Result;

use super::failed;

/// The length of the system prompt, in bytes.
const SYSTEM_BYTES: usize = 1_000;

/// Digits of a mark.
const MARK: usize = 16;

/// One body, to be sent again and again: with another mark it is another conversation.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    /// Where the first user's message begins.
    mark: Range<usize>,
}

impl Body {
    /// A chat request of about so many bytes: more of it means more turns, and longer ones.
    pub(crate) fn new(len: usize) -> Self {
        let turns = (len / 2_000).isqrt().max(1) * 2 + 1;
        let turn_bytes = len.saturating_sub(SYSTEM_BYTES + 100) / turns;
        let mut words = Words(len as u64 | 1);
        let mut text = String::with_capacity(len + 1_000);
        text.push_str(r#"{"model":"llama","temperature":0.7,"messages":[{"role":"system","content":""#);
        // The same whatever follows.
        Words(7).write(&mut text, SYSTEM_BYTES);
        text.push_str(r#""}"#);
        let mut mark = 0..0;
        for turn in 0..turns {
            let role = if turn % 2 == 0 { "user" } else { "assistant" };
            text.push_str(&format!(r#",{{"role":"{role}","content":""#));
            if turn == 0 {
                mark = text.len()..text.len() + MARK;
                text.push_str(&"0".repeat(MARK));
            }
            words.write(&mut text, turn_bytes.saturating_sub(36));
            text.push_str(r#""}"#);
        }
        text.push_str(r#"],"stream":true}"#);
        Self { bytes: text.into_bytes(), mark }
    }

    /// Makes it the conversation of this number.
    pub(super) fn become_conversation(&mut self, number: u64) {
        if let Some(mark) = self.bytes.get_mut(self.mark.clone()) {
            mark.copy_from_slice(format!("{number:0MARK$x}").as_bytes());
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn segments(&self) -> Result<Vec<Segment>> {
        let scan = request::scan(Operation::ChatCompletions, &self.bytes).map_err(failed("scan a body"))?;
        Ok(scan.segments)
    }
}

/// Endless prose, the same for the same seed.
#[derive(Debug)]
struct Words(u64);

impl Words {
    fn write(&mut self, text: &mut String, len: usize) {
        const SYLLABLES: [&str; 16] =
            ["ba", "con", "de", "fer", "gra", "hi", "jun", "ko", "la", "men", "no", "pro", "que", "ri", "sto", "tu"];
        let end = text.len() + len;
        while text.len() < end {
            let random = next(&mut self.0);
            for digit in 0..2 + random % 3 {
                let syllable = SYLLABLES.get((random >> (8 + 4 * digit)) as usize % SYLLABLES.len());
                text.push_str(syllable.copied().unwrap_or_default());
            }
            text.push_str(if random >> 58 == 0 { "\\n" } else { " " });
        }
    }
}

/// xorshift64*: no two runs shall differ.
pub(super) fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D)
}
