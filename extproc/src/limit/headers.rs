//! What a response tells the client of its limits, on 200 and on 429: OpenAI's headers, Envoy's, and when to come back.
//!
//! Of several limits the most constrained one is shown: the one with the least share left, as shares alone compare between
//! tokens, requests and money. Requests in flight are not shown: they have no window that a client could plan by. Values are
//! whole numbers, as the draft has them and clients read them; money is in millionths, so that 0.75 is not 0.

use std::cmp::Ordering;
use std::time::Duration;

use attache_gate::{DO_NOT_RETRY, HeaderValue, is_worth_retrying, whole_seconds};

use super::refusal::{retry_after, until_empty};
use super::{CounterState, Enforcement, Hold, Quantity, Refused, Reservation};

const TOKENS: Names = Names {
    limit: "x-ratelimit-limit-tokens",
    remaining: "x-ratelimit-remaining-tokens",
    reset: "x-ratelimit-reset-tokens",
};
const REQUESTS: Names = Names {
    limit: "x-ratelimit-limit-requests",
    remaining: "x-ratelimit-remaining-requests",
    reset: "x-ratelimit-reset-requests",
};
const ANY: Names = Names { limit: "x-ratelimit-limit", remaining: "x-ratelimit-remaining", reset: "x-ratelimit-reset" };

struct Names {
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
}

impl Reservation {
    /// The rate-limit headers of the answer, in lower case.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        now(headers(self.standings()))
    }
}

impl Refused {
    /// The rate-limit headers of the refusal, in lower case, when to come back, and whether an SDK should do so by itself.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let wait = self.retry_after();
        let is_worth_retrying = self.can_be_met() && is_worth_retrying(self.error().kind, wait);
        let mut headers = now(headers(self.standings()).into_iter().chain(come_back(wait)));
        if !is_worth_retrying {
            let (name, value) = DO_NOT_RETRY;
            headers.push((name, value.to_owned()));
        }
        headers
    }
}

/// When to come back.
pub(super) fn come_back(wait: Duration) -> [(&'static str, HeaderValue); 2] {
    [("retry-after", HeaderValue::Seconds(wait)), ("retry-after-ms", HeaderValue::Milliseconds(wait))]
}

fn now(headers: impl IntoIterator<Item = (&'static str, HeaderValue)>) -> Vec<(&'static str, String)> {
    headers.into_iter().map(|(name, value)| (name, value.after(Duration::ZERO))).collect()
}

/// The headers that tell of these limits.
pub(super) fn headers<'a>(
    standings: impl Iterator<Item = (&'a Hold, &'a CounterState)>,
) -> Vec<(&'static str, HeaderValue)> {
    let standings: Vec<_> = standings
        .filter(|(hold, _)| hold.limit.enforcement == Enforcement::Refuse)
        .filter(|(hold, _)| hold.limit.quantity != Quantity::Concurrency)
        .map(|(hold, state)| Standing::new(hold, state))
        .collect();
    let mut headers = Vec::new();
    for (names, kind) in [(TOKENS, Kind::Tokens), (REQUESTS, Kind::Requests)] {
        if let Some(standing) = most_constrained(standings.iter().filter(|standing| standing.kind() == kind)) {
            headers.push((names.limit, HeaderValue::Fixed(standing.limit().to_string())));
            headers.push((names.remaining, HeaderValue::Fixed(standing.remaining().to_string())));
            headers.push((names.reset, HeaderValue::Spoken(standing.reset)));
        }
    }
    if let Some(standing) = most_constrained(standings.iter()) {
        headers.push((ANY.limit, HeaderValue::Fixed(with_policies(standing, &standings))));
        headers.push((ANY.remaining, HeaderValue::Fixed(standing.remaining().to_string())));
        headers.push((ANY.reset, HeaderValue::Seconds(standing.reset)));
    }
    headers
}

/// Where a request stands with one of its limits.
struct Standing<'a> {
    hold: &'a Hold,
    /// Before this request's own hold; 0 where the limit refuses it. In the limit's unit.
    remaining: u64,
    /// Until there is room where it refuses; else until nothing is used any more, if nobody asks.
    reset: Duration,
    /// The length of the present window: of a month, that of this one.
    length: Duration,
}

#[derive(PartialEq, Eq)]
enum Kind {
    Tokens,
    Money,
    Requests,
    Slots,
}

