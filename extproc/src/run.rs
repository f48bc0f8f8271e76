//! `attache run`: starts every part, and ends them in order.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tonic_health::server::health_reporter;
use tracing::{info, warn};

use crate::admin::{Admin, Guard};
use crate::config::model::Settings;
use crate::limit::{Ledger, RedisOptions, RedisStore, RedisTarget, SharedOptions};
use crate::readiness::{Announcer, Readiness};
use crate::reload::Reloader;
use crate::server::listen::{ListenAddress, Listener};
use crate::server::{Cut, Processor, transport};
use crate::sharing::Sharing;
use crate::telemetry::Telemetry;
use crate::watch::{SystemLookup, Watch};
use crate::world::World;

/// How long streams that are cut may take to end: each has only to be woken.
const CUT_TIMEOUT: Duration = Duration::from_secs(5);

/// What `attache run` was told.
#[derive(Debug)]
pub struct RunOptions {
    /// Files and directories with the operator's YAML.
    pub config: Vec<PathBuf>,
    /// Where Envoy finds us.
    pub extproc_listen: ListenAddress,
    /// Where the admin pages are.
    pub admin_listen: String,
    /// What the admin pages demand.
    pub admin_guard: Guard,
    /// Where metrics are besides, without the other pages.
    pub metrics_listen: Option<String>,
    /// The ledger's Redis and how long it may take to answer; in memory without.
    pub redis: Option<(RedisTarget, RedisOptions)>,
    /// The Redis by which sidecars tell each other what replicas hold and have to do; they do not without.
    pub sharing: Option<RedisTarget>,
    /// How many sidecars share the ledger at least.
    pub replicas: usize,
    /// How long requests are still taken after it was said that they should go elsewhere.
    pub drain_delay: Duration,
    /// How long requests in flight may take to end.
    pub drain_timeout: Duration,
    /// What holds for all routes.
    pub settings: Settings,
}

