//! The scanner of answers.

use attache_proto::Operation;
use attache_proto::response::{Allowance, BodyFormat, Counted, EndOfStream, Output, ResponseScanner, UsageVisibility};
use bytes::Bytes;

use crate::head::Head;

/// The longest event that can be held back.
const HELD_BYTES: usize = 16 * 1024;

/// An answer says and becomes the same wherever it is cut. What is not to be changed is not.
pub fn response(input: &[u8]) {
    let Some((head, body)) = Head::split(input) else { return };
    let reading = Reading {
        operation: head.operation(),
        format: if head.chooses(0) { BodyFormat::Json } else { BodyFormat::EventStream },
        visibility: if head.chooses(1) { UsageVisibility::Remove } else { UsageVisibility::Keep },
        allowance: head.chooses(2).then_some(1),
    };
    let whole = reading.of(&[body]);
    // A longer event is another one for those who see its end at once.
    if body.len() <= HELD_BYTES || reading.allowance.is_none() {
        assert_eq!(reading.of(&head.cuts().chunks(body)), whole, "{reading:?}");
        let with_empty_end: Vec<_> = head.cuts().chunks(body).into_iter().chain([&b""[..]]).collect();
        assert_eq!(reading.of(&with_empty_end), whole, "{reading:?}");
    }
    let (counted, sent) = whole;
    if reading.format == BodyFormat::Json || reading.visibility == UsageVisibility::Keep {
        assert_eq!(sent, body);
    } else {
        assert!(is_within(&sent, body), "what goes on came in, and in that order");
    }
    assert!(counted.content_events <= counted.events + 1, "{counted:?}");
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    operation: Operation,
    format: BodyFormat,
    visibility: UsageVisibility,
    /// What is granted at first, and each time that an event is withheld, in tokens.
    allowance: Option<u64>,
}

impl Reading {
    /// What an answer in these chunks says and becomes.
    fn of(self, chunks: &[&[u8]]) -> (Counted, Vec<u8>) {
        let mut scanner = ResponseScanner::new(self.operation, self.format, self.visibility);
        let mut granted = self.allowance.unwrap_or_default();
        if self.allowance.is_some() {
            scanner.allow(Allowance::Likely(granted));
        }
        let mut sent = Vec::new();
        for (index, chunk) in chunks.iter().enumerate() {
            let end = if index + 1 == chunks.len() { EndOfStream::End } else { EndOfStream::More };
            let mut chunk = Bytes::copy_from_slice(chunk);
            loop {
                match scanner.feed(&chunk, end) {
                    Output::Unchanged => sent.extend_from_slice(&chunk),
                    Output::Replaced(bytes) => sent.extend_from_slice(&bytes),
                    Output::Withheld { passed, rest } => {
                        sent.extend_from_slice(&passed);
                        chunk = rest;
                        // More each time, so that an event that claims to be huge ends, too.
                        granted = granted.saturating_mul(2).max(1);
                        scanner.allow(Allowance::Likely(granted));
                        continue;
                    }
                }
                break;
            }
        }
        (scanner.counted(), sent)
    }
}

/// Whether `part` is left of `whole` after some of its bytes were taken out.
fn is_within(part: &[u8], whole: &[u8]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|byte| whole.any(|candidate| candidate == byte))
}
