//! The fields of a request that are part of the prompt, cut into segments, in the order in which a chat template prints them.
//!
//! Nothing here refuses a shape: what is not known becomes a segment of raw JSON. What is refused is a member that is there twice, or
//! spelt in another case: servers do not agree on which of them they read, and one of them may be the whole prompt. Within one object
//! the document's order of keys makes no difference, while lists keep theirs. Memory is one [`Segment`] per piece, and each piece is at
//! least a byte of the body; what nests is read to a bounded depth.

mod chat;
mod media;
mod messages;
mod responses;

use std::collections::BTreeMap;

use super::names::Seen;
use super::{ScanError, Segment, SegmentForm, SegmentKind};
use crate::json::{Scanner, StringForm, StringSpan, ValueKind};
use crate::operation::Operation;

/// A top-level field that is part of the prompt, in the order of templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PromptField {
    ChatTemplate,
    ChatTemplateKwargs,
    /// `reasoning_effort`, or `reasoning` of the Responses API.
    ReasoningEffort,
    Thinking,
    Documents,
    /// `prompt` of the Responses API: a prompt that the server keeps, and its variables.
    StoredPrompt,
    Tools,
    /// `system` of Anthropic's API.
    System,
    /// `instructions` of the Responses API.
    Instructions,
    Messages,
    /// The same of Anthropic's API.
    Turns,
    /// `input` of the Responses API.
    Items,
    /// What documents are compared with: `query` of a rerank, `text_1` of a score.
    Query,
    /// The documents: `documents` of a rerank, `text_2` or `items` of a score.
    Candidates,
    /// `prompt` of a completion or an image, `input` of an embedding or a speech.
    Prompts,
    Schema,
    CacheSalt,
    Conversation,
    PreviousResponse,
}

impl PromptField {
    /// The field of that name. Sampling fields are none: they leave the prompt as it is.
    pub(super) fn of(operation: Operation, name: &[u8]) -> Option<Self> {
        use Operation::{
            ChatCompletions, CompactResponse, Completions, CountInputTokens, CountTokens, Embeddings, ImageEdits,
            ImageGenerations, Messages, Rerank, Responses, Score, Speech, Tokenize,
        };
        // Their bodies are those of a response.
        let operation = match operation {
            CompactResponse | CountInputTokens => Responses,
            operation => operation,
        };
        Some(match (operation, name) {
            // vLLM embeds chats too.
            (ChatCompletions | Embeddings | Tokenize, b"messages") => Self::Messages,
            (Messages | CountTokens, b"messages") => Self::Turns,
            (Messages | CountTokens, b"system") => Self::System,
            (Responses, b"instructions") => Self::Instructions,
            (Responses, b"input") => Self::Items,
            (Responses, b"prompt") => Self::StoredPrompt,
            (Responses, b"conversation") => Self::Conversation,
            (Responses, b"previous_response_id") => Self::PreviousResponse,
            (Completions | Tokenize | ImageGenerations | ImageEdits, b"prompt") | (Embeddings | Speech, b"input") => {
                Self::Prompts
            }
            (Rerank, b"query") | (Score, b"text_1" | b"data_1" | b"query" | b"queries") => Self::Query,
            (Rerank, b"documents") | (Score, b"text_2" | b"data_2" | b"items" | b"documents") => Self::Candidates,
            (ChatCompletions | Responses | Messages | CountTokens | Tokenize, b"tools") => Self::Tools,
            (ChatCompletions, b"chat_template") => Self::ChatTemplate,
            (ChatCompletions | Responses | Messages | CountTokens, b"chat_template_kwargs") => Self::ChatTemplateKwargs,
            (ChatCompletions, b"documents") => Self::Documents,
            (ChatCompletions, b"reasoning_effort") | (Responses, b"reasoning") => Self::ReasoningEffort,
            (ChatCompletions | Messages | CountTokens, b"thinking") => Self::Thinking,
            (ChatCompletions, b"response_format")
            | (Responses, b"text")
            | (Messages, b"output_config" | b"output_format") => Self::Schema,
            (ChatCompletions | Completions | Responses | Messages, b"cache_salt") => Self::CacheSalt,
            _ => return None,
        })
    }

