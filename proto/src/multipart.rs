//! A form (`multipart/form-data`, RFC 7578 over RFC 2046) as far as a gateway has to read it: the boundary, the `model` field
//! and what little else matters of one, in one pass over the complete body. Files are never looked into.
//!
//! Parsers disagree on what the grammar leaves open, and a form that two of them read differently may ask us for one model
//! and the server for another. So what is ambiguous is refused: parameters that are there twice, names in the extended
//! form, folded headers, lines that are nearly a delimiter. Time is linear in the body, memory does not depend on it.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memmem::{Finder, find};

use crate::request::lax::{Count, Switch};
use crate::request::names::Seen;
use crate::request::{
    IncludeUsage, MAX_CHOICES, ModelSyntax, OutputBounds, RequestScan, ScanError, Segment, SegmentForm, SegmentKind,
};

/// The longest boundary (RFC 2046, section 5.1.1).
const MAX_BOUNDARY_BYTES: usize = 70;

/// Whether a `content-type` header says that the body is a form.
pub fn is_form(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("multipart/form-data")
}

/// Scans the form that is `body`, by the boundary that its `content-type` names.
///
/// # Errors
/// [`ScanError`]: a form that cannot be read, or whose `model` is missing, there twice or no text.
pub fn scan(content_type: &str, body: &[u8]) -> Result<RequestScan, ScanError> {
    let boundary = boundary(content_type)?;
    if body.is_empty() {
        return Err(FormError::Empty.into());
    }
    let mut delimiters = Delimiters::new(&boundary, body);
    let mut delimiter = delimiters.next()?.ok_or(FormError::NoDelimiter)?;
    let mut fields = Fields::default();
    while delimiter.kind == DelimiterKind::Opening {
        let next = delimiters.next()?.ok_or(FormError::Truncated)?;
        let part = Part::read(body, delimiter.line.end..next.line.start)?;
        fields.take(&part, body)?;
        delimiter = next;
    }
    fields.into_scan(body)
}

/// Why a form cannot be read. Each text says what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// `content-type` names no boundary.
    #[error("the content-type has no `boundary`; send `multipart/form-data; boundary=...` as HTTP clients make it")]
    NoBoundary,
    /// The boundary is none, or there are two.
    #[error(
        "the content-type's `boundary` must be there once and have 1 to 70 letters, digits, spaces or any of '()+_,-./:=?"
    )]
    InvalidBoundary,
    /// There is no body.
    #[error("the request body is empty; send a form with a `model` field")]
    Empty,
    /// The boundary of the content-type is not in the body.
    #[error("the form's boundary, as the content-type names it, does not begin a line of the request body")]
    NoDelimiter,
    /// The form does not end.
    #[error("the form is truncated: the boundary that ends it is missing")]
    Truncated,
    /// Not the grammar, or not what all parsers would read alike.
    #[error("the form is malformed: {reason} at byte {offset}")]
    Malformed {
        /// What was wrong.
        reason: &'static str,
        /// Where, in bytes from the start of the body.
        offset: usize,
    },
    /// A field that is acted on is a file, or encoded.
    #[error("the form field `{0}` must be plain text, not a file")]
    NotText(&'static str),
}

/// The boundary that a `content-type` names.
fn boundary(content_type: &str) -> Result<Vec<u8>, FormError> {
    let (_, parameters) = content_type.split_once(';').ok_or(FormError::NoBoundary)?;
    let mut boundary: Option<Vec<u8>> = None;
    for parameter in Parameters(parameters.as_bytes()) {
        let Parameter { name, value } = parameter.ok_or(FormError::InvalidBoundary)?;
        if name.eq_ignore_ascii_case(b"boundary") {
            let is_escaped = matches!(value, Cow::Owned(_));
            if is_escaped || boundary.replace(value.into_owned()).is_some() {
                return Err(FormError::InvalidBoundary);
            }
        }
    }
    let boundary = boundary.ok_or(FormError::NoBoundary)?;
    // RFC 2046, section 5.1.1. A backslash or a semicolon ends a boundary for some parsers and not for others, and a body can be a
    // form by either. It does not end with a space, which would be padding.
    let is_plain = boundary.iter().all(|byte| byte.is_ascii_alphanumeric() || b" '()+_,-./:=?".contains(byte));
    let is_valid = is_plain && (1..=MAX_BOUNDARY_BYTES).contains(&boundary.len()) && !boundary.ends_with(b" ");
    if is_valid { Ok(boundary) } else { Err(FormError::InvalidBoundary) }
}

