//! Asks a sidecar's admin port: one request, one connection, the standard library alone.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The admin port is near, and its pages are made from memory and one question to the store.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Above any page.
const LONGEST_BYTES: u64 = 16 * 1024 * 1024;

/// What it answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The HTTP status.
    pub(super) status: u16,
    /// The body.
    pub(super) body: String,
}

/// Sends `method target` (a path with its query) and a body to the sidecar at `address`.
///
/// # Errors
/// In words, with the address.
pub(super) fn ask(method: &str, address: &str, target: &str, body: &[u8]) -> Result<Answer, String> {
    exchange(method, address, target, body).map_err(|error| {
        format!("no answer from a sidecar's admin port at {address}: {error}; say where it is with --admin HOST:PORT")
    })
}

fn exchange(method: &str, address: &str, target: &str, body: &[u8]) -> io::Result<Answer> {
    let mut stream = connect(address, TIMEOUT)?;
    // HTTP/1.0 (RFC 1945): the body is not chunked, and ends with the connection.
    let length = if method == "POST" { format!("content-length: {}\r\n", body.len()) } else { String::new() };
    stream.write_all(format!("{method} {target} HTTP/1.0\r\nhost: {address}\r\n{length}\r\n").as_bytes())?;
    stream.write_all(body)?;
    let mut text = Vec::new();
    stream.take(LONGEST_BYTES).read_to_end(&mut text)?;
    parse(&String::from_utf8_lossy(&text)).ok_or_else(|| io::Error::other("what answers there is no sidecar"))
}

/// Connects to the first of an address's machines that answers, and waits for none of it longer than `timeout`.
pub(super) fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, timeout) {
            Ok(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// `None` for what is no whole answer.
fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let (version, rest) = lines.next()?.split_once(' ')?;
    let status = rest.get(..3)?.parse().ok().filter(|_| version.starts_with("HTTP/1."))?;
    let mut headers = lines.filter_map(|line| line.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let is_whole = length.is_none_or(|(_, length)| length.trim().parse() == Ok(body.len()));
    is_whole.then(|| Answer { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn answering(answer: &'static str) -> (Result<Answer, String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        let answer = ask("POST", &address, "/limits/reset?key=a", b"");
        (answer, server.join().unwrap().replace(&address, "ADDRESS"))
    }

    #[test]
    fn a_whole_answer_is_read() {
        let (answer, request) = answering("HTTP/1.0 404 Not Found\r\nContent-Length: 3\r\n\r\n{}\n");
        assert_eq!(answer, Ok(Answer { status: 404, body: "{}\n".to_owned() }));
        assert_eq!(request, "POST /limits/reset?key=a HTTP/1.0\r\nhost: ADDRESS\r\ncontent-length: 0\r\n\r\n");
    }

    #[test]
    fn half_an_answer_or_none_at_all_is_an_error_that_says_what_to_do() {
        for text in [
            "",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n{}\n",
            "HTTP/1.1 x\r\n\r\n",
            "HTTP/1.1 200",
        ] {
            let error = answering(text).0.unwrap_err();
            assert!(
                error.ends_with("what answers there is no sidecar; say where it is with --admin HOST:PORT"),
                "{error}"
            );
        }
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert!(ask("GET", &free, "/limits", b"").unwrap_err().contains(&free));
        assert!(ask("GET", "nonsense", "/limits", b"").is_err());
    }
}
