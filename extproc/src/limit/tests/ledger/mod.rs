//! The ledger over a real Redis: what is decided with it, without asking it, and without it.

mod degraded;
mod fast_path;
mod replicas;
mod settling;

use std::time::Instant;

use super::bed::{Bed, ERA, connect};
use super::redis_server::{PATIENCE, RedisServer};
use super::*;

fn tokens(amount: u64) -> Arc<Limit> {
    Arc::new(Limit { window: Window::Fixed(ERA), ..limit("soft", amount, Mode::Soft) })
}

fn shared_by(replicas: usize) -> SharedOptions {
    SharedOptions { replicas, probe_deadline: PATIENCE }
}

fn ledger(server: &RedisServer) -> Ledger {
    Ledger::redis(connect(server), shared_by(1))
}

async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn granted(ledger: &Ledger, holds: Vec<Hold>) -> Reservation {
    match ledger.reserve(&Arc::new(request(holds))).await.unwrap() {
        Decision::Granted(reservation) => reservation,
        Decision::Refused(refused) => panic!("{refused:?}"),
    }
}

async fn refused(ledger: &Ledger, holds: Vec<Hold>) -> Refused {
    match ledger.reserve(&Arc::new(request(holds))).await.unwrap() {
        Decision::Granted(reservation) => panic!("{reservation:?}"),
        Decision::Refused(refused) => refused,
    }
}

/// The end of a reservation that used so much of each of its limits.
fn end(reservation: &Reservation, actual: &[u64]) -> Settlement {
    Settlement { keeper: reservation.keeper(), ..settlement(reservation.request(), actual) }
}

/// Has a request of so many tokens granted and charged.
async fn charge(ledger: &Ledger, hold: &Hold) {
    let reservation = granted(ledger, vec![hold.clone()]).await;
    ledger.settle_detached(end(&reservation, &[hold.estimate]));
}
