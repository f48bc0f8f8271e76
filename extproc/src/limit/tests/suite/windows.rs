//! What counters remember when time goes by, when the clock is turned, and when they are reset.

use super::*;

on_all_stores! {
    use_counts_in_the_window_of_its_settlement_and_holds_in_every_window
    a_sliding_window_forgets_the_last_bucket_little_by_little
    a_fixed_window_forgets_the_last_bucket_at_once
    a_calendar_day_ends_at_midnight_of_its_place
    a_clock_set_back_refills_nothing
    a_clock_set_back_makes_a_sliding_window_begin_anew
    a_counter_far_ahead_of_the_clock_is_dropped_but_for_its_holds
    a_reset_forgets_what_was_settled_and_keeps_what_is_held
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

/// I12: what happens in the moment in which a bucket ends is proved in `sliding`.
async fn a_sliding_window_forgets_the_last_bucket_little_by_little(bed: Bed) {
    let limit = Arc::new(Limit { window: Window::Sliding(ERA), ..limit("sliding", 1_000_000, Mode::Strict) });
    let request = bed.granted(vec![hold(&limit, "caller", 1_000_000)]).await;
    bed.settle(&settlement(&request, &[1_000_000])).await;
    let probe = hold(&limit, "caller", 1);
    assert_eq!(bed.peek(&probe).await, (1_000_000, 0));
    bed.refused(vec![probe.clone()]).await;

    bed.advance(ERA).await;
    let state = bed.state(&probe).await;
    assert_eq!((state.settled, state.previous), (0, 1_000_000));
    let share = state.left.as_secs_f64() / state.length.as_secs_f64();
    assert!(state.used().abs_diff((1_000_000.0 * share) as u64) <= 1, "{state:?}");
    // The script decides by the same number. It falls by one in a few minutes: not between two calls.
    let free = 1_000_000 - state.used();
    bed.refused(vec![hold(&limit, "caller", free + 10)]).await;
    bed.granted(vec![hold(&limit, "caller", free)]).await;

    bed.advance(ERA).await;
    assert_eq!(bed.state(&probe).await.used(), 0);
}

async fn a_fixed_window_forgets_the_last_bucket_at_once(bed: Bed) {
    let limit = tokens("fixed", 300, Mode::Strict);
    let request = bed.granted(vec![hold(&limit, "caller", 300)]).await;
    bed.settle(&settlement(&request, &[300])).await;
    bed.refused(vec![hold(&limit, "caller", 1)]).await;
    bed.advance(ERA).await;
    let state = bed.state(&request.holds[0]).await;
    assert_eq!((state.settled, state.previous), (0, 0));
    bed.granted(vec![hold(&limit, "caller", 300)]).await;
}

async fn a_calendar_day_ends_at_midnight_of_its_place(bed: Bed) {
    const DAY: Duration = Duration::from_secs(86_400);
    let calendar = Calendar { period: Period::Day, zone: bed.zone_where_no_day_ends_soon() };
    let today = calendar.bucket(bed.now_ms());
    let limit = Arc::new(Limit { window: Window::Calendar(calendar), ..limit("day", 300, Mode::Strict) });
    let request = bed.granted(vec![hold(&limit, "caller", 200)]).await;
    bed.settle(&settlement(&request, &[200])).await;
    let probe = hold(&limit, "caller", 101);
    bed.refused(vec![probe.clone()]).await;
    let state = bed.state(&probe).await;
    assert_eq!((state.bucket, state.settled), (today.index, 200));
    assert_eq!(state.length, Duration::from_millis(today.end_ms - today.start_ms));
    let until_midnight = Duration::from_millis(today.end_ms - bed.now_ms());
    assert!(state.left.abs_diff(until_midnight) < Duration::from_secs(60), "{state:?}");

    bed.advance(DAY).await;
    let state = bed.state(&probe).await;
    assert_eq!((state.settled, state.previous, state.held), (0, 0, 0));
    bed.granted(vec![probe]).await;
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

async fn a_clock_set_back_makes_a_sliding_window_begin_anew(bed: Bed) {
    let limit = Arc::new(Limit { window: Window::Sliding(ERA), ..limit("sliding", 200, Mode::Strict) });
    for used in [100, 10] {
        bed.advance(ERA).await;
        let request = bed.granted(vec![hold(&limit, "caller", used)]).await;
        bed.settle(&settlement(&request, &[used])).await;
    }
    bed.set_clock_back(ERA).await;
    let state = bed.state(&hold(&limit, "caller", 0)).await;
    assert_eq!((state.used(), state.left), (110, state.length));
    bed.refused(vec![hold(&limit, "caller", 91)]).await;
    bed.granted(vec![hold(&limit, "caller", 90)]).await;
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

async fn a_reset_forgets_what_was_settled_and_keeps_what_is_held(bed: Bed) {
    for window in [Window::Fixed(ERA), Window::Sliding(ERA)] {
        let limit = Arc::new(Limit { window, ..limit("limit", 300, Mode::Strict) });
        let ended = bed.granted(vec![hold(&limit, "caller", 200)]).await;
        bed.settle(&settlement(&ended, &[200])).await;
        bed.advance(ERA).await;
        let ended = bed.granted(vec![hold(&limit, "caller", 10)]).await;
        bed.settle(&settlement(&ended, &[10])).await;
        let running = bed.granted(vec![hold(&limit, "caller", 20)]).await;
        let before = bed.state(&running.holds[0]).await;

        bed.reset(&running.holds).await;
        let state = bed.state(&running.holds[0]).await;
        assert_eq!((state.settled, state.previous, state.held), (0, 0, 20));
        assert!(state.epoch > before.epoch);
        bed.granted(vec![hold(&limit, "caller", 280)]).await;
        bed.settle(&settlement(&running, &[20])).await;
        assert_eq!(bed.peek(&running.holds[0]).await, (20, 280));
    }
}
