//! Requests that generate, in all dialects, and requests for embeddings. Only the fields that the simulation acts on are read; all others are
//! accepted.

use serde::Deserialize;
use serde_json::{Value, json};

use super::ApiError;
use crate::prompt::Prompt;

/// The form of a request that generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
    /// `/v1/responses`
    Response,
    /// `/v1/messages`
    Message,
}

/// A request's body.
#[derive(Debug, Deserialize)]
pub(crate) struct Call {
    pub(crate) model: String,
    messages: Option<Vec<Value>>,
    /// Anthropic's place for the system's message.
    system: Option<Value>,
    /// The Responses API's place for it.
    instructions: Option<Value>,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) tool_choice: Option<Value>,
    pub(crate) parallel_tool_calls: Option<bool>,
    thinking: Option<Value>,
    prompt: Option<Value>,
    input: Option<Value>,
    encoding_format: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
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

/// Where the stream of a chat or a completion reports its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamUsage {
    Nowhere,
    LastChunk,
    EveryChunk,
}

/// How the numbers of an embedding are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VectorFormat {
    Numbers,
    /// 32-bit floats, least significant byte first, in base64.
    Base64,
}

impl Call {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(body)
            .map_err(|error| ApiError::malformed(format!("the request's body is wrong: {error}")))
    }

    /// What is to be answered; a completion may have several prompts.
    pub(crate) fn prompts(&self, form: Form) -> Result<Vec<Prompt>, ApiError> {
        let tools = self.tools.as_deref().unwrap_or_default();
        match form {
            Form::Chat => {
                let messages = self.messages.as_deref().ok_or_else(|| missing("messages"))?;
                Ok(vec![Prompt::from_chat(tools, messages)])
            }
            Form::Completion => Prompt::all_from(self.prompt.as_ref().ok_or_else(|| missing("prompt"))?),
            Form::Response => {
                let input = self.input.as_ref().ok_or_else(|| missing("input"))?;
                let mut messages = system_message(self.instructions.as_ref());
                match input {
                    Value::String(_) => messages.push(json!({"role": "user", "content": input})),
                    Value::Array(items) => messages.extend(items.iter().map(message_of_item)),
                    _ => return Err(ApiError::malformed("`input` is a string or an array of items").about("input")),
                }
                Ok(vec![Prompt::from_chat(tools, &messages)])
            }
            Form::Message => {
                let mut messages = system_message(self.system.as_ref());
                messages.extend(self.messages.as_ref().ok_or_else(|| missing("messages"))?.iter().cloned());
                Ok(vec![Prompt::from_chat(tools, &messages)])
            }
        }
    }

    /// What embeddings are wanted of.
    pub(crate) fn inputs(&self) -> Result<Vec<Prompt>, ApiError> {
        Prompt::all_from(self.input.as_ref().ok_or_else(|| missing("input"))?)
    }

    pub(crate) fn vector_format(&self) -> Result<VectorFormat, ApiError> {
        match self.encoding_format.as_deref() {
            None | Some("float") => Ok(VectorFormat::Numbers),
            Some("base64") => Ok(VectorFormat::Base64),
            Some(_) => Err(ApiError::malformed("`encoding_format` is float or base64").about("encoding_format")),
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

    /// The answer's greatest length. Anthropic's messages cannot do without.
    pub(crate) fn max_tokens(&self, form: Form) -> Result<Option<u64>, ApiError> {
        match form {
            Form::Chat | Form::Completion => Ok(self.max_completion_tokens.or(self.max_tokens)),
            Form::Response => Ok(self.max_output_tokens),
            Form::Message => self.max_tokens.map(Some).ok_or_else(|| missing("max_tokens")),
        }
    }

    pub(crate) fn has_max_tokens(&self) -> bool {
        self.max_tokens.is_some()
    }

    pub(crate) fn cache_salt(&self) -> &str {
        self.cache_salt.as_deref().unwrap_or_default()
    }

    /// The names of the tools that the model calls, if it is to make so many calls; without a number, one where the request insists on it.
    pub(crate) fn tool_calls(&self, wanted: Option<usize>) -> Vec<String> {
        let names: Vec<&str> = self.tools.iter().flatten().filter_map(tool_name).collect();
        let choice = |name: &str| self.tool_choice.as_ref().and_then(|choice| choice.get(name));
        let kind = choice("type").or(self.tool_choice.as_ref()).and_then(Value::as_str);
        let insists = matches!(kind, Some("required" | "any" | "tool" | "function"));
        let is_single =
            self.parallel_tool_calls == Some(false) || choice("disable_parallel_tool_use") == Some(&json!(true));
        let most = match kind {
            Some("none") => 0,
            _ if is_single => 1,
            _ => usize::MAX,
        };
        let count = wanted.unwrap_or(usize::from(insists)).min(most);
        names.into_iter().cycle().take(count).map(str::to_owned).collect()
    }

    /// Whether Anthropic's `thinking` is on.
    pub(crate) fn thinks(&self) -> bool {
        let kind = self.thinking.as_ref().and_then(|thinking| thinking.get("type"));
        kind.is_some_and(|kind| kind == "enabled" || kind == "adaptive")
    }

    /// Whether anything in the request is marked with Anthropic's `cache_control`.
    pub(crate) fn marks_cache(&self) -> bool {
        let parts = [self.tools.as_ref(), self.messages.as_ref()].into_iter().flatten().flatten();
        parts.chain(&self.system).any(marks_cache)
    }
}

fn missing(field: &'static str) -> ApiError {
    ApiError::malformed(format!("`{field}` is missing")).about(field)
}

fn system_message(content: Option<&Value>) -> Vec<Value> {
    content
        .filter(|content| !content.is_null())
        .map(|content| json!({"role": "system", "content": content}))
        .into_iter()
        .collect()
}

/// An item of the Responses API's `input` as a chat's message.
fn message_of_item(item: &Value) -> Value {
    match item.get("role") {
        Some(_) => item.clone(),
        None => {
            let role = item.get("type").cloned().unwrap_or_default();
            json!({"role": role, "content": item.to_string()})
        }
    }
}

/// A tool's name, as chats, the Responses API and Anthropic have it.
fn tool_name(tool: &Value) -> Option<&str> {
    tool.pointer("/function/name").or_else(|| tool.get("name"))?.as_str()
}

fn marks_cache(value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            fields.iter().any(|(name, field)| name == "cache_control" && !field.is_null() || marks_cache(field))
        }
        Value::Array(items) => items.iter().any(marks_cache),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
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
    fn each_form_has_its_own_name_for_the_greatest_length() {
        let body = json!({"model": "m", "max_tokens": 1, "max_completion_tokens": 2, "max_output_tokens": 3});
        let max = |form| call(&body).max_tokens(form).unwrap();
        assert_eq!([max(Form::Chat), max(Form::Response), max(Form::Message)], [Some(2), Some(3), Some(1)]);
        assert_eq!(call(&json!({"model": "m", "max_tokens": 1})).max_tokens(Form::Chat).unwrap(), Some(1));
        assert!(call(&json!({"model": "m"})).max_tokens(Form::Message).is_err());
    }

    #[test]
    fn unknown_fields_are_accepted() {
        assert_eq!(call(&json!({"model": "m", "top_k": 3, "n": 2})).choices().unwrap(), 2);
    }

    #[test]
    fn the_same_conversation_is_the_same_prompt_in_every_dialect() {
        let chat = json!({"model": "m", "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"},
        ]});
        let message = json!({"model": "m", "system": [{"type": "text", "text": "Be brief."}], "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": "Ho"},
        ]});
        let response = json!({"model": "m", "instructions": "Be brief.", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Ho"}]},
        ]});
        let expected = call(&chat).prompts(Form::Chat).unwrap();
        assert_eq!(call(&message).prompts(Form::Message).unwrap(), expected);
        assert_eq!(call(&response).prompts(Form::Response).unwrap(), expected);
    }

    #[test]
    fn so_many_tools_are_called_as_are_wanted_and_allowed() {
        let calls = |more: Value, wanted| {
            let mut body =
                json!({"model": "m", "tools": [{"type": "function", "function": {"name": "a"}}, {"name": "b"}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            call(&body).tool_calls(wanted)
        };
        assert!(calls(json!({}), None).is_empty());
        assert_eq!(calls(json!({}), Some(3)), ["a", "b", "a"]);
        assert_eq!(calls(json!({"parallel_tool_calls": false}), Some(3)), ["a"]);
        assert_eq!(calls(json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}}), Some(3)), ["a"]);
        assert_eq!(calls(json!({"tool_choice": "required"}), None), ["a"]);
        assert_eq!(calls(json!({"tool_choice": {"type": "any"}}), None), ["a"]);
        assert!(calls(json!({"tool_choice": "none"}), Some(3)).is_empty());
        assert!(calls(json!({"tools": []}), Some(3)).is_empty());
    }

    #[test]
    fn a_mark_on_any_part_marks_the_cache() {
        let mark = json!({"type": "ephemeral"});
        let marked = json!({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": mark}]}]});
        assert!(call(&marked).marks_cache());
        assert!(call(&json!({"model": "m", "system": [{"text": "a", "cache_control": mark}]})).marks_cache());
        assert!(!call(&json!({"model": "m", "messages": [{"content": "cache_control"}]})).marks_cache());
    }
}
