//! Prefix affinity: a prompt goes to the replica that probably has its prefix in cache already.
//!
//! The way of a request: its segments make a canonical stream ([`prefix`]), the stream a chain of block hashes ([`blocks`]),
//! the first of them a key, and the key an order among the replicas ([`rank`], [`place`](mod@place)). All of it is pure and
//! the same in every sidecar, so sidecars agree without talking to each other.

pub mod blocks;
pub mod place;
pub mod policy;
pub mod prefix;
pub mod rank;

pub use blocks::PrefixChain;
pub use place::{AffinityKey, Placement, Reason, place};
pub use policy::{AffinityPolicy, DebugHeaders, PlacementMode, Tenancy};
pub use prefix::PrefixScope;
