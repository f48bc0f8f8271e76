//! The rounds: every variant in turn, the order alternating, one round that does not count.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use attache_tests::{Error, Result};
use serde::Serialize;

use crate::{
    bed::Bed,
    bootstrap::Variant,
    client::{Load, Outcome, Until},
    report::Progress,
    statistics::{median, percentile, turns},
    workload::{Answers, Workload},
};

/// How many streams live at one time when the memory is read.
const LIVE_STREAMS: usize = 500;

/// How long it takes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    /// Each variant's turn in a round of whole answers.
    pub(crate) whole: Duration,
    /// The same for streamed ones.
    pub(crate) streamed: Duration,
}

/// One case.
#[derive(Debug, Serialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) body_bytes: usize,
    pub(crate) connections: usize,
    /// In one answer; 0 where it is no stream.
    pub(crate) events: u64,
    /// The plain route first.
    pub(crate) rows: Vec<Row>,
}

/// What a variant costs: medians over the rounds. Latencies are those of the whole answer, or of the first byte of the body
/// where it is streamed; `share` and `added` compare with the plain route of the same round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) variant: Variant,
    pub(crate) requests_per_second: f64,
    pub(crate) share: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) added_p50_us: f64,
    pub(crate) added_p99_us: f64,
    pub(crate) envoy_cpu_us: f64,
    pub(crate) sidecar_cpu_us: f64,
    pub(crate) client_cpu_us: f64,
}

/// The client with the upstream of whole answers and nothing between them.
#[derive(Debug, Serialize)]
pub(crate) struct ClientAlone {
    pub(crate) requests_per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) client_cpu_us: f64,
}

/// The sidecar while many answers are under way.
#[derive(Debug, Serialize)]
pub(crate) struct LiveStreams {
    pub(crate) streams: usize,
    pub(crate) sidecar_peak_before_bytes: u64,
    pub(crate) sidecar_peak_bytes: u64,
    pub(crate) sidecar_cpu_us_per_event: f64,
}

/// One variant's turn in one round; CPU for each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) requests: f64,
    pub(crate) reconnects: f64,
    requests_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    envoy_cpu_us: f64,
    sidecar_cpu_us: f64,
    client_cpu_us: f64,
}

/// Measures all variants.
///
/// # Errors
/// When an answer is not a good one.
pub(crate) fn case(bed: &mut Bed, workload: &Workload, pace: Pace, progress: &mut Progress) -> Result<Case> {
    let name = workload.name();
    let events = workload.answers.events();
    let time = if workload.answers == Answers::Whole { pace.whole } else { pace.streamed };
    let mut lanes = Vec::new();
    for &(variant, address) in &bed.listeners {
        let request = workload.request(&address.to_string());
        let load = Load::connect(address, workload.connections, request, workload.expected())
            .map_err(failed(&name, variant))?;
        lanes.push((variant, load, Vec::with_capacity(pace.rounds)));
    }
    for round in 0..=pace.rounds {
        progress.show(&name, round, pace.rounds);
        for turn in turns(round, lanes.len()) {
            let Some((variant, load, measured)) = lanes.get_mut(turn) else { continue };
            let turn = take_turn(bed, *variant, load, time, workload.answers).map_err(failed(&name, *variant))?;
            // The first round warms up connections, caches and the branch predictor.
            if round > 0 {
                measured.push(turn);
            }
        }
    }
    let plain = lanes.first().map(|(_, _, turns)| turns.clone()).unwrap_or_default();
    let rows = lanes.iter().map(|(variant, _, turns)| Row::of(*variant, turns, &plain)).collect();
    Ok(Case { name, body_bytes: workload.body_bytes, connections: workload.connections, events, rows })
}

/// Measures the client without a gateway, to say what it costs itself.
///
/// # Errors
/// When an answer is not a good one.
pub(crate) fn client_alone(bed: &Bed, pace: Pace) -> Result<ClientAlone> {
    let workload = Workload { answers: Answers::Whole, body_bytes: 2_000, connections: 1 };
    let run = || {
        let mut load = Load::connect(bed.upstream, 1, workload.request("upstream"), workload.expected())?;
        load.run(Until::Elapsed(pace.whole))?;
        let start = Instant::now();
        Ok((load.run(Until::Elapsed(pace.whole))?, start.elapsed()))
    };
    let (outcome, elapsed) = run().map_err(|source| Error::Io { what: "measure the client".to_owned(), source })?;
    Ok(ClientAlone {
        requests_per_second: outcome.answers.len() as f64 / elapsed.as_secs_f64(),
        p50_us: percentile(outcome.answers.iter().map(|answer| us(answer.whole)), 50.0),
        client_cpu_us: us(outcome.cpu) / outcome.answers.len() as f64,
    })
}

