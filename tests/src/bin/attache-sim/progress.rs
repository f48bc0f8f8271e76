//! Says on standard error how far it is: a bar on a terminal, a line a run elsewhere.

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

const WIDTH: usize = 30;

#[derive(Debug)]
pub(crate) struct Progress {
    start: Instant,
    is_terminal: bool,
    done: AtomicUsize,
    all: usize,
}

impl Progress {
    pub(crate) fn start(all: usize) -> Self {
        Self { start: Instant::now(), is_terminal: io::stderr().is_terminal(), done: AtomicUsize::new(0), all }
    }

    /// A run of `trace` is done.
    pub(crate) fn done(&self, trace: &str, what: &str) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let seconds = self.start.elapsed().as_secs();
        let all = self.all;
        if self.is_terminal {
            let full = "#".repeat(WIDTH * done / all.max(1));
            eprint!("\r\x1b[K[{full:.<WIDTH$}] {done}/{all} {seconds:3} s  {trace}: {what}");
            // Progress that is not shown is no reason to end.
            let _ = io::stderr().flush();
        } else {
            eprintln!("[{seconds:3} s] {done}/{all} {trace}: {what}");
        }
    }

    pub(crate) fn end(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
