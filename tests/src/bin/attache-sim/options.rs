//! What can be asked for.

use std::{fs, io, path::PathBuf, time::Duration};

use attache_tests::{
    simulation::Setup,
    tools,
    traces::{Shape, Trace, TraceError, read},
};
use clap::Parser;

/// Runs the production placement, and others beside it, on request traces in simulated time.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// A file or a directory of traces: JSON lines with hash_runs, or Mooncake's with hash_ids, plain or gzip'd. Without it,
    /// workloads are drawn.
    #[arg(long, value_name = "PATH")]
    traces: Option<PathBuf>,
    /// Write every figure there, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Write the plot there, as SVG [default: beside the JSON, else in Cargo's target directory].
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Model servers.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    replicas: u16,
    /// Sidecars in front of them.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    sidecars: u16,
    /// The KV cache of one server.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(512..=1_000_000_000))]
    cache_tokens: u64,
    /// Tokens that one server prefills in a second [default: 10000; 25000 for traces of very long prompts].
    #[arg(long, value_parser = rate)]
    prefill_rate: Option<f64>,
    /// How long a metrics page takes to arrive, in milliseconds.
    #[arg(long, default_value_t = 20)]
    scrape_delay_ms: u64,
    /// Which workloads are drawn, and every other chance.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Only traces whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) only: String,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("{text} is no number"))?;
    if (1.0..=1e9).contains(&rate) { Ok(rate) } else { Err("it is a rate from 1 to 1e9".to_owned()) }
}

impl Options {
    /// The traces that are asked for.
    pub(crate) fn traces(&self) -> Result<Vec<Trace>, TraceError> {
        let mut traces = match &self.traces {
            Some(path) => read::read(path)?,
            None => Shape::ALL.map(|shape| shape.draw(self.seed)).into(),
        };
        traces.retain(|trace| trace.name.contains(&self.only));
        Ok(traces)
    }

    /// `setup`, with what is asked for.
    pub(crate) fn apply(&self, setup: Setup) -> Setup {
        Setup {
            replicas: self.replicas.into(),
            sidecars: self.sidecars.into(),
            cache_tokens: self.cache_tokens,
            prefill_rate: self.prefill_rate.unwrap_or(setup.prefill_rate),
            scrape_delay: Duration::from_millis(self.scrape_delay_ms),
            seed: self.seed,
            ..setup
        }
    }

    /// Where the plot goes.
    pub(crate) fn plot(&self) -> io::Result<PathBuf> {
        if let Some(plot) = &self.plot {
            return Ok(plot.clone());
        }
        if let Some(out) = &self.out {
            return Ok(out.with_extension("svg"));
        }
        let directory = tools::target_directory().join("sim");
        fs::create_dir_all(&directory)?;
        Ok(directory.join("affinity.svg"))
    }
}
