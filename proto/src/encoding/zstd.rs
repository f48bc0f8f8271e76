//! `zstd` (RFC 8878): frames, one behind the other.

use std::fmt;

use zstd::stream::raw::{DParameter, Decoder, Operation};

use super::stage::{Fault, Place, Step};

/// The largest window that a frame may ask for, as a power of two: 8 MiB (RFC 9659, section 3).
const WINDOW_LOG: u32 = 23;

/// A body whose coding is `zstd`.
pub(super) struct Zstd {
    /// `None` where there was no memory for it.
    decoder: Option<Decoder<'static>>,
    place: Place,
}

impl Zstd {
    pub(super) fn new() -> Self {
        let decoder = Decoder::new().and_then(|mut decoder| {
            decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
            Ok(decoder)
        });
        Self { decoder: decoder.ok(), place: Place::Boundary }
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        // Called without input between two frames, it would begin one.
        if self.place == Place::Boundary && input.is_empty() {
            return Ok(Step::default());
        }
        let decoder = self.decoder.as_mut().ok_or(Fault::Corrupt)?;
        let status = decoder.run_on_buffers(input, output).map_err(|_| Fault::Corrupt)?;
        self.place = if status.remaining == 0 { Place::Boundary } else { Place::Within };
        Ok(Step { read: status.bytes_read, written: status.bytes_written })
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
