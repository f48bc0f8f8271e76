//! The answer as it streams by: which bytes the client must not see, and what it will have cost.

use attache_proto::encoding::{Codings, DecodeError, Decoder};
use attache_proto::headers;
use attache_proto::response::{
    Allowance, BodyFormat, EndOfStream, FaultPlace, Gap, Output, ResponseScanner, UsageVisibility,
};
use attache_proto::{Operation, Usage};
use bytes::{Bytes, BytesMut};

use super::body_memory::Claim;
use super::coded::{Coded, Head, Undecodable};
use super::event::{End, Headers, Mutations};
use super::plan::Unreported;
use super::summary::Counted;
use crate::limit::{Estimate, InEvents};

/// One answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its HTTP status.
    pub(super) status: u16,
    operation: Operation,
    scanner: Option<ResponseScanner>,
    format: Option<BodyFormat>,
    visibility: UsageVisibility,
    hidden: Vec<&'static str>,
    /// How much of it may go on before we end it; `None` is all of it.
    allowance: Option<Allowance>,
    wire: Wire,
    /// Of a body that does not say it is encoded.
    head: Head,
    label: Label,
    /// How much of it came.
    bytes: u64,
}

/// So much before its first event is no stream of events, whatever it calls itself. (Servers that think for long send comments.)
const MOST_BEFORE_AN_EVENT_BYTES: u64 = 16 * 1024;

/// How the body comes, and how it goes on.
#[derive(Debug)]
enum Wire {
    /// As it is.
    Plain,
    /// Encoded, and it goes on so: what is decoded is only looked at.
    Encoded(Box<Coded>),
    /// Encoded, and it goes on decoded, as it may have to be changed.
    Undone(Box<Undone>),
    /// Nobody can read it, or can no more. It goes on as it comes.
    Unread,
}

#[derive(Debug)]
struct Undone {
    coded: Coded,
    /// Whether the next bytes are the rest of a chunk that was withheld: they are decoded.
    rest: Rest,
    broken: Option<Broken>,
}

/// Why a body that goes on decoded cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Coding(DecodeError),
    NoMemory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    None,
    Awaited,
}

/// Whether the body is what its `content-encoding` says, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Right,
    Wrong,
}

impl Answer {
    /// An answer that begins with these headers.
    pub(super) fn new(response: &Headers, operation: Operation, visibility: UsageVisibility) -> Self {
        // Without a status that is a number the proxy itself is broken; 502 says that nothing was served.
        let status = response.get(":status").and_then(|status| status.parse().ok()).unwrap_or(502);
        // Of an operation that uses no tokens there is nothing to be found, whatever its answer says.
        let format = response.get("content-type").filter(|_| operation.uses_tokens());
        let format = format.and_then(BodyFormat::from_content_type);
        let codings = response.iter().filter(|(name, _)| *name == "content-encoding").map(|(_, value)| value);
        let wire = match Codings::parse(codings) {
            Ok(codings) if codings.is_identity() => Wire::Plain,
            Ok(codings) => Wire::Encoded(Box::new(Coded::new(Decoder::new(codings)))),
            Err(_) => Wire::Unread,
        };
        let scanner = format
            .filter(|_| served(status) && !matches!(wire, Wire::Unread))
            .map(|format| ResponseScanner::new(operation, format, visibility));
        // Whoever put them there.
        let hidden = headers::OWNED.into_iter().filter(|name| response.get(name).is_some()).collect();
        let (head, label) = (Head::default(), Label::Right);
        Self { status, operation, scanner, format, visibility, hidden, allowance: None, wire, head, label, bytes: 0 }
    }

    /// Has its decoder take no more than there is: without memory for it, nobody can read the body. To be called before all else.
    pub(super) fn hold(&mut self, claim: Claim) {
        if let Wire::Encoded(coded) = &mut self.wire
            && coded.hold(claim).is_err()
        {
            self.hide();
        }
    }

