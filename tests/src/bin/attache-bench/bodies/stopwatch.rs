//! What runs of several functions take, in turns, so that a machine that gets slower meanwhile is so to all alike.

use std::time::Duration;

use crate::{
    measure::Pace,
    statistics::{median, turns},
    usage::Usage,
};

/// How many turns are taken in the time of one turn of whole requests: nothing has to settle here.
const TURNS_IN_ONE: u32 = 20;

/// The CPU time of one run of each function, in seconds, round by round.
#[derive(Debug)]
pub(super) struct Times(Vec<Vec<f64>>);

/// Measures functions that do the same to the same input, each in its way.
pub(super) fn times(pace: Pace, lanes: &mut [&mut dyn FnMut()]) -> Times {
    let turn = pace.whole / TURNS_IN_ONE;
    let counts: Vec<u32> = lanes.iter_mut().map(|run| runs_in(turn, *run)).collect();
    let mut rounds = Vec::with_capacity(pace.rounds);
    for round in 0..pace.rounds {
        let mut seconds = vec![0.0; lanes.len()];
        for lane in turns(round, lanes.len()) {
            let (Some(run), Some(count), Some(seconds)) =
                (lanes.get_mut(lane), counts.get(lane), seconds.get_mut(lane))
            else {
                continue;
            };
            *seconds = cpu_of(*count, *run).as_secs_f64() / f64::from(*count);
        }
        rounds.push(seconds);
    }
    Times(rounds)
}

impl Times {
    /// One run of a lane, in seconds.
    pub(super) fn of(&self, lane: usize) -> f64 {
        median(self.column(lane))
    }

    /// How many times as long a lane takes as another in the same round.
    pub(super) fn ratio(&self, lane: usize, to: usize) -> f64 {
        median(self.column(lane).zip(self.column(to)).map(|(time, other)| time / other))
    }

    fn column(&self, lane: usize) -> impl Iterator<Item = f64> {
        self.0.iter().filter_map(move |round| round.get(lane).copied())
    }
}

/// How often a function can run in so long. It is warm afterwards.
fn runs_in(time: Duration, run: &mut dyn FnMut()) -> u32 {
    let mut count = 1;
    while cpu_of(count, run) < time && count < 1 << 24 {
        count *= 2;
    }
    count
}

fn cpu_of(count: u32, run: &mut dyn FnMut()) -> Duration {
    let before = Usage::of_this_thread();
    for _ in 0..count {
        run();
    }
    Usage::of_this_thread().saturating_sub(before)
}
