//! `attache render`: the operator's documents as configuration for Envoy, or for an Envoy Gateway.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use attache::config::model::Config;
use attache::config::{self, DocumentText, Outcome};
use attache::limit::RedisTarget;
use attache::render::envoy_gateway::{
    self, GatewayName, GatewayOptions, GatewayRedis, Ledgers, ServiceName, SidecarForm, WasmSource, is_dns_label,
    is_dns_subdomain,
};
use attache::render::{self, Cors, CorsOrigin, ExtprocAddress, ListenTls, StaticOptions};
use attache_gate::UnknownKeys;
use clap::{Args, Subcommand, ValueEnum};

use super::output::{self, OutputArgs};
use super::{SettingsArgs, complain};

#[derive(Debug, Subcommand)]
pub(super) enum RenderCommand {
    /// One complete Envoy bootstrap.
    Static(Box<StaticArgs>),
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

/// How the Wasm filter decides.
#[derive(Debug, Args)]
struct FilterArgs {
    /// What the Wasm filter does with a key that it does not know, or knows as not attached, ended or disabled: have the sidecar
    /// decide, whose documents may be newer, or refuse it, so that a new key needs Envoy's configuration rendered anew.
    #[arg(long, env = "ATTACHE_UNKNOWN_KEYS", default_value = "ask", value_name = "ask|refuse")]
    unknown_keys: UnknownKeysArg,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum UnknownKeysArg {
    /// The sidecar decides.
    Ask,
    /// The filter refuses.
    Refuse,
}

impl From<UnknownKeysArg> for UnknownKeys {
    fn from(argument: UnknownKeysArg) -> Self {
        match argument {
            UnknownKeysArg::Ask => Self::Ask,
            UnknownKeysArg::Refuse => Self::Refuse,
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
    /// Copy the Wasm filter from this file to that of --wasm, before the bootstrap that needs it is written.
    #[arg(long, env = "ATTACHE_WASM_SOURCE", value_name = "FILE", requires = "wasm")]
    wasm_source: Option<PathBuf>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Where Envoy's own admin interface listens; without it there is none.
    #[arg(long, env = "ATTACHE_ADMIN", value_parser = socket_address)]
    admin: Option<SocketAddr>,
    /// Where Envoy serves its counters for Prometheus, at /stats/prometheus, and nothing else of its admin interface, which can
    /// then stay on loopback.
    #[arg(long, env = "ATTACHE_STATS", value_parser = socket_address, requires = "admin")]
    stats: Option<SocketAddr>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    cors: CorsArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// How Envoy listens with TLS.
#[derive(Debug, Args)]
struct TlsArgs {
    /// The certificate by which Envoy listens with TLS, and those that lead to its authority (PEM), as Envoy sees the file; in clear text
    /// without.
    #[arg(long, env = "ATTACHE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM), as Envoy sees the file.
    #[arg(long, env = "ATTACHE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A file that is written here, by which Envoy reads certificate and key anew when they are replaced; `attache-sds.yaml` beside the
    /// certificate without. Envoy has to see it under the same path.
    #[arg(long, env = "ATTACHE_TLS_SDS", value_name = "FILE", requires = "tls_cert")]
    tls_sds: Option<PathBuf>,
}

/// Which web pages may call.
#[derive(Debug, Args)]
struct CorsArgs {
    /// An origin whose web pages may call (CORS): https://app.example.com, https://*.example.com for all names below one, or * for
    /// everybody's. May be given several times; none may without.
    #[arg(long, env = "ATTACHE_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<CorsOrigin>,
    /// Lets those pages send cookies and the like along. Not with `--cors-origin *`.
    #[arg(long, env = "ATTACHE_CORS_CREDENTIALS", requires = "cors_origin")]
    cors_credentials: bool,
}

impl StaticArgs {
    fn run(self) -> Result<ExitCode, String> {
        let tls = self.tls.listen();
        let cors = self.cors.cors()?;
        let (config, _) = compile(&self.paths, self.settings)?;
        let options = StaticOptions {
            listen: self.listen,
            extproc: self.extproc,
            wasm: self.wasm,
            unknown_keys: self.filter.unknown_keys.into(),
            admin: self.admin,
            stats: self.stats,
            tls,
            cors,
        };
        let bootstrap = render::bootstrap(&config, &options).map_err(|error| error.to_string())?;
        if let (Some(source), Some(wasm)) = (self.wasm_source, &options.wasm) {
            copy(&source, wasm)?;
        }
        if let Some(tls) = &options.tls {
            let sds = tls.sds().map_err(|error| error.to_string())?;
            output::replace(&tls.sds, sds.as_bytes()).map_err(|error| {
                format!(
                    "cannot write {}, by which Envoy learns of its certificate: {error}; say with --tls-sds where else it may be",
                    tls.sds.display()
                )
            })?;
        }
        self.output.write(&bootstrap)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl TlsArgs {
    fn listen(self) -> Option<ListenTls> {
        let (certificate, key) = (self.tls_cert?, self.tls_key?);
        let sds = self.tls_sds.unwrap_or_else(|| certificate.with_file_name("attache-sds.yaml"));
        Some(ListenTls { certificate, key, sds })
    }
}

impl CorsArgs {
    fn cors(self) -> Result<Option<Cors>, String> {
        if self.cors_origin.is_empty() {
            return Ok(None);
        }
        if self.cors_credentials && self.cors_origin.contains(&CorsOrigin::Any) {
            return Err("--cors-credentials with --cors-origin *: everybody's pages could call with the cookies of whoever looks at them; \
                        name the origins"
                .to_owned());
        }
        Ok(Some(Cors { origins: self.cors_origin, credentials: self.cors_credentials }))
    }
}

/// Puts a copy of `source` at `target`, which is never seen half written.
fn copy(source: &Path, target: &Path) -> Result<(), String> {
    let bytes = fs::read(source).map_err(|error| format!("cannot read --wasm-source {}: {error}", source.display()))?;
    output::replace(target, &bytes).map_err(|error| format!("cannot write --wasm {}: {error}", target.display()))
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
    /// Where the sidecar's Deployment lives (`--sidecar deployment`); the Gateway's namespace without.
    #[arg(long, env = "ATTACHE_NAMESPACE", value_parser = namespace)]
    namespace: Option<String>,
    /// How many sidecars the Deployment has (`--sidecar deployment`); 2 without.
    #[arg(long, env = "ATTACHE_REPLICAS", value_name = "N")]
    replicas: Option<NonZeroU32>,
    /// Where Envoy Gateway runs the Gateway's proxies, of which a sidecar of ours has to know; envoy-gateway-system without.
    #[arg(long, env = "ATTACHE_PROXY_NAMESPACE", value_parser = namespace)]
    proxy_namespace: Option<String>,
    /// Where Prometheus runs, or whoever else may read metrics (`--sidecar deployment`); monitoring without.
    #[arg(long, env = "ATTACHE_MONITORING_NAMESPACE", value_parser = namespace)]
    monitoring_namespace: Option<String>,
    /// A host name that the routes are for; all of the Gateway's without. May be given several times.
    #[arg(long, env = "ATTACHE_HOSTNAME", value_delimiter = ',', value_parser = hostname)]
    hostname: Vec<String>,
    /// Where Envoy Gateway finds the Wasm filter: https://HOST/PATH, http://HOST/PATH, oci://REGISTRY/IMAGE:TAG or
    /// oci://REGISTRY/IMAGE@sha256:DIGEST. Without it the sidecar makes all checks.
    #[arg(long, env = "ATTACHE_WASM_URL", value_name = "URL")]
    wasm_url: Option<String>,
    /// The file's SHA-256, in hexadecimal digits; of an image (oci://) the image's digest, which may stand in the URL instead.
    #[arg(long, env = "ATTACHE_WASM_SHA256", value_name = "HEX")]
    wasm_sha256: Option<String>,
    #[command(flatten)]
    filter: FilterArgs,
    /// That several sidecars without a Redis are meant (`--sidecar deployment`): each has a ledger of its own, so a limit holds
    /// once for each of them.
    #[arg(long, env = "ATTACHE_SEPARATE_LEDGERS")]
    separate_ledgers: bool,
    /// The sidecar's image; `attache` of this version without.
    #[arg(long, env = "ATTACHE_IMAGE", value_parser = image)]
    image: Option<String>,
    /// The Redis that shares the token ledger among sidecars, without a password. Values from the environment are not shown.
    #[arg(long, env = "ATTACHE_REDIS", value_name = "URL", hide_env_values = true)]
    redis: Option<String>,
    /// The Secret whose key `password` is Redis's password.
    #[arg(long, env = "ATTACHE_REDIS_SECRET", value_name = "NAME", value_parser = object_name)]
    redis_secret: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SidecarArg {
    /// In each proxy pod, by a Unix socket.
    Container,
    /// Pods of its own, by a Service.
    Deployment,
    /// By a Service that is there already; none of the sidecar's own objects is printed.
    External,
}

impl SidecarArg {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Deployment => "deployment",
            Self::External => "external",
        }
    }
}

const DEFAULT_REPLICAS: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);
const DEFAULT_PROXY_NAMESPACE: &str = "envoy-gateway-system";
const DEFAULT_MONITORING_NAMESPACE: &str = "monitoring";
const DEFAULT_IMAGE: &str = concat!("attache:", env!("CARGO_PKG_VERSION"));

impl GatewayArgs {
    fn run(self) -> Result<ExitCode, String> {
        self.check_options()?;
        let wasm = WasmSource::from_parts(self.wasm_url, self.wasm_sha256).map_err(|error| error.to_string())?;
        let options = GatewayOptions {
            gateway: self.gateway.0,
            namespace: self.namespace,
            proxy_namespace: self.proxy_namespace.unwrap_or_else(|| DEFAULT_PROXY_NAMESPACE.to_owned()),
            monitoring_namespace: self.monitoring_namespace.unwrap_or_else(|| DEFAULT_MONITORING_NAMESPACE.to_owned()),
            hostnames: self.hostname,
            wasm,
            unknown_keys: self.filter.unknown_keys.into(),
            sidecar: match (self.sidecar, self.service) {
                (SidecarArg::Container, _) => SidecarForm::Container,
                (SidecarArg::Deployment, _) => {
                    SidecarForm::Deployment { replicas: self.replicas.unwrap_or(DEFAULT_REPLICAS) }
                }
                (SidecarArg::External, Some(service)) => SidecarForm::External(service),
                (SidecarArg::External, None) => return Err(NO_SERVICE.to_owned()),
            },
            image: self.image.unwrap_or_else(|| DEFAULT_IMAGE.to_owned()),
            redis: redis(self.redis, self.redis_secret)?,
            ledgers: if self.separate_ledgers { Ledgers::Separate } else { Ledgers::Shared },
        };
        let (config, texts) = compile(&self.paths, self.settings)?;
        check_served(&self.paths, &config, &texts)?;
        let manifests = envoy_gateway::manifests(&config, &texts, &options).map_err(|errors| {
            errors.iter().for_each(|error| complain(&format!("error: {error}")));
            "nothing was rendered".to_owned()
        })?;
        self.output.write(&manifests)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Whether every option means something in the form that was chosen: one that does not is a misunderstanding, and what is
    /// rendered would not be what was asked for.
    fn check_options(&self) -> Result<(), String> {
        use SidecarArg::{Container, Deployment, External};
        // An empty variable is how deployments say "none".
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let options: [(&str, bool, &[SidecarArg]); 9] = [
            ("--service", self.service.is_some(), &[External]),
            ("--namespace", self.namespace.is_some(), &[Deployment]),
            ("--replicas", self.replicas.is_some(), &[Deployment]),
            ("--separate-ledgers", self.separate_ledgers, &[Deployment]),
            ("--monitoring-namespace", self.monitoring_namespace.is_some(), &[Deployment]),
            ("--proxy-namespace", self.proxy_namespace.is_some(), &[Container, Deployment]),
            ("--image", self.image.is_some(), &[Container, Deployment]),
            ("--redis", is_given(&self.redis), &[Container, Deployment]),
            ("--redis-secret", is_given(&self.redis_secret), &[Container, Deployment]),
        ];
        let idle = options.into_iter().filter(|(_, is_given, forms)| *is_given && !forms.contains(&self.sidecar));
        let mut faults: Vec<String> = idle
            .map(|(option, _, forms)| {
                let forms: Vec<String> = forms.iter().map(|form| format!("`--sidecar {}`", form.as_str())).collect();
                let variable = option.trim_start_matches('-').replace('-', "_").to_uppercase();
                format!(
                    "{option} (or ATTACHE_{variable}) has no effect with `--sidecar {}`: it belongs to {}",
                    self.sidecar.as_str(),
                    forms.join(" and ")
                )
            })
            .collect();
        if self.separate_ledgers && is_given(&self.redis) {
            faults.push("--separate-ledgers (or ATTACHE_SEPARATE_LEDGERS) with --redis: the ledger is shared by that; leave one of them out".to_owned());
        }
        if self.sidecar == External && self.service.is_none() {
            faults.push(NO_SERVICE.to_owned());
        }
        let twice = |(index, name): (usize, &String)| {
            self.hostname
                .iter()
                .take(index)
                .any(|other| other == name)
                .then(|| format!("--hostname {name} is here twice"))
        };
        faults.extend(self.hostname.iter().enumerate().filter_map(twice));
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\nattache: ")) }
    }
}

const NO_SERVICE: &str =
    "--sidecar external without --service: say which Service the sidecar has, NAMESPACE/NAME or NAMESPACE/NAME:PORT";

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

/// Whether there is anything to lead to. Without it, all that was rendered would be a way in that answers 503, and takes the whole
/// Gateway where no `--hostname` bounds it: somebody has named the wrong directory.
fn check_served(paths: &[PathBuf], config: &Config, texts: &[DocumentText]) -> Result<(), String> {
    const MOST_NAMED: usize = 8;
    let missing = match (config.routes.is_empty(), config.backends.is_empty()) {
        (false, false) => return Ok(()),
        (true, true) => "no AIGatewayRoute, and no AIServiceBackend with its Backend",
        (true, false) => "no AIGatewayRoute",
        (false, true) => "no AIServiceBackend with its Backend",
    };
    let mut read: Vec<&str> = texts.iter().take(MOST_NAMED).map(|text| text.name.as_str()).collect();
    if texts.len() > MOST_NAMED {
        read.push("...");
    }
    let files = match texts.len() {
        0 => "in no file".to_owned(),
        1 => format!("in 1 file ({})", read.join(", ")),
        count => format!("in {count} files ({})", read.join(", ")),
    };
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    Err(format!(
        "nothing was rendered: {} has {missing}, and every request would get a 503; documents were found {files}. Of a directory \
         its own *.yaml and *.yml are read, and not what is in directories below it",
        paths.join(", ")
    ))
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

/// As Gateway API has them: a wildcard for the first label alone, and no IP address.
fn hostname(text: &str) -> Result<String, String> {
    if text.parse::<IpAddr>().is_ok() {
        return Err(format!(
            "`{text}` is an IP address, which Gateway API takes for no host name; leave --hostname out, and the routes are for \
             whatever the Gateway's listeners are for"
        ));
    }
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
        for ip in ["10.0.0.1", "::1"] {
            assert!(hostname(ip).unwrap_err().contains("is an IP address"));
        }
        assert!(image("registry.example:5000/attache@sha256:00").is_ok() && image("a b").is_err());
        assert!(object_name("redis.password").is_ok() && object_name("a/b").is_err());
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: GatewayArgs,
    }

    fn checked(options: &str) -> Result<(), String> {
        let line = format!("render a.yaml --gateway gateways/llm {options}");
        let line: Line = clap::Parser::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        line.args.check_options()
    }

    #[test]
    fn an_option_that_has_no_effect_in_a_form_is_refused_with_the_forms_it_belongs_to() {
        let options = [
            ("--service gateways/attache", "external"),
            ("--namespace llm", "deployment"),
            ("--replicas 3", "deployment"),
            ("--separate-ledgers", "deployment"),
            ("--monitoring-namespace m", "deployment"),
            ("--proxy-namespace p", "container deployment"),
            ("--image attache:1", "container deployment"),
            ("--redis redis://redis:6379", "container deployment"),
            ("--redis redis://redis:6379 --redis-secret r", "container deployment"),
            ("--hostname a.example --hostname b.example", "container deployment external"),
            ("--path-prefix /llm --max-body 1MiB --unattached-status 403", "container deployment external"),
        ];
        for (option, forms) in options {
            for form in ["container", "deployment", "external"] {
                let service = if form == "external" && !option.contains("--service") { "--service a/b" } else { "" };
                let result = checked(&format!("--sidecar {form} {service} {option}"));
                assert_eq!(result.is_ok(), forms.contains(form), "{form}: {option}: {result:?}");
                let Err(error) = result else { continue };
                let name = option.split(' ').next().unwrap();
                assert!(error.starts_with(&format!("{name} (or ATTACHE_")), "{error}");
                for right in forms.split(' ') {
                    assert!(error.contains(&format!("`--sidecar {right}`")), "{error}");
                }
            }
        }
        // All of them at once.
        let error = checked("--replicas 3 --namespace llm --hostname a.example,a.example").unwrap_err();
        assert_eq!(error.lines().count(), 3, "{error}");
    }

    #[test]
    fn a_host_name_is_said_once_and_a_running_sidecar_has_a_service() {
        assert_eq!(
            checked("--hostname a.example --hostname a.example").unwrap_err(),
            "--hostname a.example is here twice"
        );
        assert!(checked("--sidecar external").unwrap_err().contains("--service"));
        assert!(checked("").is_ok());
    }

    /// What becomes of a directory with this in its only file.
    fn served(text: &str) -> Result<(), String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.yaml"), text).unwrap();
        let documents = config::load(&[directory.path().to_owned()]);
        let texts = documents.texts();
        let outcome = config::compile(documents, Default::default(), 1, None).unwrap();
        check_served(&[PathBuf::from("conf")], &outcome.config, &texts)
    }

    #[test]
    fn documents_without_a_route_or_a_backend_are_refused_with_what_was_read() {
        let example = include_str!("../../../envoy-config/examples/unified-endpoint.yaml");
        assert_eq!(served(example), Ok(()));
        let error = served("# Nothing yet.\n").unwrap_err();
        assert!(
            error.starts_with("nothing was rendered: conf has no AIGatewayRoute, and no AIServiceBackend"),
            "{error}"
        );
        assert!(error.contains("documents were found in no file"), "{error}");
        let backends: Vec<&str> =
            example.split("---\n").filter(|text| !text.contains("kind: AIGatewayRoute\n")).collect();
        let error = served(&backends.join("---\n")).unwrap_err();
        assert!(error.contains("conf has no AIGatewayRoute, and every") && error.contains("in 1 file ("), "{error}");
    }

    #[test]
    fn a_secret_of_redis_needs_a_redis() {
        assert!(redis(None, Some("a".to_owned())).is_err());
        assert!(redis(Some(String::new()), Some(String::new())).unwrap().is_none());
        let redis = redis(Some("redis://redis.cache:6379".to_owned()), Some("a".to_owned())).unwrap().unwrap();
        assert_eq!(redis.target.tcp_addresses(), [("redis.cache", 6379)]);
    }
}
