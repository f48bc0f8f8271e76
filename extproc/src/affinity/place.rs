//! Placement: which replica gets a request, and which are next if it fails.
//!
//! Pure: what is available is the caller's to say, and the same key always gives the same order.

use xxhash_rust::xxh3::xxh3_64;

use super::blocks::PrefixChain;
use super::rank::rank;
use crate::config::model::Endpoint;

/// How many leading blocks make the affinity key: 1 KiB. More would tell apart what shares a cache, fewer would throw
/// together what only has its role and first words in common.
pub const AFFINITY_BLOCKS: usize = 4;

/// The choice and two to fall back on: a retry does not ask again.
const MAX_ORDER: usize = 3;

/// What requests that belong together have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffinityKey {
    hash: u64,
    origin: Origin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Session,
    Prefix,
    Nothing,
}

impl AffinityKey {
    /// The key of a request: its session if it has one, else its prompt, else nothing, and then it goes wherever `request`
    /// leads, a value that differs from request to request (a counter will do).
    ///
    /// A prompt's key is that of its first [`AFFINITY_BLOCKS`] full blocks: as a conversation grows it stays the same from
    /// 1 KiB on, and below that it changes with each block that fills up, so at most four times. A prompt without one full
    /// block goes with its equals only. Conversations that share their first KiB share their key.
    pub fn of(session: Option<&[u8]>, prompt: Option<&PrefixChain>, request: u64) -> Self {
        if let Some(session) = session.filter(|session| !session.is_empty()) {
            return Self { hash: xxh3_64(session), origin: Origin::Session };
        }
        if let Some(prompt) = prompt.filter(|prompt| prompt.bytes > 0) {
            return Self { hash: prompt_key(prompt), origin: Origin::Prefix };
        }
        Self { hash: request, origin: Origin::Nothing }
    }
}

fn prompt_key(prompt: &PrefixChain) -> u64 {
    prompt.blocks.iter().take(AFFINITY_BLOCKS).next_back().copied().unwrap_or(prompt.tail)
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Indices into the endpoints: the choice, then at most two to fall back on. Empty only where there are no endpoints.
    pub order: Vec<usize>,
    /// Why.
    pub reason: Reason,
}

/// Why a request goes where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// With the other requests of its session.
    Session,
    /// With other requests that start as it does.
    Prefix,
    /// Nothing speaks for one endpoint.
    Spread,
    /// No endpoint is available; it is tried all the same.
    NoneAvailable,
}

impl Reason {
    /// As metrics and `x-attache-decision` name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Prefix => "prefix",
            Self::Spread => "spread",
            Self::NoneAvailable => "none_available",
        }
    }
}

/// Places a request with `key` on one of `endpoints`: the rank over those that are available or, where none is, over all.
pub fn place(key: AffinityKey, endpoints: &[Endpoint], available: impl Fn(&Endpoint) -> bool) -> Placement {
    let mut reason = match key.origin {
        Origin::Session => Reason::Session,
        Origin::Prefix => Reason::Prefix,
        Origin::Nothing => Reason::Spread,
    };
    let mut order = ranked(key, endpoints, available);
    if order.is_empty() {
        reason = Reason::NoneAvailable;
        order = ranked(key, endpoints, |_| true);
    }
    order.truncate(MAX_ORDER);
    Placement { order, reason }
}

