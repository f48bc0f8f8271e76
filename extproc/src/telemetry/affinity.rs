//! Figures of the pools, read when the page is: series of endpoints that are gone are gone with them.
//!
//! Labels are Backends of the configuration and endpoints that it or DNS names, so there are as many series as these.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::affinity::{EndpointStats, Fleet, PoolStats};
use crate::route::CoolDown;

/// How all pools are at one moment.
#[derive(Debug, Default)]
pub struct PoolFigures {
    pools: Vec<PoolFigure>,
}

/// How one pool is.
#[derive(Debug)]
pub struct PoolFigure {
    /// The Backend's cluster.
    pub cluster: Arc<str>,
    /// What it says of itself.
    pub stats: PoolStats,
    /// The state of each of its endpoints, in their order.
    pub states: Vec<EndpointState>,
    /// Why each of them could not even be asked, in their order; `None` where all is well, or that is not known.
    pub failures: Vec<Option<Arc<str>>>,
}

/// The one thing that is most important to know of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointState {
    /// All is well.
    Up,
    /// It failed, and is left alone for a while.
    Cooling,
    /// It came or came back, and gets less than its share.
    SlowStart,
    /// Its metrics page is too old to say anything, or was never read.
    StalePage,
}

impl EndpointState {
    /// As metrics and pages name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Cooling => "cooling",
            Self::SlowStart => "slow_start",
            Self::StalePage => "stale_page",
        }
    }
}

impl PoolFigures {
    /// As they are now.
    pub fn of(fleet: &Fleet, cooldown: &CoolDown, now: Instant) -> Self {
        let figure = |pool: Arc<crate::affinity::Pool>| {
            let (stats, members) = (pool.stats(now), pool.members());
            let state = |endpoint: &EndpointStats| {
                let member = members.iter().find(|member| member.id == endpoint.endpoint);
                if member.is_some_and(|member| !cooldown.admits(&member.cluster, now)) {
                    EndpointState::Cooling
                } else if endpoint.weight < 1.0 {
                    EndpointState::SlowStart
                } else if stats.is_scraped && endpoint.page.is_none() {
                    EndpointState::StalePage
                } else {
                    EndpointState::Up
                }
            };
            let states = stats.endpoints.iter().map(state).collect();
            let failure = |endpoint: &EndpointStats| {
                let member = members.iter().find(|member| member.id == endpoint.endpoint)?;
                cooldown.reason(&member.cluster)
            };
            let failures = stats.endpoints.iter().map(failure).collect();
            PoolFigure { cluster: Arc::clone(pool.id()), stats, states, failures }
        };
        Self { pools: fleet.pools().into_iter().map(figure).collect() }
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &PoolFigure> {
        self.pools.iter()
    }
}

impl Collector for PoolFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.pools(&mut encoder, "prompt_tokens", "Tokens of prompts that were sent to a replica", |stats| {
            ConstCounter::new(stats.prompt_tokens)
        })?;
        self.pools(&mut encoder, "available_tokens", "Tokens of prompts that some replica probably held", |stats| {
            ConstCounter::new(stats.available_tokens)
        })?;
        self.pools(
            &mut encoder,
            "predicted_tokens",
            "Tokens of prompts that the chosen replica probably held",
            |stats| ConstCounter::new(stats.predicted_tokens),
        )?;
        self.pools(
            &mut encoder,
            "delivered_tokens",
            "Tokens of prompts that came from a cache, as answers said",
            |stats| ConstCounter::new(stats.delivered_tokens),
        )?;
        self.pools(&mut encoder, "index_evictions", "Blocks that had to go for others", |stats| {
            ConstCounter::new(stats.index_evictions)
        })?;
        self.pools(&mut encoder, "dropped_news", "News that peers were not told, as they were too many", |stats| {
            ConstCounter::new(stats.dropped_news)
        })?;
        self.pools(&mut encoder, "restarts", "Engines that had begun anew with an empty cache", |stats| {
            ConstCounter::new(stats.restarts)
        })?;
        self.pools(&mut encoder, "index_blocks", "Blocks of prompts that the index knows", |stats| {
            ConstGauge::new(stats.index_blocks as f64)
        })?;
        self.pools(&mut encoder, "index_bytes", "Memory that the index takes", |stats| {
            ConstGauge::new(stats.index_bytes as f64)
        })?;
        self.pools(&mut encoder, "index_budget_bytes", "Memory that the index may take", |stats| {
            ConstGauge::new(stats.index_budget_bytes as f64)
        })?;
        self.pools(&mut encoder, "sharing_live", "1 while peers say all that they send", |stats| {
            ConstGauge::new(f64::from(u8::from(stats.is_shared)))
        })?;
        self.imbalances(&mut encoder)?;
        self.endpoints(
            &mut encoder,
            "endpoint_in_flight",
            "Requests of this sidecar that are under way",
            |endpoint| Some(ConstGauge::new(endpoint.own.requests as f64)),
        )?;
        self.endpoints(
            &mut encoder,
            "endpoint_pending_tokens",
            "Tokens of prompts to compute before a new one's, by all that is known",
            |endpoint| Some(ConstGauge::new(endpoint.pending_tokens)),
        )?;
        self.endpoints(&mut encoder, "endpoint_waiting", "Requests that wait, by its metrics page", |endpoint| {
            Some(ConstGauge::new(endpoint.page?.waiting))
        })?;
        self.endpoints(&mut encoder, "endpoint_running", "Requests that run, by its metrics page", |endpoint| {
            Some(ConstGauge::new(endpoint.page?.running))
        })?;
        self.endpoints(
            &mut encoder,
            "endpoint_kv_usage",
            "The share of its KV cache that running requests occupy, by its metrics page",
            |endpoint| Some(ConstGauge::new(endpoint.page?.kv_usage)),
        )?;
        self.endpoints(&mut encoder, "endpoint_trust", "How far predictions of its cache are believed", |endpoint| {
            Some(ConstGauge::new(endpoint.trust))
        })?;
        self.endpoints(
            &mut encoder,
            "endpoint_weight",
            "Its weight among others, below 1 while it starts slowly",
            |endpoint| Some(ConstGauge::new(endpoint.weight)),
        )?;
        self.endpoints(
            &mut encoder,
            "endpoint_held_bytes",
            "Bytes of prompts that it is believed to hold",
            |endpoint| Some(ConstGauge::new(endpoint.held_bytes as f64)),
        )?;
        self.endpoints(
            &mut encoder,
            "endpoint_routed_tokens",
            "Tokens of prompts that this sidecar sent there",
            |endpoint| Some(ConstCounter::new(endpoint.routed_tokens)),
        )?;
        self.states(&mut encoder)
    }
}

