//! What differs where Envoy is configured as Envoy Gateway would have it (`ATTACHE_TEST_PROFILE=envoy-gateway`).
//!
//! What cannot hold there at all is listed, with its reason, in `envoy-gateway.skip`; `make test-gateway` passes over
//! that.

use std::fs;
use std::path::Path;

use attache_tests::tools::{self, Profile};

/// Whether this is how the Envoys under test are configured.
pub(crate) fn is(profile: Profile) -> bool {
    tools::profile().unwrap() == profile
}

/// Whether Envoy's own errors, of an upstream that is gone say, are JSON: Envoy Gateway has no word for `local_reply_config`.
pub(crate) fn own_errors_are_json() -> bool {
    is(Profile::Static)
}

/// Whether an answer keeps its `content-length`: Envoy Gateway has no word for `allow_content_length_header`.
pub(crate) fn answers_keep_their_length() -> bool {
    is(Profile::Static)
}

/// How many of so many refusals of the Wasm filter the sidecar is told of: Envoy Gateway has no word for the composite filter,
/// without which ext_proc is shown them as answers.
pub(crate) fn told(refusals: f64) -> f64 {
    if is(Profile::Static) { 0.0 } else { refusals }
}

#[test]
fn what_is_passed_over_is_there_and_has_a_reason() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox");
    let list = include_str!("envoy-gateway.skip").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in list {
        let (test, reason) = line.split_once(' ').unwrap_or_default();
        let (subject, name) = test.split_once("::").unwrap();
        let source = fs::read_to_string(directory.join(format!("{subject}.rs"))).unwrap();
        assert!(name.is_empty() || source.contains(&format!("fn {name}()")), "{test}");
        assert!(!reason.trim().is_empty(), "{test}");
    }
}
