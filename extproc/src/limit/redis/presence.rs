//! Whether Redis would take a reservation, and how many sidecars share it.
//!
//! Both are scripts, which an access list lets through that lets reservations through: no command beyond theirs is needed.

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
    pub async fn sidecars(&self, id: &str, lifetime: Duration) -> Result<usize, StoreError> {
        let lifetime_ms = u32::try_from(lifetime.as_millis()).unwrap_or(u32::MAX);
        let arguments = vec![id.to_owned().into_bytes(), lifetime_ms.to_string().into_bytes()];
        let call = Call::plain(vec!["att1:{sidecars}".to_owned()], arguments);
        let answer = self.run(&self.shared.settling, &SIDECARS, &call, self.shared.options.settle_deadline).await?;
        match answer.as_sequence() {
            Some([Value::Int(count)]) => Ok(usize::try_from(*count).unwrap_or(0)),
            _ => Err(StoreError::Failed(format!("it answered {answer:?}"))),
        }
    }
}
