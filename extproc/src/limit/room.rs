//! How long an answer the limits that must not be overdrawn have room for: a caller who has something left is not refused
//! because an answer of the usual length would be more.

use std::sync::Arc;
use std::time::Duration;

use super::{CounterState, Hold, Judge, Refused, Reservation, ReserveRequest};

/// Longer than any answer: an expression or a price may round a short one to nothing.
const LONGEST: u64 = 1 << 20;

impl Refused {
    /// The same request for a shorter answer, of at least so many tokens, where only limits with a cap refused it and all of
    /// them, as far as is known, have room for that. The store is to judge it.
    pub fn shortened(&self, least_output: u64) -> Option<ReserveRequest> {
        if self.stands_anyway() {
            return None;
        }
        let room = room(&self.request, self.standings())?;
        let is_shorter = room >= least_output && room < self.request.estimate.output_at_most;
        is_shorter.then(|| ReserveRequest { judge: Judge::Store, ..self.request.with_output(room) })
    }

    /// The same refusal as one of an answer of so many tokens, the fewest that are worth one, where only limits with a cap
    /// refuse even that: what the client is told is wanting, and when to come back, should not be what it could do without.
    #[must_use]
    pub fn of_least(self, least_output: u64) -> Self {
        if self.stands_anyway() || least_output >= self.request.estimate.output_at_most {
            return self;
        }
        let request = self.request.with_output(least_output);
        let refuses = |(hold, state): (&Hold, &Option<CounterState>)| state.is_some_and(|it| hold.is_refused(&it));
        match request.holds.iter().zip(&self.states).position(refuses) {
            Some(by) => Self { request: Arc::new(request), by, ..self },
            // Others took what there was, and may give it back.
            None => self,
        }
    }

    /// Whether a limit refuses for which a shorter answer is no way out.
    fn stands_anyway(&self) -> bool {
        self.standings().any(|(hold, state)| !hold.is_capped() && hold.is_refused(state))
    }
}

impl Reservation {
    /// The longest answer, in tokens, for which the limits with a cap had room when this was granted, as far as is known how they
    /// stood; `None` where none of them would ever end one.
    pub fn most_output(&self) -> Option<u64> {
        room(&self.request().with_output(LONGEST), self.standings()).filter(|room| *room < LONGEST)
    }
}

impl ReserveRequest {
    /// The longest answer, in tokens and up to what is estimated, for which every limit with a cap has room while its counter
    /// stands at its state, this request's own hold not among what is held. `None` if there is none for the prompt alone.
    pub fn output_room(&self, states: &[CounterState]) -> Option<u64> {
        room(self, self.holds.iter().zip(states))
    }

    /// The longest answer, in tokens, for which every limit with a cap would have room if nothing of it were used.
    pub fn widest_output(&self) -> u64 {
        let (left, length) = (Duration::from_secs(1), Duration::from_secs(1));
        let unused = CounterState { bucket: 0, epoch: 0, settled: 0, previous: 0, held: 0, left, length };
        let standings = self.holds.iter().map(|hold| (hold, &unused));
        room(&self.with_output(LONGEST), standings).unwrap_or(0)
    }

    /// The bound that the operator wants of answers whose client sets none, in tokens of each choice: the lowest of its limits.
    pub fn default_max_tokens(&self) -> Option<u64> {
        let capped = self.holds.iter().filter(|hold| hold.is_capped());
        capped.filter_map(|hold| hold.limit.default_max_tokens).min()
    }

    /// Whether a limit that must not be overdrawn counts how long the answer gets.
    pub fn bounds_output(&self) -> bool {
        let [none, long] = [0, LONGEST].map(|output| self.with_output(output));
        none.holds.iter().zip(&long.holds).any(|(none, long)| none.is_capped() && none.amount() != long.amount())
    }
}

