//! Answers and the chunks of streams.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::Form;
use crate::faults::UsageReport;

/// The tokens that an exchange used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) completion_tokens: u64,
}

impl Usage {
    fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }
}

/// Why an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishReason {
    Stop,
    Length,
}

impl FinishReason {
    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What all bodies of one exchange's answer have in common.
#[derive(Debug)]
pub(crate) struct Envelope {
    id: String,
    created: u64,
    /// As asked for.
    model: String,
    /// What becomes of the usage figures.
    usage: UsageReport,
}

impl Envelope {
    /// An envelope for an answer that is made now, with an id made from the exchange's number.
    pub(crate) fn new(number: u64, model: String, usage: UsageReport) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { id: format!("{number:032x}"), created: since_epoch.as_secs(), model, usage }
    }

    /// The embeddings of some inputs.
    pub(crate) fn embeddings(&self, vectors: &[Vec<f32>], usage: Usage) -> Value {
        let data = vectors.iter().enumerate();
        let data = data.map(|(index, vector)| json!({"index": index, "object": "embedding", "embedding": vector}));
        self.with_usage(self.wrap("embd", "list", "data", data.collect()), usage)
    }

    fn wrap(&self, id_prefix: &str, object: &str, list: &str, items: Vec<Value>) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("id".to_owned(), json!(format!("{id_prefix}-{}", self.id)));
        body.insert("object".to_owned(), json!(object));
        body.insert("created".to_owned(), json!(self.created));
        body.insert("model".to_owned(), json!(self.model));
        body.insert(list.to_owned(), Value::Array(items));
        body
    }

    fn with_usage(&self, mut body: Map<String, Value>, usage: Usage) -> Value {
        let usage = match self.usage {
            UsageReport::Report => Some(usage.to_json()),
            UsageReport::Nullify => Some(Value::Null),
            UsageReport::Omit => None,
        };
        if let Some(usage) = usage {
            body.insert("usage".to_owned(), usage);
        }
        Value::Object(body)
    }
}

/// Writes the bodies of a generated answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) form: Form,
    pub(crate) envelope: Envelope,
}

impl Reply {
    /// An answer in one piece.
    pub(crate) fn whole(&self, texts: &[String], reason: FinishReason, usage: Usage) -> Value {
        let choices = texts.iter().enumerate().map(|(index, text)| match self.form {
            Form::Chat => choice(index, "message", json!({"role": "assistant", "content": text}), Some(reason)),
            Form::Completion => choice(index, "text", json!(text), Some(reason)),
        });
        let body = match self.form {
            Form::Chat => self.envelope.wrap("chatcmpl", "chat.completion", "choices", choices.collect()),
            Form::Completion => self.envelope.wrap("cmpl", "text_completion", "choices", choices.collect()),
        };
        self.envelope.with_usage(body, usage)
    }

    /// The chunk that opens a choice; only a chat has one.
    pub(crate) fn opening_chunk(&self, index: usize) -> Option<Chunk> {
        match self.form {
            Form::Chat => {
                let delta = json!({"role": "assistant", "content": ""});
                Some(self.chunk(vec![choice(index, "delta", delta, None)]))
            }
            Form::Completion => None,
        }
    }

    pub(crate) fn token_chunk(&self, index: usize, token: &str) -> Chunk {
        self.chunk(vec![match self.form {
            Form::Chat => choice(index, "delta", json!({"content": token}), None),
            Form::Completion => choice(index, "text", json!(token), None),
        }])
    }

    pub(crate) fn closing_chunk(&self, index: usize, reason: FinishReason) -> Chunk {
        self.chunk(vec![match self.form {
            Form::Chat => choice(index, "delta", json!({}), Some(reason)),
            Form::Completion => choice(index, "text", json!(""), Some(reason)),
        }])
    }

    /// The chunk at a stream's end that carries nothing but the usage; none if a fault takes it away.
    pub(crate) fn usage_chunk(&self, usage: Usage) -> Option<Value> {
        match self.envelope.usage {
            UsageReport::Report | UsageReport::Nullify => {
                Some(self.envelope.with_usage(self.chunk(Vec::new()).0, usage))
            }
            UsageReport::Omit => None,
        }
    }

    /// The chunk with the usage so far.
    pub(crate) fn with_usage(&self, chunk: Chunk, usage: Usage) -> Value {
        self.envelope.with_usage(chunk.0, usage)
    }

    fn chunk(&self, choices: Vec<Value>) -> Chunk {
        Chunk(match self.form {
            Form::Chat => self.envelope.wrap("chatcmpl", "chat.completion.chunk", "choices", choices),
            Form::Completion => self.envelope.wrap("cmpl", "text_completion", "choices", choices),
        })
    }
}

/// A chunk about whose usage nothing is said yet.
#[derive(Debug)]
pub(crate) struct Chunk(Map<String, Value>);

impl Chunk {
    /// The chunk of a stream that reports no usage.
    pub(crate) fn without_usage(self) -> Value {
        Value::Object(self.0)
    }

    /// The chunk of a stream that reports its usage later.
    pub(crate) fn with_null_usage(mut self) -> Value {
        self.0.insert("usage".to_owned(), Value::Null);
        Value::Object(self.0)
    }
}

fn choice(index: usize, name: &str, content: Value, reason: Option<FinishReason>) -> Value {
    json!({"index": index, name: content, "logprobs": null, "finish_reason": reason.map(FinishReason::name)})
}
