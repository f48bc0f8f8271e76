//! Coding agents: a context that grows with each call up to 200,000 tokens and is then made shorter, calls in bursts with
//! pauses between them, now and then a step back. The tools and the system prompt are shared by those who run the same version.

use super::{Context, Draft};
use crate::traces::random::Zipf;

const SESSIONS_PER_SECOND: f64 = 288.0 / 3600.0;
const VERSIONS: usize = 150;
/// Sessions that were under way when the trace starts.
const BEFORE: f64 = 900.0;
const LONGEST: u64 = 198_000;

pub(super) fn draw(draft: &mut Draft) {
    let mut versions = Vec::with_capacity(VERSIONS);
    for _ in 0..VERSIONS {
        let mut version = Context::default();
        let tokens = draft.random.between(11_000.0, 20_000.0);
        version.say(tokens, &mut draft.blocks);
        versions.push(version);
    }
    let popularity = Zipf::new(VERSIONS, 0.6);

    let mut start = -BEFORE;
    let mut session = 0;
    while start < draft.seconds {
        start += draft.random.exponential(1.0 / SESSIONS_PER_SECOND);
        session += 1;
        let version = versions.get(popularity.draw(&mut draft.random)).cloned().unwrap_or_default();
        agent(draft, start, session, &version);
    }
}

fn agent(draft: &mut Draft, start: f64, session: u64, version: &Context) {
    let mut context = version.clone();
    // Half of the sessions are resumed, with all that they had read before.
    let read = if draft.random.happens(0.55) {
        draft.random.between(500.0, 6000.0)
    } else {
        draft.random.between(30_000.0, 120_000.0)
    };
    context.say(read, &mut draft.blocks);
    let calls = 3 + draft.random.log_normal(30.0, 0.85).min(150.0) as usize;
    let mut at = start;
    for _ in 0..calls {
        let output = draft.random.log_normal(230.0, 1.1);
        draft.request(at, session, &context, output);
        at += if draft.random.happens(0.75) {
            draft.random.between(6.0, 28.0)
        } else {
            draft.random.between(40.0, 120.0)
        };
        if draft.random.happens(0.02) {
            let kept = context.tokens() as f64 * draft.random.between(0.6, 0.98);
            context.cut((kept as u64).max(version.tokens()));
        }
        let said = draft.random.log_normal(700.0, 1.45).min(90_000.0);
        context.say(said, &mut draft.blocks);
        if context.tokens() > LONGEST {
            context = version.clone();
            let summary = draft.random.between(3000.0, 20_000.0);
            context.say(summary, &mut draft.blocks);
        }
    }
}
