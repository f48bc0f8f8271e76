//! How fast bodies and streams are scanned: `cargo bench -p attache-proto`.
//!
//! The inputs are of the kinds that LLM traffic has: long prompts, prompts of code (an escape every 30 bytes or so), agent
//! requests of many small messages, answers as streams of small events, and embeddings.

use std::hint::black_box;
use std::time::{Duration, Instant};

use attache_proto::Operation;
use attache_proto::request::scan;
use attache_proto::response::{BodyFormat, EndOfStream, ResponseScanner, UsageVisibility};
use bytes::Bytes;

const CHAT: Operation = Operation::ChatCompletions;

fn main() {
    let prose = "The quick brown fox jumps over the lazy dog and goes on to the next sentence. ";
    let code = r#"    let text = \"x\";\n    if a == b {\n        return Some(text);\n    }\n"#;
    let chat = |content: &str, count: usize, messages: usize| {
        let message = format!(r#"{{"role":"user","content":"{}"}},"#, content.repeat(count));
        format!(r#"{{"model":"m","stream":true,"messages":[{}{{}}]}}"#, message.repeat(messages))
    };
    for (name, body) in [
        ("request, prose of 400 kB", chat(prose, 5_000, 1)),
        ("request, code of 400 kB", chat(code, 5_000, 1)),
        ("request, Chinese of 400 kB", chat("敏捷的棕色狐狸跳过了懒狗，", 10_000, 1)),
        ("request, 2,000 messages of 200 B", chat(prose, 2, 2_000)),
        ("request, 40 kB", chat(prose, 5, 100)),
    ] {
        report(name, body.len(), 1, || scan(CHAT, body.as_bytes()).is_ok());
    }

    let tokens = "1234,".repeat(100_000);
    let body = format!(r#"{{"model":"m","prompt":[{tokens}1]}}"#);
    report("request, 100,000 token ids", body.len(), 1, || scan(Operation::Completions, body.as_bytes()).is_ok());

    let event = concat!(
        r#"data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m","#,
        r#""choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        "\n\n"
    );
    let stream = event.repeat(1_000);
    for (name, chunk) in [("stream, an event a chunk", event.len()), ("stream, 16 KiB chunks", 16 * 1024)] {
        let stream = Bytes::from(stream.clone());
        let chunks: Vec<_> =
            (0..stream.len()).step_by(chunk).map(|at| stream.slice(at..(at + chunk).min(stream.len()))).collect();
        report(name, stream.len(), 1_000, || feed(CHAT, BodyFormat::EventStream, &chunks));
    }

    let floats = "-0.012345678,".repeat(80_000);
    let answer = format!(r#"{{"data":[{{"embedding":[{floats}0]}}],"usage":{{"prompt_tokens":1}}}}"#);
    let chunks = [Bytes::from(answer)];
    report("answer, an embedding of 1 MB", chunks.iter().map(Bytes::len).sum(), 1, || {
        feed(Operation::Embeddings, BodyFormat::Json, &chunks)
    });
}

fn feed(operation: Operation, format: BodyFormat, chunks: &[Bytes]) -> bool {
    let mut scanner = ResponseScanner::new(operation, format, UsageVisibility::Remove);
    for chunk in chunks {
        black_box(scanner.feed(chunk, EndOfStream::More));
    }
    !scanner.counted().malformed
}

/// Prints the median of some runs, for the whole of `bytes` and for each of `items`.
fn report(name: &str, bytes: usize, items: u32, mut run: impl FnMut() -> bool) {
    assert!(run(), "{name} fails");
    let mut times: Vec<Duration> = (0..201)
        .map(|_| {
            let start = Instant::now();
            black_box(run());
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let rate = bytes as f64 / median.as_secs_f64() / 1e6;
    println!("{name:36} {rate:8.0} MB/s  {:>10.1?} each", median / items);
}
