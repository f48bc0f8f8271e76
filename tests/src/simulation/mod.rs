//! Model servers and sidecars in simulated time: what a way of placing requests is worth on a trace.
//!
//! [`simulate`] runs one trace through one [`Setup`]. The servers, the clock and the load are simulated; the prompts are hashed
//! by the production code, and [`Policy::Ours`] is the production decision. Every run of the same trace and setup gives the same
//! figures.

pub mod baseline;
pub mod bounds;
mod cache;
mod engine;
pub mod figures;
mod ours;
mod replica;
pub mod routing;
mod setup;

use crate::traces::Trace;

pub use bounds::Bounds;
pub use figures::{Figures, Outcome, Run};
pub use replica::Scrape;
pub use setup::{Incident, Policy, Setup, Sharing};

/// Runs `trace` through `setup`.
pub fn simulate(trace: &Trace, setup: &Setup) -> Run {
    engine::Engine::new(trace, setup).run()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::traces::{Origin, Request, Shape};

    const SECOND: Duration = Duration::from_secs(1);

    /// Requests of 10,240 tokens, each a second's prefill and 24 ms at 10,000 tokens/s, and of 41 tokens of answer, 1 s.
    fn trace(arrivals_and_first_blocks: &[(u64, u32)]) -> Trace {
        let request = |(seconds, first): &(u64, u32)| Request {
            arrival: SECOND * u32::try_from(*seconds).unwrap(),
            input_tokens: 10_240,
            output_tokens: 41,
            session: 0,
            blocks: (*first..first + 20).collect(),
        };
        Trace::new("test", Origin::Generated(0), arrivals_and_first_blocks.iter().map(request).collect())
    }

    fn setup(trace: &Trace, policy: Policy, replicas: usize) -> Setup {
        Setup { replicas, sidecars: 1, ..Setup::of(trace, policy) }
    }

    fn waits_ms(run: &Run) -> Vec<Option<u128>> {
        run.outcomes.iter().map(|outcome| outcome.time_to_first_token.map(|wait| wait.as_millis())).collect()
    }

    #[test]
    fn a_replica_prefills_one_prompt_at_a_time_and_finds_what_it_has_prefilled() {
        let trace = trace(&[(0, 0), (0, 0), (0, 100), (9, 100)]);
        let run = simulate(&trace, &setup(&trace, Policy::Random, 1));
        assert_eq!(waits_ms(&run), [Some(1024), Some(1024), Some(2048), Some(0)]);
        let cached: Vec<_> = run.outcomes.iter().map(|outcome| outcome.cached_tokens).collect();
        assert_eq!(cached, [0, 10_240, 0, 10_240]);
        let bounds = Bounds::of(&trace, 1_000_000);
        assert_eq!(bounds.pooled, cached);
        assert_eq!(run.figures(&bounds.pooled).hit_ratio, 0.5);
    }

    #[test]
    fn requests_at_a_lost_replica_are_asked_again_elsewhere_and_broken_answers_fail() {
        // Half time is at 10 s: by turns, the first request answers then, the third waits for its first token.
        let trace = trace(&[(8, 0), (9, 100), (10, 200), (20, 300)]);
        for policy in [Policy::RoundRobin, Policy::Ours] {
            let quiet = setup(&trace, policy, 2);
            let loss = Setup { incident: Incident::ReplicaLoss, ..quiet.clone() };
            let (quiet, loss) = (simulate(&trace, &quiet), simulate(&trace, &loss));
            let failed = |run: &Run| waits_ms(run).iter().filter(|wait| wait.is_none()).count();
            assert_eq!(failed(&quiet), 0);
            assert!(failed(&loss) <= 1, "{policy:?}: {:?}", waits_ms(&loss));
            assert_eq!(loss.outcomes[3].replica, 1, "{policy:?}: the lost one is still away");
        }
    }

    #[test]
    fn the_same_trace_and_setup_give_the_same_run() {
        let trace = Shape::Conversations.draw_for(SECOND * 120, 1);
        for incident in [Incident::AllSidecarsRestart, Incident::ScaleUp] {
            for sharing in [Sharing::Apart, Sharing::Shared] {
                let setup = Setup { sharing, incident, ..Setup::of(&trace, Policy::Ours) };
                let outcomes = |run: Run| format!("{:?}", run.outcomes);
                assert_eq!(outcomes(simulate(&trace, &setup)), outcomes(simulate(&trace, &setup)));
            }
        }
    }

    #[test]
    fn every_policy_serves_every_request() {
        let trace = Shape::Tenants.draw_for(SECOND * 60, 1);
        let bounds = Bounds::of(&trace, 8_000_000);
        for policy in Policy::ALL {
            let figures = simulate(&trace, &Setup::of(&trace, policy)).figures(&bounds.pooled);
            assert_eq!((figures.requests, figures.failed), (trace.requests.len(), 0), "{policy:?}");
            assert!(figures.hit_ratio > 0.2 && figures.imbalance_routed >= 1.0, "{policy:?}: {figures:?}");
        }
    }
}
