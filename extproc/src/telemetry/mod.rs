//! Metrics: what an exchange's summary adds to, and the page that Prometheus reads.
//!
//! The `gen_ai_*` names are OpenTelemetry's GenAI conventions in their Prometheus form, so dashboards made for them work.
//! Every label value comes from the configuration or from a fixed list, never from a client, so the number of series is
//! bounded.

mod affinity;
mod attached;
mod filters;
mod limits;

pub use affinity::{EndpointState, PoolFigure, PoolFigures};
pub use attached::{Attached, Attachment};
pub use filters::Filters;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tracing::debug;

use self::limits::LimitMetrics;
use crate::exchange::{AdmissionOutcome, BodyMemory, Counted, Outcome, Summary, UPSTREAM_KEY_REFUSED};
use crate::limit::{LedgerStats, LimitFigure, StoreState};
use crate::watch::WatchStats;

/// Buckets for tokens: powers of 4, as OpenTelemetry recommends for `gen_ai.client.token.usage`.
const TOKEN_BUCKETS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];
/// Buckets for a whole request, in seconds, as OpenTelemetry recommends for `gen_ai.server.request.duration`.
const DURATION_BUCKETS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// Buckets for the first token, in seconds, as OpenTelemetry recommends for `gen_ai.server.time_to_first_token`.
const FIRST_TOKEN_BUCKETS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// Buckets for one further token, in seconds, as OpenTelemetry recommends for `gen_ai.server.time_per_output_token`.
const PER_TOKEN_BUCKETS: [f64; 12] = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0];
/// Buckets for the time that we hold a request, in seconds.
const HELD_BUCKETS: [f64; 12] =
    [0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 1.0];

/// All metrics of the process.
pub struct Telemetry {
    registry: Registry,
    token_usage: Family<TokenLabels, Histogram, fn() -> Histogram>,
    request_duration: Family<ModelLabels, Histogram, fn() -> Histogram>,
    time_to_first_token: Family<ModelLabels, Histogram, fn() -> Histogram>,
    time_per_output_token: Family<ModelLabels, Histogram, fn() -> Histogram>,
    streams: Counter,
    in_flight: Gauge,
    requests: Family<OutcomeLabels, Counter>,
    held: Histogram,
    admissions: Family<AdmissionLabels, Counter>,
    limits: LimitMetrics,
    placements: Family<PlacementLabels, Counter>,
    upstream_key_refusals: Family<ClusterLabels, Counter>,
    estimated: Counter,
    cancelled: Counter,
    config_generation: Gauge,
    config_objects_in_error: Gauge,
    config_last_reload_successful: Gauge,
    config_reloads: Counter,
    store: StoreMetrics,
    ledger: LedgerMetrics,
    endpoints_cooling: Gauge,
    endpoints_failing: Gauge,
    bodies: BodyMetrics,
    watch: WatchMetrics,
    watch_stats: WatchStats,
    attached: Attached,
    filters: Filters,
}

/// What the ledger counts itself and is asked for when the page is read.
#[derive(Default)]
struct StoreMetrics {
    round_trips: Counter,
    errors: Counter,
    lost_settlements: Counter,
    expired_settlements: Counter,
    queue: Gauge,
    memory: Gauge,
    memory_limit: Gauge,
    reservations: Gauge,
}

/// What requests' bodies take until they have gone on.
#[derive(Default)]
struct BodyMetrics {
    in_use: Gauge,
    budget: Gauge,
    refused: Counter,
}

/// What came of looking at the endpoints from outside the requests.
#[derive(Default)]
struct WatchMetrics {
    scrapes: Family<ResultLabels, Counter>,
    resolutions: Family<ResultLabels, Counter>,
}

