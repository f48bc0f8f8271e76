//! A real Redis of a test's own, on a socket in a directory of its own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ::redis::{self, aio::MultiplexedConnection};
use tempfile::TempDir;

/// For a machine that is busy with other things.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct RedisServer {
    directory: TempDir,
    process: Option<Child>,
}

impl RedisServer {
    /// A server that takes commands.
    pub(super) async fn start() -> Self {
        let mut server = Self::stopped();
        server.restart().await;
        server
    }

    /// A place where a server may be started later.
    pub(super) fn stopped() -> Self {
        Self { directory: TempDir::new().unwrap(), process: None }
    }

    pub(super) async fn restart(&mut self) {
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let process = Command::new(&binary)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(self.socket())
            .current_dir(self.directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "these tests need a Redis 7.0 or later, and {binary:?} does not start ({error}): install it \
                     (`apt-get install redis-server`, `brew install redis`) or point REDIS_SERVER to it"
                )
            });
        self.process = Some(process);
        let started = Instant::now();
        while self.try_connect().await.is_none() {
            assert!(started.elapsed() < PATIENCE, "{binary} did not come up");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// As `kill -9` does it: nothing is saved.
    pub(super) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// `STOP` makes it hang, `CONT` go on.
    pub(super) fn signal(&self, name: &str) {
        let id = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    pub(super) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub(super) async fn connection(&self) -> MultiplexedConnection {
        self.try_connect().await.unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    async fn try_connect(&self) -> Option<MultiplexedConnection> {
        let mut connection = redis::Client::open(self.url()).unwrap().get_multiplexed_async_connection().await.ok()?;
        let answer: redis::RedisResult<String> = redis::cmd("PING").query_async(&mut connection).await;
        answer.is_ok().then_some(connection)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