/// Measures a fresh sidecar's memory while many answers stream at one time.
///
/// # Errors
/// When they do not all live at one time, or an answer is not a good one.
pub(crate) async fn live_streams(progress: &mut Progress) -> Result<LiveStreams> {
    let name = format!("{LIVE_STREAMS} live streams");
    progress.show(&name, 0, 1);
    let bed = Bed::start(Answers::Slow, "").await?;
    let (variant, address) = (Variant::Both, bed.listener(Variant::Both)?);
    let workload = Workload { answers: Answers::Slow, body_bytes: 2_000, connections: LIVE_STREAMS };
    let request = workload.request(&address.to_string());
    let events = workload.answers.events();
    let connect = Load::connect(address, LIVE_STREAMS, request, workload.expected());
    let mut load = connect.map_err(failed(&name, variant))?;
    let (peak_before, cpu_before) = (bed.sidecar_peak_bytes(), bed.sidecar_cpu(variant));

    let running = thread::spawn(move || load.run(Until::Requests(1)));
    let mut most = 0.0;
    while !running.is_finished() {
        most = bed.sidecar.metrics().await?.sum("attache_in_flight", &[]).max(most);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    running.join().map_err(|_| Error::unexpected("the client", "panicked"))?.map_err(failed(&name, variant))?;
    if most < LIVE_STREAMS as f64 {
        return Err(Error::unexpected(
            format!("not all of {LIVE_STREAMS} streams lived at one time"),
            most.to_string(),
        ));
    }
    let cpu = bed.sidecar_cpu(variant).saturating_sub(cpu_before);
    Ok(LiveStreams {
        streams: LIVE_STREAMS,
        sidecar_peak_before_bytes: peak_before,
        sidecar_peak_bytes: bed.sidecar_peak_bytes(),
        sidecar_cpu_us_per_event: us(cpu) / (LIVE_STREAMS as u64 * events) as f64,
    })
}

/// One turn: the same request over and over, for so long.
pub(crate) fn take_turn(
    bed: &Bed,
    variant: Variant,
    load: &mut Load,
    time: Duration,
    answers: Answers,
) -> io::Result<Turn> {
    let (envoy, sidecar, start) = (bed.envoy_cpu(), bed.sidecar_cpu(variant), Instant::now());
    let Outcome { answers: taken, reconnects, cpu } = load.run(Until::Elapsed(time))?;
    let elapsed = start.elapsed();
    let requests = taken.len() as f64;
    let latencies =
        || taken.iter().map(|answer| us(if answers == Answers::Whole { answer.whole } else { answer.first }));
    Ok(Turn {
        requests,
        reconnects: reconnects as f64,
        requests_per_second: requests / elapsed.as_secs_f64(),
        p50_us: percentile(latencies(), 50.0),
        p99_us: percentile(latencies(), 99.0),
        envoy_cpu_us: us(bed.envoy_cpu().saturating_sub(envoy)) / requests,
        sidecar_cpu_us: us(bed.sidecar_cpu(variant).saturating_sub(sidecar)) / requests,
        client_cpu_us: us(cpu) / requests,
    })
}

impl Row {
    /// The medians, beside the plain route's turns.
    pub(crate) fn of(variant: Variant, turns: &[Turn], plain: &[Turn]) -> Self {
        let own = |figure: fn(&Turn) -> f64| median(turns.iter().map(figure));
        let paired =
            |figure: fn(&Turn, &Turn) -> f64| median(turns.iter().zip(plain).map(|(turn, plain)| figure(turn, plain)));
        Self {
            variant,
            requests_per_second: own(|turn| turn.requests_per_second),
            share: paired(|turn, plain| turn.requests_per_second / plain.requests_per_second),
            p50_us: own(|turn| turn.p50_us),
            p99_us: own(|turn| turn.p99_us),
            added_p50_us: paired(|turn, plain| turn.p50_us - plain.p50_us),
            added_p99_us: paired(|turn, plain| turn.p99_us - plain.p99_us),
            envoy_cpu_us: own(|turn| turn.envoy_cpu_us),
            sidecar_cpu_us: own(|turn| turn.sidecar_cpu_us),
            client_cpu_us: own(|turn| turn.client_cpu_us),
        }
    }
}

pub(crate) fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(crate) fn failed(case: &str, variant: Variant) -> impl FnOnce(io::Error) -> Error {
    let what = format!("measure {case}, {}", variant.name());
    move |source| Error::Io { what, source }
}