/// How the ledger fares with its store, or without it.
#[derive(Default)]
struct LedgerMetrics {
    up: Gauge,
    replicas: Gauge,
    cached_refusals: Counter,
    degraded_decisions: Family<DecisionLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    gen_ai_operation_name: &'static str,
    gen_ai_provider_name: &'static str,
    gen_ai_original_model: Arc<str>,
    gen_ai_request_model: Arc<str>,
    gen_ai_response_model: Arc<str>,
    error_type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    gen_ai_token_type: &'static str,
    gen_ai_operation_name: &'static str,
    gen_ai_provider_name: &'static str,
    gen_ai_original_model: Arc<str>,
    gen_ai_request_model: Arc<str>,
    gen_ai_response_model: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    route: Arc<str>,
    model: Arc<str>,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AdmissionLabels {
    route: Arc<str>,
    decision: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    decision: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterLabels {
    cluster: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PlacementLabels {
    cluster: Arc<str>,
    reason: &'static str,
}

impl Default for Telemetry {
    fn default() -> Self {
        let mut telemetry = Self {
            registry: Registry::default(),
            token_usage: Family::new_with_constructor(|| Histogram::new(TOKEN_BUCKETS)),
            request_duration: Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)),
            time_to_first_token: Family::new_with_constructor(|| Histogram::new(FIRST_TOKEN_BUCKETS)),
            time_per_output_token: Family::new_with_constructor(|| Histogram::new(PER_TOKEN_BUCKETS)),
            streams: Counter::default(),
            in_flight: Gauge::default(),
            requests: Family::default(),
            held: Histogram::new(HELD_BUCKETS),
            admissions: Family::default(),
            limits: LimitMetrics::default(),
            placements: Family::default(),
            upstream_key_refusals: Family::default(),
            estimated: Counter::default(),
            cancelled: Counter::default(),
            config_generation: Gauge::default(),
            config_objects_in_error: Gauge::default(),
            config_last_reload_successful: Gauge::default(),
            config_reloads: Counter::default(),
            store: StoreMetrics::default(),
            ledger: LedgerMetrics::default(),
            endpoints_cooling: Gauge::default(),
            endpoints_failing: Gauge::default(),
            bodies: BodyMetrics::default(),
            watch: WatchMetrics::default(),
            watch_stats: WatchStats::default(),
            attached: Attached::new(SystemTime::now()),
            filters: Filters::default(),
        };
        telemetry.register();
        telemetry
    }
}

impl Telemetry {
    fn register(&mut self) {
        let gen_ai = self.registry.sub_registry_with_prefix("gen_ai");
        gen_ai.register("client_token_usage", "Tokens of one request, by kind", self.token_usage.clone());
        gen_ai.register_with_unit(
            "server_request_duration",
            "From the request's headers to the end of the answer",
            Unit::Seconds,
            self.request_duration.clone(),
        );
        gen_ai.register_with_unit(
            "server_time_to_first_token",
            "From the release of the request to the first bytes of the answer",
            Unit::Seconds,
            self.time_to_first_token.clone(),
        );
        gen_ai.register_with_unit(
            "server_time_per_output_token",
            "Time of each further token of a streamed answer",
            Unit::Seconds,
            self.time_per_output_token.clone(),
        );
        let attache = self.registry.sub_registry_with_prefix("attache");
        self.attached.register(attache);
        attache.register("streams", "ext_proc streams that Envoy opened", self.streams.clone());
        attache.register("in_flight", "ext_proc streams that are open", self.in_flight.clone());
        attache.register("requests", "Requests, by how they ended", self.requests.clone());
        attache.register_with_unit(
            "request_held",
            "From the request's headers to its release, waiting for its body and for the ledger included",
            Unit::Seconds,
            self.held.clone(),
        );
        attache.register("limit_decisions", "What the ledger said", self.admissions.clone());
        self.limits.register(attache);
        attache.register(
            "upstream_key_refusals",
            "Answers 401 and 403 of an upstream to the operator's key",
            self.upstream_key_refusals.clone(),
        );
        attache.register("affinity_decisions", "Why an endpoint was chosen", self.placements.clone());
        attache.register("usage_estimated", "Answers whose usage the upstream did not say", self.estimated.clone());
        attache.register("cancelled", "Requests that client or upstream left", self.cancelled.clone());
        attache.register(
            "config_generation",
            "Counts up with every configuration in force",
            self.config_generation.clone(),
        );
        attache.register(
            "config_objects_in_error",
            "Objects of the configuration that are left out, or kept in their last good state",
            self.config_objects_in_error.clone(),
        );
        attache.register(
            "config_last_reload_successful",
            "1 if the last reading of the configuration had no errors",
            self.config_last_reload_successful.clone(),
        );
        attache.register("config_reloads", "Readings of the configuration", self.config_reloads.clone());
        attache.register("store_round_trips", "Commands sent to Redis", self.store.round_trips.clone());
        attache.register(
            "store_errors",
            "Operations that Redis did not answer, or with an error",
            self.store.errors.clone(),
        );
        attache.register("store_lost_settlements", "Charges that were given up", self.store.lost_settlements.clone());
        attache.register(
            "store_expired_settlements",
            "Charges that waited for Redis until their windows had ended",
            self.store.expired_settlements.clone(),
        );
        attache.register("store_queue", "Charges that wait to be sent to Redis", self.store.queue.clone());
        attache.register(
            "store_memory_bytes",
            "Memory that Redis uses, of a cluster the node that was asked; 0 where it does not tell",
            self.store.memory.clone(),
        );
        attache.register(
            "store_memory_limit_bytes",
            "Memory that Redis may use; 0 where it does not tell, or has no bound (maxmemory)",
            self.store.memory_limit.clone(),
        );
        attache.register(
            "reservations",
            "Reservations that are held in the ledger in memory",
            self.store.reservations.clone(),
        );
        attache.register(
            "ledger_up",
            "1 while the ledger's store answers, 0 while it does not; it is asked even when nobody else asks",
            self.ledger.up.clone(),
        );
        attache.register(
            "ledger_replicas",
            "Sidecars that share the ledger's store, as expected or as counted",
            self.ledger.replicas.clone(),
        );
        attache.register(
            "ledger_cached_refusals",
            "Requests that were refused without asking the store",
            self.ledger.cached_refusals.clone(),
        );
        attache.register(
            "ledger_degraded_decisions",
            "What was decided without the store, as it did not answer",
            self.ledger.degraded_decisions.clone(),
        );
        attache.register(
            "endpoints_cooling",
            "Endpoints that are left alone after failures",
            self.endpoints_cooling.clone(),
        );
        attache.register(
            "endpoints_failing",
            "Endpoints that failed the last requests and have served none since, whether or not they may be tried again",
            self.endpoints_failing.clone(),
        );
        attache.register(
            "body_memory_bytes",
            "What requests' bodies take in memory until they have gone on",
            self.bodies.in_use.clone(),
        );
        attache.register("body_memory_budget_bytes", "What they may take: --body-memory", self.bodies.budget.clone());
        attache.register(
            "body_memory_refusals",
            "How often there was no room for a body, or for a decoder's window",
            self.bodies.refused.clone(),
        );
        attache.register(
            "endpoint_scrapes",
            "Attempts to read the metrics pages of endpoints, by what came of them",
            self.watch.scrapes.clone(),
        );
        attache.register(
            "name_resolutions",
            "Attempts to resolve the DNS names of endpoints, by what came of them",
            self.watch.resolutions.clone(),
        );
    }

