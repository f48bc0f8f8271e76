//! The gate: requests' headers, and the header by which it learns of exhausted keys.

use std::str;

use attache_gate::{Access, Exhausted, Gate, GateConfig, KeyDigest, KeyEntry, KeyPriority, RequestHead, Verdict};
use attache_proto::Operation;

/// The one key that the gate knows.
const KEY: &str = "sk-known";

/// What passes calls an operation, and shows the key; a refusal is JSON.
pub fn gate(input: &[u8]) {
    let key = KeyEntry {
        id: "default/known".to_owned(),
        sha256: KeyDigest::of(KEY.as_bytes()),
        tenant: "acme".to_owned(),
        routes: Vec::new(),
        labels: Default::default(),
        priority: KeyPriority::Normal,
    };
    let Ok(gate) = Gate::new(GateConfig::new(Access::Keys(vec![key]))) else { return };
    let headers = input.split(|byte| *byte == b'\n').filter_map(|line| {
        let end = line.iter().skip(1).position(|byte| *byte == b':')? + 1;
        let (name, value) = line.split_at_checked(end)?;
        Some((str::from_utf8(name).ok()?, value.strip_prefix(b":")?.trim_ascii()))
    });
    let head = RequestHead::read(headers);
    let _ = gate.dialect(&head);
    match gate.check(&head) {
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

/// What was read is written so that it reads the same.
pub fn exhausted(input: &[u8]) {
    let Some(exhausted) = Exhausted::from_header(input) else { return };
    if let Some(header) = exhausted.to_header() {
        assert!(header.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header}");
        assert_eq!(Exhausted::from_header(header.as_bytes()), Some(exhausted));
    }
}