    /// What becomes of its headers, and so whether its body may be changed. To be asked once, before the body.
    pub(super) fn mutations(&mut self) -> Mutations {
        let mut remove = self.hidden.clone();
        if self.scanner.is_some()
            && self.format == Some(BodyFormat::EventStream)
            && (self.visibility == UsageVisibility::Remove || self.allowance.is_some())
        {
            // One event less will come than the upstream counted, or many.
            remove.push("content-length");
            self.wire = match std::mem::replace(&mut self.wire, Wire::Plain) {
                Wire::Encoded(coded) => {
                    // The upstream was asked for none.
                    remove.push("content-encoding");
                    Wire::Undone(Box::new(Undone { coded: *coded, rest: Rest::None, broken: None }))
                }
                wire => wire,
            };
        }
        Mutations { remove, ..Mutations::default() }
    }

    /// Lets no more than so much go on.
    pub(super) fn allow(&mut self, allowance: Allowance) {
        self.allowance = Some(allowance);
        if let Some(scanner) = &mut self.scanner {
            scanner.allow(allowance);
        }
    }

    /// Has what is seen of its events' tokens count so much.
    pub(super) fn weigh(&mut self, tokens: f64) {
        if let Some(scanner) = &mut self.scanner {
            scanner.weigh(tokens);
        }
    }

    /// Nobody will see its body.
    pub(super) fn hide(&mut self) {
        (self.wire, self.scanner) = (Wire::Unread, None);
    }

    /// Whether it may not go on: it may have to be cut, and nobody could see where. What is no stream of events is as long as the
    /// upstream makes it.
    pub(super) fn is_out_of_reach(&self) -> bool {
        let can_be_cut = self.scanner.is_some() && self.format == Some(BodyFormat::EventStream);
        // Once all is held that the client lets it have, the upstream ends it.
        let has_to_be = matches!(self.allowance, Some(Allowance::Likely(_)));
        has_to_be && served(self.status) && self.operation.generates() && !can_be_cut
    }

    /// What becomes of a chunk of its body. After [`Output::Withheld`], the rest that it has comes next.
    pub(super) fn feed(&mut self, chunk: &Bytes, end: End) -> Output {
        self.bytes = self.bytes.saturating_add(chunk.len() as u64);
        let Some(scanner) = &mut self.scanner else { return Output::Unchanged };
        let end_of_stream = match end {
            End::More => EndOfStream::More,
            End::Last => EndOfStream::End,
        };
        match &mut self.wire {
            Wire::Plain => {
                self.head.extend(chunk);
                scanner.feed(chunk, end_of_stream)
            }
            Wire::Unread => Output::Unchanged,
            Wire::Undone(undone) => match undone.feed(scanner, chunk, end_of_stream) {
                Ok(output) => output,
                // The label is off by now, so what goes on is right.
                Err(plain) => {
                    (self.wire, self.label) = (Wire::Plain, Label::Wrong);
                    self.head.extend(&plain);
                    changed(scanner.feed(&plain, end_of_stream), &plain)
                }
            },
            Wire::Encoded(coded) => {
                let mut sink = |piece: &[u8]| {
                    scanner.feed(&Bytes::copy_from_slice(piece), EndOfStream::More);
                };
                let fed = coded.feed(chunk, &mut sink);
                let read = fed.and_then(|()| if end == End::Last { coded.finish(&mut sink) } else { Ok(()) });
                match read {
                    Ok(()) => {
                        scanner.feed(&Bytes::new(), end_of_stream);
                    }
                    Err(Undecodable::Plain(bytes)) => {
                        scanner.feed(&bytes, end_of_stream);
                        self.head.extend(&bytes);
                        (self.wire, self.label) = (Wire::Plain, Label::Wrong);
                    }
                    Err(Undecodable::NoMemory) => {
                        scanner.feed(&Bytes::new(), end_of_stream);
                        self.wire = Wire::Unread;
                    }
                    Err(Undecodable::Broken(error)) => {
                        scanner.feed(&Bytes::new(), end_of_stream);
                        self.label = Label::Wrong;
                        if !matches!(error, DecodeError::Incomplete(_)) {
                            self.wire = Wire::Unread;
                        }
                    }
                }
                Output::Unchanged
            }
        }
    }

