//! What a store must do, proved on each of them.

use tokio::task::JoinSet;

use super::bed::{Bed, ERA};
use super::*;

macro_rules! on_both_stores {
    ($($sentence:ident)*) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $sentence() {
                super::$sentence(super::Bed::memory()).await;
            })*
        }
        mod in_redis {
            $(#[tokio::test]
            async fn $sentence() {
                super::$sentence(super::Bed::redis().await).await;
            })*
        }
    };
}

on_both_stores! {
    ten_sequential_calls_pass_a_soft_limit_of_300_and_the_eleventh_does_not
    a_refused_request_changes_no_state
    a_strict_limit_is_filled_to_the_last_token
    a_limit_that_only_checks_holds_nothing_and_charges_afterwards
    settling_twice_charges_once
    a_reservation_that_comes_after_its_settlement_holds_nothing
    settling_after_the_lease_has_ended_only_charges
    what_a_dead_sidecar_held_is_free_for_the_next_request_after_the_lease
    a_limit_across_tenants_is_freed_by_whoever_comes_next
    a_renewed_reservation_holds_beyond_its_lease
    renewing_after_the_lease_has_ended_holds_again
    renewing_after_settling_changes_nothing
    use_counts_in_the_window_of_its_settlement_and_holds_in_every_window
    a_clock_set_back_refills_nothing
    a_counter_far_ahead_of_the_clock_is_dropped_but_for_its_holds
    a_changed_amount_acts_on_the_next_request
    requests_are_counted_one_by_one
    slots_are_free_again_when_their_requests_end
    callers_do_not_share_a_counter
    absurd_amounts_stop_at_what_is_counted_exactly
    nothing_is_overdrawn_by_128_strict_requests_at_once
    soft_requests_at_once_overdraw_by_the_last_hold_at_most
}

fn tokens(id: &str, amount: u64, mode: Mode) -> Arc<Limit> {
    Arc::new(Limit { window: Window::Fixed(ERA), ..limit(id, amount, mode) })
}

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

async fn settling_twice_charges_once(bed: Bed) {
    let limit = tokens("soft", 300, Mode::Soft);
    let first = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    let second = bed.granted(vec![hold(&limit, "caller", 50)]).await;
    for _ in 0..3 {
        bed.settle(&settlement(&first, &[30])).await;
    }
    assert_eq!(bed.peek(&first.holds[0]).await, (30, 50));
    bed.settle(&settlement(&second, &[20])).await;
    bed.settle(&settlement(&first, &[30])).await;
    assert_eq!(bed.peek(&first.holds[0]).await, (50, 0));
}

async fn a_reservation_that_comes_after_its_settlement_holds_nothing(bed: Bed) {
    let limit = tokens("soft", 300, Mode::Soft);
    let request = request(vec![hold(&limit, "caller", 40)]);
    bed.settle(&settlement(&request, &[0])).await;
    bed.reserve(&request).await;
    assert_eq!(bed.peek(&request.holds[0]).await, (0, 0));
}

async fn settling_after_the_lease_has_ended_only_charges(bed: Bed) {
    let limit = tokens("soft", 300, Mode::Soft);
    let slow = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    bed.advance(LEASE).await;
    let other = bed.granted(vec![hold(&limit, "caller", 50)]).await;
    bed.settle(&settlement(&slow, &[30])).await;
    assert_eq!(bed.peek(&other.holds[0]).await, (30, 50));
}

async fn what_a_dead_sidecar_held_is_free_for_the_next_request_after_the_lease(bed: Bed) {
    let limit = tokens("strict", 100, Mode::Strict);
    bed.granted(vec![hold(&limit, "caller", 100)]).await;
    bed.advance(LEASE - Duration::from_secs(5)).await;
    bed.refused(vec![hold(&limit, "caller", 100)]).await;
    bed.advance(Duration::from_secs(5)).await;
    let next = bed.granted(vec![hold(&limit, "caller", 100)]).await;
    assert_eq!(bed.peek(&next.holds[0]).await, (0, 100));
}

