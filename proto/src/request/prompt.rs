//! The fields of a request that are part of the prompt, cut into segments.
//!
//! Nothing here refuses a shape: what is not known becomes a segment of raw JSON. Memory is one [`Segment`] per piece, and
//! each piece is at least a byte of the body.

use super::{Segment, SegmentForm, SegmentKind};
use crate::json::{JsonError, Scanner, StringForm, StringSpan, ValueKind};
use crate::operation::Operation;

/// The members of a content part that carry media, in OpenAI's form and in vLLM's extensions of it.
const MEDIA: [&[u8]; 11] = [
    b"image_url",
    b"input_audio",
    b"audio_url",
    b"video_url",
    b"file",
    b"image",
    b"audio",
    b"video",
    b"input_image",
    b"image_embeds",
    b"image_pil",
];

/// The values of a content part's `type` that announce text: in chat, and as clients of the Responses API send it.
const TEXT_TYPES: [&[u8]; 3] = [b"text", b"input_text", b"output_text"];

/// A top-level field that is part of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PromptField {
    Messages,
    Tools,
    /// `prompt` of a completion, `input` of an embedding.
    Input,
    CacheSalt,
    ChatTemplateKwargs,
    Documents,
    ReasoningEffort,
    ResponseFormat,
    Thinking,
}

impl PromptField {
    /// The field of that name. Sampling fields are none: they leave the prompt as it is.
    pub(super) fn of(operation: Operation, name: &[u8]) -> Option<Self> {
        use Operation::{ChatCompletions, Completions, Embeddings};
        Some(match (operation, name) {
            // vLLM embeds chats too.
            (ChatCompletions | Embeddings, b"messages") => Self::Messages,
            (ChatCompletions, b"tools") => Self::Tools,
            (ChatCompletions, b"chat_template_kwargs") => Self::ChatTemplateKwargs,
            (ChatCompletions, b"documents") => Self::Documents,
            (ChatCompletions, b"reasoning_effort") => Self::ReasoningEffort,
            (ChatCompletions, b"response_format") => Self::ResponseFormat,
            (ChatCompletions, b"thinking") => Self::Thinking,
            (Completions, b"prompt") | (Embeddings, b"input") => Self::Input,
            (ChatCompletions | Completions, b"cache_salt") => Self::CacheSalt,
            _ => return None,
        })
    }

    /// Reads the field's value, which comes next.
    pub(super) fn segments(self, scanner: &mut Scanner<'_>) -> Result<Vec<Segment>, JsonError> {
        let mut prompt = Prompt { scanner, segments: Vec::new() };
        match self {
            Self::Messages => prompt.messages()?,
            Self::Tools => prompt.tools()?,
            Self::Input => prompt.input()?,
            Self::CacheSalt => prompt.text_or_raw(SegmentKind::CacheSalt)?,
            Self::ChatTemplateKwargs
            | Self::Documents
            | Self::ReasoningEffort
            | Self::ResponseFormat
            | Self::Thinking => prompt.raw(SegmentKind::Template)?,
        }
        Ok(prompt.segments)
    }
}

/// How many pieces of one field are told apart. Ten thousand messages have half as many; a body of `[1,1,1,...]` would
/// otherwise take twenty times its size in memory.
const MAX_SEGMENTS: usize = 65_536;

struct Prompt<'s, 'a> {
    scanner: &'s mut Scanner<'a>,
    segments: Vec<Segment>,
}

impl Prompt<'_, '_> {
    fn messages(&mut self) -> Result<(), JsonError> {
        if self.scanner.peek()? != ValueKind::Array {
            return self.raw(SegmentKind::Text);
        }
        self.scanner.open()?;
        while self.scanner.next_element()? {
            self.message()?;
        }
        Ok(())
    }

    fn message(&mut self) -> Result<(), JsonError> {
        if self.scanner.peek()? != ValueKind::Object {
            return self.raw(SegmentKind::Text);
        }
        self.scanner.open()?;
        let first = self.segments.len();
        let mut role = None;
        while let Some(key) = self.scanner.next_key()? {
            match key.text(self.scanner.bytes()).as_ref() {
                b"role" => role = self.read(SegmentKind::Role)?,
                b"content" => self.content()?,
                b"tool_calls" => self.raw(SegmentKind::ToolCalls)?,
                b"tool_call_id" => self.text_or_raw(SegmentKind::ToolCallId)?,
                b"name" => self.text_or_raw(SegmentKind::Name)?,
                b"reasoning_content" | b"reasoning" => self.text_or_raw(SegmentKind::Reasoning)?,
                _ => {
                    self.scanner.skip()?;
                }
            }
        }
        if let Some(role) = role.filter(|_| self.segments.len() < MAX_SEGMENTS) {
            self.segments.insert(first, role);
        }
        Ok(())
    }

