//! Rendezvous hashing: every key has its own order of preference among endpoints, the same in every process, and an endpoint
//! that goes takes only its own keys with it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How much `key` prefers the endpoint: whoever has most is its home. An endpoint of half the weight is the home of half as
/// many keys as others, and changing its weight moves no key between others.
pub fn preference(key: u64, id: &str, weight: f64) -> f64 {
    // The upper 53 bits, as a fraction that is neither 0 nor 1.
    let hash = xxh3_64_with_seed(id.as_bytes(), key) >> 11;
    let fraction = (hash as f64 + 0.5) / (1_u64 << 53) as f64;
    -weight.max(f64::MIN_POSITIVE) / fraction.ln()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(count: usize) -> Vec<String> {
        (0..count).map(|index| format!("10.0.0.{index}:8000")).collect()
    }

    fn ranked(key: u64, ids: &[String]) -> Vec<usize> {
        rank(key, ids.iter().map(|id| (id.as_str(), 1.0)).enumerate())
    }

    /// The indices of `candidates` (index, id and weight), the most preferred for `key` first.
    fn rank<'a>(key: u64, candidates: impl IntoIterator<Item = (usize, (&'a str, f64))>) -> Vec<usize> {
        let preferences = candidates.into_iter().map(|(index, (id, weight))| (preference(key, id, weight), index));
        let mut ranked: Vec<(f64, usize)> = preferences.collect();
        ranked.sort_unstable_by(|(one, _), (other, _)| other.total_cmp(one));
        ranked.into_iter().map(|(_, index)| index).collect()
    }

    /// Pearson's statistic against an even spread.
    fn chi_square(counts: &[u32]) -> f64 {
        let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
    }

    /// The 99.9 % quantiles of chi-square with 2, 7 and 15 degrees of freedom.
    const BOUNDS: [(usize, f64); 3] = [(3, 13.8), (8, 24.3), (16, 37.7)];

    #[test]
    fn keys_spread_evenly_over_every_place() {
        // Hashes as prompts give them, and a counter as callers without affinity may give it.
        let keys: [fn(u64) -> u64; 2] = [|n| xxh3_64_with_seed(&n.to_le_bytes(), 1), |n| n];
        for (count, bound) in BOUNDS {
            let ids = ids(count);
            for key in keys {
                let mut places = vec![vec![0; count]; count];
                for n in 0..10_000 {
                    ranked(key(n), &ids).into_iter().zip(&mut places).for_each(|(index, place)| place[index] += 1);
                }
                for place in places {
                    assert!(chi_square(&place) < bound, "{count} endpoints: {place:?}");
                }
            }
        }
    }

    #[test]
    fn no_process_has_a_seed_of_its_own() {
        let golden = [(0, [2, 1, 3, 0]), (1, [3, 0, 2, 1]), (u64::MAX, [1, 0, 3, 2])];
        for (key, order) in golden {
            assert_eq!(ranked(key, &ids(4)), order);
        }
    }

    #[test]
    fn an_endpoint_has_its_share_by_weight_and_takes_it_from_all_alike() {
        let ids = ids(4);
        let home = |key: u64, weights: [f64; 4]| rank(key, ids.iter().map(String::as_str).zip(weights).enumerate())[0];
        let keys = || (0..10_000_u64).map(|n| xxh3_64_with_seed(&n.to_le_bytes(), 1));
        let mut counts = [0_u32; 4];
        for key in keys() {
            let (slow, full) = (home(key, [1.0, 1.0, 1.0, 0.2]), home(key, [1.0; 4]));
            counts[slow] += 1;
            assert!(slow == full || full == 3, "only its own keys move");
        }
        // 0.2 of 3.2, and 1 of 3.2 each.
        assert!(chi_square(&counts[..3]) < 13.8 && (550..700).contains(&counts[3]), "{counts:?}");
    }

    proptest! {
        #[test]
        fn an_endpoint_that_goes_moves_only_its_own_keys(key: u64, count in 2_usize..20, gone in 0_usize..20) {
            let gone = gone % count;
            let all = ids(count);
            let rest = all.iter().map(|id| (id.as_str(), 1.0)).enumerate().filter(|(index, _)| *index != gone);
            let expected: Vec<usize> = ranked(key, &all).into_iter().filter(|index| *index != gone).collect();
            prop_assert_eq!(rank(key, rest), expected);
        }

        #[test]
        fn the_order_of_the_list_makes_no_difference(key: u64, count in 1_usize..20) {
            let all = ids(count);
            let reversed: Vec<String> = all.iter().rev().cloned().collect();
            let back: Vec<usize> = ranked(key, &reversed).into_iter().map(|index| count - 1 - index).collect();
            prop_assert_eq!(back, ranked(key, &all));
        }
    }
}
