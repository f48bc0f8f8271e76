//! What is admitted, what is refused, and what that leaves behind.

use super::*;

on_all_stores! {
    ten_sequential_calls_pass_a_soft_limit_of_300_and_the_eleventh_does_not
    a_refused_request_changes_no_state
    a_settlement_tells_how_the_counters_stand_after_it_and_so_does_a_second_one
    a_strict_limit_is_filled_to_the_last_token
    a_limit_that_only_checks_holds_nothing_and_charges_afterwards
    a_changed_amount_acts_on_the_next_request
    requests_are_counted_one_by_one
    slots_are_free_again_when_their_requests_end
    callers_do_not_share_a_counter
    absurd_amounts_stop_at_what_is_counted_exactly
    money_is_counted_to_the_millionth
    a_limit_in_shadow_holds_and_charges_and_refuses_nobody
    a_caller_of_low_priority_is_refused_at_its_share
    remaining_never_rises_and_stays_within_the_limit_in_a_sequential_run
    nothing_is_overdrawn_by_128_strict_requests_at_once
    soft_requests_at_once_overdraw_by_the_last_hold_at_most
}

/// I16.
async fn ten_sequential_calls_pass_a_soft_limit_of_300_and_the_eleventh_does_not(bed: Bed) {
    let limit = tokens("key", 300, Mode::Soft);
    let remaining = |decision: &Decision| {
        let headers = decision.headers();
        headers.into_iter().find(|(name, _)| *name == "x-ratelimit-remaining-tokens").unwrap().1
    };
    let mut shown = Vec::new();
    for used in [40, 29, 31, 30, 30, 31, 29, 30, 30, 30] {
        let request = request(vec![hold(&limit, "caller", used)]);
        let admission = bed.reserve(&request).await;
        assert!(matches!(admission, Admission::Granted { .. }));
        shown.push(remaining(&decision(&request, admission)));
        bed.settle(&settlement(&request, &[used])).await;
    }
    assert_eq!(shown, ["300", "260", "231", "200", "170", "140", "109", "80", "50", "20"]);

    let eleventh = request(vec![hold(&limit, "caller", 40)]);
    let decision = decision(&eleventh, bed.reserve(&eleventh).await);
    assert_eq!(remaining(&decision), "0");
    let Decision::Refused(refused) = decision else { panic!("{decision:?}") };
    assert_eq!(refused.by, 0);
    assert!(refused.error().message.contains("Limit 300, Used 310, Requested 40."));
}

async fn a_settlement_tells_how_the_counters_stand_after_it_and_so_does_a_second_one(bed: Bed) {
    let (first, second) = (tokens("first", 1_000, Mode::Soft), tokens("second", 100, Mode::Soft));
    bed.granted(vec![hold(&first, "caller", 7)]).await;
    let ending = bed.granted(vec![hold(&second, "caller", 90), hold(&first, "caller", 90)]).await;
    for _ in 0..2 {
        let states = bed.settle(&settlement(&ending, &[150, 160])).await;
        let stand: Vec<_> = states.iter().map(|state| (state.used(), state.held)).collect();
        assert_eq!(stand, [(150, 0), (160, 7)]);
    }
}

/// I4.
async fn a_refused_request_changes_no_state(bed: Bed) {
    let wide = tokens("wide", 1_000, Mode::Soft);
    let narrow = tokens("narrow", 100, Mode::Strict);
    let first = bed.granted(vec![hold(&wide, "caller", 90), hold(&narrow, "caller", 90)]).await;
    let (by, states) = bed.refused(vec![hold(&wide, "caller", 20), hold(&narrow, "caller", 20)]).await;
    assert_eq!(by, 1);
    assert_eq!(states.iter().map(|state| state.held).collect::<Vec<_>>(), [90, 90]);
    for hold in &first.holds {
        assert_eq!(bed.peek(hold).await, (0, 90));
    }
    bed.settle(&settlement(&first, &[50, 50])).await;
    for hold in &first.holds {
        assert_eq!(bed.peek(hold).await, (50, 0));
    }
}

async fn a_strict_limit_is_filled_to_the_last_token(bed: Bed) {
    let limit = tokens("strict", 100, Mode::Strict);
    let first = bed.granted(vec![hold(&limit, "caller", 60)]).await;
    bed.refused(vec![hold(&limit, "caller", 41)]).await;
    bed.granted(vec![hold(&limit, "caller", 40)]).await;
    bed.refused(vec![hold(&limit, "caller", 1)]).await;
    bed.settle(&settlement(&first, &[50])).await;
    assert_eq!(bed.peek(&first.holds[0]).await, (50, 40));
    bed.granted(vec![hold(&limit, "caller", 10)]).await;
    bed.refused(vec![hold(&limit, "caller", 1)]).await;
}

