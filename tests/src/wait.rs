//! Waiting for a condition. Nothing here sleeps for luck.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::error::{Error, LastLines, Result};

/// How long a condition may take; generous, because machines that test are slow and a test that passes does not wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// From one look to the next.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// Waits until the condition holds. `what` completes the sentence "waited in vain until".
///
/// # Errors
/// [`Error::NotInTime`] after 30 s.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !condition().await {
        if start.elapsed() > DEADLINE {
            return Err(Error::NotInTime { what: what.to_owned(), within: DEADLINE, log: LastLines::default() });
        }
        sleep(PAUSE).await;
    }
    Ok(())
}
