//! Writes server-sent events, the way the standard's own examples do or in any other way that a [`Framing`] asks for. No I/O.

use serde_json::Value;

use crate::framing::{Beginning, Framing, Gap, Interlude, Layout, LineEnd};

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// Data, under the name in `event:` if there is one.
    Data { name: Option<&'static str>, body: Value },
    /// `[DONE]`.
    Done,
    /// The end of a stream that has no mark for it. Nothing is written.
    End,
}

impl Event {
    /// An event as OpenAI's chats have them.
    pub(crate) fn unnamed(body: Value) -> Self {
        Self::Data { name: None, body }
    }

    /// An event whose name is its `type`, as well.
    pub(crate) fn named(name: &'static str, mut body: Value) -> Self {
        if let Some(fields) = body.as_object_mut() {
            fields.shift_insert(0, "type".to_owned(), Value::from(name));
        }
        Self::Data { name: Some(name), body }
    }
}

impl Framing {
    /// The bytes of the event that so many events stand before.
    pub(crate) fn write(&self, event: &Event, events_before: u64) -> Vec<u8> {
        let mut page = Page { line_end: self.line_end, lines: events_before, bytes: Vec::new() };
        let field = match self.gap {
            Gap::Space => "data: ",
            Gap::Nothing => "data:",
        };
        if events_before == 0 && self.beginning == Beginning::ByteOrderMark {
            page.bytes.extend("\u{feff}".bytes());
        }
        match self.interlude {
            Interlude::Comments => {
                page.line(format!(": keep-alive {events_before}").as_bytes());
                page.line(b"");
            }
            Interlude::Garbage if events_before == 1 => {
                page.line(b"\xff\xfe\x00\xc3\x28 no field");
                page.line(format!("{field}{{\"usage\":{{\"total_tokens\":").as_bytes());
                page.line(b"");
            }
            Interlude::Garbage | Interlude::Nothing => {}
        }
        let data = match (event, self.layout) {
            (Event::End, _) => return page.bytes,
            (Event::Done, _) => "[DONE]".to_owned(),
            (Event::Data { body, .. }, Layout::OneLine) => body.to_string(),
            // The alternate form breaks lines only where JSON allows white space, so the lines joined by line feeds are the same JSON.
            (Event::Data { body, .. }, Layout::ManyLines) => format!("{body:#}"),
        };
        if let Event::Data { name: Some(name), .. } = event {
            let gap = field.trim_start_matches("data:");
            page.line(format!("event:{gap}{name}").as_bytes());
        }
        for line in data.lines() {
            page.line(format!("{field}{line}").as_bytes());
        }
        page.line(b"");
        page.bytes
    }
}

/// Lines under way.
struct Page {
    line_end: LineEnd,
    lines: u64,
    bytes: Vec<u8>,
}

impl Page {
    fn line(&mut self, line: &[u8]) {
        let line_end = match (self.line_end, self.lines % 3) {
            // In this order, as CR before an empty line that ends in LF would be one end of a line.
            (LineEnd::Cr, _) | (LineEnd::Mixed, 0) => "\r",
            (LineEnd::CrLf, _) | (LineEnd::Mixed, 1) => "\r\n",
            (LineEnd::Lf, _) | (LineEnd::Mixed, _) => "\n",
        };
        self.bytes.extend_from_slice(line);
        self.bytes.extend(line_end.bytes());
        self.lines += 1;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Fault;

    fn written(fault: &str, events_before: u64) -> Vec<u8> {
        let framing = fault.parse::<Fault>().unwrap().framing;
        framing.write(&Event::unnamed(json!({"a": "b\nc"})), events_before)
    }

    #[test]
    fn an_event_is_a_data_line_and_an_empty_line() {
        assert_eq!(written("", 0), b"data: {\"a\":\"b\\nc\"}\n\n");
        assert_eq!(Framing::default().write(&Event::Done, 3), b"data: [DONE]\n\n");
        assert_eq!(Framing::default().write(&Event::End, 3), b"");
    }

    #[test]
    fn a_named_event_says_its_name_twice() {
        let event = Event::named("ping", json!({"b": 1}));
        assert_eq!(Framing::default().write(&event, 0), b"event: ping\ndata: {\"type\":\"ping\",\"b\":1}\n\n");
    }

    #[test]
    fn framings_change_nothing_but_the_form() {
        assert_eq!(written("crlf", 0), b"data: {\"a\":\"b\\nc\"}\r\n\r\n");
        assert_eq!(written("cr", 0), b"data: {\"a\":\"b\\nc\"}\r\r");
        assert_eq!(written("mixed", 0), b"data: {\"a\":\"b\\nc\"}\r\r\n");
        assert_eq!(written("bom", 0), b"\xef\xbb\xbfdata: {\"a\":\"b\\nc\"}\n\n");
        assert_eq!(written("bom", 1), written("", 1));
        assert_eq!(written("no-space", 0), b"data:{\"a\":\"b\\nc\"}\n\n");
        assert_eq!(written("comments", 2), b": keep-alive 2\n\ndata: {\"a\":\"b\\nc\"}\n\n");
        assert_eq!(written("multi-line", 0), b"data: {\ndata:   \"a\": \"b\\nc\"\ndata: }\n\n");
    }

    #[test]
    fn garbage_stands_before_the_second_event() {
        assert_eq!(written("garbage", 0), written("", 0));
        assert_eq!(written("garbage", 2), written("", 2));
        let second = written("garbage", 1);
        assert!(second.ends_with(&written("", 1)));
        assert!(String::from_utf8(second).is_err());
    }
}
