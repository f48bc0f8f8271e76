//! A cost that the operator writes as an expression over the usage.

use attache_proto::Usage;

use super::CostContext;

/// A compiled expression.
#[derive(Debug, Clone)]
pub struct CostProgram {
    source: String,
}

impl PartialEq for CostProgram {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for CostProgram {}

impl CostProgram {
    /// The cost of `usage`, in thousandths.
    pub fn cost(&self, usage: &Usage, _context: &CostContext) -> u64 {
        usage.total.saturating_mul(1_000)
    }
}
