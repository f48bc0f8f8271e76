//! One connection that comes back.
//!
//! The crate's own ConnectionManager reconnects only after I/O errors: it stays with a primary that has become read-only, and
//! a refused password is final. Its first connection also makes progress only while a caller waits, and our callers wait for
//! milliseconds. Here one task owns connecting, and callers see at once whether there is a connection, one is being made, or
//! the last attempt has failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::dial::{DialError, Wire};
use super::inspection;
use super::sentinel::Sentinels;
use super::url::{Address, Place, RedisTarget};

/// Between attempts, at first and at most: a Redis that is back is used again within this time.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(400));

/// So many calls in a row without an answer, over so long a time, and the connection is given up: on a quick deadline some
/// miss it when Redis is busy or the network is slow, a connection that is cut misses all.
const TIMEOUTS_IN_A_ROW: u32 = 5;
const SILENCE: Duration = Duration::from_millis(300);

/// How often the sentinels are asked whether the primary is still the primary: a former one that is cut off from them, but
/// not from us, would go on taking what is lost later.
const ASK_SENTINELS_EVERY: Duration = Duration::from_secs(5);

pub(super) struct Link {
    state: watch::Receiver<State>,
    given_up: GivenUp,
    task: AbortHandle,
    silence: Silence,
}

/// Where a link leads.
pub(super) enum Destination {
    Server(Arc<RedisTarget>, Address),
    Primary(Sentinels),
}

/// Whether a link looks how the servers that it reaches are set up, and warns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inspection {
    OfEachServer,
    None,
}

/// What became of a command that was not answered as it should.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was never sent.
    Unsent(String),
    /// There was no answer in time.
    Late,
    /// The answer was an error, or the connection ended before it came.
    Error(RedisError),
}

impl Failure {
    /// In words; `deadline` is what was waited for.
    pub(super) fn reason(&self, deadline: Duration) -> String {
        match self {
            Self::Unsent(reason) => reason.clone(),
            Self::Late => format!("no answer within {deadline:?}"),
            Self::Error(error) => error.to_string(),
        }
    }
}

#[derive(Clone)]
enum State {
    Connecting,
    Up { wire: Wire, number: u64 },
    Down(Arc<str>),
}

