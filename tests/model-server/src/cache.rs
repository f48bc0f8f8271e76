//! The prefix cache: which blocks of prompts the server still holds, as vLLM's automatic prefix caching keeps them.
//!
//! A block's hash covers the block and, through its parent's hash, everything before it, so one hash names a whole prefix. Only whole blocks are
//! kept. Using a chain touches it from its tail to its head: a parent is always newer than its children, so evicting the oldest block always takes
//! a tail and never breaks a chain. No I/O, no locks.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The hashes of a text's whole blocks, first block first.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    block_bytes: NonZeroUsize,
    seed: u64,
    hashes: Vec<u64>,
    /// What follows the last whole block; shorter than a block.
    rest: Vec<u8>,
}

impl Chain {
    /// An empty chain. Chains share blocks only if they share the seed.
    pub(crate) fn new(block_bytes: NonZeroUsize, seed: u64) -> Self {
        Self { block_bytes, seed, hashes: Vec::new(), rest: Vec::new() }
    }

    pub(crate) fn extend(&mut self, text: &[u8]) {
        self.rest.extend_from_slice(text);
        let text = std::mem::take(&mut self.rest);
        let mut blocks = text.chunks_exact(self.block_bytes.get());
        let mut parent = self.hashes.last().copied().unwrap_or(self.seed);
        for block in &mut blocks {
            parent = xxh3_64_with_seed(block, parent);
            self.hashes.push(parent);
        }
        self.rest.extend_from_slice(blocks.remainder());
    }
}

/// An LRU cache of prefix blocks.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    capacity_blocks: usize,
    /// When each block was last used.
    last_used: HashMap<u64, u64>,
    /// The same, oldest first.
    oldest: BTreeMap<u64, u64>,
    /// Counts uses; no two blocks are used at the same time.
    clock: u64,
}

impl PrefixCache {
    pub(crate) fn new(capacity_blocks: usize) -> Self {
        Self { capacity_blocks, last_used: HashMap::new(), oldest: BTreeMap::new(), clock: 0 }
    }

    /// Makes the chain the newest content, at the expense of the oldest. Of a chain that is larger than the cache, the head stays.
    pub(crate) fn insert(&mut self, chain: &Chain) {
        for hash in chain.hashes.iter().rev() {
            self.clock += 1;
            if let Some(before) = self.last_used.insert(*hash, self.clock) {
                self.oldest.remove(&before);
            }
            self.oldest.insert(self.clock, *hash);
        }
        while self.last_used.len() > self.capacity_blocks {
            let Some((_, hash)) = self.oldest.pop_first() else {
                break;
            };
            self.last_used.remove(&hash);
        }
    }

    /// How many of the chain's leading blocks are held.
    pub(crate) fn held(&self, chain: &Chain) -> usize {
        chain.hashes.iter().take_while(|hash| self.last_used.contains_key(hash)).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: NonZeroUsize = NonZeroUsize::new(4).unwrap();

    fn chain(text: &str) -> Chain {
        let mut chain = Chain::new(BLOCK, 0);
        chain.extend(text.as_bytes());
        chain
    }

    #[test]
    fn the_longest_held_prefix_counts_in_whole_blocks() {
        let mut cache = PrefixCache::new(100);
        cache.insert(&chain("aaaabbbbcccc"));
        assert_eq!(cache.held(&chain("aaaabbbbcccc")), 3);
        assert_eq!(cache.held(&chain("aaaabbbbcc")), 2);
        assert_eq!(cache.held(&chain("aaaabbbbxxxxcccc")), 2);
        assert_eq!(cache.held(&chain("bbbbcccc")), 0);
    }

    #[test]
    fn the_oldest_chain_loses_its_tail_first() {
        let mut cache = PrefixCache::new(4);
        cache.insert(&chain("aaaabbbb"));
        cache.insert(&chain("ccccdddd"));
        cache.insert(&chain("eeee"));
        assert_eq!(cache.held(&chain("aaaabbbb")), 1);
        assert_eq!(cache.held(&chain("ccccdddd")), 2);
        assert_eq!(cache.held(&chain("eeee")), 1);
    }

    #[test]
    fn a_chain_in_use_is_kept() {
        let mut cache = PrefixCache::new(3);
        cache.insert(&chain("aaaa"));
        cache.insert(&chain("bbbbcccc"));
        cache.insert(&chain("aaaa"));
        cache.insert(&chain("dddd"));
        assert_eq!(cache.held(&chain("aaaa")), 1);
        assert_eq!(cache.held(&chain("bbbbcccc")), 1);
    }

    #[test]
    fn of_a_chain_larger_than_the_cache_the_head_stays() {
        let mut cache = PrefixCache::new(2);
        cache.insert(&chain("aaaabbbbccccdddd"));
        assert_eq!(cache.held(&chain("aaaabbbbccccdddd")), 2);
    }

    #[test]
    fn another_seed_shares_nothing() {
        let mut cache = PrefixCache::new(100);
        cache.insert(&chain("aaaa"));
        let mut salted = Chain::new(BLOCK, 7);
        salted.extend(b"aaaa");
        assert_eq!(cache.held(&salted), 0);
    }

    proptest! {
        #[test]
        fn a_chain_is_the_same_however_its_text_arrives(text in "[ab]{0,40}", cut in 0usize..40) {
            let cut = cut.min(text.len());
            let mut pieces = chain(&text[..cut]);
            pieces.extend(&text.as_bytes()[cut..]);
            prop_assert_eq!(pieces.hashes, chain(&text).hashes);
        }

        #[test]
        fn the_cache_never_exceeds_its_capacity_nor_holds_a_block_without_its_parent(
            capacity in 0usize..12,
            texts in prop::collection::vec("[ab]{0,32}", 1..30),
        ) {
            let mut cache = PrefixCache::new(capacity);
            for text in &texts {
                cache.insert(&chain(text));
                prop_assert!(cache.last_used.len() <= capacity);
                prop_assert_eq!(cache.last_used.len(), cache.oldest.len());
                for text in &texts {
                    let chain = chain(text);
                    let held = chain.hashes.iter().filter(|hash| cache.last_used.contains_key(hash)).count();
                    prop_assert_eq!(held, cache.held(&chain));
                }
            }
        }
    }
}
