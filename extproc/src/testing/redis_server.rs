//! A real Redis of a test's own, on a socket in a directory of its own and, where a test asks for one, on a port.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ::redis::{self, aio::MultiplexedConnection};
use tempfile::TempDir;

/// For a machine that is busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How often a server is started on another port when somebody else was quicker.
const PORTS_TO_TRY: usize = 5;

pub(crate) struct RedisServer {
    directory: TempDir,
    arguments: Vec<String>,
    /// 0 for none.
    port: u16,
    process: Option<Child>,
}

impl RedisServer {
    /// A server that takes commands.
    pub(crate) async fn start() -> Self {
        let mut server = Self::stopped();
        server.restart().await;
        server
    }

    /// A place where a server may be started later.
    pub(crate) fn stopped() -> Self {
        Self { directory: TempDir::new().unwrap(), arguments: Vec::new(), port: 0, process: None }
    }

    /// A server with further arguments, which win over ours.
    pub(crate) async fn start_with(arguments: &[&str]) -> Self {
        let mut server = Self::stopped();
        server.arguments = arguments.iter().map(ToString::to_string).collect();
        server.restart().await;
        server
    }

    /// A server on a port of its own as well; the arguments may depend on that port and on the server's directory.
    pub(crate) async fn start_on_port(arguments: impl Fn(u16, &Path) -> Vec<String>) -> Self {
        for _ in 0..PORTS_TO_TRY {
            let mut server = Self::stopped();
            server.port = free_port();
            server.arguments = arguments(server.port, server.directory.path());
            if server.try_restart().await {
                return server;
            }
        }
        panic!("{PORTS_TO_TRY} ports were taken by others");
    }

    pub(crate) async fn restart(&mut self) {
        assert!(self.try_restart().await, "Redis did not come up");
    }

    async fn try_restart(&mut self) -> bool {
        let mut command = redis_server();
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(self.socket())
            .args(&self.arguments)
            .current_dir(self.directory.path());
        let process = self.process.insert(spawn(command));
        let started = Instant::now();
        loop {
            if process.try_wait().unwrap().is_some() {
                return false;
            }
            if try_connect(&format!("redis+unix://{}", self.directory.path().join("redis.sock").display()))
                .await
                .is_some()
            {
                return true;
            }
            assert!(started.elapsed() < PATIENCE, "Redis did not come up");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// As `kill -9` does it: nothing is saved.
    pub(crate) fn kill(&mut self) {
        end(&mut self.process);
    }

    /// `STOP` makes it hang, `CONT` go on.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Of a server that was started on a port.
    pub(crate) fn port(&self) -> u16 {
        assert_ne!(self.port, 0);
        self.port
    }

    pub(crate) async fn connection(&self) -> MultiplexedConnection {
        try_connect(&self.url()).await.unwrap()
    }

    /// By the default user's password.
    pub(crate) async fn connection_with(&self, password: &str) -> MultiplexedConnection {
        let address = redis::ConnectionAddr::Unix(self.socket());
        let login = redis::RedisConnectionInfo::default().set_password(password);
        let info = redis::IntoConnectionInfo::into_connection_info(address).unwrap().set_redis_settings(login);
        redis::Client::open(info).unwrap().get_multiplexed_async_connection().await.unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn redis_server() -> Command {
    Command::new(std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned()))
}

pub(crate) fn spawn(mut command: Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap_or_else(|error| {
        panic!(
            "these tests need a Redis 7.0 or later, and {:?} does not start ({error}): install it \
             (`apt-get install redis-server`, `brew install redis`) or point REDIS_SERVER to it",
            command.get_program()
        )
    })
}

pub(crate) fn end(process: &mut Option<Child>) {
    if let Some(mut process) = process.take() {
        // It may have ended by itself.
        let _ = process.kill();
        process.wait().unwrap();
    }
}

/// One that nobody listens on now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A connection to a server that answers.
pub(crate) async fn try_connect(url: &str) -> Option<MultiplexedConnection> {
    let mut connection = redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.ok()?;
    let answer: redis::RedisResult<String> = redis::cmd("PING").query_async(&mut connection).await;
    answer.is_ok().then_some(connection)
}

/// The answer to a command of plain words.
pub(crate) async fn ask(connection: &mut MultiplexedConnection, words: &str) -> redis::RedisResult<redis::Value> {
    let mut command = redis::Cmd::new();
    for word in words.split_whitespace() {
        command.arg(word);
    }
    command.query_async(connection).await
}

pub(crate) async fn say(connection: &mut MultiplexedConnection, words: &str) {
    ask(connection, words).await.unwrap();
}

/// How a recovery is awaited.
pub(crate) async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < PATIENCE, "it did not come to be");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
