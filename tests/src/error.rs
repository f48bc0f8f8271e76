//! What can go wrong around a test, worded for whoever reads why the test failed.

use std::{fmt, io, process::ExitStatus, time::Duration};

/// The result of everything in the harness.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(thiserror::Error)]
pub enum Error {
    /// A program that the harness runs is not known.
    #[error("{variable} is not set, so {program} cannot be run; `make test`, `make demo` and `make bench` set it")]
    NoProgram {
        /// The environment variable that names it.
        variable: &'static str,
        /// What it is.
        program: &'static str,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// What was awaited did not come.
    #[error("waited {within:?} in vain until {what}{log}")]
    NotInTime {
        /// What was awaited.
        what: String,
        /// How long.
        within: Duration,
        /// The last lines of the process that it was awaited of.
        log: LastLines,
    },
    /// A process ended while something was awaited of it, or failed at its one task.
    #[error("{process} ended with {status} before {what}{log}")]
    Ended {
        /// Its name.
        process: String,
        /// How.
        status: ExitStatus,
        /// What was awaited.
        what: String,
        /// Its last lines.
        log: LastLines,
    },
    /// A request got no answer.
    #[error("cannot {what}: {}", causes(source))]
    Http {
        /// What was tried.
        what: String,
        /// Why not.
        source: reqwest::Error,
    },
    /// An answer or a text is not what it should be.
    #[error("{what}: {text}")]
    Unexpected {
        /// What it should be.
        what: String,
        /// What it is.
        text: String,
    },
}

impl Error {
    /// An answer or a text that is not what it should be.
    pub fn unexpected(what: impl Into<String>, text: impl Into<String>) -> Self {
        Self::Unexpected { what: what.into(), text: text.into() }
    }

    pub(crate) fn http(what: impl Into<String>) -> impl FnOnce(reqwest::Error) -> Self {
        move |source| Self::Http { what: what.into(), source }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.into(), source }
    }
}

/// As it is displayed: it is what a test's `unwrap` shows.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The end of a process's log.
#[derive(Clone, Debug, Default)]
pub struct LastLines(String);

impl LastLines {
    /// How many lines tell why a process failed.
    const LINES: usize = 20;

    pub(crate) fn of(log: &str) -> Self {
        let lines: Vec<_> = log.lines().collect();
        let from = lines.len().saturating_sub(Self::LINES);
        Self(lines.get(from..).unwrap_or_default().join("\n  | "))
    }
}

impl fmt::Display for LastLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; it last wrote\n  | {}", self.0) }
    }
}

/// An error of reqwest keeps the reason to itself unless one asks for its sources.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_shown_and_nothing_where_there_are_none() {
        let log = (0..30).map(|line| format!("line {line}\n")).collect::<String>();
        let shown = LastLines::of(&log).to_string();
        assert!(shown.starts_with("; it last wrote\n  | line 10\n") && shown.ends_with("| line 29"), "{shown}");
        assert_eq!(LastLines::of("").to_string(), "");
    }
}
