//! Prefix affinity: a prompt goes to the replica that probably has its prefix in cache already.

pub mod blocks;
pub mod policy;

pub use blocks::PrefixChain;
pub use policy::{AffinityPolicy, DebugHeaders, PlacementMode, Tenancy};
