//! How reservations end: settled once, renewed, or given back when their sidecar is gone.

use super::*;

on_all_stores! {
    settling_twice_charges_once
    a_reservation_that_comes_after_its_settlement_holds_nothing
    settling_after_the_lease_has_ended_only_charges
    what_a_dead_sidecar_held_is_free_for_the_next_request_after_the_lease
    what_100_streams_of_a_dead_sidecar_held_is_free_for_the_next_request
    a_limit_across_tenants_is_freed_by_whoever_comes_next
    a_renewed_reservation_holds_beyond_its_lease
    renewing_after_the_lease_has_ended_holds_again
    renewing_after_settling_changes_nothing
    what_keeps_a_counter_alive_keeps_what_is_known_of_its_holds
    a_look_changes_nothing
}

/// I7, duplicates.
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

/// I7, reordering.
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

/// I8.
async fn what_100_streams_of_a_dead_sidecar_held_is_free_for_the_next_request(bed: Bed) {
    let limits = [tokens("strict", 1_000, Mode::Strict), tokens("another", 1_000, Mode::Strict)];
    let ask = |estimate| limits.iter().map(|limit| hold(limit, "caller", estimate)).collect();
    for _ in 0..100 {
        bed.granted(ask(10)).await;
    }
    bed.refused(ask(1)).await;
    bed.advance(LEASE).await;
    let next = bed.granted(ask(1_000)).await;
    for hold in &next.holds {
        assert_eq!(bed.peek(hold).await, (0, 1_000));
    }
    bed.settle(&settlement(&next, &[0, 0])).await;
    assert_eq!(bed.peek(&next.holds[0]).await, (0, 0));
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

/// In Redis, a counter and the leases that hold of it are two keys.
async fn what_keeps_a_counter_alive_keeps_what_is_known_of_its_holds(bed: Bed) {
    let limit = tokens("limit", 300, Mode::Strict);
    let other = tokens("other", 300, Mode::Strict);
    for caller in ["settled", "reset"] {
        let late = bed.granted(vec![hold(&limit, caller, 10)]).await;
        let dead = bed.granted(vec![hold(&limit, caller, 40)]).await;
        bed.advance(ERA).await;
        match caller {
            "settled" => drop(bed.settle(&settlement(&late, &[5])).await),
            _ => bed.reset(&dead.holds).await,
        }
        bed.advance(ERA).await;
        bed.advance(ERA).await;
        // Somebody else of the same group comes first.
        bed.renew(&request(vec![hold(&other, caller, 7)])).await;
        assert_eq!(bed.peek(&dead.holds[0]).await, (0, 0));
    }
}

async fn a_look_changes_nothing(bed: Bed) {
    let limit = tokens("strict", 100, Mode::Strict);
    let probe = hold(&limit, "caller", 100);
    assert_eq!(bed.peek(&probe).await, (0, 0));
    let dead = bed.granted(vec![hold(&limit, "caller", 60)]).await;
    for _ in 0..3 {
        assert_eq!(bed.peek(&probe).await, (0, 60));
    }
    bed.advance(LEASE).await;
    assert_eq!(bed.peek(&probe).await, (0, 0), "nobody holds it any more");
    bed.renew(&dead).await;
    assert_eq!(bed.peek(&probe).await, (0, 60));
}