/// A line that parts the form.
struct Delimiter {
    /// From the line end before it, which belongs to it, to behind the one after it.
    line: Range<usize>,
    kind: DelimiterKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DelimiterKind {
    /// A part follows.
    Opening,
    /// The form ends: what follows is nobody's.
    Closing,
}

/// Finds the delimiters, one after the other.
struct Delimiters<'b> {
    body: &'b [u8],
    /// `--` and the boundary.
    finder: Finder<'b>,
    dashed_len: usize,
    offset: usize,
}

impl<'b> Delimiters<'b> {
    fn new(boundary: &[u8], body: &'b [u8]) -> Self {
        let dashed = [b"--", boundary].concat();
        Self { body, dashed_len: dashed.len(), finder: Finder::new(&dashed).into_owned(), offset: 0 }
    }

    fn next(&mut self) -> Result<Option<Delimiter>, FormError> {
        while let Some(found) = self.body.get(self.offset..).and_then(|rest| self.finder.find(rest)) {
            let start = self.offset + found;
            let end = start + self.dashed_len;
            let before = self.body.get(..start).unwrap_or_default();
            let line_start = match before {
                [] => Some(0),
                before if before.ends_with(b"\r\n") => Some(start - 2),
                _ => None,
            };
            let rest = self.body.get(end..).unwrap_or_default();
            match (line_start, Ending::of(rest)) {
                (Some(line_start), Ending::Line(kind, length)) => {
                    self.offset = end + length;
                    return Ok(Some(Delimiter { line: line_start..self.offset, kind }));
                }
                (Some(_), Ending::Cut) => return Err(FormError::Truncated),
                (Some(_), Ending::Nearly) => {
                    return Err(FormError::Malformed { reason: "a line that is nearly a boundary", offset: start });
                }
                // Text that looks like it: the boundary may begin anew within it.
                (None, _) | (Some(_), Ending::Text) => self.offset = start + 1,
            }
        }
        Ok(None)
    }
}

/// How a line goes on that begins as a delimiter does.
enum Ending {
    /// As one does; so many bytes, its line end included.
    Line(DelimiterKind, usize),
    /// As a part's content: parsers agree that it is no delimiter.
    Text,
    /// Some parsers would take it for one.
    Nearly,
    /// The body ends before it is clear.
    Cut,
}

impl Ending {
    fn of(rest: &[u8]) -> Self {
        let (kind, after) = match rest.strip_prefix(b"--") {
            Some(after) => (DelimiterKind::Closing, after),
            None => (DelimiterKind::Opening, rest),
        };
        // Padding (RFC 2046, section 5.1.1: transport-padding).
        let padding = after.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let length = rest.len() - after.len() + padding;
        match (kind, after.get(padding..).unwrap_or_default()) {
            (_, [b'\r', b'\n', ..]) => Self::Line(kind, length + 2),
            (DelimiterKind::Closing, []) => Self::Line(kind, length),
            (DelimiterKind::Opening, [] | [b'\r'] | [b'-']) | (DelimiterKind::Closing, [b'\r']) => Self::Cut,
            (DelimiterKind::Opening, [byte, ..]) if padding == 0 && !matches!(byte, b'\r' | b'\n' | b'-') => Self::Text,
            _ => Self::Nearly,
        }
    }
}

/// One part of a form.
struct Part<'b> {
    /// The field's name.
    name: Cow<'b, [u8]>,
    /// Where its value lies.
    value: Range<usize>,
    content: Content,
}

/// What a part's value is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Text,
    /// A file, or text in a coding.
    Other,
}

