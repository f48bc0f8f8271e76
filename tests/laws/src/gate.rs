//! The gate: requests' headers, and the header by which it learns of exhausted keys.

use std::str;
use std::time::Duration;

use attache_gate::{
    Access, Exhausted, FirstLook, Gate, GateConfig, KeyDigest, KeyEntry, Learned, RequestHead, Verdict,
};
use attache_proto::Operation;

/// The one key that the gate knows.
const KEY: &str = "sk-known";

/// What passes calls an operation, and shows the key; a refusal is JSON.
pub fn gate(input: &[u8]) {
    let digest = KeyDigest::of(KEY.as_bytes());
    let key = KeyEntry::new("default/known".to_owned(), digest, "acme".to_owned(), Vec::new());
    let Ok(gate) = Gate::new(GateConfig::new(Access::Keys(vec![key]))) else { return };
    let headers = input.split(|byte| *byte == b'\n').filter_map(|line| {
        let end = line.iter().skip(1).position(|byte| *byte == b':')? + 1;
        let (name, value) = line.split_at_checked(end)?;
        Some((str::from_utf8(name).ok()?, value.strip_prefix(b":")?.trim_ascii()))
    });
    let head = RequestHead::read(headers);
    let _ = gate.dialect(&head);
    first_look(&gate, &head);
    match gate.check(&head, Duration::ZERO) {
        Verdict::Pass(passed) => {
            assert!(Operation::ALL.contains(&passed.operation));
            assert!(passed.caller.is_some(), "nobody passes without a key");
            assert!(input.windows(KEY.len()).any(|window| window == KEY.as_bytes()));
        }
        Verdict::Refuse(refusal) => {
            let body = refusal.error.body(refusal.dialect);
            assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok(), "{body}");
            assert!((400..600).contains(&refusal.error.status()));
        }
    }
}

/// The filter's first look lets in whom the gate lets in, and leaves to the sidecar only what shows a credential.
fn first_look(gate: &Gate, head: &RequestHead<'_>) {
    let is_right = match (gate.first_look(head, Duration::ZERO), gate.check(head, Duration::ZERO)) {
        (FirstLook::Pass(first), Verdict::Pass(passed)) => first == passed,
        (FirstLook::Refuse(first), Verdict::Refuse(refusal)) => first == refusal,
        (FirstLook::Ask(_), Verdict::Refuse(refusal)) => Learned::of(&refusal).is_some(),
        _ => false,
    };
    assert!(is_right, "the filter and the sidecar are of two minds");
}

/// What was read is written so that it reads the same.
pub fn exhausted(input: &[u8]) {
    if let Some(learned) = Learned::from_header(input, b"attache_key_unknown")
        && let Some(header) = learned.to_header()
    {
        assert_eq!(Learned::from_header(header.as_bytes(), b"attache_key_unknown"), Some(learned));
    }
    let Some(exhausted) = Exhausted::from_header(input) else { return };
    if let Some(header) = exhausted.to_header() {
        assert!(header.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header}");
        assert_eq!(Exhausted::from_header(header.as_bytes()), Some(exhausted));
    }
}
