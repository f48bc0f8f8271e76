//! Keys: what headers alone can decide is decided inside Envoy; who may call which endpoint is for the one that reads bodies.

use attache_tests::{Answer, Error, Stack};
use serde_json::json;

use super::{APP_KEY, ENDPOINT};
use crate::{
    screen::{Screen, Style},
    table::{
        Align::{Left, Right},
        Cell, Table,
    },
    watch::{Seen, Watch},
};

pub(super) async fn play(stack: &Stack, screen: &mut Screen) -> Result<(), Error> {
    let none = attempt(stack, screen, "no key", None, ENDPOINT).await?;
    let unknown = attempt(stack, screen, "unknown key", Some("sk-demo-guess"), ENDPOINT).await?;
    let foreign = attempt(stack, screen, "foreign key", Some(APP_KEY), "internal-assistant").await?;

    let mut table = Table::new(&[
        ("request with", Left),
        ("asks for", Left),
        ("status", Left),
        ("refused by", Left),
        ("sidecar asked", Right),
        ("servers asked", Right),
    ]);
    for attempt in [&none, &unknown, &foreign] {
        table.row([
            Cell::plain(attempt.what),
            Cell::plain(attempt.model),
            Cell::new(Style::Bad, attempt.answer.status),
            Cell::new(Style::Accent, attempt.refused_by()),
            Cell::plain(attempt.seen.asked_sidecar),
            Cell::plain(attempt.seen.served.len()),
        ]);
    }
    screen.table(&table);
    for attempt in [&none, &unknown, &foreign] {
        let message = attempt.answer.error_message().unwrap_or_else(|| attempt.answer.text());
        screen.note(&format!("{}: {message}", attempt.what));
    }

    let statuses = [&none, &unknown, &foreign].map(|attempt| attempt.answer.status);
    screen.expect("All three are refused with 401.", statuses, [401; 3]);
    screen.expect(
        "No key: the Wasm filter says so by itself, and the sidecar is not asked.",
        (none.seen.refused_by_filter, none.seen.asked_sidecar),
        (1, 0),
    );
    screen.expect(
        "An unknown key: the sidecar decides, whose documents may be newer than the filter's.",
        (unknown.seen.refused_by_filter, unknown.seen.asked_sidecar),
        (0, 1),
    );
    screen.expect(
        "A key of another endpoint: the sidecar refuses it, for the model's name is in the body.",
        (foreign.seen.refused_by_filter, foreign.seen.asked_sidecar),
        (0, 1),
    );
    let reached = [&none, &unknown, &foreign].map(|attempt| attempt.seen.served.len());
    screen.expect("None of them reaches a model server.", reached, [0; 3]);
    Ok(())
}

/// A request that should be refused.
struct Attempt {
    what: &'static str,
    model: &'static str,
    answer: Answer,
    seen: Seen,
}

async fn attempt(
    stack: &Stack,
    screen: &mut Screen,
    what: &'static str,
    key: Option<&str>,
    model: &'static str,
) -> Result<Attempt, Error> {
    screen.progress(&format!("a request with {what}"));
    let client = stack.client();
    let client = key.map_or(client.clone(), |key| client.with_key(key));
    let body = json!({"model": model, "messages": [{"role": "user", "content": "Hello!"}]});
    let watch = Watch::begin(stack).await?;
    let answer = client.chat(&body).await?;
    Ok(Attempt { what, model, answer, seen: watch.end(stack).await? })
}

impl Attempt {
    fn refused_by(&self) -> &'static str {
        match self.seen {
            Seen { refused_by_filter: 1.., .. } => "Wasm filter",
            Seen { asked_sidecar: 1.., .. } => "sidecar",
            Seen { .. } => "nobody",
        }
    }
}
