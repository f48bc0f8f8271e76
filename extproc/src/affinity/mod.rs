//! Prefix affinity: a prompt goes to the replica that probably has its prefix in cache already, unless that one is so busy that
//! it is cheaper to compute it elsewhere.
//!
//! The way of a request: its segments make a canonical stream ([`prefix`]), the stream a chain of block hashes ([`blocks`]). A
//! [`Pool`] finds in its `index` who holds how much of the chain, weighs that against `load` (`decision`), with the `rank` of
//! the endpoints for the first block that not everybody has. What comes of it comes back through a [`Ticket`]. All hashes are
//! the same in every sidecar, so sidecars agree without talking to each other; what they tell each other is `news`.

mod ages;
pub mod blocks;
mod decision;
mod fleet;
mod index;
mod load;
mod member;
mod metrics_page;
mod news;
pub mod policy;
mod pool;
pub mod prefix;
mod pressure;
pub mod rank;
mod recent;
mod reuse;
mod scraping;
#[cfg(test)]
mod tests;
mod ticket;
mod under_way;

pub use blocks::PrefixChain;
pub use fleet::{Change, Fleet};
pub use load::{OwnLoad, PEER_EXPIRES_AFTER, STALE_AFTER, Scrape};
pub use metrics_page::{MetricsPage, PageError};
pub use news::News;
pub use policy::{AffinityPolicy, Basis, DebugHeaders, PlacementMode, Tenancy, Weights};
pub use pool::{Ask, EndpointStats, Placement, Pool, PoolStats, Reason, SHARING_EXPIRES_AFTER, Standing};
pub use prefix::{Canon, Masks, PrefixScope, SecretSeed};
pub use scraping::{Capacity, MetricNames, NotASeries, Scraping, Series};
pub use ticket::{Answered, Predicted, Ticket};
