//! The metrics pages of the endpoints, read again and again.
//!
//! Every endpoint has a task of its own, the owner of its connection and of what is remembered of its page, so one that hangs
//! delays no other, and none is asked twice at a time. A page that fails in any way says nothing: what was read before becomes
//! stale (`affinity::STALE_AFTER`), and the endpoint is known by what was sent to it alone.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, StatusCode};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tracing::{info, warn};

use super::stats::Scraped;
use super::{Task, jittered};
use crate::affinity::{MetricsPage, PageError, Pool, STALE_AFTER, Scraping};
use crate::config::model::{Endpoint, EndpointAddress};
use crate::world::World;

/// The longest page that is read. vLLM's have some 100 KiB.
const MAX_PAGE_BYTES: usize = 1024 * 1024;
/// The longest head of an answer.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How rarely an endpoint is asked that has no such page.
const RAREST: Duration = Duration::from_secs(30);
/// No endpoint is asked more often, whatever a policy says.
const MOST_OFTEN: Duration = Duration::from_millis(50);
/// How much later a process must have begun than the last one to be another: the time is computed from the system's clock, which
/// is set now and then.
const OTHER_PROCESS_SECONDS: f64 = 2.0;

/// Reads the pages of all endpoints, for ever. These are others after each change.
pub(super) async fn run(world: Arc<World>, mut reloads: watch::Receiver<()>, mut members: watch::Receiver<()>) {
    let mut tasks: HashMap<Key, (Subject, Task)> = HashMap::new();
    loop {
        reloads.mark_unchanged();
        members.mark_unchanged();
        let mut wanted: HashMap<_, _> = world.fleet.pools().iter().flat_map(subjects).collect();
        tasks.retain(|key, (subject, _)| wanted.get(key).is_some_and(|wanted| wanted.is(subject)));
        wanted.retain(|key, _| !tasks.contains_key(key));
        for (key, subject) in wanted {
            let task = Task::spawn(Follower::new(Arc::clone(&world), subject.clone()).run());
            tasks.insert(key, (subject, task));
        }
        tokio::select! {
            Ok(()) = reloads.changed() => {}
            Ok(()) = members.changed() => {}
            // Nobody changes anything any more; the tasks go on for as long as we are there.
            else => std::future::pending::<()>().await,
        }
    }
}

/// A pool's id and an endpoint's.
type Key = (Arc<str>, Arc<str>);

/// Whose page is read, and how.
#[derive(Debug, Clone)]
struct Subject {
    pool: Arc<Pool>,
    endpoint: Arc<Endpoint>,
    scraping: Arc<Scraping>,
}

fn subjects(pool: &Arc<Pool>) -> Vec<(Key, Subject)> {
    let Some(scraping) = pool.scraping().map(Arc::new) else { return Vec::new() };
    let subject = |endpoint| Subject { pool: Arc::clone(pool), endpoint, scraping: Arc::clone(&scraping) };
    let of_pool = |endpoint: Arc<Endpoint>| ((Arc::clone(pool.id()), Arc::clone(&endpoint.id)), subject(endpoint));
    pool.members().into_iter().map(of_pool).collect()
}

impl Subject {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool) && self.endpoint == other.endpoint && self.scraping == other.scraping
    }
}

/// Reads one endpoint's page.
struct Follower {
    world: Arc<World>,
    subject: Subject,
    connection: Option<Connection>,
    engine: Engine,
    /// When a page was last read, or the first one was asked for.
    seen: Instant,
    /// Whether it was reported that there is none.
    is_silent: bool,
}

/// After each attempt to read a page that is not there it is asked for half as often.
fn next_pause(outcome: Scraped, pause: Duration, interval: Duration) -> Duration {
    match outcome {
        Scraped::Absent | Scraped::Missing => (pause * 2).min(RAREST.max(interval)),
        _ => interval,
    }
}

struct Connection {
    sender: SendRequest<String>,
    _driver: Task,
}

impl Follower {
    fn new(world: Arc<World>, subject: Subject) -> Self {
        let engine = Engine::default();
        Self { world, subject, connection: None, engine, seen: Instant::now(), is_silent: false }
    }

