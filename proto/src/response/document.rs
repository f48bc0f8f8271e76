//! The few fields of an answer that we read, from JSON cut at any byte.
//!
//! An answer may be megabytes long and arrive in any number of chunks, so this keeps a few bits of state and the bytes of
//! the one key or value it is after. It checks the structure, not every detail: what it takes for JSON may have a broken
//! number, literal or escape in it.

use memchr::memchr2;

use crate::json::{Container, Nesting, unescape};
use crate::operation::Operation;
use crate::usage::Usage;

/// How many bytes of a key or value are kept. Usage objects have some 100 to 500; a longer value is no usage and no model.
const MAX_KEPT_BYTES: usize = 4096;

/// The members of a choice's `delta` that are output, besides `audio`.
const DELTA_CONTENT: [&[u8]; 6] =
    [b"content", b"reasoning_content", b"reasoning", b"refusal", b"tool_calls", b"function_call"];

/// The members of the `delta` of Anthropic's `content_block_delta` that are output.
const BLOCK_CONTENT: [&[u8]; 3] = [b"text", b"thinking", b"partial_json"];

/// A JSON object that is being read: an answer, or one event of it.
#[derive(Debug, Clone)]
pub(super) struct Document {
    operation: Operation,
    state: State,
    nesting: Nesting,
    /// The member whose value is awaited, if we are after it.
    member: Option<Member>,
    kept: Kept,
    buffer: Vec<u8>,
    /// Whether we are inside of `choices`.
    in_choices: bool,
    /// Whether we are inside of a choice's `delta`.
    in_delta: bool,
    /// What object of the root's we are inside of, if it is one with members that we are after.
    inside: Option<Inside>,
    /// The byte which, if it comes next, says that the content just begun is empty.
    empty_if: Option<u8>,
    /// What the content that is being read is, and the depth at which it ends.
    reading: Option<(Weight, usize)>,
    /// What earlier events of Anthropic's said: the first has the input, the last the output.
    usage_before: Option<Usage>,
    /// The first `model`: all events of a stream name the same, so it outlives a restart.
    model: Option<String>,
    found: Found,
}

/// What a document said.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    pub(super) usage: Option<Usage>,
    pub(super) usage_object: UsageObject,
    pub(super) choices: Choices,
    /// Whether a choice has content.
    pub(super) content: Content,
    /// How long the content is that is text, in bytes.
    text_bytes: u64,
    /// What of that escapes have too much.
    escaped_bytes: u64,
    /// How long the content is that is JSON.
    json_bytes: u64,
}

/// Content of at most so many bytes is taken for one token, as most servers send one with each event. Of the words in common
/// vocabularies hardly any is longer.
const ONE_TOKEN_TEXT_BYTES: u64 = 16;

/// The same for tool calls, which come with their names and ids.
const ONE_TOKEN_JSON_BYTES: u64 = 256;

/// Of what is obviously more than one token.
const BYTES_PER_TOKEN: u64 = 4;

impl Found {
    /// How many tokens of output an event has that says this, as far as that can be seen.
    pub(super) fn tokens(&self) -> u64 {
        if self.choices != Choices::Some || self.content != Content::Present {
            return 0;
        }
        let tokens = |bytes: u64, one: u64| if bytes > one { bytes.div_ceil(BYTES_PER_TOKEN) } else { 0 };
        let text_bytes = self.text_bytes.saturating_sub(self.escaped_bytes);
        tokens(text_bytes, ONE_TOKEN_TEXT_BYTES).saturating_add(tokens(self.json_bytes, ONE_TOKEN_JSON_BYTES)).max(1)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum UsageObject {
    #[default]
    Absent,
    Present,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Choices {
    #[default]
    Absent,
    Empty,
    Some,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Content {
    #[default]
    Absent,
    Present,
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Value,
    /// An array was opened.
    ValueOrClose,
    /// An object was opened.
    KeyOrClose,
    Key,
    Colon,
    /// In a number or literal, or behind it.
    Scalar,
    CommaOrClose,
    String(Role),
    /// The byte after a backslash in a string.
    Escape(Role),
    Complete,
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Key,
    Value,
}

/// The members that we are after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Usage,
    Model,
    Choices,
    Delta,
    Inside(Inside),
    Content,
    Audio,
}

/// The objects of the root's that we are after, in events of the Responses API and of Anthropic's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    /// `response`, `message`: the answer itself.
    Answer,
    /// `delta`
    Delta,
}

/// How the length of a content speaks of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    Text,
    Json,
    /// Not at all: sound in base64.
    None,
}

/// What the buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Nothing,
    Key,
    Usage,
    Model,
}

impl Document {
    pub(super) fn new(operation: Operation) -> Self {
        Self {
            operation,
            state: State::Value,
            nesting: Nesting::default(),
            member: None,
            kept: Kept::Nothing,
            buffer: Vec::new(),
            in_choices: false,
            in_delta: false,
            inside: None,
            usage_before: None,
            empty_if: None,
            reading: None,
            model: None,
            found: Found::default(),
        }
    }

