//! What is held grows with the answer, or the answer ends; what answers teach the next requests.

use super::*;

const OPENING: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":400,\"total_tokens\":409}}\n\n";

/// What a prompt of `user` and `Hello` holds at most: five for its bytes, five for its message, 32 for the template.
const PROMPT: u64 = 5 + 5 + 32;

fn tokens(count: usize) -> String {
    "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n".repeat(count)
}

fn streamed() -> Value {
    json!({"model": "metered", "stream": true, "messages": [{"role": "user", "content": "Hello"}]})
}

/// A streamed answer under a limit, of which nothing has come yet.
fn streaming(amount: u64) -> Table {
    let mut table = Table::set_capped(amount);
    table.post(&streamed(), &[]);
    released(table.decide(|state| Admission::Granted { states: vec![state] }));
    table.answer_head("200", "text/event-stream", "10.0.0.1:80");
    table
}

fn feed(table: &mut Table, chunk: &str, end: End) -> Action {
    table.exchange.response_body(&Bytes::from(chunk.to_owned()), end, table.now).unwrap()
}

fn growth(table: &mut Table) -> Growth {
    let growth = table.exchange.poll_growth().expect("a growth");
    assert!(table.exchange.poll_growth().is_none(), "a growth comes once");
    growth
}

fn granted(table: &mut Table, growth: &Growth) -> Action {
    table.exchange.grown(growth, &Ok(Admission::Granted { states: vec![state(0)] }), table.now)
}

/// Others have settled so much.
fn denied(table: &mut Table, growth: &Growth, settled: u64) -> Action {
    table.exchange.grown(growth, &Ok(Admission::Refused { by: 0, states: vec![state(settled)] }), table.now)
}

fn state(settled: u64) -> CounterState {
    let minute = Duration::from_secs(60);
    CounterState { bucket: 0, epoch: 0, settled, previous: 0, held: 0, left: minute, length: minute }
}

