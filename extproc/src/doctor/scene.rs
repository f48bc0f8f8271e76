//! A connection manager to which the sidecar is attached, with its settings as they hold there.

use std::time::Duration;

use serde_json::Value;

use super::dump::Proxy;
use super::gateway::{Filter, Gateway, Kind};
use super::json::{Json, all_within};
use super::route::Route;

/// What the checks look at.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) proxy: &'a Proxy<'a>,
    pub(super) gateway: &'a Gateway<'a>,
    pub(super) ext_proc: Filter<'a>,
    /// As the filter has it; see [`Route::overrides`].
    pub(super) processor: &'a Value,
    /// The Wasm filter and its `PluginConfig`.
    pub(super) wasm: Option<(Filter<'a>, &'a Value)>,
    /// Every route, looked up once.
    pub(super) routes: Vec<Route<'a>>,
    /// The largest body that the sidecar takes, in bytes.
    pub(super) body_cap: u64,
}

/// How much Envoy holds of a body that came over a version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hold {
    /// ` over HTTP/2`; empty for all versions.
    pub(super) over: &'static str,
    pub(super) bytes: u64,
}

/// [`Hold::over`] of HTTP/2 alone.
pub(super) const OVER_HTTP2: &str = " over HTTP/2";

/// What becomes of a request that the sidecar has not dealt with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// Envoy answers it with this status.
    Answered(u64),
    /// It goes to these clusters.
    LetThrough(String),
}

impl Fate {
    /// What it does, after `the request`.
    pub(super) fn of_one(&self) -> String {
        match self {
            Self::Answered(status) => format!("gets {status}"),
            Self::LetThrough(clusters) => format!("goes to {clusters} without a key, a limit or a count"),
        }
    }

    /// What has become of them, after `requests`.
    pub(super) fn of_those(&self) -> String {
        match self {
            Self::Answered(status) => format!("got {status}"),
            Self::LetThrough(clusters) => format!("went to {clusters} without a key, a limit or a count"),
        }
    }

    /// What they do, after `requests`.
    pub(super) fn of_many(&self) -> String {
        match self {
            Self::Answered(status) => format!("get {status}"),
            Self::LetThrough(clusters) => format!("go to {clusters} without a key, a limit or a count"),
        }
    }
}

/// How Envoy sends bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyMode<'a> {
    None,
    Streamed,
    Buffered,
    Other(&'a str),
}

impl<'a> Scene<'a> {
    /// The scene where the sidecar is attached. Its filter is known by `mark`, a part of the name of the filter or of the cluster
    /// that it asks; or else by being the only ext_proc before routes that wait for our header.
    pub(super) fn of(proxy: &'a Proxy<'a>, gateway: &'a Gateway<'a>, mark: &str, body_cap: u64) -> Option<Self> {
        let is_marked = |text: &str| text.to_ascii_lowercase().contains(&mark.to_ascii_lowercase());
        let processors: Vec<(Filter<'a>, &'a Value)> = gateway
            .filters
            .iter()
            .filter_map(|filter| match filter.kind {
                Kind::ExtProc(processor) => Some((*filter, processor)),
                _ => None,
            })
            .collect();
        let routes = gateway.routes();
        let marked =
            processors.iter().find(|(filter, processor)| is_marked(filter.name) || is_marked(cluster(processor)));
        let only = match processors.as_slice() {
            [only] if routes.iter().any(Route::is_target) => Some(only),
            _ => None,
        };
        let (ext_proc, processor) = *marked.or(only)?;
        let wasm = gateway.filters.iter().find_map(|filter| match filter.kind {
            Kind::Wasm(plugin) if is_marked(filter.name) || is_marked(plugin.text("name")) => Some((*filter, plugin)),
            _ => None,
        });
        Some(Self { proxy, gateway, ext_proc, processor, wasm, routes, body_cap })
    }

