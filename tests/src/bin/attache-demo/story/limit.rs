//! A budget of tokens a minute: each answer says what was left before it, and what is over the limit reaches no model.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use attache_model_server::ANSWER_TOKENS_HEADER;
use attache_tests::{Answer, Error, Stack};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::METERED_KEY;
use crate::{
    screen::{Screen, Style},
    table::{
        Align::{Left, Right},
        Cell, Table, bar,
    },
    watch::Watch,
};

/// As in the operator's YAML.
const LIMIT: u64 = 300;
const WINDOW: Duration = Duration::from_secs(60);
/// What the eleven calls may take of the window.
const STORY: Duration = Duration::from_secs(15);

/// Questions, and how long the simulated model answers each, in tokens. With their prompts these are calls of 29 to 40 tokens.
const CALLS: [(&str, u64); 11] = [
    ("Name a river in Portugal.", 26),
    ("What is 17 times 3?", 16),
    ("Which moon is the largest?", 16),
    ("Who wrote Middlemarch?", 16),
    ("How many keys has a piano?", 14),
    ("What do bees dance about?", 17),
    ("Name the smallest prime.", 16),
    ("Why is the sky blue?", 16),
    ("Which sea has no shore?", 17),
    ("Give me a word for dawn.", 26),
    ("One more question, please.", 16),
];

const BAR_WIDTH: usize = 24;

pub(super) async fn play(stack: &Stack, screen: &mut Screen) -> Result<(), Error> {
    wait_for_room(screen).await;
    let mut calls = Vec::new();
    for (number, (question, answer_tokens)) in CALLS.into_iter().enumerate() {
        screen.progress(&format!("call {} of {}", number + 1, CALLS.len()));
        calls.push(Call::make(stack, question, answer_tokens).await?);
    }

    let mut table = Table::new(&[
        ("call", Right),
        ("x-ratelimit-remaining-tokens", Left),
        ("prompt + answer", Right),
        ("status", Left),
        ("servers asked", Right),
    ]);
    for (number, call) in calls.iter().enumerate() {
        let style = if call.answer.status == 200 { Style::Good } else { Style::Bad };
        let remaining = call.remaining();
        table.row([
            Cell::plain(number + 1),
            Cell::plain(match remaining {
                Some(remaining) => format!("{remaining:>3} {}", bar(remaining, LIMIT, BAR_WIDTH)),
                None => "none told".to_owned(),
            }),
            Cell::plain(
                call.usage
                    .map_or_else(String::new, |(input, output)| format!("{input} + {output} = {}", input + output)),
            ),
            Cell::new(style, call.answer.status),
            Cell::plain(call.reached),
        ]);
    }
    screen.table(&table);
    if let Some(refused) = calls.last() {
        let retry_after = refused.answer.header("retry-after").unwrap_or("not told");
        let message = refused.answer.error_message().unwrap_or_else(|| refused.answer.text());
        screen.note(&format!("The eleventh's answer: retry-after {retry_after}; {message}"));
    }
    judge(&calls, screen);
    Ok(())
}

fn judge(calls: &[Call], screen: &mut Screen) {
    let statuses: Vec<_> = calls.iter().map(|call| call.answer.status).collect();
    screen.expect(
        "Ten calls are answered, and the eleventh is refused with 429.",
        statuses.as_slice(),
        [[200; 10].as_slice(), &[429]].concat().as_slice(),
    );
    let used: Vec<_> = calls.iter().map(Call::total).collect();
    let left = used.iter().scan(LIMIT, |left, used| {
        let before = *left;
        *left = left.saturating_sub(*used);
        Some(Some(before))
    });
    screen.expect(
        &format!("Each is told what was left before it: {LIMIT} less what the answers until then report as used."),
        calls.iter().map(Call::remaining).collect::<Vec<_>>(),
        left.collect(),
    );
    screen.expect(
        "Nine calls use 280 tokens, so the tenth is admitted; with it, 320.",
        (used.iter().take(9).sum::<u64>(), used.iter().sum::<u64>()),
        (280, 320),
    );
    screen.expect(
        "No model server sees the eleventh.",
        calls.iter().map(|call| call.reached).collect::<Vec<_>>(),
        statuses.iter().map(|status| usize::from(*status == 200)).collect(),
    );
    let retry_after = calls.last().and_then(|call| call.answer.header("retry-after")?.parse::<u64>().ok());
    let in_window = retry_after.is_some_and(|seconds| (1..=WINDOW.as_secs()).contains(&seconds));
    screen.verdict("It is told when to come back.", (!in_window).then(|| format!("retry-after is {retry_after:?}")));
}

/// One call as it went.
struct Call {
    answer: Answer,
    /// Prompt and answer tokens, as the answer reports them.
    usage: Option<(u64, u64)>,
    /// How many requests reached a model server.
    reached: usize,
}

impl Call {
    async fn make(stack: &Stack, question: &str, answer_tokens: u64) -> Result<Self, Error> {
        let client = stack.client().with_key(METERED_KEY);
        let client = client.with_header(ANSWER_TOKENS_HEADER, &answer_tokens.to_string());
        let body = json!({"model": "assistant-metered", "messages": [{"role": "user", "content": question}]});
        let watch = Watch::begin(stack).await?;
        let answer = client.chat(&body).await?;
        let reached = watch.end(stack).await?.served.len();
        let json = answer.json()?;
        let field = |name: &str| json.pointer(&format!("/usage/{name}")).and_then(Value::as_u64);
        let usage = field("prompt_tokens").zip(field("completion_tokens"));
        Ok(Self { answer, usage, reached })
    }

    fn remaining(&self) -> Option<u64> {
        self.answer.header("x-ratelimit-remaining-tokens")?.parse().ok()
    }

    fn total(&self) -> u64 {
        self.usage.map_or(0, |(input, output)| input + output)
    }
}

/// Windows begin with the clock's minutes. All calls have to be in one, or there would be nothing to see.
async fn wait_for_room(screen: &mut Screen) {
    // A clock before 1970 counts from 0, as the sidecar's does.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let into_window = Duration::from_nanos((now.as_nanos() % WINDOW.as_nanos()) as u64);
    let left = WINDOW.saturating_sub(into_window);
    if left < STORY {
        screen.note(&format!(
            "The budget is renewed with the clock's minute, and this one has {} s left: waiting for the next.",
            left.as_secs()
        ));
        screen.progress("waiting");
        sleep(left).await;
    }
}
