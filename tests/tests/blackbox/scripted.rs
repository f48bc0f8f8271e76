//! A model server that says what a test tells it to, event by event.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

/// A model server whose every answer is this stream of pieces, the last of which come only when it is told to go on.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    go_on: Arc<Semaphore>,
}

impl Scripted {
    /// Answers each request with `before` at once, and with `after` once [`Self::go_on`] was called for it.
    pub(crate) async fn start(before: Vec<String>, after: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let go_on = Arc::new(Semaphore::new(0));
        let script = Arc::new((before, after, Arc::clone(&go_on)));
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let script = Arc::clone(&script);
                tokio::spawn(async move { answer(connection, &script).await });
            }
        });
        Self { address, go_on }
    }

    /// Lets one answer come to its end.
    pub(crate) fn go_on(&self) {
        self.go_on.add_permits(1);
    }
}

type Script = (Vec<String>, Vec<String>, Arc<Semaphore>);

async fn answer(mut connection: TcpStream, script: &Script) -> Option<()> {
    let (before, after, go_on) = script;
    request_body(&mut connection).await?;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    connection.write_all(head.as_bytes()).await.ok()?;
    for piece in before {
        connection.write_all(piece.as_bytes()).await.ok()?;
        connection.flush().await.ok()?;
    }
    go_on.acquire().await.ok()?.forget();
    for piece in after {
        connection.write_all(piece.as_bytes()).await.ok()?;
    }
    Some(())
}

async fn request_body(connection: &mut TcpStream) -> Option<String> {
    let mut received = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let read = connection.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        received.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&received);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_ascii_lowercase().split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
        if body.len() >= length {
            return Some(body.to_owned());
        }
    }
}
