//! The sidecar: an ext_proc server that reads each LLM request once and tells Envoy where it goes, what it costs and
//! whether it may.

pub mod affinity;
pub mod config;
pub mod limit;
pub mod render;
