//! HTTP/1.1 by hand, and frames of HTTP/2, for what a well-behaved client library does not send.

use std::net::SocketAddr;

use attache_tests::Envoy;
use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

/// What was answered.
#[derive(Clone, Debug)]
pub(crate) struct RawAnswer {
    pub(crate) status: u16,
    /// The headers, with the line before them.
    pub(crate) head: String,
    /// The body as it came, chunk sizes included.
    pub(crate) body: String,
}

impl Connection {
    pub(crate) async fn open(envoy: &Envoy) -> Self {
        let address: SocketAddr = envoy.url().trim_start_matches("http://").parse().unwrap();
        Self { stream: TcpStream::connect(address).await.unwrap(), received: Vec::new() }
    }

    /// Writes; a peer that has closed the connection is no error, since it may have answered before.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).await.is_ok()
    }

    /// One chunk of a chunked body.
    pub(crate) async fn send_chunk(&mut self, bytes: &[u8]) -> bool {
        let framed = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        self.send(framed).await
    }

    /// Reads until the headers are there, and takes them off.
    pub(crate) async fn read_head(&mut self) -> String {
        loop {
            if let Some(end) = find(&self.received, b"\r\n\r\n") {
                let rest = self.received.split_off(end + 4);
                let head = std::mem::replace(&mut self.received, rest);
                return String::from_utf8_lossy(&head).into_owned();
            }
            assert!(self.read_more().await, "closed before there were headers: {:?}", self.received);
        }
    }

    /// Reads an answer: up to `content-length`, the last chunk, or the end of the connection.
    pub(crate) async fn read_answer(&mut self) -> RawAnswer {
        let head = self.read_head().await;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map(|length| length.parse::<usize>().unwrap());
        loop {
            let is_whole = match length {
                Some(length) => self.received.len() >= length,
                None => self.received.ends_with(b"0\r\n\r\n"),
            };
            if is_whole || !self.read_more().await {
                break;
            }
        }
        // What follows is the next answer.
        let end = length.unwrap_or(usize::MAX).min(self.received.len());
        let rest = self.received.split_off(end);
        let body = String::from_utf8_lossy(&std::mem::replace(&mut self.received, rest)).into_owned();
        RawAnswer { status, head, body }
    }

    /// Reads so many bytes.
    pub(crate) async fn read_bytes(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            assert!(self.read_more().await, "closed before there were {count} bytes: {:?}", self.received);
        }
        let rest = self.received.split_off(count);
        std::mem::replace(&mut self.received, rest)
    }

    /// Reads the frames of HTTP/2 up to the first that has data, which is text.
    pub(crate) async fn read_data_frame(&mut self) -> String {
        loop {
            let head = self.read_bytes(9).await;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let payload = self.read_bytes(usize::try_from(length).unwrap()).await;
            if head[3] == http2::DATA {
                return String::from_utf8(payload).unwrap();
            }
        }
    }

    /// Reads until the peer closes the connection.
    pub(crate) async fn read_to_end(&mut self) {
        while self.read_more().await {}
    }

    async fn read_more(&mut self) -> bool {
        let read = self.stream.read_buf(&mut self.received).await;
        read.is_ok_and(|bytes| bytes > 0)
    }
}

impl RawAnswer {
    /// A header's value, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A POST of JSON, whole.
pub(crate) fn post(path: &str, headers: &str, body: &[u8]) -> Bytes {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat().into()
}

/// The headers of a chunked POST of JSON.
pub(crate) fn chunked(path: &str, headers: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{headers}\
         transfer-encoding: chunked\r\n\r\n"
    )
}

/// What HTTP/2 is made of (RFC 9113).
pub(crate) mod http2 {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;

    /// What a client says first: that it is HTTP/2, and that it has no wishes.
    pub(crate) fn preface() -> Vec<u8> {
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat()
    }

    /// A frame (section 4.1).
    pub(crate) fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}
