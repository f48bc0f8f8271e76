//! Prompts that share nothing, but for a few that are sent a second time within minutes.

use super::{Context, Draft};

const SECONDS_BETWEEN: f64 = 0.27;
const REPEATED: f64 = 0.06;

pub(super) fn draw(draft: &mut Draft) {
    let mut at = 0.0;
    let mut session = 0;
    while at < draft.seconds {
        at += draft.random.exponential(SECONDS_BETWEEN);
        session += 1;
        let mut context = Context::default();
        let tokens = draft.random.log_normal(9_500.0, 1.0).clamp(20.0, 190_000.0);
        context.say(tokens, &mut draft.blocks);
        let output = draft.random.log_normal(85.0, 1.05);
        draft.request(at, session, &context, output);
        if draft.random.happens(REPEATED) {
            let again = at + draft.random.between(2.0, 180.0);
            draft.request(again, session, &context, output);
        }
    }
}
