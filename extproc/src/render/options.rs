//! What a bootstrap needs to know besides the operator's documents: who listens where.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use attache_gate::UnknownKeys;

use super::{Cors, ListenTls};

/// The options of `attache render static`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticOptions {
    /// Where Envoy takes requests.
    pub listen: SocketAddr,
    /// Where Envoy finds the sidecar.
    pub extproc: ExtprocAddress,
    /// The Wasm filter's file, as Envoy sees it; `None` leaves the filter out.
    pub wasm: Option<PathBuf>,
    /// What the Wasm filter does with keys that are not in what was rendered.
    pub unknown_keys: UnknownKeys,
    /// Where Envoy serves its admin interface; `None` leaves it off.
    pub admin: Option<SocketAddr>,
    /// Where Envoy serves the counters of its admin interface, and nothing else of it; `None`, or no admin interface, leaves it off.
    pub stats: Option<SocketAddr>,
    /// The certificate by which Envoy listens with TLS; `None` is clear text.
    pub tls: Option<ListenTls>,
    /// Which web pages may call; `None` is none.
    pub cors: Option<Cors>,
}

/// Where the sidecar serves ext_proc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtprocAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host name or IP address (IPv6 without brackets), and a port.
    Tcp {
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
    },
}

impl FromStr for ExtprocAddress {
    type Err = InvalidExtprocAddress;

    /// Reads `unix:/path` or `HOST:PORT` (IPv6 in brackets).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidExtprocAddress::Unreadable(text.to_owned());
        if text.contains(',') {
            return Err(InvalidExtprocAddress::Several(text.to_owned()));
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(invalid()) } else { Ok(Self::Unix(PathBuf::from(path))) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = |host: &str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        let host = match bracketed {
            Some(host) => host.parse::<Ipv6Addr>().map(|_| host).map_err(|_| invalid())?,
            None => Some(host).filter(|host| is_host(host)).ok_or_else(invalid)?,
        };
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(invalid)?;
        if host.is_empty() {
            return Err(invalid());
        }
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

/// The text is no address of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExtprocAddress {
    /// It is none at all.
    #[error("`{0}` is no address; write unix:/path/to/socket or HOST:PORT")]
    Unreadable(String),
    /// It is more than one.
    #[error(
        "`{0}` is more than one address, and an Envoy has one sidecar: render a bootstrap for each Envoy and its sidecar, \
         or name a host that several sidecars answer to, such as a Service of Kubernetes"
    )]
    Several(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Result<ExtprocAddress, InvalidExtprocAddress> {
        Ok(ExtprocAddress::Tcp { host: host.to_owned(), port })
    }

    #[test]
    fn addresses_are_read_in_every_form() {
        assert_eq!("unix:/run/a.sock".parse(), Ok(ExtprocAddress::Unix(PathBuf::from("/run/a.sock"))));
        assert_eq!("127.0.0.1:9000".parse(), tcp("127.0.0.1", 9000));
        assert_eq!("[::1]:9000".parse(), tcp("::1", 9000));
        assert_eq!("attache.svc:9000".parse(), tcp("attache.svc", 9000));
    }

    #[test]
    fn several_addresses_are_refused_with_what_to_do() {
        let error = "127.0.0.1:1,127.0.0.1:2".parse::<ExtprocAddress>().unwrap_err();
        assert!(error.to_string().contains("more than one address"), "{error}");
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_text() {
        for text in [
            "",
            "unix:",
            "host",
            ":9000",
            "host:",
            "host:0",
            "host:99999",
            "a b:1",
            "::1:9000",
            "[x]:1",
            "http://host:1",
        ] {
            let error = text.parse::<ExtprocAddress>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("`{text}`")), "{error}");
        }
    }
}
