//! The ways to Redis, each with real servers of the test's own: logins, TLS, sentinels, clusters.

mod cluster;
mod login;
mod sentinels;
mod tls;

use super::bed::ERA;
use super::redis_server::{PATIENCE, RedisServer, ask, end, free_port, redis_server, say, spawn, try_connect, until};
use super::*;

const OPTIONS: RedisOptions = RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE };

fn connect(url: &str) -> RedisStore {
    connect_with(url, RedisFiles::default())
}

fn connect_with(url: &str, files: RedisFiles) -> RedisStore {
    RedisStore::new(url.parse::<RedisTarget>().unwrap().with_files(files).unwrap(), OPTIONS)
}

fn tokens(id: &str, amount: u64, mode: Mode) -> Arc<Limit> {
    Arc::new(Limit { window: Window::Fixed(ERA), ..limit(id, amount, mode) })
}

async fn granted_in_time(store: &RedisStore, holds: &[Hold]) {
    until(async || matches!(store.reserve(&request(holds.to_vec())).await, Ok(Admission::Granted { .. }))).await;
}

/// Each counter's (settled, held).
async fn seen(store: &RedisStore, holds: &[Hold]) -> Vec<(u64, u64)> {
    store.peek(holds).await.unwrap().iter().map(|state| (state.settled, state.held)).collect()
}

/// A reservation of a limit of its own goes all the way, and is charged.
async fn works(store: &RedisStore) {
    let limit = tokens(&ReservationId::random().0, 300, Mode::Strict);
    let request = request(vec![hold(&limit, "caller", 40)]);
    let admission = store.reserve(&request).await.unwrap();
    assert!(matches!(admission, Admission::Granted { .. }), "{admission:?}");
    store.settle(&settlement(&request, &[30])).await.unwrap();
    assert_eq!(seen(store, &request.holds).await, [(30, 0)]);
}

/// Why the store cannot be reached, or nothing when it can.
async fn obstacle(store: &RedisStore) -> String {
    match store.peek(&[hold(&tokens("any", 300, Mode::Soft), "caller", 0)]).await {
        Ok(_) => String::new(),
        Err(StoreError::Unreachable(reason)) => reason,
        Err(other) => other.to_string(),
    }
}