    /// A stream was opened; it is in flight for as long as the answer lives.
    pub fn stream_opened(&self) -> InFlight {
        self.streams.inc();
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// Which configurations the Wasm filters that ask run on.
    pub fn filters(&self) -> &Filters {
        &self.filters
    }

    /// Whether Envoy's requests come to us.
    pub fn attached(&self) -> &Attached {
        &self.attached
    }

    /// Where those count who watch the endpoints.
    pub fn watch_stats(&self) -> &WatchStats {
        &self.watch_stats
    }

    /// Streams that are open.
    pub fn in_flight(&self) -> i64 {
        self.in_flight.get()
    }

    /// A configuration was read.
    pub fn config_loaded(&self, generation: u64, errors: usize) {
        self.config_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        self.config_objects_in_error.set(gauge(errors));
        self.config_last_reload_successful.set(i64::from(errors == 0));
        self.config_reloads.inc();
    }

    /// An upstream refused the operator's key. The log has the first time, the second, the fourth and so on: it must not grow with
    /// the traffic.
    fn upstream_key_refused(&self, cluster: &Arc<str>) {
        let times = self.upstream_key_refusals.get_or_create(&ClusterLabels { cluster: Arc::clone(cluster) }).inc() + 1;
        if times.is_power_of_two() {
            tracing::warn!(%cluster, times, "the upstream refuses the key that the gateway sends it; callers get 502");
        }
    }

    /// An exchange is over.
    pub fn observe(&self, summary: &Summary) {
        debug!(
            target: "attache::request",
            request_id = summary.request_id.as_deref(),
            route = summary.route.as_deref(),
            model = summary.model.as_deref(),
            outcome = outcome(summary.outcome),
            duration_ms = summary.duration.as_millis(),
            "request"
        );
        let unknown = || Arc::from("");
        self.requests
            .get_or_create(&OutcomeLabels {
                route: summary.route.clone().unwrap_or_else(unknown),
                model: summary.model.clone().unwrap_or_else(unknown),
                outcome: outcome(summary.outcome),
            })
            .inc();
        if summary.outcome == Outcome::Cancelled {
            self.cancelled.inc();
        }
        if let Some(held) = summary.held {
            self.held.observe(held.as_secs_f64());
        }
        if let (Some(admission), Some(route)) = (summary.admission, &summary.route) {
            let decision = match admission {
                AdmissionOutcome::Granted => "granted",
                AdmissionOutcome::Refused => "refused",
                AdmissionOutcome::Unavailable => "unavailable",
            };
            self.admissions.get_or_create(&AdmissionLabels { route: Arc::clone(route), decision }).inc();
        }
        for event in &summary.limits {
            self.limits.observe(event);
        }
        if let (Some(reason), Some(cluster)) = (summary.placement, &summary.cluster) {
            let labels = PlacementLabels { cluster: Arc::clone(cluster), reason: reason.as_str() };
            self.placements.get_or_create(&labels).inc();
        }
        if let (Outcome::Local { reason: UPSTREAM_KEY_REFUSED, .. }, Some(cluster)) =
            (summary.outcome, &summary.cluster)
        {
            self.upstream_key_refused(cluster);
        }
        self.observe_model(summary);
    }

    fn observe_model(&self, summary: &Summary) {
        let (Some(operation), Some(model), Some(served)) = (summary.operation, &summary.model, &summary.served_model)
        else {
            return;
        };
        let labels = ModelLabels {
            gen_ai_operation_name: operation.metric_name(),
            gen_ai_provider_name: "openai",
            gen_ai_original_model: Arc::clone(model),
            gen_ai_request_model: Arc::clone(served),
            gen_ai_response_model: Arc::clone(served),
            error_type: error_type(summary.outcome),
        };
        self.request_duration.get_or_create(&labels).observe(summary.duration.as_secs_f64());
        if let Some(first) = summary.time_to_first_token {
            self.time_to_first_token.get_or_create(&labels).observe(first.as_secs_f64());
            if let (Some(held), Some(events)) = (summary.held, summary.content_events)
                && let Some(further) = events.checked_sub(1).filter(|further| *further > 0)
            {
                let streaming = summary.duration.saturating_sub(held).saturating_sub(first);
                self.time_per_output_token.get_or_create(&labels).observe(streaming.as_secs_f64() / further as f64);
            }
        }
        let Some(counted) = &summary.usage else { return };
        if matches!(counted, Counted::Estimated(_)) {
            self.estimated.inc();
        }
        let usage = counted.usage();
        for (gen_ai_token_type, tokens) in [
            ("input", usage.input),
            ("output", usage.output),
            ("cached_input", usage.cached_input),
            ("cache_creation_input", usage.cache_creation_input),
            ("reasoning", usage.reasoning),
        ] {
            // Input and output always, the others where there are any: most upstreams know nothing of them.
            if tokens > 0 || matches!(gen_ai_token_type, "input" | "output") {
                let labels = TokenLabels {
                    gen_ai_token_type,
                    gen_ai_operation_name: labels.gen_ai_operation_name,
                    gen_ai_provider_name: labels.gen_ai_provider_name,
                    gen_ai_original_model: Arc::clone(model),
                    gen_ai_request_model: Arc::clone(served),
                    gen_ai_response_model: Arc::clone(served),
                };
                self.token_usage.get_or_create(&labels).observe(tokens as f64);
            }
        }
    }

    /// How many endpoints have failed and served nothing since.
    pub fn endpoints_failing(&self, endpoints: usize) {
        self.endpoints_failing.set(gauge(endpoints));
    }

    /// What bodies take now.
    pub fn bodies(&self, memory: &BodyMemory) {
        self.bodies.in_use.set(bytes(memory.in_use_bytes()));
        self.bodies.budget.set(bytes(memory.budget_bytes()));
        self.bodies.refused.inner().store(memory.refused(), Ordering::Relaxed);
    }

    /// The page that Prometheus reads, with these figures of the ledger, of its limits, of the cool-down table and of the pools.
    pub fn page(
        &self,
        ledger: &LedgerStats,
        limits: &[LimitFigure],
        endpoints_cooling: usize,
        pools: PoolFigures,
    ) -> String {
        self.store.round_trips.inner().store(ledger.round_trips, Ordering::Relaxed);
        self.store.errors.inner().store(ledger.errors, Ordering::Relaxed);
        self.store.lost_settlements.inner().store(ledger.lost_settlements, Ordering::Relaxed);
        self.store.expired_settlements.inner().store(ledger.expired_settlements, Ordering::Relaxed);
        self.store.queue.set(gauge(ledger.queue_length));
        self.store.memory.set(bytes(ledger.memory.used_bytes));
        self.store.memory_limit.set(bytes(ledger.memory.limit_bytes));
        self.store.reservations.set(gauge(ledger.reservations.unwrap_or(0)));
        self.ledger.show(ledger);
        let of_limits = self.limits.show(limits);
        self.endpoints_cooling.set(gauge(endpoints_cooling));
        self.watch.show(&self.watch_stats);
        let mut affinity = Registry::with_prefix("attache_affinity");
        affinity.register_collector(Box::new(pools));
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = text::encode_registry(&mut page, &self.registry);
        let _ = text::encode_registry(&mut page, &of_limits);
        let _ = text::encode_registry(&mut page, &affinity);
        let _ = text::encode_eof(&mut page);
        page
    }
}

impl WatchMetrics {
    fn show(&self, stats: &WatchStats) {
        let scrapes = stats.scrapes().map(|(outcome, count)| (&self.scrapes, outcome.as_str(), count));
        let resolutions = stats.resolutions().map(|(outcome, count)| (&self.resolutions, outcome.as_str(), count));
        for (metric, result, count) in scrapes.chain(resolutions) {
            metric.get_or_create(&ResultLabels { result }).inner().store(count, Ordering::Relaxed);
        }
    }
}

impl LedgerMetrics {
    fn show(&self, ledger: &LedgerStats) {
        self.up.set(match ledger.state {
            StoreState::Up => 1,
            StoreState::Degraded => 0,
        });
        self.replicas.set(gauge(ledger.replicas));
        self.cached_refusals.inner().store(ledger.cached_refusals, Ordering::Relaxed);
        let degraded = ledger.degraded;
        for (decision, count) in
            [("granted", degraded.granted), ("refused", degraded.refused), ("failed", degraded.failed)]
        {
            let counter = self.degraded_decisions.get_or_create(&DecisionLabels { decision });
            counter.inner().store(count, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

/// One open stream.
#[derive(Debug)]
pub struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn bytes(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Answered(status) => match status {
            100..=299 => "served",
            300..=499 => "upstream_4xx",
            _ => "upstream_5xx",
        },
        Outcome::Local { reason, .. } => reason,
        Outcome::Cut => "cut",
        Outcome::Miscoded => "miscoded",
        Outcome::Cancelled => "cancelled",
    }
}

fn error_type(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Answered(100..=299) => "",
        Outcome::Answered(400..=499) => "upstream_4xx",
        Outcome::Answered(_) => "upstream_5xx",
        Outcome::Local { reason, .. } => reason,
        Outcome::Cut => "cut",
        Outcome::Miscoded => "miscoded",
        Outcome::Cancelled => "cancelled",
    }
}
