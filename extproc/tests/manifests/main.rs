//! Manifests for Envoy Gateway keep to the schemas of what they are applied to, and to each other.

#![cfg(test)]

mod golden;
mod graph;
mod schema;
