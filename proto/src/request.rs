//! What a request body says, found in one pass over its bytes: the model, whether it streams, its token bounds, and where
//! the segments of the prompt lie.
//!
//! Only the JSON grammar, the depth and the model can make a body fail: whatever else has a shape we do not know passes
//! through, and where it is part of the prompt it becomes a segment of raw JSON.
//!
//! Servers do not read alike what is written loosely. A field that we act on, at the top or within another that we act on, is there once and
//! in its own spelling, or the body is refused ([`names`]); its number or boolean is what the laxest of them reads, or the body is refused ([`lax`]).

mod bounds;
mod budgets;
pub(crate) mod lax;
pub(crate) mod names;
mod prompt;
mod tools;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

pub use self::bounds::{BoundName, OutputBounds};
use self::budgets::Budget;
use self::lax::{Count, Switch};
pub use self::names::misspelt;
use self::names::{FieldName, Seen};
use self::prompt::PromptField;
use crate::json::{JsonError, Scanner, StringSpan, ValueKind, unescape};
use crate::multipart::{self, FormError};
use crate::operation::Operation;
use crate::splice::Edit;

/// The most choices that are believed: the most that vLLM lets a request ask for, unless told otherwise
/// (`VLLM_MAX_N_SEQUENCES`).
pub(crate) const MAX_CHOICES: u64 = 16_384;

/// Scans the body of a request for `operation`: a form where `content_type` says so and the operation takes one, and else JSON.
///
/// Other content types make no difference. Clients forget theirs, and `curl` sends JSON as a form of another kind; a body that
/// is JSON goes on with the header that it came with, and the server says what it thinks of that.
///
/// # Errors
/// As for [`scan`]; [`ScanError::FormNotTaken`], [`ScanError::Form`] and [`ScanError::NeitherFormNorJson`].
pub fn scan_as(operation: Operation, content_type: Option<&str>, body: &[u8]) -> Result<RequestScan, ScanError> {
    let form = content_type.filter(|content_type| multipart::is_form(content_type));
    match form {
        Some(content_type) if operation.takes_forms() => multipart::scan(content_type, body),
        Some(_) => Err(ScanError::FormNotTaken),
        None => scan(operation, body).map_err(|error| match error {
            ScanError::Empty | ScanError::NotJson { .. } if operation.takes_forms() => ScanError::NeitherFormNorJson,
            error => error,
        }),
    }
}

/// Scans the JSON body of a request for `operation`.
pub fn scan(operation: Operation, body: &[u8]) -> Result<RequestScan, ScanError> {
    let mut scanner = Scanner::new(body);
    if scanner.is_at_end() {
        return Err(ScanError::Empty);
    }
    if scanner.peek()? != ValueKind::Object {
        scanner.skip()?;
        scanner.finish()?;
        return Err(ScanError::NotAnObject);
    }
    let mut fields = Fields::scan(&mut scanner, operation)?;
    // The scanner is right behind the closing brace.
    let closing_brace = scanner.offset().saturating_sub(1);
    scanner.finish()?;
    fields.bounds.finish(operation, closing_brace);
    fields.into_scan(operation, body, closing_brace)
}

/// What one pass over a request body found. Spans are byte ranges of the body that was scanned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestScan {
    /// The value of the top-level `model`, unescaped.
    pub model: String,
    /// The span of that value; of JSON, quotes included.
    pub model_span: Range<usize>,
    /// How it is written there.
    pub model_syntax: ModelSyntax,
    /// Whether the client asked for a stream (`"stream": true`, or what lax servers read so).
    pub stream: bool,
    /// Whether the client asked for an answer that it fetches later (`"background": true` of the Responses API).
    pub background: bool,
    /// The state of `stream_options.include_usage`, and where to splice it.
    pub include_usage: IncludeUsage,
    /// The largest of `max_tokens`, `max_completion_tokens` and `n_predict` that is present, in tokens; for Responses
    /// `max_output_tokens`, for Anthropic's messages `max_tokens` alone. As the laxest server reads it.
    pub max_tokens: Option<u64>,
    /// Where the body bounds the length of its answer.
    pub bounds: OutputBounds,
    /// `n`, the number of choices, or `best_of` or llama.cpp's `n_cmpl` where that is larger: at least 1, which it is where it is
    /// absent, and at most 16,384. As the laxest server reads it.
    pub choices: u64,
    /// How many prompts there are: each has choices of its own. More than 1 for legacy completions alone.
    pub prompts: u64,
    /// Whether the server may run tools by itself, whose results are further input.
    pub runs_tools: bool,
    /// The prompt, piece by piece, in the order in which chat templates print it, whatever the document's was: fields of the
    /// template, tools, the system's prompt, messages. Then what is no text of the prompt: schemas, salts, keys.
    pub segments: Vec<Segment>,
}

