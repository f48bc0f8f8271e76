//! The canonical prefix stream: what a request's prompt is for a cache, whatever its JSON looked like.
//!
//! Segments come in the order in which a chat template prints them, not in the document's. Each is framed as kind (1 byte),
//! bytes, length (u32, little endian). The length comes last so that a text which grows keeps its beginning: two questions
//! after one long document in the same message share all blocks of the document. Time is linear in the body; memory is the
//! chain, a block, and the text of a system's prompt that has escapes.

mod mask;
mod raw;
mod scope;

use std::fmt;

use attache_proto::json::unescape_each;
use attache_proto::request::{Segment, SegmentForm, SegmentKind};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::blocks::{Chunker, MAX_BLOCKS, PrefixChain};
use crate::limit::MEDIA_TOKENS;
pub use mask::{MaskError, Masks};
pub use scope::PrefixScope;

/// Counts up whenever the same request would give another stream, so that sidecars of two versions never take each other's
/// hashes for their own.
pub const CANON_VERSION: u32 = 2;

/// What an image weighs in the stream, in bytes, so that it weighs in blocks what it weighs in a cache: as much as text of as
/// many tokens as it is taken to have, at four bytes a token.
const MEDIA_BYTES: usize = 4 * MEDIA_TOKENS as usize;

/// How prompts are read: the same in all sidecars that are to agree with each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canon {
    /// What at the head of a system's text is another in every request.
    pub masks: Masks,
    /// How many blocks of a chain are kept; never more than [`MAX_BLOCKS`].
    pub max_blocks: usize,
    /// What the hashes begin with.
    pub secret_seed: SecretSeed,
}

/// What all hashes of prompts begin with, so that nobody who sees them can try out what the prompts were; 0 without a secret.
/// The same in all sidecars. Never shown.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct SecretSeed(pub u64);

impl fmt::Debug for SecretSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretSeed(..)")
    }
}

impl Default for Canon {
    fn default() -> Self {
        Self { masks: Masks::default(), max_blocks: MAX_BLOCKS, secret_seed: SecretSeed::default() }
    }
}

/// What a request's prompt is for a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The prompt's blocks.
    pub chain: PrefixChain,
    /// The hash of the body's `cache_salt`, if it has one: prompts with different salts share no cache.
    pub cache_salt: Option<u64>,
    /// The hash of what the server knows the earlier turns by: `conversation`, or else `previous_response_id`.
    pub explicit: Option<u64>,
}

/// One segment as it went into the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// What it is.
    pub kind: SegmentKind,
    /// Its length in the body, in bytes.
    pub sent_bytes: usize,
    /// How many bytes it gave the stream, its frame included. 0 where it is no part of the prompt.
    pub stream_bytes: u64,
}

impl Canon {
    /// A canon with these masks instead of the default ones: regular expressions over bytes.
    ///
    /// # Errors
    /// [`MaskError`] with the first pattern that is none.
    pub fn new<P: AsRef<str>>(masks: &[P]) -> Result<Self, MaskError> {
        Ok(Self { masks: Masks::new(masks)?, ..Self::default() })
    }

    /// Reads the prompt that `segments` of `body` make, as [`attache_proto::request::scan`] found them.
    pub fn read(&self, segments: &[Segment], body: &[u8]) -> Prompt {
        self.read_each(segments, body, |_| {})
    }

    /// The same, and what each segment gave.
    pub fn measure(&self, segments: &[Segment], body: &[u8]) -> (Prompt, Vec<Measured>) {
        let mut measured = Vec::with_capacity(segments.len());
        let prompt = self.read_each(segments, body, |segment| measured.push(segment));
        (prompt, measured)
    }

