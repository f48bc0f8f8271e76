//! Reservations that hold more while their answer streams.

use super::*;

on_all_stores! {
    a_growth_holds_more_and_a_settlement_gives_all_of_it_back
    a_capped_growth_that_does_not_fit_holds_what_was_held_and_renews_it
    a_growth_of_a_limit_without_a_cap_is_never_refused
    a_growth_that_nobody_knows_the_end_of_is_given_back_as_it_was
    however_many_growths_are_lost_in_a_row_nothing_stays_held
    a_growth_after_the_lease_has_ended_is_held_if_it_fits
    a_growth_after_settling_is_granted_and_holds_nothing
    what_a_dead_sidecar_held_does_not_end_a_living_stream
}

async fn a_growth_holds_more_and_a_settlement_gives_all_of_it_back(bed: Bed) {
    let limit = capped(300);
    let other = bed.granted(vec![hold(&limit, "caller", 50)]).await;
    let stream = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    let growth = growth(&stream, None, 240);
    let Admission::Granted { states } = bed.grow(&growth).await else { panic!() };
    assert_eq!(states[0].held, 50, "without what it holds itself");
    assert_eq!(bed.peek(&stream.holds[0]).await, (0, 290));
    bed.refused(vec![hold(&limit, "caller", 11)]).await;
    bed.settle(&settlement(&growth.to, &[230])).await;
    assert_eq!(bed.peek(&stream.holds[0]).await, (230, 50));
    bed.settle(&settlement(&other, &[50])).await;
    assert_eq!(bed.peek(&stream.holds[0]).await, (280, 0));
}

async fn a_capped_growth_that_does_not_fit_holds_what_was_held_and_renews_it(bed: Bed) {
    let limit = capped(300);
    let other = bed.granted(vec![hold(&limit, "caller", 100)]).await;
    let stream = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    bed.advance(RENEW_EVERY).await;
    bed.renew(&other).await;
    let Admission::Refused { by: 0, states } = bed.grow(&growth(&stream, None, 201)).await else { panic!() };
    assert_eq!((states[0].settled, states[0].held), (0, 100));
    assert_eq!(bed.peek(&stream.holds[0]).await, (0, 140));
    bed.advance(LEASE - RENEW_EVERY).await;
    assert_eq!(bed.peek(&stream.holds[0]).await, (0, 140), "the lease began anew");
    grown(&bed, &growth(&stream, None, 200)).await;
    assert_eq!(bed.peek(&stream.holds[0]).await, (0, 300));
    // Asking for what it holds already is never refused.
    let shrunk = Arc::new(Limit { amount: 100, ..Limit::clone(&limit) });
    let lowered = ReserveRequest { holds: vec![hold(&shrunk, "caller", 200)], ..stream.clone() };
    bed.renew(&lowered).await;
    assert_eq!(bed.peek(&stream.holds[0]).await, (0, 300));
}

async fn a_growth_of_a_limit_without_a_cap_is_never_refused(bed: Bed) {
    for limit in [tokens("strict", 100, Mode::Strict), tokens("soft", 100, Mode::Soft)] {
        let stream = bed.granted(vec![hold(&limit, "caller", 40)]).await;
        grown(&bed, &growth(&stream, None, 1_000)).await;
        assert_eq!(bed.peek(&stream.holds[0]).await, (0, 1_000));
    }
    let shadow =
        Arc::new(Limit { enforcement: Enforcement::Shadow, id: "shadow".into(), ..Limit::clone(&capped(100)) });
    let stream = bed.granted(vec![hold(&shadow, "caller", 40)]).await;
    grown(&bed, &growth(&stream, None, 1_000)).await;
    assert_eq!(bed.peek(&stream.holds[0]).await, (0, 1_000));
}

async fn a_growth_that_nobody_knows_the_end_of_is_given_back_as_it_was(bed: Bed) {
    let limit = capped(1_000);
    let ask = || vec![hold(&limit, "caller", 40)];
    for happened in [false, true] {
        // Settled while in doubt.
        let stream = bed.granted(ask()).await;
        let lost = growth(&stream, None, 140);
        if happened {
            grown(&bed, &lost).await;
        }
        let in_doubt = Settlement { doubt: Some(Arc::clone(&lost.to)), ..settlement(&stream, &[0]) };
        bed.settle(&in_doubt).await;
        assert_eq!(bed.peek(&stream.holds[0]).await, (0, 0));

        // Grown further, or only renewed, while in doubt.
        for to in [240, 40] {
            let stream = bed.granted(ask()).await;
            let lost = growth(&stream, None, 140);
            if happened {
                grown(&bed, &lost).await;
            }
            let next = growth(&stream, Some(140), to);
            grown(&bed, &next).await;
            assert_eq!(bed.peek(&stream.holds[0]).await, (0, to));
            bed.settle(&settlement(&next.to, &[0])).await;
            assert_eq!(bed.peek(&stream.holds[0]).await, (0, 0));
        }
    }
}

