//! Server-sent events, read as the standard says: a reader of its own, so that no fault is shared with the code under test.

/// Takes bytes in pieces of any size and gives the data of whole events.
#[derive(Debug, Default)]
pub struct Reader {
    /// The line under way.
    line: Vec<u8>,
    /// The `data` lines of the event under way.
    data: Option<String>,
    /// Whether the last byte was a carriage return, so that a line feed belongs to it.
    after_return: bool,
}

impl Reader {
    /// Adds bytes and gives the events that are now whole.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        for &byte in bytes {
            match byte {
                b'\n' if self.after_return => {}
                b'\r' | b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    self.take(&String::from_utf8_lossy(&line), &mut events);
                }
                _ => self.line.push(byte),
            }
            self.after_return = byte == b'\r';
        }
        events
    }

    fn take(&mut self, line: &str, events: &mut Vec<String>) {
        if line.is_empty() {
            events.extend(self.data.take());
        } else if let Some(data) = line.strip_prefix("data:") {
            let data = data.strip_prefix(' ').unwrap_or(data);
            match &mut self.data {
                Some(lines) => {
                    lines.push('\n');
                    lines.push_str(data);
                }
                None => self.data = Some(data.to_owned()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str =
        ": a comment\r\ndata: {\"a\":1}\r\n\r\ndata:two\ndata: lines\n\nevent: x\rdata: é\r\rdata: [DONE]\r\r";

    #[test]
    fn events_are_the_same_however_the_stream_is_cut() {
        let expected = ["{\"a\":1}", "two\nlines", "é", "[DONE]"];
        for size in 1..=STREAM.len() {
            let mut reader = Reader::default();
            let events: Vec<_> = STREAM.as_bytes().chunks(size).flat_map(|piece| reader.feed(piece)).collect();
            assert_eq!(events, expected, "in pieces of {size}");
        }
    }
}
