//! Prefix blocks: a stream of bytes as a chain of hashes, of which each stands for everything before it.
//!
//! `h_0 = seed`, `h_i = xxh3_64(block_i, seed = h_{i-1})`. Blocks grow with their distance from the start: beginnings are
//! where prompts differ, and a long prompt shall not cost thousands of entries. Only full blocks count, so the chain of a
//! prefix is a prefix of the chain. Equal streams give equal chains in every process.

use std::mem;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The most blocks of one chain, which cover the first 15.4 MiB; what follows is counted, not hashed.
pub const MAX_BLOCKS: usize = 4096;

/// Up to this many bytes blocks are small.
const SMALL_UNTIL: usize = 16 * 1024;
const SMALL: usize = 256;
/// From there to here they are medium, and large from there on.
const MEDIUM_UNTIL: usize = 128 * 1024;
const MEDIUM: usize = 1024;
const LARGE: usize = 4096;

/// The chain of one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixChain {
    /// `h_0`: the canon's version and secret.
    pub seed: u64,
    /// `h_1`, `h_2` and so on, one for each full block, at most [`MAX_BLOCKS`].
    pub blocks: Vec<u64>,
    /// The hash of what follows the last full block, chained to it. No prefix of anything: only equal prompts share it.
    pub tail: u64,
    /// The length of the whole stream.
    pub bytes: u64,
}

impl PrefixChain {
    /// Where each block lies in the stream: its first byte, its length and its hash.
    pub fn spans(&self) -> impl Iterator<Item = (u64, usize, u64)> {
        let mut end = 0;
        self.blocks.iter().enumerate().map(move |(index, hash)| {
            let (start, len) = (end, block_len(index));
            end += len as u64;
            (start, len, *hash)
        })
    }
}

/// Cuts a stream into blocks as it comes. Holds the hashes and at most one block.
#[derive(Debug)]
pub struct Chunker {
    seed: u64,
    max_blocks: usize,
    blocks: Vec<u64>,
    partial: Vec<u8>,
    bytes: u64,
}

impl Chunker {
    /// An empty stream under `seed`, whose chain has at most so many blocks, and never more than [`MAX_BLOCKS`].
    pub fn new(seed: u64, max_blocks: usize) -> Self {
        Self { seed, max_blocks: max_blocks.min(MAX_BLOCKS), blocks: Vec::new(), partial: Vec::new(), bytes: 0 }
    }

    /// How long the stream is so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the next bytes of the stream. How the stream is cut into calls makes no difference.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        while self.blocks.len() < self.max_blocks {
            let missing = block_len(self.blocks.len()) - self.partial.len();
            let Some((head, rest)) = bytes.split_at_checked(missing) else {
                self.partial.extend_from_slice(bytes);
                return;
            };
            self.close_block(head);
            bytes = rest;
        }
    }

    /// The chain of what was pushed.
    pub fn finish(self) -> PrefixChain {
        let tail = xxh3_64_with_seed(&self.partial, self.last());
        PrefixChain { seed: self.seed, blocks: self.blocks, tail, bytes: self.bytes }
    }

    /// `head` completes the block. Where nothing of it had to wait, it is hashed where it lies.
    fn close_block(&mut self, head: &[u8]) {
        let previous = self.last();
        let hash = if self.partial.is_empty() {
            xxh3_64_with_seed(head, previous)
        } else {
            let mut block = mem::take(&mut self.partial);
            block.extend_from_slice(head);
            let hash = xxh3_64_with_seed(&block, previous);
            block.clear();
            self.partial = block;
            hash
        };
        self.blocks.push(hash);
    }

    fn last(&self) -> u64 {
        self.blocks.last().copied().unwrap_or(self.seed)
    }
}

/// How many bytes the first so many blocks have.
pub(super) fn blocks_len(count: usize) -> u64 {
    (0..count).map(|index| block_len(index) as u64).sum()
}

