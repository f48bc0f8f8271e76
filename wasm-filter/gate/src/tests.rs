use proptest::prelude::*;

use super::*;

const KEY_A: &str = "sk-a-0123456789abcdef0123456789abcdef0123456789ab";
const KEY_B: &str = "sk-b-0123456789abcdef0123456789abcdef0123456789ab";

fn entry(id: &str, key: &str, routes: &[&str]) -> KeyEntry {
    let routes = routes.iter().map(ToString::to_string).collect();
    KeyEntry::new(format!("default/{id}"), KeyDigest::of(key.as_bytes()), format!("tenant-of-{id}"), routes)
}

fn config(access: Access) -> GateConfig {
    let mut config = GateConfig::new(access);
    let serve = |routes: &[&str]| routes.iter().map(ToString::to_string).collect();
    config.models.insert("small".to_owned(), serve(&["default/one"]));
    config.models.insert("large".to_owned(), serve(&["default/two", "default/three"]));
    config
}

fn keyed() -> Gate {
    let keys = vec![entry("a", KEY_A, &["default/one"]), entry("b", KEY_B, &["default/three", "default/one"])];
    Gate::new(config(Access::Keys(keys))).unwrap()
}

fn open() -> Gate {
    Gate::new(config(Access::Open)).unwrap()
}

/// When all this happens.
const NOW: Duration = Duration::from_secs(1_000_000);

type Header<'h> = (&'h str, &'h str);

