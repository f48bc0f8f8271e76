//! Keys that have nothing left: what the sidecar says of one with a refusal, and what the filter remembers of it, to refuse the
//! key's next requests by itself.
//!
//! Time comes in as a duration since any moment, from a clock that should not go back. If it does, what was learnt is
//! forgotten rather than kept: a key is never refused for longer than [`LONGEST_REFUSAL`] after the sidecar refused it.

use std::collections::HashMap;
use std::time::Duration;

use attache_proto::{ApiError, Dialect, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::digest::KeyDigest;
use crate::verdict::{Caller, Passed};
use crate::wait::{DO_NOT_RETRY, HeaderValue, is_worth_retrying, milliseconds, spoken};

/// For how long a key is refused at most before the sidecar is asked again: a limit may have been raised or reset meanwhile.
pub const LONGEST_REFUSAL: Duration = Duration::from_secs(5);

/// What all requests of a key have to expect until something is left for it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exhausted {
    /// For how long nothing is left.
    #[serde(rename = "refuse_ms", with = "milliseconds")]
    pub refuse_for: Duration,
    /// What is wanting.
    pub kind: Wanting,
    /// The error's message, without the time to wait.
    pub message: String,
    /// What the caller is told to wait.
    #[serde(rename = "retry_after_ms", with = "milliseconds")]
    pub retry_after: Duration,
    /// The answer's headers, `retry-after` among them.
    pub headers: Vec<(String, HeaderValue)>,
}

/// What a key has nothing left of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanting {
    /// Tokens that time refills.
    Tokens,
    /// Requests that time refills.
    Requests,
    /// A budget.
    Budget,
}

impl Wanting {
    /// What an error of this kind lacks; `None` if it is not for lack of anything.
    pub fn of(kind: ErrorKind) -> Option<Self> {
        match kind {
            ErrorKind::RateLimited => Some(Self::Tokens),
            ErrorKind::TooManyRequests => Some(Self::Requests),
            ErrorKind::QuotaExhausted => Some(Self::Budget),
            _ => None,
        }
    }

    fn error(self) -> ErrorKind {
        match self {
            Self::Tokens => ErrorKind::RateLimited,
            Self::Requests => ErrorKind::TooManyRequests,
            Self::Budget => ErrorKind::QuotaExhausted,
        }
    }
}

/// The longest header value that is written or read: a few limits' words. It bounds what is remembered of a key.
const LONGEST_BYTES: usize = 4 * 1024;

impl Exhausted {
    /// As a header value: JSON in ASCII. `None` where it would be too long; then the sidecar goes on refusing by itself.
    pub fn to_header(&self) -> Option<String> {
        let json = serde_json::to_string(self).ok()?;
        let mut ascii = String::with_capacity(json.len());
        for character in json.chars() {
            match character {
                ' '..='~' => ascii.push(character),
                // Only within strings does JSON of ours have such.
                _ => character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| ascii += &format!("\\u{unit:04x}")),
            }
        }
        (ascii.len() <= LONGEST_BYTES).then_some(ascii)
    }

    /// Reads a header value; `None` if it is none that [`Exhausted::to_header`] writes.
    pub fn from_header(value: &[u8]) -> Option<Self> {
        if value.len() > LONGEST_BYTES {
            return None;
        }
        serde_json::from_slice(value).ok()
    }

    /// What the caller of a request is told `elapsed` later.
    fn refusal(&self, dialect: Dialect, elapsed: Duration) -> LimitRefusal {
        let wait = self.retry_after.saturating_sub(elapsed);
        let message = with_wait(&self.message, wait);
        let kind = self.kind.error();
        let headers = self.headers.iter().map(|(name, value)| (name.clone(), value.after(elapsed)));
        let (name, value) = DO_NOT_RETRY;
        let advice = (!is_worth_retrying(kind, wait)).then(|| (name.to_owned(), value.to_owned()));
        LimitRefusal { error: ApiError::new(kind, message), dialect, headers: headers.chain(advice).collect() }
    }
}

/// The message with the time to wait at its end.
pub fn with_wait(message: &str, wait: Duration) -> String {
    format!("{message} Please try again in {}.", spoken(wait))
}

/// An answer that ends a request because of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRefusal {
    error: ApiError,
    dialect: Dialect,
    headers: Vec<(String, String)>,
}

impl LimitRefusal {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.error.status()
    }

    /// The body: JSON in the caller's dialect.
    pub fn body(&self) -> String {
        self.error.body(self.dialect)
    }

    /// The answer's headers.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let limits = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        [("content-type", "application/json")].into_iter().chain(limits)
    }
}

