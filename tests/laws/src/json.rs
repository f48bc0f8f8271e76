//! The JSON scanner.

use attache_proto::json::{JsonError, Scanner, unescape};
use serde_json::Value;

/// What a full parser takes is JSON for the scanner, and the other way round, but for what their bounds differ in.
pub fn json(input: &[u8]) {
    let mut scanner = Scanner::new(input);
    let scanned = scanner.skip().and_then(|span| scanner.finish().map(|()| span));
    match (scanned, serde_json::from_slice::<Value>(input)) {
        (Ok(span), _) => {
            let value = input.get(span).unwrap_or_default();
            assert_eq!(value, input.trim_ascii(), "the value is all but the white space");
            let _ = unescape(value);
        }
        (Err(JsonError::TooDeep), parsed) => assert!(parsed.is_err(), "serde_json bounds the depth, too"),
        (Err(error), parsed) => assert!(parsed.is_err(), "serde_json takes what is refused for: {error}"),
    }
    assert!(is_json(input) || serde_json::from_slice::<Value>(input).is_err());
    if is_json(input)
        && let Err(error) = serde_json::from_slice::<Value>(input)
    {
        assert!(is_liberty(&error), "serde_json refuses what was scanned: {error}");
    }
}

fn is_json(input: &[u8]) -> bool {
    let mut scanner = Scanner::new(input);
    scanner.skip().is_ok() && scanner.finish().is_ok()
}

/// Whether serde_json is stricter than the grammar, or has a lower bound.
pub(crate) fn is_liberty(error: &serde_json::Error) -> bool {
    let error = error.to_string();
    ["number out of range", "recursion limit", "surrogate", "unexpected end of hex escape"]
        .iter()
        .any(|liberty| error.contains(liberty))
}