fn check(gate: &Gate, headers: &[Header<'_>]) -> Verdict {
    gate.check(&RequestHead::read(headers.iter().map(|(name, value)| (*name, value.as_bytes()))), NOW)
}

/// The verdict on a chat completion with these headers on top.
fn chat(gate: &Gate, headers: &[Header<'_>]) -> Verdict {
    let mut all = vec![(":method", "POST"), (":path", "/v1/chat/completions")];
    all.extend(headers);
    check(gate, &all)
}

fn passed(verdict: Verdict) -> Passed {
    match verdict {
        Verdict::Pass(passed) => passed,
        Verdict::Refuse(refusal) => panic!("refused: {refusal:?}"),
    }
}

fn refused(verdict: Verdict) -> Refusal {
    match verdict {
        Verdict::Refuse(refusal) => refusal,
        Verdict::Pass(passed) => panic!("passed: {passed:?}"),
    }
}

/// The reason and status of a refusal.
fn reason(verdict: Verdict) -> (Reason, u16) {
    let refusal = refused(verdict);
    (refusal.reason, refusal.status())
}

#[test]
fn without_client_keys_no_key_is_demanded_and_none_is_looked_at() {
    for headers in [&[][..], &[("x-api-key", "a"), ("api-key", "b")], &[("x-ai-eg-model", "small")]] {
        assert_eq!(passed(chat(&open(), headers)), Passed { operation: Operation::ChatCompletions, caller: None });
    }
    assert!(!open().demands_keys());
    assert!(open().may_call(None, "default/one"));
}

#[test]
fn a_known_key_is_its_caller_in_each_of_the_headers() {
    let bearer = format!("Bearer {KEY_A}");
    for header in [("authorization", bearer.as_str()), ("x-api-key", KEY_A), ("api-key", KEY_A)] {
        let caller = passed(chat(&keyed(), &[header])).caller.unwrap();
        assert_eq!((caller.key_id(), caller.tenant()), ("default/a", "tenant-of-a"));
    }
}

#[test]
fn no_key_an_unknown_key_and_several_keys_are_told_apart() {
    assert_eq!(reason(chat(&keyed(), &[])), (Reason::KeyMissing, 401));
    assert_eq!(reason(chat(&keyed(), &[("authorization", KEY_A)])), (Reason::KeyMissing, 401));
    assert_eq!(reason(chat(&keyed(), &[("x-api-key", "sk-a")])), (Reason::KeyUnknown, 401));
    assert_eq!(reason(chat(&keyed(), &[("x-api-key", KEY_A), ("api-key", KEY_B)])), (Reason::SeveralKeys, 401));
}

#[test]
fn a_foreign_credential_beside_a_key_is_nobodys_business() {
    let bearer = |key: &str| format!("Bearer {key}");
    let (ours, foreign) = (bearer(KEY_A), bearer("eyJhbGciOi.J9.foreign"));
    let lower = format!("bearer {KEY_A}");
    let joined = format!("{foreign}, {ours}");
    for headers in [
        &[("authorization", ours.as_str()), ("x-api-key", "sk-ant-foreign")][..],
        &[("authorization", lower.as_str()), ("api-key", "foreign")],
        &[("authorization", foreign.as_str()), ("x-api-key", KEY_A)],
        &[("authorization", foreign.as_str()), ("api-key", KEY_A)],
        &[("authorization", foreign.as_str()), ("authorization", ours.as_str())],
        &[("authorization", joined.as_str())],
        &[("x-api-key", "foreign"), ("x-api-key", KEY_A)],
        &[("x-api-key", "foreign"), ("x-api-key", KEY_A), ("api-key", KEY_A), ("authorization", foreign.as_str())],
    ] {
        assert_eq!(passed(chat(&keyed(), headers)).caller.unwrap().key_id(), "default/a", "{headers:?}");
    }
    for headers in [
        &[("authorization", foreign.as_str()), ("x-api-key", "sk-ant-foreign")][..],
        &[("authorization", foreign.as_str())],
        &[("x-api-key", "one,another")],
    ] {
        assert_eq!(reason(chat(&keyed(), headers)), (Reason::KeyUnknown, 401), "{headers:?}");
    }
    for headers in [
        &[("authorization", ours.as_str()), ("x-api-key", KEY_B)][..],
        &[("authorization", ours.as_str()), ("x-api-key", KEY_B), ("api-key", "foreign")],
        &[("x-api-key", KEY_A), ("api-key", "1,2,3,4")],
    ] {
        assert_eq!(reason(chat(&keyed(), headers)), (Reason::SeveralKeys, 401), "{headers:?}");
    }
}

#[test]
fn a_key_ends_after_its_last_moment_and_says_so_to_its_holder_alone() {
    let last = NOW.as_millis() as u64;
    let ending = |last| KeyEntry { not_after_ms: Some(last), ..entry("a", KEY_A, &["default/one"]) };
    let verdict = |last, key: &str| {
        let gate = Gate::new(config(Access::Keys(vec![ending(last), entry("b", KEY_B, &[])]))).unwrap();
        chat(&gate, &[("x-api-key", key)])
    };
    assert_eq!(passed(verdict(last, KEY_A)).caller.unwrap().key_id(), "default/a");
    assert_eq!(reason(verdict(last - 1, KEY_A)), (Reason::KeyExpired, 401));
    assert!(refused(verdict(last - 1, KEY_A)).error.message.contains("this key has expired"));
    assert_eq!(reason(verdict(last - 1, "other")), (Reason::KeyUnknown, 401));
    assert_eq!(passed(verdict(0, KEY_B)).caller.unwrap().key_id(), "default/b");
}

#[test]
fn a_disabled_key_is_refused_and_is_still_a_callers() {
    let off = KeyEntry { disabled: true, ..entry("a", KEY_A, &["default/one"]) };
    let gate = Gate::new(config(Access::Keys(vec![off, entry("b", KEY_B, &[])]))).unwrap();
    assert_eq!(reason(chat(&gate, &[("x-api-key", KEY_A)])), (Reason::KeyDisabled, 401));
    assert_eq!(reason(chat(&gate, &[("x-api-key", KEY_A), ("api-key", KEY_B)])), (Reason::SeveralKeys, 401));
}

#[test]
fn a_caller_with_two_keys_is_one_caller() {
    let both = KeyEntry { also: vec![KeyDigest::of(KEY_B.as_bytes())], ..entry("a", KEY_A, &["default/one"]) };
    let gate = Gate::new(config(Access::Keys(vec![both.clone()]))).unwrap();
    for headers in [&[("x-api-key", KEY_A)][..], &[("x-api-key", KEY_B)], &[("x-api-key", KEY_A), ("api-key", KEY_B)]] {
        assert_eq!(passed(chat(&gate, headers)).caller.unwrap().key_id(), "default/a", "{headers:?}");
    }
    let again = Gate::new(config(Access::Keys(vec![both, entry("b", KEY_B, &[])])));
    assert!(matches!(again, Err(ConfigError::SameKeyTwice { .. })));
}

#[test]
fn the_digest_of_a_key_is_not_the_key() {
    let digest = KeyDigest::of(KEY_A.as_bytes()).to_string();
    assert_eq!(reason(chat(&keyed(), &[("x-api-key", &digest)])), (Reason::KeyUnknown, 401));
}

#[test]
fn an_empty_list_of_keys_admits_nobody() {
    let gate = Gate::new(config(Access::Keys(Vec::new()))).unwrap();
    assert_eq!(reason(chat(&gate, &[("x-api-key", KEY_A)])), (Reason::KeyUnknown, 401));
    assert!(!gate.may_call(None, "default/one"));
}

#[test]
fn the_list_of_models_demands_a_key_too() {
    let models = [(":method", "GET"), (":path", "/v1/models")];
    assert_eq!(reason(check(&keyed(), &models)), (Reason::KeyMissing, 401));
    let with_key = [models[0], models[1], ("api-key", KEY_A)];
    assert_eq!(passed(check(&keyed(), &with_key)).operation, Operation::Models);
    assert_eq!(passed(check(&open(), &models)).operation, Operation::Models);
}

#[test]
fn a_401_names_the_scheme_and_never_repeats_the_key() {
    let secret = "sk-secret";
    for headers in [
        &[][..],
        &[("x-api-key", secret)],
        &[("x-api-key", secret), ("api-key", KEY_A), ("authorization", &format!("Bearer {KEY_B}"))],
        &[("x-api-key", KEY_A), ("x-ai-eg-model", "large")],
    ] {
        let refusal = refused(chat(&keyed(), headers));
        assert_eq!(refusal.status(), 401);
        assert_eq!(
            refusal.headers().collect::<Vec<_>>(),
            [("content-type", "application/json"), ("www-authenticate", "Bearer")]
        );
        assert!(!refusal.body().contains("sk-"), "{}", refusal.body());
    }
}

#[test]
fn a_hint_refuses_a_key_that_no_route_of_the_model_admits() {
    let verdict = |key, model| chat(&keyed(), &[("x-api-key", key), ("x-ai-eg-model", model)]);
    assert_eq!(reason(verdict(KEY_A, "large")), (Reason::KeyNotAttached, 401));
    assert_eq!(passed(verdict(KEY_A, "small")).caller.unwrap().key_id(), "default/a");
    assert_eq!(passed(verdict(KEY_B, "large")).caller.unwrap().key_id(), "default/b");
}

#[test]
fn a_hint_never_admits() {
    for model in ["small", "large", "unknown", ""] {
        assert_eq!(reason(chat(&keyed(), &[("x-ai-eg-model", model)])), (Reason::KeyMissing, 401));
        let unknown = [("x-api-key", "sk-x"), ("x-ai-eg-model", model)];
        assert_eq!(reason(chat(&keyed(), &unknown)), (Reason::KeyUnknown, 401));
    }
}

#[test]
fn a_hint_that_is_unknown_or_ambiguous_is_left_to_the_body() {
    let hint = ("x-ai-eg-model", "large");
    for hints in [&[("x-ai-eg-model", "unknown")][..], &[("x-ai-eg-model", "")], &[hint, hint]] {
        let headers = [&[("x-api-key", KEY_A)], hints].concat();
        assert_eq!(passed(chat(&keyed(), &headers)).caller.unwrap().key_id(), "default/a");
    }
}

#[test]
fn a_hint_does_not_keep_the_list_of_models_from_a_caller() {
    let models = [(":method", "GET"), (":path", "/v1/models"), ("x-api-key", KEY_A), ("x-ai-eg-model", "large")];
    assert_eq!(passed(check(&keyed(), &models)).caller.unwrap().key_id(), "default/a");
}

#[test]
fn a_caller_may_call_the_routes_of_its_key_and_no_other() {
    let gate = keyed();
    let caller = passed(chat(&gate, &[("x-api-key", KEY_B)])).caller;
    for (route, may) in [
        ("default/one", true),
        ("default/three", true),
        ("default/two", false),
        ("one", false),
        ("", false),
        ("default/one ", false),
    ] {
        assert_eq!(gate.may_call(caller.as_ref(), route), may, "{route}");
        assert!(!gate.may_call(None, route));
    }
}

#[test]
fn an_unknown_path_and_a_wrong_method_are_refused_before_the_key_is_looked_at() {
    let verdict = |method, path| refused(check(&keyed(), &[(":method", method), (":path", path)]));
    let refusal = verdict("POST", "/v1/nothing?key=sk-secret");
    assert_eq!((refusal.reason, refusal.status()), (Reason::PathNotFound, 404));
    assert!(refusal.error.message.contains("POST /v1/chat/completions"), "{}", refusal.error.message);
    assert!(!refusal.body().contains("secret"));

    let refusal = verdict("DELETE", "/v1/models");
    assert_eq!((refusal.reason, refusal.status()), (Reason::MethodNotAllowed { allow: "GET" }, 405));
    assert_eq!(refusal.headers().collect::<Vec<_>>(), [("content-type", "application/json"), ("allow", "GET")]);
}

#[test]
fn a_web_socket_is_refused_with_the_one_status_by_which_clients_do_without() {
    let ask = |path: &str, upgrade: &str| {
        let head = [(":method", "GET"), (":path", path), ("upgrade", upgrade), ("connection", "Upgrade")];
        match check(&open(), &head) {
            Verdict::Refuse(refusal) => refusal.status(),
            Verdict::Pass(_) => 0,
        }
    };
    for upgrade in ["websocket", "WebSocket", "h2c, websocket"] {
        assert_eq!(ask("/v1/responses", upgrade), 426, "{upgrade}");
    }
    assert_eq!((ask("/v1/responses", "h2c"), ask("/v1/nothing", "websocket")), (405, 404));
    assert_eq!(ask("/v1/models", "websocket"), 0, "whoever may ask without is answered without");
}

#[test]
fn a_head_without_method_or_path_is_refused() {
    assert_eq!(reason(check(&open(), &[])), (Reason::PathNotFound, 404));
    assert_eq!(reason(check(&open(), &[(":method", "POST")])), (Reason::PathNotFound, 404));
    let no_method = [(":path", "/v1/models")];
    assert_eq!(reason(check(&open(), &no_method)), (Reason::MethodNotAllowed { allow: "GET" }, 405));
    let two_paths = [(":method", "GET"), (":path", "/v1/models"), (":path", "/v1/models")];
    assert_eq!(reason(check(&open(), &two_paths)), (Reason::PathNotFound, 404));
}

#[test]
fn a_prefix_moves_every_path_and_the_errors_with_it() {
    let mut config = config(Access::Open);
    config.path_prefix = "/gw".to_owned();
    let gate = Gate::new(config).unwrap();
    let verdict = |path| check(&gate, &[(":method", "POST"), (":path", path)]);
    assert_eq!(passed(verdict("/gw/v1/embeddings")).operation, Operation::Embeddings);
    assert_eq!(reason(verdict("/v1/embeddings")), (Reason::PathNotFound, 404));
    assert!(refused(verdict("/")).error.message.contains("POST /gw/v1/embeddings"));
    assert_eq!(refused(verdict("/gw/v1/messages/x")).dialect, Dialect::Anthropic);
}

#[test]
fn errors_are_in_the_dialect_of_the_path() {
    let verdict = |path| refused(check(&open(), &[(":method", "POST"), (":path", path)]));
    assert_eq!(verdict("/v1/messages/x?beta=true").dialect, Dialect::Anthropic);
    assert!(verdict("/v1/messages/x").body().starts_with(r#"{"type":"error","error":{"type":"not_found_error","#));
    assert_eq!(verdict("/v1/x").dialect, Dialect::OpenAi);
    assert!(verdict("/v1/x").body().starts_with(r#"{"error":{"message":"no operation"#));
}

#[test]
fn a_post_without_content_length_passes_because_it_is_chunked() {
    assert_eq!(passed(chat(&open(), &[("transfer-encoding", "chunked")])).operation, Operation::ChatCompletions);
    assert_eq!(passed(chat(&open(), &[])).operation, Operation::ChatCompletions);
}

#[test]
fn a_content_length_up_to_the_cap_passes_and_above_it_is_413() {
    for length in ["0", "1", "33554432", "00000000000000000000000000000033554432"] {
        assert_eq!(passed(chat(&open(), &[("content-length", length)])).caller, None, "{length}");
    }
    for length in ["33554433", "18446744073709551616", &"9".repeat(1000)] {
        assert_eq!(reason(chat(&open(), &[("content-length", length)])), (Reason::BodyTooLarge, 413), "{length}");
    }
}

#[test]
fn a_content_length_that_is_not_one_number_is_400() {
    for length in ["", "+1", "-1", "0x10", "1e3", "1.0", "1 0", "5,5", "5, 5", "१"] {
        let verdict = chat(&open(), &[("content-length", length)]);
        assert_eq!(reason(verdict), (Reason::InvalidContentLength, 400), "{length}");
    }
    let twice = [("content-length", "5"), ("Content-Length", "5")];
    assert_eq!(reason(chat(&open(), &twice)), (Reason::InvalidContentLength, 400));
}

#[test]
fn headers_above_the_bound_are_431_and_at_the_bound_pass() {
    let size = ":methodPOST:path/v1/chat/completions".len();
    let filler = "f".repeat(usize::try_from(GateConfig::DEFAULT_MAX_HEADER_BYTES).unwrap() - size - 1);
    assert_eq!(passed(chat(&open(), &[("x", &filler)])).caller, None);
    assert_eq!(reason(chat(&open(), &[("x", &filler), ("y", "")])), (Reason::HeadersTooLarge, 431));
}

#[test]
fn more_headers_than_envoy_could_still_add_to_are_refused_like_too_many_bytes() {
    let extra = |count| vec![("x-extra", "1"); count];
    let method_and_path = 2;
    assert!(matches!(chat(&open(), &extra(80 - method_and_path)), Verdict::Pass(_)));
    assert_eq!(reason(chat(&open(), &extra(81 - method_and_path))), (Reason::HeadersTooLarge, 431));
}

#[test]
fn every_reason_has_its_own_name() {
    let reasons = [
        Reason::HeadersTooLarge,
        Reason::PathNotFound,
        Reason::MethodNotAllowed { allow: "GET" },
        Reason::InvalidContentLength,
        Reason::BodyTooLarge,
        Reason::KeyMissing,
        Reason::KeyUnknown,
        Reason::SeveralKeys,
        Reason::KeyNotAttached,
        Reason::KeyExpired,
        Reason::KeyDisabled,
    ];
    assert_eq!(reasons.map(Reason::name), Reason::NAMES);
}

/// Names that the gate looks at, among others, in any case.
fn header_name() -> impl Strategy<Value = String> {
    let known = [
        ":method",
        ":path",
        "content-length",
        "authorization",
        "x-api-key",
        "api-key",
        "x-ai-eg-model",
        "x-attache-cluster",
        "accept",
    ];
    prop_oneof![proptest::sample::select(known.to_vec()).prop_map(str::to_owned), any::<String>()]
        .prop_flat_map(|name| (Just(name), any::<u64>()))
        .prop_map(|(name, seed)| shuffle_case(&name, seed))
}

fn header_value() -> impl Strategy<Value = Vec<u8>> {
    let known =
        ["POST", "GET", "/v1/models", "/v1/chat/completions", "Bearer ", "Bearer ,Bearer", "small", "large", "7"];
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        proptest::sample::select(known.to_vec()).prop_map(|value| value.as_bytes().to_vec()),
        Just(KEY_A.as_bytes().to_vec()),
        Just(format!("Bearer {KEY_B}").into_bytes()),
    ]
}

fn shuffle_case(text: &str, seed: u64) -> String {
    text.chars()
        .enumerate()
        .map(|(at, c)| if seed >> (at % 64) & 1 == 1 { c.to_ascii_uppercase() } else { c })
        .collect()
}

fn credentials() -> impl Strategy<Value = Vec<(String, String)>> {
    let token = proptest::sample::select(vec![KEY_A, KEY_B, "sk-x", ""]);
    let header = prop_oneof![
        token.clone().prop_map(|token| ("authorization", format!("Bearer {token}"))),
        token.clone().prop_map(|token| ("x-api-key", token.to_owned())),
        token.prop_map(|token| ("api-key", token.to_owned())),
        Just(("authorization", "Basic azpr".to_owned())),
    ]
    .prop_map(|(name, value)| (name.to_owned(), value));
    proptest::collection::vec(header, 0..5)
}

proptest! {
    #[test]
    fn no_header_bytes_make_the_gate_panic_or_admit_without_a_key(
        headers in proptest::collection::vec((header_name(), header_value()), 0..16),
    ) {
        let head = RequestHead::read(headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())));
        match keyed().check(&head, NOW) {
            Verdict::Pass(passed) => {
                let caller = passed.caller.unwrap();
                let key = if caller.key_id() == "default/a" { KEY_A } else { KEY_B };
                prop_assert!(headers.iter().any(|(_, value)| value.ends_with(key.as_bytes())));
            }
            Verdict::Refuse(refusal) => {
                prop_assert!((400..500).contains(&refusal.status()));
                prop_assert!(serde_json::from_str::<serde_json::Value>(&refusal.body()).is_ok());
            }
        }
        let names_a_caller = matches!(open().check(&head, NOW), Verdict::Pass(Passed { caller: Some(_), .. }));
        prop_assert!(!names_a_caller);
    }

    #[test]
    fn any_bytes_as_configuration_are_read_or_refused(json in proptest::collection::vec(any::<u8>(), 0..256)) {
        // Random bytes are no configuration; that the error has a text is all there is to say.
        prop_assert!(!GateConfig::from_json(&json).unwrap_err().to_string().is_empty());
    }

    #[test]
    fn one_line_or_several_and_the_case_and_order_of_names_do_not_change_the_verdict(
        headers in credentials(),
        hint in proptest::option::of(proptest::sample::select(vec!["small", "large", "unknown"])),
        seed in any::<u64>(),
    ) {
        let gate = keyed();
        let split: Vec<Header<'_>> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .chain(hint.map(|hint| ("x-ai-eg-model", hint)))
            .collect();
        let verdict = chat(&gate, &split);

        let joined: Vec<(String, String)> = split
            .iter()
            .map(|(name, _)| *name)
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .map(|name| {
                let values = split.iter().filter(|(other, _)| *other == name).map(|(_, value)| *value);
                (shuffle_case(name, seed), values.collect::<Vec<_>>().join(", "))
            })
            .collect();
        let joined: Vec<Header<'_>> = joined.iter().map(|(name, value)| (&**name, &**value)).collect();
        prop_assert_eq!(&chat(&gate, &joined), &verdict);

        let reversed: Vec<Header<'_>> = split.into_iter().rev().collect();
        prop_assert_eq!(&chat(&gate, &reversed), &verdict);
    }
}

fn passing(status: UnattachedStatus) -> Gate {
    let mut config =
        config(Access::Keys(vec![entry("a", KEY_A, &["default/one"]), entry("b", KEY_B, &["default/three"])]));
    let named = |routes: &[&str]| routes.iter().map(ToString::to_string).collect();
    config.pass_through.insert("/classify".to_owned(), named(&["default/one"]));
    config.pass_through.insert("POST /v1/custom/*".to_owned(), named(&["default/one", "default/three"]));
    config.unattached_status = status;
    Gate::new(config).unwrap()
}

#[test]
fn what_a_route_names_passes_for_its_keys_alone() {
    let gate = passing(UnattachedStatus::Unauthorized);
    let verdict = |method, path, key| check(&gate, &[(":method", method), (":path", path), ("api-key", key)]);
    for (method, path) in [("GET", "/classify"), ("DELETE", "/classify?x=1"), ("POST", "/v1/custom/a/b")] {
        assert_eq!(passed(verdict(method, path, KEY_A)).operation, Operation::PassThrough, "{method} {path}");
        assert_eq!(reason(verdict(method, path, "unknown")), (Reason::KeyUnknown, 401));
    }
    assert_eq!(passed(verdict("POST", "/v1/custom/a", KEY_B)).caller.unwrap().key_id(), "default/b");
    assert_eq!(reason(verdict("GET", "/classify", KEY_B)), (Reason::KeyNotAttached, 401));
    assert_eq!(reason(verdict("GET", "/v1/custom/a", KEY_A)), (Reason::MethodNotAllowed { allow: "POST" }, 405));
    assert_eq!(reason(verdict("POST", "/v1/custom/a/../b", KEY_A)), (Reason::PathNotFound, 404));
    assert_eq!(reason(verdict("POST", "/v1/customs", KEY_A)), (Reason::PathNotFound, 404));
    // A hint is about a model, and the path may be about none.
    let hinting = [(":method", "GET"), (":path", "/classify"), ("api-key", KEY_A), ("x-ai-eg-model", "large")];
    assert_eq!(passed(check(&gate, &hinting)).operation, Operation::PassThrough);
}

#[test]
fn a_key_that_is_not_attached_may_be_forbidden_in_place_of_unauthorized() {
    let gate = passing(UnattachedStatus::Forbidden);
    let refusals = [
        refused(chat(&gate, &[("x-api-key", KEY_A), ("x-ai-eg-model", "large")])),
        refused(check(&gate, &[(":method", "GET"), (":path", "/classify"), ("api-key", KEY_B)])),
        gate.key_not_attached("a\"b", Dialect::Anthropic),
    ];
    for refusal in refusals {
        assert_eq!((refusal.reason, refusal.status()), (Reason::KeyNotAttached, 403));
        assert_eq!(refusal.headers().collect::<Vec<_>>(), [("content-type", "application/json")]);
    }
    assert_eq!(reason(chat(&gate, &[("x-api-key", "unknown")])), (Reason::KeyUnknown, 401));
}

#[test]
fn a_path_that_may_not_pass_is_a_configuration_that_cannot_be() {
    for pattern in ["/v1/*", "classify", "/a/../b"] {
        let mut config = config(Access::Open);
        config.pass_through.insert(pattern.to_owned(), Vec::new());
        assert!(matches!(Gate::new(config), Err(ConfigError::PassThrough(_))), "{pattern}");
    }
}

#[test]
fn what_older_filters_do_not_know_is_written_only_where_it_is_used() {
    let json = serde_json::to_string(&config(Access::Open)).unwrap();
    assert!(!json.contains("pass_through") && !json.contains("unattached") && !json.contains("unknown_keys"), "{json}");
    let mut config = config(Access::Open);
    config.pass_through.insert("/classify".to_owned(), vec!["default/one".to_owned()]);
    config.unattached_status = UnattachedStatus::Forbidden;
    let json = serde_json::to_vec(&config).unwrap();
    assert_eq!(GateConfig::from_json(&json), Ok(config));
}
