//! What placement promises, held on workloads in simulated time: eight replicas of a million tokens behind four sidecars.
//!
//! The workloads are drawn, by seeds that nothing was tuned to. `ATTACHE_TRACES` names a directory of recorded ones to be held to
//! the same promises in their place.

#![cfg(test)]

use std::{env, path::Path};

use attache_tests::{
    simulation::{Bounds, Figures, Incident, Policy, Setup, Sharing, simulate},
    traces::{self, Shape, Trace},
};

const SEED: u64 = 4;

/// Workloads in which prompts come from caches, and those in which next to nothing does.
fn workloads() -> (Vec<Trace>, Vec<Trace>) {
    match env::var_os("ATTACHE_TRACES") {
        Some(directory) => (traces::read::read(Path::new(&directory)).unwrap(), Vec::new()),
        None => {
            let shared = [Shape::Conversations, Shape::Agents, Shape::Tenants];
            (shared.map(draw).into(), vec![draw(Shape::Unshared)])
        }
    }
}

/// Half as long as `make sim` draws them, which is long enough for caches to be full.
fn draw(shape: Shape) -> Trace {
    shape.draw_for(shape.duration() / 2, SEED)
}

/// One workload and what it could be at best.
struct Bed<'a> {
    trace: &'a Trace,
    bounds: Bounds,
}

impl<'a> Bed<'a> {
    fn of(trace: &'a Trace) -> Self {
        let setup = Setup::of(trace, Policy::Ours);
        Self { trace, bounds: Bounds::of(trace, setup.cache_tokens * setup.replicas as u64) }
    }

    fn run(&self, policy: Policy, sharing: Sharing) -> Figures {
        simulate(self.trace, &Setup { sharing, ..Setup::of(self.trace, policy) }).figures(&self.bounds.pooled)
    }

    fn name(&self) -> &str {
        &self.trace.name
    }
}

/// In the mean, a first token comes sooner than where each request goes to the replica with the fewest requests.
fn assert_sooner_than_least_requests(bed: &Bed<'_>, ours: &Figures) {
    for policy in [Policy::LeastRequests, Policy::LeastRequestsScraped] {
        let theirs = bed.run(policy, Sharing::Apart);
        assert!(ours.ttft_mean_s < theirs.ttft_mean_s, "{}, {policy:?}: {ours:?} {theirs:?}", bed.name());
    }
}

#[test]
fn four_sidecars_that_do_not_talk_lose_little_of_what_one_cache_for_all_would_have() {
    for trace in &workloads().0 {
        let bed = Bed::of(trace);
        let figures = bed.run(Policy::Ours, Sharing::Apart);
        assert!(figures.share_of_bound >= 0.93 && figures.imbalance_routed <= 1.7, "{}: {figures:?}", bed.name());
        assert_sooner_than_least_requests(&bed, &figures);
    }
}

#[test]
fn four_sidecars_that_share_lose_next_to_nothing() {
    for trace in &workloads().0 {
        let bed = Bed::of(trace);
        let figures = bed.run(Policy::Ours, Sharing::Shared);
        assert!(figures.share_of_bound >= 0.97 && figures.imbalance_routed <= 1.3, "{}: {figures:?}", bed.name());
        assert_sooner_than_least_requests(&bed, &figures);
    }
}

#[test]
fn a_sidecar_that_begins_anew_costs_little_in_the_minutes_after() {
    for trace in &workloads().0 {
        let bed = Bed::of(trace);
        let setup = Setup { incident: Incident::SidecarRestart, ..Setup::of(trace, Policy::Ours) };
        let figures = simulate(trace, &setup).aftermath(&bed.bounds.pooled);
        assert!(figures.share_of_bound >= 0.85, "{}: {figures:?}", bed.name());
    }
}

#[test]
fn where_prompts_have_nothing_in_common_nobody_waits_for_caches() {
    for trace in &workloads().1 {
        let bed = Bed::of(trace);
        let random = bed.run(Policy::Random, Sharing::Apart);
        for sharing in [Sharing::Apart, Sharing::Shared] {
            let figures = bed.run(Policy::Ours, sharing);
            assert!(figures.hit_ratio > 3.0 * random.hit_ratio && figures.imbalance_routed <= 1.3, "{figures:?}");
            assert_sooner_than_least_requests(&bed, &figures);
        }
    }
}
