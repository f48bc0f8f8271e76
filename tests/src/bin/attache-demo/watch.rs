//! What happened behind the gateway while a request was made: from the journals of the model servers and from the counters
//! of the sidecar and of Envoy.

use std::net::SocketAddr;

use attache_model_server::{ModelServer, Record};
use attache_tests::{Error, Metrics, Stack, envoy::Stats, until};

/// The state before.
pub(crate) struct Watch {
    metrics: Metrics,
    stats: Stats,
    seen: Vec<u64>,
}

/// What came between.
pub(crate) struct Seen {
    /// The requests that model servers got, with their addresses.
    pub(crate) served: Vec<(SocketAddr, Record)>,
    /// How often Envoy asked the sidecar.
    pub(crate) asked_sidecar: u64,
    /// How many requests the Wasm filter refused.
    pub(crate) refused_by_filter: u64,
    /// Prompt tokens that the sidecar counted.
    pub(crate) input_tokens: u64,
    /// Answer tokens that it counted.
    pub(crate) output_tokens: u64,
}

impl Watch {
    /// Begins to watch.
    pub(crate) async fn begin(stack: &Stack) -> Result<Self, Error> {
        Ok(Self {
            metrics: stack.sidecar_metrics().await?,
            stats: stack.gateway.envoy.stats().await?,
            seen: stack.models.iter().map(ModelServer::requests_total).collect(),
        })
    }

    /// Says what happened, once the sidecar has done with every request that it was asked about: it counts a request just
    /// after the client has read the end of the answer.
    pub(crate) async fn end(self, stack: &Stack) -> Result<Seen, Error> {
        let metrics = &mut Metrics::default();
        until("the sidecar had done with every request", async || match stack.sidecar_metrics().await {
            Ok(now) => {
                *metrics = now;
                metrics.sum("attache_streams_total", &[]) == metrics.sum("attache_requests_total", &[])
            }
            Err(_) => false,
        })
        .await?;
        let stats = stack.gateway.envoy.stats().await?;
        let grown =
            |name: &str, labels: &[(&str, &str)]| (metrics.sum(name, labels) - self.metrics.sum(name, labels)) as u64;
        let tokens = |kind| grown("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", kind)]);
        let served = stack.models.iter().zip(self.seen).flat_map(|(model, seen)| {
            let records = model.requests().into_iter().filter(move |record| record.number > seen);
            records.map(|record| (model.addr(), record))
        });
        Ok(Seen {
            served: served.collect(),
            asked_sidecar: grown("attache_streams_total", &[]),
            refused_by_filter: stats.refused_by_filter() - self.stats.refused_by_filter(),
            input_tokens: tokens("input"),
            output_tokens: tokens("output"),
        })
    }
}

impl Seen {
    /// The request that a model server got, if there was exactly one.
    pub(crate) fn only(&self) -> Result<(SocketAddr, &Record), Error> {
        match self.served.as_slice() {
            [(address, record)] => Ok((*address, record)),
            served => Err(Error::Unexpected {
                what: "one model server should have got one request".to_owned(),
                text: format!("{} requests arrived", served.len()),
            }),
        }
    }
}
