//! Free ports.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Mutex, PoisonError},
};

use crate::error::{Error, Result};

/// Ports that were given away. Envoy listens with SO_REUSEPORT, so two of them on one port would both start and share its
/// connections: no port is given away twice.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port of 127.0.0.1 that nobody listens on now. Somebody else may take it before it is used: whoever uses it tries
/// again with another.
///
/// # Errors
/// When the system has none.
pub fn free() -> Result<SocketAddr> {
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("find a free port"))?;
        let address = listener.local_addr().map_err(Error::io("find a free port"))?;
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(address.port()) {
            return Ok(address);
        }
    }
}

/// How often a process that found its port taken is started again with another.
pub const ATTEMPTS: u32 = 5;

/// Whether a process says that it failed because its address is in use.
pub fn was_taken(error: &Error) -> bool {
    matches!(error, Error::Ended { log, .. } if log.to_string().to_lowercase().contains("address already in use"))
}