impl<'a> Standing<'a> {
    fn new(hold: &'a Hold, state: &CounterState) -> Self {
        let used = state.used().saturating_add(state.held);
        let (remaining, reset) = match hold.fits(state) {
            true => (hold.ceiling.saturating_sub(used), until_empty(hold, state)),
            false => (0, retry_after(hold, state)),
        };
        Self { hold, remaining, reset, length: state.length }
    }

    /// Up to where this caller may use it, as a header has it.
    fn limit(&self) -> u64 {
        self.shown(self.hold.ceiling)
    }

    /// As a header has it.
    fn remaining(&self) -> u64 {
        self.shown(self.remaining)
    }

    fn shown(&self, count: u64) -> u64 {
        match self.hold.limit.quantity {
            Quantity::Money(_) => count,
            Quantity::Tokens(_) | Quantity::Weighted(_) | Quantity::Requests | Quantity::Concurrency => {
                count / self.hold.limit.quantity.scale()
            }
        }
    }

    fn kind(&self) -> Kind {
        match self.hold.limit.quantity {
            Quantity::Tokens(_) | Quantity::Weighted(_) => Kind::Tokens,
            Quantity::Money(_) => Kind::Money,
            Quantity::Requests => Kind::Requests,
            Quantity::Concurrency => Kind::Slots,
        }
    }

    /// By the share that is left. Of two that are as good as used up, the one that takes longer to refill comes first; of two
    /// that are as good as unused, the one with the shorter window, which is sooner used up.
    fn cmp_constraint(&self, other: &Self) -> Ordering {
        let share = |of: &Self, against: &Self| u128::from(of.remaining) * u128::from(against.hold.ceiling);
        let longer_reset = || match self.remaining {
            0 => other.reset.cmp(&self.reset),
            _ => Ordering::Equal,
        };
        share(self, other).cmp(&share(other, self)).then_with(longer_reset).then(self.length.cmp(&other.length))
    }

    /// `300;w=60`, and of money `750000;w=2678400;unit=millionths`: a quota-policy with a quota-comment.
    fn policy(&self) -> String {
        let unit = if self.kind() == Kind::Money { ";unit=millionths" } else { "" };
        format!("{};w={}{unit}", self.limit(), whole_seconds(self.length))
    }
}

fn most_constrained<'s, 'a: 's>(standings: impl Iterator<Item = &'s Standing<'a>>) -> Option<&'s Standing<'a>> {
    standings.min_by(|a, b| a.cmp_constraint(b))
}

