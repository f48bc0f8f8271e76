//! A prompt that grows, is cut back and branches, as blocks.

use crate::traces::BLOCK_TOKENS;

/// Gives out blocks that nobody has yet.
#[derive(Debug, Default)]
pub(super) struct Blocks(u32);

impl Blocks {
    fn fresh(&mut self) -> u32 {
        let block = self.0;
        self.0 = self.0.saturating_add(1);
        block
    }
}

/// What one conversation has said so far. Cloned, it branches: what both say next differs.
#[derive(Debug, Clone, Default)]
pub(super) struct Context {
    blocks: Vec<u32>,
    tokens: u64,
}

impl Context {
    /// Says `tokens` more that nobody said before. A block is one once it is full.
    pub(super) fn say(&mut self, tokens: f64, blocks: &mut Blocks) {
        self.tokens = self.tokens.saturating_add(tokens.max(0.0) as u64);
        while (self.blocks.len() as u64) < self.tokens / BLOCK_TOKENS {
            self.blocks.push(blocks.fresh());
        }
    }

    /// Forgets all beyond the first `tokens`.
    pub(super) fn cut(&mut self, tokens: u64) {
        self.tokens = self.tokens.min(tokens);
        self.blocks.truncate((self.tokens / BLOCK_TOKENS) as usize);
    }

    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(super) fn blocks(&self) -> Box<[u32]> {
        self.blocks.as_slice().into()
    }
}
