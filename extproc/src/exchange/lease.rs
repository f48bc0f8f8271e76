//! A reservation while its answer streams: renewed, grown as more is delivered, and settled at the end.
//!
//! At most one growth is under way. Where a limit must not be overdrawn, no more is delivered than is held, so more is asked for
//! ahead of need; where it may be, what is held follows what was delivered. Growths take no client's time but where an answer
//! has used up what is held before the store has said whether there is more.
//!
//! Between two chunks of the answer the ledger is asked a few times at most ([`Asks`]), whatever it answers and whatever the
//! events say: a ledger in memory answers at once, and asking it without end would be all that a thread does.

use std::sync::Arc;
use std::time::Duration;

use attache_proto::response::Allowance;
use attache_proto::{ApiError, ErrorKind, Usage};

use crate::limit::{
    Admission, Grown, Growth, Hold, OnStoreError, Refused, Reservation, ReserveRequest, Settlement, StoreError,
};

/// What a growth asks for, in tokens of output.
const STEP: u64 = 256;

/// Ahead of the end of what is held: at a hundred tokens a second, more than a second before.
const AHEAD: u64 = 128;

/// Between two attempts at a growth that nobody answers.
const RETRY: u64 = 32;

/// A reservation that is held for an answer.
#[derive(Debug)]
pub(super) struct Lease {
    reservation: Reservation,
    /// The most that the client lets the answer have.
    bound: u64,
    need: Need,
    growing: Option<Growth>,
    due: Due,
    asks: Asks,
    /// What may be delivered beyond what is held, as the store does not answer.
    unheld: u64,
    end: Option<ApiError>,
}

/// What a longer answer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Nothing: no limit holds tokens, or nobody sees it grow.
    Nothing,
    /// That what is held follows.
    Follow,
    /// That it is held before it is delivered. While the store does not answer, the answer goes on.
    Lead,
    /// The same; while the store does not answer, it ends with what is held.
    LeadOrEnd,
}

/// When more is asked for, and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// A step, with so many tokens delivered.
    At(u64),
    /// `left`, and no more, with `at` delivered: a limit has said that it has no more.
    Rest { left: u64, at: u64 },
    /// Nothing, until an event is withheld: by then others may have given back.
    Withheld,
}

/// How often the ledger may be asked for more before the next chunk of the answer comes. From the third on each asks for twice as much as
/// the one before: together they are more than the events of any chunk are worth.
#[derive(Debug, Clone, Copy)]
struct Asks(u32);

/// Whether the answer can go on with what is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It does.
    Passing,
    /// Its next event is withheld: with that, so many tokens of output would be delivered.
    Withheld(u64),
}

impl Lease {
    /// What is held for an answer in one piece, which ends before anybody can see how long it gets.
    pub(super) fn of_whole(reservation: Reservation) -> Self {
        Self::new(reservation, None, Need::Nothing)
    }

    /// What is held for a stream of which the client bounds the output by `bound`.
    pub(super) fn of_stream(reservation: Reservation, bound: Option<u64>) -> Self {
        let need = Need::of(reservation.request());
        Self::new(reservation, bound, need)
    }

    fn new(reservation: Reservation, bound: Option<u64>, need: Need) -> Self {
        let mut lease = Self {
            reservation,
            bound: bound.unwrap_or(u64::MAX),
            need,
            growing: None,
            due: Due::Withheld,
            asks: Asks::ALL,
            unheld: 0,
            end: None,
        };
        lease.due = lease.next_due();
        lease
    }

    /// How much output may be delivered; `None` if it does not matter.
    pub(super) fn allowance(&self) -> Option<Allowance> {
        let tokens = self.held().saturating_add(self.unheld);
        match self.need {
            Need::Nothing | Need::Follow => None,
            Need::Lead | Need::LeadOrEnd if self.held() < self.bound => Some(Allowance::Likely(tokens)),
            // Once all is held that the client lets the answer have, the upstream ends it: its count is better than ours. But
            // there are some that ignore what clients say.
            Need::Lead | Need::LeadOrEnd => Some(Allowance::Certain(tokens)),
        }
    }

