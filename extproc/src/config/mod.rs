//! Operator YAML, read into resources, compiled into one checked and immutable [`Config`].

mod diagnostic;
mod fields;
pub mod model;
mod node;
mod resource;
mod source;
mod value;

pub use diagnostic::{Diagnostic, Location, Severity};
pub use model::Config;
pub use resource::Resources;
pub use source::{Documents, load};
