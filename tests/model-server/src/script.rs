//! What the answers to a request consist of: reasoning, text, calls of tools, of so many tokens each.

use serde_json::{Value, json};

/// What every choice of an answer consists of, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script(Vec<Part>);

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) kind: Kind,
    pub(crate) tokens: u64,
}

/// What a part is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reasoning,
    Text,
    /// A call of the tool with this name, with its number among the answer's calls.
    Tool {
        name: String,
        number: usize,
    },
}

impl Script {
    /// An answer of so many tokens. Reasoning takes its own, if there are so many; text and each call of a tool have equal shares of the others, and
    /// the text has what is left over.
    pub(crate) fn new(tokens: u64, reasoning_tokens: u64, tools: Vec<String>) -> Self {
        let reasoning_tokens = reasoning_tokens.min(tokens);
        let tokens = tokens - reasoning_tokens;
        let share = tokens / (tools.len() as u64 + 1);
        let text_tokens = tokens - share * tools.len() as u64;
        let mut parts = Vec::new();
        if reasoning_tokens > 0 {
            parts.push(Part { kind: Kind::Reasoning, tokens: reasoning_tokens });
        }
        if text_tokens > 0 || tools.is_empty() {
            parts.push(Part { kind: Kind::Text, tokens: text_tokens });
        }
        parts.extend(
            tools
                .into_iter()
                .enumerate()
                .map(|(number, name)| Part { kind: Kind::Tool { name, number }, tokens: share }),
        );
        Self(parts)
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.0
    }

    pub(crate) fn calls_tools(&self) -> bool {
        self.0.iter().any(|part| matches!(part.kind, Kind::Tool { .. }))
    }
}

impl Part {
    /// What stands before the words: the arguments of a call are an object with one text.
    pub(crate) fn opening(&self) -> &'static str {
        match self.kind {
            Kind::Reasoning | Kind::Text => "",
            Kind::Tool { .. } => r#"{"text":""#,
        }
    }

    /// What stands behind them.
    pub(crate) fn closing(&self) -> &'static str {
        match self.kind {
            Kind::Reasoning | Kind::Text => "",
            Kind::Tool { .. } => r#""}"#,
        }
    }
}

/// Arguments of a call as an object.
pub(crate) fn arguments(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(tokens: u64, reasoning: u64, tools: usize) -> Vec<(Kind, u64)> {
        let script = Script::new(tokens, reasoning, vec!["f".to_owned(); tools]);
        assert_eq!(script.calls_tools(), tools > 0);
        assert_eq!(script.parts().iter().map(|part| part.tokens).sum::<u64>(), tokens);
        script.0.into_iter().map(|part| (part.kind, part.tokens)).collect()
    }

    #[test]
    fn all_tokens_are_given_out() {
        let tool = |number| Kind::Tool { name: "f".to_owned(), number };
        assert_eq!(parts(16, 0, 0), [(Kind::Text, 16)]);
        assert_eq!(parts(0, 0, 0), [(Kind::Text, 0)]);
        assert_eq!(parts(16, 4, 0), [(Kind::Reasoning, 4), (Kind::Text, 12)]);
        assert_eq!(parts(4, 9, 0), [(Kind::Reasoning, 4), (Kind::Text, 0)]);
        assert_eq!(parts(16, 0, 2), [(Kind::Text, 6), (tool(0), 5), (tool(1), 5)]);
        assert_eq!(parts(0, 0, 1), [(tool(0), 0)]);
    }

    #[test]
    fn arguments_are_an_object_with_a_text() {
        let part = Part { kind: Kind::Tool { name: "f".to_owned(), number: 0 }, tokens: 2 };
        let text = format!("{}sun sea{}", part.opening(), part.closing());
        assert_eq!(arguments(&text), json!({"text": "sun sea"}));
    }
}
