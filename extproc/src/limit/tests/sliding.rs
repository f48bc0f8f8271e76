//! I12: use does not jump where a bucket of a sliding window ends.

use super::bed::connect;
use super::redis_server::RedisServer;
use super::*;

const USED: u64 = 10_000;

fn sliding(length: Duration) -> Arc<Limit> {
    Arc::new(Limit { window: Window::Sliding(length), ..limit("sliding", USED, Mode::Soft) })
}

/// Looks until `looks` buckets after the one of the charge have begun, and compares every look with the one before: between them,
/// use may not fall by more than the time between them explains.
async fn follow(
    length: Duration,
    buckets: u64,
    mut look: impl AsyncFnMut() -> CounterState,
    mut wait: impl AsyncFnMut(),
) -> Vec<u64> {
    let first = look().await;
    assert_eq!(first.used(), USED);
    let since_first = |state: &CounterState| {
        length * u32::try_from(state.bucket - first.bucket).unwrap() + first.left.saturating_sub(state.left)
            - state.left.saturating_sub(first.left)
    };
    let (mut last, mut seen) = (first, vec![first.used()]);
    loop {
        wait().await;
        let state = look().await;
        if state.bucket > first.bucket + buckets {
            return seen;
        }
        let elapsed = since_first(&state) - since_first(&last);
        let fall = last.used() - state.used();
        let explained = USED as f64 * elapsed.as_secs_f64() / length.as_secs_f64();
        assert!(fall as f64 <= explained + 1.0, "{last:?} {state:?}");
        seen.push(state.used());
        last = state;
    }
}

#[tokio::test]
async fn in_memory_use_fades_without_a_jump() {
    let hand = Arc::new(Hand::default());
    let store = MemoryStore::with_clock(Arc::clone(&hand) as Arc<dyn Clock>);
    let length = Duration::from_secs(60);
    hand.advance(Duration::from_secs(20));
    let request = request(vec![hold(&sliding(length), "caller", USED)]);
    store.reserve_now(&request).unwrap();
    store.settle_now(&settlement(&request, &[USED]));
    let look = async || store.peek_now(&request.holds)[0];
    let seen = follow(length, 1, look, async || hand.advance(Duration::from_millis(7))).await;
    // All of it until the bucket ends and, as shares are rounded up, for 6 ms more; then less and less of it.
    assert_eq!(seen.iter().filter(|used| **used == USED).count(), 40_006 / 7 + 1);
    assert_eq!(seen.len(), 100_000 / 7 + 1);
    assert_eq!(seen.last(), Some(&1));
}

#[tokio::test]
async fn in_redis_use_fades_without_a_jump() {
    let server = RedisServer::start().await;
    let store = connect(&server);
    let length = Duration::from_secs(1);
    // Charged anew where the first look comes too late, on a machine that is busy.
    let request = loop {
        let request = request(vec![hold(&sliding(length), &ReservationId::random().0, USED)]);
        assert!(matches!(store.reserve(&request).await.unwrap(), Admission::Granted { .. }));
        store.settle(&settlement(&request, &[USED])).await.unwrap();
        if store.peek(&request.holds).await.unwrap()[0].used() == USED {
            break request;
        }
    };
    let look = async || store.peek(&request.holds).await.unwrap()[0];
    follow(length, 1, look, async || tokio::time::sleep(Duration::from_millis(1)).await).await;
}
