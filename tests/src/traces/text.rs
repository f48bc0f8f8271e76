//! Prompts for the requests of a trace: bytes that are equal where the trace says that blocks are.
//!
//! A token is four bytes. A block's bytes depend on its id alone, which stands for the whole prefix; what a prompt has beyond
//! its blocks depends on the request's number in the trace, so nothing else shares it. All of it is letters.

use attache::affinity::{
    PrefixChain,
    blocks::{Chunker, MAX_BLOCKS},
};

use super::{BLOCK_TOKENS, Request, random::mix};

/// The bytes of one token.
pub const TOKEN_BYTES: u64 = 4;

const BLOCK_BYTES: usize = (BLOCK_TOKENS * TOKEN_BYTES) as usize;

/// Keeps the tails of requests apart from blocks.
const TAIL: u64 = 1 << 63;

/// The prompt of the request that is the `number`th of its trace.
pub fn prompt(request: &Request, number: u64) -> String {
    let mut text = String::new();
    for_each_piece(request, number, |piece| text.push_str(&String::from_utf8_lossy(piece)));
    text
}

/// The chain of that prompt's bytes, without any frame around them.
pub fn chain(request: &Request, number: u64) -> PrefixChain {
    let mut chunker = Chunker::new(0, MAX_BLOCKS);
    for_each_piece(request, number, |piece| chunker.push(piece));
    chunker.finish()
}

fn for_each_piece(request: &Request, number: u64, mut take: impl FnMut(&[u8])) {
    let mut missing = usize::try_from(request.input_tokens.saturating_mul(TOKEN_BYTES)).unwrap_or(usize::MAX);
    let mut piece = [0; BLOCK_BYTES];
    let tails = (0_u64..).map(|part| TAIL | (number << 20) | part);
    for seed in request.blocks.iter().map(|block| u64::from(*block)).chain(tails) {
        if missing == 0 {
            return;
        }
        fill(&mut piece, seed);
        take(piece.get(..missing).unwrap_or(&piece));
        missing = missing.saturating_sub(BLOCK_BYTES);
    }
}

/// The letters a to p, eight at a time: a prompt is megabytes long, and a trace has thousands of them.
fn fill(piece: &mut [u8; BLOCK_BYTES], seed: u64) {
    let mut state = mix(seed ^ 0x5851_F42D_4C95_7F2D);
    for letters in piece.as_chunks_mut::<8>().0 {
        state = mix(state.wrapping_add(0x9E37_79B9_7F4A_7C15));
        *letters = ((state & 0x0F0F_0F0F_0F0F_0F0F) + 0x6161_6161_6161_6161).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn request(input_tokens: u64, blocks: &[u32]) -> Request {
        Request { arrival: Duration::ZERO, input_tokens, output_tokens: 1, session: 0, blocks: blocks.into() }
    }

    #[test]
    fn a_prompt_is_as_long_as_its_tokens_say_whatever_its_blocks() {
        for (tokens, blocks) in [(0, 0), (1, 0), (100, 1), (512, 1), (1000, 1), (1000, 2), (5000, 3)] {
            let blocks: Vec<u32> = (0..blocks).collect();
            assert_eq!(prompt(&request(tokens, &blocks), 3).len() as u64, tokens * TOKEN_BYTES);
            assert_eq!(chain(&request(tokens, &blocks), 3).bytes, tokens * TOKEN_BYTES);
        }
    }

    #[test]
    fn prompts_share_what_their_blocks_share_and_no_more() {
        let (one, other) = (prompt(&request(2000, &[5, 6, 7]), 0), prompt(&request(1800, &[5, 6, 8]), 1));
        let shared = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
        assert!((4096..4110).contains(&shared), "{shared}");
    }

    #[test]
    fn tails_are_not_shared_and_a_prompt_is_plain_text() {
        let request = request(1500, &[5]);
        let (one, other) = (prompt(&request, 0), prompt(&request, 1));
        assert_eq!(one[..2048], other[..2048]);
        assert_ne!(one[2048..], other[2048..]);
        assert_eq!(serde_json::to_string(&one).unwrap().len(), one.len() + 2);
    }

    #[test]
    fn the_chain_is_that_of_the_prompt() {
        let request = request(20_000, &[1, 2, 3, 4]);
        let mut chunker = Chunker::new(0, MAX_BLOCKS);
        chunker.push(prompt(&request, 9).as_bytes());
        assert_eq!(chain(&request, 9), chunker.finish());
    }
}
