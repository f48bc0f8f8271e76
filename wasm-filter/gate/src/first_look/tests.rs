use super::*;
use crate::config::{Access, GateConfig, KeyEntry};

const SECOND: Duration = Duration::from_secs(1);

/// The key `a` may call `one`, which serves `small`; `two` serves `large`. `ended` is over, `off` is disabled.
fn config(extra: &[&str]) -> GateConfig {
    let entry = |id: &str, routes: &[&str]| {
        let routes = routes.iter().map(ToString::to_string).collect();
        KeyEntry::new(format!("default/{id}"), KeyDigest::of(id.as_bytes()), "acme".to_owned(), routes)
    };
    let mut keys = vec![
        entry("a", &["one"]),
        KeyEntry { not_after_ms: Some(0), ..entry("ended", &["one"]) },
        KeyEntry { disabled: true, ..entry("off", &["one"]) },
    ];
    keys.extend(extra.iter().map(|id| entry(id, &["two"])));
    let mut config = GateConfig::new(Access::Keys(keys));
    config.models.insert("small".to_owned(), vec!["one".to_owned()]);
    config.models.insert("large".to_owned(), vec!["two".to_owned()]);
    config.pass_through.insert("/classify".to_owned(), vec!["two".to_owned()]);
    config
}

fn filter() -> Gate {
    Gate::new(config(&[])).unwrap()
}

fn head<'h>(headers: &[(&'h str, &'h str)]) -> RequestHead<'h> {
    let chat = [(":method", "POST"), (":path", "/v1/chat/completions")];
    let is_there = headers.iter().any(|(name, _)| *name == ":path");
    let first = if is_there { &[][..] } else { &chat[..] };
    RequestHead::read(first.iter().chain(headers).map(|(name, value)| (*name, value.as_bytes())))
}

fn doubt(gate: &Gate, head: &RequestHead<'_>) -> Doubt {
    match gate.first_look(head, SECOND) {
        FirstLook::Ask(doubt) => doubt,
        other => panic!("{other:?}"),
    }
}

/// What the sidecar's gate says of it, as the filter reads it.
fn word(sidecar: &Gate, head: &RequestHead<'_>) -> Option<Learned> {
    let Verdict::Refuse(refusal) = sidecar.check(head, SECOND) else { return None };
    let details = format!("attache_{}", refusal.reason.name());
    Learned::from_header(Learned::of(&refusal)?.to_header()?.as_bytes(), details.as_bytes())
}

#[test]
fn what_the_documents_say_of_keys_is_left_to_the_sidecar_and_all_else_is_not() {
    let asks = |headers: &[(&str, &str)]| match filter().first_look(&head(headers), SECOND) {
        FirstLook::Ask(_) => "ask",
        FirstLook::Pass(_) => "pass",
        FirstLook::Refuse(_) => "refuse",
    };
    assert_eq!(asks(&[("api-key", "a")]), "pass");
    assert_eq!(asks(&[("api-key", "a"), ("x-ai-eg-model", "small")]), "pass");
    assert_eq!(asks(&[("api-key", "a"), ("x-ai-eg-model", "new")]), "pass");
    assert_eq!(asks(&[("api-key", "a"), ("authorization", "Bearer foreign")]), "pass");
    for headers in [
        &[("api-key", "new")][..],
        &[("api-key", "ended")],
        &[("api-key", "off")],
        &[("api-key", "a"), ("x-api-key", "off")],
        &[("api-key", "a"), ("x-ai-eg-model", "large")],
        &[("api-key", "a"), (":method", "GET"), (":path", "/classify")],
        &[("api-key", "1,2,3,4,5")],
    ] {
        assert_eq!(asks(headers), "ask", "{headers:?}");
    }
    for headers in [
        &[][..],
        &[("authorization", "Basic azpr")],
        &[("api-key", "new"), ("content-length", "x")],
        &[("api-key", "new"), (":method", "POST"), (":path", "/v1/nothing")],
        &[("api-key", "new"), (":method", "GET"), (":path", "/v1/chat/completions")],
    ] {
        assert_eq!(asks(headers), "refuse", "{headers:?}");
    }
}

#[test]
fn a_filter_that_is_not_to_ask_decides_as_the_sidecar_does() {
    let strict = Gate::new(GateConfig { unknown_keys: UnknownKeys::Refuse, ..config(&[]) }).unwrap();
    for headers in [&[("api-key", "new")][..], &[("api-key", "ended")], &[("api-key", "a"), ("x-ai-eg-model", "large")]]
    {
        let head = head(headers);
        let FirstLook::Refuse(refusal) = strict.first_look(&head, SECOND) else { panic!("{headers:?}") };
        assert_eq!(Verdict::Refuse(refusal), strict.check(&head, SECOND));
    }
}

