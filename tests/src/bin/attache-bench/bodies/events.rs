//! What an event of a streamed answer costs.

use std::hint::black_box;

use attache_proto::{
    Operation,
    response::{Allowance, BodyFormat, EndOfStream, ResponseScanner, UsageVisibility},
};
use attache_tests::{Error, Result};
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::stopwatch::times;
use crate::{measure::Pace, report::Progress};

/// Events with content in one stream. The usage and `[DONE]` come on top.
const EVENTS: usize = 1_000;

/// The chunks in which a model server writes that has more than one event ready, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;

/// One kind of stream.
#[derive(Debug, Serialize)]
pub(super) struct Events {
    pub(super) stream: String,
    pub(super) event_bytes: usize,
    /// Nanoseconds of CPU an event, where everything goes on.
    pub(super) kept: f64,
    /// The same where the event with the usage is taken out.
    pub(super) removed: f64,
    /// The same where so much output is allowed and no more, as under a cap.
    pub(super) capped: f64,
    /// serde_json's over the data of the same events, to a tree of values.
    pub(super) parse: f64,
    /// How many times as long as `removed` that takes, in the same rounds.
    pub(super) over_parse: f64,
}

pub(super) fn measure(pace: Pace, progress: &mut Progress) -> Result<Vec<Events>> {
    [("small", 6, 0), ("small, in chunks of 16 KiB", 6, CHUNK_BYTES), ("4 kB", 3_850, 0)]
        .into_iter()
        .map(|(name, content_bytes, chunk_bytes)| of(name, content_bytes, chunk_bytes, pace, progress))
        .collect()
}

fn of(name: &str, content_bytes: usize, chunk_bytes: usize, pace: Pace, progress: &mut Progress) -> Result<Events> {
    progress.say(&format!("bodies and streams: events, {name}"));
    let content = data(&format!(
        r#"[{{"index":0,"delta":{{"content":"{}"}},"logprobs":null,"finish_reason":null}}],"usage":null"#,
        " token".repeat(content_bytes / 6)
    ));
    let usage = data(r#"[],"usage":{"prompt_tokens":2006,"completion_tokens":1000,"total_tokens":3006}"#);
    let mut datas = vec![content.clone(); EVENTS];
    datas.push(usage);
    let events: Vec<_> =
        datas.iter().map(|data| format!("data: {data}\n\n")).chain(["data: [DONE]\n\n".to_owned()]).collect();
    let chunks: Vec<Bytes> = if chunk_bytes == 0 {
        events.iter().map(|event| Bytes::copy_from_slice(event.as_bytes())).collect()
    } else {
        events.concat().as_bytes().chunks(chunk_bytes).map(Bytes::copy_from_slice).collect()
    };
    for visibility in [UsageVisibility::Keep, UsageVisibility::Remove] {
        let counted = feed(&chunks, visibility, None).counted();
        if (counted.content_events, counted.usage.map(|usage| usage.total)) != (EVENTS as u64, Some(3_006)) {
            return Err(Error::unexpected("all events counted, and the usage", format!("{counted:?}")));
        }
    }
    let times = times(
        pace,
        &mut [
            &mut || {
                let _ = black_box(feed(&chunks, UsageVisibility::Keep, None));
            },
            &mut || {
                let _ = black_box(feed(&chunks, UsageVisibility::Remove, None));
            },
            &mut || {
                let _ = black_box(feed(&chunks, UsageVisibility::Remove, Some(u64::MAX)));
            },
            &mut || {
                for data in &datas {
                    let _ = black_box(serde_json::from_str::<Value>(black_box(data)));
                }
            },
        ],
    );
    let each = |lane| times.of(lane) / events.len() as f64 * 1e9;
    Ok(Events {
        stream: name.to_owned(),
        event_bytes: content.len() + "data: \n\n".len(),
        kept: each(0),
        removed: each(1),
        capped: each(2),
        parse: each(3),
        over_parse: times.ratio(3, 1),
    })
}

/// An event's data as OpenAI's chats have it, up to what differs.
fn data(choices: &str) -> String {
    let head =
        r#""id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"llama""#;
    format!(r#"{{{head},"choices":{choices}}}"#)
}

fn feed(chunks: &[Bytes], visibility: UsageVisibility, allowed: Option<u64>) -> ResponseScanner {
    let mut scanner = ResponseScanner::new(Operation::ChatCompletions, BodyFormat::EventStream, visibility);
    if let Some(tokens) = allowed {
        scanner.allow(Allowance::Likely(tokens));
    }
    for chunk in chunks {
        let _ = black_box(scanner.feed(black_box(chunk), EndOfStream::More));
    }
    scanner
}
