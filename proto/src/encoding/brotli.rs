//! `br` (RFC 7932).

use std::fmt;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};

use super::stage::{Fault, Place, Step};

/// A body whose coding is `br`.
pub(super) struct Brotli {
    state: Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>,
    progress: Progress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Before,
    Amid,
    Over,
}

impl Brotli {
    pub(super) fn new() -> Self {
        // Strict: without "large windows" of up to 1 GiB, which are no part of the RFC.
        let state =
            BrotliState::new_strict(StandardAlloc::default(), StandardAlloc::default(), StandardAlloc::default());
        Self { state: Box::new(state), progress: Progress::Before }
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        if self.progress == Progress::Over {
            return if input.is_empty() { Ok(Step::default()) } else { Err(Fault::Trailing) };
        }
        self.progress = Progress::Amid;
        let (mut input_left, mut output_left) = (input.len(), output.len());
        let mut step = Step::default();
        let mut written_in_all = 0;
        let result = BrotliDecompressStream(
            &mut input_left,
            &mut step.read,
            input,
            &mut output_left,
            &mut step.written,
            output,
            &mut written_in_all,
            &mut self.state,
        );
        match result {
            BrotliResult::ResultFailure => return Err(Fault::Corrupt),
            BrotliResult::ResultSuccess => self.progress = Progress::Over,
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
        }
        Ok(step)
    }

    /// What it takes of memory, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        /// The state, and tables that are as large as their alphabets.
        const BESIDES_ITS_WINDOW: u64 = 64 * 1024;
        BESIDES_ITS_WINDOW.saturating_add(u64::try_from(self.state.ringbuffer_size).unwrap_or_default())
    }

    pub(super) fn place(&self) -> Place {
        match self.progress {
            Progress::Before | Progress::Over => Place::Boundary,
            Progress::Amid => Place::Within,
        }
    }
}

impl fmt::Debug for Brotli {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Brotli").field("progress", &self.progress).finish_non_exhaustive()
    }
}
