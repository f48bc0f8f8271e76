//! What one document of an answer said, and how many tokens of output that is.

use crate::usage::Account;

/// Content of at most so many bytes is taken for one token, as most servers send one with each event. Of the words in common
/// vocabularies hardly any is longer.
const ONE_TOKEN_TEXT_BYTES: u64 = 16;

/// The same for tool calls, which come with their names and ids.
const ONE_TOKEN_JSON_BYTES: u64 = 256;

/// No text has tokens that are so long on average: runs of blanks and dashes have the longest.
const LONGEST_TOKENS_BYTES: u64 = 64;

/// Of what is obviously more than one token.
const BYTES_PER_TOKEN: u64 = 4;

/// What a document said.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    pub(super) account: Option<Account>,
    pub(super) usage_object: UsageObject,
    pub(super) choices: Choices,
    /// Whether there is something in it that a client cannot do without, besides choices.
    pub(super) substance: Substance,
    /// Tokens of the choices that are complete.
    tokens: u64,
    /// The fewest that they may have.
    fewest: u64,
    /// Of the one that is not, or of an event without choices.
    part: Part,
    /// What its content is.
    pub(super) kind: Kind,
    /// Whether there is reasoning in it.
    pub(super) reasoning: Presence,
    pub(super) failure: Failure,
}

/// An error in a document, as far as it was read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Failure {
    /// Whether there is one.
    pub(super) presence: Presence,
    /// The status that it names.
    status: Option<u16>,
    /// The status that its words come to.
    in_words: Option<u16>,
}

impl Failure {
    /// Reads a code or type: a status, or a word.
    pub(super) fn read(&mut self, code: &[u8]) {
        let code = String::from_utf8_lossy(code).to_ascii_lowercase();
        match code.trim().parse() {
            Ok(status @ 400..=599) => self.status = Some(status),
            Ok(_) => {}
            Err(_) => self.in_words = in_words(&code).or(self.in_words),
        }
    }

    /// The status that the answer would have had, had the error come in time. What does not say whose fault it is, is the server's.
    pub(super) fn to_status(self) -> Option<u16> {
        (self.presence == Presence::Present).then(|| self.status.or(self.in_words).unwrap_or(500))
    }
}

/// The status for which a word stands in an error of OpenAI's API, Anthropic's, vLLM or SGLang.
fn in_words(code: &str) -> Option<u16> {
    const WORDS: [(u16, &[&str]); 3] = [
        (429, &["rate_limit", "ratelimit", "quota", "too_many"]),
        (500, &["server", "overloaded", "internal", "timeout", "unavailable", "api_error"]),
        (
            400,
            &[
                "invalid",
                "bad_request",
                "badrequest",
                "not_found",
                "notfound",
                "authentication",
                "permission",
                "too_large",
                "unprocessable",
                "context_length",
                "content_",
                "unsupported",
            ],
        ),
    ];
    WORDS.into_iter().find_map(|(status, words)| words.iter().any(|word| code.contains(word)).then_some(status))
}

/// The content of one choice.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    pub(super) content: Presence,
    /// How long the content is that is text, in bytes.
    pub(super) text_bytes: u64,
    /// What of that escapes have too much.
    pub(super) escaped_bytes: u64,
    /// How long the content is that is JSON.
    pub(super) json_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum UsageObject {
    #[default]
    Absent,
    Present,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Choices {
    #[default]
    Absent,
    Empty,
    Some,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Presence {
    #[default]
    Absent,
    Present,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Substance {
    #[default]
    None,
    Some,
}

/// What an event of the Responses API brings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Text,
    /// Sound in base64.
    Sound,
}

impl Found {
    pub(super) fn part(&mut self) -> &mut Part {
        &mut self.part
    }

    /// A choice is complete.
    pub(super) fn end_part(&mut self) {
        self.tokens = self.tokens();
        self.fewest = self.fewest_tokens();
        self.part = Part::default();
    }

    /// How many tokens of output an event has that says this, as far as that can be seen: for each choice with content one, or
    /// more where there is obviously more than one.
    pub(super) fn tokens(&self) -> u64 {
        let part = match self.kind {
            Kind::Text => self.part.tokens(),
            Kind::Sound => self.part.tokens().min(1),
        };
        self.tokens.saturating_add(part)
    }

    /// The fewest tokens of output that such an event may have: one for each choice with content, or more where no token is as
    /// long.
    pub(super) fn fewest_tokens(&self) -> u64 {
        let part = match self.kind {
            Kind::Text => self.part.fewest_tokens(),
            Kind::Sound => self.part.fewest_tokens().min(1),
        };
        self.fewest.saturating_add(part)
    }
}

impl Part {
    fn tokens(&self) -> u64 {
        if self.content == Presence::Absent {
            return 0;
        }
        let tokens = |bytes: u64, one: u64| if bytes > one { bytes.div_ceil(BYTES_PER_TOKEN) } else { 0 };
        let text_bytes = self.text_bytes.saturating_sub(self.escaped_bytes);
        tokens(text_bytes, ONE_TOKEN_TEXT_BYTES).saturating_add(tokens(self.json_bytes, ONE_TOKEN_JSON_BYTES)).max(1)
    }

    fn fewest_tokens(&self) -> u64 {
        if self.content == Presence::Absent {
            return 0;
        }
        (self.text_bytes.saturating_sub(self.escaped_bytes) / LONGEST_TOKENS_BYTES).max(1)
    }
}
