//! What an image, a sound, a video or a file is: where its URL, its data or its id lies.

use super::{Prompt, text};
use crate::json::{StringSpan, ValueKind};
use crate::request::{ScanError, Segment, SegmentForm, SegmentKind};

/// Where media are told apart, the most telling first: by what they are, by where they are, by what a server calls them.
const IDENTITIES: [&str; 5] = ["data", "file_data", "url", "file_url", "file_id"];

/// The strings by which a thing may be known, found in its object in any order.
#[derive(Default)]
pub(super) struct Identity {
    found: [Option<StringSpan>; IDENTITIES.len()],
}

impl Identity {
    /// Where the string of that name goes; `None` if it identifies nothing.
    pub(super) fn slot(&mut self, name: &[u8]) -> Option<&mut Option<StringSpan>> {
        IDENTITIES.iter().zip(&mut self.found).find(|(known, _)| known.as_bytes() == name).map(|(_, slot)| slot)
    }

    /// The most telling of those that were found.
    pub(super) fn best(self) -> Option<StringSpan> {
        self.found.into_iter().flatten().next()
    }
}

impl Prompt<'_, '_> {
    /// Reads what carries media, which comes next: a URL or data as such, or an object with it. `detail`, `format` and the
    /// like make no difference; a form that we do not know is raw.
    pub(super) fn media(&mut self) -> Result<Segment, ScanError> {
        let start = self.scanner.peek().map(|kind| (kind, self.scanner.offset()))?;
        let kind = SegmentKind::Media;
        match start {
            (ValueKind::String, _) => Ok(text(kind, self.scanner.string()?)),
            (ValueKind::Object, start) => {
                let mut identity = Identity::default();
                self.members(&IDENTITIES, |prompt, name, value| match identity.slot(name) {
                    Some(slot) if value == ValueKind::String => {
                        *slot = Some(prompt.scanner.string()?);
                        Ok(())
                    }
                    _ => prompt.skip(),
                })?;
                let raw = Segment { kind, span: start..self.scanner.offset(), form: SegmentForm::Raw };
                Ok(identity.best().map_or(raw, |string| text(kind, string)))
            }
            _ => Ok(Segment { kind, span: self.scanner.skip()?, form: SegmentForm::Raw }),
        }
    }
}