#[test]
fn what_the_sidecar_refused_is_refused_in_the_same_words_for_two_seconds() {
    let (filter, sidecar) = (filter(), Gate::new(config(&["new"])).unwrap());
    for headers in [
        &[("api-key", "nobodys")][..],
        &[("api-key", "ended")],
        &[("x-api-key", "off")],
        &[("api-key", "a"), ("x-api-key", "new"), ("authorization", "Bearer off")],
        &[("api-key", "a"), ("x-ai-eg-model", "large")],
        &[("api-key", "a"), (":method", "GET"), (":path", "/classify")],
    ] {
        let head = head(headers);
        let doubt = doubt(&filter, &head);
        let mut verdicts = LearnedVerdicts::default();
        assert_eq!(verdicts.refusal(&filter, &doubt, &head, SECOND), None);
        verdicts.learn(&doubt, word(&sidecar, &head).unwrap(), SECOND);
        let refusal = |verdicts: &mut LearnedVerdicts, now| verdicts.refusal(&filter, &doubt, &head, now);
        let last = SECOND + VERDICT_HOLDS - Duration::from_millis(1);
        let said = refusal(&mut verdicts, last).unwrap();
        assert_eq!(Verdict::Refuse(said), sidecar.check(&head, SECOND), "{headers:?}");
        assert_eq!(refusal(&mut verdicts, SECOND + VERDICT_HOLDS), None);
        assert_eq!(refusal(&mut verdicts, Duration::ZERO), None, "a clock that goes back");
    }
}

#[test]
fn a_verdict_on_a_key_is_for_all_its_requests_and_one_on_its_routes_for_that_request_alone() {
    let (filter, sidecar) = (filter(), Gate::new(config(&[])).unwrap());
    let mut verdicts = LearnedVerdicts::default();
    let hinting = head(&[("api-key", "a"), ("x-ai-eg-model", "large")]);
    verdicts.learn(&doubt(&filter, &hinting), word(&sidecar, &hinting).unwrap(), SECOND);
    let unknown = head(&[("api-key", "nobodys")]);
    verdicts.learn(&doubt(&filter, &unknown), word(&sidecar, &unknown).unwrap(), SECOND);
    let mut is_refused = |headers: &[(&str, &str)]| {
        let head = head(headers);
        verdicts.refusal(&filter, &doubt(&filter, &head), &head, SECOND).is_some()
    };
    assert!(is_refused(&[("x-api-key", "a"), ("x-ai-eg-model", "large")]));
    assert!(!is_refused(&[("x-api-key", "a"), (":method", "GET"), (":path", "/classify")]));
    let elsewhere = [(":method", "POST"), (":path", "/v1/embeddings")];
    assert!(!is_refused(&[elsewhere[0], elsewhere[1], ("x-api-key", "a"), ("x-ai-eg-model", "large")]));
    assert!(is_refused(&[elsewhere[0], elsewhere[1], ("authorization", "Bearer nobodys"), ("x-ai-eg-model", "large")]));
    assert!(!is_refused(&[("x-api-key", "nobodys2")]));
    assert!(!is_refused(&[("x-api-key", "nobodys"), ("api-key", "other")]));
}

#[test]
fn a_flood_of_keys_takes_no_more_room_and_displaces_nothing_that_is_asked_for_again() {
    let (filter, sidecar) = (filter(), Gate::new(config(&[])).unwrap());
    let mut verdicts = LearnedVerdicts::default();
    let wrong = head(&[("api-key", "wrong")]);
    let of_wrong = doubt(&filter, &wrong);
    verdicts.learn(&of_wrong, word(&sidecar, &wrong).unwrap(), SECOND);
    assert!(verdicts.refusal(&filter, &of_wrong, &wrong, SECOND).is_some());
    for number in 0..20_000 {
        let key = format!("random-{number}");
        let random = head(&[("api-key", &key)]);
        let of_random = doubt(&filter, &random);
        verdicts.learn(&of_random, word(&sidecar, &random).unwrap(), SECOND);
    }
    assert!(verdicts.refusal(&filter, &of_wrong, &wrong, SECOND).is_some());
    assert_eq!(verdicts.slots.len(), SLOTS);
    // When they are over, others find room.
    let later = SECOND + VERDICT_HOLDS;
    for number in 0..100 {
        let key = format!("later-{number}");
        let random = head(&[("api-key", &key)]);
        let of_random = doubt(&filter, &random);
        verdicts.learn(&of_random, word(&sidecar, &random).unwrap(), later);
        assert!(verdicts.refusal(&filter, &of_random, &random, later).is_some(), "{number}");
    }
}

#[test]
fn only_the_sidecars_own_refusal_for_that_reason_is_believed() {
    let header = br#"{"reason":"key_unknown","message":"no"}"#;
    assert!(Learned::from_header(header, b"attache_key_unknown").is_some());
    for details in [&b"attache_key_expired"[..], b"via_upstream", b"attache_", b"key_unknown", b""] {
        assert_eq!(Learned::from_header(header, details), None);
    }
    for (wrong, details) in [
        (&br#"{"reason":"body_too_large","message":"no"}"#[..], &b"attache_body_too_large"[..]),
        (br#"{"reason":"","message":"no"}"#, b"attache_"),
        (br#"{"reason":"key_unknown"}"#, b"attache_key_unknown"),
        (br#"{"reason":"key_unknown","message":"no","more":1}"#, b"attache_key_unknown"),
        (b"key_unknown", b"attache_key_unknown"),
        (b"", b"attache_"),
    ] {
        assert_eq!(Learned::from_header(wrong, details), None);
    }
    let long = format!(r#"{{"reason":"key_unknown","message":"{}"}}"#, "x".repeat(LONGEST_BYTES));
    assert_eq!(Learned::from_header(long.as_bytes(), b"attache_key_unknown"), None);
}