fn room<'a>(request: &ReserveRequest, standings: impl Iterator<Item = (&'a Hold, &'a CounterState)>) -> Option<u64> {
    let capped: Vec<_> = standings.filter(|(hold, _)| hold.is_capped()).collect();
    let fits = |output: u64| {
        let estimate = request.estimate.with_output(output);
        capped.iter().all(|(hold, state)| {
            let estimate = estimate.of(&hold.limit, &request.context);
            Hold { estimate, ..Hold::clone(hold) }.fits(state)
        })
    };
    // Costs do not fall with the length of an answer, but for expressions that nobody should write; of those the length
    // that is found fits as well.
    let (mut room, mut too_much) = (0, request.estimate.output_at_most.saturating_add(1));
    if !fits(room) {
        return None;
    }
    while too_much - room > 1 {
        let middle = room + (too_much - room) / 2;
        if fits(middle) { room = middle } else { too_much = middle }
    }
    Some(room)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Estimate;
    use super::super::tests::{limit, nobody};
    use super::super::{Cap, Cost, Limit, Mode, Price, Prices, Quantity};
    use super::*;

    fn capped(id: &str, amount: u64) -> Limit {
        Limit { cap: Cap::Capped, ..limit(id, amount, Mode::Strict) }
    }

    fn refused(limits: &[(Limit, Option<u64>)], output: u64) -> Refused {
        let estimate = Estimate { input: 50, input_at_most: 100, output, output_at_most: output };
        let rules: Vec<_> = limits.iter().map(|(limit, _)| Arc::new(limit.clone())).collect();
        let request = Arc::new(ReserveRequest::new(&rules, &nobody(), estimate));
        let state = |settled: u64| CounterState { settled, ..CounterState::empty() };
        Refused { request, by: 0, states: limits.iter().map(|(_, settled)| settled.map(state)).collect() }
    }

    #[test]
    fn a_request_is_shortened_to_what_the_tightest_limit_has_left() {
        let refused = refused(&[(capped("a", 1_000), Some(600)), (capped("b", 1_000), Some(700))], 512);
        let shorter = refused.shortened(16).unwrap();
        assert_eq!((shorter.estimate.output, &shorter.id, shorter.judge), (200, &refused.request.id, Judge::Store));
        assert_eq!(shorter.holds.iter().map(|hold| hold.estimate).collect::<Vec<_>>(), [300, 300]);
    }

    #[test]
    fn it_is_not_where_that_is_too_little_or_where_another_limit_refuses() {
        assert!(refused(&[(capped("a", 1_000), Some(885))], 512).shortened(16).is_none());
        assert!(refused(&[(capped("a", 1_000), Some(884))], 512).shortened(16).is_some());
        assert!(refused(&[(capped("a", 1_000), Some(1_000))], 512).shortened(16).is_none());
        let soft = (limit("b", 100, Mode::Soft), Some(100));
        assert!(refused(&[(capped("a", 1_000), Some(700)), soft], 512).shortened(16).is_none());
        assert!(refused(&[(capped("a", 1_000), None)], 512).shortened(16).is_none());
    }

    #[test]
    fn a_limit_of_which_nothing_is_known_stands_in_nobodys_way() {
        let refused = refused(&[(capped("a", 1_000), None), (capped("b", 1_000), Some(700))], 512);
        assert_eq!(refused.shortened(16).map(|shorter| shorter.estimate.output), Some(200));
    }

    #[test]
    fn a_refusal_tells_of_the_least_that_does_not_fit() {
        let refusal = |limits: &[(Limit, Option<u64>)]| {
            let refused = refused(limits, 512).of_least(16);
            (refused.by, refused.request.estimate.output)
        };
        assert_eq!(refusal(&[(capped("a", 1_000), Some(500)), (capped("b", 1_000), Some(885))]), (1, 16));
        assert_eq!(refusal(&[(capped("a", 1_000), Some(884))]), (0, 512));
        assert_eq!(refusal(&[(capped("a", 1_000), Some(885)), (limit("b", 100, Mode::Soft), Some(100))]), (0, 512));
        assert_eq!(refusal(&[(capped("a", 1_000), None)]), (0, 512));
    }

    #[test]
    fn a_limit_of_what_comes_before_the_answer_leaves_its_length_alone() {
        let counting = |quantity: Quantity| Limit { quantity, ..capped("a", 1_000) };
        let bounds = |limit: Limit, output: u64| refused(&[(limit, None)], output).request.bounds_output();
        for output in [0, 512, u64::MAX] {
            assert!(!bounds(counting(Quantity::Tokens(Cost::Input)), output));
            assert!(bounds(counting(Quantity::Tokens(Cost::Output)), output));
            assert!(bounds(capped("a", 1_000), output));
            assert!(!bounds(limit("a", 1_000, Mode::Strict), output));
        }
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
