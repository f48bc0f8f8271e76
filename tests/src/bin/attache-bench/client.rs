//! A closed-loop client: blocking sockets with keep-alive, one thread each, and no more parsing than tells where an answer
//! ends. It costs some microseconds a request, which it measures itself.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::usage::Usage;

/// After which an answer does not come any more.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Small: 500 of them must not count.
const STACK_BYTES: usize = 128 * 1024;

/// Connections that send one request over and over, all at once.
#[derive(Debug)]
pub(crate) struct Load {
    request: Vec<u8>,
    expected: Expected,
    connections: Vec<Connection>,
}

/// What every answer must be: a benchmark of anything else is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) status: u16,
    /// How many events it has; 0 for an answer that is no stream.
    pub(crate) events: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// One for each request.
    pub(crate) answers: Vec<Answer>,
    /// How often the server closed a connection after an answer.
    pub(crate) reconnects: usize,
    /// What the threads of the client used.
    pub(crate) cpu: Duration,
}

/// How long one answer took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// To the first byte of its body.
    pub(crate) first: Duration,
    /// To its end.
    pub(crate) whole: Duration,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// No request begins after this time.
    Elapsed(Duration),
    /// So many requests on each connection.
    Requests(usize),
}

impl Load {
    /// Connects.
    pub(crate) fn connect(
        server: SocketAddr,
        connections: usize,
        request: Vec<u8>,
        expected: Expected,
    ) -> io::Result<Self> {
        let connections = (0..connections).map(|_| Connection::open(server)).collect::<Result<_, _>>()?;
        Ok(Self { request, expected, connections })
    }

    /// Sends the request over and over, the next one on each connection as soon as an answer is whole.
    ///
    /// # Errors
    /// When one answer is not the expected one.
    pub(crate) fn run(&mut self, until: Until) -> io::Result<Outcome> {
        let (request, expected) = (&self.request, self.expected);
        thread::scope(|scope| {
            let spawn = |connection| {
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                thread.spawn_scoped(scope, move || Connection::drive(connection, request, expected, until))
            };
            let threads = self.connections.iter_mut().map(spawn).collect::<Result<Vec<_>, _>>()?;
            let mut all = Outcome::default();
            for thread in threads {
                let outcome = thread.join().map_err(|_| io::Error::other("a thread of the client panicked"))??;
                all.answers.extend(outcome.answers);
                all.reconnects += outcome.reconnects;
                all.cpu += outcome.cpu;
            }
            Ok(all)
        })
    }
}

#[derive(Debug)]
struct Connection {
    server: SocketAddr,
    stream: TcpStream,
    state: State,
    /// The answer under way.
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    KeptAlive,
    /// The last answer said that it was the last.
    Closing,
}

impl Connection {
    fn open(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { server, stream, state: State::KeptAlive, buffer: Vec::with_capacity(64 * 1024) })
    }

    fn drive(&mut self, request: &[u8], expected: Expected, until: Until) -> io::Result<Outcome> {
        let before = Usage::of_this_thread();
        let start = Instant::now();
        let mut answers = Vec::new();
        let mut reconnects = 0;
        while until.goes_on(start, answers.len()) {
            reconnects += usize::from(self.state == State::Closing);
            answers.push(self.exchange(request, expected)?);
        }
        Ok(Outcome { answers, reconnects, cpu: Usage::of_this_thread().saturating_sub(before) })
    }

    fn exchange(&mut self, request: &[u8], expected: Expected) -> io::Result<Answer> {
        let start = Instant::now();
        if self.state == State::Closing {
            // It belongs to what the request costs: a client that keeps its connections alive has to do it as well.
            *self = Self::open(self.server)?;
        }
        self.stream.write_all(request)?;
        self.buffer.clear();
        let head = loop {
            self.read()?;
            if let Some(head) = Head::parse(&self.buffer, expected.status)? {
                break head;
            }
        };
        let mut first = None;
        loop {
            if self.buffer.len() > head.bytes && first.is_none() {
                first = Some(start.elapsed());
            }
            if head.ends(&self.buffer) {
                break;
            }
            self.read()?;
        }
        let whole = start.elapsed();
        self.state = head.state;
        let seen = self.buffer.windows(6).filter(|window| window == b"data: ").count();
        if seen as u64 != expected.events {
            let not = expected.events;
            return Err(io::Error::other(format!("an answer has {seen} events, not {not}: {}", self.text())));
        }
        Ok(Answer { first: first.unwrap_or(whole), whole })
    }

    fn read(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 * 1024];
        let read = self.stream.read(&mut piece)?;
        if read == 0 {
            return Err(io::Error::other(format!("the connection was closed within an answer: {}", self.text())));
        }
        self.buffer.extend(piece.iter().take(read));
        Ok(())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }
}

impl Until {
    fn goes_on(self, start: Instant, answers: usize) -> bool {
        match self {
            Self::Elapsed(time) => start.elapsed() < time,
            Self::Requests(count) => answers < count,
        }
    }
}

/// What an answer's head says about its end.
#[derive(Debug)]
struct Head {
    bytes: usize,
    /// None where the body is chunked.
    body_bytes: Option<usize>,
    state: State,
}

impl Head {
    /// The head, once it is whole. Envoy writes header names in lower case.
    fn parse(buffer: &[u8], status: u16) -> io::Result<Option<Self>> {
        let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
        let text = String::from_utf8_lossy(buffer);
        let head = text.get(..end).unwrap_or_default();
        if !head.starts_with(&format!("HTTP/1.1 {status} ")) {
            return Err(io::Error::other(format!("an answer is not {status}: {text}")));
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let body_bytes = length.map(|length| length.parse().map_err(io::Error::other)).transpose()?;
        let closes = head.lines().any(|line| line == "connection: close");
        let state = if closes { State::Closing } else { State::KeptAlive };
        Ok(Some(Self { bytes: end + 4, body_bytes, state }))
    }

    /// Whether the answer is whole. None is sent before it is asked for, and no event has a carriage return, so the last
    /// chunk is where the buffer ends with one.
    fn ends(&self, buffer: &[u8]) -> bool {
        match self.body_bytes {
            Some(body_bytes) => buffer.len() >= self.bytes + body_bytes,
            None => buffer.ends_with(b"\r\n0\r\n\r\n"),
        }
    }
}
