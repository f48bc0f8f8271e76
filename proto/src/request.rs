//! What a request body says, found in one pass over its bytes: the model, whether it streams, its token bounds, and where
//! the segments of the prompt lie.

use std::ops::Range;

use crate::operation::Operation;

/// What one pass over a request body found. Spans are byte ranges of the body that was scanned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestScan {
    /// The value of the top-level `model`, unescaped.
    pub model: String,
    /// The span of that value, quotes included.
    pub model_span: Range<usize>,
    /// Whether the client asked for a stream (`"stream": true`).
    pub stream: bool,
    /// The state of `stream_options.include_usage`, and where to splice it.
    pub include_usage: IncludeUsage,
    /// The largest of `max_tokens`, `max_completion_tokens` that is present, in tokens.
    pub max_tokens: Option<u64>,
    /// `n`, the number of choices; 1 where it is absent.
    pub choices: u64,
    /// The prompt, piece by piece, in the order of the document.
    pub segments: Vec<Segment>,
}

/// Whether the client asked for usage in its stream, and where to add it if not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncludeUsage {
    /// `include_usage: true` is there.
    Requested,
    /// `include_usage` is there with another value, at this span: replace the value by `true`.
    Declined(Range<usize>),
    /// `stream_options` is an object without the field: insert it right after the brace at this offset. The flag tells
    /// whether the object is empty, so whether a comma must follow.
    Unset {
        /// Offset of the byte after `{`.
        insert_at: usize,
        /// What else is in the object.
        rest: ObjectRest,
    },
    /// `stream_options` is `null`, at this span.
    Null(Range<usize>),
    /// There is no `stream_options`: insert it before the closing brace of the body, at this offset.
    Absent {
        /// Offset of the body's last `}`.
        insert_at: usize,
    },
}

/// Whether an object has fields already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectRest {
    /// `{}`
    Empty,
    /// At least one field follows.
    Fields,
}

/// One piece of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// What the piece is.
    pub kind: SegmentKind,
    /// Where its bytes lie. For a string: between the quotes, still escaped as [`Segment::text`] undoes it.
    pub span: Range<usize>,
    /// How the bytes are to be read.
    pub form: SegmentForm,
}

/// How a segment's bytes are written in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentForm {
    /// A string without escapes: the bytes are the text.
    Plain,
    /// A string with escapes.
    Escaped,
    /// Raw JSON, taken as sent.
    Raw,
}

/// The kinds of prompt pieces, in the order in which a chat template prints them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SegmentKind {
    /// A field that the chat template prints (`chat_template_kwargs`, `reasoning_effort`, `documents`, `response_format`).
    Template = 1,
    /// One element of `tools`, raw.
    Tool = 2,
    /// A message's role: it opens the message.
    Role = 3,
    /// Text of a message's content, or of a completion's or embedding's prompt.
    Text = 4,
    /// An image, audio or video part, raw.
    Media = 5,
    /// `tool_calls`, raw.
    ToolCalls = 6,
    /// `tool_call_id`
    ToolCallId = 7,
    /// `name`
    Name = 8,
    /// `reasoning_content`
    Reasoning = 9,
    /// A prompt of token ids, raw.
    Tokens = 10,
    /// `cache_salt`: no part of the prompt, but of the prefix's identity.
    CacheSalt = 11,
}

/// Why a body cannot be served. Each is a 400, and its text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The body is empty.
    #[error("the request body is empty; send a JSON object with a `model`")]
    Empty,
    /// The body is not one JSON value.
    #[error("the request body is not valid JSON: {reason} at byte {offset}")]
    NotJson {
        /// What was wrong.
        reason: &'static str,
        /// Where, in bytes from the start of the body.
        offset: usize,
    },
    /// The body is JSON, but no object.
    #[error("the request body must be a JSON object")]
    NotAnObject,
    /// Nested deeper than [`crate::json::MAX_DEPTH`].
    #[error("the request body is nested deeper than {max} levels", max = crate::json::MAX_DEPTH)]
    TooDeep,
    /// There is no `model`.
    #[error("you must provide a `model` parameter")]
    NoModel,
    /// `model` is not a string, or an empty one.
    #[error("`model` must be a non-empty string")]
    ModelNotAString,
    /// `model` is there twice: the first may not be the one that the upstream takes.
    #[error("`model` appears more than once in the request body; send it once")]
    DuplicateModel,
}