/// The keys that are known to have nothing left, at most [`MOST_KEYS`].
#[derive(Debug, Default)]
pub struct ExhaustedKeys {
    known: HashMap<KeyDigest, Known>,
}

#[derive(Debug)]
struct Known {
    exhausted: Exhausted,
    since: Duration,
}

/// A few megabytes at the worst. Beyond, the sidecar answers, as it does for every key that is not known here.
const MOST_KEYS: usize = 1024;

impl ExhaustedKeys {
    /// Takes note that the sidecar has just refused a request of `caller`.
    pub fn learn(&mut self, caller: &Caller, exhausted: Exhausted, now: Duration) {
        if self.known.len() >= MOST_KEYS {
            self.known.retain(|_, known| known.elapsed(now).is_some());
        }
        let key = caller.digest();
        if self.known.len() < MOST_KEYS || self.known.contains_key(&key) {
            self.known.insert(key, Known { exhausted, since: now });
        }
    }

    /// The answer to a request that the gate let pass, if its key is known to have nothing left. What costs no tokens is
    /// for the sidecar to judge.
    pub fn refusal(&mut self, passed: &Passed, now: Duration) -> Option<LimitRefusal> {
        let caller = passed.caller.as_ref().filter(|_| passed.operation.uses_tokens())?;
        let known = self.known.get(&caller.digest())?;
        let Some(elapsed) = known.elapsed(now) else {
            self.known.remove(&caller.digest());
            return None;
        };
        Some(known.exhausted.refusal(passed.operation.dialect(), elapsed))
    }
}

