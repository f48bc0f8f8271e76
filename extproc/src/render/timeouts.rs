//! How long Envoy waits for what, once, since the order matters.
//!
//! While a request comes in, up to three clocks run, all from the last piece of it: [`REQUEST_IDLE`] of the route, and with
//! STREAMED bodies the [`MESSAGE_STREAMED`] of ext_proc, as every message waits there until the sidecar has seen the whole body.
//! The first to ring says what the client is told. A body that pauses must be the client's 408, so the idle timeout comes first;
//! then a sidecar that hangs, which is a 504 if the request is complete (Envoy tells the two apart). Both stand well above what
//! the sidecar itself may take to decide.
//!
//! With BUFFERED bodies no message waits while a body comes in: [`MESSAGE_BUFFERED`] bounds the sidecar alone.

use std::time::Duration;

use crate::config::Config;

/// The longest silence amid a request, on the way in.
pub(super) const REQUEST_IDLE: Duration = Duration::from_secs(15);

/// `message_timeout` where bodies are STREAMED. A sidecar that hangs is given up after it: the 504 of [`REQUEST_IDLE`] has to pass
/// the sidecar, too, so it gets out no earlier.
pub(super) const MESSAGE_STREAMED: Duration = Duration::from_secs(20);

/// `message_timeout` where bodies are BUFFERED.
pub(super) const MESSAGE_BUFFERED: Duration = Duration::from_secs(10);

/// The longest silence of a stream: above the wait of every client for an answer that is not streamed (OpenAI's SDKs give up after
/// 600 s), and never below a timeout that a rule promises.
pub(super) fn stream_idle(config: &Config) -> Duration {
    let rules = config.routes.iter().flat_map(|route| &route.rules);
    let longest = rules.filter_map(|rule| rule.request_timeout).max().unwrap_or_default();
    LEAST_STREAM_IDLE.max(longest.saturating_add(Duration::from_secs(60)))
}

const LEAST_STREAM_IDLE: Duration = Duration::from_secs(900);

/// In Envoy's and Envoy Gateway's way of writing.
pub(super) fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::RedisOptions;

    /// What a timer may be late on a busy machine.
    const APART: Duration = Duration::from_secs(5);

    #[test]
    fn a_client_that_pauses_is_told_before_the_sidecar_is_given_up() {
        assert!(REQUEST_IDLE + APART <= MESSAGE_STREAMED);
        assert!(MESSAGE_STREAMED + APART <= LEAST_STREAM_IDLE);
        assert!(MESSAGE_BUFFERED + APART <= LEAST_STREAM_IDLE);
    }

    #[test]
    fn the_sidecar_decides_long_before_anybody_gives_it_up() {
        // A reservation, and four more for shorter answers.
        let ledger = RedisOptions::default().deadline * 5;
        assert!(ledger + APART <= REQUEST_IDLE && ledger + APART <= MESSAGE_BUFFERED);
    }
}
