//! The chapter "Prefix affinity": what placing a request costs, and what its index takes.
//!
//! In this process, on the production code, with the index full and replicas whose caches have run full, so that a new block
//! always drives out an old one. No Envoy and no Redis take part: neither does when a request is placed.

mod bed;
mod contention;
mod cost;
mod memory;
mod prompts;
mod table;

use attache_tests::{Error, Result};
use serde::Serialize;

use crate::{measure::Pace, report::Progress};
use contention::Contention;
use cost::Cost;
use memory::Memory;
pub(crate) use prompts::Body;

/// By which `--only` knows it.
pub(crate) const NAME: &str = "prefix affinity";

/// What one Backend has, and what a large one has.
const ENDPOINTS: [usize; 2] = [8, 256];

/// The index's memory by default, in bytes.
const DEFAULT_BUDGET: usize = 64 << 20;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Chapter {
    costs: Vec<Cost>,
    memory: Vec<Memory>,
    contention: Vec<Contention>,
}

/// Measures all of it.
///
/// # Errors
/// When something does not do what was to be measured.
pub(crate) fn measure(pace: Pace, progress: &mut Progress) -> Result<Chapter> {
    // First, while no other memory is there to be used again.
    let memory = memory::measure(progress)?;
    Ok(Chapter { memory, costs: cost::measure(pace, progress)?, contention: contention::measure(pace, progress)? })
}

fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> Error {
    let what = format!("cannot {what}");
    move |error| Error::unexpected(what, error.to_string())
}
