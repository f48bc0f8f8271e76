//! The few fields of an answer that we read, from JSON cut at any byte.
//!
//! An answer may be megabytes long and arrive in any number of chunks, so this keeps a few bits of state and the bytes of
//! the one key or value it is after. It checks the structure, not every detail: what it takes for JSON may have a broken
//! number, literal or escape in it.

use memchr::memchr2;

use super::found::{Choices, Found, Kind, Presence, Substance, UsageObject};
use super::members::{Content, Form, Member, Place, Rank};
use crate::json::{Container, Nesting, unescape};
use crate::usage::{Account, Figure, Figures, Told, Usage};

/// How many bytes of a key or value are kept. What is longer is none of ours.
const MAX_KEPT_BYTES: usize = 4096;

/// How deep the places lie that we are after: what was written to a cache is in an iteration of a usage, in the answer, in an event.
const MAX_PLACES: usize = 6;

/// The iterations whose tokens are in the counts of their usage. Those of any other type are not: Anthropic's SDK says so of
/// `compaction`, its documents of `advisor_message`.
const COUNTED_ITERATION: &[u8] = b"message";

/// The one kind of event of the Responses API whose `delta` is no text.
const SOUND: &[u8] = b"response.audio.delta";

/// A JSON object that is being read: an answer, or one event of it.
#[derive(Debug, Clone)]
pub(super) struct Document {
    /// `None` where nothing is to be found.
    form: Option<Form>,
    state: State,
    nesting: Nesting,
    /// The places that we are inside of, each in the one before. The innermost is where we are if it is as deep as we are.
    places: [Place; MAX_PLACES],
    place_count: usize,
    /// The member whose value is awaited, if we are after it.
    member: Option<Member>,
    kept: Kept,
    buffer: Vec<u8>,
    /// The byte which, if it comes next, says that the content just begun is empty.
    empty_if: Option<u8>,
    /// What the content that is being read is, and the depth at which it ends.
    reading: Option<(Weight, usize)>,
    /// Whether the content just begun is reasoning.
    is_reasoning: bool,
    /// Which of the accounts is being read.
    rank: Rank,
    reports: [Report; 4],
    /// Of the iteration that is being read.
    iteration: Option<Iteration>,
    /// The first `model`: all events of a stream name the same, so it outlives a restart.
    model: Option<String>,
    found: Found,
}

/// One of a document's accounts.
#[derive(Debug, Clone, Copy, Default)]
struct Report {
    figures: Figures,
    /// What iterations used that are not in its counts; of the choices of one answer, what those before the last used.
    beyond: Option<Usage>,
    /// Whether its object is complete. Of one that breaks off a count may be missing, or have lost its last digits.
    is_complete: bool,
}

impl Report {
    /// What it says.
    fn account(&self) -> Option<Account> {
        let read = if self.is_complete { self.figures.account() } else { None };
        match (read, self.beyond) {
            (Some(read), beyond) => Some(Account { beyond: beyond.unwrap_or_default(), ..read }),
            (None, Some(beyond)) if self.is_complete => {
                Some(Account { usage: Usage::default(), beyond, told: Told::Both })
            }
            (None, _) => None,
        }
    }

    fn clear(&mut self) {
        self.figures.clear();
        self.beyond = None;
        self.is_complete = false;
    }
}

/// One iteration of a usage.
#[derive(Debug, Clone, Copy, Default)]
struct Iteration {
    figures: Figures,
    place: Counting,
}

/// Where the tokens of an iteration are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Counting {
    /// In its usage.
    #[default]
    Within,
    /// In itself alone.
    Beyond,
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Value,
    /// An array was opened.
    ValueOrClose,
    /// An object was opened.
    KeyOrClose,
    Key,
    Colon,
    /// In a number or literal, or behind it.
    Scalar,
    CommaOrClose,
    String(Role),
    /// The byte after a backslash in a string.
    Escape(Role),
    Complete,
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Key,
    Value,
}

/// How the length of a content speaks of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    Text,
    Json,
    /// Not at all.
    None,
}

/// What the buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Nothing,
    Key,
    Figure(Figure),
    Model,
    Kind,
    IterationKind,
    ErrorText,
    ErrorCode,
    ObjectKind,
}