    /// Starts over with the next event, and tells what the last one said.
    pub(super) fn restart(&mut self) -> Found {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let model = self.model.take();
        let usage_before = self.found.usage.or(self.usage_before).filter(|_| self.operation == Operation::Messages);
        let read = std::mem::replace(self, Self { buffer, model, usage_before, ..Self::new(self.operation) });
        read.found
    }

    /// Reads the next bytes. Once the document is broken they are ignored.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((&byte, tail)) = rest.split_first() {
            let (reading, before, is_escape) = (self.reading, rest.len(), matches!(self.state, State::Escape(_)));
            rest = match self.state {
                State::Broken => return,
                State::String(role) => {
                    self.decide_content(byte);
                    let end = memchr2(b'"', b'\\', rest);
                    let (read, tail) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
                    self.keep(read);
                    match read.last() {
                        Some(b'"') => self.end_string(role),
                        Some(b'\\') if end.is_some() => self.state = State::Escape(role),
                        _ => {}
                    }
                    tail
                }
                State::Escape(role) => {
                    self.keep(&[byte]);
                    self.state = State::String(role);
                    tail
                }
                State::Scalar => {
                    let is_scalar = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-');
                    let len = rest.iter().take_while(|byte| is_scalar(byte)).count();
                    let (read, tail) = rest.split_at(len);
                    self.keep(read);
                    if !tail.is_empty() {
                        self.end_value();
                    }
                    tail
                }
                _ => {
                    self.structure(byte);
                    tail
                }
            };
            let read = (before - rest.len()) as u64;
            match reading {
                Some((Weight::Text, _)) => {
                    self.found.text_bytes += read;
                    // `\u4f60` stands for three bytes.
                    self.found.escaped_bytes += if is_escape && byte == b'u' { 3 } else { 0 };
                }
                Some((Weight::Json, _)) => self.found.json_bytes += read,
                Some((Weight::None, _)) | None => {}
            }
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        self.found.usage
    }

    pub(super) fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Reads a byte outside of strings, numbers and literals.
    fn structure(&mut self, byte: u8) {
        if let b' ' | b'\t' | b'\n' | b'\r' = byte {
            return;
        }
        self.decide_content(byte);
        match (byte, self.state) {
            (b'"', State::Key | State::KeyOrClose) => {
                if self.is_at_known_object() {
                    self.buffer.clear();
                    self.kept = Kept::Key;
                } else {
                    self.keep(b"\"");
                }
                self.state = State::String(Role::Key);
            }
            (b':', State::Colon) => {
                self.keep(b":");
                self.state = State::Value;
            }
            (b',', State::CommaOrClose) => {
                self.keep(b",");
                self.state = match self.nesting.innermost() {
                    Container::Object => State::Key,
                    Container::Array => State::Value,
                };
            }
            (b'}', State::KeyOrClose | State::CommaOrClose) => self.close(Container::Object),
            (b']', State::ValueOrClose | State::CommaOrClose) => self.close(Container::Array),
            (_, State::Value | State::ValueOrClose) => self.begin_value(byte),
            _ => self.state = State::Broken,
        }
    }

    fn begin_value(&mut self, byte: u8) {
        if self.in_choices && self.nesting.depth() == 2 {
            self.found.choices = Choices::Some;
        }
        match (self.member.take(), byte) {
            (None, _) => {}
            (Some(Member::Usage), _) => {
                self.buffer.clear();
                self.kept = Kept::Usage;
                self.found.usage = None;
                self.found.usage_object = if byte == b'{' { UsageObject::Present } else { UsageObject::Absent };
            }
            (Some(Member::Model), b'"') if self.model.is_none() => {
                self.buffer.clear();
                self.kept = Kept::Model;
            }
            (Some(Member::Choices), b'[') => {
                self.in_choices = true;
                self.found.choices = Choices::Empty;
            }
            (Some(Member::Choices), _) => self.found.choices = Choices::Absent,
            (Some(Member::Delta), b'{') => self.in_delta = true,
            (Some(Member::Inside(inside)), b'{') => self.inside = Some(inside),
            (Some(Member::Content), b'"') => self.begin_content(b'"', Weight::Text),
            (Some(Member::Content), b'[') => self.begin_content(b']', Weight::Json),
            (Some(Member::Content), b'{') => self.begin_content(b'}', Weight::Json),
            (Some(Member::Audio), b'{') => self.begin_content(b'}', Weight::None),
            (Some(Member::Model | Member::Delta | Member::Inside(_) | Member::Content | Member::Audio), _) => {}
        }
        match byte {
            b'{' => self.open(Container::Object),
            b'[' => self.open(Container::Array),
            b'"' if self.nesting.depth() > 0 => {
                self.keep(b"\"");
                self.state = State::String(Role::Value);
            }
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' if self.nesting.depth() > 0 => {
                self.keep(&[byte]);
                self.state = State::Scalar;
            }
            _ => self.state = State::Broken,
        }
    }

    fn begin_content(&mut self, empty_if: u8, weight: Weight) {
        if self.operation == Operation::Responses || self.operation == Operation::Messages {
            // Their events have one choice, which they do not name.
            self.found.choices = Choices::Some;
        }
        self.empty_if = Some(empty_if);
        self.reading = Some((weight, self.nesting.depth()));
    }

    fn open(&mut self, container: Container) {
        let (byte, state) = match container {
            Container::Object => (b'{', State::KeyOrClose),
            Container::Array => (b'[', State::ValueOrClose),
        };
        self.keep(&[byte]);
        let is_root_array = self.nesting.depth() == 0 && container == Container::Array;
        self.state = match self.nesting.open(container) {
            Ok(()) if !is_root_array => state,
            _ => State::Broken,
        };
    }

    fn close(&mut self, container: Container) {
        if !self.nesting.close(container) {
            self.state = State::Broken;
            return;
        }
        self.keep(match container {
            Container::Object => b"}",
            Container::Array => b"]",
        });
        match self.nesting.depth() {
            0 => self.state = State::Complete,
            depth => {
                self.in_choices &= depth > 1;
                self.in_delta &= depth > 3;
                self.inside = self.inside.filter(|_| depth > 1);
                self.end_value();
            }
        }
    }

    fn end_string(&mut self, role: Role) {
        match role {
            Role::Value => self.end_value(),
            Role::Key => {
                self.state = State::Colon;
                if self.kept == Kept::Key {
                    self.kept = Kept::Nothing;
                    let key = self.buffer.strip_suffix(b"\"").unwrap_or_default();
                    self.member = self.known_member(&unescape(key));
                }
            }
        }
    }

    /// A value has ended; what was kept of it is read if it is a whole member of the root.
    fn end_value(&mut self) {
        self.state = State::CommaOrClose;
        if self.reading.is_some_and(|(_, depth)| depth == self.nesting.depth()) {
            self.reading = None;
        }
        let is_whole = match self.inside {
            Some(_) => self.nesting.depth() == 2,
            None => self.nesting.depth() == 1,
        };
        if self.kept == Kept::Nothing || !is_whole {
            return;
        }
        let kept = std::mem::replace(&mut self.kept, Kept::Nothing);
        if self.buffer.len() >= MAX_KEPT_BYTES {
            return;
        }
        match kept {
            Kept::Usage => {
                let usage = Usage::from_json(&self.buffer);
                self.found.usage = usage.map(|usage| self.usage_before.map_or(usage, |before| before.updated(&usage)));
            }
            Kept::Model => {
                let text = self.buffer.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
                let text = unescape(text.unwrap_or_default());
                self.model = Some(String::from_utf8_lossy(&text).into_owned());
            }
            Kept::Nothing | Kept::Key => {}
        }
    }

    /// Whether the innermost object is one of those with members that we are after.
    fn is_at_known_object(&self) -> bool {
        match self.nesting.depth() {
            1 => true,
            2 => self.inside.is_some(),
            3 => self.in_choices,
            4 => self.in_delta,
            _ => false,
        }
    }

    fn known_member(&self, key: &[u8]) -> Option<Member> {
        match (self.nesting.depth(), self.operation, key) {
            (2, _, b"usage") if self.inside == Some(Inside::Answer) => Some(Member::Usage),
            (2, _, b"model") if self.inside == Some(Inside::Answer) => Some(Member::Model),
            (2, _, key) if self.inside == Some(Inside::Delta) && BLOCK_CONTENT.contains(&key) => Some(Member::Content),
            (1, Operation::Responses, b"response") | (1, Operation::Messages, b"message") => {
                Some(Member::Inside(Inside::Answer))
            }
            (1, Operation::Messages, b"delta") => Some(Member::Inside(Inside::Delta)),
            // The text itself, in the events that bring it.
            (1, Operation::Responses, b"delta") => Some(Member::Content),
            (1, _, b"usage") => Some(Member::Usage),
            (1, _, b"model") => Some(Member::Model),
            (1, _, b"choices") => Some(Member::Choices),
            (3, Operation::ChatCompletions, b"delta") => Some(Member::Delta),
            (3, Operation::Completions, b"text") => Some(Member::Content),
            (4, _, b"audio") => Some(Member::Audio),
            (4, _, key) if DELTA_CONTENT.contains(&key) => Some(Member::Content),
            _ => None,
        }
    }

    /// The first byte after the start of content says whether it is empty.
    fn decide_content(&mut self, byte: u8) {
        if let Some(empty_if) = self.empty_if.take()
            && byte != empty_if
        {
            self.found.content = Content::Present;
        }
    }

    fn keep(&mut self, read: &[u8]) {
        if self.kept != Kept::Nothing {
            let room = MAX_KEPT_BYTES - self.buffer.len();
            self.buffer.extend_from_slice(read.get(..room).unwrap_or(read));
        }
    }
}