    /// Reads the field's value, which comes next.
    pub(super) fn segments(self, scanner: &mut Scanner<'_>) -> Result<Vec<Segment>, ScanError> {
        let mut prompt = Prompt { scanner, pieces: Vec::new() };
        match self {
            Self::Messages => prompt.messages(Prompt::chat_message)?,
            Self::Turns => prompt.messages(Prompt::turn)?,
            Self::Items => prompt.items()?,
            Self::System => prompt.system()?,
            Self::Instructions => prompt.instructions()?,
            Self::Tools => prompt.tools()?,
            Self::Query | Self::Candidates | Self::Prompts => prompt.prompts()?,
            Self::CacheSalt => prompt.text_or_raw(SegmentKind::CacheSalt, Rank::Content)?,
            Self::Conversation => prompt.conversation()?,
            Self::PreviousResponse => prompt.text_or_raw(SegmentKind::PreviousResponse, Rank::Content)?,
            Self::Schema => prompt.raw(SegmentKind::Schema, Rank::Content)?,
            Self::ChatTemplate
            | Self::ChatTemplateKwargs
            | Self::ReasoningEffort
            | Self::Thinking
            | Self::Documents
            | Self::StoredPrompt => prompt.raw(SegmentKind::Template, Rank::Content)?,
        }
        Ok(prompt.pieces.into_iter().map(|piece| piece.segment).collect())
    }
}

/// The same fields, where each document is read together with the one query that there is: with the query once for each.
pub(super) fn with_query_for_each(
    mut fields: BTreeMap<PromptField, Vec<Segment>>,
) -> BTreeMap<PromptField, Vec<Segment>> {
    let documents = fields.get(&PromptField::Candidates).map_or(0, Vec::len);
    if let Some(query) = fields.get_mut(&PromptField::Query)
        && let [only] = query.as_slice()
    {
        *query = vec![only.clone(); documents.max(1)];
    }
    fields
}

/// How many pieces of one field are told apart. Ten thousand messages have half as many; a body of `[1,1,1,...]` would
/// otherwise take twenty times its size in memory.
const MAX_SEGMENTS: usize = 65_536;

struct Prompt<'s, 'a> {
    scanner: &'s mut Scanner<'a>,
    pieces: Vec<Piece>,
}

struct Piece {
    /// Among what belongs to the innermost object that is being read.
    rank: Rank,
    segment: Segment,
}

/// Where a piece stands within its message, item or block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Opening,
    Name,
    Id,
    Reasoning,
    Content,
    Calls,
}

impl Prompt<'_, '_> {
    /// A list of messages, each of which is read by `read`. What is no list, and what in it is no message, is raw.
    fn messages(&mut self, mut read: impl FnMut(&mut Self) -> Result<(), ScanError>) -> Result<(), ScanError> {
        if self.scanner.peek()? != ValueKind::Array {
            return self.raw(SegmentKind::Text, Rank::Content);
        }
        self.elements(|prompt, value| match value {
            ValueKind::Object => read(prompt),
            _ => prompt.raw(SegmentKind::Text, Rank::Content),
        })
    }

    fn tools(&mut self) -> Result<(), ScanError> {
        if self.scanner.peek()? != ValueKind::Array {
            return self.raw(SegmentKind::Tool, Rank::Content);
        }
        self.elements(|prompt, _| prompt.raw(SegmentKind::Tool, Rank::Content))
    }

    /// A text, token ids, or a list of such.
    fn prompts(&mut self) -> Result<(), ScanError> {
        if self.scanner.peek()? != ValueKind::Array {
            return self.text_or_raw(SegmentKind::Text, Rank::Content);
        }
        let start = self.scanner.offset();
        let mut has_token_ids = false;
        self.elements(|prompt, value| match value {
            ValueKind::Number => {
                has_token_ids = true;
                prompt.skip()
            }
            ValueKind::Array => prompt.raw(SegmentKind::Tokens, Rank::Content),
            // As a chat's content: vLLM and others embed images too.
            ValueKind::Object => prompt.part(SegmentKind::Text),
            _ => prompt.text_or_raw(SegmentKind::Text, Rank::Content),
        })?;
        if has_token_ids {
            self.pieces.clear();
            let span = start..self.scanner.offset();
            self.push(Rank::Content, Segment { kind: SegmentKind::Tokens, span, form: SegmentForm::Raw });
        }
        Ok(())
    }

