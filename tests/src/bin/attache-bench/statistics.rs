//! Percentiles, medians, and whose turn it is.

/// The smallest value that is not below `percent` of all; 0 of none.
pub(crate) fn percentile(values: impl IntoIterator<Item = f64>, percent: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// The middle value, or the mean of the two; 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = |index: usize| values.get(index).copied().unwrap_or_default();
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => middle(count / 2),
        count => (middle(count / 2 - 1) + middle(count / 2)) / 2.0,
    }
}

/// A B C in even rounds, C B A in odd ones: a machine that gets slower meanwhile is so to all alike.
pub(crate) fn turns(round: usize, count: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..count).collect() } else { (0..count).rev().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_medians_are_those_of_the_books() {
        let values = || (1..=100).map(f64::from);
        assert_eq!(percentile(values(), 50.0), 50.0);
        assert_eq!(percentile(values(), 99.0), 99.0);
        assert_eq!(percentile([7.0], 99.0), 7.0);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }

    #[test]
    fn turns_alternate() {
        assert_eq!(turns(0, 3), [0, 1, 2]);
        assert_eq!(turns(1, 3), [2, 1, 0]);
    }
}
