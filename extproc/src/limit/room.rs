//! How long an answer the limits that must not be overdrawn have room for: a caller who has something left is not refused
//! because an answer of the usual length would be more.

use super::estimate::Estimate;
use super::{CounterState, Hold, Refused, ReserveRequest};

impl Refused {
    /// The same request for a shorter answer, of at least so many tokens, where only limits with a cap refused it and all of
    /// them have room for that.
    pub fn shortened(&self, least_output: u64) -> Option<ReserveRequest> {
        let stands_anyway = |(hold, state): (&Hold, &CounterState)| !hold.is_capped() && hold.is_refused(state);
        if self.standings().any(stands_anyway) {
            return None;
        }
        let states: Option<Vec<_>> = self.states.iter().copied().collect();
        let room = self.request.output_room(&states?)?;
        (room >= least_output && room < self.request.estimate.output).then(|| self.request.with_output(room))
    }
}

impl ReserveRequest {
    /// The longest answer, in tokens and up to what is estimated, for which every limit with a cap has room while its counter
    /// stands at its state, this request's own hold not among what is held. `None` if there is none for the prompt alone.
    pub fn output_room(&self, states: &[CounterState]) -> Option<u64> {
        let capped: Vec<_> = self.holds.iter().zip(states).filter(|(hold, _)| hold.is_capped()).collect();
        let fits = |output: u64| {
            let estimate = Estimate { output, ..self.estimate };
            capped.iter().all(|(hold, state)| {
                let estimate = estimate.of(&hold.limit, &self.context);
                Hold { estimate, ..Hold::clone(hold) }.fits(state)
            })
        };
        // Costs do not fall with the length of an answer, but for expressions that nobody should write; of those the length
        // that is found fits as well.
        let (mut room, mut too_much) = (0, self.estimate.output.saturating_add(1));
        if !fits(room) {
            return None;
        }
        while too_much - room > 1 {
            let middle = room + (too_much - room) / 2;
            if fits(middle) { room = middle } else { too_much = middle }
        }
        Some(room)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::tests::{limit, nobody};
    use super::super::{Cap, Limit, Mode, Price, Prices, Quantity};
    use super::*;

    fn capped(id: &str, amount: u64) -> Limit {
        Limit { cap: Cap::Capped, ..limit(id, amount, Mode::Strict) }
    }

    fn refused(limits: &[(Limit, Option<u64>)], output: u64) -> Refused {
        let estimate = Estimate { input: 50, input_at_most: 100, output };
        let rules: Vec<_> = limits.iter().map(|(limit, _)| Arc::new(limit.clone())).collect();
        let request = Arc::new(ReserveRequest::new(&rules, &nobody(), estimate));
        let state = |settled: u64| CounterState { settled, ..CounterState::empty() };
        Refused { request, by: 0, states: limits.iter().map(|(_, settled)| settled.map(state)).collect() }
    }

    #[test]
    fn a_request_is_shortened_to_what_the_tightest_limit_has_left() {
        let refused = refused(&[(capped("a", 1_000), Some(600)), (capped("b", 1_000), Some(700))], 512);
        let shorter = refused.shortened(16).unwrap();
        assert_eq!((shorter.estimate.output, &shorter.id), (200, &refused.request.id));
        assert_eq!(shorter.holds.iter().map(|hold| hold.estimate).collect::<Vec<_>>(), [300, 300]);
    }

    #[test]
    fn it_is_not_where_that_is_too_little_or_where_another_limit_refuses() {
        assert!(refused(&[(capped("a", 1_000), Some(885))], 512).shortened(16).is_none());
        assert!(refused(&[(capped("a", 1_000), Some(884))], 512).shortened(16).is_some());
        assert!(refused(&[(capped("a", 1_000), Some(1_000))], 512).shortened(16).is_none());
        let soft = (limit("b", 100, Mode::Soft), Some(100));
        assert!(refused(&[(capped("a", 1_000), Some(700)), soft], 512).shortened(16).is_none());
        assert!(refused(&[(capped("a", 1_000), Some(700)), (capped("b", 1_000), None)], 512).shortened(16).is_none());
    }

    #[test]
    fn money_is_turned_into_tokens() {
        let price = Price { input: 1_000_000, output: 10_000_000, ..Price::default() };
        let prices = Prices { by_model: Default::default(), other: price };
        let money = Limit { quantity: Quantity::Money(Arc::new(prices)), ..capped("a", 1_000) };
        assert_eq!(refused(&[(money, Some(0))], 512).shortened(16).unwrap().estimate.output, 90);
    }

    proptest! {
        #[test]
        fn the_room_fits_and_one_token_more_does_not(amount in 1u64..2_000, settled in 0u64..2_000, output in 0u64..1_000) {
            let refused = refused(&[(capped("a", amount), Some(settled))], output);
            let states = [refused.states[0].unwrap()];
            let fits = |output: u64| refused.request.with_output(output).holds[0].fits(&states[0]);
            match refused.request.output_room(&states) {
                Some(room) => prop_assert!(room <= output && fits(room) && (room == output || !fits(room + 1))),
                None => prop_assert!(!fits(0)),
            }
        }
    }
}
