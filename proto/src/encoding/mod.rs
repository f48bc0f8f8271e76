//! Content codings (RFC 9110, section 8.4): what a body is encoded with, and its bytes without it.
//!
//! A [`Decoder`] is fed a body in chunks cut anywhere and hands on what it decodes in pieces of at most 16 KiB, as soon as it
//! can be decoded. Its work is linear in the bytes that go in and come out. It holds a window of the coding (32 KiB for gzip and
//! deflate, 8 MiB for zstd, 16 MiB for brotli, and never more than was decoded calls for) and no body.

mod accept;
mod brotli;
mod coding;
mod deflate;
mod gzip;
mod stage;
mod zstd;

pub use accept::acceptable;
pub use coding::{Coding, Codings, UnknownCoding};

use stage::Stage;

/// How long a decoded body may be, for one that is so long encoded. It holds for what is between stacked codings, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// What it may have in any case, in bytes.
    pub base_bytes: u64,
    /// How much more for each encoded byte, in bytes.
    pub ratio: u64,
}

impl Bound {
    /// Of a body that is looked at as it passes.
    ///
    /// Each decoded byte costs its time, so this bounds the time for each byte that a server sends, but for the first 16 MiB. The
    /// longest of honest answers need no more: one of 100,000 tokens that are all the same has 15.6 MB, and 60 kB as gzip, 1.6 kB
    /// as zstd, 235 bytes as brotli, if it is encoded as a whole and not event by event.
    pub const PASSING: Self = Self { base_bytes: 16 << 20, ratio: 256 };

    /// No more than so many bytes, however long the encoded body is.
    pub const fn bytes(bytes: u64) -> Self {
        Self { base_bytes: bytes, ratio: 0 }
    }

    fn allows(self, decoded_bytes: u64, encoded_bytes: u64) -> bool {
        decoded_bytes <= self.base_bytes.saturating_add(self.ratio.saturating_mul(encoded_bytes))
    }
}

/// Why a body cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is not encoded as it says.
    #[error("it is not valid {}{}", .0.name(), .0.condition())]
    Corrupt(Coding),
    /// More follows where the encoded data ends.
    #[error("something follows its {} data", .0.name())]
    Trailing(Coding),
    /// It ends before the encoded data does.
    #[error("it ends in the middle of its {} data", .0.name())]
    Incomplete(Coding),
    /// It is longer than its [`Bound`] allows.
    #[error("it is too long once its {} coding is undone", .0.name())]
    TooLong(Coding),
}

/// Undoes the codings of one body.
#[derive(Debug)]
pub struct Decoder {
    /// The coding that was applied last comes first.
    stages: Vec<Stage>,
    bound: Bound,
    encoded_bytes: u64,
    failed: Option<DecodeError>,
}

impl Decoder {
    /// A decoder of a body with these codings, bounded by [`Bound::PASSING`].
    pub fn new(codings: impl Into<Codings>) -> Self {
        Self::bounded(codings, Bound::PASSING)
    }

    /// A decoder of a body with these codings that is not longer than `bound`.
    pub fn bounded(codings: impl Into<Codings>, bound: Bound) -> Self {
        let stages = codings.into().iter().rev().map(Stage::new).collect();
        Self { stages, bound, encoded_bytes: 0, failed: None }
    }

    /// Decodes the next chunk and hands to `sink` all that can be decoded by now. What is beyond the bound is not handed on.
    ///
    /// # Errors
    /// [`DecodeError`]; it stays, whatever follows. What was handed on before is right.
    pub fn feed(&mut self, chunk: &[u8], mut sink: impl FnMut(&[u8])) -> Result<(), DecodeError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.encoded_bytes = self.encoded_bytes.saturating_add(chunk.len() as u64);
        let (bound, encoded_bytes) = (self.bound, self.encoded_bytes);
        let allows = |decoded_bytes| bound.allows(decoded_bytes, encoded_bytes);
        let fed = stage::feed(&mut self.stages, chunk, &allows, &mut sink);
        self.failed = fed.err();
        fed
    }

    /// The body is over. One without a byte is no error: it was not encoded at all.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`] if it broke off, or what [`Decoder::feed`] failed with.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.stages.iter().try_for_each(Stage::finish)
    }

    /// The bytes that were fed.
    pub fn encoded_bytes(&self) -> u64 {
        self.encoded_bytes
    }

    /// The bytes that were handed on.
    pub fn decoded_bytes(&self) -> u64 {
        self.stages.last().map_or(self.encoded_bytes, |stage| stage.work().decoded_bytes)
    }

    /// What it takes of memory, in bytes: a piece and a window for each coding, as far as they are allocated. Right to some kilobytes.
    pub fn memory_bytes(&self) -> u64 {
        self.stages.iter().map(Stage::memory_bytes).sum()
    }

    /// What was done for that, stage by stage, the coding that was applied last first: the proof that nothing is done twice.
    pub fn work(&self) -> impl Iterator<Item = Work> {
        self.stages.iter().map(Stage::work)
    }
}

/// What one coding's decoder has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// The bytes that it read.
    pub encoded_bytes: u64,
    /// The bytes that it wrote.
    pub decoded_bytes: u64,
    /// How often it was called.
    pub calls: u64,
}

#[cfg(test)]
mod tests;
