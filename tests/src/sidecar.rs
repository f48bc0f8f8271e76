//! The sidecar, `attache run`, as a process of its own.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitStatus,
};

use crate::{
    error::{Error, Result},
    metrics::Metrics,
    port,
    process::{Process, Signal},
    tools,
};

/// The longest path of a Unix socket: `sun_path` has 108 bytes, the last of them zero.
const SOCKET_PATH_BYTES: usize = 107;

/// How a sidecar is started.
#[derive(Clone, Debug, Default)]
pub struct SidecarOptions {
    /// Files and directories with the operator's YAML.
    pub config: Vec<PathBuf>,
    /// The Redis of its ledger; in memory without.
    pub redis: Option<String>,
    /// Where its admin pages are; at a free port without.
    pub admin: Option<SocketAddr>,
    /// Further arguments of `attache run`.
    pub arguments: Vec<String>,
    /// Environment variables; they give way to arguments.
    pub environment: Vec<(String, String)>,
}

/// A sidecar; killed when it is dropped.
#[derive(Debug)]
pub struct Sidecar {
    name: String,
    directory: PathBuf,
    options: SidecarOptions,
    listen: String,
    admin: SocketAddr,
    process: Process,
    http: reqwest::Client,
}

impl Sidecar {
    /// Starts one and waits until it is ready. Its socket and its log, `<name>.log`, are in `directory`, which must not be
    /// the one that its configuration is watched in.
    ///
    /// # Errors
    /// When it does not get ready.
    pub async fn start(name: &str, options: SidecarOptions, directory: &Path) -> Result<Self> {
        let socket = directory.join(format!("{name}.sock"));
        let listen = if socket.as_os_str().len() <= SOCKET_PATH_BYTES {
            format!("unix:{}", socket.display())
        } else {
            port::free()?.to_string()
        };
        let http = http()?;
        let (admin, process) = launch(name, &options, &listen, directory, &http).await?;
        Ok(Self { name: name.to_owned(), directory: directory.to_owned(), options, listen, admin, process, http })
    }

    /// Starts it again at the same address, killing it if it still runs; its log goes on.
    ///
    /// # Errors
    /// When it does not get ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill().await?;
        (self.admin, self.process) =
            launch(&self.name, &self.options, &self.listen, &self.directory, &self.http).await?;
        Ok(())
    }

    /// Kills it, as a crash would, and waits until it is gone.
    ///
    /// # Errors
    /// When it stays.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// Has it drain, and waits for its end.
    ///
    /// # Errors
    /// When it has not ended after 30 s.
    pub async fn terminate(&mut self) -> Result<ExitStatus> {
        self.process.signal(Signal::Terminate)?;
        self.process.end().await
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The operating system's.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Where Envoy finds it: `unix:/path` or `HOST:PORT`.
    pub fn listen(&self) -> &str {
        &self.listen
    }

    /// Where its admin pages are, as a URL without a path.
    pub fn admin_url(&self) -> String {
        format!("http://{}", self.admin)
    }

    /// One of its admin pages.
    ///
    /// # Errors
    /// When it does not answer, or with an error.
    pub async fn page(&self, path: &str) -> Result<String> {
        page(&self.http, &format!("{}{path}", self.admin_url())).await
    }

    /// Its metrics.
    ///
    /// # Errors
    /// When it does not answer, or with no metrics.
    pub async fn metrics(&self) -> Result<Metrics> {
        Metrics::parse(&self.page("/metrics").await?)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// All that it wrote, the runs before a restart included.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

async fn launch(
    name: &str,
    options: &SidecarOptions,
    listen: &str,
    directory: &Path,
    http: &reqwest::Client,
) -> Result<(SocketAddr, Process)> {
    let mut attempts = if options.admin.is_some() { 0 } else { port::ATTEMPTS };
    loop {
        let admin = options.admin.map_or_else(port::free, Ok)?;
        let mut command = tools::attache()?;
        command.arg("run").arg("--config").args(&options.config);
        command.args(["--extproc-listen", listen, "--admin-listen", &admin.to_string()]);
        if let Some(redis) = &options.redis {
            command.args(["--redis", redis]);
        }
        command.args(&options.arguments).envs(options.environment.iter().map(|(name, value)| (name, value)));
        let mut process = Process::spawn(name, command, directory).await?;
        let ready = format!("http://{admin}/readyz");
        match process.until("it was ready", async || page(http, &ready).await.is_ok()).await {
            Ok(()) => return Ok((admin, process)),
            Err(error) if attempts == 0 || !port::was_taken(&error) => return Err(error),
            Err(_) => attempts -= 1,
        }
    }
}

/// A client for pages of this machine: no proxy of the environment stands between.
pub(crate) fn http() -> Result<reqwest::Client> {
    reqwest::Client::builder().no_proxy().build().map_err(Error::http("make an HTTP client"))
}

/// The text of a page that answers well.
pub(crate) async fn page(http: &reqwest::Client, url: &str) -> Result<String> {
    let get = async { http.get(url).send().await?.error_for_status()?.text().await };
    get.await.map_err(Error::http(format!("read {url}")))
}