    /// The cluster that the filter asks.
    pub(super) fn sidecar_cluster(&self) -> &'a str {
        cluster(self.processor)
    }

    /// The routes by which requests come in: those that match before the sidecar has said anything.
    pub(super) fn ways_in(&self) -> impl Iterator<Item = &Route<'a>> {
        self.routes.iter().filter(|route| !route.is_behind())
    }

    /// The ways in on which the sidecar is asked.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Route<'a>> {
        self.ways_in().filter(|route| route.runs(&self.ext_proc))
    }

    /// The routes to which the sidecar's choice leads.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Route<'a>> {
        self.routes.iter().filter(|route| route.is_target())
    }

    /// A setting of the filter that a route may replace.
    pub(super) fn setting(&self, route: Option<&Route<'a>>, path: &str) -> &'a Value {
        let replaced = route.and_then(|route| route.overrides(&self.ext_proc)).map(|overrides| overrides.field(path));
        replaced.filter(|value| !value.is_null()).unwrap_or_else(|| self.processor.field(path))
    }

    pub(super) fn request_body(&self, route: Option<&Route<'a>>) -> BodyMode<'a> {
        body_mode(self.setting(route, "processing_mode").text("request_body_mode"))
    }

    /// Whether the filter has another processor, with BUFFERED bodies, for what the first is not asked about: requests over HTTP/2,
    /// as `attache render static` has it.
    pub(super) fn buffers_http2(&self) -> bool {
        let mut processors = Vec::new();
        all_within(self.ext_proc.config, "ExternalProcessor", &mut processors);
        processors
            .iter()
            .skip(1)
            .any(|other| body_mode(other.text("processing_mode.request_body_mode")) == BodyMode::Buffered)
    }

    pub(super) fn response_body(&self, route: Option<&Route<'a>>) -> BodyMode<'a> {
        body_mode(self.setting(route, "processing_mode").text("response_body_mode"))
    }

    /// Whether answers go on when the sidecar is gone, and requests too.
    pub(super) fn fails_open(&self, route: Option<&Route<'a>>) -> bool {
        self.setting(route, "failure_mode_allow").as_bool() == Some(true)
    }

    pub(super) fn message_timeout(&self) -> Duration {
        const ENVOYS_DEFAULT: Duration = Duration::from_millis(200);
        self.processor.duration("message_timeout").unwrap_or(ENVOYS_DEFAULT)
    }

    /// The longest silence of a stream at a route; zero is for ever.
    pub(super) fn idle_timeout(&self, route: &Route<'a>) -> Duration {
        const ENVOYS_DEFAULT: Duration = Duration::from_secs(300);
        let of_route = route.route.duration("route.idle_timeout");
        of_route.or_else(|| self.gateway.manager.duration("stream_idle_timeout")).unwrap_or(ENVOYS_DEFAULT)
    }

    /// How much of a body Envoy holds of a request that comes in here, by the version of HTTP. Measured on Envoy 1.40: of HTTP/1.1
    /// the larger of the connection's and the request's limit, and a little more; of HTTP/2 the larger of the stream's window and
    /// the request's limit, and neither the connection's limit nor its window matters.
    pub(super) fn holds(&self, route: &Route<'a>) -> Vec<Hold> {
        const CONNECTION_DEFAULT: u64 = 1024 * 1024;
        // Of Envoy 1.40; older ones have 256 MiB.
        const WINDOW_DEFAULT: u64 = 16 * 1024 * 1024;
        let connection = self.gateway.listener.number("per_connection_buffer_limit_bytes");
        let window = self.gateway.manager.number("http2_protocol_options.initial_stream_window_size");
        let of_request = route.request_limit().unwrap_or(0);
        let http1 = connection.unwrap_or(CONNECTION_DEFAULT).max(of_request);
        let http2 = window.unwrap_or(WINDOW_DEFAULT).max(of_request);
        match self.gateway.manager.text("codec_type") {
            "HTTP1" => vec![Hold { over: "", bytes: http1 }],
            "HTTP2" => vec![Hold { over: "", bytes: http2 }],
            // Not measured.
            "HTTP3" => Vec::new(),
            _ if http1 == http2 && !self.buffers_http2() => vec![Hold { over: "", bytes: http1 }],
            _ => vec![Hold { over: " over HTTP/1.1", bytes: http1 }, Hold { over: OVER_HTTP2, bytes: http2 }],
        }
    }

    /// After which time a request whose body does not go on is given up, and what becomes of it then.
    pub(super) fn stalled(&self, route: &Route<'a>) -> (Duration, Fate) {
        let (idle, timeout) = (self.idle_timeout(route), self.message_timeout());
        if !idle.is_zero() && idle <= timeout {
            return (idle, Fate::Answered(408));
        }
        (timeout, self.unanswered(route))
    }

    /// What becomes of a request to whose messages the sidecar does not answer in time.
    pub(super) fn unanswered(&self, route: &Route<'a>) -> Fate {
        match self.fails_open(Some(route)) {
            true => self.unprocessed(route),
            false => Fate::Answered(504),
        }
    }

    /// What becomes of a request whose stream to the sidecar fails.
    pub(super) fn failed(&self, route: &Route<'a>) -> Fate {
        const ENVOYS_DEFAULT: u64 = 500;
        match self.fails_open(Some(route)) {
            true => self.unprocessed(route),
            false => Fate::Answered(self.processor.number("status_on_error.code").unwrap_or(ENVOYS_DEFAULT)),
        }
    }

    fn unprocessed(&self, route: &Route<'a>) -> Fate {
        if !self.is_dead_end(route) {
            return Fate::LetThrough(route.clusters().join(", "));
        }
        Fate::Answered(route.route.number("direct_response.status").unwrap_or(503))
    }

    /// Whether a request that comes to this route without the sidecar's word is answered by Envoy itself.
    pub(super) fn is_dead_end(&self, route: &Route<'a>) -> bool {
        let clusters = route.clusters();
        let leads_nowhere = |cluster: &&str| {
            // A cluster that is not there is a 503 as well.
            !self.proxy.clusters.contains_key(cluster)
                || self.proxy.hosts(cluster).is_some_and(|hosts| hosts.is_empty())
        };
        route.is_direct() || route.is_target() || (!clusters.is_empty() && clusters.iter().all(leads_nowhere))
    }

    /// Where a route is, for people.
    pub(super) fn at(&self, route: &Route<'_>) -> String {
        format!("{}, {}", self.gateway.place, route.place())
    }
}

fn cluster(processor: &Value) -> &str {
    processor.text("grpc_service.envoy_grpc.cluster_name")
}

fn body_mode(name: &str) -> BodyMode<'_> {
    match name {
        "" | "NONE" => BodyMode::None,
        "STREAMED" => BodyMode::Streamed,
        "BUFFERED" => BodyMode::Buffered,
        other => BodyMode::Other(other),
    }
}
