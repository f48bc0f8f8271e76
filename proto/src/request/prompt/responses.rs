//! The instructions and the input of the Responses API: a text, or a list of items.

use super::{Prompt, Rank};
use crate::json::ValueKind;
use crate::request::{ScanError, SegmentForm, SegmentKind};

/// What is read of an item.
const ITEM: [&str; 10] = [
    "input.type",
    "input.role",
    "input.content",
    "input.output",
    "input.summary",
    "input.encrypted_content",
    "input.name",
    "input.call_id",
    "input.arguments",
    "input.input",
];

impl Prompt<'_, '_> {
    pub(super) fn instructions(&mut self) -> Result<(), ScanError> {
        self.open_system()?;
        self.text_or_raw(SegmentKind::Text, Rank::Content)
    }

    pub(super) fn items(&mut self) -> Result<(), ScanError> {
        if self.scanner.peek()? != ValueKind::Array {
            return self.text_or_raw(SegmentKind::Text, Rank::Content);
        }
        self.elements(|prompt, value| match value {
            ValueKind::Object => prompt.item(),
            _ => prompt.text_or_raw(SegmentKind::Text, Rank::Content),
        })
    }

    /// One item: a message, a call, what a call gave, or what the model thought. Their `id` and `status` make no difference.
    fn item(&mut self) -> Result<(), ScanError> {
        let (first, start) = (self.pieces.len(), self.scanner.offset());
        let mut is_known = None;
        let mut is_reasoning = false;
        let mut role = None;
        self.members(&ITEM, |prompt, name, value| match (name, value) {
            (b"type", ValueKind::String) => {
                let name = prompt.scanner.string()?;
                let name = name.text(prompt.scanner.bytes());
                is_known = Some(is_known_item(&name));
                is_reasoning = name.as_ref() == b"reasoning";
                Ok(())
            }
            (b"role", _) => {
                role = prompt.read(SegmentKind::Role)?;
                Ok(())
            }
            (b"content" | b"output", _) => prompt.content(SegmentKind::Text, Rank::Content),
            (b"summary", _) => prompt.content(SegmentKind::Reasoning, Rank::Reasoning),
            (b"encrypted_content", _) => prompt.text_or_raw(SegmentKind::Reasoning, Rank::Id),
            (b"name", _) => prompt.text_or_raw(SegmentKind::Name, Rank::Name),
            (b"call_id", _) => prompt.text_or_raw(SegmentKind::ToolCallId, Rank::Id),
            (b"arguments" | b"input", _) => prompt.text_or_raw(SegmentKind::ToolCalls, Rank::Calls),
            _ => prompt.skip(),
        })?;
        if !is_known.unwrap_or(role.is_some()) {
            self.as_raw(first, start);
            return Ok(());
        }
        if let Some(role) = role {
            self.push(Rank::Opening, role);
        }
        self.arrange(first);
        if is_reasoning {
            self.all_reasoning(first);
        }
        Ok(())
    }

    /// What the model thought is not what somebody says.
    fn all_reasoning(&mut self, first: usize) {
        for piece in self.pieces.get_mut(first..).unwrap_or_default() {
            if piece.segment.kind == SegmentKind::Text {
                piece.segment.kind = SegmentKind::Reasoning;
            }
        }
    }

    /// The id of a conversation, as such or in an object.
    pub(super) fn conversation(&mut self) -> Result<(), ScanError> {
        let kind = SegmentKind::Conversation;
        if self.scanner.peek()? != ValueKind::Object {
            return self.text_or_raw(kind, Rank::Content);
        }
        self.members(&["conversation.id"], |prompt, _, _| prompt.text_or_raw(kind, Rank::Content))?;
        self.pieces.retain(|piece| piece.segment.form != SegmentForm::Raw);
        Ok(())
    }
}

/// Items of which it is known what of them the model reads. Of another one all counts.
fn is_known_item(name: &[u8]) -> bool {
    matches!(
        name,
        b"message"
            | b"function_call"
            | b"function_call_output"
            | b"custom_tool_call"
            | b"custom_tool_call_output"
            | b"reasoning"
    )
}