    /// Whether its body is not what its `content-encoding` says, or its lack of one: it was read as something else, or not at all.
    pub(super) fn is_miscoded(&self) -> bool {
        let is_broken = matches!(&self.wire, Wire::Undone(undone) if matches!(undone.broken, Some(Broken::Coding(_))));
        self.label == Label::Wrong || is_broken || self.is_encoded_in_secret()
    }

    /// Whether it is encoded and does not say so.
    fn is_encoded_in_secret(&self) -> bool {
        matches!(self.wire, Wire::Plain) && !self.head.is_text()
    }

    /// What is wrong with an answer that had to be decoded and cannot be. It ends behind what was: it can go on neither way.
    pub(super) fn broken(&self) -> Option<String> {
        let Wire::Undone(undone) = &self.wire else { return None };
        Some(match undone.broken? {
            Broken::Coding(error) => format!("the upstream's answer is not what its content-encoding says: {error}"),
            Broken::NoMemory => "there is no memory to decode the upstream's answer at the moment".to_owned(),
        })
    }

    /// What it has cost, now that it is complete; [`Answer::counted`], but for what is free unless its answer says so. Of an answer
    /// that nobody could read nobody knows whether it did.
    pub(super) fn finished(&self, estimate: &Estimate, unreported: Unreported) -> Option<Counted> {
        let is_read = self.format.is_none() || !(matches!(self.wire, Wire::Unread) || self.is_encoded_in_secret());
        let is_silent = || self.scanner.as_ref().is_none_or(|scanner| scanner.counted().usage.is_none());
        if self.operation.is_free_unless_reported() && is_read && is_silent() {
            return None;
        }
        self.counted_if_above(0, estimate, unreported)
    }

    /// What it has cost so far; `None` if nothing was served, or nothing that is counted in tokens. Where the upstream did not say, or not all of it, that is
    /// estimated: of a stream, by the events that passed.
    pub(super) fn counted(&self, estimate: &Estimate, unreported: Unreported) -> Option<Counted> {
        self.counted_if_above(MOST_BEFORE_AN_EVENT_BYTES, estimate, unreported)
    }

    /// The same, where a stream of more than so many bytes without an event in them is one that nobody could read.
    fn counted_if_above(&self, bytes: u64, estimate: &Estimate, unreported: Unreported) -> Option<Counted> {
        if !served(self.status) || !self.operation.uses_tokens() {
            return None;
        }
        let counted = self.scanner.as_ref().map(ResponseScanner::counted);
        // An error in the place of an answer costs as little as one that its status tells of.
        if let Some(counted) = &counted
            && counted.fault.is_some_and(|fault| fault.place == FaultPlace::First)
            && counted.usage.is_none()
            && counted.content_events == 0
        {
            return None;
        }
        let seen = counted.as_ref().map_or(0, |counted| counted.output_tokens);
        let output = match (self.format, &self.wire) {
            (Some(BodyFormat::EventStream), Wire::Unread) => unreported.whole.max(seen),
            (Some(BodyFormat::EventStream), _) if self.is_encoded_in_secret() => unreported.whole.max(seen),
            (Some(BodyFormat::EventStream), _) if self.events() == 0 && self.bytes > bytes => unreported.whole,
            (Some(BodyFormat::EventStream), _) => seen,
            _ => unreported.whole,
        };
        let Some((usage, gap)) = counted.and_then(|counted| Some((counted.usage?, counted.gap))) else {
            return Some(Counted::Estimated(estimated(estimate, output)));
        };
        if gap == Gap::default() {
            return Some(Counted::Reported(usage));
        }
        let filled = |is_open: bool, with: u64| if is_open { with } else { 0 };
        Some(Counted::Estimated(usage.at_least(filled(gap.input, estimate.input), filled(gap.output, output))))
    }

    /// The status that an error in its body stands for, where its own says that all is well.
    pub(super) fn fault(&self) -> Option<u16> {
        let scanner = self.scanner.as_ref().filter(|_| served(self.status))?;
        scanner.counted().fault.map(|fault| fault.status)
    }