async fn however_many_growths_are_lost_in_a_row_nothing_stays_held(bed: Bed) {
    let limit = capped(1_000);
    let lost = Err(StoreError::Timeout(Duration::ZERO));
    // By how much each growth is, and whether it reached the store that did not answer. By none: a renewal.
    for fates in [
        [(100, true), (50, false), (0, false)],
        [(100, false), (50, true), (0, false)],
        [(100, true), (50, true), (200, false)],
        [(100, true), (0, true), (200, false)],
        [(100, true), (0, false), (200, true)],
    ] {
        let estimate = Estimate { output: 40, output_at_most: 40, ..Estimate::default() };
        let request = Arc::new(ReserveRequest::new([&limit], &nobody(), estimate));
        let admission = bed.reserve(&request).await;
        let Decision::Granted(mut reservation) = Decision::new(Arc::clone(&request), admission, Keeper::Store) else {
            panic!()
        };
        for (more, reaches) in fates {
            let growth = reservation.growth(more);
            if reaches {
                grown(&bed, &growth).await;
            }
            assert_eq!(reservation.note(&growth, &lost), Grown::Unknown);
        }
        bed.settle(&reservation.settlement(&attache_proto::Usage::default())).await;
        assert_eq!(bed.peek(&request.holds[0]).await, (0, 0), "{fates:?}");
    }
}

async fn a_growth_after_the_lease_has_ended_is_held_if_it_fits(bed: Bed) {
    let limit = capped(300);
    let paused = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    bed.advance(LEASE).await;
    let other = bed.granted(vec![hold(&limit, "caller", 200)]).await;
    assert!(matches!(bed.grow(&growth(&paused, None, 101)).await, Admission::Refused { by: 0, .. }));
    assert_eq!(bed.peek(&other.holds[0]).await, (0, 240), "refused, it goes on with what it held");
    grown(&bed, &growth(&paused, None, 100)).await;
    assert_eq!(bed.peek(&other.holds[0]).await, (0, 300));
}

async fn a_growth_after_settling_is_granted_and_holds_nothing(bed: Bed) {
    let limit = capped(300);
    let stream = bed.granted(vec![hold(&limit, "caller", 40)]).await;
    bed.settle(&settlement(&stream, &[30])).await;
    grown(&bed, &growth(&stream, None, 1_000)).await;
    assert_eq!(bed.peek(&stream.holds[0]).await, (30, 0));
}

async fn what_a_dead_sidecar_held_does_not_end_a_living_stream(bed: Bed) {
    let limit = capped(1_000);
    for _ in 0..50 {
        bed.granted(vec![hold(&limit, "caller", 10)]).await;
    }
    bed.advance(LEASE).await;
    let stream = bed.granted(vec![hold(&limit, "caller", 100)]).await;
    grown(&bed, &growth(&stream, None, 1_000)).await;
    assert_eq!(bed.peek(&stream.holds[0]).await, (0, 1_000));
}

fn capped(amount: u64) -> Arc<Limit> {
    Arc::new(Limit { cap: Cap::Capped, ..Limit::clone(&tokens("capped", amount, Mode::Strict)) })
}

/// A growth of a request with one hold.
fn growth(from: &ReserveRequest, doubt: Option<u64>, to: u64) -> Growth {
    let grown =
        |estimate| Arc::new(ReserveRequest { holds: vec![Hold { estimate, ..from.holds[0].clone() }], ..from.clone() });
    Growth { from: Arc::new(from.clone()), doubt: doubt.map(grown), to: grown(to), keeper: Keeper::Store }
}

async fn grown(bed: &Bed, growth: &Growth) {
    let admission = bed.grow(growth).await;
    assert!(matches!(admission, Admission::Granted { .. }), "{admission:?}");
}
