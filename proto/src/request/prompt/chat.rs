//! The messages of a chat, as OpenAI's API has them, with vLLM's extensions; and the parts of a content, which the Responses
//! API has too.

use super::{Prompt, Rank, text};
use crate::json::ValueKind;
use crate::request::{ScanError, Segment, SegmentForm, SegmentKind};

/// What is read of a message.
const MESSAGE: [&str; 8] = [
    "messages.role",
    "messages.content",
    "messages.tool_calls",
    "messages.function_call",
    "messages.tool_call_id",
    "messages.name",
    "messages.reasoning_content",
    "messages.reasoning",
];

/// What is read of a content part. All but the first two carry media, in OpenAI's form and in vLLM's extensions of it.
const PART: [&str; 16] = [
    "content.type",
    "content.text",
    "content.image_url",
    "content.input_audio",
    "content.audio_url",
    "content.video_url",
    "content.file",
    "content.image",
    "content.audio",
    "content.video",
    "content.input_image",
    "content.image_embeds",
    "content.image_pil",
    "content.file_data",
    "content.file_url",
    "content.file_id",
];

/// The values of a content part's `type` that announce text: in chat, and in the Responses API.
const TEXT_TYPES: [&[u8]; 5] = [b"text", b"input_text", b"output_text", b"reasoning_text", b"summary_text"];

impl Prompt<'_, '_> {
    /// One message.
    pub(super) fn chat_message(&mut self) -> Result<(), ScanError> {
        let first = self.pieces.len();
        let mut role = None;
        self.members(&MESSAGE, |prompt, name, _| match name {
            b"role" => {
                role = prompt.read(SegmentKind::Role)?;
                Ok(())
            }
            b"content" => prompt.content(SegmentKind::Text, Rank::Content),
            b"tool_calls" | b"function_call" => prompt.raw(SegmentKind::ToolCalls, Rank::Calls),
            b"tool_call_id" => prompt.text_or_raw(SegmentKind::ToolCallId, Rank::Id),
            b"name" => prompt.text_or_raw(SegmentKind::Name, Rank::Name),
            b"reasoning_content" | b"reasoning" => prompt.text_or_raw(SegmentKind::Reasoning, Rank::Reasoning),
            _ => prompt.skip(),
        })?;
        if let Some(role) = role {
            self.push(Rank::Opening, role);
        }
        self.arrange(first);
        Ok(())
    }

    /// A text, or a list of parts. Texts in it are of `kind`.
    pub(super) fn content(&mut self, kind: SegmentKind, rank: Rank) -> Result<(), ScanError> {
        if self.scanner.peek()? != ValueKind::Array {
            return self.text_or_raw(kind, rank);
        }
        let first = self.pieces.len();
        self.elements(|prompt, value| match value {
            ValueKind::Object => prompt.part(kind),
            _ => prompt.text_or_raw(kind, rank),
        })?;
        self.settle(first, rank);
        Ok(())
    }

    /// One part of a content. Of a part that we know only what it carries counts, so that `cache_control` and the like make
    /// no difference.
    pub(super) fn part(&mut self, kind: SegmentKind) -> Result<(), ScanError> {
        let start = self.scanner.offset();
        let mut announces_text = None;
        let mut said = None;
        let mut media = None;
        self.members(&PART, |prompt, name, value| match (name, value) {
            (b"type", ValueKind::String) => {
                let name = prompt.scanner.string()?;
                announces_text = Some(TEXT_TYPES.contains(&name.text(prompt.scanner.bytes()).as_ref()));
                Ok(())
            }
            (b"text", ValueKind::String) => {
                said = Some(prompt.scanner.string()?);
                Ok(())
            }
            (b"type" | b"text", _) | (_, ValueKind::Null) => prompt.skip(),
            _ => {
                media = Some(prompt.media()?);
                Ok(())
            }
        })?;
        let segment = match (announces_text, said, media) {
            (Some(true), Some(said), _) | (None, Some(said), None) => text(kind, said),
            (Some(false) | None, _, Some(media)) => media,
            _ => Segment { kind, span: start..self.scanner.offset(), form: SegmentForm::Raw },
        };
        self.push(Rank::Content, segment);
        Ok(())
    }
}
