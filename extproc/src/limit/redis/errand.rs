//! A script of another room on the same Redis: by the same URL, TLS, login, sentinels and cluster, over a connection of its own,
//! so that it never makes a reservation wait behind it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::call::Call;
use super::channel::Channel;
use super::link::Inspection;
use super::script::Script;
use super::url::RedisTarget;
use crate::limit::StoreError;

/// One script and the way to where it runs.
pub(crate) struct Errand {
    channel: Channel,
    script: Script,
}

impl Errand {
    /// It connects in the background and whenever the connection is lost; to be called within a Tokio runtime. `rights` says
    /// who needs what of Redis's access list: `token limits need: ~att1:* +eval` and so on.
    pub(crate) fn new(target: RedisTarget, script: String, rights: &'static str) -> Self {
        Self { channel: Channel::new(&Arc::new(target), Inspection::None, rights), script: Script::new(script) }
    }

    /// Runs it where its keys are, all of one slot.
    ///
    /// # Errors
    /// [`StoreError`] as for a settlement.
    pub(crate) async fn run(
        &self,
        keys: Vec<String>,
        arguments: Vec<Vec<u8>>,
        deadline: Duration,
    ) -> Result<Value, StoreError> {
        self.channel.run(&self.script, &Call::plain(keys, arguments), deadline).await
    }
}

impl fmt::Debug for Errand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errand").finish_non_exhaustive()
    }
}
