//! What is measured: an upstream, one or two sidecars, and one Envoy with a listener for each variant.

use std::{fmt::Write as _, fs, net::SocketAddr, num::NonZeroU64, time::Duration};

use attache_model_server::{Config as ModelConfig, ModelServer};
use attache_tests::{
    Directory, Envoy, EnvoyOptions, Error, Redis, Result, Sidecar, SidecarOptions, envoy, port, template, tools,
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    bootstrap::{self, Rendered, Variant},
    upstream,
    usage::Usage,
    workload::{Answers, KEY, MODEL, SERVED_MODEL},
};

/// How many replicas there are to place requests on.
const REPLICAS: usize = 2;

/// The cluster that `attache render static` makes of the Backend below.
const CLUSTER: &str = "default/pool";

/// A running bed. Dropping it ends all of it.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) answers: Answers,
    pub(crate) listeners: Vec<(Variant, SocketAddr)>,
    /// An upstream, for a client without a gateway.
    pub(crate) upstream: SocketAddr,
    envoy: Envoy,
    pub(crate) sidecar: Sidecar,
    on_redis: Option<(Sidecar, Redis)>,
    _models: Vec<ModelServer>,
    _directory: Directory,
}

/// What is to be said of a bed when all was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) streamed: bool,
    /// What the sidecar counted, as a proof that it did its work.
    pub(crate) served: f64,
    pub(crate) granted: f64,
    pub(crate) placed: f64,
    pub(crate) sidecar_peak_bytes: u64,
    pub(crate) envoy_peak_bytes: u64,
    /// Of the sidecar that has its ledger in Redis.
    pub(crate) redis_round_trips_per_granted: Option<f64>,
}

impl Bed {
    /// Starts everything, with every feature on: a key, a limit that nobody reaches, affinity, usage and its costs.
    /// `further` are documents beside those.
    pub(crate) async fn start(answers: Answers, further: &str) -> Result<Self> {
        let directory = Directory::temporary()?;
        let mut models = Vec::new();
        let mut upstreams = Vec::new();
        for _ in 0..REPLICAS {
            if answers == Answers::Whole {
                upstreams.push(upstream::start().map_err(io("start an upstream"))?);
            } else {
                let model = ModelServer::start(model_config(answers)).await.map_err(io("start a model server"))?;
                upstreams.push(model.addr());
                models.push(model);
            }
        }
        let config = directory.path().join("config/attache.yaml");
        let write = || fs::create_dir_all(directory.path().join("config"));
        write()
            .and_then(|()| fs::write(&config, template::fill(&yaml(), &upstreams).unwrap_or_default() + further))
            .map_err(io("write the configuration"))?;

        let options = SidecarOptions { config: vec![config.clone()], ..SidecarOptions::default() };
        let sidecar = Sidecar::start("sidecar", options.clone(), directory.path()).await?;
        let on_redis = if answers == Answers::Whole && tools::redis_server().is_ok() {
            let redis = Redis::start(directory.path(), &[]).await?;
            // A request that gives up on a Redis that has no CPU would be measured as a quick one.
            let environment = vec![("ATTACHE_REDIS_TIMEOUT".to_owned(), "2s".to_owned())];
            let options = SidecarOptions { redis: Some(redis.url()), environment, ..options };
            Some((Sidecar::start("sidecar-on-redis", options, directory.path()).await?, redis))
        } else {
            None
        };

        let mut variants = vec![Variant::Plain, Variant::Filter, Variant::Sidecar, Variant::Both];
        variants.extend(on_redis.as_ref().map(|_| Variant::Redis));
        let listeners = variants.into_iter().map(|variant| Ok((variant, port::free()?))).collect::<Result<Vec<_>>>()?;
        let first = listeners.first().map(|(_, address)| *address).ok_or_else(|| Error::unexpected("no", "variant"))?;
        let admin = port::free()?;
        let render = async |sidecar: &Sidecar, wasm| {
            let options = EnvoyOptions {
                config: vec![config.clone()],
                extproc: sidecar.listen().to_owned(),
                wasm,
                ..EnvoyOptions::default()
            };
            envoy::render(&options, first, admin).await
        };
        let rendered = Rendered {
            without_filter: render(&sidecar, None).await?,
            with_filter: render(&sidecar, Some(tools::wasm_filter()?)).await?,
            on_redis: match &on_redis {
                Some((sidecar, _)) => Some(render(sidecar, None).await?),
                None => None,
            },
        };
        let bootstrap = directory.path().join("envoy.json");
        fs::write(&bootstrap, bootstrap::merge(&rendered, &listeners, CLUSTER)?).map_err(io("write the bootstrap"))?;
        let envoy = Envoy::start_with("envoy", &bootstrap, first, admin, directory.path()).await?;
        let upstream = upstreams.first().copied().unwrap_or(first);
        Ok(Self { answers, listeners, upstream, envoy, sidecar, on_redis, _models: models, _directory: directory })
    }