async fn a_limit_that_only_checks_holds_nothing_and_charges_afterwards(bed: Bed) {
    let limit = tokens("check", 100, Mode::Check);
    let mut in_flight = Vec::new();
    for _ in 0..5 {
        in_flight.push(bed.granted(vec![hold(&limit, "caller", 90)]).await);
    }
    assert_eq!(bed.peek(&in_flight[0].holds[0]).await, (0, 0));
    for request in &in_flight {
        bed.settle(&settlement(request, &[30])).await;
        bed.settle(&settlement(request, &[30])).await;
    }
    assert_eq!(bed.peek(&in_flight[0].holds[0]).await, (150, 0));
    bed.refused(vec![hold(&limit, "caller", 1)]).await;
}

/// I11.
async fn a_changed_amount_acts_on_the_next_request(bed: Bed) {
    let narrow = tokens("changing", 30, Mode::Soft);
    let request = bed.granted(vec![hold(&narrow, "caller", 30)]).await;
    bed.settle(&settlement(&request, &[30])).await;
    bed.refused(vec![hold(&narrow, "caller", 1)]).await;
    let wide = tokens("changing", 31, Mode::Soft);
    let request = bed.granted(vec![hold(&wide, "caller", 1)]).await;
    assert_eq!(bed.peek(&request.holds[0]).await, (30, 1));
    bed.refused(vec![hold(&narrow, "caller", 1)]).await;
}

async fn requests_are_counted_one_by_one(bed: Bed) {
    let limit = Arc::new(Limit { quantity: Quantity::Requests, ..Limit::clone(&tokens("requests", 3, Mode::Soft)) });
    let ask = || ReserveRequest::new([&limit], &nobody(), Estimate::default());
    for _ in 0..3 {
        let request = ask();
        assert!(matches!(bed.reserve(&request).await, Admission::Granted { .. }));
        bed.settle(&request.settlement(&attache_proto::Usage::default())).await;
    }
    assert!(matches!(bed.reserve(&ask()).await, Admission::Refused { by: 0, .. }));
    assert_eq!(bed.peek(&ask().holds[0]).await, (3, 0));
}

async fn slots_are_free_again_when_their_requests_end(bed: Bed) {
    let limit = Arc::new(Limit { quantity: Quantity::Concurrency, ..Limit::clone(&tokens("slots", 2, Mode::Check)) });
    let ask = || ReserveRequest::new([&limit], &nobody(), Estimate::default());
    for _ in 0..3 {
        let in_flight = [ask(), ask()];
        for request in &in_flight {
            assert!(matches!(bed.reserve(request).await, Admission::Granted { .. }));
        }
        assert!(matches!(bed.reserve(&ask()).await, Admission::Refused { by: 0, .. }));
        for request in &in_flight {
            bed.settle(&request.settlement(&attache_proto::Usage::default())).await;
        }
        assert_eq!(bed.peek(&ask().holds[0]).await, (0, 0));
    }
}

/// I14.
async fn callers_do_not_share_a_counter(bed: Bed) {
    let limit = tokens("per caller", 300, Mode::Soft);
    let long = "x".repeat(8 * 1024);
    let callers = ["a", "a:b", "", " ", "é", "e\u{301}", "{a}", "a\n", &long];
    for (index, caller) in callers.iter().enumerate() {
        let request = bed.granted(vec![hold(&limit, caller, 40)]).await;
        bed.settle(&settlement(&request, &[index as u64 + 1])).await;
    }
    for (index, caller) in callers.iter().enumerate() {
        assert_eq!(bed.peek(&hold(&limit, caller, 0)).await, (index as u64 + 1, 0));
    }
}

async fn absurd_amounts_stop_at_what_is_counted_exactly(bed: Bed) {
    let limit = tokens("soft", 300, Mode::Soft);
    let request = bed.granted(vec![hold(&limit, "caller", u64::MAX)]).await;
    assert_eq!(bed.peek(&request.holds[0]).await, (0, (1 << 53) - 1));
    for _ in 0..2 {
        let free = tokens("soft", u64::MAX, Mode::Check);
        let more = bed.granted(vec![hold(&free, "caller", 1)]).await;
        bed.settle(&settlement(&more, &[u64::MAX])).await;
    }
    bed.settle(&settlement(&request, &[1])).await;
    assert_eq!(bed.peek(&request.holds[0]).await, ((1 << 53) - 1, 0));
}

async fn money_is_counted_to_the_millionth(bed: Bed) {
    const BILLION: u64 = 1_000_000_000;
    let prices = Prices { by_model: [].into(), other: Price { input: 3, output: 15, ..Price::default() } };
    let quantity = Quantity::Money(Arc::new(prices));
    let limit = Arc::new(Limit { quantity, ..Limit::clone(&tokens("money", 5_000_000 * BILLION, Mode::Strict)) });
    let estimate = Estimate { input: 1_000_000 * BILLION, output: 100_000 * BILLION, ..Estimate::default() };
    let request = ReserveRequest::new([&limit], &nobody(), estimate);
    assert!(matches!(bed.reserve(&request).await, Admission::Granted { .. }));
    // 3 and 1.5 millions of billions of tokens at a millionth each.
    assert_eq!(bed.peek(&request.holds[0]).await, (0, 4_500_000 * BILLION / 1_000_000));
    let usage = attache_proto::Usage { input: 1_000_000 * BILLION + 1, ..attache_proto::Usage::default() };
    bed.settle(&request.settlement(&usage)).await;
    assert_eq!(bed.peek(&request.holds[0]).await, (3 * BILLION + 1, 0));
}