/// `300, 300;w=60, 10000;w=3600`: the limit that is shown, then its window in seconds, then the others with theirs, as Envoy's
/// `x-ratelimit-limit` has it (draft-polli-ratelimit-headers-03).
fn with_policies(shown: &Standing<'_>, all: &[Standing<'_>]) -> String {
    let others = all.iter().filter(|other| !std::ptr::eq(*other, shown)).map(Standing::policy);
    let parts = [shown.limit().to_string(), shown.policy()].into_iter().chain(others);
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::tests::{decision, hold, limit, request};
    use super::super::{Admission, Calendar, Cost, Limit, Mode, Period, Price, Prices, Window};
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn state(settled: u64, held: u64, left: Duration) -> CounterState {
        CounterState { settled, held, left, ..CounterState::empty() }
    }

    fn tokens(amount: u64, window: Duration) -> Limit {
        Limit { window: Window::Fixed(window), ..limit(&format!("tokens-{amount}"), amount, Mode::Soft) }
    }

    fn requests(amount: u64) -> Limit {
        Limit { quantity: Quantity::Requests, ..limit(&format!("requests-{amount}"), amount, Mode::Soft) }
    }

    fn slots(amount: u64) -> Limit {
        Limit { quantity: Quantity::Concurrency, ..limit("slots", amount, Mode::Soft) }
    }

    fn holds<const N: usize>(limits: [Limit; N]) -> Vec<Hold> {
        limits.map(|limit| hold(&Arc::new(limit), "caller", 40)).into()
    }

    fn lines(admission: Admission, holds: &[Hold]) -> Vec<String> {
        let headers = decision(&request(holds.to_vec()), admission).headers();
        headers.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    #[test]
    fn a_granted_request_sees_what_was_left_before_it() {
        let holds = holds([tokens(300, Duration::from_secs(60))]);
        let admission = Admission::Granted { states: vec![state(40, 29, Duration::from_millis(17_100))] };
        assert_eq!(
            lines(admission, &holds),
            [
                "x-ratelimit-limit-tokens: 300",
                "x-ratelimit-remaining-tokens: 231",
                "x-ratelimit-reset-tokens: 18s",
                "x-ratelimit-limit: 300, 300;w=60",
                "x-ratelimit-remaining: 231",
                "x-ratelimit-reset: 18",
            ]
        );
    }

    #[test]
    fn a_refused_request_sees_nothing_left_and_when_to_come_back() {
        let holds = holds([tokens(300, Duration::from_secs(60))]);
        let states = vec![state(320, 0, Duration::from_millis(17_100))];
        assert_eq!(
            lines(Admission::Refused { by: 0, states }, &holds),
            [
                "x-ratelimit-limit-tokens: 300",
                "x-ratelimit-remaining-tokens: 0",
                "x-ratelimit-reset-tokens: 18s",
                "x-ratelimit-limit: 300, 300;w=60",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 18",
                "retry-after: 18",
                "retry-after-ms: 17100",
            ]
        );
    }

    #[test]
    fn an_sdk_is_told_not_to_try_again_where_it_would_wait_for_long_or_for_nothing() {
        let minute = tokens(300, Duration::from_secs(60));
        let day = tokens(300, DAY);
        let [strict_minute, strict_day] = [&minute, &day].map(|limit| Limit { mode: Mode::Strict, ..limit.clone() });
        for (limit, settled, held, left, is_worth_retrying) in [
            (&minute, 320, 0, 18, true),
            (&day, 320, 0, 18, false),
            // Requests in flight give back what they hold.
            (&strict_day, 0, 290, 7_200, true),
            (&strict_minute, 280, 0, 18, true),
            // The request alone is above the limit.
            (&Limit { amount: 30, ..strict_minute.clone() }, 0, 0, 18, false),
            (&Limit { window: Window::Fixed(Duration::from_secs(600)), ..minute.clone() }, 320, 0, 61, false),
        ] {
            let states = vec![state(settled, held, Duration::from_secs(left))];
            let lines = lines(Admission::Refused { by: 0, states }, &holds([limit.clone()]));
            assert_eq!(!lines.contains(&"x-should-retry: false".to_owned()), is_worth_retrying, "{limit:?}: {lines:?}");
        }
    }

    #[test]
    fn a_strict_limit_that_refuses_a_large_request_shows_nothing_left() {
        let holds = holds([Limit { mode: Mode::Strict, ..tokens(300, Duration::from_secs(60)) }]);
        let states = vec![state(280, 0, Duration::from_secs(1))];
        assert!(
            lines(Admission::Refused { by: 0, states }, &holds).contains(&"x-ratelimit-remaining-tokens: 0".into())
        );
    }

    #[test]
    fn the_most_constrained_limit_is_shown_for_each_kind_and_over_all() {
        let holds = holds([tokens(300, Duration::from_secs(60)), tokens(10_000, DAY), requests(10), slots(2)]);
        let states = vec![
            state(100, 0, Duration::from_secs(20)),
            CounterState { length: DAY, ..state(9_900, 0, Duration::from_secs(3_661)) },
            state(5, 0, Duration::from_millis(20)),
            state(1, 0, Duration::from_secs(1)),
        ];
        assert_eq!(
            lines(Admission::Granted { states }, &holds),
            [
                "x-ratelimit-limit-tokens: 10000",
                "x-ratelimit-remaining-tokens: 100",
                "x-ratelimit-reset-tokens: 1h1m1s",
                "x-ratelimit-limit-requests: 10",
                "x-ratelimit-remaining-requests: 5",
                "x-ratelimit-reset-requests: 20ms",
                "x-ratelimit-limit: 10000, 10000;w=86400, 300;w=60, 10;w=60",
                "x-ratelimit-remaining: 100",
                "x-ratelimit-reset: 3661",
            ]
        );
    }

    fn money(amount: u64, window: Window) -> Limit {
        let prices = Prices { by_model: Default::default(), other: Price::default() };
        Limit { quantity: Quantity::Money(Arc::new(prices)), window, ..limit("money", amount, Mode::Soft) }
    }

    #[test]
    fn money_is_shown_to_the_millionth_and_says_so() {
        let holds = holds([tokens(300, Duration::from_secs(60)), money(1_500_000, Window::Fixed(DAY))]);
        let spent = CounterState { length: DAY, ..state(750_000, 0, Duration::from_secs(7_200)) };
        let lines = lines(Admission::Granted { states: vec![state(100, 0, Duration::from_secs(20)), spent] }, &holds);
        assert_eq!(
            lines[3..],
            [
                "x-ratelimit-limit: 1500000, 1500000;w=86400;unit=millionths, 300;w=60",
                "x-ratelimit-remaining: 750000",
                "x-ratelimit-reset: 7200",
            ]
        );
    }

    #[test]
    fn the_window_of_a_month_is_as_long_as_this_month() {
        let month = Window::Calendar(Calendar { period: Period::Month, zone: jiff::tz::TimeZone::UTC });
        let holds = holds([Limit { window: month, ..limit("month", 300, Mode::Soft) }]);
        let february = CounterState { length: 28 * DAY, ..state(0, 0, DAY) };
        let lines = lines(Admission::Granted { states: vec![february] }, &holds);
        assert!(lines.contains(&"x-ratelimit-limit: 300, 300;w=2419200".to_owned()), "{lines:?}");
    }

    #[test]
    fn while_nothing_is_used_the_shortest_window_is_shown() {
        let holds = holds([tokens(10_000, DAY), tokens(300, Duration::from_secs(60))]);
        let day = CounterState { length: DAY, ..state(0, 0, Duration::from_secs(7_200)) };
        let lines = lines(Admission::Granted { states: vec![day, state(0, 0, Duration::from_secs(20))] }, &holds);
        assert!(lines.contains(&"x-ratelimit-limit: 300, 300;w=60, 10000;w=86400".to_owned()), "{lines:?}");
    }

    #[test]
    fn a_caller_of_low_priority_is_shown_its_own_part_of_a_limit() {
        let mut holds = holds([tokens(300, Duration::from_secs(60))]);
        holds[0].ceiling = 240;
        let lines = lines(Admission::Granted { states: vec![state(0, 0, Duration::from_secs(20))] }, &holds);
        assert_eq!(lines[..2], ["x-ratelimit-limit-tokens: 240", "x-ratelimit-remaining-tokens: 240"]);
    }

    #[test]
    fn a_sliding_window_resets_when_all_of_its_use_has_left_it() {
        let minute = Duration::from_secs(60);
        let holds = holds([Limit { window: Window::Sliding(minute), ..limit("a", 300, Mode::Soft) }]);
        let reset = |settled, previous| {
            let state = CounterState { previous, ..state(settled, 0, Duration::from_secs(20)) };
            lines(Admission::Granted { states: vec![state] }, &holds)[2].clone()
        };
        // The bucket ends in 20 s, and what was used in it counts for up to a minute more.
        assert_eq!(reset(40, 100), "x-ratelimit-reset-tokens: 1m0s");
        assert_eq!(reset(0, 100), "x-ratelimit-reset-tokens: 20s");
    }

    #[test]
    fn a_refusal_for_lack_of_a_slot_says_one_second_and_nothing_of_tokens() {
        let holds = holds([slots(2)]);
        let states = vec![state(0, 2, Duration::from_secs(1))];
        assert_eq!(lines(Admission::Refused { by: 0, states }, &holds), ["retry-after: 1", "retry-after-ms: 1000"]);
    }

    #[test]
    fn a_request_without_limits_gets_no_headers() {
        assert_eq!(lines(Admission::Granted { states: vec![] }, &[]), [""; 0]);
    }

    proptest! {
        #[test]
        fn remaining_is_never_below_zero_nor_above_the_limit(
            amount in 1u64.., settled: u64, held: u64, estimate: u64, strict: bool,
        ) {
            let mode = if strict { Mode::Strict } else { Mode::Soft };
            let limit = Arc::new(Limit { quantity: Quantity::Tokens(Cost::Total), ..limit("a", amount, mode) });
            let hold = hold(&limit, "caller", estimate);
            let state = state(settled, held, Duration::from_secs(1));
            let standing = Standing::new(&hold, &state);
            prop_assert!(standing.remaining() <= amount);
        }
    }
}
