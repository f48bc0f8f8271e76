//! From a request's body to the prompt's text, and from texts to tokens.
//!
//! The rules are simple so that a test can predict them. A token is four bytes, the last one may be shorter. The chat template is, for each
//! message, `<|role|>\n`, its text and `<|end|>\n`, after the tools in a block of the same form, and before `<|assistant|>\n`: the text that the
//! server generates continues the prompt exactly as the conversation's next request repeats it.

use std::num::NonZeroUsize;

use serde_json::Value;

use crate::dialect::ApiError;

/// Four bytes a token.
pub(crate) const BYTES_PER_TOKEN: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

/// What the template closes a message with.
pub(crate) const END_OF_MESSAGE: &str = "<|end|>\n";

/// A prompt as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt(Vec<u8>);

impl Prompt {
    /// A chat, rendered by the template.
    pub(crate) fn from_chat(tools: &[Value], messages: &[Value]) -> Self {
        let mut text = String::new();
        if !tools.is_empty() {
            text.push_str("<|tools|>\n");
            for tool in tools {
                text.push_str(&tool.to_string());
                text.push('\n');
            }
            text.push_str(END_OF_MESSAGE);
        }
        for message in messages {
            render_message(message, &mut text);
        }
        text.push_str("<|assistant|>\n");
        Self(text.into_bytes())
    }

    /// A text as it is.
    pub(crate) fn from_text(text: &str) -> Self {
        Self::from_bytes(text.as_bytes())
    }

    /// A file: four bytes a token, as in a text.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Two texts that are compared.
    pub(crate) fn from_pair(left: &str, right: &str) -> Self {
        Self([left, right].concat().into_bytes())
    }

    /// An array of tokens; `None` if it is none.
    pub(crate) fn from_tokens(tokens: &Value) -> Option<Self> {
        tokens.as_array().and_then(|_| Self::from_text_or_tokens(tokens))
    }

    /// All of these as one.
    pub(crate) fn joined<'a>(prompts: impl Iterator<Item = &'a Self>) -> Self {
        Self(prompts.flat_map(|prompt| prompt.0.iter().copied()).collect())
    }

    /// The prompts in `prompt` or `input`: a text, an array of texts, an array of tokens or an array of such arrays.
    pub(crate) fn all_from(value: &Value) -> Result<Vec<Self>, ApiError> {
        let wrong = || {
            ApiError::malformed("a prompt is a string, an array of strings, an array of tokens or an array of those")
        };
        match value {
            Value::String(_) => Ok(vec![Self::from_text_or_tokens(value).ok_or_else(wrong)?]),
            Value::Array(items) if items.first().is_some_and(Value::is_u64) => {
                Ok(vec![Self::from_text_or_tokens(value).ok_or_else(wrong)?])
            }
            Value::Array(items) if !items.is_empty() => {
                items.iter().map(|item| Self::from_text_or_tokens(item).ok_or_else(wrong)).collect()
            }
            _ => Err(wrong()),
        }
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.0.len().div_ceil(BYTES_PER_TOKEN.get()) as u64
    }

    /// The tokens' numbers: their bytes, least significant first; a shorter one has zeros behind it.
    pub(crate) fn token_numbers(&self) -> Vec<u32> {
        let token = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
        self.0.chunks(BYTES_PER_TOKEN.get()).map(token).collect()
    }

    /// The text, without the zeros behind it; what is no UTF-8 is replaced.
    pub(crate) fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).trim_end_matches('\0').to_owned()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A text, or tokens: four bytes each, so that the rule for counting holds.
    fn from_text_or_tokens(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self(text.clone().into_bytes())),
            Value::Array(tokens) => {
                let mut bytes = Vec::with_capacity(tokens.len() * BYTES_PER_TOKEN.get());
                for token in tokens {
                    bytes.extend_from_slice(&u32::try_from(token.as_u64()?).ok()?.to_le_bytes());
                }
                Some(Self(bytes))
            }
            _ => None,
        }
    }
}

fn render_message(message: &Value, text: &mut String) {
    let part = |name: &str| message.get(name).filter(|value| !value.is_null());
    text.push_str("<|");
    text.push_str(part("role").and_then(Value::as_str).unwrap_or("user"));
    text.push_str("|>\n");
    for name in ["name", "tool_call_id", "reasoning_content", "content", "tool_calls"] {
        match part(name) {
            Some(Value::String(content)) => text.push_str(content),
            Some(Value::Array(parts)) => parts.iter().for_each(|part| render_part(part, text)),
            Some(other) => text.push_str(&other.to_string()),
            None => {}
        }
    }
    text.push_str(END_OF_MESSAGE);
}

/// A text part is its text; an image, a sound, a tool call is its JSON.
fn render_part(part: &Value, text: &mut String) {
    match part.get("text").and_then(Value::as_str) {
        Some(content) => text.push_str(content),
        None => text.push_str(&part.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(messages: &Value) -> String {
        String::from_utf8(Prompt::from_chat(&[], messages.as_array().unwrap()).0).unwrap()
    }

    #[test]
    fn a_chat_is_rendered_role_by_role() {
        let rendered = chat(&json!([{"role": "system", "content": "Be brief."}, {"content": "Hi", "role": "user"}]));
        assert_eq!(rendered, "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n");
    }

    #[test]
    fn tools_come_first() {
        let prompt = Prompt::from_chat(&[json!({"type": "function"})], &[json!({"role": "user", "content": "Hi"})]);
        assert!(prompt.0.starts_with(b"<|tools|>\n{\"type\":\"function\"}\n<|end|>\n<|user|>\n"));
    }

    #[test]
    fn text_parts_are_rendered_as_the_same_text() {
        let parts = chat(
            &json!([{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]}]),
        );
        assert_eq!(parts, chat(&json!([{"role": "user", "content": "Hi you"}])));
    }

    #[test]
    fn the_next_request_of_a_conversation_begins_with_the_prompt_and_the_answer() {
        let first = chat(&json!([{"role": "user", "content": "Hi"}]));
        let next = chat(&json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "sun sea"}, {"role": "user", "content": "More"}
        ]));
        assert!(next.starts_with(&format!("{first}sun sea{END_OF_MESSAGE}")));
    }

    #[test]
    fn four_bytes_are_a_token_and_the_last_may_be_shorter() {
        let tokens = |prompt: Value| Prompt::all_from(&prompt).unwrap().iter().map(Prompt::tokens).collect::<Vec<_>>();
        assert_eq!(tokens(json!("")), [0]);
        assert_eq!(tokens(json!("12345678")), [2]);
        assert_eq!(tokens(json!(["123456789", "1"])), [3, 1]);
        assert_eq!(tokens(json!([15, 3, 9])), [3]);
        assert_eq!(tokens(json!([[15, 3], [9]])), [2, 1]);
    }

    #[test]
    fn the_tokens_of_a_text_are_the_text() {
        for text in ["", "Hi", "Hello, é😀!"] {
            let prompt = Prompt::from_text(text);
            let numbers = prompt.token_numbers();
            assert_eq!(numbers.len() as u64, prompt.tokens());
            assert_eq!(Prompt::from_tokens(&json!(numbers)).unwrap().to_text(), text);
        }
        assert_eq!(Prompt::from_tokens(&json!("Hi")), None);
        assert_eq!(Prompt::from_tokens(&json!(["Hi"])), None);
    }

    #[test]
    fn what_is_no_prompt_is_refused() {
        for wrong in [json!(null), json!([]), json!({}), json!([1, "a"]), json!([-1]), json!([{}])] {
            assert!(Prompt::all_from(&wrong).is_err(), "{wrong}");
        }
    }
}
