//! Operator YAML, read into resources, compiled into one checked and immutable [`Config`].
//!
//! The way of a document: [`load`] reads texts (`source`) into trees that know their positions (`node`); `resource` reads
//! trees into what each kind says (`fields` and `value` are how); [`compile`] resolves the references between them. Whatever
//! is wrong on that way becomes a [`Diagnostic`] and costs the operator that one object, never the others.

mod compile;
mod diagnostic;
mod excerpt;
mod fields;
pub mod host;
pub mod model;
mod node;
pub mod pattern;
mod publish;
pub mod report;
mod resource;
mod schema;
mod secret_files;
mod source;
mod text;
pub mod tls;
pub mod upstream;
mod value;

pub use compile::{Outcome, compile};
pub use diagnostic::{Diagnostic, Location, Origin, Severity};
pub use model::Config;
pub use publish::{Published, SecretInList, published};
pub use report::check;
pub use resource::Resources;
pub use schema::schema;
pub use secret_files::directories as secret_directories;
pub use source::{DocumentText, Documents, load};

/// What is wrong with a text's objects by themselves, without what they refer to.
pub fn faults(name: &str, text: &str) -> Vec<Diagnostic> {
    resource::read(Documents::from_text(name, text)).diagnostics
}

#[cfg(test)]
mod tests;
