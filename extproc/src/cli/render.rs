//! `attache render`: the operator's documents as configuration for Envoy, or for an Envoy Gateway.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

use attache::config::model::Config;
use attache::config::{self, DocumentText, Outcome};
use attache::limit::RedisTarget;
use attache::render::envoy_gateway::{
    self, GatewayName, GatewayOptions, GatewayRedis, ServiceName, SidecarForm, WasmSource, is_dns_label,
    is_dns_subdomain,
};
use attache::render::{self, ExtprocAddress, StaticOptions};
use clap::{Args, Subcommand, ValueEnum};

use super::{SettingsArgs, complain};

#[derive(Debug, Subcommand)]
pub(super) enum RenderCommand {
    /// One complete Envoy bootstrap.
    Static(StaticArgs),
    /// Objects for an Envoy Gateway that is there already; nothing of it is changed that is not named.
    EnvoyGateway(Box<GatewayArgs>),
}

impl RenderCommand {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        match self {
            Self::Static(args) => args.run(),
            Self::EnvoyGateway(args) => args.run(),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct StaticArgs {
    /// Files and directories with the operator's YAML.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Where Envoy listens.
    #[arg(long, env = "ATTACHE_LISTEN", default_value = "127.0.0.1:10000", value_parser = socket_address)]
    listen: SocketAddr,
    /// Where the sidecar is: HOST:PORT or unix:/path.
    #[arg(long, env = "ATTACHE_EXTPROC", default_value = "127.0.0.1:10001")]
    extproc: ExtprocAddress,
    /// The Wasm filter's file; without it the sidecar makes all checks.
    #[arg(long, env = "ATTACHE_WASM")]
    wasm: Option<PathBuf>,
    /// Where Envoy's own admin interface listens; without it there is none.
    #[arg(long, env = "ATTACHE_ADMIN", value_parser = socket_address)]
    admin: Option<SocketAddr>,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl StaticArgs {
    fn run(self) -> Result<ExitCode, String> {
        let (config, _) = compile(&self.paths, self.settings)?;
        let options = StaticOptions { listen: self.listen, extproc: self.extproc, wasm: self.wasm, admin: self.admin };
        print(&render::bootstrap(&config, &options).map_err(|error| error.to_string())?)
    }
}

#[derive(Debug, Args)]
pub(super) struct GatewayArgs {
    /// Files and directories with the operator's YAML.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// The Gateway, which has to be there.
    #[arg(long, env = "ATTACHE_GATEWAY", value_name = "NAMESPACE/NAME")]
    gateway: GatewayName,
    /// How the sidecar runs: as a container of each proxy pod, as a Deployment with a Service, or already, by the Helm chart say.
    #[arg(long, env = "ATTACHE_SIDECAR", default_value = "container")]
    sidecar: SidecarArg,
    /// The Service of a sidecar that runs already (`--sidecar external`); its port is 10001 where none is said.
    #[arg(long, env = "ATTACHE_SERVICE", value_name = "NAMESPACE/NAME[:PORT]")]
    service: Option<ServiceName>,
    /// Where the sidecar's Deployment lives; the Gateway's namespace without.
    #[arg(long, env = "ATTACHE_NAMESPACE", value_parser = namespace)]
    namespace: Option<String>,
    /// How many sidecars the Deployment has.
    #[arg(long, env = "ATTACHE_REPLICAS", value_name = "N", default_value = "2")]
    replicas: NonZeroU32,
    /// Where Envoy Gateway runs the Gateway's proxies.
    #[arg(long, env = "ATTACHE_PROXY_NAMESPACE", default_value = "envoy-gateway-system", value_parser = namespace)]
    proxy_namespace: String,
    /// Where Prometheus runs, or whoever else may read metrics.
    #[arg(long, env = "ATTACHE_MONITORING_NAMESPACE", default_value = "monitoring", value_parser = namespace)]
    monitoring_namespace: String,
    /// A host name that the routes are for; all of the Gateway's without. May be given several times.
    #[arg(long, env = "ATTACHE_HOSTNAME", value_delimiter = ',', value_parser = hostname)]
    hostname: Vec<String>,
    /// Where Envoy Gateway finds the Wasm filter: https://HOST/PATH or oci://REGISTRY/IMAGE:TAG. Without it the sidecar makes all
    /// checks.
    #[arg(long, env = "ATTACHE_WASM_URL", value_name = "URL")]
    wasm_url: Option<String>,
    /// The filter's SHA-256, in hexadecimal digits.
    #[arg(long, env = "ATTACHE_WASM_SHA256", value_name = "HEX")]
    wasm_sha256: Option<String>,
    /// The sidecar's image.
    #[arg(long, env = "ATTACHE_IMAGE", default_value = concat!("attache:", env!("CARGO_PKG_VERSION")), value_parser = image)]
    image: String,
    /// The Redis that shares the token ledger among sidecars, without a password. Values from the environment are not shown.
    #[arg(long, env = "ATTACHE_REDIS", value_name = "URL", hide_env_values = true)]
    redis: Option<String>,
    /// The Secret whose key `password` is Redis's password.
    #[arg(long, env = "ATTACHE_REDIS_SECRET", value_name = "NAME", value_parser = object_name)]
    redis_secret: Option<String>,
    #[command(flatten)]
    settings: SettingsArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SidecarArg {
    /// In each proxy pod, by a Unix socket.
    Container,
    /// Pods of its own, by a Service.
    Deployment,
    /// By a Service that is there already; none of the sidecar's own objects is printed.
    External,
}

impl SidecarArg {
    fn form(self, replicas: NonZeroU32, service: Option<ServiceName>) -> Result<SidecarForm, String> {
        match (self, service) {
            (Self::Container, None) => Ok(SidecarForm::Container),
            (Self::Deployment, None) => Ok(SidecarForm::Deployment { replicas }),
            (Self::External, Some(service)) => Ok(SidecarForm::External(service)),
            (Self::External, None) => {
                Err("--sidecar external without --service: say which Service the sidecar has, NAMESPACE/NAME or \
                     NAMESPACE/NAME:PORT"
                    .to_owned())
            }
            (Self::Container | Self::Deployment, Some(_)) => {
                Err("--service is for `--sidecar external` alone: the other forms bring the sidecar and what names it"
                    .to_owned())
            }
        }
    }
}

impl GatewayArgs {
    fn run(self) -> Result<ExitCode, String> {
        let wasm = WasmSource::from_parts(self.wasm_url, self.wasm_sha256).map_err(|error| error.to_string())?;
        let options = GatewayOptions {
            gateway: self.gateway.0,
            namespace: self.namespace,
            proxy_namespace: self.proxy_namespace,
            monitoring_namespace: self.monitoring_namespace,
            hostnames: self.hostname,
            wasm,
            sidecar: self.sidecar.form(self.replicas, self.service)?,
            image: self.image,
            redis: redis(self.redis, self.redis_secret)?,
        };
        let (config, texts) = compile(&self.paths, self.settings)?;
        let manifests = envoy_gateway::manifests(&config, &texts, &options).map_err(|errors| {
            errors.iter().for_each(|error| complain(&format!("error: {error}")));
            "nothing was rendered".to_owned()
        })?;
        print(&manifests)
    }
}

fn redis(url: Option<String>, secret: Option<String>) -> Result<Option<GatewayRedis>, String> {
    // An empty variable is how deployments say "none".
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    match (given(url), given(secret)) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err("--redis-secret without --redis: say where Redis is".to_owned()),
        (Some(url), secret) => {
            let target: RedisTarget = url.parse().map_err(|error| format!("--redis: {error}"))?;
            Ok(Some(GatewayRedis { url, target, secret }))
        }
    }
}

/// The configuration and its texts; complains of everything, and fails for errors.
fn compile(paths: &[PathBuf], settings: SettingsArgs) -> Result<(Config, Vec<DocumentText>), String> {
    let documents = config::load(paths);
    let texts = documents.texts();
    let Outcome { config, diagnostics, .. } =
        config::compile(documents, settings.into(), 1, None).map_err(|error| error.to_string())?;
    for diagnostic in &diagnostics {
        complain(&diagnostic.plain().to_string());
    }
    if diagnostics.iter().any(config::Diagnostic::is_error) {
        return Err("nothing was rendered: the configuration has errors".to_owned());
    }
    Ok((config, texts))
}

fn print(text: &str) -> Result<ExitCode, String> {
    io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("cannot write: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Envoy binds addresses, not names.
fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is no IP address with a port; write 127.0.0.1:10000 or [::1]:10000"))
}

fn namespace(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is no namespace; write at most 63 small letters, digits and dashes");
    is_dns_label(text).then(|| text.to_owned()).ok_or_else(wrong)
}

fn object_name(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is no object's name; write small letters, digits, dashes and dots");
    (text.is_empty() || is_dns_subdomain(text)).then(|| text.to_owned()).ok_or_else(wrong)
}

/// As Gateway API has them: a wildcard for the first label alone.
fn hostname(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is no host name; write llm.example.com or *.example.com");
    is_dns_subdomain(text.strip_prefix("*.").unwrap_or(text)).then(|| text.to_owned()).ok_or_else(wrong)
}

fn image(text: &str) -> Result<String, String> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._/:@".contains(letter);
    let wrong = || format!("`{text}` is no image; write REGISTRY/NAME:TAG");
    (!text.is_empty() && text.chars().all(plain)).then(|| text.to_owned()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_read_or_refused_with_an_example() {
        assert!(socket_address("localhost:1").is_err() && socket_address("[::1]:10000").is_ok());
        assert!(namespace("a-1").is_ok() && namespace("A").is_err() && namespace(&"x".repeat(64)).is_err());
        assert!(hostname("*.example.com").is_ok() && hostname("a.*.com").is_err() && hostname("http://a").is_err());
        assert!(image("registry.example:5000/attache@sha256:00").is_ok() && image("a b").is_err());
        assert!(object_name("redis.password").is_ok() && object_name("a/b").is_err());
    }

    #[test]
    fn a_service_is_named_for_a_sidecar_that_runs_already_and_for_no_other() {
        let service = || Some("gateways/attache".parse::<ServiceName>().unwrap());
        let form = |sidecar: SidecarArg, service| sidecar.form(NonZeroU32::MIN, service);
        assert_eq!(form(SidecarArg::External, service()), Ok(SidecarForm::External(service().unwrap())));
        assert!(form(SidecarArg::External, None).unwrap_err().contains("--service"));
        for own in [SidecarArg::Container, SidecarArg::Deployment] {
            assert!(form(own, service()).unwrap_err().contains("--sidecar external"));
            assert!(form(own, None).is_ok());
        }
    }

    #[test]
    fn a_secret_of_redis_needs_a_redis() {
        assert!(redis(None, Some("a".to_owned())).is_err());
        assert!(redis(Some(String::new()), Some(String::new())).unwrap().is_none());
        let redis = redis(Some("redis://redis.cache:6379".to_owned()), Some("a".to_owned())).unwrap().unwrap();
        assert_eq!(redis.target.tcp_addresses(), [("redis.cache", 6379)]);
    }
}
