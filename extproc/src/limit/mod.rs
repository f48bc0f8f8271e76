//! Token limits: a request reserves an estimate before the model is asked and settles the real usage after.
//!
//! `rules` says what a limit is and `ledger` what a store must do; both are free of I/O. The stores hold the only state.

pub mod ledger;
pub mod rules;

pub use ledger::{
    Admission, Charge, CounterKey, CounterState, Hold, ReservationId, ReserveRequest, Settlement, Store, StoreError,
};
pub use rules::{Cost, Dimension, Limit, Mode, Quantity};
