//! Commands and options. Each option has an environment variable, `ATTACHE_...`.

mod doctor;
mod explain;
mod health;
mod http;
mod init;
mod key;
mod limits;
mod output;
mod placement;
mod render;
mod table;

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use attache::admin::Guard;
use attache::affinity::SecretSeed;
use attache::config;
use attache::config::model::Settings;
use attache::config::report::{Style, Verdict};
use attache::exchange::DEFAULT_BODY_MEMORY_BYTES;
use attache::limit::{RedisFiles, RedisOptions, RedisTarget};
use attache::run::{self, RunOptions};
use attache::server::listen::ListenAddress;
use attache::sharing;
use attache_gate::UnattachedStatus;
use clap::{Args, Parser, Subcommand, ValueEnum};
use doctor::DoctorArgs;
use explain::ExplainArgs;
use health::HealthArgs;
use init::InitArgs;
use key::KeyCommand;
use limits::LimitsCommand;
use render::RenderCommand;
use tracing_subscriber::EnvFilter;

/// Turns an Envoy into a gateway for LLM traffic.
#[derive(Debug, Parser)]
#[command(name = "attache", version, about, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the sidecar.
    Run(Box<RunArgs>),
    /// Write a starting file, with a key, that passes `check` and teaches by comments.
    Init(InitArgs),
    /// Make an API key and the ClientKey that knows its hash.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Report errors and warnings in configuration files; exit status 1 if there is an error.
    Check(CheckArgs),
    /// Print configuration for Envoy.
    #[command(subcommand)]
    Render(RenderCommand),
    /// Ask a running sidecar how limits stand, and let one begin anew.
    #[command(subcommand)]
    Limits(LimitsCommand),
    /// Show what a request's prompt is for a cache: lengths and hashes, never its text.
    Explain(ExplainArgs),
    /// Say whether an Envoy sends its traffic through the sidecar, and what about it will hurt.
    Doctor(DoctorArgs),
    /// Say whether a sidecar takes requests; exit status 1 if it does not. For containers' health checks.
    Health(HealthArgs),
    /// Print the JSON Schema of our own kinds, for editors.
    Schema,
}

/// What must be the same for the sidecar and for the Envoy in front of it.
#[derive(Debug, Args)]
struct SettingsArgs {
    /// A path before `/v1/...`, such as /enterpriseai/gateway.
    #[arg(long, env = "ATTACHE_PATH_PREFIX", default_value = "", value_parser = path_prefix)]
    path_prefix: String,
    /// The largest request body, in bytes or as 512KiB, 32MiB.
    #[arg(long, env = "ATTACHE_MAX_BODY", default_value = "32MiB", value_parser = byte_size)]
    max_body: u64,
    /// The status of an answer to a key that is known, but not attached to what it calls.
    #[arg(long, env = "ATTACHE_UNATTACHED_STATUS", default_value = "401", value_name = "401|403")]
    unattached_status: Unattached,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Unattached {
    /// As for a key that nobody knows.
    #[value(name = "401")]
    Unauthorized,
    /// Told apart from it.
    #[value(name = "403")]
    Forbidden,
}

impl From<Unattached> for UnattachedStatus {
    fn from(status: Unattached) -> Self {
        match status {
            Unattached::Unauthorized => Self::Unauthorized,
            Unattached::Forbidden => Self::Forbidden,
        }
    }
}

impl From<SettingsArgs> for Settings {
    fn from(args: SettingsArgs) -> Self {
        Self {
            path_prefix: args.path_prefix,
            max_body_bytes: args.max_body,
            unattached_status: args.unattached_status.into(),
            ..Self::default()
        }
    }
}

/// Where the keys to upstreams are that no document has.
#[derive(Debug, Args)]
struct SecretsArgs {
    /// A directory with the keys to upstreams as files, NAMESPACE/NAME/apiKey, as a mounted Secret has them. Read again when
    /// they change.
    #[arg(long, env = "ATTACHE_SECRETS_DIR", value_name = "DIR")]
    secrets_dir: Option<PathBuf>,
}

impl SecretsArgs {
    fn directory(self) -> Option<PathBuf> {
        // An empty variable is how deployments say "none".
        self.secrets_dir.filter(|directory| !directory.as_os_str().is_empty())
    }
}

/// What the admin pages demand of their callers, where they demand something.
#[derive(Debug, Args)]
struct AdminTokenArgs {
    /// A file whose first line is the token that all admin pages but /healthz and /readyz demand, read again for every request.
    #[arg(long, env = "ATTACHE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

impl AdminTokenArgs {
    fn file(self) -> Option<PathBuf> {
        // An empty variable is how deployments say "none".
        self.admin_token_file.filter(|file| !file.as_os_str().is_empty())
    }

