//! Everything together: model servers in this process, a Redis where it is wanted, and gateways: a sidecar with an Envoy
//! in front of it each.

use std::{
    fs, iter,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use attache_model_server::{Config as ModelConfig, ModelServer};
use futures_util::future::{try_join, try_join_all};

use crate::{
    client::Client,
    counters::Counters,
    directory::Directory,
    envoy::{Envoy, EnvoyOptions},
    error::{Error, Result},
    metrics::Metrics,
    redis::Redis,
    sidecar::{Sidecar, SidecarOptions},
    template, tools,
    wait::until,
};

/// What a request of a test may wait for the ledger: on a busy machine a good Redis may be late, and that is no finding.
const REDIS_TIMEOUT: (&str, &str) = ("ATTACHE_REDIS_TIMEOUT", "2s");

/// A running stack. Dropping it ends all of it.
#[derive(Debug)]
pub struct Stack {
    /// The gateway that most tests talk to.
    pub gateway: Gateway,
    /// Further ones, where several sidecars were asked for.
    pub peers: Vec<Gateway>,
    /// The Redis that the sidecars share, if there is one.
    pub redis: Option<Redis>,
    /// The model servers, in the order in which they were asked for.
    pub models: Vec<ModelServer>,
    /// The operator's YAML, filled in.
    config: PathBuf,
    directory: Directory,
}

/// A sidecar and the Envoy in front of it.
#[derive(Debug)]
pub struct Gateway {
    /// The Envoy. It ends first, so that no request finds the sidecar gone.
    pub envoy: Envoy,
    /// The sidecar.
    pub sidecar: Sidecar,
    client: Client,
}

/// What a stack is to be like.
#[derive(Debug)]
pub struct StackBuilder {
    config: ConfigSource,
    models: Vec<ModelConfig>,
    filter: Filter,
    peers: usize,
    redis: Option<Vec<String>>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    addresses: Addresses,
    directory: Option<PathBuf>,
}

/// Where the first gateway listens; at free ports where nothing is said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    /// Envoy, for clients.
    pub gateway: Option<SocketAddr>,
    /// Envoy's admin interface.
    pub envoy_admin: Option<SocketAddr>,
    /// The sidecar's admin pages.
    pub sidecar_admin: Option<SocketAddr>,
}

#[derive(Debug)]
enum ConfigSource {
    Template(String),
    File(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    Attached,
    Absent,
}

impl Stack {
    /// A stack with this YAML of the operator's, in which [`template`] fills in the addresses of the model servers.
    pub fn builder(template: impl Into<String>) -> StackBuilder {
        StackBuilder::new(ConfigSource::Template(template.into()))
    }

    /// A stack with the operator's YAML in this file, as it is.
    pub fn builder_from_file(path: impl Into<PathBuf>) -> StackBuilder {
        StackBuilder::new(ConfigSource::File(path.into()))
    }

    /// Changes the operator's YAML and waits until every sidecar has read it. Envoy goes on with the bootstrap that it has:
    /// its clusters, and the keys that the Wasm filter knows, stay.
    ///
    /// # Errors
    /// When the template or the file is wrong, or a sidecar does not read it.
    pub async fn reconfigure(&self, template: &str) -> Result<()> {
        let mut before = Vec::new();
        for gateway in self.gateways() {
            before.push(gateway.reloads().await?);
        }
        self.write_config(template)?;
        for (gateway, before) in self.gateways().zip(before) {
            until("the sidecar had read its configuration", async || {
                gateway.reloads().await.is_ok_and(|reloads| reloads > before)
            })
            .await?;
        }
        Ok(())
    }

    /// All gateways.
    pub fn gateways(&self) -> impl Iterator<Item = &Gateway> {
        iter::once(&self.gateway).chain(&self.peers)
    }

    /// A client of the gateway, without a key.
    pub fn client(&self) -> Client {
        self.gateway.client()
    }

    /// The metrics of the gateway's sidecar.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn sidecar_metrics(&self) -> Result<Metrics> {
        self.gateway.sidecar.metrics().await
    }

    /// The counters that the sidecars share in Redis, by the limits of the YAML as it is now.
    ///
    /// # Errors
    /// When the stack has no Redis, or the YAML has errors.
    pub fn counters(&self) -> Result<Counters> {
        let redis = self.redis.as_ref().ok_or_else(|| Error::unexpected("the stack has no", "Redis"))?;
        let read = fs::read_to_string(&self.config);
        Counters::of(&read.map_err(Error::io(format!("read {}", self.config.display())))?, redis)
    }

    /// Has the model servers forget what they were asked.
    pub fn forget_requests(&self) {
        self.models.iter().for_each(ModelServer::forget_requests);
    }

    /// Where its logs and sockets are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// In one step, as an editor or a ConfigMap does it.
    fn write_config(&self, template: &str) -> Result<()> {
        let addresses: Vec<_> = self.models.iter().map(ModelServer::addr).collect();
        write_config(&self.config, self.directory.path(), &template::fill(template, &addresses)?)
    }
}

