//! The server: its shared state, its listener and its connections.
//!
//! Each connection is driven by hyper itself, not by axum's server, since a fault may want the TCP connection reset: when a service or a body fails
//! the socket is closed with a linger time of zero, which makes the kernel send RST in place of FIN.

use std::{convert::Infallible, future::poll_fn, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{body::Body, extract::Request, response::Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    select,
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use crate::{
    Config,
    answer::Reset,
    control,
    engine::Engine,
    exchange,
    faults::{ArmedFault, Fault, FaultSpan},
    journal::{Journal, Record},
    metrics::Figures,
};

/// How long the listener rests when it cannot accept, for want of file descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A model server that runs in this process. Dropping it stops it as well, in its own time.
#[derive(Debug)]
pub struct ModelServer {
    addr: SocketAddr,
    server: Arc<Server>,
    /// Dropped, it stops the listener.
    stop: oneshot::Sender<Infallible>,
    listening: JoinHandle<()>,
}

impl ModelServer {
    /// Starts to listen. Fails if the address is not to be had.
    pub async fn start(config: Config) -> io::Result<Self> {
        let listener = TcpListener::bind(&config.listen).await?;
        let addr = listener.local_addr()?;
        let server = Arc::new(Server::new(config));
        let (stop, stopped) = oneshot::channel();
        let listening = tokio::spawn(listen(listener, Arc::clone(&server), stopped));
        Ok(Self { addr, server, stop, listening })
    }

    /// Stops listening and cuts all connections. When this returns, connecting is refused and every record has ended.
    pub async fn shutdown(self) {
        drop(self.stop);
        // An error says that the listener's task has panicked, so it has stopped as well.
        let _ = self.listening.await;
    }

    /// Makes the fault happen to the exchanges to come, in place of the one armed before.
    pub fn arm(&self, fault: Fault, span: FaultSpan) {
        self.server.armed_fault.arm(fault, span);
    }

    /// Takes the armed fault away.
    pub fn disarm(&self) {
        self.server.armed_fault.clear();
    }

    /// Forgets the recorded exchanges, those that still run as well. Their number goes on.
    pub fn forget_requests(&self) {
        self.server.journal.clear();
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where it listens, as a URL without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The last exchanges, at most [`RECORDS`](crate::RECORDS), in the order of their arrival.
    pub fn requests(&self) -> Vec<Record> {
        self.server.journal.records()
    }

    /// How many exchanges have arrived since the start.
    pub fn requests_total(&self) -> u64 {
        self.server.journal.total()
    }

    /// What the engine is busy with.
    pub fn load(&self) -> Load {
        Load { waiting: self.server.figures.waiting.value(), running: self.server.figures.running.value() }
    }
}

/// What an engine is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Prompts that wait for their prefill.
    pub waiting: u64,
    /// Prompts in prefill, and answers being generated.
    pub running: u64,
}

/// What the exchanges share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) config: Arc<Config>,
    pub(crate) figures: Arc<Figures>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) armed_fault: ArmedFault,
}

impl Server {
    fn new(config: Config) -> Self {
        let config = Arc::new(config);
        let figures = Arc::new(Figures::default());
        let engine = Arc::new(Engine::new(Arc::clone(&config), Arc::clone(&figures)));
        Self { config, figures, engine, journal: Arc::default(), armed_fault: ArmedFault::default() }
    }

    async fn respond(self: Arc<Self>, request: Request) -> Result<Response, Reset> {
        let path = request.uri().path();
        match path {
            "/health" | "/metrics" | "/sim/requests" | "/sim/fault" => Ok(control::serve(&self, request).await),
            _ => exchange::serve(&self, request).await,
        }
    }
}

/// Accepts connections until it is stopped, then cuts them.
async fn listen(listener: TcpListener, server: Arc<Server>, mut stopped: oneshot::Receiver<Infallible>) {
    let mut connections = JoinSet::new();
    loop {
        select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(drive(stream, Arc::clone(&server)));
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            _ = &mut stopped => break,
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// Drives one connection to its end.
async fn drive(stream: TcpStream, server: Arc<Server>) {
    // Without it the last event of a stream may wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    let service =
        service_fn(|request: hyper::Request<Incoming>| Box::pin(Arc::clone(&server).respond(request.map(Body::new))));
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let outcome = poll_fn(|context| connection.poll_without_shutdown(context)).await;
    if outcome.is_err() {
        // It fails only where the client has gone already.
        let _ = connection.into_parts().io.into_inner().set_zero_linger();
    }
}
