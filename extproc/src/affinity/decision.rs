//! The decision: of several endpoints, which one answers first, all things considered. Pure arithmetic.
//!
//! What it costs to go to an endpoint is the time until this prompt is computed there, but with its own tokens counted
//! several times, since whatever is computed twice is taken from everybody's caches and time. While sidecars do not talk, two
//! things keep them together: the endpoint that the key prefers is believed to hold what any sidecar has sent before, and
//! those further down its order are penalised.

use super::policy::Weights;

/// How much of a prompt its preferred endpoint is believed to hold, if we do not know better.
const PRIOR: f64 = 0.9;
/// How many endpoints of a key's order all sidecars look at first.
const NEAR: usize = 2;
/// Above this use of its KV cache an endpoint begins to preempt what it runs.
const KV_FULL: f64 = 0.9;
/// The choice and two to fall back on: a retry does not ask again.
const MOST: usize = 3;

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    /// The length of the prompt's stream, in bytes.
    pub(super) bytes: f64,
    /// How much of its beginning everybody has, in bytes.
    pub(super) hot_bytes: f64,
    /// The part of prompts beyond what is hot that comes from caches, as a rule.
    pub(super) expected: f64,
    pub(super) bytes_per_token: f64,
    pub(super) keyed: Keyed,
    pub(super) sharing: Sharing,
}

/// Whether the request has anything in common with others that their order could be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keyed {
    Yes,
    No,
}

/// Whether sidecars tell each other what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    Live,
    None,
}

/// What is known of one endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// How much the key prefers it.
    pub(super) preference: f64,
    /// What it holds of the prompt beyond what is hot, in bytes, as far as that is believed.
    pub(super) matched: f64,
    /// Tokens that it has to compute before.
    pub(super) pending_tokens: f64,
    /// The share of its KV cache in use.
    pub(super) kv_usage: f64,
    /// What would have to go from its cache for this prompt, in bytes, by what it is still worth.
    pub(super) evicts: f64,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decision {
    /// Indices of candidates: the choice, then at most two more.
    pub(super) order: Vec<usize>,
    /// What each candidate would cost, in seconds.
    pub(super) costs: Vec<f64>,
    /// Places in the key's order, 0 for the home.
    pub(super) ranks: Vec<usize>,
}

/// Decides. The order is empty only where there are no candidates.
pub(super) fn decide(candidates: &[Candidate], question: &Question, weights: &Weights) -> Decision {
    let ranks = ranks(candidates);
    let alone = question.sharing == Sharing::None && question.keyed == Keyed::Yes;
    let believed: Vec<f64> = candidates
        .iter()
        .zip(&ranks)
        .map(|(candidate, rank)| {
            let usual = PRIOR * question.expected * (question.bytes - question.hot_bytes);
            let prior = if alone && *rank == 0 { usual } else { 0.0 };
            candidate.matched.max(prior)
        })
        .collect();
    let costs: Vec<f64> = candidates
        .iter()
        .zip(&ranks)
        .zip(&believed)
        .map(|((candidate, rank), believed)| {
            let uncached = (question.bytes - believed).max(0.0) / question.bytes_per_token;
            let evicted = candidate.evicts / question.bytes_per_token;
            let tokens = candidate.pending_tokens + weights.uncached * uncached + evicted;
            let far = if alone && *rank >= NEAR { weights.far.as_secs_f64() * question.expected } else { 0.0 };
            let full = (candidate.kv_usage.min(1.0) - KV_FULL).max(0.0) / (1.0 - KV_FULL);
            tokens / weights.prefill_tokens_per_second + far + full
        })
        .collect();
    let order = order(candidates, &costs, &ranks, &believed, weights.tie.as_secs_f64());
    Decision { order, costs, ranks }
}

/// Each candidate's place in the key's order.
fn ranks(candidates: &[Candidate]) -> Vec<usize> {
    let mut by_preference: Vec<usize> = (0..candidates.len()).collect();
    let preference = |index: &usize| candidates.get(*index).map_or(f64::MIN, |candidate| candidate.preference);
    by_preference.sort_by(|one, other| preference(other).total_cmp(&preference(one)));
    let mut ranks = vec![0; candidates.len()];
    for (rank, index) in by_preference.into_iter().enumerate() {
        if let Some(place) = ranks.get_mut(index) {
            *place = rank;
        }
    }
    ranks
}