    async fn run(mut self) {
        let interval = self.subject.scraping.interval.max(MOST_OFTEN);
        let mut pause = interval;
        loop {
            let result = self.scrape().await;
            let now = Instant::now();
            let outcome = result.err().unwrap_or(Scraped::Ok);
            match result {
                Ok(page) => self.believe(&page, now),
                // In a state that nobody knows.
                Err(_) => self.connection = None,
            }
            self.world.telemetry.watch_stats().scraped(outcome);
            self.report(outcome, now);
            pause = next_pause(outcome, pause, interval);
            tokio::time::sleep(jittered(pause)).await;
        }
    }

    fn believe(&mut self, page: &MetricsPage, now: Instant) {
        let Subject { pool, endpoint, .. } = &self.subject;
        if self.engine.began_anew(page) {
            info!(endpoint = &*endpoint.id, cluster = &**pool.id(), "the engine has begun anew; its cache is empty");
            pool.restarted(&endpoint.id, now);
        }
        pool.scraped(&endpoint.id, page.scrape, now);
    }

    /// One line when what was known of the endpoint has become stale, and one when it is known again: a page that fails now and
    /// then is no news.
    fn report(&mut self, outcome: Scraped, now: Instant) {
        let Subject { pool, endpoint, .. } = &self.subject;
        let (endpoint, cluster) = (&*endpoint.id, &**pool.id());
        if outcome == Scraped::Ok {
            self.seen = now;
            if std::mem::take(&mut self.is_silent) {
                info!(endpoint, cluster, "the metrics page is read again");
            }
        } else if now.saturating_duration_since(self.seen) > STALE_AFTER && !self.is_silent {
            self.is_silent = true;
            let reason = outcome.as_str();
            warn!(endpoint, cluster, reason, "no metrics page; the endpoint's load is what was sent to it");
        }
    }

    async fn scrape(&mut self) -> Result<MetricsPage, Scraped> {
        let timeout = self.subject.scraping.timeout;
        let page = tokio::time::timeout(timeout, self.fetch()).await.map_err(|_| Scraped::Timeout)??;
        MetricsPage::read(&page, &self.subject.scraping.names).map_err(|error| match error {
            PageError::NotText => Scraped::NotText,
            PageError::Missing => Scraped::Missing,
            PageError::Implausible => Scraped::Implausible,
        })
    }

    async fn fetch(&mut self) -> Result<Vec<u8>, Scraped> {
        if let Some(connection) = &mut self.connection
            // A server closes a connection that is idle for too long; maybe at this moment.
            && connection.sender.ready().await.is_ok()
            && let Ok(page) = self.ask().await
        {
            return page;
        }
        self.connection = Some(self.connect().await.map_err(|_| Scraped::Unreachable)?);
        self.ask().await.unwrap_or(Err(Scraped::Unreachable))
    }

    /// The page, or why there is none; an error where the connection did not carry the request.
    async fn ask(&mut self) -> Result<Result<Vec<u8>, Scraped>, hyper::Error> {
        let Some(connection) = &mut self.connection else { return Ok(Err(Scraped::Unreachable)) };
        let request = Request::get(&*self.subject.scraping.path)
            .header("host", host(&self.subject))
            .header("accept", "text/plain;version=0.0.4")
            .header("accept-encoding", "identity")
            .header("user-agent", concat!("attache/", env!("CARGO_PKG_VERSION")))
            .body(String::new());
        // A path that a policy should not have let pass.
        let Ok(request) = request else { return Ok(Err(Scraped::Absent)) };
        let response = connection.sender.send_request(request).await?;
        Ok(match response.status() {
            StatusCode::OK => whole(response.into_body()).await,
            // No redirection is followed: it could lead anywhere.
            status if status.is_redirection() => Err(Scraped::Absent),
            StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::GONE
            | StatusCode::NOT_IMPLEMENTED => Err(Scraped::Absent),
            _ => Err(Scraped::Status),
        })
    }

    async fn connect(&self) -> io::Result<Connection> {
        let Subject { endpoint, scraping, .. } = &self.subject;
        if let EndpointAddress::Unix(path) = &endpoint.address {
            return handshake(TokioIo::new(UnixStream::connect(&**path).await?)).await;
        }
        let not_resolved = || io::Error::new(io::ErrorKind::NotFound, "the name is not resolved");
        let mut address = self.world.fleet.address(endpoint).ok_or_else(not_resolved)?;
        address.set_port(scraping.port.unwrap_or(address.port()));
        handshake(TokioIo::new(TcpStream::connect(address).await?)).await
    }
}