    /// The token to send.
    fn token(&self) -> Result<Option<String>, String> {
        let Some(file) = self.admin_token_file.as_ref().filter(|file| !file.as_os_str().is_empty()) else {
            return Ok(None);
        };
        let token = File::open(file).and_then(attache::admin::first_line);
        token.map(Some).map_err(|error| format!("--admin-token-file {}: {error}", file.display()))
    }
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Files and directories with the operator's YAML.
    #[arg(long, env = "ATTACHE_CONFIG", required = true, num_args = 1.., value_delimiter = ',')]
    config: Vec<PathBuf>,
    /// Where Envoy finds the sidecar: HOST:PORT or unix:/path.
    #[arg(long, env = "ATTACHE_EXTPROC_LISTEN", default_value = "127.0.0.1:10001")]
    extproc_listen: ListenAddress,
    /// Where /healthz, /readyz, /metrics and /config are served.
    #[arg(long, env = "ATTACHE_ADMIN_LISTEN", default_value = "127.0.0.1:10002")]
    admin_listen: String,
    /// A name by which the admin pages may be asked for, besides localhost and addresses; once for each. A page in a browser can have
    /// any other name stand for this machine.
    #[arg(long, env = "ATTACHE_ADMIN_HOST", value_name = "NAME", value_delimiter = ',')]
    admin_host: Vec<String>,
    #[command(flatten)]
    admin_token: AdminTokenArgs,
    /// Where /metrics, /healthz and /readyz are served besides, and nothing else: for monitoring that need not reach the admin port.
    #[arg(long, env = "ATTACHE_METRICS_LISTEN", value_name = "HOST:PORT")]
    metrics_listen: Option<String>,
    #[command(flatten)]
    redis: RedisArgs,
    #[command(flatten)]
    affinity: AffinityArgs,
    /// How many sidecars share the ledger at least. While Redis does not answer, each admits up to its share of what was
    /// left of a limit. Those that are seen running count too, if they are more; say it where sidecars may start meanwhile.
    #[arg(long, env = "ATTACHE_REPLICAS", value_name = "N", default_value = "1")]
    replicas: NonZeroUsize,
    /// How long requests are still taken after SIGTERM, while /readyz and the health protocol say already that they should go
    /// elsewhere. For an Envoy with several sidecars; under Kubernetes a preStop hook does the same.
    #[arg(long, env = "ATTACHE_DRAIN_DELAY", default_value = "0s", value_parser = duration_or_none)]
    drain_delay: Duration,
    /// How long requests in flight may take to end after SIGTERM.
    #[arg(long, env = "ATTACHE_DRAIN_TIMEOUT", default_value = "30s", value_parser = duration)]
    drain_timeout: Duration,
    /// What the bodies of all requests may take in memory until they have gone on, in bytes or as 512MiB; beyond, requests get
    /// 503. One API key gets half of it at most. Without it 192MiB, or six times --max-body where that is more.
    #[arg(long, env = "ATTACHE_BODY_MEMORY", value_name = "SIZE", value_parser = byte_size)]
    body_memory: Option<u64>,
    /// Threads that serve requests; a third of the cores where this is not set, and two at least.
    #[arg(long, env = "ATTACHE_WORKERS", value_name = "N")]
    workers: Option<NonZeroUsize>,
    /// The form of the log on standard error; its level is set by RUST_LOG.
    #[arg(long, env = "ATTACHE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
    #[command(flatten)]
    secrets: SecretsArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// The Redis that shares the token ledger among sidecars. Values from the environment are not shown: they may hold passwords.
#[derive(Args)]
struct RedisArgs {
    /// The Redis that shares the token ledger among sidecars: redis://HOST:PORT, rediss://HOST:PORT (TLS),
    /// redis+unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE or redis+cluster://HOST:PORT,HOST:PORT. Without it
    /// the ledger is in this process alone.
    #[arg(long, env = "ATTACHE_REDIS", value_name = "URL", hide_env_values = true)]
    redis: Option<String>,
    /// A file whose first line is the password, read anew for every connection.
    #[arg(long, env = "ATTACHE_REDIS_PASSWORD_FILE", value_name = "FILE")]
    redis_password_file: Option<PathBuf>,
    /// The same for the sentinels' password.
    #[arg(long, env = "ATTACHE_REDIS_SENTINEL_PASSWORD_FILE", value_name = "FILE")]
    redis_sentinel_password_file: Option<PathBuf>,
    /// Certificates (PEM) of the authorities by which to trust Redis; those of the operating system without.
    #[arg(long, env = "ATTACHE_REDIS_CA", value_name = "FILE")]
    redis_ca: Option<PathBuf>,
    /// The sidecar's own certificate (PEM), where Redis asks for one.
    #[arg(long, env = "ATTACHE_REDIS_CERT", value_name = "FILE")]
    redis_cert: Option<PathBuf>,
    /// The key of that certificate (PEM).
    #[arg(long, env = "ATTACHE_REDIS_KEY", value_name = "FILE")]
    redis_key: Option<PathBuf>,
    /// How long a request waits for the ledger to answer.
    #[arg(long, env = "ATTACHE_REDIS_TIMEOUT", default_value = "25ms", value_parser = duration)]
    redis_timeout: Duration,
}

impl RedisArgs {
    fn target(self) -> Result<Option<(RedisTarget, RedisOptions)>, String> {
        // An empty variable is how deployments say "none".
        let given = |file: Option<PathBuf>| file.filter(|file| !file.as_os_str().is_empty());
        let files = RedisFiles {
            password: given(self.redis_password_file),
            sentinel_password: given(self.redis_sentinel_password_file),
            ca: given(self.redis_ca),
            certificate: given(self.redis_cert),
            key: given(self.redis_key),
        };
        let Some(url) = self.redis.filter(|url| !url.is_empty()) else {
            // Whoever says how to reach a Redis means one: its limits would be each sidecar's own.
            return match files == RedisFiles::default() {
                true => Ok(None),
                false => {
                    Err("--redis-password-file and other files of Redis without --redis: say where it is".to_owned())
                }
            };
        };
        let target: Result<RedisTarget, _> = url.parse().and_then(|target: RedisTarget| target.with_files(files));
        let options = RedisOptions { deadline: self.redis_timeout, ..RedisOptions::default() };
        target.map(|target| Some((target, options))).map_err(|error| format!("--redis: {error}"))
    }
}

impl fmt::Debug for RedisArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisArgs").finish_non_exhaustive()
    }
}

/// What sidecars tell each other of where prompts went.
#[derive(Debug, Args)]
struct AffinityArgs {
    /// Whether sidecars tell each other over Redis which replica got which prompt, as hashes, and how busy they keep each; on
    /// where there is a --redis. Redis is never asked while a request waits.
    #[arg(long, env = "ATTACHE_AFFINITY_SHARING", value_name = "on|off")]
    affinity_sharing: Option<Switch>,
    /// A file with a secret that all hashes of prompts depend on, so that nobody who reads them can try out what the prompts
    /// were; the same for all sidecars.
    #[arg(long, env = "ATTACHE_AFFINITY_SECRET_FILE", value_name = "FILE")]
    affinity_secret_file: Option<PathBuf>,
}

impl AffinityArgs {
    fn secret(&self) -> Result<u64, String> {
        // An empty variable is how deployments say "none".
        let Some(file) = self.affinity_secret_file.as_deref().filter(|file| !file.as_os_str().is_empty()) else {
            return Ok(0);
        };
        sharing::secret_in(file).map_err(|error| format!("--affinity-secret-file {}: {error}", file.display()))
    }

