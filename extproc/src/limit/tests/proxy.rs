//! A network that is slow, or breaks: a TCP proxy in front of a real Redis.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

pub(super) struct Proxy {
    port: u16,
    weather: Arc<watch::Sender<Weather>>,
    task: AbortHandle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    Fine,
    /// What a client sends takes so long.
    Slow(Duration),
    /// The next script reaches Redis, and the connection ends in the middle of the answer.
    CutsNextAnswer,
}

impl Proxy {
    pub(super) async fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let weather = Arc::new(watch::Sender::new(Weather::Fine));
        let own = listener.local_addr().unwrap().port();
        let task = tokio::spawn(accept(listener, port, Arc::clone(&weather))).abort_handle();
        Self { port: own, weather, task }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(super) fn turn(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    pub(super) fn weather(&self) -> Weather {
        *self.weather.borrow()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, port: u16, weather: Arc<watch::Sender<Weather>>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let weather = Arc::clone(&weather);
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
                return;
            };
            let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
            let doomed = watch::Sender::new(false);
            // Whichever ends first ends both.
            tokio::select! {
                () = carry_requests(from_client, to_server, &weather, &doomed) => {}
                () = carry_answers(from_server, to_client, &weather, &doomed) => {}
            }
        });
    }
}

async fn carry_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    weather: &watch::Sender<Weather>,
    doomed: &watch::Sender<bool>,
) {
    let (sender, mut on_their_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reading = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let bytes = buffer[..read].to_vec();
            let weather = *weather.borrow();
            if weather == Weather::CutsNextAnswer && bytes.windows(4).any(|word| word == b"EVAL") {
                doomed.send_replace(true);
            }
            let delay = if let Weather::Slow(delay) = weather { delay } else { Duration::ZERO };
            sender.send((Instant::now() + delay, bytes)).unwrap();
        }
    };
    let writing = async {
        while let Some((due, bytes)) = on_their_way.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
}

async fn carry_answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    weather: &watch::Sender<Weather>,
    doomed: &watch::Sender<bool>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if *doomed.borrow() {
            let _ = to.write_all(&buffer[..read / 2]).await;
            weather.send_replace(Weather::Fine);
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
