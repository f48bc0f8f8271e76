//! What holds for any bytes that a client, a model server, a peer or a file may hold: the bodies of the fuzz targets.
//!
//! A law panics where it is broken. libFuzzer looks for inputs that do it (`make fuzz`), and an ordinary test runs the
//! seeds of each target through the same function. An input begins with a [`Head`] where the law has choices to make, so that
//! a seed can be written by hand: `01a{"model":"m"}`.

mod codings;
#[cfg(feature = "sidecar")]
mod config;
#[cfg(feature = "sidecar")]
mod cost;
mod edited;
mod fields;
#[cfg(feature = "sidecar")]
mod gate;
mod head;
mod json;
#[cfg(feature = "sidecar")]
mod metrics_page;
mod multipart;
#[cfg(feature = "sidecar")]
mod prompt;
mod request;
mod response;
#[cfg(feature = "sidecar")]
mod sharing;
mod sse;

pub use codings::codings;
#[cfg(feature = "sidecar")]
pub use config::config;
#[cfg(feature = "sidecar")]
pub use cost::cost;
pub use fields::fields;
#[cfg(feature = "sidecar")]
pub use gate::{exhausted, gate};
pub use head::{Cuts, Head};
pub use json::json;
#[cfg(feature = "sidecar")]
pub use metrics_page::metrics_page;
pub use multipart::multipart;
#[cfg(feature = "sidecar")]
pub use prompt::prompt;
pub use request::request;
pub use response::response;
#[cfg(feature = "sidecar")]
pub use sharing::sharing;
pub use sse::sse;

/// A law.
pub type Law = fn(&[u8]);

/// All laws by the names of their targets.
pub const LAWS: &[(&str, Law)] = &[
    ("codings", codings),
    ("fields", fields),
    ("json", json),
    ("multipart", multipart),
    ("request", request),
    ("response", response),
    ("sse", sse),
    #[cfg(feature = "sidecar")]
    ("config", config),
    #[cfg(feature = "sidecar")]
    ("cost", cost),
    #[cfg(feature = "sidecar")]
    ("exhausted", exhausted),
    #[cfg(feature = "sidecar")]
    ("gate", gate),
    #[cfg(feature = "sidecar")]
    ("metrics_page", metrics_page),
    #[cfg(feature = "sidecar")]
    ("prompt", prompt),
    #[cfg(feature = "sidecar")]
    ("sharing", sharing),
];
