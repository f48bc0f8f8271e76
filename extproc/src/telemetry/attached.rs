//! Whether traffic really comes through us: the last ext_proc stream, and whether it could be served.
//!
//! It says what was seen and no more. A sidecar that nobody has asked yet is not attached, one that Envoy asks in a mode that
//! cannot be served is not either; one that was asked an hour ago still is, and the time of the last stream is there to judge
//! by. Whether requests go *past* the sidecar it cannot see: that is in Envoy's configuration, which `attache doctor` reads.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::exchange::Profile;

/// The figures.
#[derive(Debug)]
pub struct Attached {
    started: SystemTime,
    attached: Gauge,
    last_stream: Gauge,
    streams: Family<ModeLabels, Counter>,
    refused: Counter,
    last_refusal: Mutex<Option<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModeLabels {
    request_body: &'static str,
}

/// What was seen, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Seconds since the sidecar started, with which all of this began.
    pub started_seconds_ago: u64,
    /// Whether the last stream could be served.
    pub is_attached: bool,
    /// Seconds since the last stream began; `None` if there was none.
    pub last_stream_seconds_ago: Option<u64>,
    /// Streams that could be served, by how Envoy sends the bodies of their requests.
    pub streams: [(&'static str, u64); 2],
    /// Streams that could not.
    pub refused: u64,
    /// Why the last of those could not.
    pub last_refusal: Option<String>,
}

const STREAMED: ModeLabels = ModeLabels { request_body: "streamed" };
const BUFFERED: ModeLabels = ModeLabels { request_body: "buffered" };

impl Attached {
    /// Of a sidecar that started then.
    pub(super) fn new(started: SystemTime) -> Self {
        Self {
            started,
            attached: Gauge::default(),
            last_stream: Gauge::default(),
            streams: Family::default(),
            refused: Counter::default(),
            last_refusal: Mutex::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "attached",
            "1 if the last ext_proc stream of Envoy could be served, 0 if it could not or there was none",
            self.attached.clone(),
        );
        registry.register_with_unit(
            "last_stream_timestamp",
            "When the last ext_proc stream began, since 1970; 0 if there was none",
            Unit::Seconds,
            self.last_stream.clone(),
        );
        registry.register(
            "streams_served",
            "Streams that could be served, by how Envoy sends request bodies",
            self.streams.clone(),
        );
        registry.register(
            "streams_refused",
            "Streams of an Envoy that is configured in a way that cannot be served",
            self.refused.clone(),
        );
        // On the page from the beginning, so that a rule over them has something to start from.
        for mode in [&STREAMED, &BUFFERED] {
            self.streams.get_or_create(mode).inc_by(0);
        }
    }

    /// A stream began in a mode that we can serve.
    pub fn served(&self, profile: Profile, now: SystemTime) {
        let mode = match profile {
            Profile::Streamed => STREAMED,
            Profile::Buffered => BUFFERED,
        };
        self.streams.get_or_create(&mode).inc();
        self.last_stream.set(seconds(now));
        self.attached.set(1);
    }

    /// A stream began that we cannot serve, for that reason.
    pub fn refused(&self, reason: &str, now: SystemTime) {
        self.refused.inc();
        self.last_stream.set(seconds(now));
        self.attached.set(0);
        *self.last_refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
    }

    /// What was seen until now.
    pub fn at(&self, now: SystemTime) -> Attachment {
        let last = self.last_stream.get();
        Attachment {
            started_seconds_ago: now.duration_since(self.started).unwrap_or_default().as_secs(),
            is_attached: self.attached.get() == 1,
            last_stream_seconds_ago: (last > 0).then(|| u64::try_from(seconds(now).saturating_sub(last)).unwrap_or(0)),
            streams: [&STREAMED, &BUFFERED].map(|mode| (mode.request_body, self.streams.get_or_create(mode).get())),
            refused: self.refused.get(),
            last_refusal: self.last_refusal.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn attached_is_who_could_serve_the_last_stream() {
        let start = UNIX_EPOCH + Duration::from_secs(1_000);
        let attached = Attached::new(start);
        let at = |after: u64| attached.at(start + Duration::from_secs(after));
        assert_eq!((at(0).is_attached, at(0).last_stream_seconds_ago), (false, None));
        attached.served(Profile::Streamed, start);
        assert_eq!(at(7).started_seconds_ago, 7);
        assert_eq!((at(7).is_attached, at(7).last_stream_seconds_ago), (true, Some(7)));
        attached.refused("request_body_mode must be", start + Duration::from_secs(8));
        let seen = at(9);
        assert_eq!((seen.is_attached, seen.last_stream_seconds_ago, seen.refused), (false, Some(1), 1));
        assert_eq!(seen.last_refusal.as_deref(), Some("request_body_mode must be"));
        attached.served(Profile::Buffered, start + Duration::from_secs(10));
        assert_eq!((at(9).is_attached, at(9).last_stream_seconds_ago), (true, Some(0)), "clocks go back");
        assert_eq!(at(9).streams, [("streamed", 1), ("buffered", 1)]);
    }
}