    /// Reads each element of the list that comes next.
    fn elements(
        &mut self,
        mut read: impl FnMut(&mut Self, ValueKind) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        self.scanner.open()?;
        while self.scanner.next_element()? {
            let value = self.scanner.peek()?;
            read(self, value)?;
        }
        Ok(())
    }

    /// Reads those members of the object that comes next that are `known`, by the last part of what they are called there.
    fn members(
        &mut self,
        known: &[&'static str],
        mut read: impl FnMut(&mut Self, &[u8], ValueKind) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        let mut seen = Seen::default();
        self.scanner.open()?;
        while let Some(key) = self.scanner.next_key()? {
            let name = key.text(self.scanner.bytes());
            let value = self.scanner.peek()?;
            match seen.member(known, &name)? {
                Some(_) => read(self, &name, value)?,
                None => self.skip()?,
            }
        }
        Ok(())
    }

    /// Puts the pieces from `first` on, which one object made, in their order.
    fn arrange(&mut self, first: usize) {
        self.pieces.get_mut(first..).unwrap_or_default().sort_by_key(|piece| piece.rank);
    }

    /// The pieces from `first` on were made by a value that stands at `rank` in the object around it.
    fn settle(&mut self, first: usize, rank: Rank) {
        for piece in self.pieces.get_mut(first..).unwrap_or_default() {
            piece.rank = rank;
        }
    }

    /// A string's text, or raw JSON; `null` is nothing.
    fn text_or_raw(&mut self, kind: SegmentKind, rank: Rank) -> Result<(), ScanError> {
        if let Some(segment) = self.read(kind)? {
            self.push(rank, segment);
        }
        Ok(())
    }

    fn read(&mut self, kind: SegmentKind) -> Result<Option<Segment>, ScanError> {
        match self.scanner.peek()? {
            ValueKind::String => Ok(Some(text(kind, self.scanner.string()?))),
            ValueKind::Null => {
                self.scanner.skip()?;
                Ok(None)
            }
            _ => Ok(Some(Segment { kind, span: self.scanner.skip()?, form: SegmentForm::Raw })),
        }
    }

    /// Raw JSON; `null` is nothing.
    fn raw(&mut self, kind: SegmentKind, rank: Rank) -> Result<(), ScanError> {
        let value = self.scanner.peek()?;
        let span = self.scanner.skip()?;
        if value != ValueKind::Null {
            self.push(rank, Segment { kind, span, form: SegmentForm::Raw });
        }
        Ok(())
    }

    fn skip(&mut self) -> Result<(), ScanError> {
        self.scanner.skip()?;
        Ok(())
    }

    /// The pieces from `first` on are of a thing that we do not know, which began at `start` and ends here: it is one piece.
    fn as_raw(&mut self, first: usize, start: usize) {
        self.pieces.truncate(first);
        let span = start..self.scanner.offset();
        self.push(Rank::Content, Segment { kind: SegmentKind::Text, span, form: SegmentForm::Raw });
    }

    /// Adds a piece. What comes after [`MAX_SEGMENTS`] of them is one raw piece: it still counts, and costs no memory.
    fn push(&mut self, rank: Rank, segment: Segment) {
        let is_full = self.pieces.len() >= MAX_SEGMENTS;
        match self.pieces.last_mut() {
            Some(Piece { segment: last, .. }) if is_full => {
                last.span.end = last.span.end.max(segment.span.end);
                last.form = SegmentForm::Raw;
            }
            _ => self.pieces.push(Piece { rank, segment }),
        }
    }
}

fn text(kind: SegmentKind, string: StringSpan) -> Segment {
    let form = match string.form {
        StringForm::Plain => SegmentForm::Plain,
        StringForm::Escaped => SegmentForm::Escaped,
    };
    Segment { kind, span: string.span, form }
}
