//! `deflate`: deflated data in the zlib format, or without it.

use std::fmt;

use flate2::{Decompress, FlushDecompress, Status};

use super::stage::{Fault, Place, Step};

/// What it takes of memory, in bytes: a window of 32 KiB and miniz's tables.
pub(super) const MEMORY_BYTES: u64 = 44 * 1024;

/// Deflated data, to its end.
pub(super) struct Inflater {
    inflate: Decompress,
    place: Inflated,
}

/// How far deflated data is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inflated {
    Partly,
    Wholly,
}

impl Inflater {
    /// Of data without a frame.
    pub(super) fn raw() -> Self {
        Self { inflate: Decompress::new(false), place: Inflated::Partly }
    }

    /// Of data in the zlib format.
    fn zlib() -> Self {
        Self { inflate: Decompress::new(true), place: Inflated::Partly }
    }

    /// Begins anew.
    pub(super) fn restart_raw(&mut self) {
        self.inflate.reset(false);
        self.place = Inflated::Partly;
    }

    pub(super) fn inflated(&self) -> Inflated {
        self.place
    }

    /// Reads on, not beyond the end of the data.
    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        let before = (self.inflate.total_in(), self.inflate.total_out());
        let status = self.inflate.decompress(input, output, FlushDecompress::None).map_err(|_| Fault::Corrupt)?;
        if status == Status::StreamEnd {
            self.place = Inflated::Wholly;
        }
        let since = |total: u64, before: u64| usize::try_from(total - before).unwrap_or_default();
        Ok(Step { read: since(self.inflate.total_in(), before.0), written: since(self.inflate.total_out(), before.1) })
    }
}

impl fmt::Debug for Inflater {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Inflater").field("place", &self.place).finish_non_exhaustive()
    }
}

/// A body whose coding is `deflate`.
#[derive(Debug)]
pub(super) struct Deflate(Option<Inflater>);

impl Deflate {
    pub(super) fn new() -> Self {
        Self(None)
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        let inflater = match (&mut self.0, input) {
            (Some(inflater), _) => inflater,
            (None, []) => return Ok(Step::default()),
            (unknown, [first, ..]) => {
                // The first byte of the zlib format says 8 for deflate, and a window of 7 at most (RFC 1950, section 2.2). Deflated
                // data could begin so as well, with a stored block behind padding that is not 0: nobody writes that.
                let is_zlib = first & 0x0f == 8 && first >> 4 <= 7;
                unknown.insert(if is_zlib { Inflater::zlib() } else { Inflater::raw() })
            }
        };
        match inflater.inflated() {
            Inflated::Partly => inflater.step(input, output),
            Inflated::Wholly if input.is_empty() => Ok(Step::default()),
            Inflated::Wholly => Err(Fault::Trailing),
        }
    }

    pub(super) fn place(&self) -> Place {
        match self.0.as_ref().map(Inflater::inflated) {
            Some(Inflated::Partly) => Place::Within,
            Some(Inflated::Wholly) | None => Place::Boundary,
        }
    }
}
