//! Why a request was refused and when to come back, as the client is told.

use std::time::Duration;

use attache_gate::{spoken, with_wait};
use attache_proto::{ApiError, ErrorKind};

use super::{Cost, CounterState, Dimension, Hold, Limit, Mode, Quantity, Refused, Window};

/// A window above this is a budget: nobody's client waits for it to refill.
const LONGEST_RATE_WINDOW: Duration = Duration::from_secs(3_600);

/// When it is not settled use that refuses but requests in flight: they end sooner than the window, at a time nobody knows.
const RETRY_WHILE_HELD: Duration = Duration::from_secs(1);

impl Refused {
    /// The error to the client.
    pub fn error(&self) -> ApiError {
        match longest(self.standings()) {
            Some(refusal) => ApiError { kind: refusal.kind(), message: refusal.message(), param: None },
            None => ApiError::new(ErrorKind::RateLimited, "over a limit"),
        }
    }

    /// The error behind an answer that may not go on. The request itself was admitted.
    pub fn error_of_answer(&self) -> ApiError {
        match longest(self.standings()) {
            Some(refusal) => ApiError { kind: refusal.kind(), message: refusal.message_of_answer(), param: None },
            None => self.error(),
        }
    }

    /// Whether the same request may be admitted later. One that alone is above a limit is refused for ever.
    pub(super) fn can_be_met(&self) -> bool {
        longest(self.standings()).is_none_or(|refusal| refusal.is_met_by_waiting())
    }

    /// After which asking again may help.
    pub fn retry_after(&self) -> Duration {
        longest(self.standings()).map_or(RETRY_WHILE_HELD, |refusal| refusal.retry_after)
    }
}

/// Of the limits that refuse, the one that will refuse longest: coming back earlier is of no use. The first of two.
pub(super) fn longest<'a>(standings: impl Iterator<Item = (&'a Hold, &'a CounterState)>) -> Option<Refusal<'a>> {
    standings
        .filter(|(hold, state)| hold.is_refused(state))
        .map(|(hold, state)| Refusal { hold, state: *state, retry_after: retry_after(hold, state) })
        .reduce(|longest, other| if other.retry_after > longest.retry_after { other } else { longest })
}

/// After which a limit that has no room for this request may have some.
pub(super) fn retry_after(hold: &Hold, state: &CounterState) -> Duration {
    if !is_settled_use(hold, state) {
        return state.left.min(RETRY_WHILE_HELD);
    }
    let target = match hold.limit.admission() {
        Mode::Soft | Mode::Check => hold.ceiling.saturating_sub(1),
        Mode::Strict => hold.ceiling.saturating_sub(hold.amount()),
    };
    state.until_used(target, hold.limit.window.slides()).max(Duration::from_millis(1))
}

/// After which nothing is used any more of a limit, if nobody asks: a fixed window's end, and where it slides the moment when
/// the last of its use has left it. More than zero, at most the window's length.
pub(crate) fn until_empty(hold: &Hold, state: &CounterState) -> Duration {
    match state.used() {
        0 => state.left,
        _ => state.until_used(0, hold.limit.window.slides()),
    }
}

/// After which a limit that has nothing left may admit the smallest of requests; `None` while it has something left.
pub(crate) fn until_room(hold: &Hold, state: &CounterState) -> Option<Duration> {
    let smallest = Hold { estimate: 1, ..hold.clone() };
    (!smallest.fits(state)).then(|| retry_after(&smallest, state))
}

/// One limit's refusal.
pub(super) struct Refusal<'a> {
    hold: &'a Hold,
    state: CounterState,
    pub(super) retry_after: Duration,
}

impl Refusal<'_> {
    pub(super) fn kind(&self) -> ErrorKind {
        if is_settled_use(self.hold, &self.state) && self.hold.limit.window.longest() > LONGEST_RATE_WINDOW {
            return ErrorKind::QuotaExhausted;
        }
        match self.hold.limit.quantity {
            Quantity::Tokens(_) | Quantity::Weighted(_) | Quantity::Money(_) => ErrorKind::RateLimited,
            Quantity::Requests | Quantity::Concurrency => ErrorKind::TooManyRequests,
        }
    }

    fn message(&self) -> String {
        let reason = self.reason();
        if self.is_met_by_waiting() {
            with_wait(&reason, self.retry_after)
        } else {
            format!("{reason} The request alone is above the limit: shorten the prompt or lower max_tokens.")
        }
    }

    fn is_met_by_waiting(&self) -> bool {
        self.hold.limit.admission().admits(self.hold.ceiling, 0, 0, self.hold.amount())
    }

    /// Without a time: what the answer itself holds is free again at once, and is of no use to one that needs more.
    fn message_of_answer(&self) -> String {
        let limit = amount(&self.hold.limit.quantity, self.hold.ceiling);
        format!(
            "{}: Limit {limit}. The answer ends here, as nothing more is left for it: ask for less, or later.",
            self.what()
        )
    }

    /// What is reached, and for whom.
    fn what(&self) -> String {
        let reached = match self.kind() {
            ErrorKind::QuotaExhausted => "Quota used up",
            _ => "Rate limit reached",
        };
        format!("{reached} for {} on {}", subject(&self.hold.limit.per), measure(&self.hold.limit))
    }

    /// The message, but for what to do.
    pub(super) fn reason(&self) -> String {
        let read = |count: u64| amount(&self.hold.limit.quantity, count);
        format!(
            "{}: Limit {}, Used {}, Requested {}.",
            self.what(),
            read(self.hold.ceiling),
            read(self.state.used().saturating_add(self.state.held)),
            read(self.hold.estimate),
        )
    }
}

