//! An LRU cache of prompt blocks, as an engine's prefix cache is one.

use std::collections::{HashMap, VecDeque};

use crate::traces::BLOCK_TOKENS;

/// Holds the blocks that were used last. A block is only there if all blocks before it are: blocks are touched from the tail
/// to the head, so a head is always newer than what follows it.
#[derive(Debug)]
pub(super) struct BlockCache {
    capacity: usize,
    used: HashMap<u32, u64>,
    /// Every touch, the oldest first; only a block's latest one counts.
    touches: VecDeque<(u64, u32)>,
    clock: u64,
}

impl BlockCache {
    pub(super) fn new(tokens: u64) -> Self {
        let capacity = usize::try_from(tokens / BLOCK_TOKENS).unwrap_or(usize::MAX);
        Self { capacity, used: HashMap::new(), touches: VecDeque::new(), clock: 0 }
    }

    /// How many of the leading blocks are there.
    pub(super) fn matched(&self, blocks: &[u32]) -> usize {
        blocks.partition_point(|block| self.used.contains_key(block))
    }

    /// How many tokens of a prompt of `input_tokens` those are. A trace may list the prompt's last block though it is not full.
    pub(super) fn matched_tokens(&self, blocks: &[u32], input_tokens: u64) -> u64 {
        (self.matched(blocks) as u64 * BLOCK_TOKENS).min(input_tokens)
    }

    /// Uses `blocks`, a whole chain, and lets go of the oldest.
    pub(super) fn touch(&mut self, blocks: &[u32]) {
        for block in blocks.iter().rev() {
            self.clock += 1;
            self.used.insert(*block, self.clock);
            self.touches.push_back((self.clock, *block));
        }
        while self.used.len() > self.capacity {
            let Some((touched, block)) = self.touches.pop_front() else { return };
            if self.used.get(&block) == Some(&touched) {
                self.used.remove(&block);
            }
        }
        if self.touches.len() > 1024 + 4 * self.used.len() {
            self.touches.retain(|(touched, block)| self.used.get(block) == Some(touched));
        }
    }

    pub(super) fn clear(&mut self) {
        self.used.clear();
        self.touches.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_tail_goes_first_and_a_head_never_before_what_follows_it() {
        let mut cache = BlockCache::new(6 * 512);
        cache.touch(&[1, 2, 3]);
        cache.touch(&[1, 12, 13]);
        assert_eq!([cache.matched(&[1, 2, 3]), cache.matched(&[1, 12, 13, 14])], [3, 3]);
        cache.touch(&[21, 22]);
        assert_eq!([cache.matched(&[1, 2, 3]), cache.matched(&[1, 12, 13]), cache.matched(&[21, 22])], [2, 3, 2]);
        cache.touch(&[31]);
        assert_eq!([cache.matched(&[1, 2, 3]), cache.matched(&[1, 12, 13])], [1, 3]);
    }

    #[test]
    fn a_prompt_beyond_the_capacity_keeps_its_head() {
        let mut cache = BlockCache::new(2 * 512);
        cache.touch(&[1, 2, 3, 4]);
        assert_eq!(cache.matched(&[1, 2, 3, 4]), 2);
        assert_eq!(cache.matched_tokens(&[1, 2, 3, 4], 600), 600);
    }

    #[test]
    fn many_touches_of_few_blocks_take_no_memory() {
        let mut cache = BlockCache::new(100 * 512);
        (0..100_000).for_each(|_| cache.touch(&[1, 2, 3]));
        assert!(cache.touches.len() <= 1024 + 4 * 3);
        assert_eq!(cache.matched(&[1, 2, 3]), 3);
    }
}
