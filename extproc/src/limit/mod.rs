//! Token limits: a request reserves an estimate before the model is asked and settles the real usage after.
//!
//! `rules` says what a limit is, `subject` whom a request counts for, `estimate` what it will probably use; together they
//! make a `reservation`. A `store` grants it or not, in `memory` or in `redis`; the `ledger` is the one that was chosen, and
//! settles off the request path. `headers` and `refusal` tell the client.

mod clock;
mod counter;
mod estimate;
mod headers;
mod ledger;
mod memory;
mod redis;
mod refusal;
mod reservation;
mod rules;
mod settling;
mod store;
mod subject;
#[cfg(test)]
mod tests;

pub use clock::{Clock, SystemClock};
pub use estimate::EstimateInput;
pub use ledger::{Ledger, LedgerStats};
pub use memory::MemoryStore;
pub use redis::{InvalidRedisUrl, RedisOptions, RedisStore};
pub use reservation::{Charge, Hold, ReservationId, ReserveRequest, Settlement};
pub use rules::{Cost, Dimension, Limit, Mode, Quantity};
pub use store::{Admission, CounterState, LEASE, RENEW_EVERY, Store, StoreError};
pub use subject::{CounterKey, Subject};