/// How a body writes its model's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelSyntax {
    /// As a JSON string.
    JsonString,
    /// As it is: the value of a form's field.
    FormField,
    /// Not at all.
    Nowhere,
}

impl RequestScan {
    /// What is known of a body that names no model: nothing. It is a request of `model`.
    pub fn without_model(model: String) -> Self {
        Self {
            model,
            model_span: 0..0,
            model_syntax: ModelSyntax::Nowhere,
            stream: false,
            background: false,
            include_usage: IncludeUsage::Requested,
            max_tokens: None,
            bounds: OutputBounds::default(),
            choices: 1,
            prompts: 1,
            runs_tools: false,
            segments: Vec::new(),
        }
    }

    /// The edits that make the body ask for `model`, and for usage in the stream if it is to.
    ///
    /// There are none where the body says so already. Only chat and legacy completions know `stream_options`: for other
    /// operations the caller leaves it.
    pub fn edits(&self, model: &str, usage: UsageEvent) -> Vec<Edit> {
        let mut edits = Vec::new();
        let written = match self.model_syntax {
            ModelSyntax::JsonString => Some(serde_json::Value::from(model).to_string()),
            ModelSyntax::FormField => Some(model.to_owned()),
            ModelSyntax::Nowhere => None,
        };
        if let Some(written) = written.filter(|_| self.model != model) {
            edits.push(Edit { span: self.model_span.clone(), replacement: Bytes::from(written) });
        }
        if usage == UsageEvent::Ask && self.stream {
            edits.extend(self.include_usage.request());
        }
        edits.sort_by_key(|edit| edit.span.start);
        edits
    }
}

/// Whether the upstream is to send the event that carries the usage of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UsageEvent {
    /// Ask for it, if the body streams and does not ask yet.
    Ask,
    /// Leave the body's own choice.
    Leave,
}

/// Whether the client asked for usage in its stream, and where to add it if not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncludeUsage {
    /// `include_usage: true` is there. Or `stream_options` is of a shape that no edit would mend: it is left to the
    /// upstream.
    Requested,
    /// `include_usage` is there with a value at this span that some servers read as `true`, and others do not: replace the value by
    /// that.
    RequestedLoosely(Range<usize>),
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

impl IncludeUsage {
    /// Whether the client is to get the event that carries the usage.
    pub const fn is_requested(&self) -> bool {
        matches!(self, Self::Requested | Self::RequestedLoosely(_))
    }