    fn content(&mut self) -> Result<(), JsonError> {
        if self.scanner.peek()? != ValueKind::Array {
            return self.text_or_raw(SegmentKind::Text);
        }
        self.scanner.open()?;
        while self.scanner.next_element()? {
            match self.scanner.peek()? {
                ValueKind::Object => self.part()?,
                _ => self.text_or_raw(SegmentKind::Text)?,
            }
        }
        Ok(())
    }

    /// One part of a content. Of a part that we know only what it carries counts, so that `cache_control` and the like make
    /// no difference.
    fn part(&mut self) -> Result<(), JsonError> {
        let start = self.scanner.offset();
        self.scanner.open()?;
        let mut announces_text = None;
        let mut text = None;
        let mut media = None;
        while let Some(key) = self.scanner.next_key()? {
            match (key.text(self.scanner.bytes()).as_ref(), self.scanner.peek()?) {
                (b"type", ValueKind::String) => {
                    let name = self.scanner.string()?;
                    announces_text = Some(TEXT_TYPES.contains(&name.text(self.scanner.bytes()).as_ref()));
                }
                (b"text", ValueKind::String) => text = Some(self.scanner.string()?),
                (name, _) if MEDIA.contains(&name) => media = Some(self.scanner.skip()?),
                _ => {
                    self.scanner.skip()?;
                }
            }
        }
        let segment = match (announces_text, text, media) {
            (Some(true), Some(text), _) | (None, Some(text), None) => string(SegmentKind::Text, text),
            (Some(false) | None, _, Some(span)) => Segment { kind: SegmentKind::Media, span, form: SegmentForm::Raw },
            _ => Segment { kind: SegmentKind::Text, span: start..self.scanner.offset(), form: SegmentForm::Raw },
        };
        self.push(segment);
        Ok(())
    }

    fn tools(&mut self) -> Result<(), JsonError> {
        if self.scanner.peek()? != ValueKind::Array {
            return self.raw(SegmentKind::Tool);
        }
        self.scanner.open()?;
        while self.scanner.next_element()? {
            self.raw(SegmentKind::Tool)?;
        }
        Ok(())
    }

    /// A text, token ids, or a list of such.
    fn input(&mut self) -> Result<(), JsonError> {
        if self.scanner.peek()? != ValueKind::Array {
            return self.text_or_raw(SegmentKind::Text);
        }
        let start = self.scanner.offset();
        self.scanner.open()?;
        let mut has_token_ids = false;
        while self.scanner.next_element()? {
            match self.scanner.peek()? {
                ValueKind::Number => {
                    has_token_ids = true;
                    self.scanner.skip()?;
                }
                ValueKind::Array => self.raw(SegmentKind::Tokens)?,
                // As a chat's content: vLLM and others embed images too.
                ValueKind::Object => self.part()?,
                _ => self.text_or_raw(SegmentKind::Text)?,
            }
        }
        if has_token_ids {
            self.segments.clear();
            let span = start..self.scanner.offset();
            self.push(Segment { kind: SegmentKind::Tokens, span, form: SegmentForm::Raw });
        }
        Ok(())
    }

    /// A string's text, or raw JSON; `null` is nothing.
    fn text_or_raw(&mut self, kind: SegmentKind) -> Result<(), JsonError> {
        let segment = self.read(kind)?;
        if let Some(segment) = segment {
            self.push(segment);
        }
        Ok(())
    }

    fn read(&mut self, kind: SegmentKind) -> Result<Option<Segment>, JsonError> {
        match self.scanner.peek()? {
            ValueKind::String => Ok(Some(string(kind, self.scanner.string()?))),
            ValueKind::Null => {
                self.scanner.skip()?;
                Ok(None)
            }
            _ => Ok(Some(Segment { kind, span: self.scanner.skip()?, form: SegmentForm::Raw })),
        }
    }

    /// Raw JSON; `null` is nothing.
    fn raw(&mut self, kind: SegmentKind) -> Result<(), JsonError> {
        let value = self.scanner.peek()?;
        let span = self.scanner.skip()?;
        if value != ValueKind::Null {
            self.push(Segment { kind, span, form: SegmentForm::Raw });
        }
        Ok(())
    }

    /// Adds a piece. What comes after [`MAX_SEGMENTS`] of them is one raw piece: it still counts, and costs no memory.
    fn push(&mut self, segment: Segment) {
        let is_full = self.segments.len() >= MAX_SEGMENTS;
        match self.segments.last_mut() {
            Some(last) if is_full => {
                last.span.end = last.span.end.max(segment.span.end);
                last.form = SegmentForm::Raw;
            }
            _ => self.segments.push(segment),
        }
    }
}

fn string(kind: SegmentKind, string: StringSpan) -> Segment {
    let form = match string.form {
        StringForm::Plain => SegmentForm::Plain,
        StringForm::Escaped => SegmentForm::Escaped,
    };
    Segment { kind, span: string.span, form }
}
