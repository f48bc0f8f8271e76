//! A pull scanner over JSON bytes that copies nothing: it yields spans, checks the grammar and bounds the depth.
//!
//! It holds to RFC 8259, with one liberty that the servers behind us take too: an escape of a lone surrogate is let pass.
//! It never recurses, so its memory is the bits of [`MAX_DEPTH`]. Whoever drives it reads every value that it is offered,
//! by [`Scanner::open`], [`Scanner::string`] or [`Scanner::skip`], and calls [`Scanner::finish`] after the last.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr2};

/// How deep arrays and objects may be nested.
pub const MAX_DEPTH: usize = 128;

/// Why bytes are no JSON that we accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The grammar is broken.
    #[error("{reason} at byte {offset}")]
    Syntax {
        /// What was wrong.
        reason: &'static str,
        /// Where, in bytes from the start.
        offset: usize,
    },
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// What a value is, by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// `{`
    Object,
    /// `[`
    Array,
    /// `"`
    String,
    /// `-` or a digit
    Number,
    /// `true` or `false`
    Boolean,
    /// `null`
    Null,
}

/// Where a string's bytes lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StringSpan {
    /// The bytes between the quotes, as written.
    pub span: Range<usize>,
    /// How they are written.
    pub form: StringForm,
}

/// How a string is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StringForm {
    /// Without escapes: the bytes are the text.
    Plain,
    /// With escapes, as [`unescape`] undoes them.
    Escaped,
}

impl StringSpan {
    /// The span with its quotes.
    pub fn quoted(&self) -> Range<usize> {
        self.span.start.saturating_sub(1)..self.span.end.saturating_add(1)
    }

    /// The string's text, given the bytes that were scanned.
    pub fn text<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let raw = bytes.get(self.span.clone()).unwrap_or_default();
        match self.form {
            StringForm::Plain => Cow::Borrowed(raw),
            StringForm::Escaped => unescape(raw),
        }
    }
}

/// A scanner at one place of a JSON text.
#[derive(Debug, Clone)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    offset: usize,
    nesting: Nesting,
    /// Whether the innermost container was opened just now, so that no comma is due.
    fresh: bool,
}

