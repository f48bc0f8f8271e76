//! The owner of the configuration: reads it at the start, on SIGHUP and whenever a file changes, and publishes what it
//! compiles. Exchanges in flight keep what they started with.

mod replaced;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use attache_gate::ConfigError;
use notify::{EventKind, RecursiveMode, Watcher};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use crate::config::model::Settings;
use crate::config::{self, Config, Diagnostic, Outcome, Resources};
use crate::telemetry::Telemetry;
use crate::world::World;

/// Editors and ConfigMap updates touch several files in a row: wait until it is quiet for so long.
const QUIET: Duration = Duration::from_millis(200);

/// Reads the configuration again and again.
#[derive(Debug)]
pub struct Reloader {
    paths: Vec<PathBuf>,
    settings: Settings,
    last_good: Resources,
    fingerprint: u64,
    published: Arc<ArcSwap<Config>>,
    telemetry: Arc<Telemetry>,
}

impl Reloader {
    /// Reads the configuration for the first time. What is sound is served; what is not is reported in the log.
    ///
    /// # Errors
    /// [`ConfigError`] when the settings, which come from the command line, cannot be.
    pub fn start(paths: Vec<PathBuf>, settings: Settings, telemetry: Arc<Telemetry>) -> Result<Self, ConfigError> {
        let documents = config::load(&paths).with_secrets(settings.secrets_dir.as_deref());
        let fingerprint = documents.fingerprint();
        let Outcome { config, resources, diagnostics, .. } = config::compile(documents, settings.clone(), 1, None)?;
        let published = Arc::new(ArcSwap::from_pointee(config));
        let reloader = Self { paths, settings, last_good: resources, fingerprint, published, telemetry };
        reloader.report(&diagnostics);
        Ok(reloader)
    }

    /// Where the configuration in force is published.
    pub fn published(&self) -> Arc<ArcSwap<Config>> {
        Arc::clone(&self.published)
    }

    /// Reads it again, and publishes what comes of it if it says anything new.
    pub fn reload(&mut self) {
        let documents = config::load(&self.paths).with_secrets(self.settings.secrets_dir.as_deref());
        let fingerprint = documents.fingerprint();
        if fingerprint == self.fingerprint {
            return;
        }
        self.fingerprint = fingerprint;
        let generation = self.published.load().generation.saturating_add(1);
        match config::compile(documents, self.settings.clone(), generation, Some(&self.last_good)) {
            Ok(Outcome { config, resources, diagnostics, .. }) => {
                self.last_good = resources;
                self.published.store(Arc::new(config));
                self.report(&diagnostics);
            }
            // The settings were accepted at the start and have not changed.
            Err(error) => error!(%error, "the configuration in force stays"),
        }
    }

    /// Reloads on SIGHUP and on every change of the files, for ever, for `world`, which serves what is published. From now on,
    /// not from the first poll on: a SIGHUP that nobody listens for ends the process. `reloads` is told when all is in force.
    pub fn watch(self, world: Arc<World>, reloads: watch::Sender<()>) -> impl Future<Output = ()> + Send {
        let (changed, changes) = mpsc::channel(1);
        tokio::spawn(replaced::look_for_changes(self.directories(), changed.clone()));
        let watcher = self.watcher(changed);
        let hangups = signal(SignalKind::hangup()).ok();
        self.reload_again_and_again(world, reloads, changes, watcher, hangups)
    }

