//! One GET of Envoy's admin interface, with the standard library alone. It does not speak HTTP/1.0, and sends its pages in chunks.

use std::io::{self, Read, Write};
use std::time::Duration;

use crate::cli::admin_client::connect;

/// A large dump takes seconds to be made.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The page at `target`, of at most so many bytes.
pub(super) fn get(address: &str, target: &str, longest_bytes: u64) -> io::Result<Vec<u8>> {
    let mut stream = connect(address, TIMEOUT)?;
    let request = format!("GET {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(longest_bytes).read_to_end(&mut answer)?;
    page(&answer)
}

/// The body of a whole answer of status 200.
fn page(answer: &[u8]) -> io::Result<Vec<u8>> {
    let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the answer is cut, or is no HTTP");
    let at = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or_else(cut)?;
    let (head, body) = answer.split_at_checked(at + 4).ok_or_else(cut)?;
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).and_then(|rest| rest.get(..3));
    match status {
        Some("200") => {}
        Some(status) => return Err(io::Error::other(format!("it says {status}"))),
        None => return Err(cut()),
    }
    let header = |wanted: &str| {
        let mut headers = head.split("\r\n").filter_map(|line| line.split_once(':'));
        headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim().to_owned())
    };
    if header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        return unchunk(body).ok_or_else(cut);
    }
    match header("content-length") {
        Some(length) if length.parse() != Ok(body.len()) => Err(cut()),
        _ => Ok(body.to_vec()),
    }
}

/// RFC 9112, section 7.1. `None` if the last chunk is not there.
fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let (size, after) = rest.split_at_checked(end)?;
        let size = std::str::from_utf8(size).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        let (chunk, after) = after.strip_prefix(b"\r\n")?.split_at_checked(size)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(chunk);
        rest = after.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_in_chunks_and_in_one_piece() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        assert_eq!(page(chunked).unwrap(), b"abcde");
        assert_eq!(page(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap(), b"{}");
        assert_eq!(page(b"HTTP/1.1 200 OK\r\n\r\n{}").unwrap(), b"{}");
    }

    #[test]
    fn what_is_cut_or_no_page_is_an_error() {
        for answer in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\n\r\nx",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\nabc\r\n0\r\n\r\n",
        ] {
            assert!(page(answer.as_bytes()).is_err(), "{answer:?}");
        }
    }
}
