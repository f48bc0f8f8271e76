//! A growing conversation finds its prefix in the cache of one replica, while requests that share nothing use all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use attache_model_server::ANSWER_TOKENS_HEADER;
use attache_tests::{Answer, Client, Error, Stack};
use serde_json::json;

use super::{APP_KEY, ENDPOINT};
use crate::{
    place::replica,
    screen::{Screen, Style},
    table::{
        Align::{Left, Right},
        Cell, Table, bar,
    },
    watch::{Seen, Watch},
};

const TURNS: [&str; 5] = [
    "A guest has lost the key to room 12. What do I do?",
    "She would like to change to a room with a view.",
    "There is none free before Friday. What can I offer?",
    "She takes the breakfast. Who has to be told?",
    "Write the note for the morning shift.",
];

/// So many that one of three replicas gets none of them once in 5,000 times: which gets which depends on their ports.
const UNRELATED: usize = 24;

const BAR_WIDTH: usize = 20;

pub(super) async fn play(stack: &Stack, screen: &mut Screen) -> Result<(), Error> {
    let client = stack.client().with_key(APP_KEY).with_header(ANSWER_TOKENS_HEADER, "32");
    let turns = converse(stack, screen, &client).await?;
    let unrelated = ask_around(stack, screen, &client).await?;

    let mut table = Table::new(&[
        ("turn", Right),
        ("replica", Left),
        ("prompt tokens", Right),
        ("from its cache", Right),
        ("computed anew", Right),
        ("cached share", Left),
    ]);
    for (number, turn) in turns.iter().enumerate() {
        table.row([
            Cell::plain(number + 1),
            Cell::new(Style::Accent, replica(turn.address)),
            Cell::plain(turn.prompt_tokens),
            Cell::plain(turn.cached_tokens),
            Cell::plain(turn.prompt_tokens.saturating_sub(turn.cached_tokens)),
            Cell::new(Style::Good, turn.share()),
        ]);
    }
    screen.table(&table);
    let spread: Vec<_> =
        unrelated.iter().map(|(address, requests)| format!("{} × {requests}", replica(*address))).collect();
    screen.note(&format!("{UNRELATED} unrelated questions went to {}.", spread.join(", ")));
    if let Some(decision) = turns.last().and_then(|turn| turn.decision.as_deref()) {
        screen.note(&format!("x-attache-decision of the last turn: {decision}"));
    }

    let replicas: BTreeSet<_> = turns.iter().map(|turn| turn.address).collect();
    screen.expect("All five turns go to one replica.", replicas.len(), 1);
    let cached: Vec<_> = turns.iter().map(|turn| turn.cached_tokens).collect();
    let grows = cached.first() == Some(&0) && cached.is_sorted_by(|before, after| before < after);
    screen.verdict(
        "The first turn finds nothing in the cache, and each further one more than the one before.",
        (!grows).then(|| format!("found {cached:?}")),
    );
    screen.expect(
        &format!("The {UNRELATED} unrelated questions spread over all replicas."),
        (unrelated.len(), unrelated.values().sum()),
        (stack.models.len(), UNRELATED),
    );
    Ok(())
}

/// One turn as it was served.
struct Turn {
    address: SocketAddr,
    prompt_tokens: u64,
    cached_tokens: u64,
    /// Why this replica, as `x-attache-decision` says.
    decision: Option<String>,
}

impl Turn {
    fn of(answer: &Answer, seen: &Seen) -> Result<Self, Error> {
        let (address, record) = seen.only()?;
        Ok(Self {
            address,
            prompt_tokens: record.prompt_tokens,
            cached_tokens: record.cached_tokens,
            decision: answer.header("x-attache-decision").map(str::to_owned),
        })
    }

    fn share(&self) -> String {
        let percent = self.cached_tokens * 100 / self.prompt_tokens.max(1);
        format!("{} {percent:2} %", bar(self.cached_tokens, self.prompt_tokens, BAR_WIDTH))
    }
}

/// Holds the conversation: each request repeats all that was said, as chat clients do.
async fn converse(stack: &Stack, screen: &mut Screen, client: &Client) -> Result<Vec<Turn>, Error> {
    let mut messages = vec![json!({"role": "system", "content": handbook()})];
    let mut turns = Vec::new();
    for (number, said) in TURNS.into_iter().enumerate() {
        screen.progress(&format!("turn {} of {}", number + 1, TURNS.len()));
        messages.push(json!({"role": "user", "content": said}));
        let watch = Watch::begin(stack).await?;
        let answer = client.chat(&json!({"model": ENDPOINT, "messages": messages})).await?;
        turns.push(Turn::of(&answer, &watch.end(stack).await?)?);
        messages.extend(answer.json()?.pointer("/choices/0/message").cloned());
    }
    Ok(turns)
}

/// Asks questions that have nothing in common, and counts who got how many.
async fn ask_around(stack: &Stack, screen: &mut Screen, client: &Client) -> Result<BTreeMap<SocketAddr, usize>, Error> {
    screen.progress(&format!("{UNRELATED} unrelated questions"));
    let watch = Watch::begin(stack).await?;
    for number in 1..=UNRELATED {
        let question = format!("{number} times {number}, and what is special about it?");
        client.chat(&json!({"model": ENDPOINT, "messages": [{"role": "user", "content": question}]})).await?;
    }
    let mut requests = BTreeMap::new();
    for (address, _) in watch.end(stack).await?.served {
        *requests.entry(address).or_default() += 1;
    }
    Ok(requests)
}

/// A long system prompt, as assistants have it: about 2,000 tokens.
fn handbook() -> String {
    let rules = (1..=80).map(|rule| {
        format!(
            "Rule {rule}: whatever a guest asks for at desk {}, say what can be done, by when, and who does it.\n",
            rule * 7 % 31
        )
    });
    format!("You are the assistant at the front desk of a hotel. This is the handbook.\n{}", rules.collect::<String>())
}