impl<'b> Part<'b> {
    /// Reads a part's headers (RFC 7578, section 4.2).
    fn read(body: &'b [u8], span: Range<usize>) -> Result<Self, FormError> {
        let malformed = |reason, offset| FormError::Malformed { reason, offset };
        // Reversed where one delimiter follows another at once.
        let part = body.get(span.clone()).ok_or(malformed("a part without headers", span.end))?;
        let mut name = None;
        let mut content = Content::Text;
        let mut offset = span.start;
        loop {
            let rest = part.get(offset - span.start..).unwrap_or_default();
            let length = find(rest, b"\r\n").ok_or(malformed("a part whose headers do not end", offset))?;
            let line = rest.get(..length).unwrap_or_default();
            if line.is_empty() {
                let name = name.ok_or(malformed("a part without a name", span.start))?;
                return Ok(Self { name, value: offset + 2..span.end, content });
            }
            if line.starts_with(b" ") || line.starts_with(b"\t") {
                return Err(malformed("a folded header", offset));
            }
            let colon =
                line.iter().position(|byte| *byte == b':').ok_or(malformed("a header without a colon", offset))?;
            let (header, value) = line.split_at(colon);
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            if header.eq_ignore_ascii_case(b"content-disposition") {
                let disposition = Disposition::read(value).ok_or(malformed("a content-disposition", offset))?;
                if name.replace(disposition.name).is_some() {
                    return Err(malformed("a second content-disposition", offset));
                }
                if disposition.content == Content::Other {
                    content = Content::Other;
                }
            } else if header.eq_ignore_ascii_case(b"content-transfer-encoding")
                && ![&b"7bit"[..], b"8bit", b"binary"].iter().any(|plain| value.eq_ignore_ascii_case(plain))
            {
                content = Content::Other;
            }
            offset += length + 2;
        }
    }
}

/// The value of `content-disposition`.
struct Disposition<'b> {
    name: Cow<'b, [u8]>,
    content: Content,
}

impl<'b> Disposition<'b> {
    /// `None` for one that is malformed or that parsers read differently.
    fn read(value: &'b [u8]) -> Option<Self> {
        let semicolon = value.iter().position(|byte| *byte == b';')?;
        let (kind, parameters) = value.split_at(semicolon);
        if !kind.trim_ascii().eq_ignore_ascii_case(b"form-data") {
            return None;
        }
        let mut name = None;
        let mut content = Content::Text;
        for parameter in Parameters(parameters.get(1..)?) {
            let Parameter { name: parameter, value } = parameter?;
            let parameter = parameter.to_ascii_lowercase();
            if parameter == b"name" {
                // Some parsers take what a backslash stands before as it is, some with the backslash.
                let is_escaped = matches!(value, Cow::Owned(_));
                if is_escaped || name.replace(value).is_some() {
                    return None;
                }
            } else if name.is_none() {
                // Every client writes it first. Some parsers search for `name=`, and would find it in the text of another.
                return None;
            } else if parameter.starts_with(b"name*") {
                // RFC 7578, section 4.2, leaves the extended form out. Some parsers know it all the same.
                return None;
            } else if parameter.starts_with(b"filename") {
                content = Content::Other;
            }
        }
        Some(Self { name: name?, content })
    }
}

/// The parameters of a header's value (RFC 9110, section 5.6.6), behind the first semicolon. A `None` is what is none; it
/// ends them.
struct Parameters<'b>(&'b [u8]);

struct Parameter<'b> {
    name: &'b [u8],
    value: Cow<'b, [u8]>,
}

impl<'b> Iterator for Parameters<'b> {
    type Item = Option<Parameter<'b>>;

    fn next(&mut self) -> Option<Self::Item> {
        // An empty one between two semicolons, or after the last, is none.
        let is_between = |byte: &u8| matches!(byte, b' ' | b'\t' | b';');
        let start = self.0.iter().position(|byte| !is_between(byte))?;
        let rest = std::mem::take(&mut self.0).get(start..)?;
        let Some((parameter, rest)) = Parameter::read(rest) else { return Some(None) };
        self.0 = rest;
        Some(Some(parameter))
    }
}

impl<'b> Parameter<'b> {
    /// The parameter that comes next, and what is behind it.
    fn read(bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let equals = bytes.iter().position(|byte| matches!(byte, b'=' | b';'))?;
        let (name, rest) = bytes.split_at(equals);
        let (name, rest) = (name.trim_ascii(), rest.strip_prefix(b"=")?.trim_ascii_start());
        let (value, rest) = match rest.strip_prefix(b"\"") {
            Some(rest) => quoted(rest)?,
            None => {
                let (value, rest) = rest.split_at(rest.iter().position(|byte| *byte == b';').unwrap_or(rest.len()));
                // A quote within is neither a token nor a quoted string.
                let value = Some(value.trim_ascii_end()).filter(|value| !value.contains(&b'"'))?;
                (Cow::Borrowed(value), rest)
            }
        };
        let rest = rest.trim_ascii_start();
        if !rest.is_empty() && !rest.starts_with(b";") {
            return None;
        }
        Some((Self { name, value }, rest))
    }
}

