//! What sidecars tell each other over Redis, so that each places prompts by what all of them did: which endpoint was sent which
//! blocks, as hashes, and how much each has under way where.
//!
//! For each pool one stream of news, of which a sidecar that starts replays the last minutes, and one hash with the loads of
//! each. A `talk` keeps one pool up to date by one call of a script (`exchange`) in a tick; what is in it is written and read
//! by the `codec`; the `driver` is the task that does so for all pools. No request ever waits for it: while Redis is not there,
//! too slow, full, or holds what others wrote, each sidecar goes by what it knows itself.

pub mod codec;
mod driver;
mod exchange;
mod secret;
mod talk;
#[cfg(test)]
mod tests;

pub use driver::Sharing;
pub use secret::secret_in;
