//! What is asked of every variant: bodies, answers, and how many connections ask at once.

use serde_json::json;

use crate::client::Expected;

/// The name under which clients know the model.
pub(crate) const MODEL: &str = "chat";

/// What the upstream calls it, so that the sidecar has a name to replace in every body.
pub(crate) const SERVED_MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// The key that requests have.
pub(crate) const KEY: &str = "sk-bench-6b1f0c2d9e8a4735";

/// Who asks, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) key: &'static str,
    pub(crate) model: &'static str,
}

impl Caller {
    /// Who never reaches a limit.
    pub(crate) const UNLIMITED: Self = Self { key: KEY, model: MODEL };
}

/// How answers come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// At once and in one piece.
    Whole,
    /// As 100 events, 2 ms apart.
    Streamed,
    /// As 30 events, 100 ms apart: what many streams are that live at one time.
    Slow,
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) answers: Answers,
    pub(crate) body_bytes: usize,
    pub(crate) connections: usize,
}

impl Workload {
    /// The cases of this kind of answers.
    pub(crate) fn all(answers: Answers) -> impl Iterator<Item = Self> {
        let bodies: &[usize] = if answers == Answers::Whole { &[2_000, 100_000] } else { &[2_000] };
        bodies.iter().flat_map(move |&body_bytes| {
            [1, 8].into_iter().map(move |connections| Self { answers, body_bytes, connections })
        })
    }

    /// What the case is called.
    pub(crate) fn name(&self) -> String {
        let at_once = if self.connections == 1 { "1 connection" } else { &format!("{} connections", self.connections) };
        match self.answers {
            Answers::Whole => format!("{} kB body, {at_once}", self.body_bytes / 1_000),
            Answers::Streamed => format!("streamed answer of {} events 2 ms apart, {at_once}", self.answers.events()),
            Answers::Slow => format!("streamed answer of {} events 100 ms apart, {at_once}", self.answers.events()),
        }
    }

    /// What every answer must be.
    pub(crate) fn expected(&self) -> Expected {
        Expected { status: 200, events: self.answers.events() }
    }

    /// The request as it goes over the wire, to this authority.
    pub(crate) fn request(&self, authority: &str) -> Vec<u8> {
        self.request_of(Caller::UNLIMITED, authority)
    }

    /// The same of somebody else.
    pub(crate) fn request_of(&self, Caller { key, model }: Caller, authority: &str) -> Vec<u8> {
        let body = self.body(model);
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {authority}\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\naccept: */*\r\nuser-agent: attache-bench\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body.as_bytes()].concat()
    }

    /// A chat of the wanted size: a system prompt and turns of some hundred bytes, with the escapes that text has.
    pub(crate) fn body(&self, model: &str) -> String {
        let chat = |turns: usize, rest: usize| {
            let system = json!({"role": "system", "content": "You are a helpful assistant. Answer in one sentence."});
            let turn = |index| {
                let role = if index % 2 == 0 { "user" } else { "assistant" };
                json!({"role": role, "content": format!("Turn {index}: the \"quick\" brown fox\njumps over {}", "the lazy dog, and ".repeat(30))})
            };
            let last = json!({"role": "user", "content": "a ".repeat(rest / 2)});
            let messages: Vec<_> = std::iter::once(system).chain((0..turns).map(turn)).chain([last]).collect();
            let mut body = json!({"model": model, "messages": messages, "temperature": 0.7, "max_tokens": 100});
            if self.answers != Answers::Whole
                && let Some(fields) = body.as_object_mut()
            {
                fields.insert("stream".to_owned(), true.into());
                fields.insert("max_tokens".to_owned(), self.answers.tokens().into());
            }
            body.to_string()
        };
        let mut turns = 0;
        while chat(turns + 1, 0).len() <= self.body_bytes {
            turns += 1;
        }
        let rest = self.body_bytes - chat(turns, 0).len().min(self.body_bytes);
        chat(turns, rest)
    }
}

impl Answers {
    /// How long a streamed answer is, in tokens.
    pub(crate) fn tokens(self) -> u64 {
        match self {
            Self::Whole => 0,
            // The model server adds one event with the role, one with the finish reason, and `[DONE]`.
            Self::Streamed => 97,
            Self::Slow => 27,
        }
    }

    /// How many events a client sees.
    pub(crate) fn events(self) -> u64 {
        if self == Self::Whole { 0 } else { self.tokens() + 3 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_of_the_size_that_is_said() {
        for body_bytes in [2_000, 100_000] {
            let body = Workload { answers: Answers::Whole, body_bytes, connections: 1 }.body(MODEL);
            assert!(body.len().abs_diff(body_bytes) < 10, "{}", body.len());
            assert_eq!(serde_json::from_str::<serde_json::Value>(&body).unwrap()["model"], MODEL);
        }
    }
}