fn order(candidates: &[Candidate], costs: &[f64], ranks: &[usize], believed: &[f64], tie: f64) -> Vec<usize> {
    let cost = |index: usize| costs.get(index).copied().unwrap_or(f64::MAX);
    let cheapest = costs.iter().copied().fold(f64::MAX, f64::min);
    let held = |index: usize| believed.get(index).copied().unwrap_or(0.0);
    let rank = |index: usize| ranks.get(index).copied().unwrap_or(usize::MAX);
    let pick = (0..candidates.len())
        .filter(|index| cost(*index) <= cheapest + tie)
        .max_by(|one, other| held(*one).total_cmp(&held(*other)).then_with(|| rank(*other).cmp(&rank(*one))));
    let Some(pick) = pick else { return Vec::new() };
    let mut rest: Vec<usize> = (0..candidates.len()).filter(|index| *index != pick).collect();
    rest.sort_by(|one, other| cost(*one).total_cmp(&cost(*other)).then_with(|| rank(*one).cmp(&rank(*other))));
    // The home is where a retry finds most, whatever it costs to wait there.
    if let Some(home) = rest.iter().position(|index| rank(*index) == 0).filter(|place| *place >= MOST - 1) {
        let home = rest.remove(home);
        rest.insert(MOST - 2, home);
    }
    std::iter::once(pick).chain(rest).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: Question = Question {
        bytes: 40_000.0,
        hot_bytes: 0.0,
        expected: 1.0,
        bytes_per_token: 4.0,
        keyed: Keyed::Yes,
        sharing: Sharing::Live,
    };

    fn candidate(preference: f64, matched: f64, pending_tokens: f64) -> Candidate {
        Candidate { preference, matched, pending_tokens, kv_usage: 0.0, evicts: 0.0 }
    }

    fn decided(candidates: &[Candidate], question: Question) -> Decision {
        decide(candidates, &question, &Weights { uncached: 3.0, ..Weights::default() })
    }

    #[test]
    fn a_cost_is_the_time_that_waits_there_and_three_times_what_is_not_in_cache() {
        let costs = decided(
            &[candidate(1.0, 0.0, 0.0), candidate(2.0, 40_000.0, 500.0), candidate(3.0, 20_000.0, 0.0)],
            QUESTION,
        )
        .costs;
        assert_eq!(costs, [3.0, 0.05, 1.5]);
    }

    #[test]
    fn the_cache_wins_until_waiting_for_it_costs_more_than_computing_anew() {
        let at = |pending| decided(&[candidate(2.0, 0.0, 0.0), candidate(1.0, 40_000.0, pending)], QUESTION).order;
        assert_eq!((at(0.0), at(29_000.0), at(32_000.0)), (vec![1, 0], vec![1, 0], vec![0, 1]));
    }

    #[test]
    fn a_sidecar_that_does_not_talk_believes_in_the_home_and_stays_near_it() {
        let candidates = [candidate(3.0, 0.0, 0.0), candidate(2.0, 0.0, 0.0), candidate(1.0, 0.0, 0.0)];
        let alone = Question { sharing: Sharing::None, ..QUESTION };
        let costs = decided(&candidates, alone).costs;
        let rounded: Vec<f64> = costs.iter().map(|cost| (cost * 1_000.0).round() / 1_000.0).collect();
        assert_eq!(rounded, [0.3, 3.0, 4.0]);
        // What is hot is nothing to believe in.
        let hot = decided(&candidates, Question { hot_bytes: 40_000.0, ..alone }).costs;
        assert_eq!(hot, [3.0, 3.0, 4.0]);
        // Where nothing ever comes from caches, there is nothing to go home for.
        assert_eq!(decided(&candidates, Question { expected: 0.0, ..alone }).costs, [3.0, 3.0, 3.0]);
        // Without a key there is no home.
        let keyless = decided(&candidates, Question { keyed: Keyed::No, ..alone }).costs;
        assert_eq!(keyless, [3.0, 3.0, 3.0]);
    }

    #[test]
    fn of_equal_costs_the_larger_match_wins_and_then_the_keys_order() {
        let close = [candidate(1.0, 400.0, 0.0), candidate(2.0, 0.0, 0.0), candidate(3.0, 0.0, 0.0)];
        assert_eq!(decided(&close, QUESTION).order, [0, 2, 1]);
        let equal = [candidate(1.0, 0.0, 0.0), candidate(3.0, 0.0, 100.0), candidate(2.0, 0.0, 0.0)];
        assert_eq!(decided(&equal, QUESTION).order, [1, 2, 0]);
    }

    #[test]
    fn a_cache_that_is_almost_full_is_avoided() {
        let full = Candidate { kv_usage: 0.95, ..candidate(2.0, 0.0, 0.0) };
        let decision = decided(&[full, candidate(1.0, 0.0, 0.0)], QUESTION);
        assert_eq!(decision.order, [1, 0]);
        assert!((decision.costs[0] - 3.5).abs() < 1e-9);
    }

    #[test]
    fn of_two_new_homes_the_one_that_loses_less_for_it_is_the_cheaper() {
        let dear = Candidate { evicts: 40_000.0, ..candidate(2.0, 0.0, 0.0) };
        let cheap = Candidate { evicts: 4_000.0, ..candidate(1.0, 0.0, 0.0) };
        let decision = decided(&[dear, cheap], QUESTION);
        assert_eq!((decision.order, decision.costs), (vec![1, 0], vec![4.0, 3.1]));
    }

    #[test]
    fn the_home_is_always_among_those_to_fall_back_on() {
        let mut candidates = vec![candidate(9.0, 0.0, 1_000_000.0)];
        candidates.extend((0..5).map(|n| candidate(f64::from(n), 0.0, f64::from(n) * 5_000.0)));
        assert_eq!(decided(&candidates, QUESTION).order, [1, 2, 0]);
        assert_eq!(decided(&[], QUESTION).order, [0_usize; 0]);
    }
}
