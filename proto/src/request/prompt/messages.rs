//! The system's prompt and the turns of Anthropic's messages API: texts, or lists of blocks.

use super::media::Identity;
use super::{Prompt, Rank, text};
use crate::json::ValueKind;
use crate::request::{ScanError, Segment, SegmentForm, SegmentKind};

/// How deep blocks lie in blocks: in a message, in a tool's result or a document, and in a document in a tool's result.
const MAX_LEVELS: u8 = 3;

/// What is read of a turn.
const TURN: [&str; 2] = ["messages.role", "messages.content"];

/// What is read of a block.
const BLOCK: [&str; 12] = [
    "content.type",
    "content.text",
    "content.thinking",
    "content.data",
    "content.name",
    "content.title",
    "content.id",
    "content.tool_use_id",
    "content.context",
    "content.input",
    "content.content",
    "content.source",
];

/// What is read of what an image or a document is.
const SOURCE: [&str; 7] = [
    "source.type",
    "source.content",
    "source.data",
    "source.file_data",
    "source.url",
    "source.file_url",
    "source.file_id",
];

impl Prompt<'_, '_> {
    pub(super) fn system(&mut self) -> Result<(), ScanError> {
        self.open_system()?;
        self.blocks(MAX_LEVELS, Rank::Content)
    }

    /// Opens the system's prompt, if there is one.
    pub(super) fn open_system(&mut self) -> Result<(), ScanError> {
        if self.scanner.peek()? != ValueKind::Null {
            let at = self.scanner.offset();
            let form = SegmentForm::Plain;
            self.push(Rank::Opening, Segment { kind: SegmentKind::System, span: at..at, form });
        }
        Ok(())
    }

    /// One turn.
    pub(super) fn turn(&mut self) -> Result<(), ScanError> {
        let first = self.pieces.len();
        let mut role = None;
        self.members(&TURN, |prompt, name, _| match name {
            b"role" => {
                role = prompt.read(SegmentKind::Role)?;
                Ok(())
            }
            b"content" => prompt.blocks(MAX_LEVELS, Rank::Content),
            _ => prompt.skip(),
        })?;
        if let Some(role) = role {
            self.push(Rank::Opening, role);
        }
        self.arrange(first);
        Ok(())
    }

    /// A text, or a list of blocks, of which so many levels may follow.
    fn blocks(&mut self, levels: u8, rank: Rank) -> Result<(), ScanError> {
        if self.scanner.peek()? != ValueKind::Array || levels == 0 {
            return self.text_or_raw(SegmentKind::Text, rank);
        }
        let first = self.pieces.len();
        self.elements(|prompt, value| match value {
            ValueKind::Object => prompt.block(levels - 1),
            _ => prompt.text_or_raw(SegmentKind::Text, rank),
        })?;
        self.settle(first, rank);
        Ok(())
    }

    /// One block. Of one that we know only what the model reads counts: neither `cache_control` nor a `signature`.
    fn block(&mut self, levels: u8) -> Result<(), ScanError> {
        let (first, start) = (self.pieces.len(), self.scanner.offset());
        let mut is_known = None;
        self.members(&BLOCK, |prompt, name, value| match (name, value) {
            (b"type", ValueKind::String) => {
                let name = prompt.scanner.string()?;
                is_known = Some(is_known_block(&name.text(prompt.scanner.bytes())));
                Ok(())
            }
            (b"text", _) => prompt.text_or_raw(SegmentKind::Text, Rank::Content),
            // `data` is a `redacted_thinking` block's.
            (b"thinking" | b"data", _) => prompt.text_or_raw(SegmentKind::Reasoning, Rank::Reasoning),
            (b"name" | b"title", _) => prompt.text_or_raw(SegmentKind::Name, Rank::Name),
            (b"id" | b"tool_use_id", _) => prompt.text_or_raw(SegmentKind::ToolCallId, Rank::Id),
            (b"context", _) => prompt.text_or_raw(SegmentKind::Text, Rank::Reasoning),
            (b"input", _) => prompt.raw(SegmentKind::ToolCalls, Rank::Calls),
            (b"content", _) => prompt.blocks(levels, Rank::Content),
            (b"source", ValueKind::Object) => prompt.source(levels),
            _ => prompt.skip(),
        })?;
        if is_known.unwrap_or(self.pieces.len() > first) {
            self.arrange(first);
        } else {
            self.as_raw(first, start);
        }
        Ok(())
    }

    /// What an image or a document is: media, a text, or blocks of its own.
    fn source(&mut self, levels: u8) -> Result<(), ScanError> {
        let (first, start) = (self.pieces.len(), self.scanner.offset());
        let mut identity = Identity::default();
        let mut kind = SegmentKind::Media;
        self.members(&SOURCE, |prompt, name, value| match (name, value) {
            (b"type", ValueKind::String) => {
                let name = prompt.scanner.string()?;
                if name.text(prompt.scanner.bytes()).as_ref() == b"text" {
                    kind = SegmentKind::Text;
                }
                Ok(())
            }
            (b"content", _) => prompt.blocks(levels, Rank::Content),
            (name, ValueKind::String) => match identity.slot(name) {
                Some(slot) => {
                    *slot = Some(prompt.scanner.string()?);
                    Ok(())
                }
                None => prompt.skip(),
            },
            _ => prompt.skip(),
        })?;
        match identity.best() {
            Some(string) => self.push(Rank::Content, text(kind, string)),
            None if self.pieces.len() > first => {}
            None => {
                let span = start..self.scanner.offset();
                self.push(Rank::Content, Segment { kind, span, form: SegmentForm::Raw });
            }
        }
        Ok(())
    }
}

/// Blocks of which it is known what of them the model reads. Of another one all counts.
fn is_known_block(name: &[u8]) -> bool {
    matches!(name, b"text" | b"thinking" | b"redacted_thinking" | b"tool_use" | b"tool_result" | b"image" | b"document")
}