    /// The edit that makes it [`IncludeUsage::Requested`].
    fn request(&self) -> Option<Edit> {
        let (span, replacement) = match self {
            Self::Requested => return None,
            Self::RequestedLoosely(value) | Self::Declined(value) => (value.clone(), "true"),
            Self::Unset { insert_at, rest: ObjectRest::Empty } => (*insert_at..*insert_at, r#""include_usage":true"#),
            Self::Unset { insert_at, rest: ObjectRest::Fields } => (*insert_at..*insert_at, r#""include_usage":true,"#),
            Self::Null(value) => (value.clone(), r#"{"include_usage":true}"#),
            // A comma always belongs before it: a body that was scanned has at least a model.
            Self::Absent { insert_at } => (*insert_at..*insert_at, r#","stream_options":{"include_usage":true}"#),
        };
        Some(Edit { span, replacement: Bytes::from_static(replacement.as_bytes()) })
    }

    /// Reads the value of `stream_options`.
    fn scan(scanner: &mut Scanner<'_>) -> Result<Self, ScanError> {
        let body = scanner.bytes();
        match scanner.peek()? {
            ValueKind::Null => return Ok(Self::Null(scanner.skip()?)),
            ValueKind::Object => {}
            _ => {
                scanner.skip()?;
                return Ok(Self::Requested);
            }
        }
        scanner.open()?;
        let insert_at = scanner.offset();
        let mut rest = ObjectRest::Empty;
        let mut seen = Seen::default();
        let mut asked = None;
        while let Some(key) = scanner.next_key()? {
            rest = ObjectRest::Fields;
            let known = |name: &[u8]| (name == b"include_usage").then_some(((), "stream_options.include_usage"));
            match seen.add(&key.text(body), known)? {
                Some(()) => {
                    let mut ahead = scanner.clone();
                    asked = Some((scanner.skip()?, Switch::scan(&mut ahead)?));
                }
                None => {
                    scanner.skip()?;
                }
            }
        }
        Ok(match asked {
            None => Self::Unset { insert_at, rest },
            Some((_, Some(Switch::Plain(true)))) => Self::Requested,
            Some((span, Some(Switch::Lax(true)))) => Self::RequestedLoosely(span),
            Some((span, _)) => Self::Declined(span),
        })
    }
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

impl Segment {
    /// The segment's text, given the body that was scanned: a string without its escapes, or raw JSON as sent.
    pub fn text<'a>(&self, body: &'a [u8]) -> Cow<'a, [u8]> {
        let raw = body.get(self.span.clone()).unwrap_or_default();
        match self.form {
            SegmentForm::Escaped => unescape(raw),
            SegmentForm::Plain | SegmentForm::Raw => Cow::Borrowed(raw),
        }
    }
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

/// The kinds of prompt pieces. The numbers are part of what prefix hashes are made of: they stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SegmentKind {
    /// A field that the chat template prints (`chat_template_kwargs`, `reasoning_effort`, `thinking`, `documents`), raw.
    Template = 1,
    /// One element of `tools`, raw.
    Tool = 2,
    /// A message's role: it opens the message.
    Role = 3,
    /// Text of a message's content, or of a completion's or embedding's prompt.
    Text = 4,
    /// What an image, sound, video or file is: its URL, data or id; raw where it is in a form we do not know.
    Media = 5,
    /// `tool_calls`, raw; the arguments of a `function_call` item; the `input` of a `tool_use` block, raw.
    ToolCalls = 6,
    /// `tool_call_id`, `call_id`, and the `id` of a `tool_use` block: it opens the result of a tool.
    ToolCallId = 7,
    /// `name`
    Name = 8,
    /// `reasoning_content`, or `reasoning` as newer servers call it; a `thinking` block.
    Reasoning = 9,
    /// A prompt of token ids, raw.
    Tokens = 10,
    /// `cache_salt`: no part of the prompt, but of the prefix's identity.
    CacheSalt = 11,
    /// Opens the system's prompt that is no message (`system`, `instructions`): empty.
    System = 12,
    /// The form that the answer is to have (`response_format`, the Responses API's `text`). vLLM and SGLang guide the
    /// sampling by it, and print it nowhere.
    Schema = 13,
    /// `conversation`, or its `id`: what the server knows the earlier turns by.
    Conversation = 14,
    /// `previous_response_id`: the same, for the last turn.
    PreviousResponse = 15,
}

impl SegmentKind {
    /// Whether it is part of what the model reads.
    pub const fn is_prompt(self) -> bool {
        !matches!(self, Self::CacheSalt | Self::Schema | Self::Conversation | Self::PreviousResponse)
    }
}

/// Why a body cannot be served. Its text says what to do.
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
    /// A field that is acted on is there twice: the one that we read may not be the one that the upstream takes.
    #[error("`{0}` appears more than once in one object of the request body; send it once")]
    Duplicate(&'static str),
    /// A field is there that some servers take for one that is acted on, and others do not.
    #[error(
        "the request body has `{0}` in another spelling, which some servers read and others ignore; spell it `{0}`"
    )]
    Misspelt(&'static str),
    /// A field that counts something has a value that servers do not read alike.
    #[error("`{0}` must be a whole number")]
    NotACount(&'static str),
    /// A field that switches something has a value that servers do not read alike.
    #[error("`{0}` must be true or false")]
    NotASwitch(&'static str),
    /// A form where none is taken.
    #[error("this endpoint takes no forms; send a JSON object with `content-type: application/json`")]
    FormNotTaken,
    /// Neither of the two that an endpoint takes.
    #[error("send a form (`content-type: multipart/form-data; boundary=...`), or a JSON object with a `model`")]
    NeitherFormNorJson,
    /// A form that cannot be read.
    #[error(transparent)]
    Form(#[from] FormError),
}

impl ScanError {
    /// The field that is at fault, where there is one.
    pub const fn param(&self) -> Option<&'static str> {
        match self {
            Self::NoModel | Self::ModelNotAString => Some("model"),
            Self::Duplicate(name) | Self::Misspelt(name) | Self::NotACount(name) | Self::NotASwitch(name) => Some(name),
            Self::Form(FormError::NotText(name)) => Some(name),
            _ => None,
        }
    }
}

impl From<JsonError> for ScanError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Syntax { reason, offset } => Self::NotJson { reason, offset },
            JsonError::TooDeep => Self::TooDeep,
        }
    }
}

/// The top-level fields, as far as they were read.
#[derive(Default)]
struct Fields {
    model: Option<StringSpan>,
    stream: bool,
    stream_options: Option<IncludeUsage>,
    background: bool,
    bounds: OutputBounds,
    /// The most that any field asks for.
    choices: Option<u64>,
    runs_tools: bool,
    /// The segments of each field that is part of the prompt.
    prompt: BTreeMap<PromptField, Vec<Segment>>,
}

impl Fields {
    fn scan(scanner: &mut Scanner<'_>, operation: Operation) -> Result<Self, ScanError> {
        let body = scanner.bytes();
        let mut fields = Self::default();
        let mut seen = Seen::default();
        scanner.open()?;
        while let Some(key) = scanner.next_key()? {
            let name = key.text(body);
            match seen.field(operation, &name)? {
                Some((field, name)) => {
                    if operation.generates() {
                        fields.look_into(name, scanner)?;
                    }
                    fields.read(field, name, scanner)?;
                }
                None => {
                    scanner.skip()?;
                }
            }
        }
        Ok(fields)
    }

