//! The harness: the whole thing from outside, on a real Envoy, with a real Redis and simulated model servers.
//!
//! [`Stack`] puts it together, in the order in which operators do, and everything it started ends with it:
//!
//! ```no_run
//! # use attache_tests::{Result, Stack};
//! # use serde_json::json;
//! # async fn example(yaml: &str) -> Result<()> {
//! // `yaml` is what an operator would write; `endpoints: ${MODELS}` in it stands for the model servers.
//! let stack = Stack::builder(yaml).models(3).sidecars(2).redis().start().await?;
//! let answer = stack.client().with_key("sk-a").chat(&json!({"model": "m", "messages": []})).await?;
//! assert_eq!(answer.status, 200);
//! assert_eq!(stack.models[0].requests().len(), 1);
//! assert_eq!(stack.sidecar_metrics().await?.sum("attache_streams_total", &[]), 1.0);
//! # Ok(())
//! # }
//! ```
//!
//! All of it is asynchronous and returns [`Error`]s that say what was awaited and what the process last wrote, so a test
//! may `unwrap` them. What needs more than the stack gives starts [`Sidecar`], [`Envoy`] and [`Redis`] by itself.

pub mod client;
pub mod counters;
pub mod directory;
pub mod envoy;
pub mod error;
pub mod gateway_profile;
pub mod metrics;
pub mod port;
pub mod process;
pub mod redis;
pub mod sidecar;
pub mod simulation;
pub mod sse;
pub mod stack;
pub mod template;
pub mod tools;
pub mod traces;
pub mod wait;

pub use client::{Answer, Client, EventStream, Events};
pub use counters::Counters;
pub use directory::Directory;
pub use envoy::{Envoy, EnvoyOptions};
pub use error::{Error, Result};
pub use metrics::Metrics;
pub use process::{Process, Signal};
pub use redis::Redis;
pub use sidecar::{Sidecar, SidecarOptions};
pub use stack::{Addresses, Gateway, Stack, StackBuilder};
pub use wait::until;
