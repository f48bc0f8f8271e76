//! One attachment in figures: the settings that decide what gets through, for people and for programs.

use std::collections::BTreeSet;

use serde::Serialize;

use super::checks::limits::shown_bytes;
use super::finding::counted;
use super::json::Json;
use super::scene::{BodyMode, Scene};

/// Where the sidecar is attached, and with which limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// The listener, and the filter chain where it has several.
    pub place: String,
    /// The name of the sidecar's filter.
    pub ext_proc: String,
    /// The cluster that it asks.
    pub cluster: String,
    /// The name of the Wasm filter, if it is there.
    pub wasm: Option<String>,
    /// The HTTP filters in the order in which requests pass them.
    pub order: Vec<String>,
    /// How many routes requests come in by, and on how many of them the sidecar is asked.
    pub ways_in: usize,
    /// See `ways_in`.
    pub ways_in_attached: usize,
    /// How many routes the sidecar's choice leads to.
    pub targets: usize,
    /// `STREAMED`, `BUFFERED`, `NONE` or another.
    pub request_body: String,
    /// The same of answers.
    pub response_body: String,
    /// How long Envoy waits for the sidecar to answer a message, in milliseconds.
    pub message_timeout_ms: u64,
    /// Whether a stream that fails is none of the client's business (`failure_mode_allow`).
    pub failure_mode_allow: bool,
    /// What becomes of requests and of answers under way when the sidecar goes, in words.
    pub without_sidecar: String,
    /// The least that Envoy holds of a body, over the ways in and the versions of HTTP, in bytes.
    pub buffer_limit_bytes: Option<u64>,
    /// The shortest time after which a silent answer is cut, over the targets, in seconds; 0 is never.
    pub idle_timeout_s: Option<u64>,
    /// `max_requests` of the sidecar's cluster.
    pub sidecar_max_requests: u64,
}

impl Attachment {
    pub(super) fn of(scene: &Scene<'_>) -> Self {
        let limits = scene.entries().flat_map(|route| scene.holds(route)).map(|hold| hold.bytes);
        let idle = scene.targets().map(|route| scene.idle_timeout(route).as_secs());
        let cluster = scene.proxy.clusters.get(scene.sidecar_cluster());
        let thresholds = cluster.map_or(&[][..], |cluster| cluster.list("circuit_breakers.thresholds"));
        let ordinary = thresholds.iter().find(|threshold| matches!(threshold.text("priority"), "" | "DEFAULT"));
        Self {
            place: scene.gateway.place.clone(),
            ext_proc: scene.ext_proc.name.to_owned(),
            cluster: scene.sidecar_cluster().to_owned(),
            wasm: scene.wasm.map(|(filter, _)| filter.name.to_owned()),
            order: scene.gateway.filters.iter().map(|filter| filter.name.to_owned()).collect(),
            ways_in: scene.ways_in().count(),
            ways_in_attached: scene.entries().count(),
            targets: scene.targets().count(),
            request_body: shown(scene.request_body(None)),
            response_body: shown(scene.response_body(None)),
            message_timeout_ms: u64::try_from(scene.message_timeout().as_millis()).unwrap_or(u64::MAX),
            failure_mode_allow: scene.fails_open(None),
            without_sidecar: without_sidecar(scene),
            buffer_limit_bytes: limits.min(),
            idle_timeout_s: idle.min_by_key(|seconds| if *seconds == 0 { u64::MAX } else { *seconds }),
            sidecar_max_requests: ordinary.and_then(|threshold| threshold.number("max_requests")).unwrap_or(1024),
        }
    }

    /// Name and value, for people.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        vec![
            ("filter", format!("{}, asks cluster {}", self.ext_proc, self.cluster)),
            ("Wasm filter", or_none(self.wasm.clone())),
            ("order", self.order.join(", ")),
            ("ways in", format!("{} of {} ask the sidecar", self.ways_in_attached, self.ways_in)),
            ("targets", counted(self.targets as u64, "route")),
            ("bodies", format!("requests {}, answers {}", self.request_body, self.response_body)),
            ("message timeout", format!("{} ms", self.message_timeout_ms)),
            ("without sidecar", self.without_sidecar.clone()),
            ("body buffer", or_none(self.buffer_limit_bytes.map(shown_bytes))),
            ("silence", or_none(self.idle_timeout_s.map(|seconds| format!("{seconds} s")))),
            ("streams", format!("at most {} at a time", self.sidecar_max_requests)),
        ]
    }
}

fn without_sidecar(scene: &Scene<'_>) -> String {
    let fates: BTreeSet<_> = scene.entries().map(|route| scene.failed(route)).collect();
    let requests = fates.iter().map(|fate| format!("requests {}", fate.of_many()));
    let answers =
        if scene.fails_open(None) { "answers under way go on, uncounted" } else { "answers under way are cut" };
    requests.chain([answers.to_owned()]).collect::<Vec<_>>().join("; ")
}

fn shown(mode: BodyMode<'_>) -> String {
    match mode {
        BodyMode::None => "NONE",
        BodyMode::Streamed => "STREAMED",
        BodyMode::Buffered => "BUFFERED",
        BodyMode::Other(other) => other,
    }
    .to_owned()
}