    /// How many tokens of output have gone on, as far as that can be seen. None of an answer that is not a stream of events.
    pub(super) fn delivered(&self) -> u64 {
        match (&self.scanner, self.format) {
            (Some(scanner), Some(BodyFormat::EventStream)) => scanner.output_tokens(),
            _ => 0,
        }
    }

    /// The allowance with which the event that is withheld may go on, in tokens.
    pub(super) fn awaited(&self) -> u64 {
        self.scanner.as_ref().and_then(ResponseScanner::awaited).unwrap_or(0)
    }

    /// How many events of any kind have gone on, if it is a stream of events.
    pub(super) fn events(&self) -> u64 {
        self.scanner.as_ref().map_or(0, |scanner| scanner.counted().events)
    }

    /// What it teaches of the tokens in a stream's events, where this was all that it used.
    pub(super) fn in_events(&self, usage: &Usage) -> Option<InEvents> {
        let scanner = self.scanner.as_ref().filter(|_| self.format == Some(BodyFormat::EventStream))?;
        let counted = scanner.counted();
        // Reasoning that is hidden is in no event.
        let hidden = if counted.has_reasoning { 0 } else { usage.reasoning };
        Some(InEvents { seen: counted.uncorrected_tokens, used: usage.output.saturating_sub(hidden) })
    }

    /// How many events with content it had, if it is a stream of events.
    pub(super) fn content_events(&self) -> Option<u64> {
        let scanner = self.scanner.as_ref().filter(|_| self.format == Some(BodyFormat::EventStream))?;
        Some(scanner.counted().content_events)
    }
}

impl Undone {
    /// What goes on in place of a chunk. The error is a body that is not encoded: all of its bytes so far, of which none has gone
    /// on.
    fn feed(&mut self, scanner: &mut ResponseScanner, chunk: &Bytes, end: EndOfStream) -> Result<Output, Bytes> {
        let decoded = match std::mem::replace(&mut self.rest, Rest::None) {
            Rest::Awaited => chunk.clone(),
            Rest::None => self.decode(chunk, end)?,
        };
        // The bytes of an event that breaks off here must not go on as its end.
        let output = scanner.feed(&decoded, if self.broken.is_some() { EndOfStream::More } else { end });
        // Where the stream has said that it is over, nobody misses a check sum, and whatever follows is none of its events.
        self.broken = self.broken.filter(|_| !scanner.counted().done);
        if let Output::Withheld { .. } = output {
            self.rest = Rest::Awaited;
        }
        // The proxy has other bytes.
        Ok(changed(output, &decoded))
    }

    fn decode(&mut self, chunk: &[u8], end: EndOfStream) -> Result<Bytes, Bytes> {
        let mut decoded = BytesMut::new();
        let mut sink = |piece: &[u8]| decoded.extend_from_slice(piece);
        let fed = self.coded.feed(chunk, &mut sink);
        let read = fed.and_then(|()| if end == EndOfStream::End { self.coded.finish(&mut sink) } else { Ok(()) });
        match read {
            Ok(()) => {}
            Err(Undecodable::Broken(error)) => self.broken = Some(Broken::Coding(error)),
            Err(Undecodable::NoMemory) => self.broken = Some(Broken::NoMemory),
            Err(Undecodable::Plain(bytes)) => return Err(bytes),
        }
        Ok(decoded.freeze())
    }
}

/// The same output, of bytes that the proxy does not have.
fn changed(output: Output, bytes: &Bytes) -> Output {
    match output {
        Output::Unchanged => Output::Replaced(bytes.clone()),
        output => output,
    }
}

/// What nobody reported: the prompt's estimate, and so much output.
pub(super) fn estimated(estimate: &Estimate, output: u64) -> Usage {
    Estimate { output, ..*estimate }.usage()
}

/// Whether the upstream did the work: its errors cost nothing.
fn served(status: u16) -> bool {
    (200..300).contains(&status)
}