    /// What is held.
    pub(super) fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// With which error the answer has to end where it is withheld.
    pub(super) fn end(&self) -> Option<&ApiError> {
        self.end.as_ref()
    }

    /// The next chunk of the answer has come.
    pub(super) fn chunk_came(&mut self) {
        self.asks = Asks::ALL;
    }

    /// Begins the lease anew, if nothing is under way that does so.
    pub(super) fn renew(&mut self) -> Option<Growth> {
        self.begin(0)
    }

    /// Asks for more if it is time to, with so much delivered, and if it may be asked for before the next chunk.
    pub(super) fn grow(&mut self, delivered: u64, progress: Progress) -> Option<Growth> {
        let is_due = match (self.due, progress) {
            (_, Progress::Withheld(_)) => true,
            (Due::At(at) | Due::Rest { at, .. }, Progress::Passing) => delivered >= at,
            (Due::Withheld, Progress::Passing) => false,
        };
        if self.need == Need::Nothing || !is_due || self.growing.is_some() || self.asks.is_none_left() {
            return None;
        }
        let wanted = progress.wanted(delivered);
        let behind = wanted.saturating_sub(self.held());
        let more = match (self.due, self.need) {
            (Due::Rest { left, .. }, _) => left,
            (_, Need::Lead | Need::LeadOrEnd) if progress == Progress::Passing => {
                behind.saturating_add(self.asks.step())
            }
            _ => behind.max(self.asks.step()),
        };
        // What the client does not let the answer have is asked for only where the upstream does not care.
        let most = if wanted > self.bound { u64::MAX } else { self.bound.saturating_sub(self.held()) };
        if most == 0 {
            return None;
        }
        self.asks.take_one();
        self.begin(more.min(most))
    }

    /// The store answered, with so much delivered by now.
    pub(super) fn answered(
        &mut self,
        growth: &Growth,
        answer: &Result<Admission, StoreError>,
        delivered: u64,
        progress: Progress,
    ) {
        self.growing = None;
        let is_renewal = Arc::ptr_eq(&growth.from, &growth.to);
        match (self.reservation.note(growth, answer), answer) {
            _ if is_renewal => {}
            (Grown::Granted, _) => {
                self.unheld = 0;
                // After what was left is taken, nothing will be for a while.
                self.due = if self.due.is_rest() { Due::Withheld } else { self.next_due() };
            }
            (Grown::Refused, Ok(Admission::Refused { by, states })) => self.refused(growth, *by, states, progress),
            _ => match self.need {
                Need::LeadOrEnd if progress != Progress::Passing => self.end = Some(unanswered()),
                Need::LeadOrEnd => self.ask_later(delivered),
                _ => {
                    let [asked, behind, wanted] = [growth.to.estimate.output, delivered, progress.wanted(delivered)]
                        .map(|output| output.saturating_sub(self.held()));
                    self.unheld = behind.max(self.unheld).saturating_add(asked.max(STEP)).max(wanted);
                    self.ask_later(delivered);
                }
            },
        }
    }

    /// How it ends when the model used `usage`.
    pub(super) fn settlement(mut self, usage: &Usage) -> Settlement {
        if let Some(growth) = self.growing.take() {
            // Nobody will hear of its answer.
            self.reservation.note(&growth, &Err(StoreError::Timeout(Duration::ZERO)));
        }
        self.reservation.settlement(usage)
    }

    /// Whether a growth is under way.
    pub(super) fn is_growing(&self) -> bool {
        self.growing.is_some()
    }

    fn begin(&mut self, more: u64) -> Option<Growth> {
        if self.growing.is_some() {
            return None;
        }
        self.growing = Some(self.reservation.growth(more));
        self.growing.clone()
    }

