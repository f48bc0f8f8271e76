//! Rendezvous hashing: every key has its own order of preference among endpoints, the same in every process, and an endpoint
//! that goes takes only its own keys with it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The indices of `candidates` (index and endpoint id), the most preferred for `key` first.
pub fn rank<'a>(key: u64, candidates: impl IntoIterator<Item = (usize, &'a str)>) -> Vec<usize> {
    let mut ranked: Vec<(u64, &str, usize)> =
        candidates.into_iter().map(|(index, id)| (xxh3_64_with_seed(id.as_bytes(), key), id, index)).collect();
    // The id breaks ties, so that the order of the list, which may differ between sidecars, never does.
    ranked.sort_unstable_by(|one, other| other.cmp(one));
    ranked.into_iter().map(|(_, _, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(count: usize) -> Vec<String> {
        (0..count).map(|index| format!("10.0.0.{index}:8000")).collect()
    }

    fn ranked(key: u64, ids: &[String]) -> Vec<usize> {
        rank(key, ids.iter().map(String::as_str).enumerate())
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

    proptest! {
        #[test]
        fn an_endpoint_that_goes_moves_only_its_own_keys(key: u64, count in 2_usize..20, gone in 0_usize..20) {
            let gone = gone % count;
            let all = ids(count);
            let rest = all.iter().map(String::as_str).enumerate().filter(|(index, _)| *index != gone);
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
