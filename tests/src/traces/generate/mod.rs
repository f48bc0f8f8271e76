//! Workloads from a seed, of the four shapes that matter to placement.
//!
//! Rates and lengths are those of public traces, so that a draw stands in where those are not there; each seed gives another
//! draw. Each shape is a file.

mod agents;
mod context;
mod conversations;
mod tenants;
mod unshared;

use std::time::Duration;

use super::{Origin, Request, Trace, random::Random};
use context::{Blocks, Context};

/// What a workload's prompts have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Conversations that all start with one block; most are short. As Mooncake's conversation trace.
    Conversations,
    /// Hardly anything: each prompt is its own, few come twice. As long and as frequent as Mooncake's synthetic trace.
    Unshared,
    /// Coding agents whose context grows to 200,000 tokens in bursts of calls, behind a few system prompts.
    Agents,
    /// Tenants of very different size, each with a long system prompt, and short conversations behind it.
    Tenants,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Self; 4] = [Self::Conversations, Self::Unshared, Self::Agents, Self::Tenants];

    /// What tables call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Conversations => "conversations",
            Self::Unshared => "unshared",
            Self::Agents => "agents",
            Self::Tenants => "tenants",
        }
    }

    /// How long the public trace of this shape is.
    pub const fn duration(self) -> Duration {
        match self {
            Self::Conversations => Duration::from_secs(3537),
            Self::Unshared => Duration::from_secs(1022),
            Self::Agents | Self::Tenants => Duration::from_secs(3600),
        }
    }

    /// The draw of `seed` that is as long as the public trace.
    pub fn draw(self, seed: u64) -> Trace {
        self.draw_for(self.duration(), seed)
    }

    /// The draw of `seed` over `duration`, at the same rate.
    pub fn draw_for(self, duration: Duration, seed: u64) -> Trace {
        let mut draft = Draft {
            random: Random::new(seed, self as u64),
            blocks: Blocks::default(),
            seconds: duration.as_secs_f64(),
            requests: Vec::new(),
        };
        match self {
            Self::Conversations => conversations::draw(&mut draft),
            Self::Unshared => unshared::draw(&mut draft),
            Self::Agents => agents::draw(&mut draft),
            Self::Tenants => tenants::draw(&mut draft),
        }
        Trace::new(self.name(), Origin::Generated(seed), draft.requests)
    }
}

/// A trace in the making.
struct Draft {
    random: Random,
    blocks: Blocks,
    /// Requests come from 0 until here; what comes outside is left out.
    seconds: f64,
    requests: Vec<Request>,
}

impl Draft {
    fn request(&mut self, at: f64, session: u64, context: &Context, output_tokens: f64) {
        if at < 0.0 || at >= self.seconds {
            return;
        }
        self.requests.push(Request {
            arrival: Duration::from_secs_f64(at),
            input_tokens: context.tokens(),
            output_tokens: output_tokens.clamp(1.0, 8000.0) as u64,
            session,
            blocks: context.blocks(),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Requests, seconds, mean prompt, mean answer of the public traces, and the share of tokens that were seen before.
    const PUBLIC: [(Shape, f64, f64, f64, f64, f64); 4] = [
        (Shape::Conversations, 12_031.0, 3537.0, 12_035.0, 343.0, 0.374),
        (Shape::Unshared, 3993.0, 1022.0, 15_325.0, 149.0, 0.05),
        (Shape::Agents, 10_781.0, 3600.0, 83_574.0, 428.0, 0.953),
        (Shape::Tenants, 34_120.0, 3600.0, 9625.0, 273.0, 0.901),
    ];

    fn share_seen(trace: &Trace) -> f64 {
        let mut seen = HashSet::new();
        let (mut shared, mut all) = (0, 0);
        for request in &trace.requests {
            let known = request.blocks.iter().take_while(|block| seen.contains(*block)).count() as u64;
            shared += known * 512;
            all += request.input_tokens;
            seen.extend(request.blocks.iter().copied());
        }
        shared as f64 / all as f64
    }

    #[test]
    fn draws_are_like_the_public_traces_in_rate_length_and_sharing() {
        for (shape, requests, seconds, input, output, shared) in PUBLIC {
            for seed in [1, 2] {
                let trace = shape.draw(seed);
                let what = format!(
                    "{} {seed}: {} requests, {:?}, {:.0} in, {:.0} out, {:.3} shared",
                    trace.name,
                    trace.requests.len(),
                    trace.duration(),
                    trace.mean_input_tokens(),
                    trace.mean_output_tokens(),
                    share_seen(&trace)
                );
                let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.15;
                assert!(near(trace.requests.len() as f64, requests), "{what}");
                assert!(near(trace.duration().as_secs_f64(), seconds), "{what}");
                assert!(near(trace.mean_input_tokens(), input), "{what}");
                assert!(near(trace.mean_output_tokens(), output), "{what}");
                assert!((share_seen(&trace) - shared).abs() < 0.06, "{what}");
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_draw_and_another_gives_another() {
        let draw = |seed| Shape::Conversations.draw_for(Duration::from_secs(60), seed).requests;
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn every_conversation_starts_with_the_same_block() {
        let trace = Shape::Conversations.draw_for(Duration::from_secs(300), 5);
        let first: HashSet<_> = trace.requests.iter().map(|request| request.blocks[0]).collect();
        assert_eq!(first.len(), 1);
    }
}
