//! What is encoded says the same as what is not, wherever it is cut: requests of JSON and forms, answers as documents and streams.

#![cfg(test)]

use std::io::Write as _;

use attache_proto::Operation;
use attache_proto::encoding::{Coding, Decoder};
use attache_proto::request::{RequestScan, UsageEvent, scan_as};
use attache_proto::response::{BodyFormat, Counted, EndOfStream, Output, ResponseScanner, UsageVisibility};
use attache_proto::splice::Splice;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const FORM: &str = "multipart/form-data; boundary=b";

fn encode(coding: Coding, data: &[u8]) -> Vec<u8> {
    let level = Compression::default();
    match coding {
        Coding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), level);
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        Coding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), level);
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        Coding::Brotli => {
            let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 20);
            encoder.write_all(data).unwrap();
            encoder.into_inner()
        }
        Coding::Zstd => zstd::encode_all(data, 3).unwrap(),
    }
}

/// What a decoder makes of each chunk, and of the end.
fn decode(coding: Coding, chunks: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut decoder = Decoder::new(coding);
    let mut decoded: Vec<Vec<u8>> = Vec::new();
    for chunk in chunks {
        let mut out = Vec::new();
        decoder.feed(chunk, |piece| out.extend_from_slice(piece)).unwrap();
        decoded.push(out);
    }
    decoder.finish().unwrap();
    decoded
}

fn cut(data: &[u8], mut at: Vec<prop::sample::Index>) -> Vec<&[u8]> {
    at.sort_by_key(|at| at.index(data.len() + 1));
    let mut chunks = Vec::new();
    let mut start = 0;
    for end in at.iter().map(|at| at.index(data.len() + 1)).chain([data.len()]) {
        chunks.push(&data[start..end]);
        start = end;
    }
    chunks
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..12)
}

/// What answers a body: its scan, and what goes on of it as the client sent it.
fn scanned_and_spliced(operation: Operation, content_type: &str, body: &[u8]) -> (RequestScan, Bytes) {
    let scan = scan_as(operation, Some(content_type), body).unwrap();
    let splice = Splice::new(scan.edits("another", UsageEvent::Ask), body.len()).unwrap();
    (scan, splice.apply(&Bytes::copy_from_slice(body)))
}

/// A request's fields, `model` among them.
fn request() -> impl Strategy<Value = Map<String, Value>> {
    let other = prop_oneof![
        any::<u32>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        any::<String>().prop_map(|text| json!({"model": text, "stream": true})),
    ];
    let messages = prop::collection::vec(any::<String>(), 0..3)
        .prop_map(|texts| texts.into_iter().map(|text| json!({"role": "user", "content": text})).collect::<Value>());
    (
        ".{1,20}",
        any::<bool>(),
        messages,
        prop::collection::vec(("[a-l]{1,6}", other), 0..4),
        any::<prop::sample::Index>(),
    )
        .prop_map(|(model, stream, messages, others, at)| {
            let mut fields: Vec<(String, Value)> = others;
            let known = [("model", model.into()), ("stream", stream.into()), ("messages", messages)];
            for (name, value) in known {
                fields.insert(at.index(fields.len() + 1), (name.to_owned(), value));
            }
            fields.into_iter().collect()
        })
}

/// A stream of events, of which some have usage: lines end in any of the three ways.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let usage = (0_u32..1_000, 0_u32..1_000).prop_map(|(input, output)| {
        json!({"choices": [], "usage": {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}})
    });
    let content =
        any::<String>().prop_map(|text| json!({"choices": [{"index": 0, "delta": {"content": text}}], "usage": null}));
    let event = prop_oneof![4 => content, 1 => usage].prop_map(|event| format!("data: {event}"));
    let line = prop_oneof![6 => event, 1 => Just("data: [DONE]".to_owned()), 1 => Just(": comment".to_owned())];
    (prop::collection::vec(line, 1..8), prop::sample::select(vec!["\n", "\r\n", "\r"])).prop_map(|(lines, end)| {
        let events = lines.iter().map(|line| format!("event: chunk{end}{line}{end}{end}"));
        events.collect::<String>().into_bytes()
    })
}

