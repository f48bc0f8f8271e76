//! Simulated time.

use std::time::Duration;

use tokio::time::sleep;

/// Sleeps; for no time at all, not even until the timer's next tick.
pub(crate) async fn pause(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}