/// A quoted string behind its first quote (RFC 9110, section 5.6.4), and what is behind its last.
fn quoted(bytes: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let end = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    let (plain, rest) = bytes.split_at(end);
    if let Some(rest) = rest.strip_prefix(b"\"") {
        return Some((Cow::Borrowed(plain), rest));
    }
    let mut value = plain.to_vec();
    let mut rest = rest;
    loop {
        match rest {
            [b'"', after @ ..] => return Some((Cow::Owned(value), after)),
            [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                value.push(*byte);
                rest = after;
            }
            [] => return None,
        }
    }
}

/// The fields that matter, as far as they were read.
#[derive(Default)]
struct Fields {
    seen: Seen,
    model: Option<Range<usize>>,
    stream: bool,
    choices: Option<u64>,
    prompt: Option<Range<usize>>,
}

#[derive(Clone, Copy)]
enum FieldName {
    Model,
    Stream,
    Choices,
    Prompt,
}

impl FieldName {
    fn of(name: &[u8]) -> Option<((Self, &'static str), &'static str)> {
        let (field, name) = match name {
            b"model" => (Self::Model, "model"),
            b"stream" => (Self::Stream, "stream"),
            b"n" => (Self::Choices, "n"),
            b"prompt" => (Self::Prompt, "prompt"),
            _ => return None,
        };
        Some(((field, name), name))
    }
}

impl Fields {
    fn take(&mut self, part: &Part<'_>, body: &[u8]) -> Result<(), ScanError> {
        let plain = plain_name(&part.name);
        let Some((field, name)) = self.seen.add(plain, FieldName::of)? else { return Ok(()) };
        if plain != part.name.as_ref() {
            return Err(ScanError::Misspelt(name));
        }
        if part.content != Content::Text {
            return Err(FormError::NotText(name).into());
        }
        let text = body.get(part.value.clone()).unwrap_or_default();
        match field {
            FieldName::Model => self.model = Some(part.value.clone()),
            FieldName::Prompt => self.prompt = Some(part.value.clone()),
            // An empty field is as good as none.
            FieldName::Stream | FieldName::Choices if text.is_empty() => {}
            FieldName::Stream => self.stream = Switch::of_word(text).ok_or(ScanError::NotASwitch(name))?.is_on(),
            FieldName::Choices => {
                let count = str::from_utf8(text).ok().and_then(Count::of_text).ok_or(ScanError::NotACount(name))?;
                self.choices = count.number();
            }
        }
        Ok(())
    }

    fn into_scan(self, body: &[u8]) -> Result<RequestScan, ScanError> {
        let model_span = self.model.ok_or(ScanError::NoModel)?;
        let model = body.get(model_span.clone()).and_then(|model| str::from_utf8(model).ok());
        let model = model.filter(|model| !model.is_empty()).ok_or(ScanError::ModelNotAString)?.to_owned();
        let text = |span| Segment { kind: SegmentKind::Text, span, form: SegmentForm::Plain };
        Ok(RequestScan {
            model,
            model_span,
            model_syntax: ModelSyntax::FormField,
            stream: self.stream,
            background: false,
            // Nothing to ask for: these operations report what they report.
            include_usage: IncludeUsage::Requested,
            max_tokens: None,
            bounds: OutputBounds::default(),
            choices: self.choices.unwrap_or(1).clamp(1, MAX_CHOICES),
            prompts: 1,
            runs_tools: false,
            segments: self.prompt.map(text).into_iter().collect(),
        })
    }
}

/// What lax readers of forms make of a field's name: spaces and NUL around it are nothing to some, and `model[]` and `model[0]` are lists
/// called `model` to those who nest.
fn plain_name(name: &[u8]) -> &[u8] {
    let is_nothing = |byte: &u8| byte.is_ascii_whitespace() || byte.is_ascii_control();
    let start = name.iter().position(|byte| !is_nothing(byte)).unwrap_or(name.len());
    let name = name.get(start..).unwrap_or_default();
    let end = name.iter().position(|byte| matches!(byte, b'[' | 0)).unwrap_or(name.len());
    let name = name.get(..end).unwrap_or_default();
    let end = name.iter().rposition(|byte| !is_nothing(byte)).map_or(0, |last| last + 1);
    name.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests;
