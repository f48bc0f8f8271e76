//! The breaker of a running ledger, and the task that probes the store while it is open.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::breaker::Breaker;
use crate::limit::RedisStore;

#[derive(Debug)]
pub(super) struct Circuit {
    breaker: watch::Sender<Breaker>,
    probing: AbortHandle,
}

impl Circuit {
    /// A closed one. The probe has the deadline of a reservation: a store that would miss that is not back.
    pub(super) fn start(store: RedisStore, deadline: Duration) -> Self {
        let breaker = watch::Sender::new(Breaker::new());
        let probing = tokio::spawn(probe(store, deadline, breaker.clone())).abort_handle();
        Self { breaker, probing }
    }

    pub(super) fn failed(&self) {
        self.breaker.send_if_modified(|breaker| {
            let was_open = breaker.is_open();
            breaker.failed(Instant::now());
            let opened = breaker.is_open() && !was_open;
            if opened {
                tracing::warn!("Redis does not answer: until it does, limits act as their `onStoreError` says");
            }
            opened
        });
    }

    pub(super) fn answered(&self) {
        // Nearly always there is nothing to change, and readers do not wait for each other.
        if *self.breaker.borrow() != Breaker::new() {
            close(&self.breaker);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.breaker.borrow().is_open()
    }

    /// To wait for a change with.
    pub(super) fn watch(&self) -> watch::Receiver<Breaker> {
        self.breaker.subscribe()
    }
}

impl Drop for Circuit {
    fn drop(&mut self) {
        self.probing.abort();
    }
}

fn close(breaker: &watch::Sender<Breaker>) {
    breaker.send_if_modified(|breaker| {
        let was_open = breaker.is_open();
        if let Breaker::Open { since, .. } = breaker {
            tracing::info!(outage = ?since.elapsed(), "Redis answers again");
        }
        breaker.answered();
        was_open
    });
}

async fn probe(store: RedisStore, deadline: Duration, breaker: watch::Sender<Breaker>) {
    let mut changes = breaker.subscribe();
    // It never closes: we have a sender ourselves.
    while let Ok(open) = changes.wait_for(Breaker::is_open).await.map(|breaker| *breaker) {
        let Some(due) = open.probe_at() else { continue };
        tokio::time::sleep_until(due.into()).await;
        match store.ping(deadline).await {
            Ok(()) => close(&breaker),
            Err(_) => breaker.send_modify(|breaker| breaker.probe_failed(Instant::now())),
        }
    }
}
