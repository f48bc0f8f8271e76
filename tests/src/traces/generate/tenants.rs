//! Tenants whose sizes follow Zipf's law. Each has a system prompt of 1,000 to 12,000 tokens and conversations of some turns.

use super::{Context, Draft};
use crate::traces::random::Zipf;

const TENANTS: usize = 60;
const SECONDS_BETWEEN: f64 = 0.445;
const BEFORE: f64 = 600.0;

pub(super) fn draw(draft: &mut Draft) {
    let mut tenants = Vec::with_capacity(TENANTS);
    for rank in 0..TENANTS {
        let mut tenant = Context::default();
        // The large ones, which would otherwise decide the mean length of a draw by themselves, have a middling one.
        let tokens =
            if rank < 5 { draft.random.between(5000.0, 8000.0) } else { draft.random.between(1000.0, 12_000.0) };
        tenant.say(tokens, &mut draft.blocks);
        tenants.push(tenant);
    }
    let sizes = Zipf::new(TENANTS, 1.0);

    let mut start = -BEFORE;
    let mut session = 0;
    while start < draft.seconds {
        start += draft.random.exponential(SECONDS_BETWEEN);
        session += 1;
        let mut context = tenants.get(sizes.draw(&mut draft.random)).cloned().unwrap_or_default();
        let turns = (1.0 + draft.random.exponential(3.75)).min(21.0) as usize;
        let mut at = start;
        for _ in 0..turns {
            let asked = draft.random.log_normal(420.0, 1.0).min(9000.0);
            context.say(asked, &mut draft.blocks);
            let output = draft.random.log_normal(200.0, 0.8);
            draft.request(at, session, &context, output);
            context.say(output, &mut draft.blocks);
            at += 4.0 + draft.random.log_normal(24.0, 0.7);
        }
    }
}