async fn a_limit_across_tenants_is_freed_by_whoever_comes_next(bed: Bed) {
    let per = |per: Vec<Dimension>| Arc::new(Limit { per, ..Limit::clone(&tokens("own", 100, Mode::Strict)) });
    let own = per(vec![Dimension::Tenant]);
    let shared = Arc::new(Limit { id: "shared".into(), ..Limit::clone(&per(vec![Dimension::Model])) });
    let of = |tenant| {
        let estimate = Estimate { input: 100, ..Estimate::default() };
        ReserveRequest::new([&own, &shared], &Subject { tenant: Some(tenant), ..nobody() }, estimate)
    };
    assert!(matches!(bed.reserve(&of("acme")).await, Admission::Granted { .. }));
    assert!(matches!(bed.reserve(&of("other")).await, Admission::Refused { by: 1, .. }));
    bed.advance(LEASE).await;
    assert!(matches!(bed.reserve(&of("other")).await, Admission::Granted { .. }));
    assert_eq!(bed.peek(&of("acme").holds[0]).await, (0, 0));
}

async fn a_renewed_reservation_holds_beyond_its_lease(bed: Bed) {
    let limit = tokens("strict", 100, Mode::Strict);
    let streaming = bed.granted(vec![hold(&limit, "caller", 60)]).await;
    for _ in 0..10 {
        bed.advance(RENEW_EVERY).await;
        bed.renew(&streaming).await;
        bed.refused(vec![hold(&limit, "caller", 41)]).await;
    }
    bed.settle(&settlement(&streaming, &[70])).await;
    assert_eq!(bed.peek(&streaming.holds[0]).await, (70, 0));
}

async fn renewing_after_the_lease_has_ended_holds_again(bed: Bed) {
    let limit = tokens("strict", 100, Mode::Strict);
    let paused = bed.granted(vec![hold(&limit, "caller", 60)]).await;
    bed.advance(LEASE).await;
    assert_eq!(bed.peek(&paused.holds[0]).await, (0, 0));
    bed.renew(&paused).await;
    assert_eq!(bed.peek(&paused.holds[0]).await, (0, 60));
    bed.settle(&settlement(&paused, &[70])).await;
    assert_eq!(bed.peek(&paused.holds[0]).await, (70, 0));
}

async fn renewing_after_settling_changes_nothing(bed: Bed) {
    let limit = tokens("soft", 300, Mode::Soft);
    let request = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    bed.settle(&settlement(&request, &[30])).await;
    bed.renew(&request).await;
    assert_eq!(bed.peek(&request.holds[0]).await, (30, 0));
}

async fn use_counts_in_the_window_of_its_settlement_and_holds_in_every_window(bed: Bed) {
    let limit = tokens("soft", 300, Mode::Soft);
    let before = bed.granted(vec![hold(&limit, "caller", 100)]).await;
    bed.settle(&settlement(&before, &[100])).await;
    let across = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    assert_eq!(bed.peek(&across.holds[0]).await, (100, 40));
    bed.advance(ERA).await;
    // The lease has ended long since, but the request goes on.
    bed.renew(&across).await;
    assert_eq!(bed.peek(&across.holds[0]).await, (0, 40));
    bed.settle(&settlement(&across, &[30])).await;
    assert_eq!(bed.peek(&across.holds[0]).await, (30, 0));
}

async fn a_clock_set_back_refills_nothing(bed: Bed) {
    let limit = tokens("soft", 300, Mode::Soft);
    let request = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    bed.settle(&settlement(&request, &[30])).await;
    for _ in 0..2 {
        bed.set_clock_back(ERA).await;
        assert_eq!(bed.peek(&request.holds[0]).await, (30, 0));
    }
}

async fn a_counter_far_ahead_of_the_clock_is_dropped_but_for_its_holds(bed: Bed) {
    let limit = tokens("soft", 300, Mode::Soft);
    let request = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    let other = bed.granted(vec![hold(&limit, "caller", 20)]).await;
    bed.settle(&settlement(&request, &[30])).await;
    bed.set_clock_back(3 * ERA).await;
    assert_eq!(bed.peek(&request.holds[0]).await, (0, 20));
    bed.settle(&settlement(&other, &[10])).await;
    assert_eq!(bed.peek(&request.holds[0]).await, (10, 0));
}

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

async fn nothing_is_overdrawn_by_128_strict_requests_at_once(bed: Bed) {
    let limit = tokens("strict", 300, Mode::Strict);
    let granted = at_once(&bed, &limit, 40).await;
    assert_eq!(granted, 7);
    assert_eq!(bed.peek(&hold(&limit, "caller", 0)).await, (7 * 40, 0));
}

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
