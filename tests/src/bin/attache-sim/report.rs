//! Every figure of a run of the program, as the JSON has it.

use attache_tests::{
    simulation::{Figures, Incident, Setup, Sharing, figures::ratio},
    traces::Trace,
};
use serde::Serialize;

use crate::{
    options::Options,
    plan::{Plan, name},
    work::Results,
};

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) traces: Vec<TraceReport>,
}

/// All that was found on one trace.
#[derive(Debug, Serialize)]
pub(crate) struct TraceReport {
    pub(crate) name: String,
    /// A file, or the seed of the generator.
    pub(crate) origin: String,
    pub(crate) requests: usize,
    pub(crate) seconds: f64,
    pub(crate) mean_input_tokens: f64,
    pub(crate) mean_output_tokens: f64,
    pub(crate) replicas: usize,
    pub(crate) cache_tokens: u64,
    pub(crate) prefill_tokens_per_second: f64,
    /// The hit ratio of a cache that forgets nothing.
    pub(crate) infinite_hit_ratio: f64,
    /// That of one cache as large as all together.
    pub(crate) pooled_hit_ratio: f64,
    pub(crate) rows: Vec<Row>,
}

/// What one run gave.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) policy: &'static str,
    pub(crate) sidecars: usize,
    pub(crate) shared: bool,
    /// What happened at half time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) incident: Option<&'static str>,
    pub(crate) figures: Figures,
    /// Of the requests of the five minutes after half time.
    pub(crate) aftermath: Figures,
    /// Of those that came through the first sidecar in these minutes: the one that starts again, if one does.
    pub(crate) aftermath_first_sidecar: Figures,
    /// The share of known prefixes that went to another replica in these minutes.
    pub(crate) moved: f64,
}

impl Report {
    pub(crate) fn of(plans: &[Plan<'_>], results: &[Results], options: &Options) -> Self {
        let traces = plans.iter().zip(results).filter_map(|(plan, results)| TraceReport::of(plan, results));
        Self { seed: options.seed, traces: traces.collect() }
    }
}

impl TraceReport {
    fn of(plan: &Plan<'_>, results: &Results) -> Option<Self> {
        let (trace, setup) = (plan.trace, plan.setups.first()?);
        let input = trace.requests.iter().map(|request| request.input_tokens).sum();
        Some(Self {
            name: trace.name.clone(),
            origin: trace.origin.to_string(),
            requests: trace.requests.len(),
            seconds: trace.duration().as_secs_f64(),
            mean_input_tokens: trace.mean_input_tokens(),
            mean_output_tokens: trace.mean_output_tokens(),
            replicas: setup.replicas,
            cache_tokens: setup.cache_tokens,
            prefill_tokens_per_second: setup.prefill_rate,
            infinite_hit_ratio: ratio(results.bounds.infinite.iter().sum(), input),
            pooled_hit_ratio: ratio(results.bounds.pooled.iter().sum(), input),
            rows: plan
                .setups
                .iter()
                .zip(&results.runs)
                .map(|(setup, run)| Row::of(trace, setup, run, results))
                .collect(),
        })
    }

    /// The runs in which nothing went wrong.
    pub(crate) fn quiet(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.incident.is_none())
    }

    /// The run of the same setup as `row` in which nothing went wrong.
    pub(crate) fn quiet_like(&self, row: &Row) -> Option<&Row> {
        self.quiet().find(|quiet| quiet.name == row.name)
    }
}

impl Row {
    fn of(trace: &Trace, setup: &Setup, run: &attache_tests::simulation::Run, results: &Results) -> Self {
        let pooled = &results.bounds.pooled;
        Self {
            name: name(setup),
            policy: setup.policy.name(),
            sidecars: setup.sidecars,
            shared: setup.sharing == Sharing::Shared,
            incident: (setup.incident != Incident::None).then(|| setup.incident.name()),
            figures: run.figures(pooled),
            aftermath: run.aftermath(pooled),
            aftermath_first_sidecar: run
                .figures_where(pooled, |outcome| outcome.sidecar == 0 && run.is_aftermath(outcome)),
            moved: run.moved(trace),
        }
    }
}
