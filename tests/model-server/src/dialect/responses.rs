//! OpenAI's Responses API: answers and the whole sequence of a stream's events, numbered.

use serde_json::{Map, Value, json};

use crate::{
    envelope::Envelope,
    generation::{Outcome, Place, Writer},
    script::{Kind, Part, Script},
    sse::Event,
    usage::Usage,
};

/// What a response repeats of its request, with what stands there if the request does not say it.
const REPEATED: [(&str, &str); 10] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("temperature", "1.0"),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "1.0"),
    ("user", "null"),
];

/// Writes responses.
#[derive(Debug)]
pub(crate) struct ResponseWriter {
    envelope: Envelope,
    repeated: Map<String, Value>,
    /// Whether the answer stops by itself or is cut.
    is_cut: bool,
    events: u64,
}

impl ResponseWriter {
    pub(crate) fn new(envelope: Envelope, request: &[u8], is_cut: bool) -> Self {
        let request: Value = serde_json::from_slice(request).unwrap_or_default();
        let repeated = REPEATED.iter().map(|(name, default)| {
            let value = request.get(name).filter(|value| !value.is_null()).cloned();
            ((*name).to_owned(), value.or_else(|| serde_json::from_str(default).ok()).unwrap_or_default())
        });
        Self { envelope, repeated: repeated.collect(), is_cut, events: 0 }
    }

    fn response(&self, status: &str, output: Vec<Value>, usage: Option<Usage>) -> Value {
        let reason = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let mut response = json!({
            "id": self.envelope.id("resp_"),
            "object": "response",
            "created_at": self.envelope.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": reason,
            "model": self.envelope.model,
            "output": output,
            "reasoning": {"effort": null, "summary": null},
            "service_tier": "default",
            "store": false,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": usage.map(usage_json),
        });
        if let Some(fields) = response.as_object_mut() {
            fields.extend(self.repeated.clone());
        }
        response
    }

    fn finished(&self, outcome: &Outcome) -> Value {
        let status = if self.is_cut { "incomplete" } else { "completed" };
        let texts = outcome.choices.first().map(Vec::as_slice).unwrap_or_default();
        let output = self.output(outcome.script, texts);
        self.response(status, output, Some(outcome.usage))
    }

    fn output(&self, script: &Script, texts: &[String]) -> Vec<Value> {
        let parts = script.parts().iter().zip(texts).enumerate();
        parts.map(|(part, (of, text))| self.item(Place { choice: 0, part }, of, Some(text))).collect()
    }

    /// A part as an item of the output; with no text yet, one in progress.
    fn item(&self, place: Place, part: &Part, text: Option<&str>) -> Value {
        let id = self.item_id(place, part);
        let status = if text.is_some() { "completed" } else { "in_progress" };
        let content: Vec<Value> = text.and_then(|text| content(part, text)).into_iter().collect();
        match &part.kind {
            Kind::Text => {
                json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
            }
            Kind::Reasoning => {
                json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status})
            }
            Kind::Tool { name, .. } => json!({
                "id": id,
                "type": "function_call",
                "call_id": self.envelope.part_id("call_", place.choice, place.part),
                "name": name,
                "arguments": text.unwrap_or_default(),
                "status": status,
            }),
        }
    }

    fn item_id(&self, place: Place, part: &Part) -> String {
        let prefix = match part.kind {
            Kind::Text => "msg_",
            Kind::Reasoning => "rs_",
            Kind::Tool { .. } => "fc_",
        };
        self.envelope.part_id(prefix, place.choice, place.part)
    }

    /// An event about the response.
    fn of_response(&mut self, name: &'static str, response: Value) -> Event {
        self.numbered(name, json!({"response": response}))
    }

    /// An event about an item of the output.
    fn of_item(&mut self, name: &'static str, place: Place, item: Value) -> Event {
        self.numbered(name, json!({"output_index": place.part, "item": item}))
    }

    /// An event about the content of an item.
    fn of_content(&mut self, name: &'static str, place: Place, part: &Part, more: Value) -> Event {
        let mut body = json!({"item_id": self.item_id(place, part), "output_index": place.part});
        if let (Some(fields), Value::Object(more)) = (body.as_object_mut(), more) {
            if !matches!(part.kind, Kind::Tool { .. }) {
                fields.insert("content_index".to_owned(), json!(0));
            }
            fields.extend(more);
        }
        self.numbered(name, body)
    }

    fn numbered(&mut self, name: &'static str, mut body: Value) -> Event {
        if let Some(fields) = body.as_object_mut() {
            fields.insert("sequence_number".to_owned(), json!(self.events));
        }
        self.events += 1;
        Event::named(name, body)
    }
}

impl Writer for ResponseWriter {
    fn whole(&self, outcome: &Outcome) -> Value {
        self.finished(outcome)
    }

    fn opening(&mut self, _: usize, _: Usage) -> Vec<Event> {
        let response = self.response("in_progress", Vec::new(), None);
        vec![self.of_response("response.created", response.clone()), self.of_response("response.in_progress", response)]
    }

    fn begin(&mut self, place: Place, part: &Part, _: Usage) -> Vec<Event> {
        let item = self.item(place, part, None);
        let mut events = vec![self.of_item("response.output_item.added", place, item)];
        if let Some(content) = content(part, "") {
            events.push(self.of_content("response.content_part.added", place, part, json!({"part": content})));
        }
        events
    }

    fn piece(&mut self, place: Place, part: &Part, text: &str, _: Usage) -> Vec<Event> {
        vec![match part.kind {
            Kind::Text => {
                let delta = json!({"delta": text, "logprobs": []});
                self.of_content("response.output_text.delta", place, part, delta)
            }
            Kind::Reasoning => self.of_content("response.reasoning_text.delta", place, part, json!({"delta": text})),
            Kind::Tool { .. } => {
                self.of_content("response.function_call_arguments.delta", place, part, json!({"delta": text}))
            }
        }]
    }

    fn end(&mut self, place: Place, part: &Part, text: &str) -> Vec<Event> {
        let mut events = vec![match &part.kind {
            Kind::Text => {
                let done = json!({"text": text, "logprobs": []});
                self.of_content("response.output_text.done", place, part, done)
            }
            Kind::Reasoning => self.of_content("response.reasoning_text.done", place, part, json!({"text": text})),
            Kind::Tool { name, .. } => {
                let done = json!({"name": name, "arguments": text});
                self.of_content("response.function_call_arguments.done", place, part, done)
            }
        }];
        if let Some(content) = content(part, text) {
            events.push(self.of_content("response.content_part.done", place, part, json!({"part": content})));
        }
        let item = self.item(place, part, Some(text));
        events.push(self.of_item("response.output_item.done", place, item));
        events
    }

    fn closing(&mut self, outcome: &Outcome) -> Vec<Event> {
        let name = if self.is_cut { "response.incomplete" } else { "response.completed" };
        let response = self.finished(outcome);
        vec![self.of_response(name, response), Event::End]
    }
}

/// The content of a message's or a reasoning's item.
fn content(part: &Part, text: &str) -> Option<Value> {
    match part.kind {
        Kind::Text => Some(json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})),
        Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": text})),
        Kind::Tool { .. } => None,
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total(),
    })
}