/// The length of the block at `index`, in bytes.
pub(super) const fn block_len(index: usize) -> usize {
    const SMALL_BLOCKS: usize = SMALL_UNTIL / SMALL;
    const MEDIUM_BLOCKS: usize = (MEDIUM_UNTIL - SMALL_UNTIL) / MEDIUM;
    if index < SMALL_BLOCKS {
        SMALL
    } else if index < SMALL_BLOCKS + MEDIUM_BLOCKS {
        MEDIUM
    } else {
        LARGE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(bytes: &[u8]) -> PrefixChain {
        chain_of([bytes])
    }

    fn chain_of<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> PrefixChain {
        let mut chunker = Chunker::new(7, MAX_BLOCKS);
        chunks.into_iter().for_each(|chunk| chunker.push(chunk));
        chunker.finish()
    }

    /// Bytes without a period that a block length could divide.
    fn text(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn blocks_grow_at_16_and_at_128_kib() {
        let blocks = |len: usize| chain(&text(len)).blocks.len();
        assert_eq!([blocks(255), blocks(256), blocks(511)], [0, 1, 1]);
        assert_eq!([blocks(16_384), blocks(16_384 + 1023), blocks(16_384 + 1024)], [64, 64, 65]);
        assert_eq!([blocks(131_072), blocks(131_072 + 4095), blocks(131_072 + 4096)], [176, 176, 177]);
    }

    #[test]
    fn a_chain_is_capped_and_goes_on_counting() {
        let covered = 128 * 1024 + (MAX_BLOCKS - 176) * 4096;
        let mut body = text(covered);
        let full = chain(&body);
        body.extend(text(10_000));
        let over = chain(&body);
        assert_eq!(full.blocks.len(), MAX_BLOCKS);
        assert_eq!(over.blocks, full.blocks);
        assert_eq!(over.bytes, body.len() as u64);
    }

    #[test]
    fn a_lower_cap_gives_the_beginning_of_the_chain() {
        let (text, whole) = (text(100_000), chain(&text(100_000)));
        let mut chunker = Chunker::new(7, 10);
        text.chunks(999).for_each(|chunk| chunker.push(chunk));
        let capped = chunker.finish();
        assert_eq!(capped.blocks, whole.blocks[..10]);
        assert_eq!(capped.bytes, 100_000);
    }

    #[test]
    fn spans_say_where_the_blocks_lie() {
        let chain = chain(&text(140_000));
        let spans: Vec<_> = chain.spans().map(|(start, len, _)| (start, len)).collect();
        assert_eq!(spans[..2], [(0, 256), (256, 256)]);
        assert_eq!((spans[64], spans[176], spans.len()), ((16_384, 1024), (131_072, 4096), 178));
        assert!(chain.spans().map(|(_, _, hash)| hash).eq(chain.blocks.iter().copied()));
    }

    #[test]
    fn no_process_has_a_seed_of_its_own() {
        // Every sidecar, of whatever version, must find the same values.
        let chain = chain(&text(600));
        assert_eq!(chain.blocks, [12_566_928_618_042_573_799, 11_981_938_441_498_877_600]);
        assert_eq!(chain.tail, 13_483_548_270_473_320_205);
    }

    #[test]
    fn a_block_depends_on_all_that_is_before_it() {
        let text = text(1024);
        for at in [0, 255, 256, 700] {
            let mut other = text.clone();
            other[at] ^= 1;
            let (before, after) = (chain(&text).blocks, chain(&other).blocks);
            let first_changed = at / 256;
            assert_eq!(before[..first_changed], after[..first_changed]);
            assert!(before[first_changed..].iter().zip(&after[first_changed..]).all(|(before, after)| before != after));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_chunking_gives_the_same_chain(len in 0_usize..150_000, cuts in prop::collection::vec(0_usize..150_000, 0..40)) {
            let text = text(len);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(len)).collect();
            cuts.extend([0, len]);
            cuts.sort_unstable();
            let chunks = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
            prop_assert_eq!(chain_of(chunks), chain(&text));
        }

        #[test]
        fn the_chain_of_a_prefix_is_a_prefix_of_the_chain(len in 0_usize..150_000, cut in 0.0..1.0_f64) {
            let text = text(len);
            let prefix = chain(&text[..(len as f64 * cut) as usize]);
            prop_assert!(chain(&text).blocks.starts_with(&prefix.blocks));
        }
    }
}
