//! YAML text into trees of nodes that know where they stand.
//!
//! It is built on the events of granit-parser, the parser below serde-saphyr, and not on serde: serde cannot say which fields
//! were *not* read and where they stand, stops at the first error, and ties the shape of documents to that of our types.
//!
//! Bounded in every direction: nesting, and what aliases add ("billion laughs"); a file itself is bounded where it is read.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::diagnostic::{Diagnostic, Location, Source};

/// Nested collections, aliases expanded. Our kinds need 8; recursion over a tree stays shallow.
const MAX_DEPTH: usize = 64;

/// What the anchors and aliases of one text may copy, in nodes and bytes. Of a text, not of a document: 150 bytes of aliases are
/// enough to spend it, and a file has room for 100,000 documents of that size.
const COPY_BUDGET: usize = 1024 * 1024;

/// What a text held.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The documents up to the first fault in the syntax, without empty ones.
    pub(super) documents: Vec<Document>,
    /// That fault.
    pub(super) broken: Option<Diagnostic>,
}

/// One document.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) source: Arc<Source>,
    pub(super) root: Node,
    /// Faults that leave the tree readable: keys that are there twice.
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) value: Value,
    /// In bytes; of a collection its first key or item, which is what a reader looks at.
    pub(super) span: Range<usize>,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Without quotes it may be a number, a boolean or null as well.
    Plain(Arc<str>),
    /// A string, whatever it looks like.
    Quoted(Arc<str>),
    Sequence(Vec<Node>),
    Mapping(Vec<Entry>),
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: Arc<str>,
    pub(super) key_span: Range<usize>,
    pub(super) value: Node,
}

/// Reads all documents of a text.
pub(super) fn parse(source: &Arc<Source>) -> Parsed {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut builder = Builder::new(source);
    for event in Parser::new_from_str_with_options(source.inner(), options) {
        let taken = match event {
            Ok((event, span)) => builder.take(event, &span),
            Err(error) => {
                let at = error.marker().byte_offset().unwrap_or_default().min(source.inner().len());
                Err(Diagnostic::error(&Location::new(source, at..at), format!("this is not YAML: {}", error.info())))
            }
        };
        if let Err(fault) = taken {
            let broken = fault.with_help("from here to its end, nothing of this file is read");
            return Parsed { documents: builder.documents, broken: Some(broken) };
        }
    }
    Parsed { documents: builder.documents, broken: None }
}

impl Node {
    /// The scalar's text, whatever its type; `None` for collections.
    pub(super) fn text(&self) -> Option<&Arc<str>> {
        match &self.value {
            Value::Plain(text) | Value::Quoted(text) => Some(text),
            Value::Sequence(_) | Value::Mapping(_) => None,
        }
    }

    /// Nothing, `~` or `null`: what Kubernetes takes for an absent field.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Plain(text) if matches!(&**text, "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The value of `key`, if this is a mapping that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        let Value::Mapping(entries) = &self.value else { return None };
        entries.iter().find(|entry| &*entry.key == key).map(|entry| &entry.value)
    }

    fn size(&self) -> Size {
        match &self.value {
            Value::Plain(text) | Value::Quoted(text) => Size { weight: 1 + text.len(), depth: 0 },
            Value::Sequence(items) => Size::around(items.iter().map(Node::size)),
            Value::Mapping(entries) => Size::around(entries.iter().map(|entry| {
                let Size { weight, depth } = entry.value.size();
                Size { weight: weight + entry.key.len(), depth }
            })),
        }
    }
}

/// What a subtree costs when it is copied.
struct Size {
    weight: usize,
    depth: usize,
}

impl Size {
    fn around(children: impl Iterator<Item = Size>) -> Self {
        children.fold(Self { weight: 1, depth: 1 }, |sum, child| Self {
            weight: sum.weight + child.weight,
            depth: sum.depth.max(1 + child.depth),
        })
    }
}

/// A collection that is not closed yet.
struct Open {
    collection: Collection,
    anchor: usize,
    span: Range<usize>,
}

enum Collection {
    Sequence(Vec<Node>),
    Mapping { entries: Vec<Entry>, key: Option<Node> },
}

