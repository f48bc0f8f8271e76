//! How much an endpoint had to do of late, as its page tells every sidecar alike: by it homes are shared out.
//!
//! A hash gives every endpoint the same number of conversations, not the same work. Where sidecars do not talk they must find the
//! same home without asking, so homes follow what all of them see, and slowly: an average over ten minutes moves few
//! conversations, and two sidecars that look a second apart agree on almost all.

/// The average is over so many seconds.
const WINDOW_SECONDS: f64 = 600.0;
/// An endpoint that was watched for so many seconds is believed half of what it showed, and otherwise taken for an average one.
const DOUBT_SECONDS: f64 = 300.0;
/// How much a request that waits counts beside one that runs: it is the first sign of too much work.
const WAITING: f64 = 3.0;
/// The most by which work moves homes.
const MOST: f64 = 2.0;
/// With fewer requests than this at an endpoint, on average, there is nothing to share out.
const IDLE: f64 = 0.05;

/// The average of one endpoint.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pressure {
    requests: f64,
    watched_seconds: f64,
}

impl Pressure {
    /// A page said that so many requests wait and run, so many seconds after the last one.
    pub(super) fn note(&mut self, waiting: f64, running: f64, seconds: f64) {
        self.watched_seconds += seconds;
        let part = if self.watched_seconds > 0.0 { seconds / self.watched_seconds.min(WINDOW_SECONDS) } else { 1.0 };
        self.requests += part.min(1.0) * (running + WAITING * waiting - self.requests);
    }

    /// The weight of its endpoint beside others, among which the average is `mean`: half of the homes for twice the work.
    pub(super) fn weight(&self, mean: f64) -> f64 {
        if mean < IDLE {
            return 1.0;
        }
        let believed =
            (self.requests * self.watched_seconds + mean * DOUBT_SECONDS) / (self.watched_seconds + DOUBT_SECONDS);
        (mean / believed.max(f64::MIN_POSITIVE)).clamp(1.0 / MOST, MOST)
    }

    /// The average over several endpoints.
    pub(super) fn mean<'a>(of: impl Iterator<Item = &'a Self>) -> f64 {
        let (sum, count) = of.fold((0.0, 0.0), |(sum, count), pressure| (sum + pressure.requests, count + 1.0));
        if count > 0.0 { sum / count } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(waiting: f64, running: f64, seconds: u32) -> Pressure {
        let mut pressure = Pressure::default();
        (0..=seconds).for_each(|second| pressure.note(waiting, running, f64::from(second.min(1))));
        pressure
    }

    #[test]
    fn one_with_more_work_is_home_to_fewer_and_the_more_surely_the_longer_it_was_watched() {
        let percent = |seconds| {
            let (busy, idle) = (watched(0.0, 6.0, seconds), watched(0.0, 2.0, seconds));
            let mean = Pressure::mean([busy, idle].iter());
            [busy, idle].map(|pressure| (pressure.weight(mean) * 100.0).round())
        };
        assert_eq!((percent(1), percent(300), percent(3_000)), ([100.0, 100.0], [80.0, 133.0], [69.0, 183.0]));
    }

    #[test]
    fn waiting_counts_more_than_running() {
        let (waiting, running) = (watched(2.0, 0.0, 3_000), watched(0.0, 2.0, 3_000));
        let mean = Pressure::mean([waiting, running].iter());
        assert!(waiting.weight(mean) < running.weight(mean));
    }

    #[test]
    fn the_average_is_of_the_last_minutes() {
        let mut pressure = watched(0.0, 100.0, 3_600);
        (0..1_800).for_each(|_| pressure.note(0.0, 1.0, 1.0));
        assert!((1.0..10.0).contains(&pressure.requests), "{}", pressure.requests);
    }

    #[test]
    fn no_weight_leaves_its_bounds_and_idle_ones_are_alike() {
        let (busy, idle) = (watched(1_000.0, 0.0, 100_000), watched(0.0, 0.0, 100_000));
        let mean = Pressure::mean([busy, idle].iter());
        assert_eq!((busy.weight(mean), idle.weight(mean)), (busy.weight(mean).clamp(0.5, 0.51), 2.0));
        assert_eq!(idle.weight(Pressure::mean([idle, idle].iter())), 1.0);
        assert_eq!(Pressure::mean([].iter()), 0.0);
    }
}
