//! Whether requests may come: what `/readyz` and the gRPC health service say, and why not.
//!
//! A sidecar that has never read a route answers 404 to everything, so nothing sends it requests: a rollout of documents that
//! cannot be read stops at its first pod. Once there was a route it stays ready: what cannot be read later costs no object that is
//! in force, and an operator who takes away the last route means it.

use std::sync::Arc;

use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::server::HEALTH_SERVICE;
use crate::world::World;

/// Whether requests may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Not yet: parts are being started.
    Starting,
    /// Not yet: no document had a route that could be read.
    NoRoute,
    /// They may.
    Ready,
    /// No more: what is under way ends.
    Draining,
}

impl Readiness {
    /// Why requests may not come; `None` where they may.
    pub const fn obstacle(self) -> Option<&'static str> {
        match self {
            Self::Starting => Some("it starts"),
            Self::NoRoute => {
                Some("no route could be read, so every request would get 404; the log and `attache check` say why")
            }
            Self::Ready => None,
            Self::Draining => Some("it drains"),
        }
    }
}

/// The one who says it.
#[derive(Debug)]
pub(crate) struct Announcer {
    readiness: watch::Sender<Readiness>,
    health: HealthReporter,
}

impl Announcer {
    /// Says that it starts.
    pub(crate) async fn new(health: HealthReporter) -> Self {
        let announcer = Self { readiness: watch::Sender::new(Readiness::Starting), health };
        announcer.say(Readiness::Starting).await;
        announcer
    }

    /// What is said, as it changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Says it, to everybody.
    pub(crate) async fn say(&self, readiness: Readiness) {
        let status = match readiness {
            Readiness::Ready => ServingStatus::Serving,
            Readiness::Starting | Readiness::NoRoute | Readiness::Draining => ServingStatus::NotServing,
        };
        self.health.set_service_status(HEALTH_SERVICE, status).await;
        self.readiness.send_replace(readiness);
    }

    /// Says that it is ready as soon as there is a route. `reloads` tells of further configurations.
    pub(crate) async fn ready_with_a_route(&self, world: Arc<World>, mut reloads: watch::Receiver<()>) {
        while world.config.load().routes.is_empty() {
            self.say(Readiness::NoRoute).await;
            if reloads.changed().await.is_err() {
                // Nothing will be read any more.
                return std::future::pending().await;
            }
        }
        self.say(Readiness::Ready).await;
    }
}

#[cfg(test)]
mod tests {
    use tonic::Request;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus as Told;
    use tonic_health::pb::health_server::Health as _;
    use tonic_health::server::HealthService;

    use super::*;
    use crate::config::model::Settings;
    use crate::config::{self, Config};
    use crate::limit::Ledger;

    fn config(text: &str) -> Arc<Config> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.yaml"), text).unwrap();
        let documents = config::load(&[directory.path().to_owned()]);
        Arc::new(config::compile(documents, Settings::default(), 1, None).unwrap().config)
    }

    #[tokio::test]
    async fn envoy_is_told_the_same_as_the_page_and_a_sidecar_that_had_a_route_stays_ready() {
        let published = Arc::new(arc_swap::ArcSwap::from(config("")));
        let world = Arc::new(World::new(Settings::default(), Arc::clone(&published), Ledger::memory(), Arc::default()));
        let reporter = HealthReporter::new();
        let service = HealthService::from_health_reporter(reporter.clone());
        let told = async || {
            let request = HealthCheckRequest { service: HEALTH_SERVICE.to_owned() };
            service.check(Request::new(request)).await.unwrap().into_inner().status()
        };
        let announcer = Arc::new(Announcer::new(reporter).await);
        let mut readiness = announcer.subscribe();
        assert_eq!((*readiness.borrow_and_update(), told().await), (Readiness::Starting, Told::NotServing));

        let (reloads, reloaded) = watch::channel(());
        let announcing = tokio::spawn({
            let announcer = Arc::clone(&announcer);
            async move { announcer.ready_with_a_route(world, reloaded).await }
        });
        readiness.wait_for(|said| *said == Readiness::NoRoute).await.unwrap();
        assert_eq!(told().await, Told::NotServing);
        published.store(config(include_str!("../../envoy-config/demo/attache.yaml")));
        reloads.send_replace(());
        announcing.await.unwrap();
        assert_eq!((*readiness.borrow(), told().await), (Readiness::Ready, Told::Serving));

        announcer.say(Readiness::Draining).await;
        assert_eq!((*readiness.borrow(), told().await), (Readiness::Draining, Told::NotServing));
    }
}
