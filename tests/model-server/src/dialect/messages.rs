//! Anthropic's messages: answers and the events of streams.
//!
//! Their `input_tokens` are those that the cache neither had nor took up; the two others are beside them. Where nothing in the request is marked with
//! `cache_control`, the cache takes up nothing, and the last `usage` of a stream has the output alone, as it was in the API's first version; else it
//! has all figures.

use serde_json::{Value, json};

use crate::{
    envelope::Envelope,
    generation::{Outcome, Place, Writer},
    script::{Kind, Part, Script, arguments},
    sse::Event,
    usage::Usage,
};

/// Writes messages.
#[derive(Debug)]
pub(crate) struct MessageWriter {
    pub(crate) envelope: Envelope,
    /// Whether the answer stops by itself or is cut.
    pub(crate) is_cut: bool,
    /// Whether the request asks for its prompt to be cached.
    pub(crate) marks_cache: bool,
    /// The size of a cache block, in tokens.
    pub(crate) block_tokens: u64,
}

impl Writer for MessageWriter {
    fn whole(&self, outcome: &Outcome) -> Value {
        let texts = outcome.choices.first().map(Vec::as_slice).unwrap_or_default();
        let parts = outcome.script.parts().iter().zip(texts).enumerate();
        let content = parts.map(|(part, (of, text))| self.block(Place { choice: 0, part }, of, text)).collect();
        self.message(content, Some(self.stop_reason(outcome.script)), self.usage_json(outcome.usage))
    }

    fn opening(&mut self, _: usize, usage: Usage) -> Vec<Event> {
        // The first token is under way when the message starts, and it is reported.
        let usage = Usage { completion_tokens: 1, ..usage };
        let message = self.message(Vec::new(), None, self.usage_json(usage));
        vec![Event::named("message_start", json!({"message": message}))]
    }

    fn begin(&mut self, place: Place, part: &Part, _: Usage) -> Vec<Event> {
        let block = self.block(place, part, "");
        let start = Event::named("content_block_start", json!({"index": place.part, "content_block": block}));
        match place.part {
            0 => vec![start, Event::named("ping", json!({}))],
            _ => vec![start],
        }
    }

    fn piece(&mut self, place: Place, part: &Part, text: &str, _: Usage) -> Vec<Event> {
        vec![delta(
            place,
            match part.kind {
                Kind::Text => json!({"type": "text_delta", "text": text}),
                Kind::Reasoning => json!({"type": "thinking_delta", "thinking": text}),
                Kind::Tool { .. } => json!({"type": "input_json_delta", "partial_json": text}),
            },
        )]
    }

    fn end(&mut self, place: Place, part: &Part, _: &str) -> Vec<Event> {
        let stop = Event::named("content_block_stop", json!({"index": place.part}));
        match part.kind {
            Kind::Reasoning => {
                vec![delta(place, json!({"type": "signature_delta", "signature": self.signature(place)})), stop]
            }
            Kind::Text | Kind::Tool { .. } => vec![stop],
        }
    }

    fn closing(&mut self, outcome: &Outcome) -> Vec<Event> {
        let usage = match self.marks_cache {
            true => self.usage_json(outcome.usage),
            false => json!({"output_tokens": outcome.usage.completion_tokens}),
        };
        let delta = json!({"stop_reason": self.stop_reason(outcome.script), "stop_sequence": null});
        vec![
            Event::named("message_delta", json!({"delta": delta, "usage": usage})),
            Event::named("message_stop", json!({})),
            Event::End,
        ]
    }
}

impl MessageWriter {
    fn message(&self, content: Vec<Value>, stop_reason: Option<&str>, usage: Value) -> Value {
        json!({
            "id": self.envelope.id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": self.envelope.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": null,
            "usage": usage,
        })
    }

    /// A part as a block of the content. In a stream it begins empty: without its text, its signature and its input.
    fn block(&self, place: Place, part: &Part, text: &str) -> Value {
        match &part.kind {
            Kind::Text => json!({"type": "text", "text": text}),
            Kind::Reasoning => {
                let signature = if text.is_empty() { String::new() } else { self.signature(place) };
                json!({"type": "thinking", "thinking": text, "signature": signature})
            }
            Kind::Tool { name, .. } => {
                let id = self.envelope.part_id("toolu_", place.choice, place.part);
                json!({"type": "tool_use", "id": id, "name": name, "input": arguments(text)})
            }
        }
    }

    fn signature(&self, place: Place) -> String {
        self.envelope.part_id("signature", place.choice, place.part)
    }

    fn usage_json(&self, usage: Usage) -> Value {
        let uncached = usage.prompt_tokens - usage.cached_tokens;
        let created = match self.marks_cache {
            true => uncached / self.block_tokens.max(1) * self.block_tokens,
            false => 0,
        };
        json!({
            "input_tokens": uncached - created,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        })
    }

    fn stop_reason(&self, script: &Script) -> &'static str {
        match (self.is_cut, script.calls_tools()) {
            (true, _) => "max_tokens",
            (false, true) => "tool_use",
            (false, false) => "end_turn",
        }
    }
}

fn delta(place: Place, delta: Value) -> Event {
    Event::named("content_block_delta", json!({"index": place.part, "delta": delta}))
}
