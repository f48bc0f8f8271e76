//! Clients ask for the endpoint's name; the servers see the model's. Usage is counted though nobody asked for it.

use attache_model_server::{ANSWER_TOKENS_HEADER, Record};
use attache_tests::{Error, Stack};
use serde_json::{Value, json};

use super::{APP_KEY, ENDPOINT};
use crate::{
    place::{SERVED_MODEL, replica},
    screen::{Screen, Style},
    table::{
        Align::{Left, Right},
        Cell, Table,
    },
    watch::{Seen, Watch},
};

const ANSWER_TOKENS: &str = "24";

pub(super) async fn play(stack: &Stack, screen: &mut Screen) -> Result<(), Error> {
    let client = stack.client().with_key(APP_KEY).with_header(ANSWER_TOKENS_HEADER, ANSWER_TOKENS);
    let question = json!([{"role": "user", "content": "What does an attaché do all day?"}]);
    let body = json!({"model": ENDPOINT, "messages": question});

    screen.progress("asking for a whole answer");
    let watch = Watch::begin(stack).await?;
    let whole = client.chat(&body).await?;
    let whole_seen = watch.end(stack).await?;

    screen.progress("asking for a streamed answer");
    let watch = Watch::begin(stack).await?;
    let stream = client.stream_chat(&body).await?;
    let stream_status = stream.status;
    let events = stream.rest().await;
    let stream_seen = watch.end(stack).await?;

    let whole_usage = whole.json()?.get("usage").and_then(tokens);
    let stream_usage = events.json().find_map(|event| event.get("usage").and_then(tokens));
    let mut table = Table::new(&[
        ("answer", Left),
        ("asked for", Left),
        ("model at the server", Left),
        ("replica", Left),
        ("client saw usage", Right),
        ("sidecar counted", Right),
    ]);
    for (name, usage, seen) in [("whole", whole_usage, &whole_seen), ("streamed", stream_usage, &stream_seen)] {
        let (address, record) = seen.only()?;
        table.row([
            Cell::plain(name),
            Cell::plain(ENDPOINT),
            Cell::new(Style::Accent, record.model.as_deref().unwrap_or("none")),
            Cell::plain(replica(address)),
            Cell::plain(shown(usage)),
            Cell::plain(shown(Some(counted(seen)))),
        ]);
    }
    screen.table(&table);

    let (_, whole_record) = whole_seen.only()?;
    let (_, stream_record) = stream_seen.only()?;
    screen.expect("Both requests are answered.", (whole.status, stream_status), (200, 200));
    screen.expect(
        &format!("The client asks for `{ENDPOINT}`, the server is asked for `{SERVED_MODEL}`."),
        (whole_record.model.as_deref(), stream_record.model.as_deref()),
        (Some(SERVED_MODEL), Some(SERVED_MODEL)),
    );
    screen.expect(
        "The sidecar counts what the servers used, prompt + answer.",
        (counted(&whole_seen), counted(&stream_seen)),
        (used(whole_record), used(stream_record)),
    );
    screen.expect(
        "The client did not ask for usage in its stream and gets none: the sidecar asks the server for it, and takes that \
         event out.",
        (stream_usage, asks_for_usage(&stream_record.body)),
        (None, true),
    );
    screen.expect(
        &format!("All {ANSWER_TOKENS} tokens are streamed, then [DONE]."),
        (events.text().split_whitespace().count().to_string(), events.is_done()),
        (ANSWER_TOKENS.to_owned(), true),
    );
    Ok(())
}

/// Prompt and answer tokens.
type Tokens = (u64, u64);

fn tokens(usage: &Value) -> Option<Tokens> {
    let field = |name| usage.get(name).and_then(Value::as_u64);
    field("prompt_tokens").zip(field("completion_tokens"))
}

fn counted(seen: &Seen) -> Tokens {
    (seen.input_tokens, seen.output_tokens)
}

fn used(record: &Record) -> Tokens {
    (record.prompt_tokens, record.completion_tokens)
}

fn shown(tokens: Option<Tokens>) -> String {
    tokens.map_or_else(|| "none".to_owned(), |(input, output)| format!("{input} + {output}"))
}

fn asks_for_usage(body: &str) -> bool {
    let body: Option<Value> = serde_json::from_str(body).ok();
    body.is_some_and(|body| body.pointer("/stream_options/include_usage") == Some(&Value::Bool(true)))
}