/// Whether the limit would refuse even if nothing else were in flight.
fn is_settled_use(hold: &Hold, state: &CounterState) -> bool {
    hold.limit.quantity != Quantity::Concurrency && !hold.fits(&CounterState { held: 0, ..*state })
}

/// A count as people read it: `1200`, `0.25`, rounded up to the smallest fraction that is counted.
pub(crate) fn amount(quantity: &Quantity, count: u64) -> String {
    let scale = quantity.scale();
    let (whole, fraction) = (count / scale, count % scale);
    if fraction == 0 {
        return whole.to_string();
    }
    let digits = scale.ilog10() as usize;
    format!("{whole}.{fraction:0digits$}").trim_end_matches('0').to_owned()
}

/// `this key and this model`: whom the limit counts together. The values are not repeated: they are the client's own.
pub(crate) fn subject(per: &[Dimension]) -> String {
    if per.is_empty() {
        return "all callers".to_owned();
    }
    let words = per.iter().map(|dimension| match dimension {
        Dimension::Key => "this key".to_owned(),
        Dimension::Tenant => "this tenant".to_owned(),
        Dimension::Model => "this model".to_owned(),
        Dimension::Route => "this endpoint".to_owned(),
        Dimension::ServedModel => "this served model".to_owned(),
        Dimension::ModelClass => "this model class".to_owned(),
        Dimension::Header(name) | Dimension::Label(name) => format!("this {name}"),
    });
    words.collect::<Vec<_>>().join(" and ")
}

/// `tokens per minute`
pub(crate) fn measure(limit: &Limit) -> String {
    let unit = match limit.quantity {
        Quantity::Tokens(Cost::Total) => "tokens",
        Quantity::Tokens(Cost::Input) => "input tokens",
        Quantity::Tokens(Cost::Output) => "output tokens",
        Quantity::Tokens(Cost::CachedInput) => "cached input tokens",
        Quantity::Tokens(Cost::CacheCreationInput) => "cache creation tokens",
        Quantity::Tokens(Cost::Reasoning) => "reasoning tokens",
        Quantity::Weighted(_) => "weighted tokens",
        Quantity::Money(_) => "spending",
        Quantity::Requests => "requests",
        Quantity::Concurrency => return "requests in flight".to_owned(),
    };
    let length = match &limit.window {
        Window::Calendar(calendar) => return format!("{unit} per {}", calendar.period.name()),
        Window::Sliding(length) | Window::Fixed(length) => *length,
    };
    match length.as_secs() {
        1 => format!("{unit} per second"),
        60 => format!("{unit} per minute"),
        3_600 => format!("{unit} per hour"),
        86_400 => format!("{unit} per day"),
        604_800 => format!("{unit} per week"),
        seconds if seconds % 86_400 == 0 => format!("{unit} per {} days", seconds / 86_400),
        _ => format!("{unit} per {}", spoken(length)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{hold, limit, request};
    use super::super::{Mode, Price, Prices};
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(86_400);

    fn per(per: &[Dimension], window: Duration) -> Limit {
        Limit { per: per.to_vec(), window: Window::Fixed(window), ..limit("a", 300, Mode::Soft) }
    }

    fn refused<const N: usize>(limits: [(Limit, u64, u64, Duration); N]) -> (ApiError, Duration) {
        let holds: Vec<_> = limits.iter().map(|(limit, ..)| hold(&Arc::new(limit.clone()), "caller", 40)).collect();
        let states: Vec<_> = limits
            .iter()
            .map(|(_, settled, held, left)| {
                Some(CounterState { settled: *settled, held: *held, left: *left, ..CounterState::empty() })
            })
            .collect();
        let refused = Refused { request: Arc::new(request(holds)), by: 0, states };
        (refused.error(), refused.retry_after())
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
        let limit = Limit { quantity: Quantity::Concurrency, amount: 8, ..per(&[Dimension::Route], DAY) };
        let (error, retry_after) = refused([(limit, 0, 8, Duration::from_secs(7_200))]);
        assert_eq!(error.kind, ErrorKind::TooManyRequests);
        assert_eq!(retry_after, Duration::from_secs(1));
        assert!(
            error.message.starts_with("Rate limit reached for this endpoint on requests in flight: Limit 8, Used 8, ")
        );
        assert!(error.message.ends_with("Please try again in 1s."));
    }

    #[test]
    fn money_and_weighted_tokens_read_as_people_write_them() {
        let prices = Prices { by_model: Default::default(), other: Price::default() };
        let money = Quantity::Money(Arc::new(prices));
        let read = [1_000_000, 1_250_000, 1, 0].map(|count| amount(&money, count));
        assert_eq!(read, ["1", "1.25", "0.000001", "0"]);
        assert_eq!(amount(&Quantity::Requests, 320), "320");
    }
}