impl Gateway {
    /// A client of it, without a key.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    async fn reloads(&self) -> Result<f64> {
        Ok(self.sidecar.metrics().await?.sum("attache_config_reloads_total", &[]))
    }
}

impl StackBuilder {
    fn new(config: ConfigSource) -> Self {
        Self {
            config,
            models: Vec::new(),
            filter: Filter::Attached,
            peers: 0,
            redis: None,
            arguments: Vec::new(),
            environment: vec![(REDIS_TIMEOUT.0.to_owned(), REDIS_TIMEOUT.1.to_owned())],
            addresses: Addresses::default(),
            directory: None,
        }
    }

    /// So many model servers more, quick ones that accept any model name.
    #[must_use]
    pub fn models(mut self, count: usize) -> Self {
        self.models.extend((0..count).map(|_| ModelConfig::default()));
        self
    }

    /// One model server more.
    #[must_use]
    pub fn model(mut self, config: ModelConfig) -> Self {
        self.models.push(config);
        self
    }

    /// Leaves the Wasm filter out: the sidecar makes all checks.
    #[must_use]
    pub fn without_wasm(mut self) -> Self {
        self.filter = Filter::Absent;
        self
    }

    /// So many sidecars, each behind an Envoy of its own; 1 otherwise, and at least 1.
    #[must_use]
    pub fn sidecars(mut self, count: usize) -> Self {
        self.peers = count.saturating_sub(1);
        self
    }

    /// A Redis that the sidecars share; each has its ledger in memory otherwise.
    #[must_use]
    pub fn redis(self) -> Self {
        self.redis_with(&[])
    }

    /// The same, with further arguments of `redis-server`.
    #[must_use]
    pub fn redis_with(mut self, arguments: &[&str]) -> Self {
        self.redis = Some(arguments.iter().map(|&argument| argument.to_owned()).collect());
        self
    }

    /// Further arguments of `attache run`.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// An environment variable of the sidecars and of the rendering, such as `ATTACHE_PATH_PREFIX`.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Where the first gateway listens.
    #[must_use]
    pub fn addresses(mut self, addresses: Addresses) -> Self {
        self.addresses = addresses;
        self
    }

    /// Keeps logs and sockets in this directory, which is emptied first; in a temporary one otherwise.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = Some(path.into());
        self
    }

    /// Starts all of it and waits until it is ready.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn start(self) -> Result<Stack> {
        let directory = self.directory.as_deref().map_or_else(Directory::temporary, Directory::kept)?;
        let mut models = Vec::new();
        for config in self.models {
            let listen = config.listen.clone();
            let server = ModelServer::start(config).await;
            models.push(server.map_err(Error::io(format!("start a model server on {listen}")))?);
        }
        let redis = match &self.redis {
            Some(arguments) => {
                let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
                Some(Redis::start(directory.path(), &arguments).await?)
            }
            None => None,
        };
        let config = match self.config {
            ConfigSource::File(path) => path,
            ConfigSource::Template(template) => {
                let addresses: Vec<_> = models.iter().map(ModelServer::addr).collect();
                // A directory of its own, as the sidecar watches it: a log in it would be a change for ever.
                let path = directory.path().join("config/attache.yaml");
                write_config(&path, directory.path(), &template::fill(&template, &addresses)?)?;
                path
            }
        };
        let wasm = match self.filter {
            Filter::Attached => Some(tools::wasm_filter()?),
            Filter::Absent => None,
        };
        let start = |index: usize, addresses: Addresses| {
            let sidecar = SidecarOptions {
                config: vec![config.clone()],
                redis: redis.as_ref().map(Redis::url),
                admin: addresses.sidecar_admin,
                arguments: self.arguments.clone(),
                environment: self.environment.clone(),
            };
            let envoy = EnvoyOptions {
                config: vec![config.clone()],
                wasm: wasm.clone(),
                listen: addresses.gateway,
                admin: addresses.envoy_admin,
                environment: self.environment.clone(),
                ..EnvoyOptions::default()
            };
            start_gateway(index, sidecar, envoy, directory.path())
        };
        let peers = try_join_all((1..=self.peers).map(|index| start(index, Addresses::default())));
        let (gateway, peers) = try_join(start(0, self.addresses), peers).await?;
        Ok(Stack { gateway, peers, redis, models, config, directory })
    }
}

async fn start_gateway(
    index: usize,
    sidecar: SidecarOptions,
    mut envoy: EnvoyOptions,
    directory: &Path,
) -> Result<Gateway> {
    let sidecar = Sidecar::start(&format!("sidecar-{index}"), sidecar, directory).await?;
    sidecar.listen().clone_into(&mut envoy.extproc);
    let envoy = Envoy::start(&format!("envoy-{index}"), &envoy, directory).await?;
    let client = envoy.client()?;
    Ok(Gateway { envoy, sidecar, client })
}

fn write_config(path: &Path, draft_directory: &Path, text: &str) -> Result<()> {
    let draft = draft_directory.join("attache.yaml.draft");
    let write = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&draft, text)?;
        fs::rename(&draft, path)
    };
    write().map_err(Error::io(format!("write {}", path.display())))
}