fn ranked(key: AffinityKey, endpoints: &[Endpoint], wanted: impl Fn(&Endpoint) -> bool) -> Vec<usize> {
    let candidates = endpoints.iter().enumerate().filter(|(_, endpoint)| wanted(endpoint));
    rank(key.hash, candidates.map(|(index, endpoint)| (index, &*endpoint.id)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;
    use crate::affinity::blocks::Chunker;
    use crate::config::model::EndpointAddress;

    fn endpoints(count: u8) -> Vec<Endpoint> {
        let endpoint = |index| {
            let address = std::net::SocketAddr::from(([10, 0, 0, index], 8000));
            Endpoint {
                id: Arc::from(address.to_string()),
                cluster: Arc::from(format!("default/vllm/{address}")),
                address: EndpointAddress::Ip(address),
            }
        };
        (0..count).map(endpoint).collect()
    }

    fn chain(stream: &[u8]) -> PrefixChain {
        let mut chunker = Chunker::new(7);
        chunker.push(stream);
        chunker.finish()
    }

    fn key(stream: &[u8]) -> AffinityKey {
        AffinityKey::of(None, Some(&chain(stream)), 0)
    }

    /// A conversation's stream: its own bytes, far longer than what makes the key.
    fn conversation(number: u64) -> Vec<u8> {
        (0..2000_u64).flat_map(|at| xxh3_64(&(number << 32 | at).to_le_bytes()).to_le_bytes()).collect()
    }

    #[test]
    fn a_key_stays_the_same_from_1_kib_on_however_far_a_conversation_grows() {
        let whole = conversation(1);
        let expected = key(&whole[..1024]);
        for len in [1025, 2048, 5000, 16_000] {
            assert_eq!(key(&whole[..len]), expected, "{len}");
        }
    }

    #[test]
    fn below_1_kib_a_key_changes_only_with_a_block_that_fills_up() {
        let whole = conversation(1);
        let keys: HashSet<u64> = (256..=1024).map(|len| key(&whole[..len]).hash).collect();
        assert_eq!(keys.len(), AFFINITY_BLOCKS);
    }

    #[test]
    fn equal_short_prompts_agree_and_others_do_not() {
        assert_eq!(key(b"hello"), key(b"hello"));
        assert_ne!(key(b"hello"), key(b"hullo"));
    }

    #[test]
    fn a_session_wins_over_the_prompt_and_both_over_nothing() {
        let endpoints = endpoints(8);
        let reason = |key| place(key, &endpoints, |_| true).reason;
        let (prompt, other) = (chain(b"one"), chain(b"other"));
        let session = AffinityKey::of(Some(b"s1"), Some(&prompt), 1);
        assert_eq!(session, AffinityKey::of(Some(b"s1"), Some(&other), 2));
        assert_eq!(reason(session), Reason::Session);
        assert_eq!(reason(AffinityKey::of(Some(b""), Some(&prompt), 1)), Reason::Prefix);
        assert_eq!(reason(AffinityKey::of(None, None, 1)), Reason::Spread);
    }

    #[test]
    fn what_has_no_prompt_is_spread() {
        let empty = chain(b"");
        let endpoints = endpoints(4);
        let chosen: HashSet<usize> =
            (0..100).map(|n| place(AffinityKey::of(None, Some(&empty), n), &endpoints, |_| true).order[0]).collect();
        assert_eq!(chosen.len(), 4);
    }

    #[test]
    fn unrelated_conversations_spread() {
        let endpoints = endpoints(8);
        let mut counts = [0_u32; 8];
        for number in 0..4000 {
            counts[place(key(&conversation(number)[..1024]), &endpoints, |_| true).order[0]] += 1;
        }
        let chi_square: f64 = counts.iter().map(|count| (f64::from(*count) - 500.0).powi(2) / 500.0).sum();
        // The 99.9 % quantile with 7 degrees of freedom.
        assert!(chi_square < 24.3, "{counts:?}");
    }

    #[test]
    fn an_endpoint_that_is_not_available_moves_only_its_own_requests() {
        let endpoints = endpoints(5);
        for number in 0..200 {
            let key = AffinityKey::of(None, None, number);
            let before = place(key, &endpoints, |_| true).order;
            let after = place(key, &endpoints, |endpoint| endpoint.id != endpoints[2].id).order;
            let expected = if before[0] == 2 { before[1] } else { before[0] };
            assert_eq!(after[0], expected);
            assert!(!after.contains(&2));
        }
    }

    #[test]
    fn the_order_has_the_choice_and_two_more_without_repeats() {
        for (count, expected) in [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3)] {
            let order = place(AffinityKey::of(None, None, 1), &endpoints(count), |_| true).order;
            assert_eq!(order.len(), expected);
            assert_eq!(order.iter().collect::<HashSet<_>>().len(), expected);
        }
    }

    #[test]
    fn where_none_is_available_all_are_tried_in_the_same_order() {
        let endpoints = endpoints(4);
        let key = AffinityKey::of(Some(b"s"), None, 1);
        let placement = place(key, &endpoints, |_| false);
        assert_eq!(placement.reason, Reason::NoneAvailable);
        assert_eq!(placement.order, place(key, &endpoints, |_| true).order);
    }
}