impl Known {
    /// How long it has been known; `None` once it holds no more.
    fn elapsed(&self, now: Duration) -> Option<Duration> {
        let elapsed = now.checked_sub(self.since)?;
        (elapsed < self.exhausted.refuse_for.min(LONGEST_REFUSAL)).then_some(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use attache_proto::Operation;
    use proptest::prelude::*;

    use super::*;
    use crate::config::KeyEntry;

    const SECOND: Duration = Duration::from_secs(1);

    fn exhausted() -> Exhausted {
        let wait = Duration::from_millis(17_100);
        Exhausted {
            refuse_for: LONGEST_REFUSAL,
            kind: Wanting::Tokens,
            message: "Rate limit reached for this key on tokens per minute: Limit 300, Used 320, Requested 40."
                .to_owned(),
            retry_after: wait,
            headers: vec![
                ("x-ratelimit-limit-tokens".to_owned(), HeaderValue::Fixed("300".to_owned())),
                ("x-ratelimit-reset-tokens".to_owned(), HeaderValue::Spoken(wait)),
                ("retry-after".to_owned(), HeaderValue::Seconds(wait)),
                ("retry-after-ms".to_owned(), HeaderValue::Milliseconds(wait)),
            ],
        }
    }

    fn passed(operation: Operation, key: &str) -> Passed {
        let digest = KeyDigest::of(key.as_bytes());
        let entry = KeyEntry::new(format!("default/{key}"), digest, "acme".to_owned(), Vec::new());
        Passed { operation, caller: Some(Caller::new(Arc::new(entry))) }
    }

    fn chat(key: &str) -> Passed {
        passed(Operation::ChatCompletions, key)
    }

    fn learnt(now: Duration, exhausted: Exhausted) -> ExhaustedKeys {
        let mut keys = ExhaustedKeys::default();
        keys.learn(&chat("a").caller.unwrap(), exhausted, now);
        keys
    }

    #[test]
    fn an_sdk_is_told_not_to_try_again_as_by_the_sidecar() {
        for (kind, seconds, is_told) in
            [(Wanting::Tokens, 60, false), (Wanting::Tokens, 61, true), (Wanting::Budget, 5, true)]
        {
            let wait = Duration::from_secs(seconds);
            let refusal = Exhausted { kind, retry_after: wait, ..exhausted() }.refusal(Dialect::OpenAi, Duration::ZERO);
            assert_eq!(refusal.headers().any(|header| header == DO_NOT_RETRY), is_told, "{kind:?} {seconds}");
        }
    }

    #[test]
    fn the_next_request_of_the_key_gets_the_same_answer_with_the_time_that_is_left() {
        let refusal = learnt(SECOND, exhausted()).refusal(&chat("a"), 3 * SECOND).unwrap();
        assert_eq!(refusal.status(), 429);
        assert_eq!(
            refusal.body(),
            r#"{"error":{"message":"Rate limit reached for this key on tokens per minute: Limit 300, Used 320, Requested 40. Please try again in 16s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#
        );
        assert_eq!(
            refusal.headers().collect::<Vec<_>>(),
            [
                ("content-type", "application/json"),
                ("x-ratelimit-limit-tokens", "300"),
                ("x-ratelimit-reset-tokens", "16s"),
                ("retry-after", "16"),
                ("retry-after-ms", "15100"),
            ]
        );
    }

    #[test]
    fn each_caller_is_told_in_its_own_dialect_what_is_wanting() {
        let told = |kind, dialect| Exhausted { kind, ..exhausted() }.refusal(dialect, SECOND).body();
        for (kind, said) in [
            (Wanting::Tokens, r#""type":"tokens","param":null,"code":"rate_limit_exceeded""#),
            (Wanting::Requests, r#""type":"requests","param":null,"code":"rate_limit_exceeded""#),
            (Wanting::Budget, r#""type":"insufficient_quota","param":null,"code":"insufficient_quota""#),
        ] {
            assert!(told(kind, Dialect::OpenAi).contains(said));
            let anthropic = told(kind, Dialect::Anthropic);
            assert!(
                anthropic.starts_with(r#"{"type":"error","error":{"type":"rate_limit_error","message":"Rate limit"#)
            );
            assert_eq!(Wanting::of(kind.error()), Some(kind));
        }
        assert_eq!(Wanting::of(ErrorKind::Unavailable), None);
    }

    #[test]
    fn other_keys_and_the_list_of_models_are_not_refused() {
        let mut keys = learnt(SECOND, exhausted());
        assert_eq!(keys.refusal(&chat("b"), SECOND), None);
        for free in [Operation::Models, Operation::Model, Operation::CountTokens, Operation::PassThrough] {
            assert_eq!(keys.refusal(&passed(free, "a"), SECOND), None, "{free:?}");
        }
        assert_eq!(keys.refusal(&Passed { caller: None, ..chat("a") }, SECOND), None);
        assert!(keys.refusal(&passed(Operation::Embeddings, "a"), SECOND).is_some());
    }

    #[test]
    fn it_ends_when_something_is_left_and_after_five_seconds_at_the_latest() {
        for (refuse_for, holds) in
            [(2 * SECOND, 2 * SECOND), (3_600 * SECOND, LONGEST_REFUSAL), (Duration::MAX, LONGEST_REFUSAL)]
        {
            let refused = |elapsed| {
                let exhausted = Exhausted { refuse_for, ..exhausted() };
                learnt(SECOND, exhausted).refusal(&chat("a"), SECOND + elapsed).is_some()
            };
            assert!(refused(holds - Duration::from_millis(1)));
            assert!(!refused(holds));
        }
        assert_eq!(
            learnt(SECOND, Exhausted { refuse_for: Duration::ZERO, ..exhausted() }).refusal(&chat("a"), SECOND),
            None
        );
    }

    #[test]
    fn a_clock_that_goes_back_makes_it_forget() {
        let mut keys = learnt(100 * SECOND, exhausted());
        assert_eq!(keys.refusal(&chat("a"), 99 * SECOND), None);
        assert_eq!(keys.refusal(&chat("a"), 100 * SECOND), None);
    }

    #[test]
    fn so_many_keys_are_remembered_and_no_more_until_some_of_them_are_over() {
        let mut keys = ExhaustedKeys::default();
        let mut learn = |index: usize, now| {
            let key = chat(&format!("key-{index}"));
            keys.learn(key.caller.as_ref().unwrap(), exhausted(), now);
            (keys.known.len(), keys.refusal(&key, now).is_some())
        };
        for index in 0..MOST_KEYS {
            assert_eq!(learn(index, index as u32 * Duration::from_millis(1)), (index + 1, true));
        }
        assert_eq!(learn(MOST_KEYS, 2 * SECOND), (MOST_KEYS, false));
        // A key that is known may be told of again.
        assert_eq!(learn(0, 2 * SECOND), (MOST_KEYS, true));
        assert_eq!(learn(MOST_KEYS, LONGEST_REFUSAL + 2 * SECOND - Duration::from_millis(1)), (2, true));
    }

    #[test]
    fn a_header_is_plain_ascii_whatever_the_operators_names_are() {
        let message = "this \u{7f}labél😀\"\\\n".to_owned();
        let written = Exhausted { message, ..exhausted() };
        let header = written.to_header().unwrap();
        assert!(header.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header}");
        assert_eq!(Exhausted::from_header(header.as_bytes()), Some(written));
    }

    #[test]
    fn what_is_too_long_is_neither_written_nor_read() {
        let long = Exhausted { message: "x".repeat(LONGEST_BYTES), ..exhausted() };
        assert_eq!(long.to_header(), None);
        assert_eq!(Exhausted::from_header(serde_json::to_string(&long).unwrap().as_bytes()), None);
    }

    proptest! {
        #[test]
        fn what_is_no_such_header_is_not_believed(value in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Exhausted::from_header(&value), None);
        }
    }
}