    fn ask_later(&mut self, delivered: u64) {
        let at = delivered.saturating_add(RETRY);
        self.due = match self.due {
            Due::Rest { left, .. } => Due::Rest { left, at },
            Due::At(_) | Due::Withheld => Due::At(at),
        };
    }

    fn refused(&mut self, growth: &Growth, by: usize, states: &[crate::limit::CounterState], progress: Progress) {
        let asked = growth.to.estimate.output.saturating_sub(self.held());
        let left = growth.to.output_room(states).unwrap_or(0).saturating_sub(self.held());
        if (1..asked).contains(&left) {
            self.due = Due::Rest { left, at: 0 };
            return;
        }
        self.due = Due::Withheld;
        // An event is withheld only when the store has just been asked: others may have given back in the meantime.
        if progress != Progress::Passing {
            let states = states.iter().copied().map(Some).collect();
            self.end = Some(Refused { request: Arc::clone(&growth.to), by, states }.error_of_answer());
        }
    }

    fn held(&self) -> u64 {
        self.reservation.request().estimate.output
    }

    fn next_due(&self) -> Due {
        match self.need {
            Need::Nothing => Due::Withheld,
            Need::Lead | Need::LeadOrEnd if self.held() >= self.bound => Due::Withheld,
            Need::Follow => Due::At(self.held().saturating_add(STEP)),
            // A short answer is not asked for more before half of it is there.
            Need::Lead | Need::LeadOrEnd => Due::At(self.held() - AHEAD.min(self.held() / 2)),
        }
    }
}

impl Due {
    fn is_rest(self) -> bool {
        matches!(self, Self::Rest { .. })
    }
}

impl Asks {
    const ALL: Self = Self(12);

    fn is_none_left(self) -> bool {
        self.0 == 0
    }

