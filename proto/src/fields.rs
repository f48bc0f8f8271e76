//! Top-level fields of a JSON object set and removed as splices: every byte that belongs to none of them stays.
//!
//! A name is one field however often the object has it, however its key is escaped, and whatever its case: an upstream may take the
//! first or the last of two, or not mind the case, so none is left as it was.

use std::collections::HashSet;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use crate::json::{JsonError, Scanner, ValueKind};
use crate::request::names::folded;
use crate::splice::Edit;

/// What is to become of the fields of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldEdits {
    set: Vec<Field>,
    remove: Vec<Box<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: Box<str>,
    value: Bytes,
}

/// A text that is no JSON value, or one that is nested so deep that it could not stand in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAValue(#[from] JsonError);

impl FieldEdits {
    /// Sets `name` to `value`, a JSON text, in the place of what was to become of it before.
    ///
    /// # Errors
    /// [`NotAValue`] where the text is no JSON value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), NotAValue> {
        let mut scanner = Scanner::within_an_object(value.as_bytes());
        let span = scanner.skip()?;
        scanner.finish()?;
        self.forget(name);
        let value = Bytes::copy_from_slice(value.as_bytes().get(span).unwrap_or_default());
        self.set.push(Field { name: name.into(), value });
        Ok(())
    }

    /// Removes `name`, in the place of what was to become of it before.
    pub fn remove(&mut self, name: &str) {
        self.forget(name);
        self.remove.push(name.into());
    }

    /// These edits where `closer` has none of the same field.
    #[must_use]
    pub fn overruled_by(&self, closer: &Self) -> Self {
        let mut all = self.clone();
        for name in closer.names() {
            all.forget(name);
        }
        all.set.extend(closer.set.iter().cloned());
        all.remove.extend(closer.remove.iter().cloned());
        all
    }

    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    /// Whether the field is removed.
    pub fn removes(&self, name: &str) -> bool {
        self.remove.iter().any(|removed| &**removed == name)
    }

    /// The fields that are set or removed.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.set.iter().map(|field| &*field.name).chain(self.remove.iter().map(|name| &**name))
    }

    /// The edits of `body` that set and remove the fields. `None` where it is no JSON object: there are no fields in it.
    pub fn edits(&self, body: &[u8]) -> Option<Vec<Edit>> {
        let Object { members, opened_at } = Object::scan(body, self).ok()??;
        let mut edits = Vec::new();
        let mut done = HashSet::new();
        // A field that is there twice is set once.
        let stays = |member: &Member, done: &mut HashSet<usize>| match member.fate {
            Fate::Keep => true,
            Fate::Remove => false,
            Fate::Set(field) => done.insert(field),
        };
        let stay: Vec<bool> = members.iter().map(|member| stays(member, &mut done)).collect();
        let last_kept = stay.iter().rposition(|stays| *stays);
        for (index, (member, stays)) in members.iter().zip(&stay).enumerate() {
            match member.fate {
                Fate::Set(field) if *stays => edits.extend(self.replacement(field, &member.value, body)),
                _ if *stays => {}
                // The comma that goes is the one behind it. Those behind the last that stays go all at once.
                _ if last_kept.is_some_and(|last| index < last) => {
                    let next = members.get(index + 1).map_or(member.value.end, |next| next.start);
                    edits.push(removal(member.start..next));
                }
                _ => {}
            }
        }
        let added = self.set.iter().enumerate().filter(|(field, _)| !done.contains(field)).map(|(_, field)| field);
        let end = members.last().map_or(opened_at, |last| last.value.end);
        let tail = match last_kept.and_then(|last| members.get(last)) {
            Some(last) => last.value.end..end,
            None => opened_at..end,
        };
        let text = Field::written(added, last_kept.is_some());
        if !tail.is_empty() || !text.is_empty() {
            edits.push(Edit { span: tail, replacement: text });
        }
        Some(edits)
    }

    fn replacement(&self, field: usize, span: &Range<usize>, body: &[u8]) -> Option<Edit> {
        let value = &self.set.get(field)?.value;
        let differs = body.get(span.clone()) != Some(value);
        differs.then(|| Edit { span: span.clone(), replacement: value.clone() })
    }

    fn fate(&self, key: &[u8]) -> Fate {
        if let Some(field) = self.set.iter().position(|field| field.name.as_bytes() == key) {
            return Fate::Set(field);
        }
        if self.remove.iter().any(|name| name.as_bytes() == key) {
            return Fate::Remove;
        }
        // In another spelling it goes, and what is set stands under the name that the operator wrote.
        let folded_key = folded(key);
        if self.names().any(|name| folded(name.as_bytes()) == folded_key) { Fate::Remove } else { Fate::Keep }
    }

    fn forget(&mut self, name: &str) {
        self.set.retain(|field| &*field.name != name);
        self.remove.retain(|removed| &**removed != name);
    }
}

impl Field {
    /// As members of an object, after others or as its first.
    fn written<'a>(fields: impl Iterator<Item = &'a Self>, follow_others: bool) -> Bytes {
        let mut text = BytesMut::new();
        for Self { name, value } in fields {
            if follow_others || !text.is_empty() {
                text.put_u8(b',');
            }
            text.put_slice(serde_json::Value::from(&**name).to_string().as_bytes());
            text.put_u8(b':');
            text.put_slice(value);
        }
        text.freeze()
    }
}

fn removal(span: Range<usize>) -> Edit {
    Edit { span, replacement: Bytes::new() }
}

/// The members of the object that a body is.
struct Object {
    members: Vec<Member>,
    /// Right after the brace.
    opened_at: usize,
}

struct Member {
    /// Where the key's quote opens.
    start: usize,
    value: Range<usize>,
    fate: Fate,
}

#[derive(Clone, Copy)]
enum Fate {
    Keep,
    Remove,
    /// The index of the field that it is set to.
    Set(usize),
}

impl Object {
    fn scan(body: &[u8], edits: &FieldEdits) -> Result<Option<Self>, JsonError> {
        let mut scanner = Scanner::new(body);
        if scanner.peek()? != ValueKind::Object {
            return Ok(None);
        }
        scanner.open()?;
        let opened_at = scanner.offset();
        let mut members = Vec::new();
        while let Some(key) = scanner.next_key()? {
            let fate = edits.fate(&key.text(body));
            let value = scanner.skip()?;
            members.push(Member { start: key.quoted().start, value, fate });
        }
        scanner.finish()?;
        Ok(Some(Self { members, opened_at }))
    }
}

#[cfg(test)]
mod tests;
