//! The answer as it streams by: which bytes the client must not see, and what it will have cost.

use attache_proto::headers;
use attache_proto::response::{BodyFormat, EndOfStream, Gap, Output, ResponseScanner, UsageVisibility};
use attache_proto::{Operation, Usage};
use bytes::Bytes;

use super::event::{End, Headers, Mutations};
use super::plan::Unreported;
use super::summary::Counted;
use crate::limit::Estimate;

/// One answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its HTTP status.
    pub(super) status: u16,
    scanner: Option<ResponseScanner>,
    format: Option<BodyFormat>,
    visibility: UsageVisibility,
    hidden: Vec<&'static str>,
    /// Whether it may be ended before the upstream ends it.
    may_be_cut: bool,
}

impl Answer {
    /// An answer that begins with these headers.
    pub(super) fn new(response: &Headers, operation: Operation, visibility: UsageVisibility) -> Self {
        // Without a status that is a number the proxy itself is broken; 502 says that nothing was served.
        let status = response.get(":status").and_then(|status| status.parse().ok()).unwrap_or(502);
        // Of an operation that uses no tokens there is nothing to be found, whatever its answer says.
        let format = response.get("content-type").filter(|_| operation.uses_tokens());
        let format = format.and_then(BodyFormat::from_content_type);
        let scanner =
            format.filter(|_| served(status)).map(|format| ResponseScanner::new(operation, format, visibility));
        // Whoever put them there.
        let hidden = headers::OWNED.into_iter().filter(|name| response.get(name).is_some()).collect();
        Self { status, scanner, format, visibility, hidden, may_be_cut: false }
    }

    /// What becomes of its headers.
    pub(super) fn mutations(&self) -> Mutations {
        let mut remove = self.hidden.clone();
        if self.scanner.is_some()
            && self.format == Some(BodyFormat::EventStream)
            && (self.visibility == UsageVisibility::Remove || self.may_be_cut)
        {
            // One event less will come than the upstream counted, or many.
            remove.push("content-length");
        }
        Mutations { remove, ..Mutations::default() }
    }

    /// Lets no more than so many tokens go on.
    pub(super) fn allow(&mut self, output_tokens: u64) {
        self.may_be_cut = true;
        if let Some(scanner) = &mut self.scanner {
            scanner.allow(output_tokens);
        }
    }

    /// What becomes of a chunk of its body.
    pub(super) fn feed(&mut self, chunk: &Bytes, end: End) -> Output {
        let Some(scanner) = &mut self.scanner else { return Output::Unchanged };
        let end = match end {
            End::More => EndOfStream::More,
            End::Last => EndOfStream::End,
        };
        scanner.feed(chunk, end)
    }

    /// What it has cost so far; `None` if nothing was served. Where the upstream did not say, or not all of it, that is
    /// estimated: of a stream, by the events that passed.
    pub(super) fn counted(&self, estimate: &Estimate, unreported: Unreported) -> Option<Counted> {
        if !served(self.status) {
            return None;
        }
        let counted = self.scanner.as_ref().map(ResponseScanner::counted);
        let output = match (&counted, self.format) {
            (counted, Some(BodyFormat::EventStream)) => counted.as_ref().map_or(0, |counted| counted.output_tokens),
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

    /// How many tokens of output have gone on, as far as that can be seen. None of an answer that is not a stream of events.
    pub(super) fn delivered(&self) -> u64 {
        match (&self.scanner, self.format) {
            (Some(scanner), Some(BodyFormat::EventStream)) => scanner.output_tokens(),
            _ => 0,
        }
    }

    /// How many events of any kind have gone on, if it is a stream of events.
    pub(super) fn events(&self) -> u64 {
        self.scanner.as_ref().map_or(0, |scanner| scanner.counted().events)
    }

    /// How many events with content it had, if it is a stream of events.
    pub(super) fn content_events(&self) -> Option<u64> {
        let scanner = self.scanner.as_ref().filter(|_| self.format == Some(BodyFormat::EventStream))?;
        Some(scanner.counted().content_events)
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
