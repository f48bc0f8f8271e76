//! The runs, spread over the machine's cores.

use std::{
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    sync::{Mutex, PoisonError},
    thread,
};

use attache_tests::simulation::{Bounds, Run, simulate};

use crate::{
    plan::{Plan, name},
    progress::Progress,
};

/// What the runs of one plan gave.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) bounds: Bounds,
    /// In the order of the setups.
    pub(crate) runs: Vec<Run>,
}

/// What a thread takes up: of a plan, the bounds or a run.
#[derive(Debug, Clone, Copy)]
struct Job {
    plan: usize,
    /// `None` for the bounds.
    setup: Option<usize>,
}

enum Done {
    Bounds(Bounds),
    Run(usize, Run),
}

/// Runs all plans.
pub(crate) fn run(plans: &[Plan<'_>]) -> Vec<Results> {
    let jobs: Vec<Job> = plans
        .iter()
        .enumerate()
        .flat_map(|(plan, Plan { setups, .. })| {
            let runs = (0..setups.len()).map(move |setup| Job { plan, setup: Some(setup) });
            [Job { plan, setup: None }].into_iter().chain(runs)
        })
        .collect();
    let progress = Progress::start(jobs.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let take_up = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(plan) = plans.get(job.plan) else { continue };
            let result = work(plan, job.setup, &progress);
            done.lock().unwrap_or_else(PoisonError::into_inner).extend(result.map(|result| (job.plan, result)));
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(take_up);
        }
    });
    progress.end();
    collect(plans.len(), done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn work(plan: &Plan<'_>, setup: Option<usize>, progress: &Progress) -> Option<Done> {
    let Some(index) = setup else {
        let pooled_tokens = plan.setups.first()?.cache_tokens.saturating_mul(plan.setups.first()?.replicas as u64);
        let bounds = Bounds::of(plan.trace, pooled_tokens);
        progress.done(&plan.trace.name, "bounds");
        return Some(Done::Bounds(bounds));
    };
    let setup = plan.setups.get(index)?;
    let run = simulate(plan.trace, setup);
    progress.done(&plan.trace.name, &format!("{}, {}", name(setup), setup.incident.name()));
    Some(Done::Run(index, run))
}

fn collect(plans: usize, mut done: Vec<(usize, Done)>) -> Vec<Results> {
    let order = |result: &Done| if let Done::Run(index, _) = result { index + 1 } else { 0 };
    done.sort_by_key(|(plan, result)| (*plan, order(result)));
    let empty = || Results { bounds: Bounds { pooled: Vec::new(), infinite: Vec::new() }, runs: Vec::new() };
    let mut results: Vec<Results> = (0..plans).map(|_| empty()).collect();
    for (plan, result) in done {
        let Some(results) = results.get_mut(plan) else { continue };
        match result {
            Done::Bounds(bounds) => results.bounds = bounds,
            Done::Run(_, run) => results.runs.push(run),
        }
    }
    results
}
