//! `zstd` (RFC 8878): frames, one behind the other.

use std::fmt;

use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use super::stage::{Fault, Place, Step};

/// The largest window that a frame may ask for, as a power of two: 8 MiB (RFC 9659, section 3).
const WINDOW_LOG: u32 = 23;

/// A body whose coding is `zstd`.
pub(super) struct Zstd {
    /// `None` where there was no memory for it.
    decoder: Option<DCtx<'static>>,
    place: Place,
}

impl Zstd {
    pub(super) fn new() -> Self {
        let decoder = DCtx::try_create().and_then(|mut decoder| {
            decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).is_ok().then_some(decoder)
        });
        Self { decoder, place: Place::Boundary }
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        // Called without input between two frames, it would begin one.
        if self.place == Place::Boundary && input.is_empty() {
            return Ok(Step::default());
        }
        let decoder = self.decoder.as_mut().ok_or(Fault::Corrupt)?;
        let (mut input, mut output) = (InBuffer::around(input), OutBuffer::around(output));
        let remaining = decoder.decompress_stream(&mut output, &mut input).map_err(|_| Fault::Corrupt)?;
        self.place = if remaining == 0 { Place::Boundary } else { Place::Within };
        Ok(Step { read: input.pos(), written: output.pos() })
    }

    /// What it takes of memory, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.decoder.as_ref().map_or(0, |decoder| decoder.sizeof() as u64)
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }
}

impl fmt::Debug for Zstd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Zstd").field("place", &self.place).finish_non_exhaustive()
    }
}