/// Events into documents.
struct Builder<'a> {
    source: &'a Arc<Source>,
    documents: Vec<Document>,
    open: Vec<Open>,
    /// The nodes of this document that aliases may stand for, by the parser's number of their anchor.
    anchors: HashMap<usize, Node>,
    copy_budget: usize,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Builder<'a> {
    fn new(source: &'a Arc<Source>) -> Self {
        Self {
            source,
            documents: Vec::new(),
            open: Vec::new(),
            anchors: HashMap::new(),
            copy_budget: COPY_BUDGET,
            diagnostics: Vec::new(),
        }
    }

    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), Diagnostic> {
        let span = span.byte_range().unwrap_or_default();
        match event {
            Event::DocumentStart(..) => self.anchors.clear(),
            Event::Scalar(text, style, anchor, tag) => {
                // The reader of a field knows the type it wants; of all tags only `!!str` says more than the text does.
                // A document that is a tag alone is not empty: it was cut off.
                let is_text = |tag: &Tag| self.open.is_empty() || tag.is_yaml_core_schema_tag("str");
                let plain = style == ScalarStyle::Plain && !tag.is_some_and(|tag| is_text(&tag));
                let value = if plain { Value::Plain(text.into()) } else { Value::Quoted(text.into()) };
                self.close(Node { value, span }, anchor)?;
            }
            Event::Alias(anchor) => {
                let node = self.resolve(anchor, &span)?;
                self.close(node, 0)?;
            }
            Event::SequenceStart(_, anchor, _) => self.start(Collection::Sequence(Vec::new()), anchor, span)?,
            Event::MappingStart(_, anchor, _) => {
                self.start(Collection::Mapping { entries: Vec::new(), key: None }, anchor, span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    let (node, anchor) = self.finish(open);
                    self.close(node, anchor)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, collection: Collection, anchor: usize, span: Range<usize>) -> Result<(), Diagnostic> {
        self.open.push(Open { collection, anchor, span: span.clone() });
        self.check_depth(self.open.len(), &span)
    }

    /// What an alias stands for.
    fn resolve(&mut self, anchor: usize, span: &Range<usize>) -> Result<Node, Diagnostic> {
        let Some(node) = self.anchors.remove(&anchor) else {
            let here = Location::new(self.source, span.clone());
            return Err(Diagnostic::error(&here, "this alias is inside what it stands for"));
        };
        let copy = self.copy(&node, span)?;
        self.anchors.insert(anchor, node);
        self.check_depth(self.open.len() + copy.size().depth, span)?;
        Ok(copy)
    }

    /// A copy, if the document can afford it.
    fn copy(&mut self, node: &Node, span: &Range<usize>) -> Result<Node, Diagnostic> {
        match self.copy_budget.checked_sub(node.size().weight) {
            Some(left) => {
                self.copy_budget = left;
                Ok(node.clone())
            }
            None => {
                let here = Location::new(self.source, span.clone());
                let message = format!("the anchors and aliases of this file stand for more than {COPY_BUDGET} bytes");
                Err(Diagnostic::error(&here, message))
            }
        }
    }

    fn check_depth(&self, depth: usize, span: &Range<usize>) -> Result<(), Diagnostic> {
        if depth <= MAX_DEPTH {
            return Ok(());
        }
        let here = Location::new(self.source, span.clone());
        Err(Diagnostic::error(&here, format!("collections are nested more than {MAX_DEPTH} deep")))
    }

    fn finish(&mut self, open: Open) -> (Node, usize) {
        let Open { collection, anchor, span } = open;
        let (value, head) = match collection {
            Collection::Sequence(items) => {
                let head = items.first().map(|item| item.span.clone());
                (Value::Sequence(items), head)
            }
            Collection::Mapping { entries, .. } => {
                let head = entries.first().map(|entry| entry.key_span.clone());
                self.report_duplicates(&entries);
                (Value::Mapping(entries), head)
            }
        };
        (Node { value, span: head.unwrap_or(span) }, anchor)
    }

    /// Puts a complete node where it belongs: into the open collection, or at the document's root.
    fn close(&mut self, node: Node, anchor: usize) -> Result<(), Diagnostic> {
        if anchor != 0 {
            let copy = self.copy(&node, &node.span)?;
            self.anchors.insert(anchor, copy);
        }
        match self.open.last_mut().map(|open| &mut open.collection) {
            Some(Collection::Sequence(items)) => items.push(node),
            Some(Collection::Mapping { entries, key }) => match key.take() {
                None => *key = Some(node),
                Some(key) => match key.text() {
                    Some(text) => entries.push(Entry { key: Arc::clone(text), key_span: key.span, value: node }),
                    None => {
                        let here = Location::new(self.source, key.span);
                        let error = Diagnostic::error(&here, "a key must be text, not a list or a mapping");
                        self.diagnostics.push(error.with_help("write `field: value` lines"));
                    }
                },
            },
            None => {
                let diagnostics = std::mem::take(&mut self.diagnostics);
                if !node.is_null() || anchor != 0 {
                    self.documents.push(Document { source: Arc::clone(self.source), root: node, diagnostics });
                }
            }
        }
        Ok(())
    }

    fn report_duplicates(&mut self, entries: &[Entry]) {
        let mut seen = HashMap::new();
        for Entry { key, key_span, .. } in entries {
            if let Some(first) = seen.insert(&**key, key_span) {
                let first = Location::new(self.source, first.clone());
                let here = Location::new(self.source, key_span.clone());
                self.diagnostics.push(
                    Diagnostic::error(&here, format!("`{key}` is here twice"))
                        .with_help(format!("the first is in line {}; remove one of them", first.line())),
                );
            }
        }
    }
}
