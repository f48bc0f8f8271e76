//! Server-sent events, to the letter of the standard, from chunks cut at any byte.
//!
//! The grammar is that of the WHATWG HTML standard, section 9.2 ("Server-sent events"). The scanner holds nothing but the
//! state of its line: the data of an event is handed over as slices of the chunks, as it comes, so that an event of
//! megabytes costs no memory and one that lies within a chunk is not copied.

use memchr::{memchr2, memchr3};

/// The byte order mark that may begin a stream.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// How much of an event's name is kept. Known names are shorter than half of it.
const MAX_NAME_BYTES: usize = 64;

/// What the scanner comes upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The next byte is the first of an event's first field. Comments and empty lines before it are no part of the event.
    Begin,
    /// The next bytes of the event's data. All of them put together are the data, line feeds between its lines included.
    Data(&'a [u8]),
    /// The event is complete, its empty line is read, and it is dispatched.
    Dispatch,
    /// The fields are complete, but had no data: the standard dispatches no event for them.
    Discard,
}

/// A scanner somewhere in a stream.
#[derive(Debug, Clone, Default)]
pub struct EventScanner {
    line: Line,
    /// How much of [`BYTE_ORDER_MARK`] was seen; all of its length once the stream has begun.
    mark_seen: usize,
    /// Whether the last byte ended a line as CR, so that an LF after it belongs to the same line end.
    after_carriage_return: bool,
    block: Block,
    name: Vec<u8>,
}

/// Where in a line the scanner is.
#[derive(Debug, Clone, Copy, Default)]
enum Line {
    #[default]
    Start,
    /// In a field's name, as far as it can be one that counts.
    Name(FieldName),
    /// Behind the colon, before the one space that is no part of the value.
    BeforeValue(Field),
    Value(Field),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Data,
    Event,
    /// A comment, or a field that carries nothing for us.
    Other,
}

/// The lines between two empty ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Block {
    /// Nothing but comments so far.
    #[default]
    Empty,
    /// There was a field, but no data.
    Fields,
    /// There was a data field.
    Data,
}

impl EventScanner {
    /// A scanner at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads on in `rest` and moves it behind what was read. `None` once the chunk is used up: go on with the next one.
    pub fn next<'a>(&mut self, rest: &mut &'a [u8]) -> Option<Piece<'a>> {
        loop {
            let (&byte, tail) = rest.split_first()?;
            if std::mem::take(&mut self.after_carriage_return) && byte == b'\n' {
                *rest = tail;
                continue;
            }
            match self.line {
                Line::Start => {
                    if self.mark_seen < BYTE_ORDER_MARK.len() {
                        self.read_mark(rest);
                        continue;
                    }
                    match byte {
                        b'\n' | b'\r' => {
                            self.end_line(rest);
                            match std::mem::take(&mut self.block) {
                                Block::Empty => {}
                                Block::Fields => return Some(Piece::Discard),
                                Block::Data => return Some(Piece::Dispatch),
                            }
                        }
                        b':' => self.line = Line::Value(Field::Other),
                        _ if self.block == Block::Empty => {
                            self.block = Block::Fields;
                            self.name.clear();
                            return Some(Piece::Begin);
                        }
                        _ => match rest.strip_prefix(b"data:") {
                            Some(value) => {
                                *rest = value;
                                self.line = Line::BeforeValue(Field::Data);
                            }
                            None => self.line = Line::Name(FieldName::default()),
                        },
                    }
                }
                Line::Name(mut name) => {
                    let end = memchr3(b':', b'\n', b'\r', rest);
                    let (read, tail) = rest.split_at(end.unwrap_or(rest.len()));
                    name.extend(read);
                    match tail.split_first() {
                        None => self.line = Line::Name(name),
                        Some((b':', value)) => {
                            *rest = value;
                            self.line = Line::BeforeValue(name.field());
                            continue;
                        }
                        // A line without a colon is a field with an empty value.
                        Some(_) => self.line = Line::BeforeValue(name.field()),
                    }
                    *rest = tail;
                }
                Line::BeforeValue(field) => {
                    if byte == b' ' {
                        *rest = tail;
                    }
                    self.line = Line::Value(field);
                    match field {
                        Field::Data if self.block == Block::Data => return Some(Piece::Data(b"\n")),
                        Field::Data => self.block = Block::Data,
                        Field::Event => self.name.clear(),
                        Field::Other => {}
                    }
                }
                Line::Value(field) => {
                    let end = memchr2(b'\n', b'\r', rest);
                    let (value, tail) = rest.split_at(end.unwrap_or(rest.len()));
                    *rest = tail;
                    if end.is_some() {
                        self.end_line(rest);
                    }
                    match field {
                        Field::Data if !value.is_empty() => return Some(Piece::Data(value)),
                        Field::Event => {
                            let room = MAX_NAME_BYTES - self.name.len();
                            self.name.extend(value.iter().take(room));
                        }
                        Field::Data | Field::Other => {}
                    }
                }
            }
        }
    }

    /// The name that the current event's `event` field gives, or the one of the event that was just dispatched; empty
    /// without such a field, and cut at 64 bytes.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Whether an event has begun and is not complete.
    pub fn is_within_event(&self) -> bool {
        self.block != Block::Empty
    }

    /// Reads the next byte of the byte order mark, if that is what it is.
    fn read_mark(&mut self, rest: &mut &[u8]) {
        if let Some((byte, tail)) = rest.split_first()
            && BYTE_ORDER_MARK.get(self.mark_seen) == Some(byte)
        {
            *rest = tail;
            self.mark_seen += 1;
            return;
        }
        if self.mark_seen > 0 {
            // Half a mark begins a field that nobody knows, and it began before this byte: there is no `Begin` for it.
            self.block = Block::Fields;
            self.line = Line::Name(FieldName::unknown());
        }
        self.mark_seen = BYTE_ORDER_MARK.len();
    }

    /// Reads a line end, at which `rest` is.
    fn end_line(&mut self, rest: &mut &[u8]) {
        self.line = Line::Start;
        *rest = match *rest {
            [b'\r', b'\n', rest @ ..] => rest,
            [b'\r'] => {
                self.after_carriage_return = true;
                &[]
            }
            [_, rest @ ..] => rest,
            [] => rest,
        };
    }
}

/// The first bytes of a field's name: enough to tell `data` and `event` from all others.
#[derive(Debug, Clone, Copy, Default)]
struct FieldName {
    bytes: [u8; 6],
    len: usize,
}

impl FieldName {
    /// A name that is none of those that count.
    fn unknown() -> Self {
        Self { bytes: [0; 6], len: 6 }
    }

    fn extend(&mut self, read: &[u8]) {
        let room = self.bytes.iter_mut().skip(self.len);
        for (kept, byte) in room.zip(read) {
            *kept = *byte;
            self.len += 1;
        }
    }

    fn field(self) -> Field {
        match self.bytes.get(..self.len) {
            Some(b"data") => Field::Data,
            Some(b"event") => Field::Event,
            _ => Field::Other,
        }
    }
}

#[cfg(test)]
mod tests;
