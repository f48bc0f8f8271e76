//! The breaker of a running ledger, and the task that probes the store while it is open or nobody else asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::breaker::Breaker;
use crate::limit::RedisStore;

#[derive(Debug)]
pub(super) struct Circuit {
    breaker: watch::Sender<Breaker>,
    /// Whether a request was answered since the last probe was due.
    heard: Arc<AtomicBool>,
    probing: AbortHandle,
}

impl Circuit {
    /// A closed one. The probe has the deadline of a reservation: a store that would miss that is not back.
    pub(super) fn start(store: RedisStore, deadline: Duration) -> Self {
        let (breaker, heard) = (watch::Sender::new(Breaker::new()), Arc::new(AtomicBool::new(false)));
        let probing = tokio::spawn(probe(store, deadline, breaker.clone(), Arc::clone(&heard))).abort_handle();
        Self { breaker, heard, probing }
    }

    /// A request got no answer.
    pub(super) fn failed(&self) {
        fail(&self.breaker, Breaker::failed);
    }

    /// A request was answered.
    pub(super) fn answered(&self) {
        // Nearly always there is nothing to change, and readers do not wait for each other.
        if !self.heard.load(Ordering::Relaxed) {
            self.heard.store(true, Ordering::Relaxed);
        }
        if *self.breaker.borrow() != Breaker::new() {
            close(&self.breaker);
        }
    }

    /// Since when the store has not been asked.
    pub(super) fn open_since(&self) -> Option<Instant> {
        match *self.breaker.borrow() {
            Breaker::Open { since, .. } => Some(since),
            Breaker::Closed { .. } => None,
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

fn fail(breaker: &watch::Sender<Breaker>, failed: fn(&mut Breaker, Instant)) {
    breaker.send_if_modified(|breaker| {
        let was_open = breaker.is_open();
        failed(breaker, Instant::now());
        let opened = breaker.is_open() && !was_open;
        if opened {
            tracing::warn!("Redis does not answer: until it does, limits act as their `onStoreError` says");
        }
        opened
    });
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

async fn probe(store: RedisStore, deadline: Duration, breaker: watch::Sender<Breaker>, heard: Arc<AtomicBool>) {
    let mut opened = breaker.subscribe();
    loop {
        let seen = *breaker.borrow();
        let due = tokio::time::sleep_until(seen.probe_at(Instant::now()).into());
        if seen.is_open() {
            due.await;
        } else {
            tokio::select! {
                () = due => {}
                // Requests have opened it: the next probe is due at another time. It never closes: we have a sender ourselves.
                _ = opened.wait_for(Breaker::is_open) => continue,
            }
            if heard.swap(false, Ordering::Relaxed) {
                continue;
            }
        }
        match store.ping(deadline).await {
            Ok(()) => close(&breaker),
            Err(_) => fail(&breaker, Breaker::probe_failed),
        }
    }
}
