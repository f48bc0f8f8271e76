//! How long a ClientKey holds, and by how many keys.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use attache_gate::{ConfigDigest, KeyDigest, KeyEntry};

use super::*;

const OTHER: &str = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752";

fn text(spec: &str) -> String {
    backend("pool", 80) + &route("chat", "m", "pool") + &client_key(&format!("routes: [chat], {spec}"))
}

fn entries(outcome: &Outcome) -> &[KeyEntry] {
    match &outcome.config.gate_config.access {
        Access::Keys(entries) => entries,
        Access::Open => panic!("open"),
    }
}

fn messages(outcome: &Outcome) -> Vec<&str> {
    outcome.diagnostics.iter().map(|finding| finding.message.as_str()).collect()
}

#[test]
fn a_key_has_an_end_a_switch_and_successors() {
    let spec = format!("sha256: [{SHA}, {OTHER}], notAfter: 2999-12-31T23:59:59Z, disabled: true");
    let outcome = compile_text(&text(&spec), None);
    assert_eq!(messages(&outcome), [""; 0]);
    let [entry] = entries(&outcome) else { panic!("one key") };
    assert_eq!(entry.sha256, KeyDigest::from_hex(SHA).unwrap());
    assert_eq!(entry.also, [KeyDigest::from_hex(OTHER).unwrap()]);
    assert_eq!((entry.not_after_ms, entry.disabled), (Some(32_503_679_999_000), true));
}

#[test]
fn what_is_no_time_no_switch_and_no_list_of_hashes_is_an_error_in_words_that_help() {
    for (spec, expected) in [
        (format!("sha256: {SHA}, notAfter: 2030-12-31"), "`notAfter`: expected a time after 1970 in RFC 3339"),
        (format!("sha256: {SHA}, notAfter: 2030-02-30T00:00:00Z"), "`notAfter`: expected a time after 1970"),
        (format!("sha256: {SHA}, notAfter: 2030-12-31T00:00:00"), "`notAfter`: expected a time after 1970"),
        (format!("sha256: {SHA}, notAfter: 1924905600"), "`notAfter`: expected a time after 1970"),
        (format!("sha256: {SHA}, disabled: \"true\""), "`disabled`: expected `true` or `false`"),
        ("sha256: []".to_owned(), "`sha256`: there are 0 of them"),
        (format!("sha256: [{}]", [SHA; 5].join(", ")), "`sha256`: there are 5 of them"),
        (format!("sha256: [{SHA}, {}]", SHA.to_uppercase()), "`sha256`: this one is in the list twice"),
        (format!("sha256: [{SHA}, sk-oops]"), "`sha256`: expected 64 hexadecimal digits"),
    ] {
        let outcome = compile_text(&text(&spec), None);
        let [error] = errors(&outcome)[..] else { panic!("{spec}: {:?}", messages(&outcome)) };
        assert!(error.starts_with(expected), "{error}");
        // Nobody gets in by a key that is wrong.
        assert_eq!(entries(&outcome), []);
        assert!(!outcome.diagnostics.iter().any(|finding| finding.plain().to_string().contains("sk-oops")));
    }
}

#[test]
fn a_hash_is_one_callers_wherever_in_a_list_it_stands() {
    let second = client_key(&format!("routes: [chat], sha256: [{OTHER}]")).replace("name: app", "name: second");
    let outcome = compile_text(&(text(&format!("sha256: [{SHA}, {OTHER}]")) + &second), None);
    assert_eq!(errors(&outcome), ["two ClientKeys have this `sha256`"]);
    assert_eq!(entries(&outcome).len(), 1);
}

#[test]
fn an_end_that_is_near_or_over_is_warned_of() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let at = |end: Duration| {
        let end = jiff::Timestamp::from_second(end.as_secs().try_into().unwrap()).unwrap();
        let outcome = compile_text(&text(&format!("sha256: {SHA}, notAfter: {end}")), None);
        messages(&outcome).join("; ")
    };
    const DAY: Duration = Duration::from_secs(86_400);
    assert_eq!(at(now + 15 * DAY), "");
    assert_eq!(at(now + 3 * DAY + DAY / 2), "ClientKey default/app expires in 3 days");
    assert_eq!(at(now + DAY / 2), "ClientKey default/app expires within a day");
    assert_eq!(at(now - DAY), "ClientKey default/app has expired: nobody can call with it");
    // Who has been shut out on purpose is nobody's surprise.
    let off = format!("sha256: {SHA}, disabled: true, notAfter: 2001-01-01T00:00:00Z");
    assert_eq!(messages(&compile_text(&text(&off), None)), [""; 0]);
}

#[test]
fn what_was_in_force_before_is_remembered_and_what_is_in_force_again_is_not_old() {
    let one = text(&format!("sha256: {SHA}"));
    let two = text(&format!("sha256: {OTHER}"));
    let first = compile_text(&one, None);
    assert_eq!(first.config.filter.digest, ConfigDigest::of(&first.config.gate_config));
    assert_eq!(first.config.filter.earlier, []);
    let second = compile_text(&two, Some(&first.resources));
    assert_eq!(second.config.filter.earlier, [first.config.filter.digest]);
    let third = compile_text(&one, Some(&second.resources));
    assert_eq!(third.config.filter.digest, first.config.filter.digest);
    assert_eq!(third.config.filter.earlier, [second.config.filter.digest]);
    // However often it changes.
    let mut last = third;
    for number in 0..200 {
        let changed = text(&format!("sha256: {SHA}, tenant: tenant-{number}"));
        last = compile_text(&changed, Some(&last.resources));
    }
    assert_eq!(last.config.filter.earlier.len(), 64);
}
