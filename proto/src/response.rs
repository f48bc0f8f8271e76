//! What an answer says of its usage, found as it streams by, and the one event that the client must not see.
//!
//! Nothing is buffered but the start of an event that may have to be taken out, and nothing is changed but for that event:
//! a broken answer passes through as it came.

mod document;
mod found;
mod members;
mod stream;
mod tally;

use bytes::Bytes;

use self::document::Document;
use self::found::Choices;
use self::members::Form;
use self::stream::Stream;
use self::tally::Tally;
use crate::operation::Operation;
use crate::usage::{Told, Usage};

/// How an answer's body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BodyFormat {
    /// One JSON value.
    Json,
    /// Server-sent events whose data is JSON.
    EventStream,
}

impl BodyFormat {
    /// The format that a `content-type` header names; `None` for one in which there is no usage to be found.
    pub fn from_content_type(content_type: &str) -> Option<Self> {
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if media_type.eq_ignore_ascii_case("text/event-stream") {
            Some(Self::EventStream)
        } else if media_type.eq_ignore_ascii_case("application/json") || is_json_by_suffix(media_type) {
            Some(Self::Json)
        } else {
            None
        }
    }
}

/// Whether it is JSON as RFC 6839, section 3.1, marks it: `application/vnd.x+json`.
fn is_json_by_suffix(media_type: &str) -> bool {
    media_type.rsplit_once('+').is_some_and(|(_, suffix)| suffix.eq_ignore_ascii_case("json"))
}

/// What becomes of the event that carries a stream's usage and no content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UsageVisibility {
    /// It goes to the client, who asked for it.
    Keep,
    /// It is taken out: we asked for it, and the client did not.
    Remove,
}

/// Whether a chunk is the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndOfStream {
    /// More may follow.
    More,
    /// Nothing follows.
    End,
}

/// What goes to the client in place of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// The chunk as it came.
    Unchanged,
    /// These bytes; there may be none.
    Replaced(Bytes),
    /// What goes on before an event that is withheld, as it would be more output than was allowed; there may be none. Once
    /// more is allowed, `rest` is to be fed; if no more is, the stream is to end here.
    Withheld {
        /// What goes on.
        passed: Bytes,
        /// What of the chunk comes after the event.
        rest: Bytes,
    },
}

/// How much output of a stream may go on, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// So much as far as can be told: [`Counted::output_tokens`].
    Likely(u64),
    /// So much without doubt: its server says that it is more, or each choice has at least one token in each of its events, or far
    /// more can be seen. For streams that their servers end in time as a rule, and know better than we when that is.
    Certain(u64),
}

impl Allowance {
    /// How much that is.
    pub fn tokens(self) -> u64 {
        match self {
            Self::Likely(tokens) | Self::Certain(tokens) => tokens,
        }
    }
}

/// May begin a document: RFC 8259, section 8.1, lets parsers ignore it, and those of HTTP clients do.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What was found in an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counted {
    /// The usage; in a stream, the last one, or what Anthropic's events make together.
    pub usage: Option<Usage>,
    /// What of the usage its server did not tell, so that it can be no more than a floor.
    pub gap: Gap,
    /// How many events carried content (or reasoning, a refusal, tool calls): where no usage came, a floor for the output
    /// in tokens.
    pub content_events: u64,
    /// The tokens of output that went on: by the usage, where events report it as they come; else one for each choice with
    /// content in an event, or more where one obviously carries more.
    pub output_tokens: u64,
    /// The same without what the usage says of it, and without [`ResponseScanner::weigh`].
    pub uncorrected_tokens: u64,
    /// Whether there was reasoning in the stream.
    pub has_reasoning: bool,
    /// How many events there were, `[DONE]` included.
    pub events: u64,
    /// Whether the stream said `[DONE]`.
    pub done: bool,
    /// The model that answered, by the first `model` in the answer.
    pub model: Option<String>,
    /// Whether something was no JSON object where one was due, or the body ended in the middle of one.
    pub malformed: bool,
    /// The first error that the server put into the body, whose status says that all is well.
    pub fault: Option<Fault>,
}

/// An error in the body of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The status that it stands for, 400 to 599: by its code, else by its words, else 500.
    pub status: u16,
    /// Where it stands.
    pub place: FaultPlace,
}

/// Where an error stands in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPlace {
    /// Before any content: nothing was served.
    First,
    /// Behind some.
    Later,
}

/// What a usage leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gap {
    /// The input was not told, or with a figure that is none.
    pub input: bool,
    /// The output was not told; or it was told to be nothing, though there was content; or content came after the usage, as
    /// when Anthropic's answer breaks off, whose first event has the input and a first token.
    pub output: bool,
}