    fn take_one(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    /// What is asked for next, in tokens of output.
    fn step(self) -> u64 {
        // Most chunks need one growth, and one more after it that is in time for the next chunk.
        STEP << Self::ALL.0.saturating_sub(self.0).saturating_sub(1)
    }
}

impl Progress {
    /// How many tokens of output are to be delivered next, with so many delivered.
    fn wanted(self, delivered: u64) -> u64 {
        match self {
            Self::Passing => delivered,
            Self::Withheld(wanted) => wanted.max(delivered),
        }
    }
}

impl Need {
    fn of(request: &ReserveRequest) -> Self {
        let longer = request.grown(STEP);
        let growing = || request.holds.iter().zip(&longer.holds).filter(|(now, then)| then.amount() > now.amount());
        let holds = |matches: fn(&Hold) -> bool| growing().any(|(hold, _)| matches(hold));
        if holds(|hold| hold.is_capped() && hold.limit.on_store_error == OnStoreError::Deny) {
            Self::LeadOrEnd
        } else if holds(Hold::is_capped) {
            Self::Lead
        } else if growing().next().is_some() {
            Self::Follow
        } else {
            Self::Nothing
        }
    }
}

fn unanswered() -> ApiError {
    ApiError::new(ErrorKind::Unavailable, "the token ledger does not answer, and what was reserved is used up")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limit::{
        Cap, Cost, CostContext, CounterState, Decision, Enforcement, Estimate, Keeper, Limit, Mode, Priority, Quantity,
        Subject, Window,
    };

    /// An answer of 300 tokens at first, to a prompt of 100, under one limit.
    fn lease(cap: Cap, on_store_error: OnStoreError, bound: Option<u64>) -> Lease {
        leased(Quantity::Tokens(Cost::Total), cap, on_store_error, bound)
    }

    fn leased(quantity: Quantity, cap: Cap, on_store_error: OnStoreError, bound: Option<u64>) -> Lease {
        let limit = Arc::new(Limit {
            id: "ns/policy/limit".into(),
            per: vec![],
            when: vec![],
            quantity,
            amount: 1_000,
            low_priority_percent: 100,
            window: Window::Fixed(Duration::from_secs(60)),
            mode: Mode::Strict,
            cap,
            default_max_tokens: None,
            enforcement: Enforcement::Refuse,
            on_store_error,
        });
        let name: Arc<str> = "m".into();
        let [model, served_model, backend, route] = [(); 4].map(|()| Arc::clone(&name));
        let context = Arc::new(CostContext { model, served_model, backend, route });
        let subject = Subject {
            key_id: None,
            tenant: None,
            priority: Priority::Normal,
            context: &context,
            groups: crate::limit::ModelGroups::default(),
            model_class: None,
            label: &|_| None,
            header: &|_| None,
        };
        let estimate = Estimate { input: 100, input_at_most: 100, output: 300, output_at_most: 300 };
        let request = Arc::new(ReserveRequest::new(&[limit], &subject, estimate));
        match Decision::new(request, Admission::Granted { states: vec![state(0)] }, Keeper::Store) {
            Decision::Granted(reservation) => Lease::of_stream(reservation, bound),
            Decision::Refused(_) => panic!(),
        }
    }

    fn state(settled: u64) -> CounterState {
        let minute = Duration::from_secs(60);
        CounterState { bucket: 0, epoch: 0, settled, previous: 0, held: 0, left: minute, length: minute }
    }

    fn outputs(growth: &Growth) -> (u64, u64) {
        (growth.from.estimate.output, growth.to.estimate.output)
    }

    fn granted() -> Result<Admission, StoreError> {
        Ok(Admission::Granted { states: vec![state(0)] })
    }

    /// The answer of a limit of which others have used so much.
    fn refused(settled: u64) -> Result<Admission, StoreError> {
        Ok(Admission::Refused { by: 0, states: vec![state(settled)] })
    }

    fn timeout() -> Result<Admission, StoreError> {
        Err(StoreError::Timeout(Duration::ZERO))
    }

    #[test]
    fn under_a_cap_more_is_asked_for_ahead_of_need_and_one_growth_at_a_time() {
        let mut lease = lease(Cap::Capped, OnStoreError::Local, None);
        assert_eq!(lease.allowance(), Some(Allowance::Likely(300)));
        assert!(lease.grow(171, Progress::Passing).is_none());
        let growth = lease.grow(172, Progress::Passing).unwrap();
        assert_eq!(outputs(&growth), (300, 556));
        assert!(lease.grow(300, Progress::Withheld(301)).is_none() && lease.renew().is_none());
        lease.answered(&growth, &granted(), 180, Progress::Passing);
        assert_eq!(lease.allowance(), Some(Allowance::Likely(556)));
        lease.chunk_came();
        assert!(lease.grow(427, Progress::Passing).is_none());
        assert_eq!(outputs(&lease.grow(428, Progress::Passing).unwrap()), (556, 812));
    }

    #[test]
    fn without_a_cap_what_is_held_follows_what_was_delivered() {
        let mut lease = lease(Cap::Open, OnStoreError::Deny, None);
        assert_eq!(lease.allowance(), None);
        assert!(lease.grow(555, Progress::Passing).is_none());
        let growth = lease.grow(556, Progress::Passing).unwrap();
        assert_eq!(outputs(&growth), (300, 556));
        lease.answered(&growth, &granted(), 560, Progress::Passing);
        lease.chunk_came();
        // One event may be much.
        assert_eq!(outputs(&lease.grow(5_000, Progress::Passing).unwrap()), (556, 5_000));
    }

    #[test]
    fn what_the_client_bounds_is_not_held_twice() {
        let mut lease = lease(Cap::Capped, OnStoreError::Local, Some(400));
        let growth = lease.grow(200, Progress::Passing).unwrap();
        assert_eq!(outputs(&growth), (300, 400));
        lease.answered(&growth, &granted(), 200, Progress::Passing);
        assert_eq!(lease.allowance(), Some(Allowance::Certain(400)), "the upstream ends it");
        lease.chunk_came();
        assert!(lease.grow(400, Progress::Passing).is_none());
        assert_eq!(outputs(&lease.renew().unwrap()), (400, 400));
    }

    #[test]
    fn what_the_client_bounds_and_the_upstream_does_not_is_held_as_far_as_the_limit_goes() {
        let mut lease = lease(Cap::Capped, OnStoreError::Local, Some(300));
        assert_eq!(lease.allowance(), Some(Allowance::Certain(300)));
        assert!(lease.grow(300, Progress::Passing).is_none());
        let growth = lease.grow(300, Progress::Withheld(301)).unwrap();
        assert_eq!(outputs(&growth), (300, 556));
        lease.answered(&growth, &granted(), 300, Progress::Withheld(301));
        assert_eq!(lease.allowance(), Some(Allowance::Certain(556)));
        lease.chunk_came();
        let growth = lease.grow(556, Progress::Withheld(557)).unwrap();
        lease.answered(&growth, &refused(600), 556, Progress::Withheld(557));
        assert!(lease.end().is_some());

        let mut open = self::lease(Cap::Open, OnStoreError::Local, Some(300));
        assert!(open.grow(555, Progress::Passing).is_none());
        assert_eq!(outputs(&open.grow(600, Progress::Passing).unwrap()), (300, 600));
    }

    #[test]
    fn an_answer_in_one_piece_is_renewed_and_does_not_grow() {
        let reservation = lease(Cap::Capped, OnStoreError::Deny, None).reservation().clone();
        let mut lease = Lease::of_whole(reservation);
        assert!(lease.grow(100_000, Progress::Passing).is_none());
        assert_eq!((lease.allowance(), lease.renew().map(|growth| outputs(&growth))), (None, Some((300, 300))));
    }

    #[test]
    fn a_limit_that_counts_no_tokens_of_output_lets_every_answer_be() {
        for quantity in [Quantity::Requests, Quantity::Concurrency, Quantity::Tokens(Cost::Input)] {
            let mut lease = leased(quantity, Cap::Capped, OnStoreError::Deny, None);
            assert_eq!(lease.allowance(), None);
            assert!(lease.grow(100_000, Progress::Passing).is_none());
        }
    }

    #[test]
    fn where_more_is_refused_the_rest_is_taken_and_then_the_answer_ends() {
        let mut lease = lease(Cap::Capped, OnStoreError::Local, None);
        let growth = lease.grow(200, Progress::Passing).unwrap();
        // Of 1,000, 550 are others': 350 for the answer.
        lease.answered(&growth, &refused(550), 210, Progress::Passing);
        let rest = lease.grow(210, Progress::Passing).unwrap();
        assert_eq!(outputs(&rest), (300, 350));
        lease.answered(&rest, &granted(), 220, Progress::Passing);
        assert_eq!(lease.allowance(), Some(Allowance::Likely(350)));
        lease.chunk_came();
        assert!(lease.grow(349, Progress::Passing).is_none(), "nothing is left to ask for");
        // At the very end somebody may have given back.
        let last = lease.grow(350, Progress::Withheld(351)).unwrap();
        assert_eq!(outputs(&last), (350, 606));
        lease.answered(&last, &refused(550), 350, Progress::Withheld(351));
        let error = lease.end().unwrap();
        assert_eq!(error.kind, ErrorKind::RateLimited);
        assert!(error.message.contains("Limit 1000. The answer ends here"), "{}", error.message);
    }

    #[test]
    fn a_rest_is_asked_for_to_the_token_however_much_has_been_delivered() {
        let mut lease = lease(Cap::Capped, OnStoreError::Local, None);
        // The usage, which no event is withheld for, says that it was far more than is held.
        let growth = lease.grow(950, Progress::Passing).unwrap();
        assert_eq!(outputs(&growth), (300, 950 + 256));
        lease.answered(&growth, &refused(200), 950, Progress::Passing);
        let rest = lease.grow(950, Progress::Passing).unwrap();
        assert_eq!(outputs(&rest), (300, 700));
        lease.answered(&rest, &granted(), 950, Progress::Passing);
        assert!(lease.grow(950, Progress::Passing).is_none());
    }

    #[test]
    fn one_growth_is_enough_for_an_event_however_much_it_says_it_is() {
        for answer in [granted(), timeout()] {
            let mut lease = lease(Cap::Capped, OnStoreError::Local, None);
            let growth = lease.grow(300, Progress::Withheld(1 << 40)).unwrap();
            lease.answered(&growth, &answer, 300, Progress::Withheld(1 << 40));
            assert!(lease.allowance().unwrap().tokens() >= 1 << 40, "{:?}", lease.allowance());
        }
    }

    proptest! {
        #[test]
        fn between_two_chunks_the_ledger_is_asked_a_few_times_whatever_it_answers(
            need in 0..3usize,
            bound in prop::option::of(1u64..2_000),
            answers in prop::collection::vec((0..5u8, 0u64..1_200), 1..24),
            delivered in prop::collection::vec((0u64..3_000, any::<bool>()), 1..8),
        ) {
            let (cap, on_store_error) = [
                (Cap::Open, OnStoreError::Local),
                (Cap::Capped, OnStoreError::Local),
                (Cap::Capped, OnStoreError::Deny),
            ][need];
            let mut lease = lease(cap, on_store_error, bound);
            let mut answers = answers.into_iter().cycle();
            for (delivered, is_withheld) in delivered {
                let progress = if is_withheld { Progress::Withheld(delivered + 1) } else { Progress::Passing };
                lease.chunk_came();
                let mut asked = 0;
                while let Some(growth) = lease.grow(delivered, progress) {
                    asked += 1;
                    prop_assert!(asked <= Asks::ALL.0, "{asked}");
                    prop_assert!(lease.grow(delivered, progress).is_none(), "one is under way");
                    let (kind, settled) = answers.next().unwrap_or_default();
                    let answer = match kind {
                        0 => granted(),
                        1 => timeout(),
                        2 => Err(StoreError::Unreachable(String::new())),
                        _ => refused(settled),
                    };
                    lease.answered(&growth, &answer, delivered, progress);
                }
            }
        }
    }

    #[test]
    fn a_refusal_that_comes_late_ends_an_answer_that_waits_for_it() {
        let mut lease = lease(Cap::Capped, OnStoreError::Local, None);
        let growth = lease.grow(200, Progress::Passing).unwrap();
        lease.answered(&growth, &refused(600), 300, Progress::Withheld(301));
        assert!(lease.end().is_some());
    }

    #[test]
    fn while_the_store_does_not_answer_the_limit_says_whether_the_answer_goes_on() {
        let mut going_on = lease(Cap::Capped, OnStoreError::Local, None);
        let growth = going_on.grow(200, Progress::Passing).unwrap();
        going_on.answered(&growth, &timeout(), 250, Progress::Passing);
        assert_eq!(going_on.allowance(), Some(Allowance::Likely(556)));
        assert!(going_on.grow(281, Progress::Passing).is_none());
        let again = going_on.grow(282, Progress::Passing).unwrap();
        assert_eq!(outputs(&again), (300, 556));
        assert!(again.doubt.is_some(), "what became of the first is not known");
        going_on.answered(&again, &timeout(), 600, Progress::Passing);
        assert_eq!(going_on.allowance(), Some(Allowance::Likely(856)));
        // Until it is certain what is held, nothing else is asked for. Then what was delivered meanwhile is.
        let certain = going_on.grow(632, Progress::Passing).unwrap();
        assert_eq!(outputs(&certain), (300, 556));
        going_on.answered(&certain, &granted(), 640, Progress::Passing);
        assert_eq!(going_on.allowance(), Some(Allowance::Likely(556)));
        going_on.chunk_came();
        let behind = going_on.grow(640, Progress::Passing).unwrap();
        assert_eq!((outputs(&behind), behind.doubt.is_none()), ((556, 896), true));
        going_on.answered(&behind, &granted(), 640, Progress::Passing);
        assert_eq!(going_on.allowance(), Some(Allowance::Likely(896)));

        let mut ending = lease(Cap::Capped, OnStoreError::Deny, None);
        let growth = ending.grow(200, Progress::Passing).unwrap();
        ending.answered(&growth, &timeout(), 250, Progress::Passing);
        assert_eq!((ending.allowance(), ending.end()), (Some(Allowance::Likely(300)), None));
        let last = ending.grow(300, Progress::Withheld(301)).unwrap();
        ending.answered(&last, &timeout(), 300, Progress::Withheld(301));
        assert_eq!(ending.end().map(|error| error.kind), Some(ErrorKind::Unavailable));
    }

    #[test]
    fn what_was_asked_for_first_is_in_doubt_until_the_store_answers_whatever_else_is_lost() {
        let mut lease = lease(Cap::Capped, OnStoreError::Local, None);
        let doubt = |lease: &Lease| lease.reservation.settlement(&Usage::default()).doubt.map(|it| it.estimate.output);
        let first = lease.grow(200, Progress::Passing).unwrap();
        lease.answered(&first, &timeout(), 200, Progress::Passing);
        let renewal = lease.renew().unwrap();
        lease.answered(&renewal, &timeout(), 200, Progress::Passing);
        let second = lease.grow(550, Progress::Withheld(551)).unwrap();
        let unreachable = Err(StoreError::Unreachable(String::new()));
        lease.answered(&second, &unreachable, 550, Progress::Withheld(551));
        assert_eq!(doubt(&lease), Some(556));
        // A renewal that is answered leaves what was held before.
        let renewal = lease.renew().unwrap();
        lease.answered(&renewal, &granted(), 550, Progress::Passing);
        assert_eq!(doubt(&lease), None);
        lease.chunk_came();
        assert_eq!(outputs(&lease.grow(600, Progress::Passing).unwrap()), (300, 856));
    }

    #[test]
    fn a_rest_that_is_taken_while_in_doubt_is_the_last_that_is_asked_for() {
        let mut lease = lease(Cap::Capped, OnStoreError::Local, None);
        let growth = lease.grow(200, Progress::Passing).unwrap();
        lease.answered(&growth, &refused(550), 210, Progress::Passing);
        let rest = lease.grow(210, Progress::Passing).unwrap();
        lease.answered(&rest, &timeout(), 220, Progress::Passing);
        let again = lease.grow(252, Progress::Passing).unwrap();
        assert_eq!(outputs(&again), (300, 350));
        lease.answered(&again, &granted(), 260, Progress::Passing);
        assert_eq!(lease.allowance(), Some(Allowance::Likely(350)));
        assert!(lease.grow(349, Progress::Passing).is_none());
    }

    #[test]
    fn what_is_under_way_at_the_end_is_in_doubt_but_for_a_renewal() {
        let mut lease = lease(Cap::Capped, OnStoreError::Local, None);
        lease.grow(200, Progress::Passing).unwrap();
        let settlement = lease.settlement(&Usage { total: 350, ..Usage::default() });
        assert_eq!((settlement.charges[0].hold.estimate, settlement.charges[0].actual), (400, 350));
        assert_eq!(settlement.doubt.unwrap().holds[0].estimate, 656);

        let mut renewed = self::lease(Cap::Capped, OnStoreError::Local, None);
        renewed.renew().unwrap();
        assert!(renewed.settlement(&Usage::default()).doubt.is_none());
    }
}