    async fn reload_again_and_again(
        mut self,
        world: Arc<World>,
        reloads: watch::Sender<()>,
        mut changes: mpsc::Receiver<()>,
        mut watcher: Option<notify::RecommendedWatcher>,
        mut hangups: Option<Signal>,
    ) {
        loop {
            let hangup = async {
                match &mut hangups {
                    Some(hangups) => hangups.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(()) = changes.recv() => {
                    tokio::time::sleep(QUIET).await;
                    while changes.try_recv().is_ok() {}
                }
                _ = hangup => {}
            }
            // Reading and compiling take a while with thousands of routes: not on a thread that serves streams.
            match tokio::task::spawn_blocking(move || {
                // Before they are read: what changes in between is seen.
                watcher.iter_mut().for_each(|watcher| self.watch_secrets(watcher));
                self.reload();
                (self, watcher)
            })
            .await
            {
                Ok((reloader, watching)) => {
                    (self, watcher) = (reloader, watching);
                    world.ledger.adopt(world.config.load().limits());
                    world.fleet.adopt(&world.config.load(), std::time::Instant::now());
                    world.cooldown.keep_only(&world.fleet.endpoint_clusters());
                    reloads.send_replace(());
                }
                Err(panic) => {
                    error!(%panic, "reading the configuration failed; the last one stays in force and is not read again");
                    return;
                }
            }
        }
    }

    /// All that is watched and may be lost.
    fn directories(&self) -> Vec<PathBuf> {
        let configs = self.paths.iter().map(|path| directory_of(path).to_owned());
        configs.chain(self.settings.secrets_dir.clone()).collect()
    }

    /// Watches the directories, not the files: an editor replaces a file, a ConfigMap swaps a link beside it. Not what is
    /// below them: nothing is read there, and a file in `/` would have the whole machine watched.
    fn watcher(&self, changed: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
        let notify = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !matches!(event.kind, EventKind::Access(_))) {
                // A full channel means that a reload is due already.
                let _ = changed.try_send(());
            }
        };
        let mut watcher = notify::recommended_watcher(notify)
            .inspect_err(|error| warn!(%error, "cannot watch files; send SIGHUP after a change"))
            .ok()?;
        for path in &self.paths {
            let directory = directory_of(path);
            if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                warn!(directory = %directory.display(), %error, "cannot watch; send SIGHUP after a change");
            }
        }
        self.watch_secrets(&mut watcher);
        Some(watcher)
    }

    /// Watches the directories of mounted Secrets. Again and again: they come and go, and the swap of a projected volume's
    /// links puts others in the place of those that are watched.
    fn watch_secrets(&self, watcher: &mut notify::RecommendedWatcher) {
        for directory in self.settings.secrets_dir.iter().flat_map(|directory| config::secret_directories(directory)) {
            if let Err(error) = watcher.watch(&directory, RecursiveMode::NonRecursive) {
                warn!(directory = %directory.display(), %error, "cannot watch; send SIGHUP after a change");
            }
        }
    }

    fn report(&self, diagnostics: &[Diagnostic]) {
        let config = self.published.load();
        let errors = diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
        for diagnostic in diagnostics {
            if diagnostic.is_error() {
                error!("{}", diagnostic.plain());
            } else {
                warn!("{}", diagnostic.plain());
            }
        }
        self.telemetry.config_loaded(config.generation, errors);
        info!(
            generation = config.generation,
            routes = config.routes.len(),
            backends = config.backends.len(),
            errors,
            "configuration in force"
        );
    }
}

/// What is watched for it.
fn directory_of(path: &Path) -> &Path {
    if path.is_dir() { path } else { parent(path) }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_a_change_of_what_is_written_makes_a_new_generation() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("backend.yaml");
        let backend = |port: u16| {
            format!(
                "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: Backend\nmetadata: {{name: a}}\n\
                 spec: {{endpoints: [{{ip: {{address: 10.0.0.1, port: {port}}}}}]}}\n"
            )
        };
        fs::write(&file, backend(80)).unwrap();
        let paths = vec![directory.path().to_owned()];
        let mut reloader = Reloader::start(paths, Settings::default(), Arc::default()).unwrap();
        let generation = |reloader: &Reloader| reloader.published().load().generation;
        fs::write(directory.path().join("sidecar.log"), "a line").unwrap();
        fs::write(&file, backend(80)).unwrap();
        reloader.reload();
        assert_eq!(generation(&reloader), 1);
        fs::write(&file, backend(81)).unwrap();
        reloader.reload();
        assert_eq!(generation(&reloader), 2);
        fs::rename(&file, directory.path().join("renamed.yaml")).unwrap();
        reloader.reload();
        assert_eq!(generation(&reloader), 3, "messages name the file");
        fs::remove_dir_all(directory.path()).unwrap();
        reloader.reload();
        reloader.reload();
        assert_eq!(generation(&reloader), 4, "what cannot be read is news once");
    }
}
