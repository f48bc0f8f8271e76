//! What requests must not leave behind.

use attache_model_server::Finished;
use attache_tests::{Stack, until};
use redis::{AsyncCommands as _, aio::MultiplexedConnection};

/// Waits until nothing is left of any request: no stream, no reservation, no settlement under way, no work at a model
/// server, and in Redis nothing that is held.
pub(crate) async fn none(stack: &Stack) {
    let mut left = Vec::new();
    let waited = until("nothing was left behind", async || {
        left = residue(stack).await;
        left.is_empty()
    });
    if let Err(error) = waited.await {
        panic!("{error}: {left:#?}");
    }
}

async fn residue(stack: &Stack) -> Vec<String> {
    let mut left = Vec::new();
    for gateway in stack.gateways() {
        let metrics = gateway.sidecar.metrics().await.unwrap();
        for name in ["attache_in_flight", "attache_reservations", "attache_store_queue"] {
            let value = metrics.sum(name, &[]);
            if value != 0.0 {
                left.push(format!("{name} {value}"));
            }
        }
    }
    for (index, model) in stack.models.iter().enumerate() {
        let load = model.load();
        if load.waiting + load.running > 0 {
            left.push(format!("model server {index} is busy: {load:?}"));
        }
        if model.requests().iter().any(|record| record.finished == Finished::Running) {
            left.push(format!("model server {index} has a request that has not ended"));
        }
    }
    if let Some(redis) = &stack.redis {
        let ledger = Counters::read(&mut redis.connection().await.unwrap()).await;
        if ledger.held > 0.0 || ledger.leases > 0 {
            left.push(format!("{ledger:?}"));
        }
    }
    left
}

/// The sidecars that share a Redis, with when each of them will be forgotten.
const SIDECARS: &str = "att1:{sidecars}";

/// The counters of the ledger in Redis, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    /// What is settled in the current windows.
    pub(crate) settled: f64,
    /// What is held.
    pub(crate) held: f64,
    /// Live reservations.
    pub(crate) leases: usize,
    /// Keys without an end.
    pub(crate) endless: usize,
}

impl Counters {
    /// Reads all of them. Each ends in three doubles: what is settled, what was in the bucket before, what is held.
    pub(crate) async fn read(connection: &mut MultiplexedConnection) -> Self {
        let mut counters = Self::default();
        let keys: Vec<String> = connection.keys("att1:*").await.unwrap();
        for key in keys {
            if connection.ttl::<_, i64>(&key).await.unwrap() == -1 {
                counters.endless += 1;
            }
            if key.ends_with(":leases") {
                counters.leases += connection.zcard::<_, usize>(&key).await.unwrap();
            } else if !key.contains(":settled:") && key != SIDECARS {
                let packed: Vec<u8> = connection.get(&key).await.unwrap();
                if let Some((_, doubles)) = packed.split_last_chunk::<24>() {
                    let double = |at: usize| f64::from_le_bytes(doubles[at..at + 8].try_into().unwrap());
                    counters.settled += double(0);
                    counters.held += double(16);
                }
            }
        }
        counters
    }
}