async fn a_limit_in_shadow_holds_and_charges_and_refuses_nobody(bed: Bed) {
    let shadow = |mode| Limit { enforcement: Enforcement::Shadow, ..Limit::clone(&tokens("shadow", 100, mode)) };
    let limit = Arc::new(shadow(Mode::Strict));
    let real = tokens("real", 150, Mode::Strict);
    let first = bed.granted(vec![hold(&limit, "caller", 90), hold(&real, "caller", 90)]).await;
    let second = bed.granted(vec![hold(&limit, "caller", 50), hold(&real, "caller", 50)]).await;
    assert_eq!(bed.peek(&first.holds[0]).await, (0, 140));
    bed.settle(&settlement(&first, &[90, 90])).await;
    assert_eq!(bed.peek(&first.holds[0]).await, (90, 50));
    let (by, states) = bed.refused(vec![hold(&limit, "caller", 50), hold(&real, "caller", 50)]).await;
    assert_eq!((by, states[0].settled, states[0].held), (1, 90, 50));
    assert!(!hold(&limit, "caller", 50).fits(&states[0]));
    bed.settle(&settlement(&second, &[50, 50])).await;
    assert_eq!(bed.peek(&first.holds[0]).await, (140, 0));
}

async fn a_caller_of_low_priority_is_refused_at_its_share(bed: Bed) {
    let limit = Limit { low_priority_percent: 80, ..Limit::clone(&tokens("shared", 100, Mode::Strict)) };
    let limit = Arc::new(limit);
    let low = |estimate| Hold { ceiling: limit.ceiling(Priority::Low), ..hold(&limit, "caller", estimate) };
    bed.granted(vec![low(80)]).await;
    bed.refused(vec![low(1)]).await;
    bed.granted(vec![hold(&limit, "caller", 20)]).await;
    bed.refused(vec![hold(&limit, "caller", 1)]).await;
}

/// I9.
async fn remaining_never_rises_and_stays_within_the_limit_in_a_sequential_run(bed: Bed) {
    let limits = [tokens("soft", 300, Mode::Soft), tokens("strict", 400, Mode::Strict)];
    let mut last = u64::MAX;
    for call in 0..20 {
        let request = request(limits.iter().map(|limit| hold(limit, "caller", 40)).collect());
        let admission = bed.reserve(&request).await;
        let granted = matches!(admission, Admission::Granted { .. });
        let headers = decision(&request, admission).headers();
        let (_, remaining) = headers.iter().find(|(name, _)| *name == "x-ratelimit-remaining-tokens").unwrap();
        let remaining: u64 = remaining.parse().unwrap();
        assert!(remaining <= last.min(300), "{remaining} after {last}");
        last = remaining;
        if granted {
            bed.settle(&settlement(&request, &[20 + 2 * call, 20 + 2 * call])).await;
        }
    }
    assert_eq!(last, 0);
}

/// I1, I3.
async fn nothing_is_overdrawn_by_128_strict_requests_at_once(bed: Bed) {
    let limit = tokens("strict", 300, Mode::Strict);
    let granted = at_once(&bed, &limit, 40).await;
    assert_eq!(granted, 7);
    assert_eq!(bed.peek(&hold(&limit, "caller", 0)).await, (7 * 40, 0));
}

/// I2, I3.
async fn soft_requests_at_once_overdraw_by_the_last_hold_at_most(bed: Bed) {
    let limit = tokens("soft", 300, Mode::Soft);
    let granted = at_once(&bed, &limit, 40).await;
    assert_eq!(granted, 8);
    assert_eq!(bed.peek(&hold(&limit, "caller", 0)).await, (8 * 40, 0));
}

/// Sends 128 requests that use what they hold, ends those that were granted when all have an answer, and counts them.
async fn at_once(bed: &Bed, limit: &Arc<Limit>, used: u64) -> usize {
    let mut tasks = JoinSet::new();
    for _ in 0..128 {
        let request = request(vec![hold(limit, "caller", used)]);
        match bed {
            Bed::Memory { store, .. } => {
                let store = store.clone();
                tasks.spawn(async move { (store.reserve(&request).await.unwrap(), request) });
            }
            Bed::Redis { store, .. } => {
                let store = store.clone();
                tasks.spawn(async move { (store.reserve(&request).await.unwrap(), request) });
            }
        }
    }
    let answers = tasks.join_all().await;
    let mut granted = 0;
    for (_, request) in answers.iter().filter(|(admission, _)| matches!(admission, Admission::Granted { .. })) {
        bed.settle(&settlement(request, &[used])).await;
        granted += 1;
    }
    granted
}
