//! The forms in which events can be written, for an [`Event`](crate::sse::Event) to be written by.

use std::num::NonZeroUsize;

/// How events are written. Every form but the one with garbage is right by the standard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// What ends a line.
    pub line_end: LineEnd,
    /// What stands between `data:` and the data.
    pub gap: Gap,
    /// How the data is laid out.
    pub layout: Layout,
    /// What stands between events.
    pub interlude: Interlude,
    /// What the stream begins with.
    pub beginning: Beginning,
    /// The size of the pieces that events are written in; whole events without one.
    pub piece_bytes: Option<NonZeroUsize>,
}

/// What ends a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineEnd {
    /// A line feed.
    #[default]
    Lf,
    /// A carriage return.
    Cr,
    /// Both.
    CrLf,
    /// Each of the three in turn, line by line.
    Mixed,
}

/// What stands between `data:` and the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gap {
    /// A space.
    #[default]
    Space,
    /// Nothing.
    Nothing,
}

/// How an event's data is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// On one line.
    #[default]
    OneLine,
    /// On several.
    ManyLines,
}

/// What stands between events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interlude {
    /// Nothing.
    #[default]
    Nothing,
    /// A comment before every event.
    Comments,
    /// Garbage before the second event.
    Garbage,
}

/// What a stream begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beginning {
    /// Its first event.
    #[default]
    Event,
    /// A byte order mark, which the standard has readers skip.
    ByteOrderMark,
}