    fn read_each(&self, segments: &[Segment], body: &[u8], mut measured: impl FnMut(Measured)) -> Prompt {
        let mut stream =
            Stream { chunker: Chunker::new(self.seed(), self.max_blocks), masks: &self.masks, speaker: Speaker::Other };
        let (mut cache_salt, mut conversation, mut previous) = (None, None, None);
        for segment in segments {
            let before = stream.chunker.bytes();
            match segment.kind {
                SegmentKind::CacheSalt => cache_salt = Some(hash(segment, body)),
                SegmentKind::Conversation => conversation = Some(hash(segment, body)),
                // Not the hash of a conversation that has the same name.
                SegmentKind::PreviousResponse => previous = Some(!hash(segment, body)),
                SegmentKind::Schema => {}
                _ => stream.push(segment, body),
            }
            let stream_bytes = stream.chunker.bytes() - before;
            measured(Measured { kind: segment.kind, sent_bytes: segment.span.len(), stream_bytes });
        }
        Prompt { chain: stream.chunker.finish(), cache_salt, explicit: conversation.or(previous) }
    }

    fn seed(&self) -> u64 {
        xxh3_64_with_seed(&CANON_VERSION.to_le_bytes(), self.secret_seed.0)
    }
}

struct Stream<'m> {
    chunker: Chunker,
    masks: &'m Masks,
    speaker: Speaker,
}

/// Whose text it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaker {
    System,
    Other,
}

impl Stream<'_> {
    fn push(&mut self, segment: &Segment, body: &[u8]) {
        let raw = body.get(segment.span.clone()).unwrap_or_default();
        match segment.kind {
            // As a message of the system: the same prompt by another API is the same prompt.
            SegmentKind::System => {
                self.speaker = Speaker::System;
                self.frame(SegmentKind::Role, |stream| stream.push(b"system"));
            }
            SegmentKind::Role => {
                let role = segment.text(body);
                let is_system = matches!(role.as_ref(), b"system" | b"developer");
                self.speaker = if is_system { Speaker::System } else { Speaker::Other };
                self.frame(SegmentKind::Role, |stream| stream.push(&role));
            }
            SegmentKind::Text if self.speaker == Speaker::System && segment.form != SegmentForm::Raw => {
                let (masks, text) = (self.masks, segment.text(body));
                self.frame(SegmentKind::Text, |stream| masks.apply(&text, |piece| stream.push(piece)));
            }
            SegmentKind::Media => {
                let hash = hash(segment, body);
                self.frame(SegmentKind::Media, |stream| push_media(hash, stream));
            }
            SegmentKind::Tokens => {
                self.frame(SegmentKind::Tokens, |stream| raw::token_ids(raw, |ids| stream.push(ids)))
            }
            kind => {
                if let SegmentKind::ToolCallId | SegmentKind::ToolCalls | SegmentKind::Reasoning = kind {
                    self.speaker = Speaker::Other;
                }
                self.frame(kind, |stream| each_piece(segment.form, raw, |piece| stream.push(piece)));
            }
        }
    }

    fn frame(&mut self, kind: SegmentKind, write: impl FnOnce(&mut Chunker)) {
        self.chunker.push(&[kind as u8]);
        let start = self.chunker.bytes();
        write(&mut self.chunker);
        let len = u32::try_from(self.chunker.bytes() - start).unwrap_or(u32::MAX);
        self.chunker.push(&len.to_le_bytes());
    }
}

/// The text of a segment, whichever way it is written, piece by piece where it lies.
fn each_piece(form: SegmentForm, raw: &[u8], mut take: impl FnMut(&[u8])) {
    match form {
        SegmentForm::Plain => take(raw),
        SegmentForm::Escaped => unescape_each(raw, take),
        SegmentForm::Raw => raw::canonical(raw, take),
    }
}

/// The hash of a segment's text.
fn hash(segment: &Segment, body: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    each_piece(segment.form, body.get(segment.span.clone()).unwrap_or_default(), |piece| hasher.update(piece));
    hasher.digest()
}

/// Megabytes of image would drown the text, and a URL weigh nothing; equal images are equal hashes.
fn push_media(hash: u64, stream: &mut Chunker) {
    let hashes = [hash; 32].map(u64::to_le_bytes);
    let repeated = hashes.as_flattened();
    let mut rest = MEDIA_BYTES;
    while rest > 0 {
        let piece = repeated.get(..rest).unwrap_or(repeated);
        stream.push(piece);
        rest -= piece.len();
    }
}

#[cfg(test)]
mod tests;
