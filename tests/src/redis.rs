//! A real Redis server, empty at first, that keeps nothing on disk unless it is told to.

use std::{net::SocketAddr, path::Path, process::Command};

use redis::aio::MultiplexedConnection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    error::{Error, Result},
    port,
    process::{Process, Signal},
    tools,
};

/// A Redis server; killed when it is dropped.
#[derive(Debug)]
pub struct Redis {
    address: SocketAddr,
    arguments: Vec<String>,
    directory: std::path::PathBuf,
    process: Process,
}

impl Redis {
    /// Starts one on a free port, with its files in `directory`. `arguments` go to `redis-server` and win over ours, such
    /// as `--appendonly yes`.
    ///
    /// # Errors
    /// When it does not start to answer.
    pub async fn start(directory: &Path, arguments: &[&str]) -> Result<Self> {
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let mut attempts = port::ATTEMPTS;
        loop {
            let address = port::free()?;
            match launch(address, directory, &arguments).await {
                Ok(process) => return Ok(Self { address, arguments, directory: directory.to_owned(), process }),
                Err(error) if attempts == 0 || !port::was_taken(&error) => return Err(error),
                Err(_) => attempts -= 1,
            }
        }
    }

    /// Kills it, as a crash would.
    ///
    /// # Errors
    /// When it stays.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// Starts it again at the same address, after it was killed.
    ///
    /// # Errors
    /// When it does not start to answer.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill().await?;
        self.process = launch(self.address, &self.directory, &self.arguments).await?;
        Ok(())
    }

    /// Sends a signal; [`Signal::Stop`] makes it hang with its connections open.
    ///
    /// # Errors
    /// The operating system's.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, as `--redis` wants it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// A connection of the test's own.
    ///
    /// # Errors
    /// When it cannot connect.
    pub async fn connection(&self) -> Result<MultiplexedConnection> {
        let connect = async || redis::Client::open(self.url())?.get_multiplexed_async_connection().await;
        connect().await.map_err(|error| Error::unexpected("cannot connect to Redis", error.to_string()))
    }
}

async fn launch(address: SocketAddr, directory: &Path, arguments: &[String]) -> Result<Process> {
    let mut command = Command::new(tools::redis_server()?);
    command
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &address.port().to_string()])
        .arg("--dir")
        .arg(directory)
        .args(arguments);
    let mut process = Process::spawn("redis", command, directory).await?;
    process.until("it answered", async || answers(address).await).await?;
    Ok(process)
}

/// Whether it answers a PING, be it by asking for a password.
async fn answers(address: SocketAddr) -> bool {
    let ping = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).await?;
        Ok::<_, std::io::Error>(reply)
    };
    ping.await.is_ok_and(|reply| &reply == b"+PONG" || &reply == b"-NOAU")
}
