//! Prefix affinity: a prompt goes to the replica that probably has its prefix in cache already.

pub mod policy;

pub use policy::{AffinityPolicy, DebugHeaders, PlacementMode, Tenancy};