impl Document {
    pub(super) fn new(form: Option<Form>) -> Self {
        Self {
            form,
            state: State::Value,
            nesting: Nesting::default(),
            places: [Place::Root; MAX_PLACES],
            place_count: 0,
            member: None,
            kept: Kept::Nothing,
            buffer: Vec::new(),
            empty_if: None,
            reading: None,
            is_reasoning: false,
            rank: Rank::First,
            reports: [Report::default(); 4],
            iteration: None,
            model: None,
            found: Found::default(),
        }
    }

    /// Starts over with the next event, and tells what the last one said.
    pub(super) fn restart(&mut self) -> Found {
        let mut found = std::mem::take(&mut self.found);
        found.account = self.account();
        self.state = State::Value;
        self.nesting = Nesting::default();
        self.place_count = 0;
        self.member = None;
        self.kept = Kept::Nothing;
        self.empty_if = None;
        self.reading = None;
        self.iteration = None;
        for report in &mut self.reports {
            report.clear();
        }
        found
    }

    /// Reads the next bytes. Once the document is broken they are ignored.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((&byte, tail)) = rest.split_first() {
            let (reading, before, is_escape) = (self.reading, rest.len(), matches!(self.state, State::Escape(_)));
            rest = match self.state {
                State::Broken => return,
                State::String(role) => {
                    self.decide_content(byte);
                    let end = memchr2(b'"', b'\\', rest);
                    let (read, tail) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
                    self.keep(read);
                    match read.last() {
                        Some(b'"') => self.end_string(role),
                        Some(b'\\') if end.is_some() => self.state = State::Escape(role),
                        _ => {}
                    }
                    tail
                }
                State::Escape(role) => {
                    self.keep(&[byte]);
                    self.state = State::String(role);
                    tail
                }
                State::Scalar => {
                    let is_scalar = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-');
                    let len = rest.iter().take_while(|byte| is_scalar(byte)).count();
                    let (read, tail) = rest.split_at(len);
                    self.keep(read);
                    if !tail.is_empty() {
                        self.end_value();
                    }
                    tail
                }
                _ => {
                    self.structure(byte);
                    tail
                }
            };
            if let Some((weight, _)) = reading {
                let read = (before - rest.len()) as u64;
                let part = self.found.part();
                match weight {
                    Weight::Text => {
                        part.text_bytes += read;
                        // `\u4f60` stands for three bytes.
                        part.escaped_bytes += if is_escape && byte == b'u' { 3 } else { 0 };
                    }
                    Weight::Json => part.json_bytes += read,
                    Weight::None => {}
                }
            }
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// What the document says was used: by the first of its accounts that is one.
    pub(super) fn account(&self) -> Option<Account> {
        self.reports.iter().find_map(Report::account)
    }

    /// What the document said so far, its account aside.
    pub(super) fn found(&self) -> &Found {
        &self.found
    }

    pub(super) fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Reads a byte outside of strings, numbers and literals.
    fn structure(&mut self, byte: u8) {
        if let b' ' | b'\t' | b'\n' | b'\r' = byte {
            return;
        }
        self.decide_content(byte);
        match (byte, self.state) {
            (b'"', State::Key | State::KeyOrClose) => {
                if self.place().is_some() {
                    self.begin_kept(Kept::Key);
                }
                self.state = State::String(Role::Key);
            }
            (b':', State::Colon) => self.state = State::Value,
            (b',', State::CommaOrClose) => {
                self.state = match self.nesting.innermost() {
                    Container::Object => State::Key,
                    Container::Array => State::Value,
                };
            }
            (b'}', State::KeyOrClose | State::CommaOrClose) => self.close(Container::Object),
            (b']', State::ValueOrClose | State::CommaOrClose) => self.close(Container::Array),
            (_, State::Value | State::ValueOrClose) => self.begin_value(byte),
            _ => self.state = State::Broken,
        }
    }

