//! `make sim`: what the production placement is worth on request traces, in simulated time, beside the usual ways.
//!
//! Each trace is run through each way to place requests, and the production placement through what goes wrong as well. All runs
//! are independent, so they are spread over the machine's cores. The same traces, options and seed give the same figures.

mod options;
mod plan;
mod plot;
mod progress;
mod report;
mod table;
mod work;

use std::{error::Error, fs, process::ExitCode};

use clap::Parser;

use crate::{options::Options, plan::Plan, report::Report};

fn main() -> ExitCode {
    match sim(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attache-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn sim(options: &Options) -> Result<(), Box<dyn Error>> {
    let traces = options.traces()?;
    if traces.is_empty() {
        return Err(format!("no trace's name contains {}", options.only).into());
    }
    let plans: Vec<Plan> = traces.iter().map(|trace| Plan::of(trace, options)).collect();
    let report = Report::of(&plans, &work::run(&plans), options);

    println!("{}", table::Tables(&report));
    let plot = options.plot()?;
    fs::write(&plot, plot::draw(&report)).map_err(|error| format!("cannot write {}: {error}", plot.display()))?;
    println!("The plot: {}", plot.display());
    if let Some(out) = &options.out {
        let json = serde_json::to_vec_pretty(&report)?;
        fs::write(out, json).map_err(|error| format!("cannot write {}: {error}", out.display()))?;
        println!("The same as JSON: {}", out.display());
    }
    Ok(())
}
