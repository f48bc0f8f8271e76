//! What a compressed stream costs: its coding undone, its events read, chunk by chunk.

use std::{hint::black_box, io::Write};

use attache_proto::{
    Operation,
    encoding::{Coding, Decoder},
    response::{BodyFormat, EndOfStream, ResponseScanner, UsageVisibility},
};
use attache_tests::{Error, Result};
use bytes::Bytes;
use serde::Serialize;

use super::stopwatch::times;
use crate::{measure::Pace, report::Progress};

/// The length of a stream once it is decoded, in bytes. Beside it stands one of twice the length.
const STREAM_BYTES: usize = 10_000_000;

/// How the encoded stream is cut: as an HTTP/2 frame is by default.
const CHUNK_BYTES: usize = 16 * 1024;

/// One coding.
#[derive(Debug, Serialize)]
pub(super) struct Encoded {
    pub(super) coding: &'static str,
    pub(super) decoded_bytes: usize,
    pub(super) encoded_bytes: usize,
    /// Milliseconds of CPU to decode the stream and read its events.
    pub(super) milliseconds: f64,
    /// The same to decode it alone.
    pub(super) decode_milliseconds: f64,
    /// How many times as long the stream of twice the length takes, in the same rounds. 2 is linear.
    pub(super) twice: f64,
}

pub(super) fn measure(pace: Pace, progress: &mut Progress) -> Result<Vec<Encoded>> {
    [Coding::Gzip, Coding::Brotli, Coding::Zstd, Coding::Deflate]
        .into_iter()
        .map(|coding| of(coding, pace, progress))
        .collect()
}

fn of(coding: Coding, pace: Pace, progress: &mut Progress) -> Result<Encoded> {
    progress.say(&format!("bodies and streams: {} streams", coding.name()));
    let (once, events) = stream(STREAM_BYTES);
    let (twice, twice_events) = stream(2 * STREAM_BYTES);
    let (decoded_bytes, once, twice) = (once.len(), encode(coding, &once)?, encode(coding, &twice)?);
    for (encoded, events) in [(&once, events), (&twice, twice_events)] {
        let counted = read(coding, encoded);
        if counted != Some(events) {
            return Err(Error::unexpected(format!("{events} events in {}", coding.name()), format!("{counted:?}")));
        }
    }
    let times = times(
        pace,
        &mut [
            &mut || {
                let _ = black_box(read(coding, black_box(&once)));
            },
            &mut || {
                let _ = black_box(read(coding, black_box(&twice)));
            },
            &mut || {
                let mut decoder = Decoder::new(coding);
                for chunk in once.chunks(CHUNK_BYTES) {
                    let _ = black_box(decoder.feed(chunk, |piece| {
                        black_box(piece);
                    }));
                }
            },
        ],
    );
    Ok(Encoded {
        coding: coding.name(),
        decoded_bytes,
        encoded_bytes: once.len(),
        milliseconds: times.of(0) * 1e3,
        decode_milliseconds: times.of(2) * 1e3,
        twice: times.ratio(1, 0),
    })
}

/// A stream of about so many bytes, and how many events with content it has. No two of them are the same.
fn stream(bytes: usize) -> (Vec<u8>, u64) {
    let (mut stream, mut events, mut word) = (Vec::with_capacity(bytes + 1_000), 0, 1_u32);
    while stream.len() < bytes {
        // Marsaglia's xorshift: text that is neither all the same nor noise.
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        let content = format!(" tok{:x} {}", word >> 16, ["the", "fox", "and"].get(word as usize % 3).unwrap_or(&""));
        stream.extend_from_slice(
            format!(
                r#"data: {{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"llama","choices":[{{"index":0,"delta":{{"content":"{content}"}},"logprobs":null,"finish_reason":null}}],"usage":null}}"#
            )
            .as_bytes(),
        );
        stream.extend_from_slice(b"\n\n");
        events += 1;
    }
    stream.extend_from_slice(b"data: [DONE]\n\n");
    (stream, events)
}

/// As the sidecar reads it: the pieces that a chunk decodes to are read one by one.
fn read(coding: Coding, encoded: &[u8]) -> Option<u64> {
    let mut scanner = ResponseScanner::new(Operation::ChatCompletions, BodyFormat::EventStream, UsageVisibility::Keep);
    let mut decoder = Decoder::new(coding);
    for chunk in encoded.chunks(CHUNK_BYTES) {
        let fed = decoder.feed(chunk, |piece| {
            let _ = black_box(scanner.feed(&Bytes::copy_from_slice(piece), EndOfStream::More));
        });
        fed.ok()?;
    }
    decoder.finish().ok()?;
    Some(scanner.counted().content_events)
}

fn encode(coding: Coding, body: &[u8]) -> Result<Vec<u8>> {
    let encoded = match coding {
        Coding::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(body).and_then(|()| encoder.finish())
        }
        Coding::Deflate => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(body).and_then(|()| encoder.finish())
        }
        Coding::Zstd => zstd::encode_all(body, 3),
        // Quality 5 is what servers use for what they make on the fly.
        Coding::Brotli => {
            let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4_096, 5, 22);
            encoder.write_all(body).map(|()| encoder.into_inner())
        }
    };
    encoded.map_err(|error| Error::unexpected(format!("cannot encode {}", coding.name()), error.to_string()))
}
