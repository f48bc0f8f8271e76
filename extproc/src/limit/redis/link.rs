//! One multiplexed connection that comes back.
//!
//! The crate's own ConnectionManager reconnects only after I/O errors: it stays with a primary that has become read-only, and
//! a refused password is final. Its first connection also makes progress only while a caller waits, and our callers wait for
//! milliseconds. Here one task owns connecting, and callers see at once whether there is a connection, one is being made, or
//! the last attempt has failed.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, PushInfo, PushKind, RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::limit::StoreError;

/// Commands that may wait to be written; the crate's 50 make callers queue in a burst.
const PIPELINE_BUFFER: usize = 1_024;

/// For connecting, which no request waits for longer than its own deadline.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);

/// Between attempts: a Redis that is back is used again within this time.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Link {
    state: watch::Receiver<State>,
    given_up: GivenUp,
    task: AbortHandle,
}

#[derive(Clone)]
enum State {
    Connecting,
    Up { connection: MultiplexedConnection, number: u64 },
    Down(String),
}

impl Link {
    /// Starts connecting; to be called within a Tokio runtime. The client speaks RESP3, in which the crate tells of a
    /// connection that has ended.
    pub(super) fn new(client: Client) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let given_up = GivenUp(watch::Sender::new(0));
        let task = tokio::spawn(keep_connected(client, sender, given_up.clone())).abort_handle();
        Self { state, given_up, task }
    }

    /// The connection, as soon as there is one.
    pub(super) async fn connection(&self) -> Result<Connection<'_>, StoreError> {
        let mut state = self.state.clone();
        let state = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match state.as_deref() {
            Ok(State::Up { connection, number }) => {
                Ok(Connection { link: self, connection: connection.clone(), number: *number })
            }
            Ok(State::Down(reason)) => Err(StoreError::Failed(reason.clone())),
            Ok(State::Connecting) | Err(_) => Err(StoreError::Failed("the connection's task has ended".to_owned())),
        }
    }

    /// The first connection there is, however long it takes; none if the link ends before.
    pub(super) fn first_connection(&self) -> impl Future<Output = Option<MultiplexedConnection>> + Send + 'static {
        let mut state = self.state.clone();
        async move {
            match &*state.wait_for(|state| matches!(state, State::Up { .. })).await.ok()? {
                State::Up { connection, .. } => Some(connection.clone()),
                State::Connecting | State::Down(_) => None,
            }
        }
    }

    /// Gives up the present connection, if there is one.
    pub(super) fn give_up(&self) {
        if let State::Up { number, .. } = &*self.state.borrow() {
            self.given_up.give_up(*number);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection in use: it is given up when an answer shows that it is of no use any more.
pub(super) struct Connection<'l> {
    link: &'l Link,
    connection: MultiplexedConnection,
    number: u64,
}

impl Connection<'_> {
    pub(super) async fn query(&mut self, command: &Cmd) -> RedisResult<Value> {
        let answer = self.connection.req_packed_command(command).await.and_then(Value::extract_error);
        if answer.as_ref().is_err_and(is_of_no_use) {
            self.link.given_up.give_up(self.number);
        }
        answer
    }
}

fn is_of_no_use(error: &RedisError) -> bool {
    // A read-only primary is a former one: a new connection may reach its successor.
    error.is_unrecoverable_error() || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// The latest connection that was given up, by its number.
#[derive(Clone)]
struct GivenUp(watch::Sender<u64>);

impl GivenUp {
    fn give_up(&self, number: u64) {
        self.0.send_if_modified(|latest| {
            let is_news = *latest < number;
            *latest = number.max(*latest);
            is_news
        });
    }

    async fn wait_for(&self, number: u64) {
        // It never closes: we have a sender ourselves.
        let _ = self.0.subscribe().wait_for(|latest| *latest >= number).await;
    }
}

async fn keep_connected(client: Client, state: watch::Sender<State>, given_up: GivenUp) {
    let mut number = 0;
    loop {
        number += 1;
        match connect(&client, number, &given_up).await {
            Ok(connection) => {
                tracing::info!("connected to Redis");
                state.send_replace(State::Up { connection, number });
                given_up.wait_for(number).await;
                tracing::warn!("the connection to Redis is lost");
                state.send_replace(State::Connecting);
            }
            Err(error) => {
                if !matches!(&*state.borrow(), State::Down(_)) {
                    tracing::warn!(%error, "cannot connect to Redis");
                }
                state.send_replace(State::Down(error.to_string()));
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
        }
    }
}

async fn connect(client: &Client, number: u64, given_up: &GivenUp) -> RedisResult<MultiplexedConnection> {
    let given_up = given_up.clone();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_DEADLINE))
        // Callers have deadlines of their own.
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_BUFFER)
        .set_push_sender(move |push: PushInfo| -> Result<(), SendError> {
            // So an idle connection is replaced when Redis goes, not when the next request finds it dead.
            if push.kind == PushKind::Disconnection {
                given_up.give_up(number);
            }
            Ok(())
        });
    client.get_multiplexed_async_connection_with_config(&config).await
}
