//! The wait of a refused request for its own body, whose end leaves an HTTP/1.1 connection usable.
//!
//! Whoever keeps it keeps nothing of the body. It assumes of the clock only what [`crate::ExhaustedKeys`] does: one that goes
//! back ends the wait.

use std::time::Duration;

use crate::Gate;
use crate::config::AnswerTime;
use crate::head::{ContentLength, RequestHead};

/// That a refusal is held back until the request's body has come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyWait {
    since: Duration,
}

/// The longest body that is waited for: prompts that are sent often are smaller, and a larger one costs more than a new
/// connection.
const LONGEST_BODY_BYTES: u64 = 64 * 1024;

/// As long as Envoy waits for the rest of a request's headers (`request_headers_timeout`).
const LONGEST_WAIT: Duration = Duration::from_secs(10);

impl Gate {
    /// How to wait before the request with this head is refused; `None` to refuse it at once, because its body is long, may be
    /// long, or will not be sent before there is an answer.
    pub fn body_wait(&self, head: &RequestHead<'_>, now: Duration) -> Option<BodyWait> {
        let is_small = matches!(head.content_length(), ContentLength::Bytes(bytes) if bytes <= LONGEST_BODY_BYTES);
        let waits = self.answers == AnswerTime::AfterBody && is_small && !head.expects();
        waits.then_some(BodyWait { since: now })
    }
}

impl BodyWait {
    /// Whether it has lasted too long: a client that sends a byte now and then is not waited for.
    pub fn is_over(&self, now: Duration) -> bool {
        now.checked_sub(self.since).is_none_or(|waited| waited >= LONGEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Access, GateConfig};

    const NOW: Duration = Duration::from_secs(100);

    fn wait(answers: AnswerTime, headers: &[(&str, &str)]) -> Option<BodyWait> {
        let gate = Gate::new(GateConfig { answers, ..GateConfig::new(Access::Open) }).unwrap();
        gate.body_wait(&RequestHead::read(headers.iter().map(|(name, value)| (*name, value.as_bytes()))), NOW)
    }

    #[test]
    fn a_body_is_waited_for_where_the_configuration_says_so() {
        let headers = [("content-length", "200")];
        assert_eq!(wait(AnswerTime::AfterBody, &headers), Some(BodyWait { since: NOW }));
        assert_eq!(wait(AnswerTime::AtOnce, &headers), None);
    }

    #[test]
    fn only_a_small_body_of_known_length_is_waited_for() {
        let waits = |headers: &[_]| wait(AnswerTime::AfterBody, headers).is_some();
        for length in ["0", "1", "65536", "00065536"] {
            assert!(waits(&[("Content-Length", length)]), "{length}");
        }
        for length in ["65537", "1048576", "18446744073709551617", "", "-1", "+1", "1,1", "x"] {
            assert!(!waits(&[("content-length", length)]), "{length}");
        }
        assert!(!waits(&[]));
        assert!(!waits(&[("transfer-encoding", "chunked")]));
        assert!(!waits(&[("content-length", "1"), ("content-length", "1")]));
    }

    #[test]
    fn a_client_that_waits_for_an_answer_gets_it_at_once() {
        for expect in ["100-continue", "100-Continue", "something"] {
            assert_eq!(wait(AnswerTime::AfterBody, &[("content-length", "1"), ("Expect", expect)]), None);
        }
    }

    #[test]
    fn a_wait_ends_after_ten_seconds_or_when_the_clock_goes_back() {
        let wait = BodyWait { since: NOW };
        for (now, is_over) in
            [(NOW, false), (NOW + LONGEST_WAIT - Duration::from_nanos(1), false), (NOW + LONGEST_WAIT, true)]
        {
            assert_eq!(wait.is_over(now), is_over, "{now:?}");
        }
        assert!(wait.is_over(NOW - Duration::from_nanos(1)));
    }
}
