//! Token limits: a request reserves an estimate before the model is asked and settles the real usage after.
//!
//! `rules` says what a limit is, `window` in which time it counts, `quantity` what it counts, `subject` whom a request counts
//! for, `estimate` what it will probably use, by what was `learned`; together they make a `reservation`, which may be cut to the
//! `room` that is left. A `store` grants it or not, in `memory` or in `redis`; the `ledger` is the one that was chosen and what
//! stands in for it. `headers` and `refusal` tell the client
//! of the `decision`, `journal` and `figures` tell people.

mod bounds_taken;
mod clock;
mod counter;
mod decision;
mod estimate;
mod events;
mod exhausted;
mod figures;
mod headers;
mod journal;
mod learned;
mod ledger;
mod memory;
mod most;
mod program;
mod quantity;
mod redis;
mod refusal;
mod reservation;
mod room;
mod rules;
mod state;
mod store;
mod subject;
#[cfg(test)]
mod tests;
mod window;

pub use bounds_taken::{BoundsTaken, ServedAt, Taken};
pub use clock::{Clock, SystemClock};
pub use decision::{Decision, Grown, Keeper, Refused, Reservation};
pub(crate) use estimate::MEDIA_TOKENS;
pub use estimate::{Estimate, EstimateInput, Form, Learned};
pub use events::InEvents;
pub use figures::{LimitFigure, LimitFigures};
pub use journal::{Decided, Journal, LastDecision};
pub use learned::{Experience, Lesson, Prompt};
pub use ledger::{DegradedDecisions, Ledger, LedgerStats, SharedLedger, SharedOptions, StoreState, Unanswered};
pub use memory::MemoryStore;
pub use program::{CostProgram, InvalidProgram};
pub use quantity::{Cost, CostContext, Price, Prices, Quantity};
pub(crate) use redis::Errand;
pub use redis::{InvalidRedisUrl, RedisFiles, RedisOptions, RedisStore, RedisTarget, StoreMemory};
pub(crate) use refusal::{amount, measure, subject, until_empty, until_room};
pub use reservation::{Charge, Growth, Hold, Judge, ReservationId, ReserveRequest, Settlement};
pub use rules::{Cap, Condition, Dimension, Enforcement, Expected, Limit, Mode, OnStoreError, Priority};
pub use state::CounterState;
pub use store::{Admission, LEASE, RENEW_EVERY, Store, StoreError};
pub use subject::{CounterKey, ModelGroups, Subject};
pub use window::{Bucket, Calendar, Period, Window};
