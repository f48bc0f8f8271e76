//! Which server is the primary of a service, as its sentinels say.
//!
//! <https://redis.io/docs/latest/develop/reference/sentinel-clients/>: ask the sentinels one by one, the one that helped last
//! first; then ask the server itself, since a sentinel may be the last to hear of a failover.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Value;

use super::dial::{DialError, Wire};
use super::url::{Address, Place, RedisTarget};

/// For one sentinel to answer; another one may know as well.
const DEADLINE: Duration = Duration::from_millis(300);

pub(super) struct Sentinels {
    target: Arc<RedisTarget>,
    addresses: Vec<Address>,
    service: String,
    /// The one to ask first.
    first: AtomicUsize,
}

impl Sentinels {
    pub(super) fn new(target: Arc<RedisTarget>, addresses: Vec<Address>, service: String) -> Self {
        Self { target, addresses, service, first: AtomicUsize::new(0) }
    }

    /// These sentinels and their service.
    pub(super) fn place(&self) -> Place {
        self.target.place.clone()
    }

    /// A connection to the server that says itself that it is the primary.
    pub(super) async fn connect_to_primary(
        &self,
        ended: impl Fn() + Send + Sync + Clone + 'static,
    ) -> Result<(Wire, Address), DialError> {
        let mut last = DialError::Unreachable("there is no sentinel".to_owned());
        for (index, sentinel) in self.in_order() {
            let connecting = async {
                let address = self.ask(sentinel).await?;
                let mut wire = self.target.dial(&address, ended.clone()).await?;
                must_be_primary(&mut wire, &address).await?;
                Ok((wire, address))
            };
            match connecting.await {
                Ok(connected) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(connected);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whom the first sentinel that answers takes for the primary.
    pub(super) async fn primary(&self) -> Option<Address> {
        for (_, sentinel) in self.in_order() {
            if let Ok(address) = self.ask(sentinel).await {
                return Some(address);
            }
        }
        None
    }

    fn in_order(&self) -> impl Iterator<Item = (usize, &Address)> {
        let first = self.first.load(Ordering::Relaxed);
        let all = || self.addresses.iter().enumerate();
        all().skip(first).chain(all().take(first))
    }

    async fn ask(&self, sentinel: &Address) -> Result<Address, DialError> {
        let asking = async {
            let mut wire = self.target.dial_sentinel(sentinel).await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
            match redis::from_redis_value(wire.query(&command).await?) {
                Ok(Some((host, port))) => Ok(Address::Tcp { host, port }),
                Ok(None) => Err(DialError::Unreachable(format!("{sentinel} knows no service {:?}", self.service))),
                Err(error) => Err(DialError::Unreachable(format!("{sentinel} answered nonsense: {error}"))),
            }
        };
        let late =
            |_| Err(DialError::Unreachable(format!("the sentinel {sentinel} did not answer within {DEADLINE:?}")));
        tokio::time::timeout(DEADLINE, asking).await.unwrap_or_else(late)
    }
}

async fn must_be_primary(wire: &mut Wire, address: &Address) -> Result<(), DialError> {
    let role = match tokio::time::timeout(DEADLINE, wire.query(&redis::cmd("ROLE"))).await {
        Ok(Ok(Value::Array(answer))) => answer.into_iter().next().and_then(|role| redis::from_redis_value(role).ok()),
        // An access list may hide it. A replica gives itself away as soon as it is to write.
        Ok(Err(error)) if error.code() == Some("NOPERM") => Some("master".to_owned()),
        _ => None,
    };
    match role.as_deref() {
        Some("master") => Ok(()),
        _ => Err(DialError::Unreachable(format!("{address} is not the primary that a sentinel takes it for"))),
    }
}