    /// Where a variant's listener is.
    pub(crate) fn listener(&self, variant: Variant) -> Result<SocketAddr> {
        let listener = self.listeners.iter().find(|(other, _)| *other == variant);
        listener.map(|(_, address)| *address).ok_or_else(|| Error::unexpected("there is no listener", variant.name()))
    }

    /// The sidecar that has its ledger in Redis, and that Redis.
    pub(crate) fn on_redis(&self) -> Result<&(Sidecar, Redis)> {
        self.on_redis.as_ref().ok_or_else(|| Error::unexpected("this bed has no", "Redis"))
    }

    /// What Envoy has used.
    pub(crate) fn envoy_cpu(&self) -> Duration {
        Usage::of_process(self.envoy.id())
    }

    /// What the variant's sidecar has used.
    pub(crate) fn sidecar_cpu(&self, variant: Variant) -> Duration {
        match (variant, &self.on_redis) {
            (Variant::Plain | Variant::Filter, _) => Duration::ZERO,
            (Variant::Redis, Some((sidecar, _))) => Usage::of_process(sidecar.id()),
            _ => Usage::of_process(self.sidecar.id()),
        }
    }

    /// The sidecar's peak memory.
    pub(crate) fn sidecar_peak_bytes(&self) -> u64 {
        Usage::peak_memory_bytes(self.sidecar.id())
    }

    /// What is left to be said.
    ///
    /// # Errors
    /// When the sidecar did not do what was to be measured.
    pub(crate) async fn finish(self) -> Result<Finding> {
        let metrics = self.sidecar.metrics().await?;
        let served = metrics.sum("attache_requests_total", &[("outcome", "served")]);
        let granted = metrics.sum("attache_limit_decisions_total", &[("decision", "granted")]);
        let placed = metrics.sum("attache_affinity_decisions_total", &[]);
        if served == 0.0 || granted < served || placed < served {
            let counted = format!("of {served} requests {granted} were granted and {placed} placed");
            return Err(Error::unexpected("the sidecar has not done its work", counted));
        }
        let redis_round_trips_per_granted = match &self.on_redis {
            Some((sidecar, _)) => {
                let metrics = sidecar.metrics().await?;
                let granted = metrics.sum("attache_limit_decisions_total", &[("decision", "granted")]);
                Some(metrics.sum("attache_store_round_trips_total", &[]) / granted.max(1.0))
            }
            None => None,
        };
        Ok(Finding {
            streamed: self.answers != Answers::Whole,
            served,
            granted,
            placed,
            sidecar_peak_bytes: self.sidecar_peak_bytes(),
            envoy_peak_bytes: Usage::peak_memory_bytes(self.envoy.id()),
            redis_round_trips_per_granted,
        })
    }
}

fn model_config(answers: Answers) -> ModelConfig {
    ModelConfig {
        prefill_tokens_per_second: NonZeroU64::MAX,
        time_per_output_token: Duration::from_millis(if answers == Answers::Slow { 100 } else { 2 }),
        ..ModelConfig::default()
    }
}

fn io(what: &str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { what: what.to_owned(), source }
}

/// What a ClientKey says of its key.
pub(crate) fn sha256(key: &str) -> String {
    let mut digest = String::new();
    for byte in Sha256::digest(key) {
        // Writing to a string does not fail.
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}

/// The operator's YAML.
fn yaml() -> String {
    let digest = sha256(KEY);
    format!(
        r#"apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {{name: pool}}
spec: {{endpoints: ${{MODELS}}}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {{name: pool}}
spec:
  schema: {{name: OpenAI}}
  backendRef: {{group: gateway.envoyproxy.io, kind: Backend, name: pool}}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {{name: chat}}
spec:
  llmRequestCosts:
  - {{metadataKey: llm_total_token, type: TotalToken}}
  rules:
  - matches: [{{headers: [{{name: x-ai-eg-model, value: {MODEL}}}]}}]
    backendRefs: [{{name: pool, modelNameOverride: {SERVED_MODEL}}}]
---
apiVersion: attache.dev/v1alpha1
kind: ClientKey
metadata: {{name: bench}}
spec: {{sha256: {digest}, tenant: bench, routes: [chat]}}
---
apiVersion: attache.dev/v1alpha1
kind: TokenLimitPolicy
metadata: {{name: per-key}}
spec:
  targetRefs: [{{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: chat}}]
  limits:
  - {{name: key-minute, per: [key], limit: 1000000000000, window: 1m, cost: total}}
---
apiVersion: attache.dev/v1alpha1
kind: CacheAffinityPolicy
metadata: {{name: chat}}
spec:
  targetRefs: [{{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: chat}}]
"#
    )
}
