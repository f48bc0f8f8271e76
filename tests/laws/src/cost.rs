//! The expressions by which operators say what an answer costs.

use std::sync::Arc;

use attache::limit::{CostContext, CostProgram};
use attache_proto::Usage;

/// What is counted at most: what Redis keeps as a whole number.
const MOST: u64 = (1 << 53) - 1;

/// Whatever compiles has a cost for every answer, which can be counted, and the same one each time.
pub fn cost(input: &[u8]) {
    let source = String::from_utf8_lossy(input);
    let program = match CostProgram::compile(&source) {
        Ok(program) => program,
        Err(invalid) => return assert!(invalid.to_string().len() <= 1_000 + source.len(), "{invalid}"),
    };
    let name: Arc<str> = Arc::from("m");
    let context = CostContext {
        model: Arc::clone(&name),
        served_model: Arc::clone(&name),
        backend: Arc::clone(&name),
        route: name,
    };
    for tokens in [0, 1, 1_000, MOST, u64::MAX] {
        let usage = Usage {
            input: tokens,
            output: tokens / 2,
            total: tokens,
            cached_input: tokens / 3,
            cache_creation_input: 0,
            reasoning: tokens / 4,
        };
        let cost = program.expected_cost(&usage, &context);
        assert!(cost <= MOST, "{cost} of {tokens} tokens");
        assert_eq!(program.clone().with_each_request(1).expected_cost(&usage, &context), (cost + 1_000).min(MOST));
    }
}