fn answered(format: BodyFormat, visibility: UsageVisibility, chunks: &[Vec<u8>]) -> (Counted, Vec<u8>) {
    let mut scanner = ResponseScanner::new(Operation::ChatCompletions, format, visibility);
    let mut sent = Vec::new();
    for (index, chunk) in chunks.iter().enumerate() {
        let end = if index + 1 == chunks.len() { EndOfStream::End } else { EndOfStream::More };
        match scanner.feed(&Bytes::copy_from_slice(chunk), end) {
            Output::Unchanged => sent.extend_from_slice(chunk),
            Output::Replaced(bytes) => sent.extend_from_slice(&bytes),
            Output::Withheld { .. } => unreachable!("nothing bounds this answer"),
        }
    }
    (scanner.counted(), sent)
}

/// The usage that the last event with one tells, read by splitting lines.
fn last_usage(stream: &[u8]) -> Option<(u64, u64)> {
    let text = String::from_utf8(stream.to_vec()).unwrap();
    let events = text.split(['\r', '\n']).filter_map(|line| line.strip_prefix("data: "));
    let mut usages =
        events.filter_map(|event| serde_json::from_str::<Value>(event).ok()?.get("usage")?.as_object().cloned());
    usages
        .next_back()
        .map(|usage| (usage["prompt_tokens"].as_u64().unwrap(), usage["completion_tokens"].as_u64().unwrap()))
}

proptest! {
    #[test]
    fn an_encoded_request_is_scanned_and_spliced_like_one_that_is_not(
        fields in request(), coding in prop::sample::select(Coding::ALL.to_vec()), at in cuts(),
    ) {
        let body = Value::Object(fields.clone()).to_string().into_bytes();
        let encoded = encode(coding, &body);
        let decoded = decode(coding, &cut(&encoded, at)).concat();
        prop_assert_eq!(&decoded, &body);
        let (scan, spliced) = scanned_and_spliced(Operation::ChatCompletions, "application/json", &decoded);
        prop_assert_eq!(Some(scan.model.as_str()), fields["model"].as_str());
        prop_assert_eq!(Some(scan.stream), fields["stream"].as_bool());
        let mut edited = fields;
        if scan.stream {
            edited.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        edited.insert("model".to_owned(), "another".into());
        prop_assert_eq!(serde_json::from_slice::<Value>(&spliced).unwrap(), Value::Object(edited));
    }

    #[test]
    fn an_encoded_form_gives_its_model_and_keeps_every_other_byte(
        model in "[a-zA-Z0-9/:._-]{1,20}", file in prop::collection::vec(any::<u8>(), 0..200),
        coding in prop::sample::select(Coding::ALL.to_vec()), at in cuts(),
    ) {
        let head = b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";
        // What begins no line parts nothing.
        let file = [&file[..], b"x--b\r\n", &file].concat();
        let before = [&head[..], &file, b"\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n"].concat();
        prop_assume!(!file.windows(5).any(|window| window == b"\r\n--b"));
        let after = b"\r\n--b--\r\n";
        let body = [&before[..], model.as_bytes(), after].concat();
        let decoded = decode(coding, &cut(&encode(coding, &body), at)).concat();
        let (scan, spliced) = scanned_and_spliced(Operation::Transcriptions, FORM, &decoded);
        prop_assert_eq!(&scan.model, &model);
        prop_assert_eq!(&spliced[..], &[&before[..], b"another", after].concat()[..]);
    }

    #[test]
    fn an_encoded_stream_has_the_same_usage_and_comes_out_the_same_wherever_it_is_cut(
        stream in stream(), coding in prop::sample::select(Coding::ALL.to_vec()), at in cuts(), removed in any::<bool>(),
        longest in 1_usize..40,
    ) {
        let visibility = if removed { UsageVisibility::Remove } else { UsageVisibility::Keep };
        let whole = answered(BodyFormat::EventStream, visibility, std::slice::from_ref(&stream));
        let decoded = decode(coding, &cut(&encode(coding, &stream), at));
        prop_assert_eq!(decoded.concat(), &stream[..]);
        // What is as short as this comes out in one piece, where a longer one would be cut.
        let chunks: Vec<_> = decoded.iter().flat_map(|chunk| chunk.chunks(longest)).map(<[u8]>::to_vec).collect();
        let (counted, sent) = answered(BodyFormat::EventStream, visibility, &chunks);
        prop_assert_eq!((&counted, &sent), (&whole.0, &whole.1));
        prop_assert_eq!(counted.usage.map(|usage| (usage.input, usage.output)), last_usage(&stream));
        if !removed {
            prop_assert_eq!(sent, stream);
        }
    }
}