async fn handshake<T>(stream: T) -> io::Result<Connection>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) =
        http1::Builder::new().max_buf_size(MAX_HEAD_BYTES).handshake(stream).await.map_err(io::Error::other)?;
    let driver = Task::spawn(async move {
        // The requests tell how it ended.
        let _ = connection.await;
    });
    Ok(Connection { sender, _driver: driver })
}

async fn whole(mut body: Incoming) -> Result<Vec<u8>, Scraped> {
    let mut page = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| Scraped::Unreachable)?;
        if let Some(data) = frame.data_ref() {
            if page.len() + data.len() > MAX_PAGE_BYTES {
                return Err(Scraped::TooLarge);
            }
            page.extend_from_slice(data);
        }
    }
    Ok(page)
}

/// What the `host` header says.
fn host(subject: &Subject) -> String {
    let port = |port: u16| subject.scraping.port.unwrap_or(port);
    match &subject.endpoint.address {
        EndpointAddress::Ip(address) => std::net::SocketAddr::new(address.ip(), port(address.port())).to_string(),
        EndpointAddress::Fqdn { hostname, port: own } => format!("{hostname}:{}", port(*own)),
        EndpointAddress::Unix(_) => "localhost".to_owned(),
    }
}

/// What is remembered of an engine, to see that it is another one.
#[derive(Debug, Default)]
struct Engine {
    started: Option<f64>,
    counter: Option<f64>,
}

impl Engine {
    /// Whether the page is the first one of an engine that began since the last page.
    fn began_anew(&mut self, page: &MetricsPage) -> bool {
        let is_older = |before| page.started.is_some_and(|started| started < before - OTHER_PROCESS_SECONDS);
        if self.started.is_some_and(is_older) {
            // Several processes answer at this address in turn: one that is older than the last is not a new one.
            return false;
        }
        let before = std::mem::replace(self, Self { started: page.started, counter: page.counter });
        let is_later =
            before.started.zip(page.started).is_some_and(|(before, now)| now > before + OTHER_PROCESS_SECONDS);
        is_later || before.counter.zip(page.counter).is_some_and(|(before, now)| now < before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(pages: &[(Option<f64>, Option<f64>)]) -> Vec<bool> {
        let mut engine = Engine::default();
        let page = |(started, counter)| MetricsPage { started, counter, ..MetricsPage::default() };
        pages.iter().map(|facts| engine.began_anew(&page(*facts))).collect()
    }

    #[test]
    fn who_has_no_page_is_asked_ever_more_rarely_and_all_others_as_before() {
        let second = Duration::from_secs(1);
        let mut pauses = vec![second];
        for _ in 0..7 {
            pauses.push(next_pause(Scraped::Absent, pauses[pauses.len() - 1], second));
        }
        assert_eq!(pauses.iter().map(Duration::as_secs).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 30, 30, 30]);
        for outcome in [Scraped::Ok, Scraped::Timeout, Scraped::Unreachable, Scraped::Status, Scraped::Implausible] {
            assert_eq!(next_pause(outcome, RAREST, second), second);
        }
        assert_eq!(
            next_pause(Scraped::Absent, second * 60, second * 60),
            second * 60,
            "never more often than asked for"
        );
    }

    #[test]
    fn a_process_that_began_later_and_a_counter_that_fell_are_a_new_engine() {
        let pages =
            [(Some(100.0), Some(5.0)), (Some(101.0), Some(9.0)), (Some(200.0), Some(9.0)), (Some(200.0), Some(3.0))];
        assert_eq!(verdicts(&pages), [false, false, true, true]);
        let pages = [(None, Some(5.0)), (None, None), (None, Some(9.0)), (None, Some(0.0)), (None, Some(0.0))];
        assert_eq!(verdicts(&pages), [false, false, false, true, false]);
    }

    #[test]
    fn of_several_engines_behind_one_address_none_is_taken_for_a_new_one_again_and_again() {
        let pages =
            [(Some(100.0), Some(5.0)), (Some(300.0), Some(2.0)), (Some(100.0), Some(6.0)), (Some(300.0), Some(3.0))];
        assert_eq!(verdicts(&pages), [false, true, false, false]);
    }
}
