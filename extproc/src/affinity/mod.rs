//! Prefix affinity: a prompt goes to the replica that probably has its prefix in cache already.

pub mod blocks;
pub mod policy;
pub mod prefix;

pub use blocks::PrefixChain;
pub use policy::{AffinityPolicy, DebugHeaders, PlacementMode, Tenancy};
pub use prefix::PrefixScope;
