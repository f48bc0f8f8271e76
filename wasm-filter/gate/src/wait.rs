//! A wait as headers and sentences put it, always rounded up: whoever waits that long does not come early.

use std::time::Duration;

use attache_proto::ErrorKind;
use serde::{Deserialize, Serialize};

/// What a rate-limit header says, as long as it may be said later than it was found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeaderValue {
    /// Something that does not change with time.
    Fixed(String),
    /// A wait as [`spoken`] puts it.
    Spoken(#[serde(with = "milliseconds")] Duration),
    /// A wait in whole seconds.
    Seconds(#[serde(with = "milliseconds")] Duration),
    /// A wait in whole milliseconds.
    Milliseconds(#[serde(with = "milliseconds")] Duration),
}

impl HeaderValue {
    /// What it says when so much of the wait is over. No wait is ever shown as none.
    pub fn after(&self, elapsed: Duration) -> String {
        let left = |wait: &Duration| wait.saturating_sub(elapsed);
        match self {
            Self::Fixed(text) => text.clone(),
            Self::Spoken(wait) => spoken(left(wait)),
            Self::Seconds(wait) => whole_seconds(left(wait)).to_string(),
            Self::Milliseconds(wait) => whole_milliseconds(left(wait)).to_string(),
        }
    }
}

/// The longest wait that a client should spend inside one call. Official SDKs sleep for as long as `retry-after` says, some of
/// them for hours: openai-python alone gives up above 60 s by itself.
pub const LONGEST_RETRY_WAIT: Duration = Duration::from_secs(60);

/// What keeps the SDKs of OpenAI and Anthropic from trying again by themselves: they obey it before they look at the status.
pub const DO_NOT_RETRY: (&str, &str) = ("x-should-retry", "false");

/// Whether a client that is refused with such an error may try again within the same call: not where a budget is gone, and not
/// where the wait is long.
pub fn is_worth_retrying(kind: ErrorKind, wait: Duration) -> bool {
    kind != ErrorKind::QuotaExhausted && wait <= LONGEST_RETRY_WAIT
}

/// A duration as OpenAI writes it: `20ms`, `1s`, `6m0s`, `1h0m0s`.
pub fn spoken(duration: Duration) -> String {
    let milliseconds = whole_milliseconds(duration);
    if milliseconds < 1_000 {
        return format!("{milliseconds}ms");
    }
    let seconds = whole_seconds(duration);
    let (hours, minutes, rest) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// Seconds, at least one.
pub fn whole_seconds(duration: Duration) -> u128 {
    duration.as_nanos().div_ceil(1_000_000_000).max(1)
}

/// Milliseconds, at least one.
pub fn whole_milliseconds(duration: Duration) -> u128 {
    duration.as_nanos().div_ceil(1_000_000).max(1)
}

/// Durations in JSON.
pub(crate) mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        // Rounded up, as they are shown. 64 bits hold half a billion years of them.
        serializer.serialize_u64(duration.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_to_wait_for_more_than_a_minute_or_for_a_budget() {
        let is_worth_it = |kind, seconds| is_worth_retrying(kind, Duration::from_secs(seconds));
        assert!(is_worth_it(ErrorKind::RateLimited, 60) && is_worth_it(ErrorKind::TooManyRequests, 1));
        assert!(!is_worth_it(ErrorKind::RateLimited, 61) && !is_worth_it(ErrorKind::TooManyRequests, 3_600));
        assert!(!is_worth_it(ErrorKind::QuotaExhausted, 1));
    }

    #[test]
    fn durations_read_as_openai_writes_them() {
        let spoken = |ms| spoken(Duration::from_millis(ms));
        assert_eq!(spoken(0), "1ms");
        assert_eq!(spoken(20), "20ms");
        assert_eq!(spoken(1_000), "1s");
        assert_eq!(spoken(17_001), "18s");
        assert_eq!(spoken(360_000), "6m0s");
        assert_eq!(spoken(3_600_000), "1h0m0s");
    }

    #[test]
    fn a_wait_that_is_told_later_is_shorter_and_never_none() {
        let wait = Duration::from_millis(17_100);
        let told = |value: HeaderValue, elapsed| value.after(Duration::from_millis(elapsed));
        assert_eq!(told(HeaderValue::Spoken(wait), 0), "18s");
        assert_eq!(told(HeaderValue::Spoken(wait), 16_400), "700ms");
        assert_eq!(told(HeaderValue::Seconds(wait), 1_200), "16");
        assert_eq!(told(HeaderValue::Seconds(wait), 60_000), "1");
        assert_eq!(told(HeaderValue::Milliseconds(wait), 17_099), "1");
        assert_eq!(told(HeaderValue::Milliseconds(wait), 17_100), "1");
        assert_eq!(told(HeaderValue::Fixed("300".to_owned()), 17_100), "300");
    }
}
