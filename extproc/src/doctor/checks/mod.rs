//! What can be wrong, subject by subject. Each check adds what it finds; none depends on another.

pub(super) mod attachment;
pub(super) mod clusters;
pub(super) mod headers;
pub(super) mod limits;
pub(super) mod processing;
pub(super) mod reach;
pub(super) mod run_time;
pub(super) mod sidecar;
pub(super) mod stale;
pub(super) mod version;
pub(super) mod wasm;

use super::finding::Rule;

/// Every rule there is, subject by subject.
pub(super) fn rules() -> impl Iterator<Item = &'static Rule> {
    let subjects: [&'static [&'static Rule]; 11] = [
        &attachment::RULES,
        &headers::RULES,
        &processing::RULES,
        &limits::RULES,
        &clusters::RULES,
        &wasm::RULES,
        &sidecar::RULES,
        &stale::RULES,
        &version::RULES,
        &reach::RULES,
        &run_time::RULES,
    ];
    subjects.into_iter().flatten().copied()
}
