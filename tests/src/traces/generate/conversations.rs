//! Conversations that all share their first block. Their lengths and numbers of turns have long tails, and so do the pauses.

use super::{Context, Draft};

/// Between two new conversations; some of them were under way long before the trace starts.
const SECONDS_BETWEEN: f64 = 0.455;
const BEFORE: f64 = 3000.0;

pub(super) fn draw(draft: &mut Draft) {
    let mut system = Context::default();
    system.say(600.0, &mut draft.blocks);

    let mut start = -BEFORE;
    let mut session = 0;
    while start < draft.seconds {
        start += draft.random.exponential(SECONDS_BETWEEN);
        session += 1;
        let mut context = system.clone();
        let first = draft.random.log_normal(5400.0, 1.2).clamp(100.0, 120_000.0);
        context.say(first, &mut draft.blocks);
        let mut at = start;
        for turn in 0..turns(draft) {
            if turn > 0 {
                at += draft.random.log_normal(130.0, 1.2);
                let said = draft.random.log_normal(500.0, 1.4).min(60_000.0);
                context.say(said, &mut draft.blocks);
            }
            if context.tokens() > 126_000 {
                break;
            }
            let output = draft.random.log_normal(290.0, 0.58);
            draft.request(at, session, &context, output);
        }
    }
}

/// Most conversations have one question; a few go on and on.
fn turns(draft: &mut Draft) -> usize {
    let kind = draft.random.unit();
    if kind < 0.70 {
        1
    } else if kind < 0.99 {
        2 + draft.random.exponential(0.8) as usize
    } else {
        8 + draft.random.exponential(6.0) as usize
    }
}
