//! Where the gRPC server listens: a TCP address or a Unix socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;

/// `unix:/path` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// An address to bind.
    Tcp(String),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("give a path after `unix:`".to_owned())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Self::Tcp(text.to_owned())),
            _ => Err(format!("`{text}` is neither HOST:PORT nor unix:/path")),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    /// On a Unix socket, whose file is removed when it is dropped.
    Unix(UnixListenerStream, SocketFile),
    /// On TCP.
    Tcp(TcpIncoming, SocketAddr),
}

impl Listener {
    /// Binds. The file of a socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// The operating system's, naming the address; `AddrInUse` where somebody listens.
    pub async fn bind(address: &ListenAddress) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
        match address {
            ListenAddress::Unix(path) => {
                remove_stale(path).await.map_err(named)?;
                let listener = UnixListener::bind(path).map_err(named)?;
                Ok(Self::Unix(UnixListenerStream::new(listener), SocketFile(path.clone())))
            }
            ListenAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(named)?;
                let bound = listener.local_addr().map_err(named)?;
                Ok(Self::Tcp(TcpIncoming::from(listener).with_nodelay(Some(true)), bound))
            }
        }
    }

    /// Where it listens, with the port that was really bound.
    pub fn address(&self) -> String {
        match self {
            Self::Unix(_, file) => format!("unix:{}", file.0.display()),
            Self::Tcp(_, bound) => bound.to_string(),
        }
    }
}

async fn remove_stale(path: &Path) -> io::Result<()> {
    // A connection to what is no socket is refused as well, and it may be anybody's file.
    if tokio::fs::symlink_metadata(path).await.is_ok_and(|file| !file.file_type().is_socket()) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file of that name that is no socket"));
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => tokio::fs::remove_file(path).await,
        Err(_) => Ok(()),
    }
}

/// The file of a Unix socket.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it already; there is nothing to be done about it either way.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_neither_a_live_one_nor_any_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("attache.sock");
        let address = ListenAddress::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let live = Listener::bind(&address).await.unwrap();
        let error = Listener::bind(&address).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(live);
        assert!(!path.exists(), "the socket's file goes with the listener");
        std::fs::write(&path, "precious").unwrap();
        let error = Listener::bind(&address).await.unwrap_err();
        assert!(error.to_string().contains("no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
