//! What all bodies of one exchange's answer have in common.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

/// An answer's name, time and model.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    number: u64,
    /// In seconds since 1970.
    pub(crate) created: u64,
    /// As asked for.
    pub(crate) model: String,
}

impl Envelope {
    /// An envelope for an answer that is made now, with ids made from the exchange's number.
    pub(crate) fn new(number: u64, model: String) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { number, created: since_epoch.as_secs(), model }
    }

    /// The id of the answer: `chatcmpl-0000...1`.
    pub(crate) fn id(&self, prefix: &str) -> String {
        format!("{prefix}{:032x}", self.number)
    }

    /// The id of a part of it.
    pub(crate) fn part_id(&self, prefix: &str, choice: usize, part: usize) -> String {
        format!("{prefix}{:016x}{choice:08x}{part:08x}", self.number)
    }

    /// A body with a list, in OpenAI's usual form.
    pub(crate) fn list(&self, id_prefix: &str, object: &str, list: &str, items: Vec<Value>) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("id".to_owned(), json!(self.id(id_prefix)));
        body.insert("object".to_owned(), json!(object));
        body.insert("created".to_owned(), json!(self.created));
        body.insert("model".to_owned(), json!(self.model));
        body.insert(list.to_owned(), Value::Array(items));
        body
    }
}
