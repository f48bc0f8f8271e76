//! Skeleton.
/// Depth bound.
pub const MAX_DEPTH: usize = 128;