impl PoolFigures {
    fn pools<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        metric: impl Fn(&PoolStats) -> M,
    ) -> fmt::Result {
        let Some(first) = self.pools.first() else { return Ok(()) };
        let mut family = encoder.encode_descriptor(name, help, None, metric(&first.stats).metric_type())?;
        for PoolFigure { cluster, stats, .. } in &self.pools {
            metric(stats).encode(family.encode_family(&[("cluster", &**cluster)])?)?;
        }
        Ok(())
    }

    fn imbalances(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures =
            self.pools.iter().filter_map(|pool| Some((&pool.cluster, pool.stats.imbalance()?))).peekable();
        if figures.peek().is_none() {
            return Ok(());
        }
        let help = "Tokens of prompts of the busiest replica over their mean, of late (half-life 2 min)";
        let kind = ConstGauge::new(0.0).metric_type();
        let mut family = encoder.encode_descriptor("imbalance", help, None, kind)?;
        for (cluster, imbalance) in figures {
            ConstGauge::new(imbalance).encode(family.encode_family(&[("cluster", &**cluster)])?)?;
        }
        Ok(())
    }

    /// A metric of each endpoint that has it.
    fn endpoints<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        metric: impl Fn(&EndpointStats) -> Option<M>,
    ) -> fmt::Result {
        let metric = &metric;
        let metrics = self.pools.iter().flat_map(|pool| {
            pool.stats.endpoints.iter().filter_map(move |endpoint| Some((pool, endpoint, metric(endpoint)?)))
        });
        let mut metrics = metrics.peekable();
        let Some((_, _, first)) = metrics.peek() else { return Ok(()) };
        let mut family = encoder.encode_descriptor(name, help, None, first.metric_type())?;
        for (pool, endpoint, metric) in metrics {
            let labels = [("cluster", &*pool.cluster), ("endpoint", &*endpoint.endpoint)];
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn states(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.pools.iter().all(|pool| pool.states.is_empty()) {
            return Ok(());
        }
        let kind = ConstGauge::new(1_i64).metric_type();
        let help = "1 for the state that each replica is in: up, cooling, slow_start or stale_page";
        let mut family = encoder.encode_descriptor("endpoint_state", help, None, kind)?;
        for pool in &self.pools {
            for (endpoint, state) in pool.stats.endpoints.iter().zip(&pool.states) {
                let labels =
                    [("cluster", &*pool.cluster), ("endpoint", &*endpoint.endpoint), ("state", state.as_str())];
                ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
