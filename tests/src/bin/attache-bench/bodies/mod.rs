//! The chapter "Bodies and streams": what it costs to read a request, an event of an answer, and to have many answers under
//! way.
//!
//! Readers are measured in this process, on the production code, in CPU time: what other processes take of a core is not
//! counted. Beside each stands what is known of its kind: a full parser over the same bytes, and a search that only reads
//! them.

mod codings;
mod events;
mod scans;
mod stopwatch;
mod table;

use attache_tests::Result;
use serde::Serialize;

use crate::{
    measure::{self, LiveStreams, Pace},
    report::Progress,
};
use codings::Encoded;
use events::Events;
use scans::Scan;

/// By which `--only` knows it.
pub(crate) const NAME: &str = "bodies and streams";

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Chapter {
    scans: Vec<Scan>,
    events: Vec<Events>,
    codings: Vec<Encoded>,
    live_streams: LiveStreams,
}

/// Measures all of it.
///
/// # Errors
/// When something does not do what was to be measured.
pub(crate) async fn measure(pace: Pace, progress: &mut Progress) -> Result<Chapter> {
    Ok(Chapter {
        scans: scans::measure(pace, progress)?,
        events: events::measure(pace, progress)?,
        codings: codings::measure(pace, progress)?,
        live_streams: measure::live_streams(progress).await?,
    })
}