fn passed(action: Action, chunk: &str) -> String {
    match action {
        Action::Answer(Reply::ResponseBody(Body::Unchanged, _)) => chunk.to_owned(),
        Action::Answer(Reply::ResponseBody(Body::Replaced(bytes), _)) => String::from_utf8(bytes.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn sent(bodies: Vec<Body>) -> Value {
    match bodies.as_slice() {
        [Body::Replaced(bytes)] => serde_json::from_slice(bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The error with which a stream ended, after so much.
fn cut_after(text: &str, before: &str) -> Value {
    let end = text.strip_prefix(before).unwrap_or_else(|| panic!("{text}"));
    let error = end.strip_prefix("data: ").and_then(|end| end.strip_suffix("\n\ndata: [DONE]\n\n"));
    serde_json::from_str(error.unwrap_or_else(|| panic!("{end}"))).unwrap()
}

#[test]
fn an_answer_in_one_piece_has_what_the_client_bounds_or_a_generous_default_and_is_kept_to_what_is_held() {
    let chat = |fields: Value| {
        let mut body = chat("metered");
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let bounded = |fields: Value| {
        let mut table = Table::set_capped(100_000);
        table.post(&chat(fields), &[]);
        let held = table.asked.as_ref().unwrap().holds[0].estimate - PROMPT;
        let (mutations, bodies) = released(table.decide(|state| Admission::Granted { states: vec![state] }));
        let [body] = bodies.as_slice() else { panic!("{bodies:?}") };
        match body {
            Body::Unchanged => (held, None),
            Body::Replaced(bytes) => {
                assert_eq!(set(&mutations, "content-length"), Some(bytes.len().to_string().as_str()));
                (held, Some(serde_json::from_slice::<Value>(bytes).unwrap()))
            }
        }
    };
    assert_eq!(bounded(json!({})), (12_494, Some(chat(json!({"max_tokens": 12_494})))));
    assert_eq!(bounded(json!({"n": 4})), (16_384, Some(chat(json!({"n": 4, "max_tokens": 4_096})))));
    assert_eq!(bounded(json!({"max_tokens": 20})), (20, None));
    assert_eq!(bounded(json!({"max_tokens": 900})), (900, None));
    assert_eq!(bounded(json!({"max_completion_tokens": 20_000, "n": 2})), (40_000, None));
    // Servers differ in which of two they take.
    let both = json!({"max_tokens": 900, "max_completion_tokens": 600, "n": 2});
    assert_eq!(bounded(both), (1_800, None));
}

#[test]
fn a_wide_limit_leaves_a_request_without_a_bound_as_it_is() {
    let bound = |amount: u64, body: &Value| {
        let mut table = Table::set_capped(amount);
        table.post(body, &[]);
        let (_, bodies) = released(table.decide(|state| Admission::Granted { states: vec![state] }));
        match bodies.as_slice() {
            [Body::Unchanged] => None,
            _ => Some(sent(bodies)),
        }
    };
    assert_eq!(bound(1_000_000, &chat("metered")), None);
    let small = bound(20_000, &chat("metered")).unwrap();
    assert_eq!((&small["max_tokens"], &small["max_completion_tokens"]), (&json!(4_096), &Value::Null));
}

#[test]
fn what_the_client_says_of_thoughts_is_lowered_with_the_bound_or_the_request_is_refused() {
    let thinking = |stream: bool, budget: u64| {
        json!({"model": "metered", "stream": stream, "max_tokens": 20_000, "messages": [],
               "thinking": {"type": "enabled", "budget_tokens": budget}})
    };
    for stream in [false, true] {
        let left = |amount: u64, budget: u64| {
            let mut table = Table::set_capped(amount);
            table.post(&thinking(stream, budget), &[]);
            loop {
                let fits = |table: &Table| table.asked.as_ref().unwrap().holds[0].estimate <= amount;
                let answer: fn(CounterState) -> Admission = if fits(&table) {
                    |state| Admission::Granted { states: vec![state] }
                } else {
                    |state| Admission::Refused { by: 0, states: vec![state] }
                };
                match table.decide(answer) {
                    action @ Action::Reserve(_) => table.note(&action),
                    action => break action,
                }
            }
        };
        assert_eq!(refused(left(1_000, 2_000)).0, 429, "{stream}");
        let body = sent(released(left(10_000, 16_000)).1);
        let (bound, budget) =
            (body["max_tokens"].as_u64().unwrap(), body["thinking"]["budget_tokens"].as_u64().unwrap());
        assert!((9_900..10_000).contains(&bound), "{bound}");
        assert_eq!(budget, 16_000 * bound / 20_000, "{stream}");
        // The smallest that servers take stays.
        let body = sent(released(left(2_000, 1_024)).1);
        assert_eq!(body["thinking"]["budget_tokens"], 1_024);
    }
}

#[test]
fn what_is_left_is_divided_among_the_choices_of_an_answer_in_one_piece() {
    let mut table = Table::set_capped(PROMPT + 301);
    let mut body = chat("metered");
    body["n"] = json!(3);
    table.post(&body, &[]);
    let action = table.decide(|state| Admission::Refused { by: 0, states: vec![state] });
    table.note(&action);
    let (_, bodies) = released(table.decide(|state| Admission::Granted { states: vec![state] }));
    assert_eq!(sent(bodies)["max_tokens"], 100);
}

#[test]
fn what_a_refusal_says_is_left_is_asked_for_next_and_four_times_in_all() {
    let mut table = Table::set_capped(1_000);
    let first = Arc::clone(&table.config.routes[1].limits[0]);
    let other = Arc::new(Limit { id: "other".into(), ..Limit::clone(&first) });
    let mut config = compiled();
    config.routes[1].limits = vec![first, other];
    table.config = Arc::new(config);
    table.again();
    let refused = |request: Arc<ReserveRequest>, by: usize, settled: [Option<u64>; 2]| {
        Ok(Decision::Refused(Refused { request, by, states: settled.map(|settled| settled.map(state)).into() }))
    };
    let outputs = |action: &Action| match action {
        Action::Reserve(request) => (Arc::clone(request), request.estimate.output_at_most),
        other => panic!("{other:?}"),
    };
    let (first, output) = outputs(&table.post(&chat("metered"), &[]));
    assert_eq!(output, 4_096);
    let (second, output) = outputs(&table.exchange.admitted(refused(first, 0, [Some(100), None]), table.now));
    assert_eq!(output, 900 - PROMPT);
    let (third, output) = outputs(&table.exchange.admitted(refused(second, 1, [Some(100), Some(600)]), table.now));
    assert_eq!(output, 400 - PROMPT);
    let (fourth, output) = outputs(&table.exchange.admitted(refused(third, 1, [Some(100), Some(700)]), table.now));
    assert_eq!((output, fourth.judge), (300 - PROMPT, Judge::Store));
    let last = table.exchange.admitted(refused(fourth, 1, [Some(100), Some(800)]), table.now);
    assert_eq!(self::super::refused(last).0, 429);
}

#[test]
fn a_refusal_is_of_the_least_that_would_have_been_worth_an_answer() {
    let mut table = Table::set_capped(300);
    table.post(&chat("metered"), &[]);
    let used = 300 - PROMPT - 15;
    let action =
        table.decide(|state| Admission::Refused { by: 0, states: vec![CounterState { settled: used, ..state }] });
    let (status, _, error) = refused(action);
    let message = error["error"]["message"].as_str().unwrap();
    assert_eq!(status, 429);
    assert!(message.contains(&format!("Limit 300, Used {used}, Requested {}. ", PROMPT + 16)), "{message}");
    assert!(message.contains("try again in"), "{message}");
}

#[test]
fn without_a_cap_and_in_streams_the_clients_bound_stays() {
    let mut table = Table::set(Profile::Streamed);
    table.post(&json!({"model": "metered", "max_tokens": 4_000, "messages": []}), &[]);
    assert_eq!(released(table.admit()).1, [Body::Unchanged]);
    let mut table = Table::set_capped(100_000);
    table.post(&json!({"model": "metered", "max_tokens": 4_000, "stream": true, "messages": []}), &[]);
    let (_, bodies) = released(table.decide(|state| Admission::Granted { states: vec![state] }));
    assert_eq!(sent(bodies)["max_tokens"], 4_000);
}

#[test]
fn a_cap_on_prompts_leaves_answers_alone() {
    let mut table = Table::set_capped(1_000);
    let limit = Limit::clone(&table.config.routes[1].limits[0]);
    let quantity = crate::limit::Quantity::Tokens(crate::limit::Cost::Input);
    let mut config = compiled();
    config.routes[1].limits = vec![Arc::new(Limit { quantity, ..limit })];
    table.config = Arc::new(config);
    table.again();
    table.post(&chat("metered"), &[]);
    assert_eq!(released(table.decide(|state| Admission::Granted { states: vec![state] })).1, [Body::Unchanged]);
}

#[test]
fn a_body_with_bounds_without_end_is_refused_before_anything_is_reserved_for_it() {
    let mut table = Table::set_capped(100_000);
    let body = format!(r#"{{"model":"metered","messages":[]{}}}"#, r#","max_tokens":9"#.repeat(17));
    let (status, _, error) = refused(table.post_chunks(&[&body], &[]));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("max_tokens")));
}

#[test]
fn a_caller_with_less_left_than_a_usual_answer_gets_a_shorter_one() {
    let mut table = Table::set_capped(300);
    let action = table.post(&chat("metered"), &[]);
    let Action::Reserve(first) = action else { panic!("{action:?}") };
    assert_eq!(first.holds[0].estimate, PROMPT + 4_096);
    let action = table.decide(|state| Admission::Refused { by: 0, states: vec![state] });
    let Action::Reserve(second) = &action else { panic!("{action:?}") };
    assert_eq!((&second.id, second.holds[0].estimate), (&first.id, 300));
    table.note(&action);
    let (_, bodies) = released(table.decide(|state| Admission::Granted { states: vec![state] }));
    assert_eq!(sent(bodies)["max_tokens"], json!(300 - PROMPT));
    // Of an answer that says nothing, what was held is charged, not what would have been.
    table.answer_head("200", "application/json", "10.0.0.1:80");
    table.answer_body("{}", End::Last);
    assert_eq!(table.charged(), [2 + 300 - PROMPT]);
}

#[test]
fn the_ledger_is_not_asked_again_for_next_to_nothing() {
    let mut table = Table::set_capped(PROMPT + 15);
    table.post(&chat("metered"), &[]);
    let action = table.decide(|state| Admission::Refused { by: 0, states: vec![state] });
    assert_eq!(refused(action).0, 429);
}

#[test]
fn under_a_cap_an_answer_that_nobody_can_cut_is_refused_and_charged() {
    let stream = json!({"model": "metered", "stream": true, "messages": []});
    let heads: [(&[(&str, &str)], Answers); 4] = [
        (&[("content-type", "text/event-stream"), ("content-encoding", "lzma")], Answers::Shown),
        (&[("content-type", "application/x-ndjson")], Answers::Shown),
        (&[("content-type", "application/json")], Answers::Shown),
        (&[("content-type", "text/event-stream")], Answers::Hidden),
    ];
    for (head, answers) in heads {
        for capped in [true, false] {
            let mut table = if capped { Table::set_capped(1_000) } else { Table::set(Profile::Streamed) };
            table.exchange.answers = answers;
            table.post(&stream, &[]);
            released(table.admit());
            let head = headers_of(&[&[(":status", "200")], head].concat());
            let action = table.exchange.response_headers(&head, End::More, Some("10.0.0.1:80"), table.now).unwrap();
            if capped {
                let (status, reason, answer) = refused(action);
                assert_eq!((status, reason), (502, "answer_unreadable"), "{head:?}: {answer}");
            } else {
                assert!(matches!(action, Action::Answer(Reply::ResponseHeaders(_))), "{head:?}: {action:?}");
                table.exchange.gone(table.now);
            }
            assert!(table.charged()[0] > 0, "{head:?}");
        }
    }
    // An error of the upstream's passes as it is, and so does an answer of which all that the client allows is held.
    for (status, bound) in [("400", Value::Null), ("200", json!(10))] {
        let mut table = Table::set_capped(1_000);
        let mut body = stream.clone();
        body["max_tokens"] = bound;
        table.post(&body, &[]);
        released(table.admit());
        table.answer_head(status, "application/json", "10.0.0.1:80");
    }
}

#[test]
fn a_stream_that_nobody_is_shown_is_charged_by_its_estimate() {
    let body = json!({"model": "metered", "stream": true, "max_tokens": 100, "messages": []});
    let mut charges = Vec::new();
    for answers in [Answers::Shown, Answers::Hidden] {
        let mut table = Table::set(Profile::Streamed);
        table.exchange.answers = answers;
        table.post(&body, &[]);
        released(table.admit());
        table.exchange.gone(table.now);
        charges.push(table.charged()[0]);
    }
    assert_eq!(charges[1], charges[0] + 100);
}

#[test]
fn what_is_held_grows_with_the_answer_beside_it() {
    let mut table = streaming(100_000);
    for count in [384, 1] {
        let chunk = tokens(count);
        assert_eq!(passed(feed(&mut table, &chunk, End::More), &chunk), chunk);
    }
    let growth = growth(&mut table);
    assert_eq!(growth.to.holds[0].estimate, PROMPT + 768);
    let chunk = tokens(100);
    assert_eq!(passed(feed(&mut table, &chunk, End::More), &chunk), chunk);
    table.exchange.renew();
    assert!(table.exchange.poll_growth().is_none(), "one is under way");
    assert!(matches!(granted(&mut table, &growth), Action::Wait));
    table.exchange.renew();
    let renewal = self::growth(&mut table);
    assert_eq!(renewal.to.holds[0].estimate, PROMPT + 768);
    granted(&mut table, &renewal);
    passed(feed(&mut table, USAGE, End::Last), USAGE);
    let settlement = table.exchange.poll_settlement().unwrap();
    assert_eq!((settlement.charges[0].actual, settlement.charges[0].hold.estimate), (409, PROMPT + 768));
    assert!(settlement.doubt.is_none());
}

#[test]
fn an_answer_that_used_up_what_is_held_waits_for_the_ledger() {
    let mut table = streaming(100_000);
    let chunk = tokens(600);
    assert!(matches!(feed(&mut table, &chunk, End::More), Action::Wait));
    assert!(table.exchange.is_withholding());
    assert!(table.exchange.response_body(&Bytes::new(), End::More, table.now).is_err(), "the driver waits");
    let growth = growth(&mut table);
    assert_eq!(passed(granted(&mut table, &growth), ""), chunk);
    assert!(!table.exchange.is_withholding());
    // Of 768, 600 have passed: it is not time yet.
    assert!(table.exchange.poll_growth().is_none());
}

#[test]
fn where_there_is_no_more_the_rest_is_delivered_and_the_stream_ends_with_the_limits_error() {
    // Room for 550 tokens of output, however the stream is cut into chunks.
    let text = format!("{OPENING}{}{USAGE}data: [DONE]\n\n", tokens(600));
    for size in [text.len(), 10_007, 613] {
        let mut table = streaming(PROMPT + 550);
        let mut seen = String::new();
        let mut chunks = text.as_bytes().chunks(size);
        let refusals = loop {
            let chunk = std::str::from_utf8(chunks.next().unwrap()).unwrap();
            let end = if size == text.len() { End::Last } else { End::More };
            let mut action = feed(&mut table, chunk, end);
            let mut refusals = 0;
            while let Some(growth) = table.exchange.poll_growth() {
                let fits = growth.to.holds[0].estimate <= PROMPT + 550;
                refusals += u32::from(!fits);
                let next = if fits { granted(&mut table, &growth) } else { denied(&mut table, &growth, 0) };
                if let Action::Answer(_) = next {
                    action = next;
                }
            }
            seen += &passed(action, chunk);
            if seen.contains("error") {
                break refusals;
            }
        };
        assert!((1..=2).contains(&refusals), "{refusals}");
        let error = cut_after(&seen, &format!("{OPENING}{}", tokens(550)));
        assert_eq!(error["error"]["code"], "rate_limit_exceeded");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("Limit {}. The answer ends here", PROMPT + 550)), "{message}");
        // What was delivered, and the prompt as it was estimated; the usage that nobody saw does not count.
        assert_eq!(table.charged(), [2 + 550]);
        if size != text.len() {
            // Nothing of it gets through any more. Once the client has the error, the proxy is told to reset both sides.
            assert_eq!(passed(feed(&mut table, "data: more\n\n", End::More), ""), "");
            let reset_at = table.exchange.poll_timeout().unwrap();
            assert!(matches!(table.exchange.handle_timeout(reset_at - Duration::from_millis(1)), Action::Wait));
            assert!(!table.exchange.is_over() && table.exchange.is_released());
            let action = table.exchange.handle_timeout(reset_at);
            assert!(matches!(&action, Action::Respond(response) if response.status == 429), "{action:?}");
        }
        assert!(table.exchange.is_over());
        let summary = table.exchange.take_summary().unwrap();
        assert_eq!(summary.outcome, Outcome::Cut);
        assert_eq!(summary.content_events, Some(550));
        table.exchange.gone(table.now);
        assert!(table.exchange.poll_settlement().is_none());
    }
}

#[test]
fn a_stream_that_ends_by_itself_after_a_cut_just_ends() {
    let mut table = streaming(PROMPT + 512);
    feed(&mut table, &tokens(513), End::More);
    let growth = growth(&mut table);
    cut_after(&passed(denied(&mut table, &growth, 0), ""), &tokens(512));
    assert_eq!(passed(feed(&mut table, "data: [DONE]\n\n", End::Last), ""), "");
    assert!(table.exchange.is_over());
}

#[test]
fn a_growth_that_is_answered_after_the_end_changes_nothing() {
    let mut table = streaming(100_000);
    feed(&mut table, &tokens(400), End::More);
    let growth = growth(&mut table);
    feed(&mut table, USAGE, End::Last);
    let settlement = table.exchange.poll_settlement().unwrap();
    assert_eq!(settlement.doubt.map(|doubt| doubt.holds[0].estimate), Some(PROMPT + 768));
    for answer in [Ok(Admission::Granted { states: vec![state(0)] }), Err(StoreError::Timeout(Duration::ZERO))] {
        assert!(matches!(table.exchange.grown(&growth, &answer, table.now), Action::Wait));
    }
    assert!(table.exchange.is_over() && table.exchange.poll_growth().is_none());
}

#[test]
fn a_client_that_leaves_while_a_growth_is_under_way_leaves_its_settlement_in_doubt() {
    for chunk in [tokens(400), tokens(600)] {
        let mut table = streaming(100_000);
        feed(&mut table, &chunk, End::More);
        growth(&mut table);
        table.exchange.gone(table.now);
        let settlement = table.exchange.poll_settlement().unwrap();
        // What is withheld was not delivered.
        assert_eq!(settlement.charges[0].actual, 2 + if chunk == tokens(400) { 400 } else { 512 });
        assert!(settlement.doubt.is_some());
    }
}

#[test]
fn while_the_ledger_is_silent_an_answer_goes_on_where_the_limit_says_so() {
    let mut table = streaming(100_000);
    let chunk = tokens(600);
    feed(&mut table, &chunk, End::More);
    let growth = growth(&mut table);
    let answer = Err(StoreError::Unreachable("it is gone".to_owned()));
    assert_eq!(passed(table.exchange.grown(&growth, &answer, table.now), ""), chunk);
    assert_eq!(self::growth(&mut table).to.holds[0].estimate, PROMPT + 600 + 256);
}

#[test]
fn an_upstreams_error_and_an_answer_in_one_piece_are_not_bounded_in_passing() {
    let mut table = Table::set_capped(100_000);
    table.post(&streamed(), &[]);
    released(table.decide(|state| Admission::Granted { states: vec![state] }));
    table.answer_head("500", "text/event-stream", "10.0.0.1:80");
    let chunk = tokens(600);
    assert_eq!(passed(feed(&mut table, &chunk, End::Last), &chunk), chunk);
    assert_eq!(table.charged(), [0]);
}

#[test]
fn answers_teach_how_much_to_hold_for_the_next_ones() {
    let mut table = Table::set(Profile::Streamed);
    let text = json!({"model": "metered", "messages": [{"role": "user", "content": "x".repeat(4_000)}]});
    let held = |table: &mut Table| {
        table.again();
        let action = table.post(&text, &[]);
        released(table.admit());
        let Action::Reserve(request) = action else { panic!("{action:?}") };
        request.estimate
    };
    let first = held(&mut table);
    assert_eq!((first.input, first.output), (1_001, 512));
    for _ in 0..200 {
        held(&mut table);
        table.answer_head("200", "application/json", "10.0.0.1:80");
        table.answer_body(r#"{"usage":{"prompt_tokens":2002,"completion_tokens":40}}"#, End::Last);
    }
    // What breaks off, fails, or says nothing teaches nothing.
    held(&mut table);
    table.answer_head("200", "application/json", "10.0.0.1:80");
    table.answer_body(r#"{"usage":{"prompt_tokens":1,"completion_tokens":4000}}"#, End::More);
    table.exchange.gone(table.now);
    for (status, body) in [("500", r#"{"usage":{"prompt_tokens":1,"completion_tokens":4000}}"#), ("200", "{}")] {
        held(&mut table);
        table.answer_head(status, "application/json", "10.0.0.1:80");
        table.answer_body(body, End::Last);
    }
    let last = held(&mut table);
    assert!((1_990..=2_002).contains(&last.input), "{last:?}");
    assert_eq!(last.output, 40);
}

#[test]
fn requests_whose_server_runs_tools_are_held_by_what_such_requests_have_used() {
    let mut table = Table::set(Profile::Streamed);
    let search = json!({"model": "metered", "messages": [], "web_search_options": {}, "max_tokens": 300});
    let held = |table: &mut Table, body: &Value| {
        table.again();
        let action = table.post(body, &[]);
        released(table.admit());
        let Action::Reserve(request) = action else { panic!("{action:?}") };
        (request.estimate.input, request.estimate.output)
    };
    assert_eq!(held(&mut table, &search), (0, 300));
    table.answer_head("200", "application/json", "10.0.0.1:80");
    table.answer_body(r#"{"usage":{"prompt_tokens":400000,"completion_tokens":250}}"#, End::Last);
    assert_eq!(held(&mut table, &search), (400_000, 300));
    assert_eq!(held(&mut table, &json!({"model": "metered", "messages": []})).0, 0);
}

#[test]
fn an_answer_that_was_kept_short_is_not_taken_for_a_short_one() {
    let mut table = Table::set_capped(30_000);
    let mut held = Vec::new();
    for _ in 0..20 {
        table.again();
        let action = table.post(&chat("metered"), &[]);
        released(table.decide(|state| Admission::Granted { states: vec![state] }));
        let Action::Reserve(request) = action else { panic!("{action:?}") };
        let most = request.estimate.output_at_most;
        held.push(most);
        table.answer_head("200", "application/json", "10.0.0.1:80");
        let usage = json!({"usage": {"prompt_tokens": 9, "completion_tokens": most.min(9_000)}});
        table.answer_body(&usage.to_string(), End::Last);
    }
    assert_eq!((held[0], held[8], held[9], held[19]), (4_096, 32_768, 32_768, 18_000));
}

#[test]
fn limits_in_shadow_and_refusals_are_told_of() {
    let mut table = Table::set_capped(300);
    let limit = |table: &Table, id: &str, change: fn(Limit) -> Limit| {
        let limit = Limit::clone(&table.config.routes[1].limits[0]);
        Arc::new(change(Limit { id: id.into(), cap: Cap::Open, ..limit }))
    };
    let shadow = limit(&table, "shadow", |limit| Limit { enforcement: crate::limit::Enforcement::Shadow, ..limit });
    let soft = limit(&table, "soft", |limit| Limit { mode: Mode::Soft, ..limit });
    let mut config = compiled();
    config.routes[1].limits = vec![shadow, soft];
    table.config = Arc::new(config);
    table.again();
    table.post(&chat("metered"), &[]);
    let full = |state: CounterState| CounterState { settled: 299, ..state };
    released(table.decide(|state| Admission::Granted { states: vec![full(state), state] }));
    table.answer_head("200", "application/json", "10.0.0.1:80");
    table.answer_body(r#"{"usage":{"prompt_tokens":9,"completion_tokens":600}}"#, End::Last);
    assert_eq!(table.exchange.take_summary().unwrap().limits, [LimitEvent::WouldRefuse("shadow".into())]);
    table.again();
    table.post(&chat("metered"), &[]);
    let action = table.decide(|state| Admission::Refused {
        by: 1,
        states: vec![full(state), CounterState { settled: 300, ..state }],
    });
    assert_eq!(refused(action).0, 429);
    assert_eq!(
        table.exchange.take_summary().unwrap().limits,
        [LimitEvent::WouldRefuse("shadow".into()), LimitEvent::Refused("soft".into())]
    );
}
