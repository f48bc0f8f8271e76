//! The memory store's time, so that tests can turn it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Wall-clock time: windows are aligned to the epoch.
pub trait Clock: Send + Sync + 'static {
    /// Since the epoch.
    fn now(&self) -> Duration;
}

/// The operating system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        // A clock before 1970 is a clock that was never set: everything falls into the first window.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}
