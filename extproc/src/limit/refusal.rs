//! Why a request was refused and when to come back, as the client is told.

use std::fmt::Write;
use std::time::Duration;

use attache_proto::{ApiError, ErrorKind};

use super::headers::spoken;
use super::{Admission, Cost, CounterState, Dimension, Hold, Quantity};

/// A window above this is a budget: nobody's client waits for it to refill.
const LONGEST_RATE_WINDOW: Duration = Duration::from_secs(3_600);

/// When it is not settled use that refuses but requests in flight: they end sooner than the window, at a time nobody knows.
const RETRY_WHILE_HELD: Duration = Duration::from_secs(1);

impl Admission {
    /// The error to the client, if this is a refusal. `holds` are those of the reservation that this answers.
    pub fn refusal(&self, holds: &[Hold]) -> Option<ApiError> {
        let refusal = Refusal::of(self, holds)?;
        Some(ApiError { kind: refusal.kind(), message: refusal.message(), param: None })
    }
}

/// One limit's refusal.
pub(super) struct Refusal<'a> {
    hold: &'a Hold,
    state: CounterState,
    /// After which asking again may help.
    pub(super) retry_after: Duration,
}

impl<'a> Refusal<'a> {
    /// Of the limits that refuse, the one that will refuse longest: coming back earlier is of no use. The first of two.
    pub(super) fn of(admission: &Admission, holds: &'a [Hold]) -> Option<Self> {
        let Admission::Refused { by, states } = admission else {
            return None;
        };
        let refusals = holds
            .iter()
            .zip(states)
            .enumerate()
            .filter(|(index, (hold, state))| index == by || !hold.is_admitted(state));
        let refusals = refusals.map(|(_, (hold, state))| Self::new(hold, *state));
        refusals.reduce(|longest, other| if other.retry_after > longest.retry_after { other } else { longest })
    }

    fn new(hold: &'a Hold, state: CounterState) -> Self {
        let retry_after = match hold.limit.quantity {
            Quantity::Concurrency => RETRY_WHILE_HELD,
            _ if is_settled_use(hold, &state) => state.reset,
            _ => state.reset.min(RETRY_WHILE_HELD),
        };
        Self { hold, state, retry_after }
    }

    fn kind(&self) -> ErrorKind {
        if is_settled_use(self.hold, &self.state) && self.hold.limit.window > LONGEST_RATE_WINDOW {
            return ErrorKind::QuotaExhausted;
        }
        match self.hold.limit.quantity {
            Quantity::Tokens(_) => ErrorKind::RateLimited,
            Quantity::Requests | Quantity::Concurrency => ErrorKind::TooManyRequests,
        }
    }

    fn message(&self) -> String {
        let limit = &self.hold.limit;
        let reached = match self.kind() {
            ErrorKind::QuotaExhausted => "Quota used up",
            _ => "Rate limit reached",
        };
        let used = self.state.settled.saturating_add(self.state.held);
        let mut message = format!(
            "{reached} for {} on {}: Limit {}, Used {used}, Requested {}.",
            subject(&limit.per),
            measure(self.hold),
            limit.amount,
            self.hold.estimate,
        );
        // Writing to a string cannot fail.
        let _ = if !limit.admits(0, 0, self.hold.estimate) {
            write!(message, " The request alone is above the limit: shorten the prompt or lower max_tokens.")
        } else {
            write!(message, " Please try again in {}.", spoken(self.retry_after))
        };
        message
    }
}

/// Whether the limit would refuse even if nothing else were in flight.
fn is_settled_use(hold: &Hold, state: &CounterState) -> bool {
    hold.limit.quantity != Quantity::Concurrency && !hold.limit.admits(state.settled, 0, hold.estimate)
}

/// `this key and this model`: whom the limit counts together. The values are not repeated: they are the client's own.
fn subject(per: &[Dimension]) -> String {
    if per.is_empty() {
        return "all callers".to_owned();
    }
    let words = per.iter().map(|dimension| match dimension {
        Dimension::Key => "this key".to_owned(),
        Dimension::Tenant => "this tenant".to_owned(),
        Dimension::Model => "this model".to_owned(),
        Dimension::Endpoint => "this endpoint".to_owned(),
        Dimension::Header(name) => format!("this {name}"),
    });
    words.collect::<Vec<_>>().join(" and ")
}

