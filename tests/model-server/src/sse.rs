//! Writes server-sent events, the way the standard's own examples do or in any other way that a [`Framing`] asks for. No I/O.

use serde_json::Value;

use crate::faults::{Framing, Gap, Interlude, Layout, LineEnd};

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Data(Value),
    /// `[DONE]`.
    Done,
}

impl Framing {
    /// The bytes of the event that so many events stand before.
    pub(crate) fn write(&self, event: &Event, events_before: u64) -> Vec<u8> {
        let line_end = match self.line_end {
            LineEnd::Lf => "\n",
            LineEnd::Cr => "\r",
            LineEnd::CrLf => "\r\n",
        };
        let field = match self.gap {
            Gap::Space => "data: ",
            Gap::Nothing => "data:",
        };
        let mut bytes = Vec::new();
        match self.interlude {
            Interlude::Comments => bytes.extend(format!(": keep-alive {events_before}{line_end}{line_end}").bytes()),
            Interlude::Garbage if events_before == 1 => {
                bytes.extend(b"\xff\xfe\x00\xc3\x28 no field");
                bytes.extend(format!("{line_end}{field}{{\"usage\":{{\"total_tokens\":{line_end}{line_end}").bytes());
            }
            Interlude::Garbage | Interlude::Nothing => {}
        }
        let data = match (event, self.layout) {
            (Event::Done, _) => "[DONE]".to_owned(),
            (Event::Data(data), Layout::OneLine) => data.to_string(),
            // The alternate form breaks lines only where JSON allows white space, so the lines joined by line feeds are the same JSON.
            (Event::Data(data), Layout::ManyLines) => format!("{data:#}"),
        };
        for line in data.lines() {
            bytes.extend(format!("{field}{line}{line_end}").bytes());
        }
        bytes.extend(line_end.bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Fault;

    fn written(fault: &str, events_before: u64) -> Vec<u8> {
        let framing = fault.parse::<Fault>().unwrap().framing;
        framing.write(&Event::Data(json!({"a": "b\nc"})), events_before)
    }

    #[test]
    fn an_event_is_a_data_line_and_an_empty_line() {
        assert_eq!(written("", 0), b"data: {\"a\":\"b\\nc\"}\n\n");
        assert_eq!(Framing::default().write(&Event::Done, 3), b"data: [DONE]\n\n");
    }

    #[test]
    fn framings_change_nothing_but_the_form() {
        assert_eq!(written("crlf", 0), b"data: {\"a\":\"b\\nc\"}\r\n\r\n");
        assert_eq!(written("cr", 0), b"data: {\"a\":\"b\\nc\"}\r\r");
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