/// A scanner somewhere in the body of an answer.
#[derive(Debug, Clone)]
pub struct ResponseScanner {
    body: Body,
}

#[derive(Debug, Clone)]
enum Body {
    Json(Box<Whole>),
    EventStream(Box<Stream>),
}

/// An answer that is one document.
#[derive(Debug, Clone)]
struct Whole {
    form: Option<Form>,
    document: Document,
    /// What may still come of the byte order mark.
    mark: &'static [u8],
    end: EndOfStream,
}

impl ResponseScanner {
    /// A scanner at the start of an answer to `operation`.
    pub fn new(operation: Operation, format: BodyFormat, visibility: UsageVisibility) -> Self {
        let form = Form::of(operation);
        let document = Document::new(form);
        let body = match format {
            BodyFormat::Json => {
                Body::Json(Box::new(Whole { form, document, mark: BYTE_ORDER_MARK, end: EndOfStream::More }))
            }
            BodyFormat::EventStream => Body::EventStream(Box::new(Stream::new(document, Tally::new(form), visibility))),
        };
        Self { body }
    }

    /// Lets no more than so many tokens of output go on. To be called before the first chunk, and again when more may.
    ///
    /// An event that is cut is then held back until it is complete, if it is not longer than 16 KiB: a longer one goes on, and
    /// the next one is withheld. The body of an answer that is no stream of events goes on whatever its length.
    pub fn allow(&mut self, allowance: Allowance) {
        match &mut self.body {
            Body::Json(_) => {}
            Body::EventStream(stream) => stream.allow(allowance),
        }
    }

    /// Counts so many tokens for each that is seen in an event: servers that guess several tokens ahead send them in one. To be
    /// called before the first chunk.
    pub fn weigh(&mut self, tokens: f64) {
        match &mut self.body {
            Body::Json(_) => {}
            Body::EventStream(stream) => stream.weigh(tokens),
        }
    }

    /// Reads the next chunk of the body, after its content coding was undone, and says what the client gets in its place.
    pub fn feed(&mut self, chunk: &Bytes, end: EndOfStream) -> Output {
        match &mut self.body {
            Body::Json(whole) => {
                whole.feed(chunk, end);
                Output::Unchanged
            }
            Body::EventStream(stream) => stream.feed(chunk, end),
        }
    }

    /// [`Counted::output_tokens`] so far.
    pub fn output_tokens(&self) -> u64 {
        match &self.body {
            Body::Json(_) => 0,
            Body::EventStream(stream) => stream.tally().output_tokens(),
        }
    }

    /// The allowance with which the event that is withheld may go on, in tokens, if there is one.
    pub fn awaited(&self) -> Option<u64> {
        match &self.body {
            Body::Json(_) => None,
            Body::EventStream(stream) => stream.awaited(),
        }
    }

    /// What was found so far. It holds for a body that broke off as well.
    pub fn counted(&self) -> Counted {
        match &self.body {
            Body::Json(whole) => whole.counted(),
            Body::EventStream(stream) => stream.tally().counted(stream.model()),
        }
    }
}

impl Whole {
    fn feed(&mut self, chunk: &[u8], end: EndOfStream) {
        let mut rest = chunk;
        while let (Some((expected, mark)), Some((byte, tail))) = (self.mark.split_first(), rest.split_first()) {
            if byte != expected {
                let seen = BYTE_ORDER_MARK.len() - self.mark.len();
                self.document.feed(BYTE_ORDER_MARK.get(..seen).unwrap_or_default());
                self.mark = &[];
                break;
            }
            (self.mark, rest) = (mark, tail);
        }
        self.document.feed(rest);
        self.end = end;
    }

    fn counted(&self) -> Counted {
        let account = self.document.account();
        let told = account.map(|account| account.told);
        let has_output = self.form.is_some_and(Form::has_output);
        let found = self.document.found();
        let place =
            if account.is_none() && found.choices != Choices::Some { FaultPlace::First } else { FaultPlace::Later };
        let is_cut = self.end == EndOfStream::End && !self.document.is_complete();
        Counted {
            usage: account.map(|account| account.whole()),
            gap: Gap { input: told == Some(Told::Output), output: told == Some(Told::Input) && has_output },
            model: self.document.model().map(str::to_owned),
            malformed: self.document.is_broken() || is_cut,
            fault: found.failure.to_status().map(|status| Fault { status, place }),
            ..Counted::default()
        }
    }
}

#[cfg(test)]
mod tests;
