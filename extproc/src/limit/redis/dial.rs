//! A connection to one server, from nothing: name, socket, TLS, login.
//!
//! What stands in files is read anew each time: a password or a certificate that was changed is used by the next connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::{ConnectionLike, MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo,
    RedisError, RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::credentials::Login;
use super::url::{Address, RedisTarget};

/// Commands that may wait to be written; the crate's 50 make callers queue in a burst.
const PIPELINE_BUFFER: usize = 1_024;

/// No request waits for longer than its own deadline. TLS takes four round trips.
const DEADLINE: Duration = Duration::from_secs(1);

/// A connection that is ready for commands. Clones share it; it ends with the last of them.
#[derive(Clone)]
pub(super) struct Wire {
    connection: MultiplexedConnection,
    _driver: Arc<Driver>,
}

/// What carries a connection's bytes.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DialError {
    /// Nobody is there, or not who should be.
    Unreachable(String),
    /// Redis does not let us in.
    LoginRefused(String),
}

impl RedisTarget {
    /// Connects to one of the servers. `ended` is called when the connection has ended, also while nobody uses it.
    pub(super) async fn dial(
        &self,
        address: &Address,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Result<Wire, DialError> {
        self.dial_as(address, &self.login, self.database, ended).await
    }

    /// Connects to one of the sentinels.
    pub(super) async fn dial_sentinel(&self, address: &Address) -> Result<Wire, DialError> {
        self.dial_as(address, &self.sentinel_login, 0, || {}).await
    }

    async fn dial_as(
        &self,
        address: &Address,
        login: &Login,
        database: u32,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Result<Wire, DialError> {
        let connecting = self.connect(address, login, database, ended);
        match tokio::time::timeout(DEADLINE, connecting).await {
            Ok(Err(DialError::Unreachable(reason))) => Err(DialError::Unreachable(format!("{address}: {reason}"))),
            Ok(result) => result,
            Err(_) => Err(DialError::Unreachable(format!("{address}: no connection within {DEADLINE:?}"))),
        }
    }

    async fn connect(
        &self,
        address: &Address,
        login: &Login,
        database: u32,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Result<Wire, DialError> {
        let (password, tls) = self.read_files(login).await?;
        let mut settings = RedisConnectionInfo::default()
            // In which the crate tells of a connection that has ended.
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(database.into())
            .set_lib_name("attache", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &login.user {
            // Without a password as well: one who needs none is let in with any, and nobody becomes the default user unawares.
            settings = settings.set_username(user).set_password(password.unwrap_or_default());
        } else if let Some(password) = password {
            settings = settings.set_password(password);
        }
        match (address, tls) {
            (Address::Unix(path), _) => greet(UnixStream::connect(path).await?, &settings, ended).await,
            (Address::Tcp { host, port }, None) => greet(tcp(host, *port).await?, &settings, ended).await,
            (Address::Tcp { host, port }, Some(tls)) => {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = TlsConnector::from(tls).connect(name, tcp(host, *port).await?).await?;
                greet(stream, &settings, ended).await
            }
        }
    }

    async fn read_files(&self, login: &Login) -> Result<(Option<String>, Option<Arc<ClientConfig>>), DialError> {
        let (password, tls) = (login.password.clone(), self.tls.clone());
        let reading = move || Ok((password.read()?, tls.map(|tls| tls.read()).transpose()?));
        let read = tokio::task::spawn_blocking(reading).await;
        read.unwrap_or_else(|error| Err(error.to_string())).map_err(DialError::Unreachable)
    }
}

/// To whichever of a name's addresses answers first.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let attempts: Vec<_> =
        lookup_host((host, port)).await?.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if attempts.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn greet<S>(
    stream: S,
    settings: &RedisConnectionInfo,
    ended: impl Fn() + Send + Sync + 'static,
) -> Result<Wire, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = AsyncConnectionConfig::new()
        // Callers have deadlines of their own.
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_BUFFER)
        .set_push_sender(move |push: PushInfo| -> Result<(), SendError> {
            if push.kind == PushKind::Disconnection {
                ended();
            }
            Ok(())
        });
    let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config).await?;
    Ok(Wire { connection, _driver: Arc::new(Driver(tokio::spawn(driver).abort_handle())) })
}

impl Wire {
    pub(super) async fn query(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.connection.req_packed_command(command).await.and_then(Value::extract_error)
    }

    /// The answer to `command` from a node that is taking over its slot.
    pub(super) async fn query_asking(&mut self, command: Cmd) -> RedisResult<Value> {
        let mut both = Pipeline::with_capacity(2);
        both.cmd("ASKING").ignore().add_command(command);
        let mut answers = self.connection.req_packed_commands(&both, 1, 1).await?;
        answers.pop().unwrap_or(Value::Nil).extract_error()
    }
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<RedisError> for DialError {
    fn from(error: RedisError) -> Self {
        let text = error.to_string();
        let refused =
            ["WRONGPASS", "NOAUTH", "NOPERM", "invalid username-password pair", "without any password configured"];
        if error.kind() == ErrorKind::AuthenticationFailed || refused.iter().any(|refusal| text.contains(refusal)) {
            Self::LoginRefused(text)
        } else {
            Self::Unreachable(text)
        }
    }
}

impl DialError {
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Unreachable(reason) | Self::LoginRefused(reason) => reason,
        }
    }
}
