//! Requests. Only the fields that the simulation acts on are read; all others are accepted.

use serde::Deserialize;
use serde_json::Value;

use super::ApiError;
use crate::prompt::Prompt;

/// What a path of `/v1` does with a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Generate(Form),
    Embed,
}

/// The form of a request that generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Chat,
    Completion,
}

/// A request's body.
#[derive(Debug, Deserialize)]
pub(crate) struct Call {
    pub(crate) model: String,
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    prompt: Option<Value>,
    input: Option<Value>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    n: Option<u64>,
    cache_salt: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: bool,
    continuous_usage_stats: bool,
}

/// Whether and how an answer is streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Whole,
    Stream(StreamUsage),
}

/// Where a stream reports its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamUsage {
    Nowhere,
    LastChunk,
    EveryChunk,
}

impl Call {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(body)
            .map_err(|error| ApiError::malformed(format!("the request's body is wrong: {error}")))
    }

    pub(crate) fn prompts(&self, operation: Operation) -> Result<Vec<Prompt>, ApiError> {
        let missing = |field| ApiError::malformed(format!("`{field}` is missing")).about(field);
        match operation {
            Operation::Generate(Form::Chat) => {
                let messages = self.messages.as_deref().ok_or_else(|| missing("messages"))?;
                Ok(vec![Prompt::from_chat(self.tools.as_deref().unwrap_or_default(), messages)])
            }
            Operation::Generate(Form::Completion) => {
                Prompt::all_from(self.prompt.as_ref().ok_or_else(|| missing("prompt"))?)
            }
            Operation::Embed => Prompt::all_from(self.input.as_ref().ok_or_else(|| missing("input"))?),
        }
    }

    pub(crate) fn delivery(&self) -> Delivery {
        if self.stream != Some(true) {
            return Delivery::Whole;
        }
        Delivery::Stream(match &self.stream_options {
            Some(StreamOptions { include_usage: true, continuous_usage_stats: true }) => StreamUsage::EveryChunk,
            Some(StreamOptions { include_usage: true, .. }) => StreamUsage::LastChunk,
            _ => StreamUsage::Nowhere,
        })
    }

    /// How many answers a prompt gets, at least 1.
    pub(crate) fn choices(&self) -> Result<u64, ApiError> {
        match self.n.unwrap_or(1) {
            n @ 1..=128 => Ok(n),
            n => Err(ApiError::malformed(format!("`n` is {n}; it can be 1 to 128")).about("n")),
        }
    }

    pub(crate) fn max_tokens(&self) -> Option<u64> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    pub(crate) fn cache_salt(&self) -> &str {
        self.cache_salt.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(body: &Value) -> Call {
        Call::parse(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_stream_reports_its_usage_only_where_it_is_asked_to() {
        let delivery = |options| call(&json!({"model": "m", "stream": true, "stream_options": options})).delivery();
        assert_eq!(delivery(json!(null)), Delivery::Stream(StreamUsage::Nowhere));
        assert_eq!(delivery(json!({"include_usage": false})), Delivery::Stream(StreamUsage::Nowhere));
        assert_eq!(delivery(json!({"include_usage": true})), Delivery::Stream(StreamUsage::LastChunk));
        let each = json!({"include_usage": true, "continuous_usage_stats": true});
        assert_eq!(delivery(each), Delivery::Stream(StreamUsage::EveryChunk));
        assert_eq!(call(&json!({"model": "m", "stream_options": {"include_usage": true}})).delivery(), Delivery::Whole);
    }

    #[test]
    fn the_newer_name_of_max_tokens_wins() {
        assert_eq!(call(&json!({"model": "m", "max_tokens": 1, "max_completion_tokens": 2})).max_tokens(), Some(2));
        assert_eq!(call(&json!({"model": "m", "max_tokens": 1})).max_tokens(), Some(1));
    }

    #[test]
    fn unknown_fields_are_accepted() {
        assert_eq!(call(&json!({"model": "m", "top_k": 3, "n": 2})).choices().unwrap(), 2);
    }
}
