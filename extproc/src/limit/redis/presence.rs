//! Whether Redis would take a reservation, how many sidecars share it, and how full it is.
//!
//! All are scripts, which an access list lets through that lets reservations through: no command beyond theirs is needed.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;

use super::RedisStore;
use super::call::Call;
use super::script::Script;
use crate::limit::StoreError;

/// It may write as far as Redis knows, so Redis refuses it whenever it would refuse a reservation: out of memory, a replica,
/// unable to save. `PING` answers even then.
static PING: LazyLock<Script> = LazyLock::new(|| Script::new("#!lua\nreturn {1}"));

/// Written even when Redis is out of memory: how many share a limit matters most when Redis cannot keep it.
static SIDECARS: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!("#!lua flags=allow-oom\n", include_str!("sidecars.lua"))));

/// What a sidecar hears when it says that it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    /// How many sidecars share the store.
    pub sidecars: usize,
    /// What the store has of memory; in a cluster, the node that was asked.
    pub memory: StoreMemory,
}

/// What a store has of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreMemory {
    /// What it uses; 0 where it does not tell.
    pub used_bytes: u64,
    /// What it may use, `maxmemory`; 0 where it does not tell, or has no bound.
    pub limit_bytes: u64,
}

impl RedisStore {
    /// Whether a reservation would be taken now; no counter changes. In a cluster, by one node at least.
    ///
    /// # Errors
    /// [`StoreError`] as for a reservation.
    pub async fn ping(&self, deadline: Duration) -> Result<(), StoreError> {
        self.counted(self.shared.reserving.run_anywhere(&PING, deadline).await).map(drop)
    }

    /// Registers the sidecar `id` for so long, and says how many are registered, this one among them. A lifetime of zero takes
    /// it out.
    ///
    /// # Errors
    /// [`StoreError`] as for a settlement; it is safe to try again.
    pub async fn sidecars(&self, id: &str, lifetime: Duration) -> Result<Presence, StoreError> {
        let lifetime_ms = u32::try_from(lifetime.as_millis()).unwrap_or(u32::MAX);
        let arguments = vec![id.to_owned().into_bytes(), lifetime_ms.to_string().into_bytes()];
        let call = Call::plain(vec!["att1:{sidecars}".to_owned()], arguments);
        let answer = self.run(&self.shared.settling, &SIDECARS, &call, self.shared.options.settle_deadline).await?;
        match answer.as_sequence() {
            Some([Value::Int(count), Value::Int(used), Value::Int(limit)]) => {
                let bytes = |number: i64| u64::try_from(number).unwrap_or(0);
                let memory = StoreMemory { used_bytes: bytes(*used), limit_bytes: bytes(*limit) };
                self.shared.known.hear(memory);
                Ok(Presence { sidecars: usize::try_from(*count).unwrap_or(0), memory })
            }
            _ => Err(StoreError::Failed(format!("it answered {answer:?}"))),
        }
    }
}
