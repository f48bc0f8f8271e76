//! The one way in which fields are read out of a tree: whoever takes a field says its name, and what nobody took is told to
//! the operator. Every fault is reported where it is found and reading goes on, so that one run shows them all.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::diagnostic::{Diagnostic, Location, Severity, Source};
use super::node::{Entry, Node, Value};

/// What can be read from a node. `None` says that an error was reported, or a warning that this is not served here.
pub(super) trait FromNode: Sized {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self>;
}

/// The findings in one file.
pub(super) struct Log {
    source: Arc<Source>,
    /// The field that is being read, for messages.
    field: &'static str,
    findings: Vec<Diagnostic>,
    /// Those that were left out.
    more: usize,
    has_errors: bool,
}

/// What is told of one object. Nobody mends more at once, and an alias may stand for the same mistake a million times.
const MAX_FINDINGS: usize = 1_000;

impl Log {
    pub(super) fn new(source: &Arc<Source>) -> Self {
        Self { source: Arc::clone(source), field: "", findings: Vec::new(), more: 0, has_errors: false }
    }

    pub(super) fn push(&mut self, finding: Diagnostic) {
        self.has_errors |= finding.is_error();
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        } else {
            self.more += 1;
        }
    }

    /// Reports an error in the value at `node` and gives the `None` that [`FromNode`] wants.
    pub(super) fn fail<T>(&mut self, node: &Node, message: impl fmt::Display, help: impl Into<String>) -> Option<T> {
        let location = self.location(node);
        let message = match self.field {
            "" => message.to_string(),
            field => format!("`{field}`: {message}"),
        };
        self.push(Diagnostic::error(&location, message).with_help(help));
        None
    }

    /// Warns of a value at `node` that is right and means something that is not served here, and gives the `None` that
    /// [`FromNode`] wants: with no error beside it, the object is left out, whatever it was before.
    pub(super) fn leave_out<T>(
        &mut self,
        node: &Node,
        message: impl fmt::Display,
        help: impl Into<String>,
    ) -> Option<T> {
        let location = self.location(node);
        self.push(Diagnostic::warning(&location, message.to_string()).with_help(help));
        None
    }

    pub(super) fn location(&self, node: &Node) -> Location {
        self.at(node.span.clone())
    }

    pub(super) fn at(&self, span: Range<usize>) -> Location {
        Location::new(&self.source, span)
    }

    pub(super) fn has_errors(&self) -> bool {
        self.has_errors
    }

    pub(super) fn into_findings(mut self) -> Vec<Diagnostic> {
        if let Some(location) = self.findings.last().and_then(|last| last.location.clone()).filter(|_| self.more > 0) {
            let message = format!("this object has {} further findings, which are not told", self.more);
            self.findings.push(match self.has_errors {
                true => Diagnostic::error(&location, message),
                false => Diagnostic::warning(&location, message),
            });
        }
        self.findings
    }
}

/// A mapping that is being read.
pub(super) struct Fields<'a> {
    node: &'a Node,
    entries: &'a [Entry],
    log: &'a mut Log,
    known: Vec<&'static str>,
    /// Those without which more is meant than with them.
    narrowing: &'static [&'static str],
}