    fn begin_value(&mut self, byte: u8) {
        let entered = match self.member.take() {
            Some(member) => self.begin_member(member, byte),
            None if self.nesting.depth() == 0 => Some(Place::Root),
            None if self.place() == Some(Place::Choices) => {
                self.found.choices = Choices::Some;
                Some(Place::Choice)
            }
            None if self.place() == Some(Place::Iterations) && byte == b'{' => {
                self.iteration = Some(Iteration::default());
                Some(Place::Iteration)
            }
            None => None,
        };
        match byte {
            b'{' => self.open(Container::Object, entered),
            b'[' => self.open(Container::Array, entered),
            b'"' if self.nesting.depth() > 0 => self.state = State::String(Role::Value),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' if self.nesting.depth() > 0 => {
                self.keep(&[byte]);
                self.state = State::Scalar;
            }
            _ => self.state = State::Broken,
        }
    }

    /// The value of a member that we are after begins; returns what place it is, if it is one.
    fn begin_member(&mut self, member: Member, byte: u8) -> Option<Place> {
        match (member, byte) {
            (Member::Object(place), b'{') => return Some(place),
            (Member::Account(place, rank), _) => {
                // The last one of that name holds, even if it is null; but each choice has one of its own.
                if let Some(report) = self.reports.get_mut(rank as usize) {
                    let others = report.account().filter(|_| rank == Rank::OfChoices);
                    report.clear();
                    // They have the prompt in common.
                    report.beyond = others.map(|others| Usage { input: 0, cached_input: 0, ..others.whole() });
                }
                self.rank = rank;
                if rank == Rank::First {
                    self.found.usage_object = if byte == b'{' { UsageObject::Present } else { UsageObject::Absent };
                }
                return (byte == b'{').then_some(place);
            }
            (Member::Choices, b'[') => {
                self.found.choices = Choices::Empty;
                return Some(Place::Choices);
            }
            (Member::List(place), _) => {
                if let Some(report) = self.reports.get_mut(self.rank as usize) {
                    report.beyond = None;
                }
                return (byte == b'[').then_some(place);
            }
            (Member::Choices, _) => self.found.choices = Choices::Absent,
            (Member::Figure(figure), b'-' | b'0'..=b'9') => self.begin_kept(Kept::Figure(figure)),
            (Member::Model, b'"') if self.model.is_none() => self.begin_kept(Kept::Model),
            (Member::Kind, b'"') => self.begin_kept(Kept::Kind),
            (Member::IterationKind, b'"') => self.begin_kept(Kept::IterationKind),
            (Member::Content(Content::Any | Content::Reasoning | Content::Text), b'"') => {
                self.begin_content(b'"', Weight::Text);
            }
            (Member::Content(Content::Any | Content::Reasoning), b'[') => self.begin_content(b']', Weight::Json),
            (Member::Content(Content::Any | Content::Reasoning), b'{') => self.begin_content(b'}', Weight::Json),
            (Member::Content(Content::OpaqueText), b'"') => self.begin_content(b'"', Weight::None),
            (Member::Content(Content::OpaqueObject), b'{') => self.begin_content(b'}', Weight::None),
            (Member::Substance, b'{' | b'[' | b'"') => self.found.substance = Substance::Some,
            (Member::Error, b'{' | b'[' | b'"') => {
                self.found.substance = Substance::Some;
                if byte == b'"' {
                    self.begin_kept(Kept::ErrorText);
                }
                return (byte == b'{').then_some(Place::Error);
            }
            (Member::ErrorMessage, b'"') => self.found.failure.presence = Presence::Present,
            (Member::ErrorCode, b'"' | b'0'..=b'9') => {
                if self.place() == Some(Place::Error) {
                    self.found.failure.presence = Presence::Present;
                }
                self.begin_kept(Kept::ErrorCode);
            }
            (Member::ObjectKind, b'"') => self.begin_kept(Kept::ObjectKind),
            _ => {}
        }
        self.is_reasoning = member == Member::Content(Content::Reasoning);
        None
    }

    fn begin_content(&mut self, empty_if: u8, weight: Weight) {
        self.empty_if = Some(empty_if);
        self.reading = Some((weight, self.nesting.depth()));
    }

    fn open(&mut self, container: Container, entered: Option<Place>) {
        let is_root_array = self.nesting.depth() == 0 && container == Container::Array;
        if self.nesting.open(container).is_err() || is_root_array {
            self.state = State::Broken;
            return;
        }
        self.state = match container {
            Container::Object => State::KeyOrClose,
            Container::Array => State::ValueOrClose,
        };
        // An array among the choices is none of them.
        let is_list = |place: &Place| matches!(place, Place::Choices | Place::Iterations);
        let is_place = entered.filter(|place| is_list(place) == (container == Container::Array));
        if let Some(place) = is_place
            && let Some(slot) = self.places.get_mut(self.place_count)
        {
            *slot = place;
            self.place_count += 1;
        }
    }

    fn close(&mut self, container: Container) {
        let place = self.place();
        if !self.nesting.close(container) {
            self.state = State::Broken;
            return;
        }
        if let Some(place) = place {
            self.place_count -= 1;
            match place {
                Place::Choice => self.found.end_part(),
                Place::Iteration => self.end_iteration(),
                Place::Usage | Place::Timings => {
                    if let Some(report) = self.reports.get_mut(self.rank as usize) {
                        report.is_complete = true;
                    }
                }
                _ => {}
            }
        }
        if self.nesting.depth() == 0 {
            self.state = State::Complete;
        } else {
            self.end_value();
        }
    }

    fn end_string(&mut self, role: Role) {
        match role {
            Role::Value => self.end_value(),
            Role::Key => {
                self.state = State::Colon;
                if self.kept == Kept::Key {
                    self.kept = Kept::Nothing;
                    let key = self.buffer.strip_suffix(b"\"").unwrap_or_default();
                    self.member = match (self.place(), self.form) {
                        (Some(place), Some(form)) => place.member(form, &unescape(key)),
                        _ => None,
                    };
                }
            }
        }
    }

    /// A value has ended; what was kept of it is read.
    fn end_value(&mut self) {
        self.state = State::CommaOrClose;
        if self.reading.is_some_and(|(_, depth)| depth == self.nesting.depth()) {
            self.reading = None;
        }
        let kept = std::mem::replace(&mut self.kept, Kept::Nothing);
        if self.buffer.len() >= MAX_KEPT_BYTES {
            return;
        }
        match kept {
            Kept::Figure(figure) => match (&mut self.iteration, self.reports.get_mut(self.rank as usize)) {
                (Some(iteration), _) => iteration.figures.read(figure, &self.buffer),
                (None, Some(report)) => report.figures.read(figure, &self.buffer),
                (None, None) => {}
            },
            Kept::IterationKind => {
                let is_within =
                    self.buffer.strip_suffix(b"\"").is_some_and(|kind| *unescape(kind) == *COUNTED_ITERATION);
                if let Some(iteration) = &mut self.iteration {
                    iteration.place = if is_within { Counting::Within } else { Counting::Beyond };
                }
            }
            Kept::Model => {
                let text = unescape(self.buffer.strip_suffix(b"\"").unwrap_or_default());
                self.model = Some(String::from_utf8_lossy(&text).into_owned());
            }
            Kept::Kind => match self.buffer.strip_suffix(b"\"") {
                Some(SOUND) => self.found.kind = Kind::Sound,
                Some(b"error" | b"response.failed") => self.found.failure.presence = Presence::Present,
                _ => {}
            },
            Kept::ObjectKind if self.buffer.strip_suffix(b"\"") == Some(b"error") => {
                self.found.failure.presence = Presence::Present;
            }
            // The rest of it is a quote.
            Kept::ErrorText if self.buffer.len() > 1 => self.found.failure.presence = Presence::Present,
            Kept::ErrorCode => self.found.failure.read(self.buffer.strip_suffix(b"\"").unwrap_or(&self.buffer)),
            Kept::Nothing | Kept::Key | Kept::ObjectKind | Kept::ErrorText => {}
        }
    }

    fn end_iteration(&mut self) {
        let Some(Iteration { figures, place: Counting::Beyond }) = self.iteration.take() else { return };
        if let (Some(used), Some(report)) = (figures.account(), self.reports.get_mut(self.rank as usize)) {
            report.beyond = Some(report.beyond.unwrap_or_default().and(used.usage));
        }
    }

    /// The place that we are in, if the innermost object or array is one.
    fn place(&self) -> Option<Place> {
        let innermost = self.place_count.checked_sub(1)?;
        self.places.get(innermost).copied().filter(|_| self.nesting.depth() == self.place_count)
    }

    /// The first byte after the start of content says whether it is empty.
    fn decide_content(&mut self, byte: u8) {
        if let Some(empty_if) = self.empty_if.take()
            && byte != empty_if
        {
            self.found.part().content = Presence::Present;
            if self.is_reasoning {
                self.found.reasoning = Presence::Present;
            }
        }
    }

    fn begin_kept(&mut self, kept: Kept) {
        self.buffer.clear();
        self.kept = kept;
    }

    fn keep(&mut self, read: &[u8]) {
        if self.kept != Kept::Nothing {
            let room = MAX_KEPT_BYTES - self.buffer.len();
            self.buffer.extend_from_slice(read.get(..room).unwrap_or(read));
        }
    }
}
