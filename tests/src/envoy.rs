//! A real Envoy, on the bootstrap that `attache render static` writes, or on what Envoy Gateway would give it.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    client::Client,
    error::{Error, LastLines, Result},
    gateway_profile::{self, Places},
    port,
    process::{Process, Signal},
    sidecar::{http, page},
    tools::{self, Profile},
};

/// How an Envoy is started.
#[derive(Clone, Debug, Default)]
pub struct EnvoyOptions {
    /// Files and directories with the operator's YAML.
    pub config: Vec<PathBuf>,
    /// Where the sidecar is: `unix:/path` or `HOST:PORT`.
    pub extproc: String,
    /// The Wasm filter's file; without it the sidecar makes all checks.
    pub wasm: Option<PathBuf>,
    /// Where it listens; at a free port without.
    pub listen: Option<SocketAddr>,
    /// Where its admin interface is; at a free port without.
    pub admin: Option<SocketAddr>,
    /// Environment variables of `attache render static`.
    pub environment: Vec<(String, String)>,
}

/// An Envoy; killed when it is dropped.
#[derive(Debug)]
pub struct Envoy {
    listen: SocketAddr,
    admin: SocketAddr,
    process: Process,
    http: reqwest::Client,
}

/// Envoy's counters and gauges at one moment.
#[derive(Clone, Debug, Default)]
pub struct Stats(BTreeMap<String, u64>);

impl Envoy {
    /// Renders its bootstrap, starts it and waits until it is ready. The bootstrap, `<name>.yaml`, and the log,
    /// `<name>.log`, are in `directory`.
    ///
    /// # Errors
    /// When the configuration has errors, or Envoy does not get ready.
    pub async fn start(name: &str, options: &EnvoyOptions, directory: &Path) -> Result<Self> {
        let http = http()?;
        let is_fixed = options.listen.is_some() || options.admin.is_some();
        let mut attempts = if is_fixed { 0 } else { port::ATTEMPTS };
        loop {
            let listen = options.listen.map_or_else(port::free, Ok)?;
            let admin = options.admin.map_or_else(port::free, Ok)?;
            let bootstrap = directory.join(format!("{name}.yaml"));
            let text = render(options, listen, admin).await?;
            fs::write(&bootstrap, text).map_err(Error::io(format!("write {}", bootstrap.display())))?;
            match launch(name, &bootstrap, admin, directory, &http).await {
                Ok(process) => return Ok(Self { listen, admin, process, http }),
                Err(error) if attempts == 0 || !port::was_taken(&error) => return Err(error),
                Err(_) => attempts -= 1,
            }
        }
    }

    /// Starts it on a bootstrap that was written by hand, and says where that has it listen. Its log, `<name>.log`, is in
    /// `directory`.
    ///
    /// # Errors
    /// When Envoy does not get ready.
    pub async fn start_with(
        name: &str,
        bootstrap: &Path,
        listen: SocketAddr,
        admin: SocketAddr,
        directory: &Path,
    ) -> Result<Self> {
        let http = http()?;
        let process = launch(name, bootstrap, admin, directory, &http).await?;
        Ok(Self { listen, admin, process, http })
    }

    /// Has it end, and waits until it is gone.
    ///
    /// # Errors
    /// When it has not ended after 30 s.
    pub async fn terminate(&mut self) -> Result<()> {
        self.process.signal(Signal::Terminate)?;
        self.process.end().await.map(drop)
    }

    /// A client of this Envoy, without a key.
    ///
    /// # Errors
    /// When the system gives no client.
    pub fn client(&self) -> Result<Client> {
        Client::new(self.url())
    }

    /// Where it listens, as a URL without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    /// Where its admin interface is, as a URL without a path.
    pub fn admin_url(&self) -> String {
        format!("http://{}", self.admin)
    }

    /// Its counters and gauges.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn stats(&self) -> Result<Stats> {
        Ok(Stats::parse(&page(&self.http, &format!("{}/stats?type=All", self.admin_url())).await?))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// All that it wrote.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

impl Stats {
    /// Reads Envoy's page: `name: value` lines. Histograms and texts are left out.
    fn parse(page: &str) -> Self {
        let pairs = page.lines().filter_map(|line| line.rsplit_once(": "));
        Self(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
    }

    /// A counter or gauge; 0 if Envoy has none of this name, as it makes some when they are first counted.
    pub fn value(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// How many requests the Wasm filter let pass.
    pub fn passed_by_filter(&self) -> u64 {
        self.value("wasmcustom.attache_filter_passed")
    }

    /// How many requests the Wasm filter refused, for any reason.
    pub fn refused_by_filter(&self) -> u64 {
        let refusals = self.0.iter().filter(|(name, _)| name.starts_with("wasmcustom.attache_filter_refused_"));
        refusals.map(|(_, count)| count).sum()
    }
}

async fn launch(
    name: &str,
    bootstrap: &Path,
    admin: SocketAddr,
    directory: &Path,
    http: &reqwest::Client,
) -> Result<Process> {
    let mut command = Command::new(tools::envoy()?);
    command.arg("-c").arg(bootstrap);
    command.args(["--use-dynamic-base-id", "--concurrency", "1", "-l", "warn"]);
    let mut process = Process::spawn(name, command, directory).await?;
    let ready = format!("http://{admin}/ready");
    process.until("it was ready", async || page(http, &ready).await.is_ok()).await?;
    Ok(process)
}

/// The bootstrap, by the profile under test.
///
/// # Errors
/// When the configuration has errors.
pub async fn render(options: &EnvoyOptions, listen: SocketAddr, admin: SocketAddr) -> Result<String> {
    match tools::profile()? {
        Profile::Static => render_static(options, listen, admin).await,
        Profile::EnvoyGateway => {
            let places = Places { listen, admin, extproc: options.extproc.clone(), wasm: options.wasm.clone() };
            gateway_profile::render(&options.config, &options.environment, &places).await
        }
    }
}

async fn render_static(options: &EnvoyOptions, listen: SocketAddr, admin: SocketAddr) -> Result<String> {
    let mut command = tools::attache()?;
    command.args(["render", "static"]).args(&options.config);
    command.args(["--listen", &listen.to_string(), "--admin", &admin.to_string(), "--extproc", &options.extproc]);
    if let Some(wasm) = &options.wasm {
        command.arg("--wasm").arg(wasm);
    }
    command.envs(options.environment.iter().map(|(name, value)| (name, value)));
    let output = tokio::process::Command::from(command).output().await.map_err(Error::io("run `attache render`"))?;
    if !output.status.success() {
        return Err(Error::Ended {
            process: "`attache render static`".to_owned(),
            status: output.status,
            what: "it had written Envoy's bootstrap".to_owned(),
            log: LastLines::of(&String::from_utf8_lossy(&output.stderr)),
        });
    }
    String::from_utf8(output.stdout).map_err(|error| Error::unexpected("the bootstrap is no UTF-8", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_gauges_are_read_and_the_rest_is_left_out() {
        let stats = Stats::parse(
            "cluster.default/pool.upstream_rq_total: 7\nwasmcustom.attache_filter_passed: 2\n\
             wasmcustom.attache_filter_refused_key_missing: 3\nwasmcustom.attache_filter_refused_key_unknown: 1\n\
             version: \"x\"\nhttp.attache.downstream_rq_time: P0(nan,1) P25(nan,1)\n",
        );
        assert_eq!(stats.value("cluster.default/pool.upstream_rq_total"), 7);
        assert_eq!((stats.passed_by_filter(), stats.refused_by_filter()), (2, 4));
        assert_eq!(stats.0.len(), 4);
    }
}
