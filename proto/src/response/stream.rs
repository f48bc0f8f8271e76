//! A stream of events: what they say, and the one that is taken out.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::document::{Choices, Content, Document, Found, UsageObject};
use super::{Counted, EndOfStream, Output, UsageVisibility};
use crate::sse::{EventScanner, Piece};

/// The longest event that can be the one that is taken out, and so the most that is held back, in bytes. That event has
/// some 300 to 700 bytes; a longer one goes on at once.
const MAX_HELD_BYTES: usize = 16 * 1024;

/// A stream that is being read.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    visibility: UsageVisibility,
    scanner: EventScanner,
    document: Document,
    data: DataHead,
    event: Event,
    /// The event's bytes in earlier chunks, which the client does not have yet.
    held: BytesMut,
    /// A CR ended an event that was taken out, and the LF that may follow belongs to it.
    removed_carriage_return: bool,
}

/// What has become of the event that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// There is none.
    None,
    /// All of its bytes are still here, from the given offset in the chunk; 0 if it began before.
    Here(usize),
    /// Some of its bytes have gone on.
    Gone,
}

impl Stream {
    pub(super) fn new(document: Document, visibility: UsageVisibility) -> Self {
        Self {
            visibility,
            scanner: EventScanner::new(),
            document,
            data: DataHead::default(),
            event: Event::None,
            held: BytesMut::new(),
            removed_carriage_return: false,
        }
    }

    pub(super) fn feed(&mut self, chunk: &Bytes, end: EndOfStream, counted: &mut Counted) -> Output {
        let mut outlet = Outlet { chunk, before: Bytes::new(), removed: Vec::new() };
        if !chunk.is_empty() && std::mem::take(&mut self.removed_carriage_return) && chunk.starts_with(b"\n") {
            outlet.removed.push(0..1);
        }
        let mut rest = chunk.as_ref();
        while let Some(piece) = self.scanner.next(&mut rest) {
            let at = chunk.len() - rest.len();
            match piece {
                Piece::Begin => self.event = Event::Here(at),
                Piece::Data(data) => {
                    self.data.extend(data);
                    self.document.feed(data);
                }
                Piece::Discard => self.let_go(&mut outlet),
                Piece::Dispatch => {
                    let is_usage = self.dispatch(counted);
                    match self.event {
                        Event::Here(begin) if is_usage && self.may_remove(chunk, begin, at) => {
                            self.held.clear();
                            outlet.removed.push(begin..at);
                            self.removed_carriage_return = at == chunk.len() && chunk.ends_with(b"\r");
                            self.event = Event::None;
                        }
                        _ => self.let_go(&mut outlet),
                    }
                }
            }
        }
        let kept_to = self.end_chunk(&mut outlet, end);
        if end == EndOfStream::End {
            self.end_stream(counted);
        }
        outlet.into_output(kept_to)
    }

    pub(super) fn model(&self) -> Option<&str> {
        self.document.model()
    }

    /// An event is complete, or one that breaks off is as complete as it gets. Whether it is the one that carries the usage
    /// and nothing else.
    fn dispatch(&mut self, counted: &mut Counted) -> bool {
        let is_complete = self.document.is_complete();
        let found = self.document.restart();
        let data = std::mem::take(&mut self.data);
        counted.events += 1;
        if data.is_done() {
            counted.done = true;
            return false;
        }
        counted.malformed |= !is_complete && !data.is_blank();
        let is_usage = is_complete && found.choices == Choices::Empty && found.usage_object == UsageObject::Present;
        counted.add(found);
        is_usage
    }

    /// Whether the event whose bytes in this chunk lie between `begin` and `end` is short enough to be taken out wherever
    /// it is cut.
    fn may_remove(&self, chunk: &[u8], begin: usize, end: usize) -> bool {
        let event = chunk.get(begin..end).unwrap_or_default();
        // The LF of a CRLF may come too late to be counted.
        let counted_bytes = event.strip_suffix(b"\r\n").map_or(event.len(), |shorter| shorter.len() + 1);
        self.visibility == UsageVisibility::Remove && self.held.len() + counted_bytes <= MAX_HELD_BYTES
    }

    /// The event is complete and goes on; so does what was held of it.
    fn let_go(&mut self, outlet: &mut Outlet<'_>) {
        self.event = Event::None;
        if !self.held.is_empty() {
            outlet.before = self.held.split().freeze();
        }
    }

    /// Decides on the event that is cut by the end of the chunk; returns up to where the chunk goes on.
    fn end_chunk(&mut self, outlet: &mut Outlet<'_>, end: EndOfStream) -> usize {
        let whole = outlet.chunk.len();
        let Event::Here(begin) = self.event else {
            return whole;
        };
        let cut = outlet.chunk.get(begin..).unwrap_or_default();
        let is_short = self.held.len() + cut.len() <= MAX_HELD_BYTES;
        if self.visibility == UsageVisibility::Remove && end == EndOfStream::More && is_short {
            self.held.extend_from_slice(cut);
            self.event = Event::Here(0);
            return begin;
        }
        self.let_go(outlet);
        self.event = Event::Gone;
        whole
    }

    /// The standard drops an event that breaks off, but its tokens were spent.
    fn end_stream(&mut self, counted: &mut Counted) {
        if !self.scanner.is_within_event() || self.data.is_blank() {
            return;
        }
        if self.document.is_complete() || self.data.is_done() {
            self.dispatch(counted);
        } else {
            counted.malformed = true;
            counted.usage = self.document.usage().or(counted.usage);
        }
    }
}

impl Counted {
    fn add(&mut self, found: Found) {
        self.usage = found.usage.or(self.usage);
        if found.choices == Choices::Some && found.content == Content::Present {
            self.content_events += 1;
        }
    }
}

/// The first bytes of an event's data: enough to tell `[DONE]`.
#[derive(Debug, Clone, Copy, Default)]
struct DataHead {
    bytes: [u8; 16],
    len: usize,
}

impl DataHead {
    fn extend(&mut self, data: &[u8]) {
        for (kept, byte) in self.bytes.iter_mut().skip(self.len).zip(data) {
            *kept = *byte;
        }
        self.len = self.len.saturating_add(data.len());
    }

    fn is_done(&self) -> bool {
        self.bytes.get(..self.len).is_some_and(|data| data.trim_ascii() == b"[DONE]")
    }

    fn is_blank(&self) -> bool {
        self.bytes.get(..self.len).is_some_and(|data| data.trim_ascii().is_empty())
    }
}

/// What goes on in place of a chunk.
struct Outlet<'a> {
    chunk: &'a Bytes,
    /// What was held back and goes on before it.
    before: Bytes,
    /// The parts of the chunk that are taken out, in order.
    removed: Vec<Range<usize>>,
}

impl Outlet<'_> {
    /// Puts together what goes on, if the chunk does up to `end`.
    fn into_output(self, end: usize) -> Output {
        if self.before.is_empty() && self.removed.is_empty() {
            return if end == self.chunk.len() { Output::Unchanged } else { Output::Replaced(self.chunk.slice(..end)) };
        }
        let mut bytes = BytesMut::with_capacity(self.before.len() + end);
        bytes.extend_from_slice(&self.before);
        let mut kept = 0;
        for removed in &self.removed {
            bytes.extend_from_slice(self.chunk.get(kept..removed.start).unwrap_or_default());
            kept = removed.end;
        }
        bytes.extend_from_slice(self.chunk.get(kept..end).unwrap_or_default());
        Output::Replaced(bytes.freeze())
    }
}
