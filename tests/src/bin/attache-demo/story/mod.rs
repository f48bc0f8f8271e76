//! The story, step by step.

mod affinity;
mod crash;
mod keys;
mod limit;
mod name;

use attache_tests::{Error, Stack};

use crate::screen::Screen;

/// The key of ClientKey `app-a` in the operator's YAML.
pub(crate) const APP_KEY: &str = "sk-demo-app-a";
/// The key of ClientKey `metered`.
pub(crate) const METERED_KEY: &str = "sk-demo-metered";
/// The unified endpoint that [`APP_KEY`] may call.
const ENDPOINT: &str = "assistant";

/// Plays all steps. One that breaks off is a failure of the story, and the next is played all the same.
pub(crate) async fn play(stack: &mut Stack, screen: &mut Screen) {
    screen.step('a', "One endpoint name, answered by a model of another name");
    conclude(name::play(stack, screen).await, screen);
    screen.step('b', "A conversation stays where its cache is, the others spread");
    conclude(affinity::play(stack, screen).await, screen);
    screen.step('c', "A key with 300 tokens a minute");
    conclude(limit::play(stack, screen).await, screen);
    screen.step('d', "Who may not call is refused, as early as can be");
    conclude(keys::play(stack, screen).await, screen);
    screen.step('e', "The sidecar is killed in the middle of an answer");
    conclude(crash::play(stack, screen).await, screen);
}

fn conclude(step: Result<(), Error>, screen: &mut Screen) {
    if let Err(error) = step {
        screen.verdict("the step is played to its end", Some(error.to_string()));
    }
}
