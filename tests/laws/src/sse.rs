//! The scanner of server-sent events.

use attache_proto::sse::{EventScanner, Piece};

use crate::head::{Cuts, Head};

/// As much of a name as the scanner keeps.
const NAME_BYTES: usize = 64;

/// Name and data; `None` for fields without data.
type Event = Option<(Vec<u8>, Vec<u8>)>;

/// The scanner does what the standard says, wherever the stream is cut.
pub fn sse(input: &[u8]) {
    let Some((head, stream)) = Head::split(input) else { return };
    let expected = by_the_standard(stream);
    assert_eq!(scan([stream]), expected);
    assert_eq!(scan(Cuts::chunks(head.cuts(), stream)), expected);
}

fn scan<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Event> {
    let mut scanner = EventScanner::new();
    let (mut events, mut data) = (Vec::new(), Vec::new());
    for mut rest in chunks {
        while let Some(piece) = scanner.next(&mut rest) {
            match piece {
                Piece::Begin => data.clear(),
                Piece::Data(bytes) => data.extend_from_slice(bytes),
                Piece::Dispatch => events.push(Some((scanner.name().to_vec(), std::mem::take(&mut data)))),
                Piece::Discard => events.push(None),
            }
        }
    }
    events
}

/// WHATWG HTML, section 9.2.6, over a whole stream.
fn by_the_standard(stream: &[u8]) -> Vec<Event> {
    let stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let (mut events, mut fields) = (Vec::new(), 0);
    let (mut data, mut name) = (Vec::new(), Vec::new());
    for line in lines(stream) {
        if line.is_empty() {
            if data.pop().is_some() {
                events.push(Some((std::mem::take(&mut name), std::mem::take(&mut data))));
            } else if fields > 0 {
                events.push(None);
            }
            (data, name, fields) = (Vec::new(), Vec::new(), 0);
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        if colon == Some(0) {
            continue;
        }
        fields += 1;
        let (field, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                data.extend_from_slice(value);
                data.push(b'\n');
            }
            b"event" => name = value.iter().copied().take(NAME_BYTES).collect(),
            _ => {}
        }
    }
    events
}

/// The lines that have an end.
fn lines(stream: &[u8]) -> Vec<Vec<u8>> {
    let (mut lines, mut line) = (Vec::new(), Vec::new());
    let mut bytes = stream.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' => {
                bytes.next_if_eq(&b'\n');
                lines.push(std::mem::take(&mut line));
            }
            b'\n' => lines.push(std::mem::take(&mut line)),
            byte => line.push(byte),
        }
    }
    lines
}
