//! `make bench`: what the sidecar and the Wasm filter cost, beside a plain route of the same Envoy.
//!
//! This machine is never quiet, so what counts are ratios of one run: all variants stand behind one Envoy with one worker,
//! take turns in rounds whose order alternates, and are compared with the plain route of the same round. The client and the
//! upstream of whole answers are threads of this process that do as little as they can; streamed answers come from the
//! simulated model server.

mod affinity;
mod bed;
mod bodies;
mod bootstrap;
mod client;
mod limits;
mod machine;
mod measure;
mod reload;
mod report;
mod statistics;
mod upstream;
mod usage;
mod workload;

use std::{error::Error, process::ExitCode, time::Duration};

use attache_tests::tools;
use clap::Parser;

use crate::{
    bed::Bed,
    measure::Pace,
    report::{Progress, Report},
    workload::{Answers, Workload},
};

/// Measures what the sidecar and the Wasm filter cost, beside a plain route of the same Envoy.
#[derive(Debug, Parser)]
struct Options {
    /// Half a minute in place of some: a look, no figures to keep.
    #[arg(long)]
    quick: bool,
    /// Only the cases whose name contains this, such as "2 kB", "bodies", "token limits" or "prefix affinity".
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    match bench(&Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attache-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(options: &Options) -> Result<(), Box<dyn Error>> {
    let pace = if options.quick {
        Pace { rounds: 2, whole: Duration::from_millis(200), streamed: Duration::from_millis(450) }
    } else {
        Pace { rounds: 10, whole: Duration::from_millis(450), streamed: Duration::from_millis(1_100) }
    };
    let mut progress = Progress::start();
    let mut report = Report::new(machine::Machine::inspect(), pace);

    if affinity::NAME.contains(&options.only) {
        report.prefix_affinity = Some(affinity::measure(pace, &mut progress)?);
    }
    if reload::NAME.contains(&options.only) {
        report.hot_reload = Some(reload::measure(pace, &mut progress)?);
    }
    for answers in [Answers::Whole, Answers::Streamed] {
        let workloads: Vec<_> =
            Workload::all(answers).filter(|workload| workload.name().contains(&options.only)).collect();
        if workloads.is_empty() {
            continue;
        }
        let mut bed = Bed::start(answers, "").await?;
        if answers == Answers::Whole {
            report.client_alone = Some(measure::client_alone(&bed, pace)?);
        }
        for workload in &workloads {
            report.cases.push(measure::case(&mut bed, workload, pace, &mut progress)?);
        }
        report.beds.push(bed.finish().await?);
    }
    if bodies::NAME.contains(&options.only) {
        report.bodies_and_streams = Some(bodies::measure(pace, &mut progress).await?);
    }
    if limits::NAME.contains(&options.only) && tools::redis_server().is_ok() {
        report.token_limits = Some(limits::measure(pace, &mut progress).await?);
    }
    progress.end();

    println!("{report}");
    println!("The same as JSON: {}", report.save()?.display());
    Ok(())
}
