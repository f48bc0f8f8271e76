//! Where in the answers of each API the fields are that we read: which members of which objects.
//!
//! The shapes are those of the APIs' references and of the servers that speak them; `tests/shapes.rs` has an example of each
//! with its source. What stands elsewhere, or has another type, is nothing to us.

use crate::operation::Operation;
use crate::usage::Figure;

/// What answers to an operation look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Choices, whose events have a `delta`.
    Chat,
    /// Choices, whose events have a `text`.
    Completions,
    /// The Responses API.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// Embeddings, ranks and scores: all tokens are input.
    Ranks,
    /// Images, speech and transcripts.
    Media,
}

impl Form {
    /// The form of answers to `operation`; `None` where what they report is not what they used.
    pub(super) fn of(operation: Operation) -> Option<Self> {
        match operation {
            Operation::ChatCompletions => Some(Self::Chat),
            Operation::Completions => Some(Self::Completions),
            Operation::Responses | Operation::CompactResponse => Some(Self::Responses),
            Operation::Messages => Some(Self::Messages),
            Operation::Embeddings | Operation::Rerank | Operation::Score => Some(Self::Ranks),
            Operation::ImageGenerations
            | Operation::ImageEdits
            | Operation::ImageVariations
            | Operation::Speech
            | Operation::Transcriptions
            | Operation::Translations => Some(Self::Media),
            Operation::CountInputTokens
            | Operation::CountTokens
            | Operation::Tokenize
            | Operation::Detokenize
            | Operation::Models
            | Operation::Model
            | Operation::PassThrough => None,
        }
    }

    /// Whether what one event says of the usage adds to what earlier ones said, instead of taking its place.
    pub(super) fn is_cumulative(self) -> bool {
        self == Self::Messages
    }

    /// Whether answers have output.
    pub(super) fn has_output(self) -> bool {
        self != Self::Ranks
    }
}

/// An object or array with members that we are after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Root,
    /// `response` of the Responses API's events, `message` of Anthropic's: the answer itself.
    Answer,
    /// The array `choices`.
    Choices,
    /// One of them.
    Choice,
    /// Its `delta`.
    ChoiceDelta,
    /// `delta` of Anthropic's events.
    BlockDelta,
    /// `content_block` of Anthropic's events.
    Block,
    /// A `usage`.
    Usage,
    /// Its details of the input.
    InputDetails,
    /// Its details of the output.
    OutputDetails,
    /// The array `iterations` of Anthropic's.
    Iterations,
    /// One of them.
    Iteration,
    /// Its `cache_creation`.
    CacheCreation,
    /// That of its details of the input.
    CacheCreationWithin,
    /// `x_groq`
    Groq,
    /// Cohere's `meta`.
    Meta,
    /// llama.cpp's `timings`.
    Timings,
    /// An `error`.
    Error,
}

/// Which of an answer's accounts is believed first, if there are several in one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    /// `usage`
    First,
    /// `x_groq.usage`, `meta.tokens`
    Second,
    /// `timings`, `meta.billed_units`
    Third,
    /// `usage` of the choices (Moonshot's place for it).
    OfChoices,
}

/// A member that we are after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    /// An object with such members.
    Object(Place),
    /// An object with counts.
    Account(Place, Rank),
    Figure(Figure),
    /// An array of such places.
    List(Place),
    Choices,
    Model,
    /// `type` of an event.
    Kind,
    /// `type` of an iteration.
    IterationKind,
    /// Text, or JSON, that is output.
    Content(Content),
    /// What a client cannot do without, in an event that has nothing else for it.
    Substance,
    /// An error: an object of its own, or a text.
    Error,
    /// What the error is, in words.
    ErrorMessage,
    /// What kind of error it is: a status, or a word for it.
    ErrorCode,
    /// `object` of older vLLM's and SGLang's errors, whose other members stand beside it.
    ObjectKind,
}

/// How content may be written, and how its length speaks of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A string, an array or an object.
    Any,
    /// The same, of reasoning.
    Reasoning,
    /// A string only.
    Text,
    /// A string whose length says nothing: sound, or what is encrypted.
    OpaqueText,
    /// An object whose length says nothing.
    OpaqueObject,
}