    /// Finds what nests in the field of this name, whose value comes next.
    fn look_into(&mut self, name: &'static str, scanner: &Scanner<'_>) -> Result<(), ScanError> {
        if budgets::may_have(name) {
            self.bounds.add_budgets(Budget::read(scanner)?);
        }
        self.runs_tools |= tools::are_switched_on(name, scanner);
        Ok(())
    }

    fn read(&mut self, field: FieldName, name: &'static str, scanner: &mut Scanner<'_>) -> Result<(), ScanError> {
        match field {
            FieldName::Model => self.read_model(scanner)?,
            FieldName::Stream => self.stream = Switch::scan(scanner)?.ok_or(ScanError::NotASwitch(name))?.is_on(),
            FieldName::Background => {
                self.background = Switch::scan(scanner)?.ok_or(ScanError::NotASwitch(name))?.is_on()
            }
            FieldName::StreamOptions => self.stream_options = Some(IncludeUsage::scan(scanner)?),
            FieldName::Bound(bound) => {
                let (span, tokens) = read_count(name, scanner)?;
                self.bounds.add(bound, span, tokens);
            }
            FieldName::AtLeast => self.bounds.add_at_least(read_count(name, scanner)?.1),
            FieldName::Choices => self.choices = self.choices.max(read_count(name, scanner)?.1.number()),
            FieldName::Prompt(field) => {
                self.prompt.insert(field, field.segments(scanner)?);
            }
            FieldName::Other => {
                scanner.skip()?;
            }
        }
        Ok(())
    }

    fn read_model(&mut self, scanner: &mut Scanner<'_>) -> Result<(), ScanError> {
        if scanner.peek()? != ValueKind::String {
            return Err(ScanError::ModelNotAString);
        }
        self.model = Some(scanner.string()?);
        Ok(())
    }

    fn into_scan(self, operation: Operation, body: &[u8], closing_brace: usize) -> Result<RequestScan, ScanError> {
        let model = self.model.ok_or(ScanError::NoModel)?;
        let model_span = model.quoted();
        let model = String::from_utf8_lossy(&model.text(body)).into_owned();
        if model.is_empty() {
            return Err(ScanError::ModelNotAString);
        }
        let prompts = match self.prompt.get(&PromptField::Prompts) {
            // The input of an embedding has no choices; a chat has no such field.
            Some(segments) => segments.len().max(1) as u64,
            None => 1,
        };
        let tool = |segment: &Segment| body.get(segment.span.clone()).unwrap_or_default();
        let mut runs_tools = self.runs_tools;
        for segment in self.prompt.get(&PromptField::Tools).into_iter().flatten() {
            runs_tools |= tools::is_of_server(tool(segment))?;
        }
        // By field, and so in the order in which a template prints them.
        let prompt: Vec<_> = prompt::with_query_for_each(self.prompt).into_values().collect();
        Ok(RequestScan {
            model,
            model_span,
            model_syntax: ModelSyntax::JsonString,
            stream: self.stream,
            background: self.background,
            include_usage: self.stream_options.unwrap_or(IncludeUsage::Absent { insert_at: closing_brace }),
            max_tokens: self.bounds.largest(operation),
            bounds: self.bounds,
            choices: self.choices.unwrap_or(1).clamp(1, MAX_CHOICES),
            prompts,
            runs_tools,
            segments: prompt.concat(),
        })
    }
}

/// The value of the field `name`, and its span.
fn read_count(name: &'static str, scanner: &mut Scanner<'_>) -> Result<(Range<usize>, Count), ScanError> {
    let mut ahead = scanner.clone();
    let span = scanner.skip()?;
    let count = Count::scan(&mut ahead)?.ok_or(ScanError::NotACount(name))?;
    Ok((span, count))
}

#[cfg(test)]
mod tests;
