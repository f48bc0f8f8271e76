//! The sidecar dies in the middle of an answer: the answer survives, what comes next is refused in good form, and a restart
//! mends it.

use attache_model_server::{ANSWER_TOKENS_HEADER, Finished};
use attache_tests::{Error, Stack};
use serde_json::{Value, json};

use super::{APP_KEY, ENDPOINT};
use crate::{
    screen::{Screen, Style},
    table::{
        Align::{Left, Right},
        Cell, Table,
    },
};

const ANSWER_TOKENS: usize = 120;
/// After how many of them the sidecar is killed.
const KILLED_AFTER: usize = 20;

pub(super) async fn play(stack: &mut Stack, screen: &mut Screen) -> Result<(), Error> {
    let client = stack.client().with_key(APP_KEY);
    let body = json!({"model": ENDPOINT, "messages": [{"role": "user", "content": "Tell me a long story."}]});
    let mut table = Table::new(&[("what happens", Left), ("what the client gets", Left), ("events", Right)]);

    screen.progress("streaming an answer");
    stack.forget_requests();
    let streaming = client.clone().with_header(ANSWER_TOKENS_HEADER, &ANSWER_TOKENS.to_string());
    let mut stream = streaming.stream_chat(&body).await?;
    let (mut events, mut before) = (0, 0);
    while before < KILLED_AFTER
        && let Some(event) = stream.next().await?
    {
        events += 1;
        before += words(&event);
    }
    table.row([
        Cell::plain("an answer begins to stream"),
        Cell::plain(format!("{}, the first {before} tokens", stream.status)),
        Cell::plain(events),
    ]);
    stack.gateway.sidecar.kill().await?;
    let running =
        stack.models.iter().flat_map(|model| model.requests()).any(|record| record.finished == Finished::Running);
    let rest = stream.rest().await;
    let after: usize = rest.data.iter().map(|event| words(event)).sum();
    table.row([
        Cell::new(Style::Bad, "SIGKILL to the sidecar"),
        Cell::new(
            Style::Good,
            format!("the other {after} tokens{}", if rest.is_done() { ", then [DONE]" } else { "" }),
        ),
        Cell::plain(rest.data.len()),
    ]);

    screen.progress("asking without a sidecar");
    let refused = client.chat(&body).await?;
    let error = refused.error_message();
    table.row([
        Cell::plain("the next request"),
        Cell::new(
            Style::Bad,
            format!("{}, {}", refused.status, if error.is_some() { "a JSON error" } else { "no JSON" }),
        ),
        Cell::plain(""),
    ]);

    screen.progress("starting the sidecar again");
    stack.gateway.sidecar.restart().await?;
    let answered = client.chat(&body).await?;
    table.row([
        Cell::plain("the sidecar is started again"),
        Cell::new(Style::Good, format!("{}, an answer", answered.status)),
        Cell::plain(""),
    ]);
    screen.table(&table);
    if rest.json().any(|event| event.get("usage").is_some_and(Value::is_object)) {
        screen.note("Nobody was left to take out the usage event that the sidecar had asked for: the client got it.");
    }
    screen.note(&format!("The next request: {}", error.clone().unwrap_or_else(|| refused.text())));

    screen.expect("The sidecar is killed while the model generates.", running, true);
    screen.expect(
        &format!("The answer is completed without it: {ANSWER_TOKENS} tokens, then [DONE]."),
        (before + after, rest.is_done()),
        (ANSWER_TOKENS, true),
    );
    screen.expect(
        "The next request fails closed: a 503 in JSON, with retry-after.",
        (refused.status, error.is_some(), refused.header("retry-after").is_some()),
        (503, true, true),
    );
    screen.expect("After the restart all is well.", answered.status, 200);
    Ok(())
}

/// The words in an event; the simulated model's tokens are one word each.
fn words(event: &str) -> usize {
    let event: Option<Value> = serde_json::from_str(event).ok();
    let content = event.as_ref().and_then(|event| event.pointer("/choices/0/delta/content")?.as_str());
    content.map_or(0, |content| content.split_whitespace().count())
}
