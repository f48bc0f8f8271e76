//! A stream of events: what they say, and the one that is taken out.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::document::Document;
use super::found::{Choices, Found, Substance, UsageObject};
use super::tally::Tally;
use super::{Allowance, EndOfStream, Output, UsageVisibility};
use crate::sse::{EventScanner, Piece};

/// The longest event that can be the one that is taken out, and so the most that is held back, in bytes. That event has
/// some 300 to 700 bytes; a longer one goes on at once.
const MAX_HELD_BYTES: usize = 16 * 1024;

/// A stream that is being read.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    visibility: UsageVisibility,
    /// How much output may go on; `None` is all of it.
    allowance: Option<Allowance>,
    /// The event that is withheld: it would be more than that. Its bytes are held.
    withheld: Option<Read>,
    scanner: EventScanner,
    document: Document,
    tally: Tally,
    data: DataHead,
    event: Event,
    /// The event's bytes in earlier chunks, which the client does not have yet.
    held: BytesMut,
    /// A CR ended an event that was taken out, and the LF that may follow belongs to it.
    removed_carriage_return: bool,
}

/// What an event said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub(super) found: Found,
    pub(super) is_complete: bool,
    pub(super) is_done: bool,
    pub(super) is_blank: bool,
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
    pub(super) fn new(document: Document, tally: Tally, visibility: UsageVisibility) -> Self {
        Self {
            visibility,
            allowance: None,
            withheld: None,
            scanner: EventScanner::new(),
            document,
            tally,
            data: DataHead::default(),
            event: Event::None,
            held: BytesMut::new(),
            removed_carriage_return: false,
        }
    }

    pub(super) fn allow(&mut self, allowance: Allowance) {
        self.allowance = Some(allowance);
    }

    pub(super) fn weigh(&mut self, tokens: f64) {
        self.tally.weigh(tokens);
    }

    pub(super) fn feed(&mut self, chunk: &Bytes, end: EndOfStream) -> Output {
        let mut outlet = Outlet { chunk, before: BytesMut::new(), removed: Vec::new() };
        if let Some(read) = self.withheld {
            if self.is_too_much(&read) {
                return outlet.into_withheld(0, 0);
            }
            self.withheld = None;
            self.tally.count(&read);
            self.let_go(&mut outlet);
        }
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
                    let read = self.read();
                    if let Event::Here(begin) = self.event
                        && self.is_too_much(&read)
                    {
                        return self.withhold(read, outlet, begin, at);
                    }
                    self.tally.count(&read);
                    match self.event {
                        Event::Here(begin) if read.is_usage() && self.may_remove(chunk, begin, at) => {
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
        if end == EndOfStream::End && self.is_within_data() {
            // The standard drops an event that breaks off, but its tokens were spent, and not every client drops it.
            let read = self.read();
            if let Event::Here(begin) = self.event
                && self.is_too_much(&read)
            {
                return self.withhold(read, outlet, begin, chunk.len());
            }
            self.tally.count_broken_off(&read);
        }
        let kept_to = self.end_chunk(&mut outlet, end);
        outlet.into_output(kept_to)
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The allowance with which the event that is withheld may go on.
    pub(super) fn awaited(&self) -> Option<u64> {
        self.withheld.map(|read| self.needed(&read))
    }

    pub(super) fn model(&self) -> Option<&str> {
        self.document.model()
    }

    /// An event is complete, or one that breaks off is as complete as it gets.
    fn read(&mut self) -> Read {
        let is_complete = self.document.is_complete();
        let found = self.document.restart();
        let data = std::mem::take(&mut self.data);
        Read { found, is_complete, is_done: data.is_done(), is_blank: data.is_blank() }
    }

    /// Whether the event would be more output than may go on.
    fn is_too_much(&self, read: &Read) -> bool {
        self.allowance.is_some_and(|allowance| read.has_content() && self.needed(read) > allowance.tokens())
    }

    /// The allowance with which an event may go on.
    fn needed(&self, read: &Read) -> u64 {
        let likely = self.tally.output_after(&read.found);
        match self.allowance {
            Some(Allowance::Certain(_)) => {
                let told = read.found.account.map_or(0, |account| account.whole().output);
                self.tally.fewest_after(&read.found).max(told).max(self.tally.undoubted(likely))
            }
            Some(Allowance::Likely(_)) | None => likely,
        }
    }

    /// Holds the event's bytes, which end at `end`, and stops behind it.
    fn withhold(&mut self, read: Read, outlet: Outlet<'_>, begin: usize, end: usize) -> Output {
        self.held.extend_from_slice(outlet.chunk.get(begin..end).unwrap_or_default());
        self.event = Event::Here(0);
        self.withheld = Some(read);
        outlet.into_withheld(begin, end)
    }

    fn is_within_data(&self) -> bool {
        self.scanner.is_within_event() && !self.data.is_blank()
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
            outlet.before.extend_from_slice(&self.held.split());
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
        let is_open = self.visibility == UsageVisibility::Remove || self.allowance.is_some();
        if is_open && end == EndOfStream::More && is_short {
            self.held.extend_from_slice(cut);
            self.event = Event::Here(0);
            return begin;
        }
        self.let_go(outlet);
        self.event = Event::Gone;
        whole
    }
}

impl Read {
    /// Whether it is the event that carries the usage and nothing else that a client would miss.
    fn is_usage(&self) -> bool {
        self.is_complete
            && self.found.choices == Choices::Empty
            && self.found.usage_object == UsageObject::Present
            && self.found.substance == Substance::None
    }

    fn has_content(&self) -> bool {
        self.found.tokens() > 0
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
    before: BytesMut,
    /// The parts of the chunk that are taken out, in order.
    removed: Vec<Range<usize>>,
}

impl Outlet<'_> {
    /// What goes on if the chunk does up to `end` and the event that reaches from there to `rest` is withheld.
    fn into_withheld(self, end: usize, rest: usize) -> Output {
        let rest = self.chunk.slice(rest.min(self.chunk.len())..);
        let passed = match self.into_output(end) {
            Output::Replaced(passed) => passed,
            Output::Unchanged | Output::Withheld { .. } => Bytes::new(),
        };
        Output::Withheld { passed, rest }
    }

    /// Puts together what goes on, if the chunk does up to `end`.
    fn into_output(self, end: usize) -> Output {
        if self.before.is_empty() && self.removed.is_empty() {
            return if end == self.chunk.len() { Output::Unchanged } else { Output::Replaced(self.chunk.slice(..end)) };
        }
        let mut bytes = self.before;
        bytes.reserve(end);
        let mut kept = 0;
        for removed in &self.removed {
            bytes.extend_from_slice(self.chunk.get(kept..removed.start).unwrap_or_default());
            kept = removed.end;
        }
        bytes.extend_from_slice(self.chunk.get(kept..end).unwrap_or_default());
        Output::Replaced(bytes.freeze())
    }
}