impl Place {
    /// The member of that name.
    pub(super) fn member(self, form: Form, key: &[u8]) -> Option<Member> {
        match self {
            Self::Root => root(form, key),
            Self::Answer => match key {
                b"usage" => Some(Member::Account(Self::Usage, Rank::First)),
                b"model" => Some(Member::Model),
                b"error" => Some(Member::Error),
                _ => None,
            },
            Self::Error => match key {
                b"message" => Some(Member::ErrorMessage),
                b"type" | b"code" | b"status" | b"status_code" | b"http_code" => Some(Member::ErrorCode),
                _ => None,
            },
            // Its elements have no names.
            Self::Choices | Self::Iterations => None,
            Self::Choice => match (form, key) {
                (Form::Chat | Form::Completions, b"usage") => Some(Member::Account(Self::Usage, Rank::OfChoices)),
                (Form::Chat | Form::Media, b"delta") => Some(Member::Object(Self::ChoiceDelta)),
                (Form::Completions, b"text") => Some(Member::Content(Content::Text)),
                _ => None,
            },
            Self::ChoiceDelta => match key {
                b"content" | b"refusal" | b"tool_calls" | b"function_call" => Some(Member::Content(Content::Any)),
                b"reasoning_content" | b"reasoning" => Some(Member::Content(Content::Reasoning)),
                b"audio" => Some(Member::Content(Content::OpaqueObject)),
                _ => None,
            },
            Self::BlockDelta => match key {
                b"text" | b"thinking" | b"partial_json" => Some(Member::Content(Content::Text)),
                _ => None,
            },
            // The start of a tool's call has its name, and one of hidden thoughts all of them.
            Self::Block => match key {
                b"text" | b"thinking" | b"name" => Some(Member::Content(Content::Text)),
                b"data" => Some(Member::Content(Content::OpaqueText)),
                _ => None,
            },
            Self::Usage if form == Form::Messages && key == b"iterations" => Some(Member::List(Self::Iterations)),
            Self::Usage => usage(key),
            Self::Iteration if key == b"type" => Some(Member::IterationKind),
            Self::Iteration => usage(key),
            Self::InputDetails => match key {
                b"cached_tokens" => Some(Member::Figure(Figure::Cached)),
                b"cache_write_tokens" => Some(Member::Figure(Figure::CacheWritten)),
                b"cache_creation_tokens" => Some(Member::Figure(Figure::CacheCreated)),
                b"cache_creation_input_tokens" => Some(Member::Figure(Figure::CacheCreatedInput)),
                b"created_cache_tokens" => Some(Member::Figure(Figure::CreatedCache)),
                b"cache_creation" | b"cache_creation_token_details" => Some(Member::Object(Self::CacheCreationWithin)),
                _ => None,
            },
            Self::OutputDetails => match key {
                b"reasoning_tokens" | b"thinking_tokens" => Some(Member::Figure(Figure::Reasoning)),
                _ => None,
            },
            Self::CacheCreation => match key {
                b"ephemeral_5m_input_tokens" => Some(Member::Figure(Figure::CacheCreationShort)),
                b"ephemeral_1h_input_tokens" => Some(Member::Figure(Figure::CacheCreationLong)),
                _ => None,
            },
            Self::CacheCreationWithin => match key {
                b"ephemeral_5m_input_tokens" => Some(Member::Figure(Figure::CacheCreatedShort)),
                b"ephemeral_1h_input_tokens" => Some(Member::Figure(Figure::CacheCreatedLong)),
                _ => None,
            },
            Self::Groq => (key == b"usage").then_some(Member::Account(Self::Usage, Rank::Second)),
            Self::Meta => match key {
                b"tokens" => Some(Member::Account(Self::Usage, Rank::Second)),
                b"billed_units" => Some(Member::Account(Self::Usage, Rank::Third)),
                _ => None,
            },
            Self::Timings => match key {
                b"prompt_n" => Some(Member::Figure(Figure::Evaluated)),
                b"cache_n" => Some(Member::Figure(Figure::Reused)),
                b"predicted_n" => Some(Member::Figure(Figure::Predicted)),
                _ => None,
            },
        }
    }
}

fn root(form: Form, key: &[u8]) -> Option<Member> {
    match (key, form) {
        (b"usage", _) => Some(Member::Account(Place::Usage, Rank::First)),
        (b"model", _) => Some(Member::Model),
        // vLLM's transcripts have choices as well.
        (b"choices", Form::Chat | Form::Completions | Form::Media) => Some(Member::Choices),
        (b"x_groq", Form::Chat | Form::Completions) => Some(Member::Object(Place::Groq)),
        (b"timings", Form::Chat | Form::Completions) => Some(Member::Account(Place::Timings, Rank::Third)),
        (b"error", _) => Some(Member::Error),
        (b"code", _) => Some(Member::ErrorCode),
        (b"object", _) => Some(Member::ObjectKind),
        (b"prompt_filter_results", Form::Chat | Form::Completions | Form::Media) => Some(Member::Substance),
        (b"response", Form::Responses) | (b"message", Form::Messages) => Some(Member::Object(Place::Answer)),
        (b"type", Form::Responses) => Some(Member::Kind),
        // The text itself, in the events that bring it. That of a tool's output is an object.
        (b"delta", Form::Responses | Form::Media) => Some(Member::Content(Content::Text)),
        (b"audio", Form::Media) => Some(Member::Content(Content::OpaqueText)),
        (b"delta", Form::Messages) => Some(Member::Object(Place::BlockDelta)),
        (b"content_block", Form::Messages) => Some(Member::Object(Place::Block)),
        (b"meta", Form::Ranks) => Some(Member::Object(Place::Meta)),
        _ => None,
    }
}

fn usage(key: &[u8]) -> Option<Member> {
    let figure = match key {
        b"prompt_tokens" => Figure::Prompt,
        b"input_tokens" => Figure::Input,
        b"completion_tokens" => Figure::Completion,
        b"output_tokens" => Figure::Output,
        b"total_tokens" => Figure::Total,
        b"prompt_tokens_details" | b"input_tokens_details" | b"input_token_details" => {
            return Some(Member::Object(Place::InputDetails));
        }
        b"completion_tokens_details" | b"output_tokens_details" | b"output_token_details" => {
            return Some(Member::Object(Place::OutputDetails));
        }
        b"cache_creation" => return Some(Member::Object(Place::CacheCreation)),
        b"prompt_cache_hit_tokens" => Figure::CacheHit,
        b"cached_tokens" => Figure::CachedBeside,
        b"cache_read_input_tokens" => Figure::CacheRead,
        b"cache_creation_input_tokens" => Figure::CacheCreation,
        b"reasoning_tokens" => Figure::ReasoningBeside,
        b"prompt_audio_seconds" => Figure::AudioSeconds,
        _ => return None,
    };
    Some(Member::Figure(figure))
}
