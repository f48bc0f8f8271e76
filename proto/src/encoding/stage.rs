//! One coding's decoder at work: input goes in until it is used up, output goes on to the next stage piece by piece.

use super::brotli::Brotli;
use super::deflate::{self, Deflate};
use super::gzip::Gzip;
use super::zstd::Zstd;
use super::{Coding, DecodeError, Work};

/// How much is decoded at once, in bytes.
const PIECE_BYTES: usize = 16 * 1024;

/// The decoder of one coding.
#[derive(Debug)]
pub(super) struct Stage {
    coding: Coding,
    codec: Codec,
    piece: Box<[u8]>,
    work: Work,
}

#[derive(Debug)]
enum Codec {
    Gzip(Gzip),
    Deflate(Deflate),
    Brotli(Brotli),
    Zstd(Zstd),
}

/// What one call of a codec did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// How many bytes of the input it used up.
    pub(super) read: usize,
    /// How many bytes of the output it filled.
    pub(super) written: usize,
}

/// What is wrong with the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Corrupt,
    Trailing,
}

/// Whether the data may end here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing was read, or all that was begun has ended.
    Boundary,
    Within,
}

/// Sends a chunk through all stages. `allows` tells whether a stage may have decoded so many bytes.
pub(super) fn feed(
    stages: &mut [Stage],
    chunk: &[u8],
    allows: &dyn Fn(u64) -> bool,
    sink: &mut dyn FnMut(&[u8]),
) -> Result<(), DecodeError> {
    match stages.split_first_mut() {
        Some((first, rest)) => first.decode(chunk, allows, &mut |piece| feed(rest, piece, allows, sink)),
        None => {
            sink(chunk);
            Ok(())
        }
    }
}

impl Stage {
    pub(super) fn new(coding: Coding) -> Self {
        let codec = match coding {
            Coding::Gzip => Codec::Gzip(Gzip::new()),
            Coding::Deflate => Codec::Deflate(Deflate::new()),
            Coding::Brotli => Codec::Brotli(Brotli::new()),
            Coding::Zstd => Codec::Zstd(Zstd::new()),
        };
        Self { coding, codec, piece: vec![0; PIECE_BYTES].into(), work: Work::default() }
    }

    pub(super) fn finish(&self) -> Result<(), DecodeError> {
        let place = match &self.codec {
            Codec::Gzip(codec) => codec.place(),
            Codec::Deflate(codec) => codec.place(),
            Codec::Brotli(codec) => codec.place(),
            Codec::Zstd(codec) => codec.place(),
        };
        match place {
            Place::Boundary => Ok(()),
            Place::Within => Err(DecodeError::Incomplete(self.coding)),
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let codec = match &self.codec {
            Codec::Gzip(_) | Codec::Deflate(_) => deflate::MEMORY_BYTES,
            Codec::Brotli(codec) => codec.memory_bytes(),
            Codec::Zstd(codec) => codec.memory_bytes(),
        };
        codec.saturating_add(PIECE_BYTES as u64)
    }

    pub(super) fn work(&self) -> Work {
        self.work
    }

    fn decode(
        &mut self,
        mut input: &[u8],
        allows: &dyn Fn(u64) -> bool,
        next: &mut dyn FnMut(&[u8]) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        while !input.is_empty() {
            // Until the codec has nothing more to give: a piece that is not full says that it needs more.
            loop {
                let Step { read, written } = self.step(input)?;
                input = input.get(read..).unwrap_or_default();
                if !allows(self.work.decoded_bytes) {
                    return Err(DecodeError::TooLong(self.coding));
                }
                let piece = self.piece.get(..written).unwrap_or_default();
                if !piece.is_empty() {
                    next(piece)?;
                }
                if written < PIECE_BYTES && (written == 0 || !input.is_empty()) {
                    if read == 0 && written == 0 && !input.is_empty() {
                        // No codec refuses input without a reason. If one did, this would go on for ever.
                        return Err(DecodeError::Corrupt(self.coding));
                    }
                    break;
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, input: &[u8]) -> Result<Step, DecodeError> {
        let stepped = match &mut self.codec {
            Codec::Gzip(codec) => codec.step(input, &mut self.piece),
            Codec::Deflate(codec) => codec.step(input, &mut self.piece),
            Codec::Brotli(codec) => codec.step(input, &mut self.piece),
            Codec::Zstd(codec) => codec.step(input, &mut self.piece),
        };
        let step = stepped.map_err(|fault| match fault {
            Fault::Corrupt => DecodeError::Corrupt(self.coding),
            Fault::Trailing => DecodeError::Trailing(self.coding),
        })?;
        self.work.encoded_bytes += step.read as u64;
        self.work.decoded_bytes += step.written as u64;
        self.work.calls += 1;
        Ok(step)
    }
}
