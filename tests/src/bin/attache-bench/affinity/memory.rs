//! What the index takes of its budget, by its own account and by the process's.

use attache_tests::{Error, Result};
use serde::Serialize;

use super::{DEFAULT_BUDGET, ENDPOINTS, bed::Bed};
use crate::{report::Progress, usage::Usage};

/// One index, filled until blocks had to go.
#[derive(Debug, Serialize)]
pub(super) struct Memory {
    pub(super) endpoints: usize,
    pub(super) budget_bytes: usize,
    pub(super) index_bytes: usize,
    /// How much larger the process became: the index, all that is known of the endpoints, and what the allocator keeps.
    pub(super) resident_bytes: u64,
    pub(super) blocks: usize,
    pub(super) evictions: u64,
}

pub(super) fn measure(progress: &mut Progress) -> Result<Vec<Memory>> {
    let mut measured = Vec::new();
    // All stay until the last is measured: memory that is used again is not seen.
    let mut beds = Vec::new();
    for budget_bytes in [1 << 20, DEFAULT_BUDGET] {
        for endpoints in ENDPOINTS {
            progress.say(&format!("prefix affinity: memory of {budget_bytes} bytes, {endpoints} endpoints"));
            let before = Usage::resident_bytes();
            let mut bed = Bed::new(endpoints, budget_bytes);
            bed.fill();
            let resident_bytes = Usage::resident_bytes().saturating_sub(before);
            let stats = bed.pool.stats(bed.now());
            if stats.index_bytes > budget_bytes {
                let text = format!("{} bytes of {budget_bytes}", stats.index_bytes);
                return Err(Error::unexpected("an index within its budget", text));
            }
            measured.push(Memory {
                endpoints,
                budget_bytes,
                index_bytes: stats.index_bytes,
                resident_bytes,
                blocks: stats.index_blocks,
                evictions: stats.index_evictions,
            });
            beds.push(bed);
        }
    }
    Ok(measured)
}
