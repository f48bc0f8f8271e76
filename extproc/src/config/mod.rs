//! Operator YAML, read into resources, compiled into one checked and immutable [`Config`].

pub mod model;

pub use model::Config;
