//! The sidecar: an ext_proc server that reads each LLM request once and tells Envoy where it goes, what it costs and
//! whether it may.
//!
//! The way of a request: `server` turns Envoy's messages into events for an `exchange`, which finds a target in `route`,
//! a replica in `affinity` and asks `limit` for a reservation, all by the one immutable `config` that it started with.

pub mod admin;
pub mod affinity;
pub mod config;
pub mod doctor;
pub mod exchange;
pub mod limit;
pub mod readiness;
pub mod reload;
pub mod render;
pub mod route;
pub mod run;
pub mod server;
pub mod sharing;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod watch;
pub mod world;
