//! What a decision costs, part by part.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use attache::affinity::{Canon, PrefixChain};
use attache_tests::{Error, Result};
use serde::Serialize;

use super::{DEFAULT_BUDGET, ENDPOINTS, bed::Bed, prompts::Body};
use crate::{
    measure::{Pace, us},
    report::Progress,
    statistics::percentile,
};

/// Lengths of bodies, how many conversations go on at a time, and how many requests are measured in a full run.
const BODIES: [(usize, usize, usize); 4] =
    [(4_000, 200, 4_000), (40_000, 200, 2_000), (400_000, 50, 1_000), (4_000_000, 10, 200)];

/// What of a prompt is in the index when it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Known {
    /// Nine blocks in ten: the conversation goes on.
    Most,
    /// The system prompt that all have.
    Head,
}

/// What one kind of request costs.
#[derive(Debug, Serialize)]
pub(super) struct Cost {
    pub(super) body_bytes: usize,
    pub(super) endpoints: usize,
    pub(super) known: Known,
    pub(super) requests: usize,
    pub(super) blocks: usize,
    /// The share of the prompts that the chosen endpoint was believed to hold.
    pub(super) predicted: f64,
    /// Finding the segments, which limits and routes need as well: no part of the decision.
    pub(super) scan: Spread,
    /// The canonical stream and its chain.
    pub(super) read: Spread,
    pub(super) place: Spread,
    pub(super) dispatch: Spread,
    /// The ticket's way from the answer's headers to its usage.
    pub(super) end: Spread,
    /// All but the scan.
    pub(super) decision: Spread,
}

/// In microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Spread {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

#[derive(Debug, Default)]
struct Sample {
    scan: Duration,
    read: Duration,
    place: Duration,
    dispatch: Duration,
    end: Duration,
}

pub(super) fn measure(pace: Pace, progress: &mut Progress) -> Result<Vec<Cost>> {
    let mut costs = Vec::new();
    for endpoints in ENDPOINTS {
        progress.say(&format!("prefix affinity: filling the index for {endpoints} endpoints"));
        let mut bed = Bed::new(endpoints, DEFAULT_BUDGET);
        bed.fill();
        for (body_bytes, conversations, requests) in BODIES {
            progress.say(&format!("prefix affinity: {body_bytes} bytes, {endpoints} endpoints"));
            let requests = (requests * pace.rounds / 10).max(conversations);
            for known in [Known::Most, Known::Head] {
                costs.push(of(&mut bed, endpoints, known, body_bytes, conversations, requests)?);
            }
        }
    }
    Ok(costs)
}

fn of(
    bed: &mut Bed,
    endpoints: usize,
    known: Known,
    body_bytes: usize,
    conversations: usize,
    requests: usize,
) -> Result<Cost> {
    let mut body = Body::new(body_bytes);
    let canon = Canon::default();
    let mut samples = Vec::with_capacity(requests);
    let (mut predicted, mut bytes, mut blocks) = (0, 0, 0);
    // No number comes twice in one bed.
    let first = (body_bytes as u64) << 32 | u64::from(known == Known::Most) << 31;
    let numbers: Vec<u64> = (first..).take(requests).collect();
    for numbers in numbers.chunks(conversations) {
        if known == Known::Most {
            for number in numbers {
                body.become_conversation(*number);
                let chain = canon.read(&body.segments()?, body.bytes()).chain;
                bed.send(&bed.ask(Arc::new(beginning(chain))));
            }
            bed.pause();
        }
        for number in numbers {
            body.become_conversation(*number);
            bed.pass_time();
            let start = Instant::now();
            let segments = body.segments()?;
            let scanned = Instant::now();
            let ask = bed.ask(Arc::new(canon.read(&segments, body.bytes()).chain));
            let read = Instant::now();
            let placement = bed.place(&ask, bed.now());
            let placed = Instant::now();
            let ticket = bed.dispatch(&placement).ok_or_else(|| Error::unexpected("a place for each", "none"))?;
            let dispatched = Instant::now();
            bed.end(ticket, &placement, bed.now());
            samples.push(Sample {
                scan: scanned - start,
                read: read - scanned,
                place: placed - read,
                dispatch: dispatched - placed,
                end: dispatched.elapsed(),
            });
            predicted += placement.predicted.chosen;
            bytes += placement.predicted.bytes;
            blocks = ask.prompt.as_ref().map_or(0, |prompt| prompt.blocks.len());
        }
    }
    let spread = |part: fn(&Sample) -> Duration| {
        let at = |percent| percentile(samples.iter().map(|sample| us(part(sample))), percent);
        Spread { p50_us: at(50.0), p99_us: at(99.0) }
    };
    Ok(Cost {
        body_bytes,
        endpoints,
        known,
        requests,
        blocks,
        predicted: predicted as f64 / bytes as f64,
        scan: spread(|sample| sample.scan),
        read: spread(|sample| sample.read),
        place: spread(|sample| sample.place),
        dispatch: spread(|sample| sample.dispatch),
        end: spread(|sample| sample.end),
        decision: spread(|sample| sample.read + sample.place + sample.dispatch + sample.end),
    })
}

/// Nine blocks in ten.
fn beginning(chain: PrefixChain) -> PrefixChain {
    let kept = chain.blocks.len() * 9 / 10;
    let bytes = chain.spans().take(kept).map(|(_, len, _)| len as u64).sum();
    PrefixChain { blocks: chain.blocks.into_iter().take(kept).collect(), bytes, ..chain }
}
