//! The scripts. Each starts with `#!lua`, so Redis decides before the first line runs whether it may write at all: when it is
//! out of memory, a reservation is refused whole. All others are let through even then: they give holds back, overwrite what is
//! there and leave behind less than a lost charge would cost.

use std::sync::LazyLock;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::limit::counter::BUCKETS_AHEAD;
use crate::limit::rules::MAX_COUNT;
use crate::limit::store::{LEASE_MS, RECOUNT_AT_MOST, SWEEP_AT_MOST, SWEEP_BEFORE_REFUSAL, TOMBSTONE_MS};

pub(super) static RESERVE: LazyLock<Script> =
    LazyLock::new(|| of_counters("", &[ADMISSION, include_str!("reserve.lua")]));
pub(super) static GROW: LazyLock<Script> =
    LazyLock::new(|| of_counters(" flags=allow-oom", &[ADMISSION, include_str!("grow.lua")]));
pub(super) static SETTLE: LazyLock<Script> =
    LazyLock::new(|| of_counters(" flags=allow-oom", &[include_str!("settle.lua")]));
pub(super) static PEEK: LazyLock<Script> =
    LazyLock::new(|| of_counters(" flags=no-writes", &[ADMISSION, include_str!("peek.lua")]));
pub(super) static RESET: LazyLock<Script> =
    LazyLock::new(|| of_counters(" flags=allow-oom", &[include_str!("reset.lua")]));

const COMMON: &str = include_str!("common.lua");
const ADMISSION: &str = include_str!("admission.lua");

pub(super) struct Script {
    pub(super) text: String,
    /// By which Redis knows a script that it has run before.
    pub(super) sha1: String,
}

impl Script {
    pub(super) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { sha1: redis::Script::new(&text).get_hash().to_owned(), text }
    }

    /// One that does the same, and that Redis takes for another.
    #[cfg(test)]
    pub(super) fn of_another_version(&self) -> Self {
        Self::new(format!("{}\n-- Of another version.\n", self.text))
    }
}

/// Each part makes functions, whoever calls them: a script has only those that it needs.
fn of_counters(flags: &str, parts: &[&str]) -> Script {
    Script::new(format!(
        "#!lua{flags}\n\
         local LEASE_MS, TOMBSTONE_MS = {LEASE_MS}, '{TOMBSTONE_MS}'\n\
         local SWEEP_AT_MOST, SWEEP_BEFORE_REFUSAL = '{SWEEP_AT_MOST}', '{SWEEP_BEFORE_REFUSAL}'\n\
         local RECOUNT_AT_MOST = '{RECOUNT_AT_MOST}'\n\
         local MAX_COUNT, BUCKETS_AHEAD = {MAX_COUNT}, {BUCKETS_AHEAD}\n\
         {COMMON}{}",
        parts.concat()
    ))
}

/// Whether Redis has never run the script, or has forgotten it.
pub(super) fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
