//! OpenAI's chats and legacy completions: answers and the chunks of streams, as vLLM gives them.

use serde_json::{Map, Value, json};

use super::{Delivery, Form, StreamUsage};
use crate::{
    envelope::Envelope,
    generation::{Outcome, Place, Writer},
    script::{Kind, Part, Script},
    sse::Event,
    usage::Usage,
};

/// Writes chats and completions.
#[derive(Debug)]
pub(crate) struct ChatWriter {
    pub(crate) form: Form,
    pub(crate) envelope: Envelope,
    pub(crate) delivery: Delivery,
    /// Whether the answer stops by itself or is cut.
    pub(crate) is_cut: bool,
}

impl Writer for ChatWriter {
    fn whole(&self, outcome: &Outcome) -> Value {
        let reason = self.finish_reason(outcome.script);
        let choices = outcome.choices.iter().enumerate().map(|(index, texts)| match self.form {
            Form::Completion => choice(index, "text", json!(texts.concat()), Some(reason)),
            _ => choice(index, "message", self.message(index, outcome.script, texts), Some(reason)),
        });
        let mut body = match self.form {
            Form::Completion => self.envelope.list("cmpl-", "text_completion", "choices", choices.collect()),
            _ => self.envelope.list("chatcmpl-", "chat.completion", "choices", choices.collect()),
        };
        body.insert("usage".to_owned(), usage_json(outcome.usage));
        Value::Object(body)
    }

    /// The chunk that opens a choice; only a chat has one.
    fn opening(&mut self, choices: usize, usage: Usage) -> Vec<Event> {
        if self.form == Form::Completion {
            return Vec::new();
        }
        let delta = |index| choice(index, "delta", json!({"role": "assistant", "content": ""}), None);
        (0..choices).map(|index| self.event(vec![delta(index)], usage)).collect()
    }

    fn begin(&mut self, place: Place, part: &Part, usage: Usage) -> Vec<Event> {
        let Kind::Tool { name, number } = &part.kind else { return Vec::new() };
        let mut call = self.call(place, name, "");
        if let Some(fields) = call.as_object_mut() {
            fields.shift_insert(0, "index".to_owned(), json!(number));
        }
        vec![self.event(vec![choice(place.choice, "delta", json!({"tool_calls": [call]}), None)], usage)]
    }

    fn piece(&mut self, place: Place, part: &Part, text: &str, usage: Usage) -> Vec<Event> {
        let index = place.choice;
        let choice = match (&part.kind, self.form) {
            (_, Form::Completion) => choice(index, "text", json!(text), None),
            (Kind::Text, _) => choice(index, "delta", json!({"content": text}), None),
            (Kind::Reasoning, _) => choice(index, "delta", json!({"reasoning_content": text}), None),
            (Kind::Tool { number, .. }, _) => {
                let call = json!({"index": number, "function": {"arguments": text}});
                choice(index, "delta", json!({"tool_calls": [call]}), None)
            }
        };
        vec![self.event(vec![choice], usage)]
    }

    fn end(&mut self, _: Place, _: &Part, _: &str) -> Vec<Event> {
        Vec::new()
    }

    fn closing(&mut self, outcome: &Outcome) -> Vec<Event> {
        let reason = self.finish_reason(outcome.script);
        let closing = |index| match self.form {
            Form::Completion => choice(index, "text", json!(""), Some(reason)),
            _ => choice(index, "delta", json!({}), Some(reason)),
        };
        let choices = 0..outcome.choices.len();
        let mut events: Vec<Event> = choices.map(|index| self.event(vec![closing(index)], outcome.usage)).collect();
        if matches!(self.delivery, Delivery::Stream(StreamUsage::LastChunk | StreamUsage::EveryChunk)) {
            let mut chunk = self.chunk(Vec::new());
            chunk.insert("usage".to_owned(), usage_json(outcome.usage));
            events.push(Event::unnamed(Value::Object(chunk)));
        }
        events.push(Event::Done);
        events
    }
}

impl ChatWriter {
    fn message(&self, choice: usize, script: &Script, texts: &[String]) -> Value {
        let mut message =
            Map::from_iter([("role".to_owned(), json!("assistant")), ("content".to_owned(), Value::Null)]);
        let mut calls = Vec::new();
        for (index, (part, text)) in script.parts().iter().zip(texts).enumerate() {
            match &part.kind {
                Kind::Text => message.insert("content".to_owned(), json!(text)),
                Kind::Reasoning => message.insert("reasoning_content".to_owned(), json!(text)),
                Kind::Tool { name, .. } => {
                    calls.push(self.call(Place { choice, part: index }, name, text));
                    None
                }
            };
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        Value::Object(message)
    }

    fn call(&self, place: Place, name: &str, arguments: &str) -> Value {
        let id = self.envelope.part_id("call_", place.choice, place.part);
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    fn event(&self, choices: Vec<Value>, usage: Usage) -> Event {
        let mut chunk = self.chunk(choices);
        match self.delivery {
            Delivery::Whole | Delivery::Stream(StreamUsage::Nowhere) => None,
            // As OpenAI's API and Ollama do it. vLLM left off.
            Delivery::Stream(StreamUsage::LastChunk) => chunk.insert("usage".to_owned(), Value::Null),
            Delivery::Stream(StreamUsage::EveryChunk) => chunk.insert("usage".to_owned(), usage_json(usage)),
        };
        Event::unnamed(Value::Object(chunk))
    }

    fn chunk(&self, choices: Vec<Value>) -> Map<String, Value> {
        match self.form {
            Form::Completion => self.envelope.list("cmpl-", "text_completion", "choices", choices),
            _ => self.envelope.list("chatcmpl-", "chat.completion.chunk", "choices", choices),
        }
    }

    fn finish_reason(&self, script: &Script) -> &'static str {
        match (self.is_cut, script.calls_tools()) {
            (true, _) => "length",
            (false, true) => "tool_calls",
            (false, false) => "stop",
        }
    }
}

/// Usage as chats, completions and embeddings have it.
pub(crate) fn usage_json(usage: Usage) -> Value {
    let mut json = json!({
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total(),
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    });
    if usage.reasoning_tokens > 0
        && let Some(fields) = json.as_object_mut()
    {
        let details = json!({"reasoning_tokens": usage.reasoning_tokens});
        fields.insert("completion_tokens_details".to_owned(), details);
    }
    json
}

fn choice(index: usize, name: &str, content: Value, reason: Option<&str>) -> Value {
    json!({"index": index, name: content, "logprobs": null, "finish_reason": reason})
}
