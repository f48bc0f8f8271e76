//! Where the demo takes place: its fixed addresses, its files, and the stack on them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use attache_model_server::Config as ModelConfig;
use attache_tests::{Addresses, Error, Stack, tools};

use crate::screen::Screen;

/// The model as its servers know it.
pub(crate) const SERVED_MODEL: &str = "qwen2.5-7b-instruct";

const GATEWAY: SocketAddr = local(10000);
const SIDECAR_ADMIN: SocketAddr = local(10002);
const ENVOY_ADMIN: SocketAddr = local(10003);
/// As in `envoy-config/demo/attache.yaml`.
const MODELS: [SocketAddr; 3] = [local(10011), local(10012), local(10013)];

/// Fast enough for a demo, slow enough to see a stream.
const TIME_PER_TOKEN: Duration = Duration::from_millis(10);
/// About a 7B model on one GPU.
const PREFILL_TOKENS_PER_SECOND: NonZeroU64 = NonZeroU64::MIN.saturating_add(9_999);

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Whether all ports are free: a clear word now is better than a process that fails later.
pub(crate) fn check_ports() -> Result<(), Error> {
    let users =
        [(GATEWAY, "Envoy"), (SIDECAR_ADMIN, "the sidecar's admin pages"), (ENVOY_ADMIN, "Envoy's admin pages")];
    let models = MODELS.map(|address| (address, "a model server"));
    for (address, user) in users.into_iter().chain(models) {
        if let Err(error) = TcpListener::bind(address) {
            let port = address.port();
            let way_out = match error.kind() {
                io::ErrorKind::AddrInUse => format!(
                    "another program listens there, perhaps an earlier demo: `ss -ltnp 'sport = :{port}'` names it; \
                     end it, then run this again"
                ),
                _ => error.to_string(),
            };
            return Err(Error::Unexpected {
                what: format!("port {port} of 127.0.0.1 is not free for {user}"),
                text: way_out,
            });
        }
    }
    Ok(())
}

/// Starts everything.
pub(crate) async fn start(screen: &mut Screen) -> Result<Stack, Error> {
    screen.title();
    screen.progress("starting three model servers, the sidecar and Envoy");
    let begin = Instant::now();
    let config = config()?;
    let directory = tools::target_directory().join("demo");
    let mut builder = Stack::builder_from_file(&config)
        .addresses(Addresses {
            gateway: Some(GATEWAY),
            envoy_admin: Some(ENVOY_ADMIN),
            sidecar_admin: Some(SIDECAR_ADMIN),
        })
        .directory(&directory);
    for address in MODELS {
        builder = builder.model(ModelConfig {
            listen: address.to_string(),
            models: vec![SERVED_MODEL.to_owned()],
            time_per_output_token: TIME_PER_TOKEN,
            prefill_tokens_per_second: PREFILL_TOKENS_PER_SECOND,
            ..ModelConfig::default()
        });
    }
    let stack = builder.start().await?;
    screen.map(&[
        ("gateway", format!("http://{GATEWAY}: Envoy with the Wasm filter")),
        ("sidecar", format!("ledger in memory; admin pages http://{SIDECAR_ADMIN}")),
        ("model servers", format!("three, simulated, all serving {SERVED_MODEL}; {}", MODELS.map(replica).join(" "))),
        ("operator's YAML", shown(&config)),
        ("logs, bootstrap", shown(stack.directory())),
    ]);
    screen.note(&format!("Ready in {:.1} s.", begin.elapsed().as_secs_f64()));
    Ok(stack)
}

/// A replica's short name: all of them are on this machine.
pub(crate) fn replica(address: SocketAddr) -> String {
    format!(":{}", address.port())
}

/// The operator's YAML.
fn config() -> Result<PathBuf, Error> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config/demo/attache.yaml");
    path.canonicalize().map_err(|source| Error::Io { what: format!("find {}", path.display()), source })
}

/// Relative to where the reader is, if it is below.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let below = here.and_then(|here| path.strip_prefix(here).ok().map(Path::to_path_buf));
    below.as_deref().unwrap_or(path).display().to_string()
}