impl Link {
    /// Starts connecting; to be called within a Tokio runtime.
    pub(super) fn new(destination: Destination, inspection: Inspection) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let given_up = GivenUp(watch::Sender::new((0, "".into())));
        let task = tokio::spawn(keep_connected(destination, inspection, sender, given_up.clone())).abort_handle();
        Self { state, given_up, task, silence: Silence::default() }
    }

    /// The answer to a command by the connection, as soon as there is one; `sent` is called when there is.
    pub(super) async fn query(&self, command: &Cmd, until: Instant, sent: impl FnOnce()) -> Result<Value, Failure> {
        let (mut wire, number) = self.wire(until).await?;
        sent();
        self.hear(timeout_at(until, wire.query(command)).await.ok(), number)
    }

    /// The answer to a command from a node that is taking over its slot.
    pub(super) async fn query_asking(
        &self,
        command: Cmd,
        until: Instant,
        sent: impl FnOnce(),
    ) -> Result<Value, Failure> {
        let (mut wire, number) = self.wire(until).await?;
        sent();
        self.hear(timeout_at(until, wire.query_asking(command)).await.ok(), number)
    }

    async fn wire(&self, until: Instant) -> Result<(Wire, u64), Failure> {
        let mut state = self.state.clone();
        let state = timeout_at(until, state.wait_for(|state| !matches!(state, State::Connecting))).await;
        match state.as_ref().map(Result::as_deref) {
            Ok(Ok(State::Up { wire, number })) => Ok((wire.clone(), *number)),
            Ok(Ok(State::Down(reason))) => Err(Failure::Unsent(reason.to_string())),
            Ok(Ok(State::Connecting) | Err(_)) => Err(Failure::Unsent("the connection's task has ended".to_owned())),
            Err(_) => Err(Failure::Unsent("there is no connection yet".to_owned())),
        }
    }

    /// Takes note of an answer, or that there was none in time.
    fn hear(&self, answer: Option<RedisResult<Value>>, number: u64) -> Result<Value, Failure> {
        let Some(answer) = answer else {
            if self.silence.is_final() {
                self.given_up.give_up(number, "it does not answer");
            }
            return Err(Failure::Late);
        };
        self.silence.end();
        answer.map_err(|error| {
            if is_of_no_use(&error) {
                self.given_up.give_up(number, &error.to_string());
            }
            Failure::Error(error)
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether a new connection may do better than the one that had this error.
fn is_of_no_use(error: &RedisError) -> bool {
    match error.kind() {
        // A former primary: a new connection may reach its successor.
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => true,
        ErrorKind::Server(_) => false,
        // After `NOAUTH` a new connection logs in again.
        _ => error.is_unrecoverable_error() || error.code() == Some("NOAUTH"),
    }
}

/// How long a connection has been without an answer.
struct Silence {
    origin: Instant,
    timeouts: AtomicU32,
    /// When the first of them was, in milliseconds from the origin.
    since_ms: AtomicU64,
}

impl Default for Silence {
    fn default() -> Self {
        Self { origin: Instant::now(), timeouts: AtomicU32::new(0), since_ms: AtomicU64::new(0) }
    }
}

impl Silence {
    fn end(&self) {
        // Read before it is written: all callers share it, and nearly all find it so.
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    /// Takes note of a call without an answer.
    fn is_final(&self) -> bool {
        let now_ms = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        let before = self.timeouts.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            self.since_ms.store(now_ms, Ordering::Relaxed);
        }
        let silent_ms = u128::from(now_ms.saturating_sub(self.since_ms.load(Ordering::Relaxed)));
        let is_final = before + 1 >= TIMEOUTS_IN_A_ROW && silent_ms >= SILENCE.as_millis();
        if is_final {
            self.timeouts.store(0, Ordering::Relaxed);
        }
        is_final
    }
}

/// The latest connection that was given up, by its number, and why.
#[derive(Clone)]
struct GivenUp(watch::Sender<(u64, Arc<str>)>);

impl GivenUp {
    fn give_up(&self, number: u64, reason: &str) {
        self.0.send_if_modified(|latest| {
            let is_news = latest.0 < number;
            if is_news {
                *latest = (number, reason.into());
            }
            is_news
        });
    }

    async fn wait_for(&self, number: u64) -> Arc<str> {
        match self.0.subscribe().wait_for(|latest| latest.0 >= number).await {
            Ok(latest) => Arc::clone(&latest.1),
            // It never closes: we have a sender ourselves.
            Err(_) => "".into(),
        }
    }
}

impl Destination {
    async fn connect(&self, ended: impl Fn() + Send + Sync + Clone + 'static) -> Result<(Wire, Address), DialError> {
        match self {
            Self::Server(target, address) => Ok((target.dial(address, ended).await?, address.clone())),
            Self::Primary(sentinels) => sentinels.connect_to_primary(ended).await,
        }
    }

    /// What the server is, as the URL has it.
    fn place(&self) -> Place {
        match self {
            Self::Server(target, _) => target.place.clone(),
            Self::Primary(sentinels) => sentinels.place(),
        }
    }

    /// Returns when the server that is connected is not the one to be connected to any more.
    async fn moves_from(&self, address: &Address) {
        match self {
            Self::Server(..) => std::future::pending().await,
            Self::Primary(sentinels) => loop {
                tokio::time::sleep(ASK_SENTINELS_EVERY).await;
                if sentinels.primary().await.is_some_and(|primary| primary != *address) {
                    return;
                }
            },
        }
    }
}

async fn keep_connected(
    destination: Destination,
    inspection: Inspection,
    state: watch::Sender<State>,
    given_up: GivenUp,
) {
    let (shortest, longest) = RECONNECT_PAUSES;
    let mut pause = shortest;
    let mut number = 0;
    let mut last = None;
    loop {
        number += 1;
        let ended = {
            let given_up = given_up.clone();
            move || given_up.give_up(number, "it was closed")
        };
        let reason = match destination.connect(ended).await {
            Ok((wire, address)) => {
                tracing::info!(%address, "connected to Redis");
                if inspection == Inspection::OfEachServer {
                    tokio::spawn(inspection::warn_of_settings(wire.clone(), address.clone(), destination.place()));
                }
                let connected = Instant::now();
                state.send_replace(State::Up { wire, number });
                let reason = tokio::select! {
                    reason = given_up.wait_for(number) => reason,
                    () = destination.moves_from(&address) => "another server is the primary now".into(),
                };
                tracing::warn!(%address, %reason, "the connection to Redis is lost");
                last = None;
                if connected.elapsed() >= shortest {
                    pause = shortest;
                    state.send_replace(State::Connecting);
                    continue;
                }
                // Where every connection is of no use at once, connecting without a pause would be all we do.
                reason
            }
            Err(error) => {
                if last.as_ref() != Some(&error) {
                    complain(&error);
                }
                let reason = error.reason().into();
                last = Some(error);
                reason
            }
        };
        state.send_replace(State::Down(reason));
        tokio::time::sleep(pause).await;
        pause = longest.min(pause * 2);
    }
}

/// Once for each reason, until there is a connection.
fn complain(error: &DialError) {
    match error {
        DialError::Unreachable(reason) => tracing::warn!(%reason, "cannot connect to Redis"),
        DialError::LoginRefused(reason) => tracing::error!(
            %reason,
            "Redis does not let this sidecar in: mend the user and password in --redis or --redis-password-file, or in \
             Redis's access list; until then limits are kept without it"
        ),
    }
}
