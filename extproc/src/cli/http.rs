//! One HTTP request on a connection of its own: how the commands ask admin ports, of sidecars and of Envoys.
//!
//! No answer is trusted: it is bounded in time and size, and what is no whole answer is a [`Fault`] that says what was met instead.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, Response};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::runtime::Builder;
use tokio::time::timeout;

/// A sidecar's admin port is near, and its pages are made from memory and one question to the store.
const SIDECAR: Bounds = Bounds { patience: Duration::from_secs(10), longest_bytes: 16 * 1024 * 1024 };

/// How long an answer may take, and how long it may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) patience: Duration,
    pub(super) longest_bytes: usize,
}

/// A whole answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The HTTP status.
    pub(super) status: u16,
    /// The `server` header; empty where there is none.
    pub(super) server: String,
    /// The body.
    pub(super) body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The address names another protocol than HTTP in clear text.
    #[error("admin ports speak HTTP without TLS: say HOST:PORT or http://HOST:PORT, not {0}://")]
    Scheme(String),
    /// The address has more than a host and a port.
    #[error("an address ends with its port: HOST:PORT or http://HOST:PORT, without a path or a user")]
    Path,
    /// Nobody listens there, or the address is none.
    #[error("{0}")]
    Unreachable(#[from] io::Error),
    /// Somebody listens, and says nothing in time.
    #[error("it does not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// What answers speaks HTTP/2 and no HTTP/1.1, as gRPC servers do.
    #[error("what answers there is a gRPC port (HTTP/2 alone)")]
    Grpc,
    /// What answers speaks no HTTP, or stops in the middle.
    #[error("the answer is cut, or is no HTTP")]
    Cut,
    /// It is longer than it may be.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
}

/// Asks a sidecar's admin port at `address` for `target`, a path with its query.
///
/// # Errors
/// In words, with the address and the option that names it.
pub(super) fn ask_sidecar(
    method: Method,
    address: &str,
    token: Option<&str>,
    target: &str,
    body: &[u8],
) -> Result<Answer, String> {
    let answer = ask(method, address, token, target, body, SIDECAR).map_err(|fault| {
        format!("no answer from a sidecar's admin port at {address}: {fault}; say where it is with --admin HOST:PORT")
    })?;
    match answer.status {
        401 => {
            Err(format!("the sidecar's admin port at {address} demands a token: name its file with --admin-token-file"))
        }
        _ => Ok(answer),
    }
}

/// Sends one request to `address`, which is `HOST:PORT`, `http://HOST:PORT` or `unix:/path`.
pub(super) fn ask(
    method: Method,
    address: &str,
    token: Option<&str>,
    target: &str,
    body: &[u8],
    bounds: Bounds,
) -> Result<Answer, Fault> {
    let address = authority(address)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async {
        let asked = timeout(bounds.patience, exchange(method, address, token, target, body, bounds)).await;
        match asked.unwrap_or(Err(Fault::Silent(bounds.patience))) {
            // Only now: a server that speaks HTTP/1.1 is never sent anything else.
            Err(Fault::Cut) if speaks_http2(address, bounds.patience).await => Err(Fault::Grpc),
            answer => answer,
        }
    });
    // A name that is still being looked up is not waited for.
    runtime.shutdown_background();
    answer
}

/// What is connected to: an address as it is copied from a browser or from `curl` is that of its host and port.
fn authority(address: &str) -> Result<&str, Fault> {
    let address = address.trim();
    if address.starts_with("unix:") {
        return Ok(address);
    }
    let authority = match address.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
        Some((scheme, _)) => return Err(Fault::Scheme(scheme.to_owned())),
        None => address,
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    if authority.contains(['/', '?', '#', '@']) { Err(Fault::Path) } else { Ok(authority) }
}

async fn exchange(
    method: Method,
    address: &str,
    token: Option<&str>,
    target: &str,
    body: &[u8],
    bounds: Bounds,
) -> Result<Answer, Fault> {
    // A host header has no place for a path, and a sidecar does not answer to names that it does not know.
    let is_literal = address.parse::<SocketAddr>().is_ok();
    let host = if is_literal { address } else { "localhost" };
    let mut request = Request::builder().method(method).uri(target).header("host", host).header("connection", "close");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Body::from(body.to_vec())).map_err(io::Error::other)?;
    let response = match connect(address, bounds.patience).await? {
        Stream::Tcp(stream) => send(stream, request).await?,
        Stream::Unix(stream) => send(stream, request).await?,
    };
    let server = response.headers().get("server").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let status = response.status().as_u16();
    Ok(Answer { status, server, body: whole(response.into_body(), bounds.longest_bytes).await? })
}

async fn send<S>(stream: S, request: Request<Body>) -> Result<Response<Incoming>, Fault>
where
    TokioIo<S>: Read + Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|_| Fault::Cut)?;
    tokio::spawn(async move {
        // The request tells how it ended.
        let _ = connection.await;
    });
    sender.send_request(request).await.map_err(|_| Fault::Cut)
}

async fn whole(mut body: Incoming, longest_bytes: usize) -> Result<Vec<u8>, Fault> {
    let mut page = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| Fault::Cut)?;
        let data = frame.data_ref().map(AsRef::as_ref).unwrap_or_default();
        if page.len() + data.len() > longest_bytes {
            return Err(Fault::TooLong(longest_bytes));
        }
        page.extend_from_slice(data);
    }
    Ok(page)
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Connects to the first of an address's machines that answers.
async fn connect(address: &str, patience: Duration) -> io::Result<Stream> {
    if let Some(path) = address.strip_prefix("unix:") {
        return UnixStream::connect(path).await.map(Stream::Unix);
    }
    let machines: Vec<_> = lookup_host(address).await?.collect();
    // One that is silent must leave time for the others.
    let share = patience / u32::try_from(machines.len().max(1)).unwrap_or(u32::MAX);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for machine in machines {
        match timeout(share, TcpStream::connect(machine)).await {
            Ok(Ok(stream)) => return Ok(Stream::Tcp(stream)),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

/// Whether what listens there answers the greeting of HTTP/2 (RFC 9113, section 3.4) with its settings.
async fn speaks_http2(address: &str, patience: Duration) -> bool {
    /// The preface, and an empty SETTINGS frame.
    const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const FRAME_HEAD_BYTES: usize = 9;
    const SETTINGS: u8 = 4;
    let greet = async {
        let mut head = [0; FRAME_HEAD_BYTES];
        match connect(address, patience).await? {
            Stream::Tcp(mut stream) => {
                stream.write_all(GREETING).await?;
                stream.read_exact(&mut head).await?;
            }
            Stream::Unix(mut stream) => {
                stream.write_all(GREETING).await?;
                stream.read_exact(&mut head).await?;
            }
        }
        Ok::<_, io::Error>(head)
    };
    // Length (3), type, flags, and stream 0 (4).
    matches!(timeout(patience, greet).await, Ok(Ok([_, _, _, SETTINGS, _, 0, 0, 0, 0])))
}

#[cfg(test)]
mod tests;