/// `tokens per minute`
fn measure(hold: &Hold) -> String {
    let unit = match hold.limit.quantity {
        Quantity::Tokens(Cost::Total) => "tokens",
        Quantity::Tokens(Cost::Input) => "input tokens",
        Quantity::Tokens(Cost::Output) => "output tokens",
        Quantity::Tokens(Cost::CachedInput) => "cached input tokens",
        Quantity::Tokens(Cost::CacheCreationInput) => "cache creation tokens",
        Quantity::Tokens(Cost::Reasoning) => "reasoning tokens",
        Quantity::Requests => "requests",
        Quantity::Concurrency => return "requests in flight".to_owned(),
    };
    match hold.limit.window.as_secs() {
        1 => format!("{unit} per second"),
        60 => format!("{unit} per minute"),
        3_600 => format!("{unit} per hour"),
        86_400 => format!("{unit} per day"),
        604_800 => format!("{unit} per week"),
        seconds if seconds % 86_400 == 0 => format!("{unit} per {} days", seconds / 86_400),
        _ => format!("{unit} per {}", spoken(hold.limit.window)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{hold, limit};
    use super::super::{Limit, Mode};
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(86_400);

    fn per(per: &[Dimension], window: Duration) -> Limit {
        Limit { per: per.to_vec(), window, ..limit("a", 300, Mode::Soft) }
    }

    fn refused<const N: usize>(limits: [(Limit, u64, u64, Duration); N]) -> (ApiError, Duration) {
        let holds: Vec<_> = limits.iter().map(|(limit, ..)| hold(&Arc::new(limit.clone()), "caller", 40)).collect();
        let states: Vec<_> = limits
            .iter()
            .map(|(_, settled, held, reset)| CounterState { settled: *settled, held: *held, reset: *reset })
            .collect();
        let by = holds.iter().zip(&states).position(|(hold, state)| !hold.is_admitted(state)).unwrap();
        let admission = Admission::Refused { by, states };
        let retry_after = Refusal::of(&admission, &holds).unwrap().retry_after;
        (admission.refusal(&holds).unwrap(), retry_after)
    }

    #[test]
    fn a_refusal_says_for_whom_how_much_and_until_when() {
        let limit = per(&[Dimension::Key, Dimension::Header("x-team".into())], MINUTE);
        let (error, _) = refused([(limit, 320, 0, Duration::from_millis(17_100))]);
        assert_eq!(error.kind, ErrorKind::RateLimited);
        assert_eq!(
            error.message,
            "Rate limit reached for this key and this x-team on tokens per minute: Limit 300, Used 320, Requested 40. \
             Please try again in 18s."
        );
    }

    #[test]
    fn a_window_above_an_hour_is_a_budget_that_is_gone() {
        let (error, _) = refused([(per(&[Dimension::Tenant], DAY), 300, 20, Duration::from_secs(7_200))]);
        assert_eq!(error.kind, ErrorKind::QuotaExhausted);
        assert_eq!(
            error.message,
            "Quota used up for this tenant on tokens per day: Limit 300, Used 320, Requested 40. Please try again in 2h0m0s."
        );
        let (error, _) = refused([(per(&[], Duration::from_secs(3_600)), 320, 0, Duration::from_secs(9))]);
        assert_eq!(error.kind, ErrorKind::RateLimited);
    }

    #[test]
    fn when_only_requests_in_flight_refuse_the_client_comes_back_soon() {
        let (error, retry_after) = refused([(per(&[], DAY), 10, 512, Duration::from_secs(7_200))]);
        assert_eq!(error.kind, ErrorKind::RateLimited);
        assert_eq!(retry_after, Duration::from_secs(1));
        let (_, retry_after) = refused([(per(&[], MINUTE), 10, 512, Duration::from_millis(20))]);
        assert_eq!(retry_after, Duration::from_millis(20));
    }

    #[test]
    fn of_several_limits_that_refuse_the_one_that_refuses_longest_speaks() {
        let (error, retry_after) = refused([
            (per(&[Dimension::Key], MINUTE), 320, 0, Duration::from_secs(18)),
            (per(&[Dimension::Tenant], DAY), 320, 0, Duration::from_secs(7_200)),
        ]);
        assert_eq!(error.kind, ErrorKind::QuotaExhausted);
        assert_eq!(retry_after, Duration::from_secs(7_200));
    }

    #[test]
    fn a_request_that_can_never_fit_is_told_what_to_do() {
        let limit = Limit { mode: Mode::Strict, amount: 30, ..per(&[], MINUTE) };
        let (error, _) = refused([(limit, 0, 0, Duration::from_secs(18))]);
        assert_eq!(
            error.message,
            "Rate limit reached for all callers on tokens per minute: Limit 30, Used 0, Requested 40. \
             The request alone is above the limit: shorten the prompt or lower max_tokens."
        );
    }

    #[test]
    fn a_lack_of_slots_is_told_as_requests_in_flight() {
        let limit = Limit { quantity: Quantity::Concurrency, amount: 8, ..per(&[Dimension::Endpoint], DAY) };
        let (error, retry_after) = refused([(limit, 0, 8, Duration::from_secs(7_200))]);
        assert_eq!(error.kind, ErrorKind::TooManyRequests);
        assert_eq!(retry_after, Duration::from_secs(1));
        assert!(
            error.message.starts_with("Rate limit reached for this endpoint on requests in flight: Limit 8, Used 8, ")
        );
        assert!(error.message.ends_with("Please try again in 1s."));
    }

    #[test]
    fn a_grant_is_no_refusal() {
        assert_eq!(Admission::Granted { states: vec![] }.refusal(&[]), None);
    }
}