impl<'a> Scanner<'a> {
    /// A scanner at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0, nesting: Nesting::default(), fresh: false }
    }

    /// The same for a value that is to stand in an object: it has one level less to nest.
    pub fn within_an_object(bytes: &'a [u8]) -> Self {
        Self { nesting: Nesting { depth: 1, ..Nesting::default() }, ..Self::new(bytes) }
    }

    /// All the bytes that the scanner was made for.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Skips white space and tells what value comes next, which it leaves unread.
    pub fn peek(&mut self) -> Result<ValueKind, JsonError> {
        match self.token() {
            Some(b'{') => Ok(ValueKind::Object),
            Some(b'[') => Ok(ValueKind::Array),
            Some(b'"') => Ok(ValueKind::String),
            Some(b'-' | b'0'..=b'9') => Ok(ValueKind::Number),
            Some(b't' | b'f') => Ok(ValueKind::Boolean),
            Some(b'n') => Ok(ValueKind::Null),
            Some(_) => Err(self.syntax("expected a value")),
            None => Err(self.syntax("unexpected end")),
        }
    }

    /// Enters the object or array that comes next.
    pub fn open(&mut self) -> Result<(), JsonError> {
        let container = match self.token() {
            Some(b'{') => Container::Object,
            Some(b'[') => Container::Array,
            _ => return Err(self.syntax("expected an object or an array")),
        };
        self.nesting.open(container)?;
        self.offset += 1;
        self.fresh = true;
        Ok(())
    }

    /// Reads the next key of the innermost object and its colon; `None` closes the object.
    pub fn next_key(&mut self) -> Result<Option<StringSpan>, JsonError> {
        if !self.next_in(Container::Object)? {
            return Ok(None);
        }
        let key = self.string()?;
        if self.token() != Some(b':') {
            return Err(self.syntax("expected a colon"));
        }
        self.offset += 1;
        Ok(Some(key))
    }

    /// Whether the innermost array has another element, which it leaves unread; `false` closes the array.
    pub fn next_element(&mut self) -> Result<bool, JsonError> {
        self.next_in(Container::Array)
    }

    /// Reads the string that comes next.
    pub fn string(&mut self) -> Result<StringSpan, JsonError> {
        if self.token() != Some(b'"') {
            return Err(self.syntax("expected a string"));
        }
        let start = self.offset + 1;
        let mut end = start;
        let mut form = StringForm::Plain;
        loop {
            let rest = self.bytes.get(end..).unwrap_or_default();
            let Some(found) = memchr2(b'"', b'\\', rest) else {
                return Err(JsonError::Syntax { reason: "unterminated string", offset: self.bytes.len() });
            };
            end += found;
            match rest.get(found..).unwrap_or_default() {
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => end += 2,
                [b'\\', b'u', digits @ ..] if hex4(digits).is_some() => end += 6,
                [b'\\', ..] => {
                    return Err(JsonError::Syntax { reason: "invalid escape", offset: end });
                }
                _ => break,
            }
            form = StringForm::Escaped;
        }
        self.check_text(start..end)?;
        self.offset = end + 1;
        Ok(StringSpan { span: start..end, form })
    }

    /// Reads the value that comes next, whatever it is, and returns its span.
    pub fn skip(&mut self) -> Result<Range<usize>, JsonError> {
        self.token();
        let start = self.offset;
        let outer = self.nesting.depth();
        loop {
            let entered = match self.peek()? {
                ValueKind::Object | ValueKind::Array => {
                    self.open()?;
                    true
                }
                ValueKind::String => {
                    self.string()?;
                    false
                }
                ValueKind::Number => {
                    self.number()?;
                    false
                }
                ValueKind::Boolean | ValueKind::Null => {
                    self.literal()?;
                    false
                }
            };
            // Either a container was entered, or a value has ended: go on to the next value, closing what is complete.
            let mut complete = !entered && self.nesting.depth() == outer;
            while !complete {
                let more = match self.nesting.innermost() {
                    Container::Object => self.next_key()?.is_some(),
                    Container::Array => self.next_element()?,
                };
                if more {
                    break;
                }
                complete = self.nesting.depth() == outer;
            }
            if complete {
                return Ok(start..self.offset);
            }
        }
    }

    /// Checks that nothing but white space is left.
    pub fn finish(&mut self) -> Result<(), JsonError> {
        match self.token() {
            None => Ok(()),
            Some(_) => Err(self.syntax("unexpected bytes after the value")),
        }
    }

    /// Where the scanner is, in bytes from the start.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether white space is all that is left.
    pub fn is_at_end(&mut self) -> bool {
        self.token().is_none()
    }

    fn next_in(&mut self, container: Container) -> Result<bool, JsonError> {
        let fresh = std::mem::take(&mut self.fresh);
        match self.token() {
            Some(byte) if byte == container.close() => {
                if !self.nesting.close(container) {
                    return Err(self.syntax("mismatched bracket"));
                }
                self.offset += 1;
                Ok(false)
            }
            // What follows a comma is read next, as a key or a value; a closing bracket is neither.
            Some(b',') if !fresh => {
                self.offset += 1;
                Ok(true)
            }
            Some(_) if fresh => Ok(true),
            Some(_) => Err(self.syntax("expected a comma or a closing bracket")),
            None => Err(self.syntax("unexpected end")),
        }
    }

    /// RFC 8259, section 6.
    fn number(&mut self) -> Result<(), JsonError> {
        if self.byte() == Some(b'-') {
            self.offset += 1;
        }
        match self.byte() {
            Some(b'0') => self.offset += 1,
            _ => self.digits()?,
        }
        if self.byte() == Some(b'.') {
            self.offset += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.offset += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.offset += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return Err(self.syntax("expected a digit"));
        }
        self.offset += count;
        Ok(())
    }

    fn literal(&mut self) -> Result<(), JsonError> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let known = [&b"true"[..], b"false", b"null"].into_iter().find(|literal| rest.starts_with(literal));
        let Some(literal) = known else {
            return Err(self.syntax("expected a value"));
        };
        self.offset += literal.len();
        Ok(())
    }

    /// Strings are UTF-8 and have no raw control characters (RFC 8259, sections 7 and 8.1).
    fn check_text(&self, span: Range<usize>) -> Result<(), JsonError> {
        let text = self.bytes.get(span.clone()).unwrap_or_default();
        // Without an early exit, so that the compiler makes vector instructions of it.
        let (control, union) =
            text.iter().fold((false, 0), |(control, union), &byte| (control | (byte < 0x20), union | byte));
        if control {
            let at = text.iter().position(|&byte| byte < 0x20).unwrap_or_default();
            let offset = span.start + at;
            return Err(JsonError::Syntax { reason: "unescaped control character in a string", offset });
        }
        if union >= 0x80
            && let Err(error) = core::str::from_utf8(text)
        {
            let offset = span.start + error.valid_up_to();
            return Err(JsonError::Syntax { reason: "invalid UTF-8 in a string", offset });
        }
        Ok(())
    }

    /// Skips white space and looks at the byte after it.
    fn token(&mut self) -> Option<u8> {
        loop {
            match self.byte() {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.offset += 1,
                byte => return byte,
            }
        }
    }

    fn byte(&self) -> Option<u8> {
        self.bytes.get(self.offset).copied()
    }

    fn syntax(&self, reason: &'static str) -> JsonError {
        JsonError::Syntax { reason, offset: self.offset }
    }
}

