//! How fast request bodies are scanned.

use std::hint::black_box;

use attache_proto::{Operation, request};
use attache_tests::{Error, Result};
use serde::{Serialize, de::IgnoredAny};
use serde_json::Value;

use super::stopwatch::times;
use crate::{affinity::Body, measure::Pace, report::Progress};

/// Lengths of chats, in bytes.
const CHATS: [usize; 4] = [4_000, 40_000, 400_000, 4_000_000];

/// A line of code as JSON has it: an escape in every 30 bytes or so.
const CODE: &str = r#"    let text = \"x\";\n    if a == b {\n        return Some(text);\n    }\n"#;

/// One body.
#[derive(Debug, Serialize)]
pub(super) struct Scan {
    pub(super) body: String,
    pub(super) bytes: usize,
    /// The scanner's, in MB/s.
    pub(super) scan: f64,
    /// serde_json's over the same bytes, to a tree of values.
    pub(super) parse: f64,
    /// serde_json's without making anything of it.
    pub(super) walk: f64,
    /// memchr's for a byte that is not there.
    pub(super) search: f64,
    /// How many times as fast as the parser the scanner is, in the same rounds.
    pub(super) over_parse: f64,
    pub(super) over_walk: f64,
    /// Which part of the search's speed it has.
    pub(super) of_search: f64,
}

pub(super) fn measure(pace: Pace, progress: &mut Progress) -> Result<Vec<Scan>> {
    let chats = CHATS.map(|bytes| (format!("chat, {} kB", bytes / 1_000), Body::new(bytes).bytes().to_vec()));
    let messages = format!(r#"{{"role":"user","content":"{}"}}"#, CODE.repeat(400_000 / CODE.len()));
    let code = format!(r#"{{"model":"llama","messages":[{messages}],"stream":true}}"#);
    let bodies = chats.into_iter().chain([("code, 400 kB".to_owned(), code.into_bytes())]);
    bodies.map(|(name, body)| of(name, &body, pace, progress)).collect()
}

fn of(name: String, body: &[u8], pace: Pace, progress: &mut Progress) -> Result<Scan> {
    progress.say(&format!("bodies and streams: scanning {name}"));
    let scanned = request::scan(Operation::ChatCompletions, body);
    scanned.map_err(|error| Error::unexpected("a body that can be scanned", error.to_string()))?;
    let times = times(
        pace,
        &mut [
            &mut || {
                let _ = black_box(request::scan(Operation::ChatCompletions, black_box(body)));
            },
            &mut || {
                let _ = black_box(serde_json::from_slice::<Value>(black_box(body)));
            },
            &mut || {
                let _ = black_box(serde_json::from_slice::<IgnoredAny>(black_box(body)));
            },
            // JSON has no NUL.
            &mut || {
                let _ = black_box(memchr::memchr(0, black_box(body)));
            },
        ],
    );
    let speed = |lane| body.len() as f64 / times.of(lane) / 1e6;
    Ok(Scan {
        body: name,
        bytes: body.len(),
        scan: speed(0),
        parse: speed(1),
        walk: speed(2),
        search: speed(3),
        over_parse: times.ratio(1, 0),
        over_walk: times.ratio(2, 0),
        of_search: times.ratio(3, 0),
    })
}
