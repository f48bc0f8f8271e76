//! The upstream of whole answers: one thread a connection, one fixed answer. The simulated model server parses bodies and
//! takes its time with 100 kB of them, which would hide what the gateway costs.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

/// An answer with its usage, as vLLM writes it.
const BODY: &str = r#"{"id":"chatcmpl-8f1d2c3b4a596877","object":"chat.completion","created":1750000000,"model":"meta-llama/Llama-3.1-8B-Instruct","choices":[{"index":0,"message":{"role":"assistant","content":"The quick brown fox jumps over the lazy dog, and the dog does not mind it at all."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":480,"total_tokens":501,"completion_tokens":21,"prompt_tokens_details":{"cached_tokens":448}}}"#;

/// Listens for as long as the process lives.
pub(crate) fn start() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Envoy closes connections as it likes; that is no error.
            thread::spawn(move || serve(stream));
        }
    });
    Ok(address)
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let answer = format!(
        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let mut piece = vec![0; 128 * 1024];
    let mut request = Vec::with_capacity(piece.len());
    loop {
        let read = stream.read(&mut piece)?;
        if read == 0 {
            return Ok(());
        }
        request.extend(piece.iter().take(read));
        if is_whole(&request)? {
            stream.write_all(answer.as_bytes())?;
            request.clear();
        }
    }
}

/// Whether the request is all there. All of them have a content-length: where one does not, the gateway has lost it.
fn is_whole(request: &[u8]) -> io::Result<bool> {
    let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(false) };
    let head = String::from_utf8_lossy(request.get(..end).unwrap_or_default());
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.and_then(|length| length.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(request.len() >= end + 4 + length)
}