/// Undoes the escapes of a string, given the bytes between its quotes.
///
/// A lone surrogate becomes U+FFFD, and what is no escape at all stays as it is.
pub fn unescape(raw: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'\\', raw).is_none() {
        return Cow::Borrowed(raw);
    }
    let mut text = Vec::with_capacity(raw.len());
    unescape_each(raw, |piece| text.extend_from_slice(piece));
    Cow::Owned(text)
}

/// As [`unescape`], but hands the text over piece by piece: nothing is copied, whatever its length.
pub fn unescape_each(raw: &[u8], mut take: impl FnMut(&[u8])) {
    let mut rest = raw;
    while !rest.is_empty() {
        rest = match rest {
            [b'\\', b'u', digits @ ..] => unescape_unicode(digits, &mut take),
            [b'\\', escape, rest @ ..] => {
                match escape {
                    b'b' => take(b"\x08"),
                    b'f' => take(b"\x0c"),
                    b'n' => take(b"\n"),
                    b'r' => take(b"\r"),
                    b't' => take(b"\t"),
                    b'"' | b'\\' | b'/' => take(&[*escape]),
                    _ => take(&[b'\\', *escape]),
                }
                rest
            }
            // A backslash that ends the string escapes nothing.
            [b'\\'] => {
                take(b"\\");
                &[]
            }
            _ => {
                let (plain, rest) = rest.split_at(memchr(b'\\', rest).unwrap_or(rest.len()));
                take(plain);
                rest
            }
        };
    }
}

/// Reads the digits of a `\u` escape, and of the second half of a surrogate pair; returns what follows.
fn unescape_unicode<'a>(digits: &'a [u8], take: &mut impl FnMut(&[u8])) -> &'a [u8] {
    let (Some(unit), Some(mut rest)) = (hex4(digits), digits.get(4..)) else {
        take(br"\u");
        return digits;
    };
    let mut code = u32::from(unit);
    if let 0xd800..=0xdbff = unit
        && let [b'\\', b'u', low_digits @ ..] = rest
        && let Some(low @ 0xdc00..=0xdfff) = hex4(low_digits)
    {
        code = 0x1_0000 + ((code - 0xd800) << 10) + (u32::from(low) - 0xdc00);
        rest = low_digits.get(4..).unwrap_or_default();
    }
    let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    take(character.encode_utf8(&mut [0; 4]).as_bytes());
    rest
}

fn hex4(digits: &[u8]) -> Option<u16> {
    let digits = digits.get(..4)?;
    digits.iter().try_fold(0, |unit: u16, &digit| {
        let value = char::from(digit).to_digit(16)?;
        Some(unit << 4 | u16::try_from(value).ok()?)
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Container {
    Object,
    Array,
}

impl Container {
    fn close(self) -> u8 {
        match self {
            Self::Object => b'}',
            Self::Array => b']',
        }
    }
}

/// The containers that are open: one bit each, the innermost lowest.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Nesting {
    objects: u128,
    depth: usize,
}

impl Nesting {
    pub(crate) fn open(&mut self, container: Container) -> Result<(), JsonError> {
        if self.depth == MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        self.objects = self.objects << 1 | u128::from(container == Container::Object);
        self.depth += 1;
        Ok(())
    }

    /// Closes the innermost container, if it is such a one.
    pub(crate) fn close(&mut self, container: Container) -> bool {
        if self.depth == 0 || self.innermost() != container {
            return false;
        }
        self.objects >>= 1;
        self.depth -= 1;
        true
    }

    /// How many are open.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// What the innermost is; an array where none is open.
    pub(crate) fn innermost(&self) -> Container {
        match self.objects & 1 {
            1 => Container::Object,
            _ => Container::Array,
        }
    }
}

#[cfg(test)]
mod tests;
