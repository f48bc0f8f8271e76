//! What this process calls a counter in its own tables.

use xxhash_rust::xxh3::xxh3_128;

use crate::limit::Hold;

/// A counter's name: 128 bits of hash over its limit, its window and its key, which is a hash with a secret-sized range
/// itself. As in the stores, the window is in it and the amount is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CounterName(u128);

impl CounterName {
    pub(super) fn of(hold: &Hold) -> Self {
        Self(xxh3_128(format!("{}|{}|{}", hold.limit.id, hold.limit.window, hold.counter.0).as_bytes()))
    }
}
