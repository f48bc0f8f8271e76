//! After the story: what the reader can try.

use attache_tests::Stack;

use crate::{
    screen::{Screen, Style},
    story::{APP_KEY, METERED_KEY},
};

/// Says what to try.
pub(crate) fn invite(stack: &Stack, screen: &mut Screen) {
    let gateway = stack.gateway.envoy.url();
    let chat = |key: &str, model: &str, more: &str| {
        format!(
            "curl -sN {gateway}/v1/chat/completions -H 'authorization: Bearer {key}' \\\n       \
             -H 'content-type: application/json' \\\n       \
             -d '{{\"model\":\"{model}\",{more}\"messages\":[{{\"role\":\"user\",\"content\":\"Hello!\"}}]}}'"
        )
    };
    let sidecar = stack.gateway.sidecar.admin_url();
    let suggestions = [
        ("a streamed answer", chat(APP_KEY, "assistant", "\"stream\":true,")),
        (
            "the budget of 300 tokens a minute: watch x-ratelimit-remaining-tokens, until it is 429",
            chat(METERED_KEY, "assistant-metered", "").replace("curl -sN", "curl -si"),
        ),
        ("a key that may not call this endpoint: 401", chat(APP_KEY, "internal-assistant", "")),
        ("the models that a key may call", format!("curl -s {gateway}/v1/models -H 'authorization: Bearer {APP_KEY}'")),
        (
            "the sidecar: the configuration in force, and its metrics",
            format!("curl -s {sidecar}/config {sidecar}/metrics"),
        ),
        ("Envoy's admin pages", format!("curl -s {}/clusters", stack.gateway.envoy.admin_url())),
    ];
    screen.line("\nThe gateway serves until Ctrl-C. Try, in another terminal:");
    for (what, command) in suggestions {
        let what = screen.paint(Style::Faint, &format!("# {what}"));
        screen.line(&format!("\n  {what}\n  {command}"));
    }
    screen.line("");
}