impl<'a> Fields<'a> {
    /// Reads a mapping with `read`, then warns of the fields that `read` did not ask for.
    pub(super) fn read<T>(node: &Node, log: &mut Log, read: impl FnOnce(&mut Fields<'_>) -> Option<T>) -> Option<T> {
        Self::peek(node, log, |fields| {
            let value = read(fields);
            fields.report_leftovers(Severity::Warning);
            value
        })
    }

    /// The same for a mapping of conditions: one that nobody asked for is an error, for without it more would be meant.
    pub(super) fn read_strictly<T>(
        node: &Node,
        log: &mut Log,
        read: impl FnOnce(&mut Fields<'_>) -> Option<T>,
    ) -> Option<T> {
        Self::peek(node, log, |fields| {
            let value = read(fields);
            fields.report_leftovers(Severity::Error);
            value
        })
    }

    /// Reads some fields of a mapping that is read again later, or is not ours to judge.
    pub(super) fn peek<T>(node: &Node, log: &mut Log, read: impl FnOnce(&mut Fields<'_>) -> Option<T>) -> Option<T> {
        let Value::Mapping(entries) = &node.value else {
            return log.fail(
                node,
                format!("expected a mapping, found {}", describe(node)),
                "write `field: value` lines",
            );
        };
        read(&mut Fields { node, entries, log, known: Vec::new(), narrowing: &[] })
    }

    /// An optional field. Null counts as absent, as it does in Kubernetes.
    pub(super) fn take<T: FromNode>(&mut self, name: &'static str) -> Option<T> {
        self.take_with(name, T::from_node)
    }

    /// An optional field, read by a function.
    pub(super) fn take_with<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Node, &mut Log) -> Option<T>,
    ) -> Option<T> {
        let entry = self.find(name).filter(|entry| !entry.value.is_null())?;
        let outer = std::mem::replace(&mut self.log.field, name);
        let value = read(&entry.value, self.log);
        self.log.field = outer;
        value
    }

    /// An optional list; absent is empty.
    pub(super) fn list<T: FromNode>(&mut self, name: &'static str) -> Option<Vec<T>> {
        if self.has(name) { self.take(name) } else { Some(Vec::new()) }
    }

    /// The same; of more items than the CRD takes, which Kubernetes refuses, there is a warning.
    pub(super) fn list_of_at_most<T: FromNode>(&mut self, name: &'static str, most: usize) -> Option<Vec<T>> {
        self.warn_above(name, most);
        self.list(name)
    }

    /// Warns of a list that has more items than the CRD takes.
    pub(super) fn warn_above(&mut self, name: &'static str, most: usize) {
        let Some(entry) = self.find(name) else { return };
        if let Value::Sequence(items) = &entry.value.value
            && let Some(first) = items.get(most)
        {
            let here = self.log.location(first);
            let message = format!("`{name}` has {} items: in Kubernetes it takes at most {most}", items.len());
            self.log.push(Diagnostic::warning(&here, message).with_help("put those that follow into another object"));
        }
    }

    /// A field that must be there.
    pub(super) fn require<T: FromNode>(&mut self, name: &'static str) -> Option<T> {
        self.require_with(name, T::from_node)
    }

    /// A field that must be there, read by a function.
    pub(super) fn require_with<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Node, &mut Log) -> Option<T>,
    ) -> Option<T> {
        if self.has(name) {
            return self.take_with(name, read);
        }
        let span = self.find(name).map_or_else(|| self.node.span.clone(), |entry| entry.key_span.clone());
        let missing = Diagnostic::error(&self.log.at(span), format!("`{name}` is missing"));
        self.log.push(missing.with_help(format!("write `{name}:` and its value")));
        None
    }

    /// A list that must have something in it.
    pub(super) fn require_list<T: FromNode>(&mut self, name: &'static str) -> Option<Vec<T>> {
        if let Some(entry) = self.find(name)
            && matches!(&entry.value.value, Value::Sequence(items) if items.is_empty())
        {
            self.reject(name, format!("`{name}` is empty"), "list at least one");
            return None;
        }
        self.require(name)
    }

    /// Makes it an error to misspell one of these: the object would mean more without it.
    pub(super) fn narrowed_by(&mut self, names: &'static [&'static str]) {
        self.narrowing = names;
    }

    /// Fields that are rightly there and say nothing to us.
    pub(super) fn accept(&mut self, names: &[&'static str]) {
        self.known.extend(names);
    }

    /// A field that we know and do not support: a warning, if it is there.
    pub(super) fn unsupported(&mut self, name: &'static str, consequence: &str) {
        if let Some(entry) = self.find(name) {
            let here = self.log.at(entry.key_span.clone());
            let message = format!("`{name}` is known but not supported yet: {consequence}");
            self.log.push(Diagnostic::warning(&here, message).with_help("leave it for later, or remove it"));
        }
    }

    /// Whether the field is there, right or wrong.
    pub(super) fn has(&mut self, name: &'static str) -> bool {
        self.find(name).is_some_and(|entry| !entry.value.is_null())
    }

    /// Whether an unknown field was probably meant to be this one. To be asked when all fields were read.
    pub(super) fn has_misspelt(&self, name: &'static str) -> bool {
        let unknown = self.entries.iter().filter(|entry| !self.known.contains(&&*entry.key));
        unknown.into_iter().any(|entry| meant(&entry.key, &self.known) == Some(name))
    }

    /// Where the mapping begins.
    pub(super) fn here(&self) -> Location {
        self.log.location(self.node)
    }

    /// Where the field's value is, or else the mapping.
    pub(super) fn location(&self, name: &str) -> Location {
        let entry = self.entries.iter().find(|entry| &*entry.key == name);
        entry.map_or_else(|| self.here(), |entry| self.log.location(&entry.value))
    }

    /// Reports an error in the mapping and gives the `None` that [`FromNode`] wants.
    pub(super) fn fail<T>(&mut self, message: impl Into<String>, help: impl Into<String>) -> Option<T> {
        let here = self.here();
        self.push(Diagnostic::error(&here, message).with_help(help));
        None
    }

    /// Warns that this part of an object is not served here.
    pub(super) fn leave_out(&mut self, message: impl Into<String>, help: impl Into<String>) {
        let here = self.here();
        self.push(Diagnostic::warning(&here, message).with_help(help));
    }

    /// Reports an error in a field.
    pub(super) fn reject(&mut self, name: &str, message: impl Into<String>, help: impl Into<String>) {
        let location = self.location(name);
        self.push(Diagnostic::error(&location, message).with_help(help));
    }

    pub(super) fn push(&mut self, finding: Diagnostic) {
        self.log.push(finding);
    }

    fn find(&mut self, name: &'static str) -> Option<&'a Entry> {
        self.known.push(name);
        self.entries.iter().find(|entry| &*entry.key == name)
    }

    /// The number that was meant by `limit: 1,000` within braces, where `000` has become a field: with the field before it.
    fn cut_number(&self, key: &str) -> Option<String> {
        let at = self.entries.iter().position(|entry| &*entry.key == key)?;
        let (entry, before) = (self.entries.get(at)?, self.entries.get(at.checked_sub(1)?)?);
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_cut = is_digits(key) && entry.value.is_null();
        is_cut.then(|| format!("{}: {},{key}", before.key, describe(&before.value).trim_matches('`')))
    }

    fn report_leftovers(&mut self, severity: Severity) {
        for Entry { key, key_span, .. } in self.entries.iter().filter(|entry| !self.known.contains(&&*entry.key)) {
            let here = self.log.at(key_span.clone());
            if let Some(number) = self.cut_number(key) {
                let message = format!("a comma ends a value here: of `{number}` only the digits before it are read");
                self.log.push(Diagnostic::error(&here, message).with_help("write the number without commas"));
                continue;
            }
            let message = format!("unknown field {}", quote(key));
            let meant = meant(key, &self.known);
            let severity =
                if meant.is_some_and(|meant| self.narrowing.contains(&meant)) { Severity::Error } else { severity };
            let unknown = match severity {
                Severity::Warning => Diagnostic::warning(&here, message),
                Severity::Error => Diagnostic::error(&here, message),
            };
            let help = match meant {
                _ if &**key == "<<" => "merge keys are not YAML 1.2: write the fields out".to_owned(),
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "it has no effect; remove it".to_owned(),
            };
            self.log.push(unknown.with_help(help));
        }
    }
}

/// What was found instead of what was expected: its text, or that it is a collection.
pub(super) fn describe(node: &Node) -> String {
    match &node.value {
        Value::Quoted(text) => format!("the text {}", quote(text)),
        Value::Plain(_) if node.is_null() => "nothing".to_owned(),
        Value::Plain(text) => quote(text),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
    }
}

/// The operator's text inside a message: in backticks, one line, not endless.
pub(super) fn quote(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let mut shown: String = text.chars().take(MAX_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// The field that was probably meant: one that is written alike, or begins alike, as `pricing` and `prices` do.
fn meant(key: &str, known: &[&'static str]) -> Option<&'static str> {
    /// So much of the longer of the two, and never fewer letters.
    const HALF: usize = 2;
    const LETTERS: usize = 4;
    let beginning = |name: &&'static str| name.bytes().zip(key.bytes()).take_while(|(a, b)| a == b).count();
    let begins_alike =
        |name: &&'static str| beginning(name) >= LETTERS && beginning(name) * HALF >= name.len().max(key.len());
    closest(key, known.iter().copied())
        .or_else(|| known.iter().copied().filter(begins_alike).max_by_key(|name| beginning(name)))
}

/// The candidate that was probably meant.
pub(super) fn closest<'a>(wanted: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// From here on a name reads as a slip of the other: `foo` and `for` differ in one letter of three.
    const ALIKE: f64 = 0.6;
    /// The comparison is quadratic, and nobody means a text of this length.
    const MAX_BYTES: usize = 256;
    if wanted.len() > MAX_BYTES {
        return None;
    }
    let wanted = wanted.to_lowercase();
    candidates
        .filter(|candidate| candidate.len() <= MAX_BYTES)
        .map(|candidate| (strsim::normalized_damerau_levenshtein(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