/// Runs until SIGTERM or SIGINT, then drains.
///
/// # Errors
/// When an address cannot be bound.
pub async fn run(options: RunOptions) -> io::Result<()> {
    // A path that is not there now is a mistyped one: later it may come and go.
    for path in &options.config {
        std::fs::metadata(path)
            .map_err(|error| io::Error::new(error.kind(), format!("--config {}: {error}", path.display())))?;
    }
    if let Some(directory) = &options.settings.secrets_dir {
        std::fs::read_dir(directory)
            .map_err(|error| io::Error::new(error.kind(), format!("--secrets-dir {}: {error}", directory.display())))?;
    }
    options
        .admin_guard
        .token()
        .map_err(|error| io::Error::new(error.kind(), format!("--admin-token-file: {error}")))?;
    let telemetry = Arc::new(Telemetry::default());
    let ledger = match options.redis {
        Some((target, redis)) => {
            let shared = SharedOptions { replicas: options.replicas, probe_deadline: redis.deadline };
            Ledger::redis(RedisStore::new(target, redis), shared)
        }
        None => {
            if options.replicas > 1 {
                let replicas = options.replicas;
                warn!(
                    replicas,
                    "--replicas without --redis: each sidecar has a ledger of its own, and a limit holds for each"
                );
            }
            Ledger::memory()
        }
    };
    let reloader = Reloader::start(options.config, options.settings.clone(), Arc::clone(&telemetry))
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
    let world = Arc::new(World::new(options.settings, reloader.published(), ledger, telemetry));
    // Not with the first request: until then a pool can have heard what peers know.
    world.fleet.adopt(&world.config.load(), Instant::now());

    let listener = Listener::bind(&options.extproc_listen).await?;
    let admin_listener = bind(&options.admin_listen).await?;
    let metrics_listener = match &options.metrics_listen {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let (health, health_service) = health_reporter();
    let announcer = Announcer::new(health).await;
    let pages = Admin::new(Arc::clone(&world), announcer.subscribe());
    let (monitoring, admin) = (pages.clone().monitoring(), pages.service(options.admin_guard));
    let metrics = metrics_listener.as_ref().map(TcpListener::local_addr).transpose()?;
    info!(extproc = listener.address(), admin = %admin_listener.local_addr()?, ?metrics, "listening");

    let (drain, draining) = watch::channel(false);
    let cut = Cut::default();
    let server = transport::server()
        .add_service(Processor::service(Arc::clone(&world), cut.clone()))
        .add_service(health_service);
    let mut serving = tokio::spawn(async move {
        match listener {
            Listener::Tcp(incoming, _) => server.serve_with_incoming_shutdown(incoming, asked(draining)).await,
            Listener::Unix(incoming, _file) => server.serve_with_incoming_shutdown(incoming, asked(draining)).await,
        }
    });
    // Before anybody is told that we are ready: a signal that nobody listens for ends the process on the spot.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (reloads, reloaded) = watch::channel(());
    world.fleet.adopt(&world.config.load(), Instant::now());
    let further_configs = reloaded.clone();
    let mut watch = Watch::start(&world, reloaded, SystemLookup);
    watch.first_answers().await;
    let watching = tokio::spawn(reloader.watch(Arc::clone(&world), reloads));
    let admin = tokio::spawn(async move { axum::serve(admin_listener, admin).await });
    let metrics = metrics_listener.map(|listener| tokio::spawn(async move { axum::serve(listener, monitoring).await }));
    let pulse = tokio::spawn(pulse());
    let sharing = options.sharing.map(|target| {
        let sharing = Sharing::new(target, Arc::clone(&world.fleet), world.settings.affinity_secret.0);
        tokio::spawn(sharing.run())
    });
    let stopped = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let announced = async {
        announcer.ready_with_a_route(Arc::clone(&world), further_configs).await;
        std::future::pending().await
    };
    tokio::select! {
        () = stopped => {}
        () = announced => {}
        ended = &mut serving => return Err(io::Error::other(format!("the gRPC server ended by itself: {ended:?}"))),
    }
    info!(in_flight = world.telemetry.in_flight(), "draining");
    announcer.say(Readiness::Draining).await;
    // Until those who ask for our health have heard of it, they send requests.
    tokio::time::sleep(options.drain_delay).await;
    drain.send_replace(true);
    if tokio::time::timeout(options.drain_timeout, &mut serving).await.is_err() {
        warn!(in_flight = world.telemetry.in_flight(), "requests are cut: they took longer than the drain timeout");
        // Each leaves a settlement when it ends; the ledger is drained of them below.
        cut.all();
        if tokio::time::timeout(CUT_TIMEOUT, idle(&world.telemetry)).await.is_err() {
            warn!(in_flight = world.telemetry.in_flight(), "their charges are lost: they did not end");
        }
        serving.abort();
    }
    drop(watch);
    watching.abort();
    admin.abort();
    if let Some(metrics) = metrics {
        metrics.abort();
    }
    pulse.abort();
    if let Some(sharing) = sharing {
        sharing.abort();
    }
    let unsettled = world.ledger.drain(options.drain_timeout).await;
    if unsettled > 0 {
        warn!(unsettled, "charges are lost: the ledger did not take them in time");
    }
    info!("drained");
    Ok(())
}

async fn bind(address: &str) -> io::Result<TcpListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
    TcpListener::bind(address).await.map_err(named)
}

/// Keeps a timer that ends before those of the streams do. The runtime writes to its own eventfd whenever a timer is set that
/// ends before all others, which every renewal timer did where few requests are under way: a system call and a futile turn of
/// the event loop for each request.
async fn pulse() {
    let mut pulse = tokio::time::interval(Duration::from_secs(1));
    loop {
        pulse.tick().await;
    }
}

/// Until no stream is open.
async fn idle(telemetry: &Telemetry) {
    while telemetry.in_flight() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn asked(mut draining: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is an end as well.
    let _ = draining.wait_for(|asked| *asked).await;
}
