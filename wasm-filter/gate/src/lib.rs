//! Skeleton of the gate: the real one replaces this file.
#![allow(missing_docs)]
use std::collections::BTreeMap;
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct GateConfig {
    pub path_prefix: String,
    pub max_header_bytes: u64,
    pub max_body_bytes: u64,
    pub keys: Vec<KeyEntry>,
    pub models: BTreeMap<String, Vec<String>>,
}
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct KeyEntry {
    pub id: String,
    pub sha256: String,
    pub tenant: String,
    pub routes: Vec<String>,
}
#[derive(Debug)]
pub struct Gate;
