//! What a request body says, found in one pass over its bytes: the model, whether it streams, its token bounds, and where
//! the segments of the prompt lie.
//!
//! Only the JSON grammar, the depth and the model can make a body fail: whatever else has a shape we do not know passes
//! through, and where it is part of the prompt it becomes a segment of raw JSON. Fields are found at the top level only.
//! Where a key other than `model` is there twice, the last one counts, as it does for the servers behind us.

mod bounds;
mod prompt;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use self::bounds::BoundName;
pub use self::bounds::{OutputBounds, TooManyBounds};
use self::prompt::PromptField;
use crate::json::{JsonError, Scanner, StringSpan, ValueKind, unescape};
use crate::multipart::{self, FormError};
use crate::operation::Operation;
use crate::splice::Edit;

/// The most choices that are believed: the most that vLLM lets a request ask for, unless told otherwise
/// (`VLLM_MAX_N_SEQUENCES`).
const MAX_CHOICES: u64 = 16_384;

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
    /// Whether the client asked for a stream (`"stream": true`).
    pub stream: bool,
    /// The state of `stream_options.include_usage`, and where to splice it.
    pub include_usage: IncludeUsage,
    /// The largest of `max_tokens`, `max_completion_tokens` that is present, in tokens; for Responses `max_output_tokens`, for
    /// Anthropic's messages `max_tokens` alone.
    pub max_tokens: Option<u64>,
    /// Where the body bounds the length of its answer.
    pub bounds: OutputBounds,
    /// `n`, the number of choices, or `best_of` where that is larger: at least 1, which it is where it is absent, and at most
    /// 16,384.
    pub choices: u64,
    /// How many prompts there are: each has choices of its own. More than 1 for legacy completions alone.
    pub prompts: u64,
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
            include_usage: IncludeUsage::Requested,
            max_tokens: None,
            bounds: OutputBounds::default(),
            choices: 1,
            prompts: 1,
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
    /// The edit that makes it [`IncludeUsage::Requested`].
    fn request(&self) -> Option<Edit> {
        let (span, replacement) = match self {
            Self::Requested => return None,
            Self::Declined(value) => (value.clone(), "true"),
            Self::Unset { insert_at, rest: ObjectRest::Empty } => (*insert_at..*insert_at, r#""include_usage":true"#),
            Self::Unset { insert_at, rest: ObjectRest::Fields } => (*insert_at..*insert_at, r#""include_usage":true,"#),
            Self::Null(value) => (value.clone(), r#"{"include_usage":true}"#),
            // A comma always belongs before it: a body that was scanned has at least a model.
            Self::Absent { insert_at } => (*insert_at..*insert_at, r#","stream_options":{"include_usage":true}"#),
        };
        Some(Edit { span, replacement: Bytes::from_static(replacement.as_bytes()) })
    }

    /// Reads the value of `stream_options`.
    fn scan(scanner: &mut Scanner<'_>) -> Result<Self, JsonError> {
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
        let mut value = None;
        while let Some(key) = scanner.next_key()? {
            rest = ObjectRest::Fields;
            let is_include_usage = key.text(body).as_ref() == b"include_usage";
            let span = scanner.skip()?;
            if is_include_usage {
                value = Some(span);
            }
        }
        Ok(match value {
            None => Self::Unset { insert_at, rest },
            Some(span) if body.get(span.clone()) == Some(b"true") => Self::Requested,
            Some(span) => Self::Declined(span),
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
    /// `model` is there twice: the first may not be the one that the upstream takes.
    #[error("`model` appears more than once in the request body; send it once")]
    DuplicateModel,
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
    bounds: OutputBounds,
    choices: Option<u64>,
    /// `best_of`: so many are generated, and the best of them are the choices.
    candidates: Option<u64>,
    /// The segments of each field that is part of the prompt.
    prompt: BTreeMap<PromptField, Vec<Segment>>,
}

impl Fields {
    fn scan(scanner: &mut Scanner<'_>, operation: Operation) -> Result<Self, ScanError> {
        let body = scanner.bytes();
        let mut fields = Self::default();
        scanner.open()?;
        while let Some(key) = scanner.next_key()? {
            match key.text(body).as_ref() {
                b"model" => fields.read_model(scanner)?,
                b"stream" => fields.stream = body.get(scanner.skip()?) == Some(b"true"),
                b"stream_options" => fields.stream_options = Some(IncludeUsage::scan(scanner)?),
                b"max_tokens" => fields.read_bound(BoundName::MaxTokens, scanner)?,
                b"max_completion_tokens" => fields.read_bound(BoundName::MaxCompletionTokens, scanner)?,
                b"max_output_tokens" => fields.read_bound(BoundName::MaxOutputTokens, scanner)?,
                b"n_predict" => fields.read_bound(BoundName::NPredict, scanner)?,
                b"n" => fields.choices = read_u64(scanner)?.1,
                b"best_of" => fields.candidates = read_u64(scanner)?.1,
                name => match PromptField::of(operation, name) {
                    Some(field) => {
                        fields.prompt.insert(field, field.segments(scanner)?);
                    }
                    None => {
                        scanner.skip()?;
                    }
                },
            }
        }
        Ok(fields)
    }

    fn read_bound(&mut self, name: BoundName, scanner: &mut Scanner<'_>) -> Result<(), ScanError> {
        let (span, tokens) = read_u64(scanner)?;
        self.bounds.add(name, span, tokens);
        Ok(())
    }

    fn read_model(&mut self, scanner: &mut Scanner<'_>) -> Result<(), ScanError> {
        if self.model.is_some() {
            return Err(ScanError::DuplicateModel);
        }
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
        // By field, and so in the order in which a template prints them.
        let prompt: Vec<_> = prompt::with_query_for_each(self.prompt).into_values().collect();
        Ok(RequestScan {
            model,
            model_span,
            model_syntax: ModelSyntax::JsonString,
            stream: self.stream,
            include_usage: self.stream_options.unwrap_or(IncludeUsage::Absent { insert_at: closing_brace }),
            max_tokens: self.bounds.largest(operation),
            bounds: self.bounds,
            choices: self.choices.max(self.candidates).unwrap_or(1).clamp(1, MAX_CHOICES),
            prompts,
            segments: prompt.concat(),
        })
    }
}

/// The span of a value, and the value if it is a whole number that fits.
fn read_u64(scanner: &mut Scanner<'_>) -> Result<(Range<usize>, Option<u64>), JsonError> {
    let kind = scanner.peek()?;
    let span = scanner.skip()?;
    let digits = match kind {
        ValueKind::Number => scanner.bytes().get(span.clone()),
        _ => None,
    };
    Ok((span, digits.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok())))
}

#[cfg(test)]
mod tests;
