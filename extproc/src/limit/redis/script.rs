//! The scripts. Each starts with `#!lua`, so Redis decides before the first line runs whether it may write at all: when it is
//! out of memory, a reservation is refused whole. Settling and renewing are let through even then: they give holds back,
//! overwrite what is there and leave behind less than a lost charge would cost.

use std::sync::LazyLock;

use redis::{ErrorKind, RedisError, ServerErrorKind};

pub(super) static RESERVE: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!("#!lua\n", include_str!("common.lua"), include_str!("reserve.lua"))));
pub(super) static SETTLE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!("#!lua flags=allow-oom\n", include_str!("common.lua"), include_str!("settle.lua")))
});
pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!("#!lua flags=allow-oom\n", include_str!("common.lua"), include_str!("renew.lua")))
});

pub(super) struct Script {
    pub(super) text: &'static str,
    /// By which Redis knows a script that it has run before.
    pub(super) sha1: String,
}

impl Script {
    pub(super) fn new(text: &'static str) -> Self {
        Self { text, sha1: redis::Script::new(text).get_hash().to_owned() }
    }
}

/// Whether Redis has never run the script, or has forgotten it.
pub(super) fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
