//! What is wrong with the operator's documents: where, how bad, and the way out.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{LabeledSpan, SourceCode};

use super::excerpt;
pub(super) use super::text::Source;

/// One finding.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    /// Whether it cost the object.
    pub severity: Severity,
    /// What is wrong, with the field and the value.
    pub message: String,
    /// The way out.
    pub help: Option<String>,
    /// Where; `None` where it is about no place in particular.
    pub location: Option<Location>,
    /// Whether it would be there without another finding.
    pub origin: Origin,
}

/// Whether a [`Diagnostic`] is mended where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// It is.
    Itself,
    /// It is not: it goes when another one is mended, and is read after that.
    Another,
}

/// How bad a [`Diagnostic`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Something in the documents has no effect, or perhaps not the one that was meant.
    Warning,
    /// An object is wrong: it is left out, or keeps its last good state.
    Error,
}

impl Diagnostic {
    pub(super) fn error(location: &Location, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            message: excerpt::of_message(message.into()),
            help: None,
            location: Some(location.clone()),
            origin: Origin::Itself,
        }
    }

    pub(super) fn warning(location: &Location, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(location, message) }
    }

    /// A finding about no place in a file.
    pub(super) fn general(severity: Severity, message: impl Into<String>) -> Self {
        let message = excerpt::of_message(message.into());
        Self { severity, message, help: None, location: None, origin: Origin::Itself }
    }

    pub(super) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// What follows from another finding.
    pub(super) fn following_from_another(self) -> Self {
        Self { origin: Origin::Another, ..self }
    }

    /// Whether it cost the object.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Whether the lines around it may be shown, all of them.
    pub(super) fn shows_its_line(&self) -> bool {
        self.location.as_ref().is_none_or(|location| location.line == Line::Shown && location.is_cheap_to_show())
    }

    /// The finding for a log or a pipe: `file:line:column: error: message`, the line itself, and the help.
    pub fn plain(&self) -> impl fmt::Display + '_ {
        Plain(self)
    }
}

/// The message alone, as miette wants it.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Diagnostic {}

impl miette::Diagnostic for Diagnostic {
    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.severity {
            Severity::Warning => miette::Severity::Warning,
            Severity::Error => miette::Severity::Error,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        let location = self.location.as_ref().filter(|location| location.line == Line::Shown)?;
        Some(location.source.named())
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.location.as_ref()?.span.clone();
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(None, span))))
    }
}

struct Plain<'a>(&'a Diagnostic);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { severity, message, help, location, origin: _ } = self.0;
        if let Some(location) = location {
            write!(f, "{location}: ")?;
        }
        let severity = match severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {message}")?;
        if let Some(line) = location.as_ref().and_then(Location::line_text) {
            write!(f, "\n  | {line}")?;
        }
        match help {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

/// As far into a file as lines are shown with those around them.
const LATEST_SHOWN_BYTES: usize = 1024 * 1024;

/// A place in a file. Displayed as `file:line:column`.
#[derive(Debug, Clone)]
pub struct Location {
    source: Arc<Source>,
    /// In bytes.
    span: Range<usize>,
    line: Line,
}

/// Whether a report may show the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Shown,
    Secret,
}

impl Location {
    pub(super) fn new(source: &Arc<Source>, span: Range<usize>) -> Self {
        Self { source: Arc::clone(source), span, line: Line::Shown }
    }

    /// The place of what may be a secret: reports name it and do not show it.
    pub(super) fn secret(self) -> Self {
        Self { line: Line::Secret, ..self }
    }

    /// Whether its file has an object of the kind `Secret`, whatever else is wrong there.
    pub(super) fn may_be_beside_a_secret(&self) -> bool {
        let text = self.source.inner();
        text.match_indices("Secret").any(|(at, _)| {
            let before = text.get(..at).unwrap_or_default();
            let before = before.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, ':' | '"' | '\''));
            before.ends_with("kind")
        }) || text.contains("stringData")
    }

    /// The same for all places in one reading of a file.
    pub(super) fn text_identity(&self) -> *const Source {
        Arc::as_ptr(&self.source)
    }

    /// The path, as it was given or found.
    pub fn file(&self) -> &str {
        self.source.name()
    }

    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.source.line_of(self.span.start).0
    }

    /// The column in characters, from 1.
    pub fn column(&self) -> usize {
        let (_, start) = self.source.line_of(self.span.start);
        self.source.inner().get(start..self.span.start).unwrap_or_default().chars().count() + 1
    }

    /// How findings are put in order.
    pub(super) fn sort_key(&self) -> (&str, usize) {
        (self.file(), self.span.start)
    }

    fn line_text(&self) -> Option<Cow<'_, str>> {
        if self.line == Line::Secret {
            return None;
        }
        let (_, start) = self.source.line_of(self.span.start);
        let line = self.source.inner().get(start..)?.lines().next()?;
        Some(excerpt::of_line(line, self.span.start - start))
    }

    /// Whether a report may show its line and those above and below at a bearable cost: to find and print them takes as long as
    /// the text before them and as they are themselves.
    fn is_cheap_to_show(&self) -> bool {
        let (_, start) = self.source.line_of(self.span.start);
        let (_, above) = self.source.line_of(start.saturating_sub(1));
        let mut lines = self.source.inner().get(above..).unwrap_or_default().lines().take(3);
        self.span.start < LATEST_SHOWN_BYTES && lines.all(|line| line.chars().nth(excerpt::MAX_LINE_CHARS).is_none())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file(), self.line(), self.column())
    }
}
