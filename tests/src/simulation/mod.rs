//! Model servers and sidecars in simulated time: what a way of placing requests is worth on a trace.
//!
//! [`simulate`] runs one trace through one [`Setup`]. The servers, the clock and the load are simulated; the prompts are hashed
//! by the production code, and [`Policy::Ours`] is the production decision. Every run of the same trace and setup gives the same
//! figures.

pub mod baseline;
pub mod bounds;
mod cache;
mod engine;
pub mod figures;
mod ours;
mod replica;
pub mod routing;
mod setup;

use crate::traces::Trace;

pub use bounds::Bounds;
pub use figures::{Figures, Outcome, Run};
pub use replica::Scrape;
pub use setup::{Incident, Policy, Setup, Sharing};

/// Runs `trace` through `setup`.
pub fn simulate(trace: &Trace, setup: &Setup) -> Run {
    engine::Engine::new(trace, setup).run()
}
