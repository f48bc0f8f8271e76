//! Two threads that place at once on one pool, which has one lock.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use attache::affinity::{Canon, PrefixChain};
use attache_tests::{Error, Result};
use serde::Serialize;

use super::{
    DEFAULT_BUDGET, ENDPOINTS,
    bed::{BETWEEN, Bed},
    prompts::Body,
};
use crate::{measure::Pace, report::Progress};

const BODY_BYTES: usize = 40_000;

/// Conversations of each thread, which go on in turn.
const CONVERSATIONS: usize = 200;

/// What one and two threads do in a second, by requests of 40 kB of which most is known.
#[derive(Debug, Serialize)]
pub(super) struct Contention {
    pub(super) endpoints: usize,
    pub(super) work: Work,
    pub(super) one_thread: f64,
    pub(super) two_threads: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    /// From the segments to the end.
    Decision,
    /// What is done under the pool's lock alone.
    Locked,
}

pub(super) fn measure(pace: Pace, progress: &mut Progress) -> Result<Vec<Contention>> {
    let time = pace.whole * u32::try_from(pace.rounds).unwrap_or(1) / 4;
    let mut measured = Vec::new();
    for endpoints in ENDPOINTS {
        progress.say(&format!("prefix affinity: two threads, {endpoints} endpoints"));
        let mut bed = Bed::new(endpoints, DEFAULT_BUDGET);
        bed.fill();
        for work in [Work::Decision, Work::Locked] {
            let [one_thread, two_threads] = [1, 2].map(|threads| throughput(&bed, threads, work, time));
            measured.push(Contention { endpoints, work, one_thread: one_thread?, two_threads: two_threads? });
        }
    }
    Ok(measured)
}

/// Requests in a second of all threads.
fn throughput(bed: &Bed, threads: u64, work: Work, time: Duration) -> Result<f64> {
    let requests: Result<Vec<usize>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(bed, thread, work, time))).collect();
        let ended = || Error::unexpected("a thread that ends well", "it did not");
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(ended()))).collect()
    });
    Ok(requests?.into_iter().sum::<usize>() as f64 / time.as_secs_f64())
}

fn run(bed: &Bed, thread: u64, work: Work, time: Duration) -> Result<usize> {
    let mut body = Body::new(BODY_BYTES);
    let canon = Canon::default();
    let mut known = Vec::new();
    for number in 0..CONVERSATIONS as u64 {
        body.become_conversation(thread << 32 | number);
        let segments = body.segments()?;
        known.push((body.clone(), segments.clone(), canon.read(&segments, body.bytes()).chain));
    }
    let (start, mut now, mut requests) = (Instant::now(), bed.now(), 0);
    for (body, segments, chain) in known.iter().cycle() {
        if start.elapsed() >= time {
            break;
        }
        let chain = match work {
            Work::Decision => canon.read(segments, body.bytes()).chain,
            Work::Locked => chain.clone(),
        };
        let ask = bed.ask(Arc::new(with_new_end(chain, thread << 32 | requests as u64)));
        let placement = bed.place(&ask, now);
        let ticket = bed.dispatch(&placement).ok_or_else(|| Error::unexpected("a place for each", "none"))?;
        bed.end(ticket, &placement, now);
        now += BETWEEN;
        requests += 1;
    }
    Ok(requests)
}

/// The last block in ten is one that nobody has seen.
fn with_new_end(mut chain: PrefixChain, number: u64) -> PrefixChain {
    let kept = chain.blocks.len() * 9 / 10;
    chain.blocks.iter_mut().skip(kept).for_each(|block| *block ^= (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    chain
}
