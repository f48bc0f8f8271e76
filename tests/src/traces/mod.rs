//! Request traces: when requests came, how long they were, and which blocks of their prompts were equal.
//!
//! They are read from files ([`read`]) or drawn from a seed ([`generate`]); [`text`] makes real prompt bytes of them, so that
//! the production code hashes what it would hash in production.

pub mod generate;
pub mod random;
pub mod read;
pub mod text;

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use attache::affinity::PrefixChain;

pub use generate::Shape;
pub use read::TraceError;

/// The tokens of one block, as in Mooncake's traces.
pub const BLOCK_TOKENS: u64 = 512;

/// Requests in the order of their arrival.
#[derive(Debug)]
pub struct Trace {
    /// What tables call it.
    pub name: String,
    /// Where it came from.
    pub origin: Origin,
    /// The first arrives soonest.
    pub requests: Vec<Request>,
    chains: OnceLock<Vec<Arc<PrefixChain>>>,
}

/// One request of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Since the trace's start.
    pub arrival: Duration,
    /// The prompt's length.
    pub input_tokens: u64,
    /// The answer's length.
    pub output_tokens: u64,
    /// Which conversation it belongs to, where the trace knows.
    pub session: u64,
    /// The prompt's blocks of [`BLOCK_TOKENS`], each standing for all that is before it as well. What the prompt has beyond
    /// them is its own.
    pub blocks: Box<[u32]>,
}

/// Where a trace came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// A generator, with this seed.
    Generated(u64),
}

impl Trace {
    /// A trace of `requests`, in whatever order they are.
    pub fn new(name: impl Into<String>, origin: Origin, mut requests: Vec<Request>) -> Self {
        requests.sort_by_key(|request| request.arrival);
        Self { name: name.into(), origin, requests, chains: OnceLock::new() }
    }

    /// The chains of the prompts' bytes, one for each request. They are made when they are first asked for.
    pub fn chains(&self) -> &[Arc<PrefixChain>] {
        self.chains.get_or_init(|| {
            let numbered = (0_u64..).zip(&self.requests);
            numbered.map(|(number, request)| Arc::new(text::chain(request, number))).collect()
        })
    }

    /// When the last request arrives.
    pub fn duration(&self) -> Duration {
        self.requests.last().map_or(Duration::ZERO, |request| request.arrival)
    }

    /// The mean length of a prompt in tokens; 0 without requests.
    pub fn mean_input_tokens(&self) -> f64 {
        mean(self.requests.iter().map(|request| request.input_tokens))
    }

    /// The mean length of an answer in tokens; 0 without requests.
    pub fn mean_output_tokens(&self) -> f64 {
        mean(self.requests.iter().map(|request| request.output_tokens))
    }
}

fn mean(values: impl ExactSizeIterator<Item = u64>) -> f64 {
    let count = values.len();
    if count == 0 { 0.0 } else { values.sum::<u64>() as f64 / count as f64 }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Generated(seed) => write!(f, "generated, seed {seed}"),
        }
    }
}