    fn sharing(&self, redis: Option<&RedisTarget>) -> Result<Option<RedisTarget>, String> {
        match (self.affinity_sharing, redis) {
            (Some(Switch::Off), _) | (None, None) => Ok(None),
            (Some(Switch::On), None) => Err("--affinity-sharing on needs a --redis to share over".to_owned()),
            (_, Some(target)) => Ok(Some(target.clone())),
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Files and directories.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Exit with status 1 for warnings, too: whatever is left out, passed over or not known. For pipelines.
    #[arg(long, alias = "deny-warnings")]
    strict: bool,
    #[command(flatten)]
    secrets: SecretsArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Cli {
    /// Does what was asked.
    pub(crate) fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Run(args) => args.run(),
            Command::Init(args) => args.run(),
            Command::Key(command) => command.run(),
            Command::Check(args) => args.run(),
            Command::Render(command) => command.run(),
            Command::Limits(command) => command.run(),
            Command::Explain(args) => args.run(),
            Command::Doctor(args) => args.run(),
            Command::Health(args) => args.run(),
            Command::Schema => print_schema(),
        };
        result.unwrap_or_else(|error| {
            complain(&format!("attache: {error}"));
            ExitCode::FAILURE
        })
    }
}

fn print_schema() -> Result<ExitCode, String> {
    let schema =
        serde_json::to_string_pretty(&config::schema()).map_err(|error| format!("cannot write JSON: {error}"))?;
    writeln!(io::stdout().lock(), "{schema}").map_err(|error| format!("cannot write: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

impl RunArgs {
    fn run(self) -> Result<ExitCode, String> {
        log(self.log_format);
        let redis = self.redis.target()?;
        let options = RunOptions {
            config: self.config,
            extproc_listen: self.extproc_listen,
            admin_listen: self.admin_listen,
            admin_guard: Guard {
                hosts: self.admin_host.into_iter().filter(|host| !host.is_empty()).collect(),
                token_file: self.admin_token.file(),
            },
            metrics_listen: self.metrics_listen.filter(|address| !address.is_empty()),
            sharing: self.affinity.sharing(redis.as_ref().map(|(target, _)| target))?,
            redis,
            replicas: self.replicas.get(),
            drain_delay: self.drain_delay,
            drain_timeout: self.drain_timeout,
            settings: Settings {
                affinity_secret: SecretSeed(self.affinity.secret()?),
                secrets_dir: self.secrets.directory(),
                body_memory_bytes: body_memory(self.body_memory, self.settings.max_body)?,
                ..self.settings.into()
            },
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.workers.map_or_else(default_workers, NonZeroUsize::get))
            .enable_all()
            .build()
            .map_err(|error| format!("cannot start the runtime: {error}"))?;
        runtime.block_on(run::run(options)).map_err(|error| error.to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl CheckArgs {
    fn run(self) -> Result<ExitCode, String> {
        let stdout = io::stdout();
        let settings = Settings { secrets_dir: self.secrets.directory(), ..self.settings.into() };
        let verdict = config::check(&self.paths, settings, Style::for_stream(&stdout), &mut stdout.lock())
            .map_err(|error| format!("cannot write the report: {error}"))?;
        let denied = self.strict && verdict == Verdict::Doubtful;
        Ok(if denied { ExitCode::FAILURE } else { verdict.into() })
    }
}

/// Says something on standard error, if anybody listens there.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn log(format: LogFormat) {
    // The watcher warns of every directory of a mounted Secret that goes with the swap of its links, as it is meant to.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,notify=error"));
    // Without internal errors: they would go to standard error by a macro that panics where that cannot be written, and a
    // log that is lost must not stop reloading, draining or serving.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}

/// A request costs us about 0.3 to 0.4 of what Envoy and we use for it together, so a third of the cores is ours; workers
/// beyond that only wake each other. Never one alone: reading a body of 32 MiB takes tens of milliseconds, in which every
/// other stream would stand still. (At eight connections on two cores, two workers against one, alternating: CPU per request
/// 73-76 against 74-75 us, added p99 0.9-1.5 against 2.0-3.3 ms.)
fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().div_ceil(3).max(2))
}

/// What Gateway API takes as well: its paths have no empty segment and none that a proxy resolves.
fn path_prefix(text: &str) -> Result<String, String> {
    /// HTTPPathMatch.
    const MAX_BYTES: usize = 1024;
    let prefix = text.trim_end_matches('/');
    if prefix.is_empty() {
        return Ok(String::new());
    }
    if prefix.len() > MAX_BYTES {
        return Err(format!("a path prefix has at most {MAX_BYTES} characters, and this one has {}", prefix.len()));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    let is_segment = |part: &str| !matches!(part, "" | "." | "..") && part.chars().all(is_plain);
    match prefix.strip_prefix('/') {
        Some(path) if path.split('/').all(is_segment) => Ok(prefix.to_owned()),
        _ => Err(format!(
            "`{text}` is no path prefix; write letters, digits or -._~ behind each `/`, such as /enterpriseai/gateway, and \
             no segment that is empty, `.` or `..`"
        )),
    }
}

fn byte_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text {
        text if text.ends_with("KiB") => (text.trim_end_matches("KiB"), 1 << 10),
        text if text.ends_with("MiB") => (text.trim_end_matches("MiB"), 1 << 20),
        text if text.ends_with("GiB") => (text.trim_end_matches("GiB"), 1 << 30),
        text => (text, 1),
    };
    digits
        .trim()
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("`{text}` is no size; write a number of bytes, or 512KiB, 16MiB, 1GiB"))
}

/// The budget of bodies: one key gets half of it, and an encoded body of the largest size takes twice its size while it is decoded.
fn body_memory(given: Option<u64>, max_body: u64) -> Result<u64, String> {
    let least = max_body.saturating_mul(4);
    match given {
        None => Ok(DEFAULT_BODY_MEMORY_BYTES.max(max_body.saturating_mul(6))),
        Some(bytes) if bytes >= least => Ok(bytes),
        Some(bytes) => Err(format!(
            "--body-memory of {bytes} bytes has no room for one body of --max-body ({max_body} bytes): give it {least} at \
             least, or make --max-body less"
        )),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let number = digits.parse::<u64>().ok().filter(|number| *number > 0);
    match (number, unit) {
        (Some(number), "ms") => Ok(Duration::from_millis(number)),
        (Some(number), "s") => Ok(Duration::from_secs(number)),
        (Some(number), "m") => Ok(Duration::from_secs(number.saturating_mul(60))),
        _ => Err(format!("`{text}` is no duration; write 25ms, 30s or 5m")),
    }
}

/// A duration, or `0s` for none at all.
fn duration_or_none(text: &str) -> Result<Duration, String> {
    if text == "0s" { Ok(Duration::ZERO) } else { duration(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn files_of_redis_without_a_redis_are_refused() {
        let redis = |options: &str| {
            let line = format!("attache run --config a.yaml {options}");
            match Cli::try_parse_from(line.split(' ').filter(|word| !word.is_empty())).unwrap().command {
                Command::Run(args) => args.redis.target().map(|target| target.is_some()),
                _ => Err("another command".to_owned()),
            }
        };
        for option in ["--redis-password-file=p", "--redis-sentinel-password-file=p", "--redis-ca=c", "--redis-cert=c"]
        {
            assert!(redis(option).unwrap_err().contains("without --redis"), "{option}");
        }
        assert_eq!(redis("--redis="), Ok(false));
    }

    #[test]
    fn sizes_durations_and_prefixes_are_read_or_refused_with_an_example() {
        assert_eq!(byte_size("16MiB"), Ok(16 << 20));
        assert_eq!(byte_size("1000"), Ok(1000));
        assert!(byte_size("0").is_err() && byte_size("-1").is_err() && byte_size("99999999999GiB").is_err());
        assert_eq!(duration("25ms"), Ok(Duration::from_millis(25)));
        assert!(duration("25").is_err() && duration("0s").is_err());
        assert_eq!(duration_or_none("0s"), Ok(Duration::ZERO));
        assert!(duration_or_none("0").is_err() && duration_or_none("3s").is_ok());
        assert_eq!(path_prefix("/a/"), Ok("/a".to_owned()));
        assert!(path_prefix("a").is_err() && path_prefix("/a b?").is_err());
    }

    #[test]
    fn the_memory_of_bodies_has_room_for_the_largest_body() {
        assert_eq!(body_memory(None, 16 << 20), Ok(192 << 20));
        assert_eq!(body_memory(None, 64 << 20), Ok(384 << 20));
        assert_eq!(body_memory(Some(64 << 20), 16 << 20), Ok(64 << 20));
        let error = body_memory(Some(63 << 20), 16 << 20).unwrap_err();
        assert!(error.contains("--max-body (16777216 bytes): give it 67108864 at least"), "{error}");
    }

    #[test]
    fn a_path_prefix_has_no_segment_that_gateway_api_refuses_or_a_proxy_resolves() {
        for prefix in ["", "/", "/a/", "/a.b/..c/.d/e..", &format!("/{}", "x".repeat(1023))] {
            assert_eq!(path_prefix(prefix), Ok(prefix.trim_end_matches('/').to_owned()));
        }
        for prefix in ["/a//b", "//a", "/a/../b", "/./a", "/a/.", "/a/..", "/..", "/a/./", "/a%2fb"] {
            let error = path_prefix(prefix).unwrap_err();
            assert!(error.contains("no path prefix"), "{prefix}: {error}");
        }
        assert!(path_prefix(&format!("/{}", "x".repeat(1024))).unwrap_err().contains("at most 1024 characters"));
    }
}
